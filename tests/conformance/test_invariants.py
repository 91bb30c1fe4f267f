"""What must hold of an update, whatever the numbers: on a tiny random transformer, with the trainer's own functions."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import oncurve
from conformance.two_ranks import MODES
from conformance.updates import (
    ALL_AT_ONCE,
    advantages_for,
    config_of,
    drifted,
    gradient,
    off_by,
    per_token,
    policy,
    rewards_for,
    sampled,
    work_of,
)
from families import FAMILIES
from oncurve.config import Grpo
from oncurve.data.collate import collate, packed
from oncurve.functional import aggregate, gae, grpo_coefficients, predictor_mask, weighted_nll
from oncurve.models.causal_lm import CausalLM
from oncurve.models.token_logprobs import token_logprobs
from oncurve.presets import PRESETS
from oncurve.rewards import NamedReward
from oncurve.train import grpo, run, update
from oncurve.train.conform.made_up import turned, widened
from oncurve.train.objective import Tokens, kl_in_loss, policy_loss
from oncurve.train.setup import Parts
from oncurve.train.step import TokenMeans, make_optimizer

EXACT = 1e-10
WITH_A_RATIO = [name for name, preset in PRESETS.items() if preset.terms["ratio"] != "none"]


def off_policy_work(parts: Parts, preset: str) -> tuple[Grpo, update.Work]:
    """An update in which everything the preset has is at work: ratios, clips, KL, an advantage per token if it has."""
    config = config_of(preset)
    rows = sampled(parts)
    work = drifted(work_of(parts, config, rows))
    if PRESETS[preset].needs == "step_rewards":
        work = per_token(work, rewards_for(rows))
    if PRESETS[preset].needs == "critic":
        mask = work.batch.completion_mask
        values = torch.randn(mask.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        work = dataclasses.replace(work, advantages=gae(torch.where(mask, work.advantages, 0.0), values, mask)[0])
    if not config.kl_coef:
        work = dataclasses.replace(work, ref_logprobs=None)
    return config, work


# -- finite differences -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def stop_gradients(record: list[Tensor], *, replay: bool) -> Iterator[None]:
    """What a loss takes out of the gradient is a constant of the loss: ``detach`` is recorded at the weights of the
    gradient, and gives the same again next to them."""
    real, known = torch.Tensor.detach, iter(list(record))

    def detach(tensor: Tensor) -> Tensor:
        if replay:
            return next(known)
        record.append(real(tensor).clone())
        return record[-1]

    torch.Tensor.detach = detach  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.detach = real  # type: ignore[method-assign]


@pytest.mark.parametrize("preset", PRESETS)
def test_finite_differences(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """(L(w + h v) - L(w - h v)) / 2h is the gradient along v: along itself, and along three random parts of it."""
    parts = policy()
    config, work = off_policy_work(parts, preset)
    record: list[Tensor] = []
    state = {"replay": False}

    def with_constants(function: Callable[..., Any]) -> Callable[..., Any]:
        constants: list[Tensor] = []

        def call(*args: Any) -> Any:
            with stop_gradients(constants, replay=state["replay"]):
                return function(*args)

        record.append(constants)  # type: ignore[arg-type]
        return call

    monkeypatch.setattr(update, "policy_loss", with_constants(update.policy_loss))
    monkeypatch.setattr(update, "kl_in_loss", with_constants(update.kl_in_loss))
    slope = gradient(parts, config, work)
    state["replay"] = True
    losses: list[float] = []
    monkeypatch.setattr(update, "backward", lambda loss: losses.append(loss.item()) or loss.item())
    named = dict(parts.lm.module.named_parameters())
    norm = math.sqrt(sum(float(value.square().sum()) for value in slope.values()))
    generator = torch.Generator().manual_seed(0)

    def move(direction: dict[str, Tensor], by: float) -> None:
        with torch.no_grad():
            for name, value in direction.items():
                named[name].add_(value, alpha=by)

    h = 1e-5
    for share in (1.0, 0.5, 0.5, 0.5):
        direction = {
            name: value / norm * (torch.rand(value.shape, generator=generator) <= share)
            for name, value in slope.items()
        }
        move(direction, h)
        gradient(parts, config, work)
        move(direction, -2 * h)
        gradient(parts, config, work)
        move(direction, h)
        above, below = losses[-2:]
        expected = sum(float((direction[name] * value).sum()) for name, value in slope.items())
        assert abs((above - below) / (2 * h) - expected) <= 1e-6 * abs(expected)


# -- the first update -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("preset", WITH_A_RATIO)
def test_the_first_update_is_on_policy(preset: str, dtype: torch.dtype) -> None:
    """Ratio exactly 1, nothing clipped, no KL from a reference that is the policy."""
    parts = policy("llama", dtype=dtype)
    config = config_of(preset, kl_coef=0.1)
    work = work_of(parts, config, sampled(parts), reference=parts.lm.frozen_copy())
    seen: list[Tensor] = []
    real = update.policy_loss
    means = TokenMeans()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update, "policy_loss", lambda c, x: (out := real(c, x), seen.append(out.measures["ratio"]))[0])
        gradient(parts, config, work, means=means)
    assert torch.equal(seen[0][work.batch.completion_mask], torch.ones(work.batch.completion_mask.sum(), dtype=dtype))
    measured = means.means()
    assert measured.get("clip_ratio/region_mean", 0.0) == 0.0
    assert abs(measured["kl"]) <= 1e-7  # log-probs of the reference are kept in float32


def test_the_first_update_of_a_run_is_on_policy(tiny) -> None:
    parts = policy(dtype=torch.float32, grpo={"kl_coef": 0.1})
    assert parts.recipe.grpo is not None
    optimizer = make_optimizer(parts.lm.module, parts.recipe.grpo)
    done = next(grpo.grpo_iterations(parts, parts.recipe.grpo, parts.lm.frozen_copy(), optimizer, 1))
    assert done.metrics["ratio"] == 1.0
    assert done.metrics["clip_ratio/region_mean"] == 0.0
    assert abs(done.metrics["kl"]) <= 1e-9


def test_clipped_is_unclipped_in_the_first_update() -> None:
    parts = policy()
    rows = sampled(parts)
    clipped, wide, plain = (
        config_of("deepseekmath", kl_coef=0.0, **terms)
        for terms in (
            {"clip_low": 0.2, "clip_high": 0.2},
            {"clip_low": 1e9, "clip_high": 1e9},
            {"surrogate": "reinforce", "ratio": "none"},
        )
    )
    first = gradient(parts, clipped, work_of(parts, clipped, rows))
    assert off_by(first, gradient(parts, wide, work_of(parts, wide, rows))) == 0.0
    assert off_by(first, gradient(parts, plain, work_of(parts, plain, rows))) <= EXACT
    # ... and not in the second
    later = drifted(work_of(parts, clipped, rows))
    assert off_by(gradient(parts, clipped, later), gradient(parts, wide, later)) > 0.01


@pytest.mark.parametrize("kl_coef", [0.0, 0.04, 1.0])
def test_the_loss_is_a_weighted_likelihood(kl_coef: float) -> None:
    """DeepSeekMath eq. 21: A + kl_coef (reference / policy - 1) is all that the first update does to a token."""
    parts = policy()
    config = config_of("deepseekmath", kl_coef=kl_coef)
    work = dataclasses.replace(drifted(work_of(parts, config, sampled(parts))), old_is_policy=True)
    assert work.ref_logprobs is not None
    mask = work.batch.completion_mask
    logprobs, _ = token_logprobs(parts.lm, work.batch, 1.0)
    coefficients = grpo_coefficients(work.advantages, logprobs, work.ref_logprobs, kl_coef=kl_coef)
    loss = aggregate(weighted_nll(logprobs, coefficients), mask, "sequence_mean", float(len(mask)))
    named = dict(parts.lm.module.named_parameters())
    weighted = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
    assert off_by(gradient(parts, config, work), weighted) <= EXACT


# -- sampling and scoring ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.4])
@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_is_recomputed(family: str, temperature: float) -> None:
    """From the cache, token by token and padded on the left; or read whole, padded on the right."""
    parts = policy(family, dtype=torch.float32, sampling={"temperature": temperature})
    rows = sampled(parts, prompts=4)
    batch = collate([(prompt.token_ids, c.token_ids) for prompt, c in rows], 0)
    logprobs, _ = token_logprobs(parts.lm, batch, temperature)
    recorded = torch.tensor([value for _, completion in rows for value in completion.sampler_logprobs])
    assert (logprobs[batch.completion_mask] - recorded).abs().max() <= 1e-5
    other, _ = token_logprobs(parts.lm, batch, temperature * 1.5)
    assert (other[batch.completion_mask] - recorded).abs().max() > 1e-2


# -- how a batch is cut -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_size_of_the_microbatch(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = policy()
    config, work = off_policy_work(parts, preset)
    whole = gradient(parts, config, work)
    for size in (1, 2, 3):
        monkeypatch.setattr(update, "microbatches_of", lambda _, batch, __, n=size: torch.arange(len(batch)).split(n))
        assert off_by(whole, gradient(parts, config, work)) <= EXACT


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral-window", "lfm2"])
@pytest.mark.parametrize("mode", MODES)
def test_order_and_padding_of_the_rows(family: str, mode: str) -> None:
    parts = policy(family)
    config = config_of("deepseekmath", aggregation=mode)
    work = drifted(work_of(parts, config, sampled(parts)))
    whole = gradient(parts, config, work)
    assert off_by(whole, gradient(parts, config, turned(work))) <= EXACT
    assert off_by(whole, gradient(parts, config, work, [5, 2, 11, 0, 8, 1, 7, 3, 10, 4, 9, 6])) <= EXACT
    assert off_by(whole, gradient(parts, config, widened(work, 9, pad_id=0))) <= EXACT
    assert off_by(whole, gradient(parts, config, widened(work, 9, pad_id=2))) <= EXACT  # padding with EOS is legal


def weighted_gradient(parts: Parts, logprobs: Tensor) -> dict[str, Tensor]:
    """Of some weighted sum of ``[N]`` log-probs."""
    named = dict(parts.lm.module.named_parameters())
    weights = torch.linspace(-1.0, 1.0, len(logprobs), dtype=logprobs.dtype)
    return dict(zip(named, torch.autograd.grad((weights * logprobs).sum(), list(named.values())), strict=True))


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "mistral-window"])
def test_side_of_the_padding(family: str) -> None:
    """On the right, on the left, and another sequence in front where there would be padding on the left."""
    parts = policy(family)
    pairs = [(prompt.token_ids, completion.token_ids) for prompt, completion in sampled(parts)]
    right = collate(pairs, 0)
    width = right.tokens.shape[1]
    shift = width - right.lengths
    index = (torch.arange(width) - shift[:, None]).clamp(min=0)
    inside = torch.arange(width) >= shift[:, None]
    tokens = torch.where(inside, right.tokens.gather(1, index), 0)
    mask = inside & right.completion_mask.gather(1, index)

    def on_the_left() -> Tensor:
        hidden = parts.lm.hidden(tokens, visible=inside, positions=(inside.cumsum(1) - 1).clamp(min=0))
        logits = parts.lm.logits(hidden[predictor_mask(mask)])
        return logits.log_softmax(-1).gather(1, tokens[mask][:, None])[:, 0]

    def behind(first: tuple[tuple[int, ...], tuple[int, ...]]) -> Tensor:
        rows = [packed([first, pair], ALL_AT_ONCE)[0] for pair in pairs]
        return torch.cat([token_logprobs(parts.lm, row, 1.0)[0][row.completion_mask][len(first[1]) :] for row in rows])

    expected = token_logprobs(parts.lm, right, 1.0)[0][right.completion_mask]
    slope = weighted_gradient(parts, expected)
    for other in (on_the_left(), behind(((9, 8, 7, 6), (5,)))):
        assert (other - expected).abs().max() <= EXACT
        assert off_by(slope, weighted_gradient(parts, other)) <= EXACT


def test_two_processes_are_one(tmp_path: Path) -> None:
    """Half of the rows each, the denominators and the gradients added up over both (torch.distributed, gloo)."""
    script = Path(__file__).with_name("two_ranks.py")
    sources = Path(oncurve.__file__).parents[1]  # those under test, wherever they are installed
    path = os.pathsep.join([str(script.parents[1]), str(sources)])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script)]
    where = [str(tmp_path / "rendezvous"), str(tmp_path / "gradients")]
    other = subprocess.Popen([*command, "1", *where], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        first = subprocess.run([*command, "0", *where], env=environment, capture_output=True, text=True, timeout=120)
        _, complaint = other.communicate(timeout=120)
    finally:
        other.kill()
    assert first.returncode == other.returncode == 0, first.stderr + complaint
    together = torch.load(where[1])
    parts = policy()
    rows = sampled(parts)
    for mode in MODES:
        config = config_of("deepseekmath", aggregation=mode)
        alone = gradient(parts, config, drifted(work_of(parts, config, rows)))
        assert off_by(alone, together[mode]) <= EXACT, mode


@pytest.mark.parametrize("mode", ["token_mean", "sequence_mean", "prompt_mean", "length_budget"])
def test_every_group_twice_is_every_group_once(mode: str) -> None:
    parts = policy()
    config = config_of("deepseekmath", aggregation=mode)
    rows = sampled(parts)
    advantages = advantages_for(config, rows, rewards_for(rows))
    once = work_of(parts, config, rows, advantages=advantages)
    twice = work_of(parts, config, [*rows, *rows], advantages=torch.cat([advantages, advantages]))
    assert off_by(gradient(parts, config, once), gradient(parts, config, twice)) <= EXACT


# -- rewards ----------------------------------------------------------------------------------------------------------


def test_equal_rewards_change_nothing() -> None:
    """Not a bit of the weights or of the optimizer, although it has momentum and weight decay to go on with."""
    parts = policy(dtype=torch.float32, grpo={"weight_decay": 0.1, "kl_coef": 0.1})
    config = parts.recipe.grpo
    assert config is not None
    reference, optimizer = parts.lm.frozen_copy(), make_optimizer(parts.lm.module, config)
    next(grpo.grpo_iterations(parts, config, reference, optimizer, 1))

    def state() -> dict[str, Tensor]:
        moments = enumerate(optimizer.state_dict()["state"].values())
        return {name: value.clone() for name, value in parts.lm.module.state_dict().items()} | {
            f"{index}.{name}": value.clone() for index, entry in moments for name, value in entry.items()
        }

    before = state()
    equal = NamedReward("equal", 1.0, lambda completions, **_: [2.3] * len(completions))
    done = next(grpo.grpo_iterations(dataclasses.replace(parts, rewards=[equal]), config, reference, optimizer, 2))
    assert done.metrics["skipped_updates"] == 1.0
    after = state()
    assert before.keys() == after.keys()
    assert len(before) > 3 * len(list(parts.lm.module.parameters()))  # weights, two moments and a count
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_an_unscored_completion_is_left_out_and_not_worth_zero() -> None:
    """Its group is compared without it, and no token of it is trained on."""
    parts = policy()
    config = config_of("deepseekmath", kl_coef=0.0, aggregation="length_budget")
    rows = sampled(parts)
    rewards = rewards_for(rows)
    unscored, zero = rewards.clone(), rewards.clone()
    unscored[1, 2], zero[1, 2] = math.nan, 0.0
    assert rewards[1, 2] != 0.0
    found = gradient(parts, config, work_of(parts, config, rows, rewards=unscored))
    assert off_by(found, gradient(parts, config, work_of(parts, config, rows, rewards=zero))) > 0.01

    # By hand: the other eleven rows, with what the three of its group give among themselves.
    three = advantages_for(config, rows[:3], rewards[1:2, [0, 1, 3]])
    advantages = advantages_for(config, rows, rewards)
    advantages[1] = torch.tensor([three[0, 0], three[0, 1], 0.0, three[0, 2]])
    work = work_of(parts, config, rows, advantages=advantages)
    eleven = gradient(parts, config, work, [row for row in range(12) if row != 6])
    assert off_by(found, {name: value * 11 / 12 for name, value in eleven.items()}) <= EXACT


def test_one_step_at_the_last_token_is_outcome_supervision() -> None:
    parts = policy()
    config = config_of("deepseekmath")
    rows = sampled(parts)
    outcome = drifted(work_of(parts, config, rows))
    process = per_token(outcome, rewards_for(rows), steps=1)
    assert process.advantages.shape == outcome.old_logprobs.shape
    assert off_by(gradient(parts, config, outcome), gradient(parts, config, process)) <= EXACT
    several = per_token(outcome, rewards_for(rows), steps=3)
    assert off_by(gradient(parts, config, outcome), gradient(parts, config, several)) > 0.01


# -- the reference ----------------------------------------------------------------------------------------------------


def test_without_kl_there_is_no_reference(tiny, quiet, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is neither built nor run: every log-prob is of one and the same model."""
    scored: list[CausalLM] = []
    real = update.token_logprobs
    monkeypatch.setattr(CausalLM, "frozen_copy", lambda _: pytest.fail("a reference was built"))
    monkeypatch.setattr(update, "token_logprobs", lambda lm, *a, **k: scored.append(lm) or real(lm, *a, **k))
    run(tiny(grpo={"kl_coef": 0.0, "iterations": 2}, eval={"samples": 0}), terminal=quiet)
    assert len({id(lm.module) for lm in scored}) == 1


