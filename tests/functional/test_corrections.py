import math

import pytest
import torch
from torch import Tensor

from oncurve.functional import aggregate
from oncurve.functional.corrections import (
    masked_sequence_weights,
    masked_token_weights,
    on_policy_rows,
    sampler_ratio,
    truncated_sequence_weights,
    truncated_token_weights,
)

# Rows of ratio 0.5 * 1.2, 2 * 1.5, 4 * 1 and, without a trained token, anything.
SAMPLER = torch.tensor([[-1.0, -2.0, -0.3], [-3.0, -0.7, -0.2], [-2.0, -1.0, -5.0], [-1.0, -1.0, -1.0]]).double()
RATIO = torch.tensor([[0.5, 1.2, 7.0], [2.0, 1.5, 0.1], [4.0, 1.0, 1.0], [3.0, 0.2, 1.0]], dtype=torch.float64)
OLD = SAMPLER + RATIO.log()
MASK = torch.tensor([[True, True, False], [True, True, False], [True, True, True], [False, False, False]])

WEIGHTS = {
    "truncate_token": lambda old, sampler, mask: truncated_token_weights(sampler_ratio(old, sampler), cap=2.0),
    "truncate_sequence": lambda old, sampler, mask: truncated_sequence_weights(old, sampler, mask, cap=2.0),
    "mask_token": lambda old, sampler, mask: masked_token_weights(sampler_ratio(old, sampler), low=0.5, high=2.0),
    "mask_sequence": lambda old, sampler, mask: masked_sequence_weights(old, sampler, mask, low=0.5, high=3.5),
}


def every_weight() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS)


def close(actual: Tensor, expected: list[list[float]]) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=1e-12)


# -- values -----------------------------------------------------------------------------------------------------------


def test_values_by_token() -> None:
    close(sampler_ratio(OLD, SAMPLER), RATIO.tolist())
    close(truncated_token_weights(RATIO, cap=2.0), [[0.5, 1.2, 2.0], [2.0, 1.5, 0.1], [2.0, 1.0, 1.0], [2.0, 0.2, 1.0]])
    # both bounds belong to the band
    close(
        masked_token_weights(RATIO, low=0.5, high=2.0),
        [[0.5, 1.2, 0.0], [2.0, 1.5, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]],
    )
    close(
        masked_token_weights(RATIO, low=0.0, high=math.inf),
        [[0.5, 1.2, 7.0], [2.0, 1.5, 0.1], [4.0, 1.0, 1.0], [3.0, 0.2, 1.0]],
    )


def test_values_by_completion() -> None:
    """The products over the trained tokens are 0.6, 3, 4 and, over none, 1."""
    close(truncated_sequence_weights(OLD, SAMPLER, MASK, cap=2.0), [[0.6] * 3, [2.0] * 3, [2.0] * 3, [1.0] * 3])
    close(truncated_sequence_weights(OLD, SAMPLER, MASK, cap=math.inf), [[0.6] * 3, [3.0] * 3, [4.0] * 3, [1.0] * 3])
    close(masked_sequence_weights(OLD, SAMPLER, MASK, low=0.0, high=3.5), [[0.6] * 3, [3.0] * 3, [0.0] * 3, [1.0] * 3])
    close(masked_sequence_weights(OLD, SAMPLER, MASK, low=0.7, high=3.5), [[0.0] * 3, [3.0] * 3, [0.0] * 3, [1.0] * 3])


def test_a_sampler_that_keeps_the_top_of_the_distribution() -> None:
    """top-p 0.8 of 0.5, 0.3, 0.15, 0.05 draws from 0.625 and 0.375: every ratio is the mass that was kept."""
    policy = torch.tensor([[0.5, 0.3]], dtype=torch.float64).log()
    sampler = torch.tensor([[0.625, 0.375]], dtype=torch.float64).log()
    close(sampler_ratio(policy, sampler), [[0.8, 0.8]])


