"""Computing a prompt once for its group changes neither a log-prob nor a gradient."""

import pytest
import torch

from families import FAMILIES, tiny_model
from oncurve.data.collate import collate
from oncurve.functional.logprobs import place, predictor_mask, selected_logprobs
from oncurve.models.causal_lm import causal_lm
from oncurve.models.load import recompute_activations
from oncurve.models.shared_prefix import grouped_microbatches, predictors, prefixes, worth_sharing
from oncurve.models.token_logprobs import token_logprobs

A, B, C = (1, 5, 9, 12), (6,), (3, 3, 8, 20, 11, 17)
# A prompt several times, in any order; completions of one token, and with pad and end inside.
ROWS = [
    (A, (4, 22, 7, 2)),
    (B, (14, 0, 3, 8, 20, 2)),
    (A, (2,)),
    (C, (0, 0, 0)),
    (A, (21, 10, 16, 13, 15)),
    (B, (5, 2)),
]
SHARING = ["llama", "qwen2", "qwen3", "mistral", "gpt2", "cohere", "gemma", "granite"]
EXACT = {"gpt2"}
"""The others compute norms and positions in float32 even as float64 models."""


def double(family, **options):
    return causal_lm(tiny_model(family, **options).double())


def plain(lm, batch, temperature):
    hidden = lm.hidden(batch.tokens)[predictor_mask(batch.completion_mask)]
    logprobs, entropy = selected_logprobs(lm.logits(hidden), batch.tokens[batch.completion_mask], temperature)
    return place(logprobs, batch.completion_mask), place(entropy, batch.completion_mask)


def gradients(lm, logprobs):
    lm.module.zero_grad()
    generator = torch.Generator().manual_seed(1)
    (logprobs * torch.randn(logprobs.shape, generator=generator, dtype=logprobs.dtype)).sum().backward()
    return {n: p.grad.clone() for n, p in lm.module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("rows", [ROWS, [ROWS[0], ROWS[2], ROWS[4]], [ROWS[2], ROWS[2]]], ids=["mixed", "one", "short"])
@pytest.mark.parametrize("family", SHARING)
def test_log_probs_and_gradients_are_those_of_the_plain_pass(family, rows):
    lm = double(family)
    batch = collate(rows, pad_id=0)
    assert worth_sharing(lm, batch)
    for one, other in zip(token_logprobs(lm, batch, 0.7), plain(lm, batch, 0.7), strict=True):
        assert (one - other).abs().max() <= (1e-10 if family in EXACT else 1e-5)
    shared = gradients(lm, token_logprobs(lm, batch, 0.7)[0])
    expected = gradients(lm, plain(lm, batch, 0.7)[0])
    assert shared.keys() == expected.keys()
    for name, gradient in expected.items():
        scale = gradient.abs().max().clamp(min=1e-6)
        assert (shared[name] - gradient).abs().max() <= (1e-10 if family in EXACT else 1e-6) * scale, name


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_is_right_whether_it_shares_or_not(family):
    lm = double(family)
    batch = collate(ROWS, pad_id=0)
    assert worth_sharing(lm, batch) == (family in SHARING)
    torch.testing.assert_close(token_logprobs(lm, batch, 1.0)[0], plain(lm, batch, 1.0)[0], rtol=0, atol=1e-6)


def test_float32_is_within_the_bounds():
    lm = causal_lm(tiny_model("llama"))
    batch = collate(ROWS, pad_id=0)
    shared, expected = token_logprobs(lm, batch, 1.0)[0], plain(lm, batch, 1.0)[0]
    torch.testing.assert_close(shared, expected, rtol=0, atol=1e-5)


def test_a_prompt_passes_the_model_once(monkeypatch):
    lm = double("llama")
    batch = collate(ROWS, pad_id=0)
    seen = []
    real = type(lm).hidden
    monkeypatch.setattr(type(lm), "hidden", lambda self, t, **k: seen.append(tuple(t.shape)) or real(self, t, **k))
    hidden = predictors(lm, batch)
    assert seen == [(3, 6), (6, 5)]
    assert hidden.shape == (21, 32)


def test_prefixes():
    found = prefixes(collate(ROWS, pad_id=0))
    assert found.of_row.tolist() == [0, 1, 0, 2, 0, 1]
    assert found.lengths.tolist() == [4, 1, 4, 6, 4, 1]
    assert found.tokens.tolist() == [[0, 0, 1, 5, 9, 12], [0, 0, 0, 0, 0, 6], [3, 3, 8, 20, 11, 17]]
    assert found.padded


def test_a_model_that_recomputes_activations_does_not_share():
    lm = double("llama")
    recompute_activations(lm.module)
    assert not worth_sharing(lm, collate(ROWS, pad_id=0))


def test_rows_of_a_prompt_stay_together_and_the_budget_holds():
    prompts = [0, 1, 0, 2, 0, 1, 2, 2]
    starts = [4, 1, 4, 6, 4, 1, 6, 6]
    sizes = [8, 7, 5, 9, 9, 3, 7, 16]
    cut = grouped_microbatches(prompts, starts, sizes, token_budget=40)
    assert sorted(row for rows in cut for row in rows) == list(range(8))
    for rows in cut:
        widest = max(starts[r] for r in rows)
        longest = max(sizes[r] - starts[r] for r in rows)
        cost = len({prompts[r] for r in rows}) * widest + len(rows) * longest
        assert cost <= 40
    assert cut == [[7, 3, 6], [4, 0, 2, 1], [5]] or len(cut) <= 3
    assert grouped_microbatches(prompts, starts, sizes, token_budget=1) == [[r] for r in [7, 3, 6, 4, 0, 2, 1, 5]]
    assert len(grouped_microbatches(prompts, starts, sizes, token_budget=10_000)) == 1
