from collections import Counter

import pytest
import torch

from families import CONTEXT, EOS, FAMILIES, VOCABULARY, tiny_model
from oncurve.data.collate import collate
from oncurve.engines.torch_engine import TorchEngine
from oncurve.functional import selected_logprobs
from oncurve.models.causal_lm import causal_lm
from oncurve.models.load import recompute_activations
from oncurve.models.token_logprobs import token_logprobs
from oncurve.types import Completion, Group, OncurveError, Prompt, SamplingParams

NEVER = VOCABULARY + 1
"""An end that no model writes."""


def prompt(number, *token_ids):
    return Prompt(number, "", "", token_ids)


# Of 1, 3, 7, 7 and 12 tokens; 0 is padding elsewhere, and one is inside.
PROMPTS = [
    prompt(0, 5, 9, 4),
    prompt(1, 6),
    prompt(2, 3, 3, 8, 20, 11, 17, 4),
    prompt(3, 1, 12, 0, 10, 10, 16, 21),
    prompt(7, 19, 18, 1, 5, 7, 7, 13, 22, 2, 15, 4, 8),
]


def engine_for(lm, eos=(EOS,), max_rows=1000):
    return TorchEngine(lm, eos_ids=eos, decode=lambda ids: " ".join(map(str, ids)), max_rows=max_rows)


def sample(
    family_or_lm,
    prompts=PROMPTS,
    group_size=1,
    *,
    eos=(EOS,),
    max_rows=1000,
    seed=0,
    iteration=1,
    shapes=None,
    **params,
):
    """``shapes``: a list that gets ``(rows, tokens)`` of every forward pass of the decoder."""
    lm = causal_lm(tiny_model(family_or_lm)) if isinstance(family_or_lm, str) else family_or_lm
    options = SamplingParams(**({"max_new_tokens": 12} | params))
    engine = engine_for(lm, eos, max_rows)
    hook = lm.decoder.register_forward_pre_hook(
        lambda _module, _arguments, keywords: (
            shapes.append(tuple(keywords["input_ids"].shape)) if shapes is not None else None
        ),
        with_kwargs=True,
    )
    try:
        return engine.sample(prompts, group_size, options, seed=seed, iteration=iteration)
    finally:
        hook.remove()


def tokens(groups):
    return [[completion.token_ids for completion in group.completions] for group in groups]


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


def test_greedy_is_what_transformers_generates(family):
    module = tiny_model(family)
    groups = sample(causal_lm(module), temperature=0.0)
    for group in groups:
        given = torch.tensor([group.prompt.token_ids])
        whole = module.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=12, do_sample=False)
        assert list(group.completions[0].token_ids) == whole[0, given.shape[1] :].tolist()
    assert [group.prompt for group in groups] == PROMPTS


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_the_sampler_and_the_trainer_agree_on_the_log_probs(family, temperature):
    lm = causal_lm(tiny_model(family))
    groups = sample(lm, group_size=5, temperature=temperature, seed=3)
    drawn = [(group.prompt.token_ids, completion) for group in groups for completion in group.completions]
    # Padded with the end-of-sequence token, as where a tokenizer has no other.
    batch = collate([(given, completion.token_ids) for given, completion in drawn], pad_id=EOS)
    expected = token_logprobs(lm, batch, temperature)[0].detach()[batch.completion_mask]
    found = torch.tensor([value for _, completion in drawn for value in completion.sampler_logprobs])
    assert len(found) > 100
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_bfloat16_model_is_sampled_at_float32_log_probs():
    # Divided by the temperature in bfloat16, log-probs are off by about 0.01 nats.
    lm = causal_lm(tiny_model("llama").bfloat16())
    [group] = sample(lm, [PROMPTS[2]], 8, temperature=0.7, max_new_tokens=1)
    with torch.no_grad():
        logits = lm.logits(lm.hidden(torch.tensor([PROMPTS[2].token_ids]))[:, -1])
    for completion in group.completions:
        expected, _ = selected_logprobs(logits, torch.tensor(completion.token_ids), 0.7)
        assert completion.sampler_logprobs == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize("max_rows", [3, 7])
def test_the_same_seed_gives_the_same_completions_whatever_the_batch_size(family, max_rows):
    lm = causal_lm(tiny_model(family))
    expected = tokens(sample(lm, group_size=5, eos=(EOS, 5)))
    assert tokens(sample(lm, group_size=5, eos=(EOS, 5), max_rows=max_rows)) == expected
    assert len({len(ids) for group in expected for ids in group}) > 3  # rows have left at different times