@every_weight()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_where_engine_and_trainer_agree_every_weight_is_exactly_one(weight, dtype: torch.dtype) -> None:
    logprobs = (-5 * torch.rand(6, 500, generator=torch.Generator().manual_seed(0))).to(dtype)
    mask = torch.rand(6, 500, generator=torch.Generator().manual_seed(1)) < 0.7
    assert torch.equal(weight(logprobs, logprobs.clone(), mask), torch.ones(6, 500, dtype=dtype))


@every_weight()
def test_weights_have_no_gradient_and_the_dtype_that_went_in(weight) -> None:
    for dtype in (torch.float32, torch.float64):
        found = weight(OLD.to(dtype).requires_grad_(), SAMPLER.to(dtype).requires_grad_(), MASK)
        assert not found.requires_grad
        assert (found.shape, found.dtype) == (OLD.shape, dtype)


# -- the rows of an older policy --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("advantage", "divergence", "kept"),
    [(-1.0, 0.6, False), (-1.0, 0.4, True), (1.0, 0.9, True), (0.0, 0.9, True), (-1.0, 0.5, True)],
)
def test_only_bad_completions_that_were_left_behind_are_dropped(
    advantage: float, divergence: float, kept: bool
) -> None:
    new = torch.full((1, 1), -divergence, dtype=torch.float64)
    old = torch.zeros(1, 1, dtype=torch.float64)
    found = on_policy_rows(torch.tensor([[advantage]]).double(), new, old, torch.ones(1, 1).bool(), bound=0.5)
    assert found.tolist() == [kept]


def test_the_divergence_is_a_mean_over_the_trained_tokens() -> None:
    old = torch.zeros(3, 4)
    new = -torch.tensor([[0.9, 0.3, 9.0, 9.0], [0.9, 0.0, 9.0, 9.0], [-2.0, 3.5, 9.0, 9.0]])
    mask = torch.tensor([[True, True, False, False]] * 3)
    assert on_policy_rows(-torch.ones(3, 1), new, old, mask, bound=0.5).tolist() == [False, True, False]
    # the old policy likes the tokens less than the policy: nothing was left behind
    assert on_policy_rows(-torch.ones(3, 1), -new, old, mask, bound=0.5).tolist() == [True] * 3


def test_with_an_advantage_for_each_token_their_sum_decides() -> None:
    old, new = torch.zeros(3, 3), torch.full((3, 3), -2.0)
    advantages = torch.tensor([[-3.0, 1.0, math.nan], [3.0, -1.0, -math.inf], [-1.0, 1.0, -9.0]])
    mask = torch.tensor([[True, True, False]] * 3)
    assert on_policy_rows(advantages, new, old, mask, bound=0.5).tolist() == [False, True, True]


def test_rows_without_a_trained_token_stay() -> None:
    new = torch.full((2, 2), -9.0)
    mask = torch.tensor([[False, False], [True, False]])
    assert on_policy_rows(-torch.ones(2, 1), new, torch.zeros(2, 2), mask, bound=0.5).tolist() == [True, False]
    assert on_policy_rows(-torch.ones(2, 2), new, torch.zeros(2, 2), mask, bound=0.5).tolist() == [True, False]


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30, -1e30])
def test_junk_in_padding_decides_nothing(junk: float) -> None:
    mask = torch.tensor([[True, False]] * 2)
    old, new = torch.tensor([[0.0, 0.0]] * 2), torch.tensor([[-0.6, 0.0], [-0.4, 0.0]])
    advantages = torch.full((2, 2), -1.0)
    for place in range(3):
        dirty = [torch.where(mask, x, junk) if i == place else x for i, x in enumerate((advantages, new, old))]
        assert on_policy_rows(*dirty, mask, bound=0.5).tolist() == [False, True]