# Three arms: their rewards, and the reference that a policy is to stay near.
REWARDS, REFERENCE, KL_COEF = [1.0, 0.2, 0.0], [0.2, 0.5, 0.3], 0.5


def bandit(kl: str, steps: int = 400) -> Tensor:
    """Where the expected update comes to rest: every arm is one completion of one token, weighted by its chance."""
    config = Grpo(kl=kl, kl_coef=KL_COEF, allow_k1_in_loss=True)  # type: ignore[arg-type]
    rewards, reference = torch.tensor(REWARDS).double(), torch.tensor(REFERENCE).double().log()[:, None]
    logits = torch.zeros(3, dtype=torch.float64)
    for _ in range(steps):
        at = logits.clone().requires_grad_()
        policy_logprobs = at.log_softmax(0)[:, None]
        old = policy_logprobs.detach()
        gain = rewards[:, None] - (KL_COEF * (old - reference) if kl == "k1_in_reward" else 0.0)
        arms = Tokens(policy_logprobs, old, old, gain, torch.ones(3, 1, dtype=torch.bool))
        per_arm = policy_loss(config, arms).per_token
        penalty = kl_in_loss(config, arms, reference)
        if penalty is not None:
            per_arm = per_arm + KL_COEF * penalty
        (slope,) = torch.autograd.grad((old.exp() * per_arm).sum(), at)
        logits = logits - 2.0 * slope
    return logits.softmax(0)


@pytest.mark.parametrize("kl", ["k2", "k3_ratio", "k1_in_reward"])
def test_a_bandit_reaches_the_closed_form(kl: str) -> None:
    """max E[r] - beta KL(policy || reference) is reached at softmax(log reference + r / beta)."""
    target = (torch.tensor(REFERENCE).double().log() + torch.tensor(REWARDS).double() / KL_COEF).softmax(0)
    assert (bandit(kl) - target).abs().max() <= 1e-9


def test_a_bandit_under_k1_in_the_loss_gives_up_the_reference() -> None:
    assert bandit("k1", steps=4000)[0] > 0.99


def test_a_bandit_under_k3_in_the_loss_minimises_the_other_divergence() -> None:
    """max E[r] - beta KL(reference || policy): policy = beta reference / (c - r), with the c that makes it sum to 1."""
    rewards, reference = torch.tensor(REWARDS).double(), torch.tensor(REFERENCE).double()
    low, high = 1.0 + 1e-9, 1.0 + KL_COEF
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if float((KL_COEF * reference / (middle - rewards)).sum()) > 1 else (low, middle)
    assert (bandit("k3", steps=2000) - KL_COEF * reference / (low - rewards)).abs().max() <= 1e-9