@pytest.mark.parametrize("max_rows", [4, 1000])
def test_the_same_seed_gives_the_same_completions_in_any_company(family, max_rows):
    lm = causal_lm(tiny_model(family))
    expected = tokens(sample(lm, group_size=3))
    order = [3, 0, 4, 1, 2]
    shuffled = tokens(sample(lm, [PROMPTS[index] for index in order], 3, max_rows=max_rows))
    assert shuffled == [expected[index] for index in order]
    assert tokens(sample(lm, PROMPTS[2:3], 3, max_rows=max_rows)) == expected[2:3]
    assert tokens(sample(lm, PROMPTS[1:4], 2, max_rows=max_rows)) == [group[:2] for group in expected[1:4]]


def test_another_seed_or_iteration_gives_others():
    lm = causal_lm(tiny_model("llama"))
    drawn = [
        tokens(sample(lm, group_size=4, seed=seed, iteration=iteration))
        for seed, iteration in [(0, 1), (0, 2), (1, 1), (2**40, 1)]
    ]
    assert len({str(groups) for groups in drawn}) == 4
    assert tokens(sample(lm, group_size=4, seed=0, iteration=1)) == drawn[0]


def test_the_members_of_a_group_differ():
    for group in tokens(sample("llama", group_size=8, eos=(NEVER,))):
        assert len(set(group)) == 8


def distribution(lm, token_ids, temperature=1.0):
    with torch.no_grad():
        return (lm.logits(lm.hidden(torch.tensor([token_ids]))[0, -1]) / temperature).softmax(dim=-1)


def assert_drawn_from(probabilities, drawn):
    """Pearson's chi-squared test; with a fair draw about one in a thousand fails. Rare tokens count as one."""
    expected = len(drawn) * probabilities
    counts = torch.bincount(torch.tensor(drawn), minlength=VOCABULARY)
    common = expected >= 5
    found = torch.cat([counts[common], counts[~common].sum()[None]])
    expected = torch.cat([expected[common], expected[~common].sum()[None]])
    freedom = len(found) - 1
    assert freedom >= 8
    assert float(((found - expected).square() / expected).sum()) < freedom + 3.1 * (2 * freedom) ** 0.5


def test_tokens_come_as_often_as_softmax_says():
    lm = causal_lm(tiny_model("llama"))
    given = PROMPTS[0].token_ids
    [group] = sample(lm, [PROMPTS[0]], 4000, max_rows=900, max_new_tokens=2, temperature=0.7, eos=(NEVER,), seed=1)
    drawn = [completion.token_ids for completion in group.completions]
    assert_drawn_from(distribution(lm, given, 0.7), [first for first, _ in drawn])
    # The rows of a prompt share what was read of it; they must not share what was written.
    for first, _ in Counter(first for first, _ in drawn).most_common(3):
        seconds = [second for before, second in drawn if before == first]
        assert_drawn_from(distribution(lm, (*given, first), 0.7), seconds)


@pytest.mark.parametrize("eos", [(EOS,), (9, EOS, 5), (9, 9, 5)])
def test_the_end_is_included_once_and_nothing_comes_after_it(eos):
    groups = sample("llama", group_size=16, eos=eos)
    endings = Counter()
    for completion in (completion for group in groups for completion in group.completions):
        ids = completion.token_ids
        assert not set(ids[:-1]) & set(eos)
        assert completion.truncated == (ids[-1] not in eos)
        assert len(ids) == 12 or not completion.truncated
        assert len(completion.sampler_logprobs) == len(ids)
        assert completion.text == " ".join(map(str, ids))
        endings[None if completion.truncated else ids[-1]] += 1
    assert set(endings) == {None, *eos}


def test_an_end_cuts_what_would_have_gone_on():
    lm = causal_lm(tiny_model("llama"))
    [[going_on]] = [group.completions for group in sample(lm, PROMPTS[:1], eos=(NEVER,))]
    assert going_on.truncated
    end = going_on.token_ids[6]
    length = going_on.token_ids.index(end) + 1
    [[ended]] = [group.completions for group in sample(lm, PROMPTS[:1], eos=(NEVER, end))]
    assert ended.token_ids == going_on.token_ids[:length]
    assert ended.sampler_logprobs == going_on.sampler_logprobs[:length]
    assert not ended.truncated


