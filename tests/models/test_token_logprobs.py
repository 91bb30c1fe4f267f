import pytest
import torch

from families import FAMILIES, VOCABULARY, tiny_model
from oncurve.data.collate import collate
from oncurve.models.causal_lm import causal_lm
from oncurve.models.load import recompute_activations
from oncurve.models.token_logprobs import token_logprobs
from oncurve.types import Batch

# (prompt, completion): a prompt of one token, a completion of one token, 0 and 2 (pad and end) inside and at the end.
ROWS = [
    ((1, 5, 9), (4, 22, 7, 2)),
    ((6,), (14, 0, 3, 8, 20, 2)),
    ((3, 3, 8, 20, 11, 17, 2, 4), (2,)),
    ((1, 12), (0, 0, 0)),
    ((19, 18, 1, 5), (21, 10, 16, 13, 15)),
]


def double(family, seed=0, **options):
    return causal_lm(tiny_model(family, seed, **options).double())


def weights(batch, seed=0):
    """What a loss might multiply each token's log-prob with; it depends on the row and the token alone."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(64, 64, generator=generator, dtype=torch.float64)
    first = batch.completion_mask.long().argmax(dim=1)
    return values[batch.tokens[:, 0], :][:, : batch.tokens.shape[1]] * (1 + first[:, None])


def gradients(lm, logprobs, batch):
    lm.module.zero_grad()
    (logprobs * weights(batch)).sum().backward()
    return [parameter.grad.clone() for parameter in lm.module.parameters() if parameter.grad is not None]


def gap(found, expected):
    """The largest difference, relative to the largest entry of the tensor it is in."""
    pairs = zip(found, expected, strict=True)
    gaps = [(one - other).detach().abs().max() / other.abs().max() for one, other in pairs]
    return float(torch.stack(gaps).max())  # nan if one is


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.6])
@pytest.mark.parametrize("family", FAMILIES)
def test_against_the_full_log_softmax_of_the_module(family, temperature):
    lm = double(family)
    batch = collate(ROWS, pad_id=0)
    logprobs, entropy = token_logprobs(lm, batch, temperature)
    assert logprobs.dtype == torch.float64

    full = (lm.module(input_ids=batch.tokens, use_cache=False).logits / temperature).log_softmax(dim=-1)
    expected = torch.zeros(5, 9, dtype=torch.float64)
    expected_entropy = torch.zeros(5, 9, dtype=torch.float64)
    for row, (prompt, completion) in enumerate(ROWS):
        for offset, token in enumerate(completion):
            at = len(prompt) + offset
            expected[row, at] = full[row, at - 1, token]
            expected_entropy[row, at] = -(full[row, at - 1].exp() * full[row, at - 1]).sum()
    torch.testing.assert_close(logprobs, expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(entropy, expected_entropy, rtol=1e-6, atol=1e-9)
    assert not entropy.requires_grad
    assert bool((logprobs[batch.completion_mask] < 0).all())
    assert bool((entropy[batch.completion_mask] > 0).all())

    found = gradients(lm, logprobs, batch)
    assert gap(found, gradients(lm, full_gather(lm, batch, temperature), batch)) < 1e-6


def full_gather(lm, batch, temperature):
    """The straightforward way, shift by one included."""
    full = (lm.module(input_ids=batch.tokens, use_cache=False).logits / temperature).log_softmax(dim=-1)
    chosen = full[:, :-1].gather(-1, batch.tokens[:, 1:, None])[..., 0]
    return torch.cat([torch.zeros_like(chosen[:, :1]), chosen], dim=1) * batch.completion_mask


@pytest.mark.parametrize(
    ("family", "bound"),
    [(family, 1e-10) for family in ("llama", "qwen2", "qwen3", "mistral", "mistral-window", "gpt2")]
    # These compute attention weights or norms in float32 whatever their dtype is.
    + [(family, 1e-5) for family in ("gemma2", "gemma3", "cohere", "mpt")],
)
def test_neither_cut_nor_padding_nor_order_changes_a_log_prob_or_the_gradient(family, bound):
    lm = double(family)
    batch = collate(ROWS, pad_id=0)
    logprobs, entropy = token_logprobs(lm, batch, 0.7)
    expected = gradients(lm, logprobs, batch)

    wider = Batch(
        torch.cat([batch.tokens, torch.full((5, 7), 21)], dim=1),
        batch.lengths,
        torch.cat([batch.completion_mask, torch.zeros(5, 7, dtype=torch.bool)], dim=1),
    )
    other_pad = collate(ROWS, pad_id=2)
    for cuts, whole in (
        ([[0, 1, 2, 3, 4]], wider),
        ([[0, 1, 2, 3, 4]], other_pad),
        ([[4, 2, 0, 3, 1]], batch),
        ([[0, 1], [2, 3, 4]], batch),
        ([[3], [1], [4], [2], [0]], batch),
    ):
        total = [torch.zeros_like(gradient) for gradient in expected]
        for rows in cuts:
            part = whole if rows == [0, 1, 2, 3, 4] else whole.take(rows)
            found, found_entropy = token_logprobs(lm, part, 0.7)
            width = min(found.shape[1], 9)
            assert gap([found[:, :width]], [logprobs[rows][:, :width]]) < bound
            assert gap([found_entropy[:, :width]], [entropy[rows][:, :width]]) < bound
            for sum_so_far, gradient in zip(total, gradients(lm, found, part), strict=True):
                sum_so_far += gradient
        assert gap(total, expected) < bound


def test_only_the_tokens_of_the_mask_are_scored():
    lm = double("llama")
    mask = [[True, False, True, True], [False] * 6, [True], [False, True, False], [True] * 5]
    logprobs, entropy = token_logprobs(lm, collate(ROWS, pad_id=0, completion_masks=mask), 1.0)
    all_logprobs, all_entropy = token_logprobs(lm, collate(ROWS, pad_id=0), 1.0)
    kept = collate(ROWS, pad_id=0, completion_masks=mask).completion_mask
    torch.testing.assert_close(logprobs, all_logprobs * kept)
    torch.testing.assert_close(entropy, all_entropy * kept)
    assert int((logprobs != 0).sum()) == 10


def test_no_token_to_score():
    lm = causal_lm(tiny_model("gemma2"))
    batch = Batch(torch.tensor([[1, 5, 9]]), torch.tensor([3]), torch.zeros(1, 3, dtype=torch.bool))
    logprobs, entropy = token_logprobs(lm, batch, 1.0)
    assert logprobs.tolist() == entropy.tolist() == [[0.0, 0.0, 0.0]]
    logprobs.sum().backward()


def test_log_probs_of_a_bfloat16_model_are_float32():
    lm = causal_lm(tiny_model("llama").bfloat16())
    logprobs, entropy = token_logprobs(lm, collate(ROWS, pad_id=0), 0.7)
    assert logprobs.dtype == entropy.dtype == torch.float32
    reference, _ = token_logprobs(causal_lm(tiny_model("llama")), collate(ROWS, pad_id=0), 0.7)
    assert (logprobs - reference).abs().mean() < 0.2


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_gradient_checkpointing_changes_nothing(family):
    lm = double(family, **({"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0} if family == "gpt2" else {}))
    batch = collate(ROWS, pad_id=0)
    expected = gradients(lm, token_logprobs(lm, batch, 0.7)[0], batch)
    recompute_activations(lm.module)
    lm.module.train()
    assert gap(gradients(lm, token_logprobs(lm, batch, 0.7)[0], batch), expected) < 1e-12


def test_the_output_layer_runs_on_completion_tokens_alone():
    lm = causal_lm(tiny_model("llama"))
    rows = []
    lm.head.register_forward_hook(lambda _module, _arguments, output: rows.append(tuple(output.shape)))
    token_logprobs(lm, collate(ROWS, pad_id=0), 1.0)
    assert rows == [(19, VOCABULARY)]