def test_a_token_that_became_impossible() -> None:
    new = torch.tensor([[-math.inf, -1.0], [-math.inf, -1.0]])
    found = on_policy_rows(torch.tensor([[-1.0], [1.0]]), new, torch.zeros(2, 2), torch.ones(2, 2).bool(), bound=0.5)
    assert found.tolist() == [False, True]


# -- junk, extremes, nothing ------------------------------------------------------------------------------------------


@every_weight()
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30, -1e30])
@pytest.mark.parametrize("place", ["old", "sampler", "both"])
def test_junk_in_padding_reaches_neither_loss_nor_gradient(weight, junk: float, place: str) -> None:
    dirty_old = OLD if place == "sampler" else torch.where(MASK, OLD, junk)
    dirty_sampler = SAMPLER if place == "old" else torch.where(MASK, SAMPLER, junk)
    found = []
    for old, sampler in ((OLD, SAMPLER), (dirty_old, dirty_sampler)):
        per_token = torch.ones(4, 3, dtype=torch.float64, requires_grad=True)
        loss = aggregate(weight(old, sampler, MASK) * per_token, MASK, "sequence_mean", 4.0)
        loss.backward()
        found.append((loss.detach(), per_token.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert torch.equal(found[1][1][~MASK], torch.zeros(5, dtype=torch.float64))


@pytest.mark.parametrize(
    ("log_ratio", "truncated", "masked"),
    [
        (100.0, 2.0, 0.0),
        (math.inf, 2.0, 0.0),
        (0.5, 1.6487212707001282, 1.6487212707001282),
        (-100.0, 0.0, 0.0),
        (-math.inf, 0.0, 0.0),
        (math.nan, 0.0, 0.0),
    ],
)
def test_extremes_in_float32(log_ratio: float, truncated: float, masked: float) -> None:
    old, sampler, mask = torch.tensor([[log_ratio]]), torch.tensor([[0.0]]), torch.tensor([[True]])
    for name, expected in (("truncate", truncated), ("mask", masked)):
        for level in ("token", "sequence"):
            found = WEIGHTS[f"{name}_{level}"](old, sampler, mask)
            assert found.item() == pytest.approx(expected, rel=1e-6, abs=1e-40)


def test_a_band_without_bounds_still_drops_what_is_not_finite() -> None:
    ratio = torch.tensor([[math.inf, math.nan, 0.0, 1e30]])
    assert masked_token_weights(ratio, low=0.0, high=math.inf).tolist() == [[0.0, 0.0, 0.0, pytest.approx(1e30)]]


def test_what_is_not_finite_is_shown_by_the_ratio_itself() -> None:
    found = sampler_ratio(torch.tensor([[200.0, math.nan, -math.inf]]), torch.zeros(1, 3))[0].tolist()
    assert found[0] == math.inf
    assert math.isnan(found[1])
    assert found[2] == 0.0


def test_long_completions() -> None:
    sampler, mask = torch.full((3, 20_000), -1.0), torch.ones(3, 20_000).bool()
    old = sampler + torch.tensor([[0.01], [-0.01], [0.0]])
    assert truncated_sequence_weights(old, sampler, mask, cap=2.0)[:, 0].tolist() == [2.0, 0.0, 1.0]
    assert masked_sequence_weights(old, sampler, mask, low=0.0, high=3.0)[:, 0].tolist() == [0.0, 0.0, 1.0]


@every_weight()
@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_nothing_at_all(weight, shape: tuple[int, int]) -> None:
    nothing = torch.zeros(shape)
    assert weight(nothing, nothing, nothing.bool()).shape == shape
    rows = on_policy_rows(torch.zeros(shape[0], 1), nothing, nothing, nothing.bool(), bound=0.0)
    assert rows.tolist() == [True] * shape[0]


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda old, sampler, mask: truncated_sequence_weights(old, sampler, mask, cap=2.0),
        lambda old, sampler, mask: masked_sequence_weights(old, sampler, mask, low=0.0, high=2.0),
        lambda old, sampler, mask: on_policy_rows(torch.ones(4, 1), sampler, old, mask, bound=0.5),
    ],
)
def test_masks_and_shapes_that_do_not_fit_are_refused(function) -> None:
    with pytest.raises(TypeError, match=r"mask must be bool \(True = kept\), got torch\.float32"):
        function(OLD, SAMPLER, MASK.float())
    with pytest.raises(ValueError, match=r"mask \[4, 1\] and logprobs \[4, 3\] must have the same shape"):
        function(OLD, SAMPLER, MASK[:, :1])
    with pytest.raises(ValueError, match=r"must have the same shape"):
        function(OLD, SAMPLER[:1], MASK)
    with pytest.raises(ValueError, match=r"logprobs must have shape \[B, T\], got \[3\]"):
        function(OLD[0], SAMPLER[0], MASK[0])
    with pytest.raises(TypeError, match=r"logprobs must be float32 or float64, got torch\.bfloat16"):
        function(OLD, SAMPLER.bfloat16(), MASK)