def test_truncated_says_whether_the_limit_came_first():
    lm = causal_lm(tiny_model("llama"))
    [group] = sample(lm, PROMPTS[:1], 12, max_new_tokens=20)
    ended = {number: c for number, c in enumerate(group.completions) if not c.truncated and len(c.token_ids) > 1}
    assert ended
    for number, completion in ended.items():
        length = len(completion.token_ids)
        [group] = sample(lm, PROMPTS[:1], 12, max_new_tokens=length)
        assert group.completions[number].token_ids == completion.token_ids
        assert not group.completions[number].truncated
        [group] = sample(lm, PROMPTS[:1], 12, max_new_tokens=length - 1)
        assert group.completions[number].token_ids == completion.token_ids[:-1]
        assert group.completions[number].truncated


def test_one_new_token():
    lm = causal_lm(tiny_model("llama"))
    shapes = []
    groups = sample(lm, group_size=20, max_new_tokens=1, shapes=shapes)
    for completion in (completion for group in groups for completion in group.completions):
        assert len(completion.token_ids) == len(completion.sampler_logprobs) == 1
        assert completion.truncated == (completion.token_ids[0] != EOS)
    assert shapes == [(5, 12)]


def test_greedy_ignores_the_seed_and_filters_and_top_k_1_is_greedy():
    lm = causal_lm(tiny_model("llama"))
    greedy = tokens(sample(lm, temperature=0.0))
    assert tokens(sample(lm, temperature=0.0, seed=9, top_k=3, top_p=0.2)) == greedy
    assert tokens(sample(lm, temperature=1.3, top_k=1)) == greedy
    assert tokens(sample(lm, temperature=1e-4)) == greedy


def test_log_probs_of_a_filtered_distribution_are_its_own():
    lm = causal_lm(tiny_model("llama"))
    [group] = sample(lm, PROMPTS[:1], 40, max_new_tokens=1, temperature=0.7, top_k=3)
    kept = distribution(lm, PROMPTS[0].token_ids, 0.7).topk(3)
    expected = dict(zip(kept.indices.tolist(), (kept.values / kept.values.sum()).log().tolist(), strict=True))
    assert {completion.token_ids[0] for completion in group.completions} == set(expected)
    for completion in group.completions:
        assert completion.sampler_logprobs[0] == pytest.approx(expected[completion.token_ids[0]], abs=1e-5)


def test_log_probs_of_greedy_decoding_are_of_temperature_1():
    lm = causal_lm(tiny_model("llama"))
    [group] = sample(lm, PROMPTS[:1], temperature=0.0)
    [completion] = group.completions
    batch = collate([(PROMPTS[0].token_ids, completion.token_ids)], pad_id=0)
    expected = token_logprobs(lm, batch, 1.0)[0][batch.completion_mask].tolist()
    assert completion.sampler_logprobs == pytest.approx(expected, abs=1e-5)


def test_a_prompt_and_its_completion_may_fill_the_context(family):
    full = prompt(5, *(1 + step % 20 for step in range(CONTEXT - 6)))
    lm = causal_lm(tiny_model(family))
    groups = sample(lm, [PROMPTS[1], full], eos=(NEVER,), max_new_tokens=6)
    assert [len(group.completions[0].token_ids) for group in groups] == [6, 6]
    with pytest.raises(
        OncurveError, match=r"prompt 5 has 34 tokens and max_new_tokens is 7, .* is 40 .* at most 33 fit"
    ):
        sample(lm, [PROMPTS[1], full], max_new_tokens=7)


def test_a_model_without_a_longest_sequence_takes_any():
    module = tiny_model("bloom")
    del module.config.max_position_embeddings
    [group] = sample(causal_lm(module), PROMPTS[:1], eos=(NEVER,), max_new_tokens=50)
    assert len(group.completions[0].token_ids) == 50


def test_an_empty_prompt_is_refused():
    with pytest.raises(OncurveError, match="prompt 4 is empty"):
        sample("llama", [PROMPTS[0], prompt(4)])


def test_no_prompts():
    assert sample("llama", []) == []


def test_the_same_prompt_twice_is_read_once_and_drawn_alike():
    lm = causal_lm(tiny_model("llama"))
    shapes = []
    again = prompt(PROMPTS[0].id, *PROMPTS[0].token_ids)
    same_text = prompt(8, *PROMPTS[0].token_ids)
    first, second, third, fourth = tokens(sample(lm, [PROMPTS[0], PROMPTS[0], again, same_text], 3, shapes=shapes))
    assert first == second == third
    assert fourth != first
    assert shapes[0] == (1, 3)


