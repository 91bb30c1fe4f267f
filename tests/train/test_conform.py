"""`oncurve conform` passes what is right, and finds the faults that it is there for."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, dropout

from families import FAMILIES, tiny_model
from oncurve import cli
from oncurve.models.causal_lm import CausalLM, causal_lm
from oncurve.models.load import recompute_activations
from oncurve.recipe import dump_toml
from oncurve.train import conform_command, update
from oncurve.train.conform import Check, conform
from oncurve.train.conform.check import bounds_for
from oncurve.train.setup import Parts
from oncurve.types import OncurveError
from policies import parts_of

PACK_MIXES = {"bloom", "mpt", "lfm2"}
"""They count slots or carry a state, and so see what stands before them in a packed row."""
NOT_IN_FLOAT64 = {"gemma2", "bloom", "mpt"}


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def different(parts: Parts) -> set[str]:
    return {check.name for check in conform(parts) if not check.passed}


# -- what is right ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_passes(family: str) -> None:
    dtype = torch.float32 if family in NOT_IN_FLOAT64 else torch.float64
    parts = parts_of(tiny_model(family), dtype=dtype, sft={}, sampling={"temperature": 0.7})
    checks = conform(parts)
    assert [check.name for check in checks if not check.passed] == []
    assert {check.name for check in checks if not check.same} == (
        {"sft: packed", "log-probs: behind another sequence, packed"} if family in PACK_MIXES else set()
    )
    assert len(checks) == 16


@pytest.mark.parametrize(
    "terms",
    [{"preset": preset} for preset in ("r1", "dr-grpo", "dapo", "gspo", "cispo", "rloo", "reinforce-pp", "scale-rl")]
    + [
        {"train_fraction": 0.5},
        {"sampler_correction": "truncate_sequence", "off_policy_bound": 0.01},
        {"surrogate": "gmpo", "kl": "k3_ratio", "entropy_coef": 0.01},
        {"advantage": "per_reward_normalised", "ratio": "sequence_token", "aggregation": "token_mean"},
    ],
    ids=str,
)
def test_every_objective_passes(terms: dict[str, object]) -> None:
    checks = conform(parts_of(tiny_model("gpt2"), grpo=terms))
    gradients = [check for check in checks if check.unit == "relative"]
    assert len(gradients) == 7
    assert all(check.error is not None and check.error <= 1e-10 for check in gradients)


def test_weights_and_gradients_are_left_alone() -> None:
    parts = parts_of(tiny_model("llama"), sft={"packing": True})
    before = copy.deepcopy(parts.lm.module.state_dict())
    conform(parts)
    assert all(torch.equal(value, before[name]) for name, value in parts.lm.module.state_dict().items())
    assert all(parameter.grad is None for parameter in parts.lm.module.parameters())
    assert not any(part.training for part in parts.lm.module.modules())


def test_without_grpo_the_fine_tuning_is_checked() -> None:
    names = by_name(conform(parts_of(tiny_model("llama"), grpo=None, sft={})))
    assert {name.partition(":")[0] for name in names} == {"sft", "log-probs"}


def test_gradient_checkpointing_is_part_of_the_step() -> None:
    module = tiny_model("llama")
    recompute_activations(module)
    assert different(parts_of(module, model={"gradient_checkpointing": True})) == set()


# -- what is wrong ----------------------------------------------------------------------------------------------------


class Behind(nn.Module):
    """A module, and something done to what it gives."""

    def __init__(self, module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.module, self.change = module, change

    def forward(self, hidden: Tensor) -> Tensor:
        return self.change(self.module(hidden))


def with_mlp(change: Callable[[Tensor], Tensor], **sections) -> Parts:
    """A llama whose first feed-forward layer is followed by ``change``, put in after the model was loaded."""
    parts = parts_of(tiny_model("llama"), **sections)
    layer = parts.lm.decoder.layers[0]  # type: ignore[index, union-attr]
    layer.mlp = Behind(layer.mlp, change)  # type: ignore[union-attr]
    return parts


def test_dropout_that_was_left_on() -> None:
    found = different(with_mlp(lambda x: dropout(x, 0.1, training=True)))
    assert {"grpo: the same step twice", "log-probs: in a forward pass for training"} <= found


def test_dropout_that_comes_with_gradient_checkpointing() -> None:
    """transformers recomputes in train mode alone, and there dropout is on."""
    parts = parts_of(tiny_model("gpt2", attn_pdrop=0.0), model={"gradient_checkpointing": True})
    for part in parts.lm.module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.1
    assert {"grpo: the same step twice", "log-probs: in a forward pass for training"} <= different(parts)


def test_batch_norm() -> None:
    def normalised(hidden: Tensor) -> Tensor:
        flat = hidden.reshape(-1, hidden.shape[-1])
        return batch_norm(flat, None, None, training=True).reshape(hidden.shape) if len(flat) > 1 else hidden

    found = different(with_mlp(normalised))
    assert {"grpo: microbatches of 1 row", "grpo: 8 more tokens of padding", "log-probs: one row at a time"} <= found


def test_experts_with_a_capacity() -> None:
    """Two experts, each takes what it has room for and drops the rest: which rows that is depends on the batch."""

    def routed(hidden: Tensor) -> Tensor:
        flat = hidden.reshape(-1, hidden.shape[-1])
        expert = flat[:, 0] > 0
        room = len(flat) // 2
        place = torch.where(expert, expert.cumsum(0), (~expert).cumsum(0))
        return torch.where((place <= room)[:, None], flat, 0.0).reshape(hidden.shape)

    found = different(with_mlp(routed))
    assert {"grpo: microbatches of 1 row", "grpo: 8 more tokens of padding"} <= found


def test_attention_that_sees_padding() -> None:
    """Every token looks at all of its row: at what comes after it, and at what fills the row up."""
    parts = with_mlp(lambda hidden: hidden + hidden.mean(dim=1, keepdim=True))
    found = different(parts)
    assert {"grpo: 8 more tokens of padding", "log-probs: one row at a time"} <= found
    assert "grpo: the same step twice" not in found


def test_a_mean_of_microbatch_means(monkeypatch: pytest.MonkeyPatch) -> None:
    real = update.accumulate_gradient

    def averaged(parts, config, work, minibatch, means, kl_coef):
        cut = update.microbatches_of(parts.lm, work.batch.take(minibatch), config.microbatch_tokens)
        whole = config.model_copy(update={"microbatch_tokens": 10**6})
        for rows in cut:
            real(parts, whole, work, [minibatch[row] for row in rows], means, kl_coef)
        for parameter in parts.lm.module.parameters():
            if parameter.grad is not None:
                parameter.grad /= len(cut)

    monkeypatch.setattr(update, "accumulate_gradient", averaged)
    token_mean = different(parts_of(tiny_model("gpt2"), grpo={"aggregation": "token_mean"}))
    assert {f"grpo: microbatches of {n}" for n in ("1 row", "2 rows or more", "3 rows or more")} <= token_mean
    # A mean over completions of equal microbatches survives it; of microbatches of other sizes it does not.
    assert "grpo: microbatches of 2 rows or more" in different(parts_of(tiny_model("gpt2")))


def test_a_loss_divided_by_the_padded_width(monkeypatch: pytest.MonkeyPatch) -> None:
    real = update.aggregate

    def padded(per_token, mask, mode, divide_by, **options):
        return real(per_token, mask, mode, divide_by * mask.shape[1], **options)

    monkeypatch.setattr(update, "aggregate", padded)
    assert "grpo: 8 more tokens of padding" in different(parts_of(tiny_model("gpt2")))


def test_a_step_divided_by_a_constant_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "denominator", lambda *_, **__: 9.0)
    assert different(parts_of(tiny_model("gpt2"))) == {"grpo: two halves added up"}


class Unmasked(CausalLM):
    def hidden(self, tokens: Tensor, *, visible: Tensor | None = None, **options) -> Tensor:
        return super().hidden(tokens, **options)


def test_an_engine_that_reads_its_padding() -> None:
    parts = parts_of(tiny_model("gemma2"))  # one that is sampled row by row: what groups share has no padding
    parts.engine._lm = Unmasked(**vars(parts.lm))  # type: ignore[attr-defined]
    assert different(parts) == {"log-probs: of the engine"}


def test_prompts_that_are_shared_and_read_their_padding() -> None:
    parts = parts_of(tiny_model("llama"))
    assert parts.lm.shares_prefixes
    parts = dataclasses.replace(parts, lm=Unmasked(**vars(parts.lm)))
    assert {"grpo: microbatches of 1 row", "log-probs: one row at a time"} <= different(parts)


def test_an_engine_with_other_weights() -> None:
    parts = parts_of(tiny_model("llama"))
    other = causal_lm(tiny_model("llama", seed=1).double())
    parts.engine._lm = other  # type: ignore[attr-defined]
    assert different(parts) == {"log-probs: of the engine"}


def test_a_cache_that_is_not_the_model() -> None:
    """The layer tells a single token from a row of them."""
    assert "log-probs: token by token from the cache" in different(
        with_mlp(lambda hidden: hidden * (1.1 if hidden.shape[1] == 1 else 1.0))
    )


def test_packed_rows_that_are_not_kept_apart_count_if_the_recipe_packs() -> None:
    parts = parts_of(tiny_model("lfm2"), sft={"packing": True})
    assert different(parts) == {"sft: packed", "log-probs: behind another sequence, packed"}


# -- the command ------------------------------------------------------------------------------------------------------


def test_bounds_are_those_of_the_precision_unless_given() -> None:
    assert bounds_for(torch.float64, None).gradient < bounds_for(torch.float32, None).gradient
    assert bounds_for(torch.float32, None).gradient < bounds_for(torch.bfloat16, None).gradient
    parts = parts_of(tiny_model("gpt2"), dtype=torch.float32)
    assert all(check.passed for check in conform(parts))
    assert not all(check.passed for check in conform(parts, bound=1e-12))
    assert {check.bound for check in conform(parts, bound=0.5)} == {0.5}


def test_nan_is_not_the_same() -> None:
    assert not Check("", float("nan"), 1.0, "relative", "").passed
    assert Check("", None, 1.0, "relative", "").passed


def test_a_gradient_of_zero_proves_nothing() -> None:
    parts = parts_of(tiny_model("gpt2"))
    with torch.no_grad():
        parts.lm.module.get_output_embeddings().weight.zero_()  # type: ignore[union-attr, operator]
        parts.lm.module.transformer.ln_f.weight.zero_()
        parts.lm.module.transformer.ln_f.bias.zero_()
    with pytest.raises(OncurveError, match="grpo: the gradient of the made-up step has the norm 0"):
        conform(parts)


def test_the_command_prints_a_table_and_writes_nothing(
    tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(dump_toml(tiny()))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert cli.main(["conform", str(recipe), "--sampling.max_new_tokens", "8"]) == 0
    shown = capsys.readouterr().out
    assert "grpo: microbatches of 1 row" in shown
    assert shown.rstrip().endswith("the gradient does not depend on the cut")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before

    assert cli.main(["conform", str(recipe), "--bound", "1e-12"]) == 1
    shown = capsys.readouterr().out
    assert "DIFFERS" in shown
    assert "a row feels the rows beside it" in shown
    assert cli.main(["conform", str(recipe), "--bound", "1e-12", "--quiet"]) == 1
    assert capsys.readouterr().out == ""
    assert cli.main(["conform", str(recipe), "--float64"]) == 0


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bound_that_is_none_is_refused(tiny, quiet, bound: float) -> None:
    with pytest.raises(OncurveError, match=f"bound = {bound}"):
        conform_command(tiny(), quiet, bound=bound)


# -- the page ---------------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "conform.md").read_text(encoding="utf-8")


def test_the_page_shows_the_checks_there_are() -> None:
    shown = re.findall(r"^((?:grpo|sft|log-probs): .+?)  ", PAGE, re.M)
    assert shown == [check.name for check in conform(parts_of(tiny_model("gpt2"), sft={}))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_the_page_shows_the_bounds_there_are(dtype: torch.dtype) -> None:
    row = re.search(
        rf"^\| {str(dtype).removeprefix('torch.')}\b.*?\| ([\d.]+) \| ([\d.]+)(?:; engine ([\d.]+))? \|", PAGE, re.M
    )
    assert row
    bounds = bounds_for(dtype, None)
    assert tuple(map(float, (row[1], row[2], row[3] or row[2]))) == (bounds.gradient, bounds.logprobs, bounds.engine)