def test_log_probs_of_half_precision_or_another_shape_are_refused() -> None:
    with pytest.raises(TypeError, match=r"sampler_logprobs must be float32 or float64, got torch\.bfloat16"):
        sampler_ratio(OLD, SAMPLER.bfloat16())
    with pytest.raises(ValueError, match=r"sampler_logprobs \[1, 3\] and old_logprobs \[4, 3\] must have the same"):
        sampler_ratio(OLD, SAMPLER[:1])
    with pytest.raises(TypeError, match=r"sampler_ratio must be float32 or float64, got torch\.int64"):
        truncated_token_weights(torch.ones(1, 1).long(), cap=2.0)
    with pytest.raises(TypeError, match=r"sampler_ratio must be float32 or float64, got torch\.int64"):
        masked_token_weights(torch.ones(1, 1).long(), low=0.0, high=2.0)


@pytest.mark.parametrize("cap", [0.99, 0.0, -1.0, math.nan])
def test_caps_under_one_are_refused(cap: float) -> None:
    with pytest.raises(ValueError, match=f"cap bounds the ratio itself and must be at least 1, got {cap}"):
        truncated_token_weights(RATIO, cap=cap)
    with pytest.raises(ValueError, match=f"cap bounds the ratio itself and must be at least 1, got {cap}"):
        truncated_sequence_weights(OLD, SAMPLER, MASK, cap=cap)


@pytest.mark.parametrize(
    ("low", "high"), [(-0.1, 2.0), (1.1, 2.0), (0.5, 0.9), (2.0, 0.5), (math.nan, 2.0), (0, math.nan)]
)
def test_bands_that_do_not_hold_one_are_refused(low: float, high: float) -> None:
    message = f"low must be between 0 and 1 and high at least 1, got low={low} and high={high}"
    with pytest.raises(ValueError, match=message):
        masked_token_weights(RATIO, low=low, high=high)
    with pytest.raises(ValueError, match=message):
        masked_sequence_weights(OLD, SAMPLER, MASK, low=low, high=high)


def test_bad_advantages_and_bounds_are_refused() -> None:
    for shape in ((4,), (3, 1), (1, 3), (4, 2), (4, 1, 1)):
        with pytest.raises(
            ValueError, match=r"advantages must have the shape \[B, T\] of logprobs \[4, 3\], or \[B, 1\]"
        ):
            on_policy_rows(torch.ones(shape), SAMPLER, OLD, MASK, bound=0.5)
    with pytest.raises(TypeError, match=r"advantages must be float32 or float64, got torch\.int64"):
        on_policy_rows(torch.ones(4, 1).long(), SAMPLER, OLD, MASK, bound=0.5)
    for bound in (-0.1, math.nan):
        with pytest.raises(ValueError, match=f"bound must be at least 0 nats per token, got {bound}"):
            on_policy_rows(torch.ones(4, 1), SAMPLER, OLD, MASK, bound=bound)