def test_two_prompts_with_one_id_are_not_mixed_up():
    lm = causal_lm(tiny_model("llama"))
    one, other = prompt(0, 5, 9, 4), prompt(0, 6, 2)
    together = tokens(sample(lm, [one, other], 3))
    assert together == [tokens(sample(lm, [each], 3))[0] for each in (one, other)]
    assert together[0] != together[1]


def test_groups_come_in_the_order_of_the_prompts_and_know_them():
    for group, given in zip(sample("llama", group_size=2, max_rows=3), PROMPTS, strict=True):
        assert isinstance(group, Group)
        assert group.prompt is given
        assert len(group.completions) == 2
        assert all(isinstance(completion, Completion) for completion in group.completions)


def test_every_prompt_is_read_once_and_ended_rows_leave():
    lm = causal_lm(tiny_model("llama"))
    shapes = []
    groups = sample(lm, group_size=40, eos=(EOS, 5), shapes=shapes)
    assert shapes[0] == (5, 12)
    lengths = [len(completion.token_ids) for group in groups for completion in group.completions]
    for step, (rows, width) in enumerate(shapes[1:], 1):
        assert width == 1
        still_running = sum(length > step for length in lengths)
        assert still_running <= rows < still_running / 0.75
    assert shapes[1][0] > shapes[-1][0]


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_it_says_how_it_spent_its_time(family):
    engine = engine_for(causal_lm(tiny_model(family)), max_rows=8)
    groups = engine.sample(PROMPTS, 4, SamplingParams(12), seed=0, iteration=1)
    usage = engine.usage
    assert usage.tokens == usage.running == sum(len(c.token_ids) for group in groups for c in group.completions)
    assert 0 < usage.prefill_seconds < usage.seconds
    metrics = usage.metrics()
    assert metrics["perf/batch_occupancy"] == usage.tokens / usage.places
    assert 0.3 < metrics["perf/batch_occupancy"] <= 1
    assert (usage + usage).metrics() == pytest.approx(metrics)
    engine.sample([], 4, SamplingParams(12), seed=0, iteration=1)
    assert engine.usage.metrics() == {}


def test_recurrent_layers_never_see_padding():
    lm = causal_lm(tiny_model("lfm2"))
    shapes = []
    sample(lm, max_new_tokens=1, shapes=shapes)
    assert shapes == [(1, 1), (1, 3), (2, 7), (1, 12)]


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_a_module_left_in_train_mode_with_gradient_checkpointing(family):
    module = tiny_model(family)
    expected = tokens(sample(causal_lm(module), group_size=4))
    recompute_activations(module)
    module.train()
    module.get_output_embeddings().eval()
    lm = causal_lm(module)
    assert tokens(sample(lm, group_size=4)) == expected
    assert module.training
    assert lm.decoder.training
    assert not module.get_output_embeddings().training


def test_the_mode_comes_back_after_an_error():
    module = tiny_model("llama").train()
    lm = causal_lm(module)
    with torch.no_grad():
        lm.module.get_input_embeddings().weight.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="row 0 of logits is no distribution"):
        sample(lm)
    assert all(part.training for part in module.modules())


def test_sampling_leaves_no_gradient_and_no_global_randomness():
    lm = causal_lm(tiny_model("llama"))
    torch.manual_seed(4)
    expected = torch.rand(2)
    torch.manual_seed(4)
    sample(lm, group_size=2)
    assert torch.equal(torch.rand(2), expected)
    assert all(parameter.grad is None for parameter in lm.module.parameters())
    token_logprobs(lm, collate([((1, 5), (9, 2))], pad_id=0), 1.0)[0].sum().backward()


def test_it_samples_from_the_weights_as_they_are_now():
    policy, other = causal_lm(tiny_model("llama")), causal_lm(tiny_model("llama", seed=1))
    expected = tokens(sample(policy, group_size=3))
    engine = engine_for(other)
    params = SamplingParams(12)
    assert tokens(engine.sample(PROMPTS, 3, params, seed=0, iteration=1)) != expected
    engine.load_weights(policy.module)
    assert tokens(engine.sample(PROMPTS, 3, params, seed=0, iteration=1)) == expected
    with torch.no_grad():
        for parameter in policy.module.parameters():
            parameter.mul_(1.2)
    assert tokens(engine.sample(PROMPTS, 3, params, seed=0, iteration=1)) == expected
    own = engine_for(policy)
    own.load_weights(policy.module)
    assert (
        tokens(own.sample(PROMPTS, 3, params, seed=0, iteration=1)) == tokens(sample(policy, group_size=3)) != expected
    )
