"""Decoding behind prompts that are held once: against decoding in which every row has a copy of its own."""

import dataclasses

import pytest
import torch

from families import EOS, FAMILIES, VOCABULARY, tiny_model
from oncurve.engines.drawing import Meter, Wanted
from oncurve.engines.group_decoding import decode_groups
from oncurve.engines.row_decoding import decode_rows
from oncurve.functional import completion_lengths, row_keys
from oncurve.models.causal_lm import causal_lm
from oncurve.models.group_decoding import can_decode_groups
from oncurve.types import SamplingParams

NEVER = 10_000
# Full attention by an interface that can be exchanged. The others slide, recur, cap their scores or have an attention
# of their own, and are decoded row by row.
IN_GROUPS = {"llama", "qwen2", "qwen3", "mistral", "gemma", "cohere", "granite", "gpt2"}
PROMPTS = [
    (5, 9, 4),
    (6,),
    (3, 3, 8, 20, 11, 17, 4),
    (1, 12, 0, 10, 10, 16, 21),
    (19, 18, 1, 5, 7, 7, 13, 22, 2, 15, 4, 8),
]


def wanted(group_size=5, *, eos=(EOS,), max_rows=1000, limit=12, prompts=PROMPTS, **params):
    rows = [prompt for prompt in prompts for _ in range(group_size)]
    ids = torch.arange(len(prompts)).repeat_interleave(group_size)
    keys = row_keys(3, 1, ids, torch.arange(group_size).repeat(len(prompts)))
    return Wanted(rows, keys, torch.tensor(eos), SamplingParams(limit, **params), max_rows, lambda _: None, VOCABULARY)


def drawn(way, lm, these, meter=None):
    """Token ids and log-probs of each completion, cut at its end."""
    these = dataclasses.replace(these, logits=lm.logits)
    with torch.no_grad():
        ids, logprobs = way(lm, these, meter or Meter())
    counts = completion_lengths(ids, these.eos.tolist()).tolist()
    return [(row[:n].tolist(), of[:n]) for row, of, n in zip(ids, logprobs, counts, strict=True)]


def assert_same(found, expected, bound=1e-5):
    assert [ids for ids, _ in found] == [ids for ids, _ in expected]
    torch.testing.assert_close(
        torch.cat([p for _, p in found]), torch.cat([p for _, p in expected]), rtol=0, atol=bound
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_which_families_are_decoded_in_groups(family):
    assert can_decode_groups(causal_lm(tiny_model(family))) == (family in IN_GROUPS)


@pytest.mark.parametrize("max_rows", [4, 9, 1000])
@pytest.mark.parametrize("family", sorted(IN_GROUPS))
def test_completions_are_those_of_rows_with_a_copy_of_their_own(family, max_rows):
    lm = causal_lm(tiny_model(family))
    these = wanted(eos=(EOS, 5), temperature=0.9)
    expected = drawn(decode_rows, lm, these)
    assert len({len(ids) for ids, _ in expected}) > 4  # rows end at different times
    assert_same(drawn(decode_groups, lm, wanted(eos=(EOS, 5), temperature=0.9, max_rows=max_rows)), expected)


@pytest.mark.parametrize(
    "options", [{"num_key_value_heads": 4}, {"num_key_value_heads": 1}, {"tie_word_embeddings": True}]
)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_heads_shared_or_not_and_tied_output_layers(family, options):
    lm = causal_lm(tiny_model(family, **options))
    assert can_decode_groups(lm)
    assert_same(drawn(decode_groups, lm, wanted(max_rows=7)), drawn(decode_rows, lm, wanted()))


def test_long_completions_outgrow_their_first_buffers():
    lm = causal_lm(tiny_model("llama", max_position_embeddings=400))
    these = wanted(3, eos=(NEVER,), limit=200, temperature=0.6)
    expected = drawn(decode_rows, lm, these)
    assert_same(drawn(decode_groups, lm, these), expected, 1e-4)
    few = wanted(3, eos=(NEVER,), limit=200, temperature=0.6, max_rows=5)
    assert_same(drawn(decode_groups, lm, few), expected, 1e-4)


def test_a_model_in_float64_agrees_to_ten_digits():
    lm = causal_lm(tiny_model("llama").double())
    these = wanted(eos=(NEVER,))
    prompt, row = PROMPTS[3], 3 * 5
    ids, logprobs = drawn(decode_groups, lm, these)[row]
    with torch.no_grad():
        whole = lm.logits(lm.hidden(torch.tensor([[*prompt, *ids]])))[0, len(prompt) - 1 : -1].log_softmax(dim=-1)
    torch.testing.assert_close(logprobs, whole.gather(1, torch.tensor(ids)[:, None])[:, 0].float(), rtol=0, atol=1e-6)


def forwards(lm):
    shapes = []
    lm.decoder.register_forward_pre_hook(
        lambda _module, _arguments, keywords: shapes.append(tuple(keywords["input_ids"].shape)), with_kwargs=True
    )
    return shapes


def test_every_prompt_is_read_once_even_if_its_group_does_not_fit():
    lm = causal_lm(tiny_model("llama"))
    shapes = forwards(lm)
    prompts = [prompt for prompt in PROMPTS if len(prompt) > 1]
    drawn(decode_groups, lm, wanted(5, eos=(NEVER,), max_rows=3, limit=4, prompts=prompts))
    read = [rows for rows, width in shapes if width > 1]
    steps = [rows for rows, width in shapes if width == 1]
    assert sum(read) == len(prompts)
    # 20 rows by three, four tokens each, of which the first comes of the prompt.
    assert steps == [3] * 3 * 6 + [2] * 3


def test_waiting_rows_come_in_as_others_end():
    lm = causal_lm(tiny_model("llama"))
    shapes = forwards(lm)
    meter = Meter()
    found = drawn(decode_groups, lm, wanted(40, eos=(EOS, 5), max_rows=20), meter)
    steps = [rows for rows, width in shapes if width == 1]
    assert max(steps) <= 20
    lengths = [len(ids) for ids, _ in found]
    # Row by row the batch would wait for its longest: ten batches of twelve tokens.
    assert sum(lengths) / 20 < len(steps) < 10 * 11
    assert meter.running == sum(lengths)
    assert meter.running / meter.places > 0.6


def test_prompts_are_not_copied_for_their_rows():
    lm = causal_lm(tiny_model("llama", max_position_embeddings=1200))
    sizes = []
    of_prompt = tuple(step % 20 + 1 for step in range(1000))

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            result = function(*arguments, **(keywords or {}))
            if isinstance(result, torch.Tensor):
                sizes.append(result.numel())
            return result

    with Watch():
        drawn(decode_groups, lm, wanted(16, eos=(NEVER,), limit=3, prompts=[of_prompt]))
    # The largest are the scores, 64,128; keys for 16 rows would be 256,000.
    assert max(sizes) < 100_000


def test_greedy_and_filters():
    lm = causal_lm(tiny_model("qwen2"))
    for params in ({"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.5, "temperature": 0.7}):
        assert_same(drawn(decode_groups, lm, wanted(max_rows=6, **params)), drawn(decode_rows, lm, wanted(**params)))


def test_the_model_has_its_own_attention_back_after_an_error():
    module = tiny_model("llama")
    lm = causal_lm(module)
    before = module.config._attn_implementation
    hook = lm.decoder.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        drawn(decode_groups, lm, wanted())
    hook.remove()
    assert module.config._attn_implementation == before
    assert_same(drawn(decode_groups, lm, wanted()), drawn(decode_rows, lm, wanted()))
