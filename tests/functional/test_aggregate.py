import math

import pytest
import torch

from oncurve.functional.aggregate import aggregate, denominator, group_token_counts

ROWS = torch.tensor([[1.0, 3.0, 0.0, 0.0], [2.0, 2.0, 2.0, 6.0], [4.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]).bool()
# Rows 0 and 2 are completions of one prompt, row 1 is the other's.
GROUPS = torch.tensor([30, 4, 30])
MODES = ["sequence_mean", "token_mean", "prompt_mean", "length_budget"]


def whole(per_token: torch.Tensor, mask: torch.Tensor, mode, groups: torch.Tensor, budget: int = 8) -> torch.Tensor:
    """One optimizer step in one microbatch."""
    divide_by = denominator(mask, mode, groups=groups, budget=budget)
    return aggregate(per_token, mask, mode, divide_by, group_tokens=group_token_counts(mask, groups))


def test_values_and_the_weight_of_each_token() -> None:
    for mode, value, weights in (
        ("sequence_mean", 3.0, [0.16666666666666666, 0.08333333333333333, 0.3333333333333333]),
        ("token_mean", 2.857142857142857, [0.14285714285714285, 0.14285714285714285, 0.14285714285714285]),
        # Prompt 30: (1 + 3 + 4) / 3; prompt 4: 12 / 4.
        ("prompt_mean", 2.8333333333333333, [0.16666666666666666, 0.125, 0.16666666666666666]),
        ("length_budget", 0.8333333333333334, [0.041666666666666664, 0.041666666666666664, 0.041666666666666664]),
    ):
        rows = ROWS.clone().requires_grad_()
        scalar = whole(rows, MASK, mode, GROUPS)
        scalar.backward()
        assert scalar.item() == pytest.approx(value, abs=1e-15)
        for row, weight in enumerate(weights):
            expected = weight * MASK[row].double()
            torch.testing.assert_close(rows.grad[row], expected, rtol=0, atol=1e-15)


def test_denominators() -> None:
    assert denominator(MASK, "sequence_mean") == 3.0
    assert denominator(MASK, "token_mean") == 7.0
    assert denominator(MASK, "prompt_mean", groups=GROUPS) == 2.0
    assert denominator(MASK, "prompt_mean", groups=torch.tensor([-5, 2**62, 0])) == 3.0
    assert denominator(MASK, "length_budget", budget=8) == 24.0
    # What a mode does not need it does not look at.
    assert denominator(MASK, "token_mean", groups=torch.zeros(1), budget=-1) == 7.0


def test_tokens_of_the_rows_of_each_prompt() -> None:
    assert group_token_counts(MASK, GROUPS).tolist() == [3, 4, 3]
    assert group_token_counts(MASK, torch.tensor([1, 1, 1])).tolist() == [7, 7, 7]
    assert group_token_counts(MASK, torch.tensor([2, 1, 0])).tolist() == [2, 4, 1]
    mask = torch.tensor([[False, False], [True, False], [False, False], [True, True], [True, True]])
    assert group_token_counts(mask, torch.tensor([9, 5, 9, -1, 5])).tolist() == [0, 3, 0, 2, 3]
    assert group_token_counts(mask[:0], GROUPS[:0]).tolist() == []


def test_equal_lengths_and_groups_make_all_means_one() -> None:
    rows = torch.tensor([[1.0, 2.0], [3.0, 5.0], [0.0, -1.0], [2.0, 6.0]], dtype=torch.float64)
    mask = torch.ones(4, 2, dtype=torch.bool)
    for mode in MODES:
        assert whole(rows, mask, mode, torch.tensor([0, 0, 1, 1]), budget=2).item() == 2.25


def test_duplicating_every_group_changes_no_mean() -> None:
    twice = torch.cat([ROWS, ROWS])
    for mode in MODES:
        once = whole(ROWS, MASK, mode, GROUPS).item()
        both = whole(twice, torch.cat([MASK, MASK]), mode, torch.cat([GROUPS, GROUPS + 100])).item()
        assert both == pytest.approx(once, abs=1e-15)


def test_prompt_mean_survives_a_cut_through_a_prompt() -> None:
    tokens = group_token_counts(MASK, GROUPS)
    prompts = denominator(MASK, "prompt_mean", groups=GROUPS)
    total = 0.0
    # Rows 0 and 2 belong together and come in different microbatches.
    for part in ([0], [1], [2]):
        total += aggregate(ROWS[part], MASK[part], "prompt_mean", prompts, group_tokens=tokens[part]).item()
    assert total == pytest.approx(2.8333333333333333, abs=1e-14)
    assert sum(denominator(MASK[part], "prompt_mean", groups=GROUPS[part]) for part in ([0], [1], [2])) == 3.0


def test_length_budget_adds_up_over_microbatches() -> None:
    parts = (slice(0, 1), slice(1, 3))
    step = sum(denominator(MASK[part], "length_budget", budget=8) for part in parts)
    assert step == denominator(MASK, "length_budget", budget=8)
    total = sum(aggregate(ROWS[part], MASK[part], "length_budget", step).item() for part in parts)
    assert total == pytest.approx(0.8333333333333334, abs=1e-15)


def test_microbatches_add_up_and_their_means_do_not() -> None:
    parts = (slice(0, 1), slice(1, 3))
    for mode, value, mean_of_means in (("token_mean", 2.857142857142857, 2.6), ("sequence_mean", 3.0, 2.75)):
        whole = sum(denominator(MASK[part], mode) for part in parts)
        assert whole == denominator(MASK, mode)
        total = sum(aggregate(ROWS[part], MASK[part], mode, whole).item() for part in parts)
        assert total == pytest.approx(value, abs=1e-14)
        means = [aggregate(ROWS[part], MASK[part], mode, denominator(MASK[part], mode)).item() for part in parts]
        assert sum(means) / 2 == pytest.approx(mean_of_means, abs=1e-14)


def test_length_bias_of_the_sequence_mean() -> None:
    # Eight completions with an advantage of -0.5, one of 100 and one of 1000 tokens among them.
    mask = torch.zeros(8, 1000, dtype=torch.bool)
    mask[:, 0] = True
    mask[0, :100] = True
    mask[1, :1000] = True
    weights = torch.full((8, 1000), -0.5, dtype=torch.float64)
    ones = torch.ones(8, 1000, dtype=torch.float64, requires_grad=True)
    aggregate(weights * ones, mask, "sequence_mean", denominator(mask, "sequence_mean")).backward()
    totals = ones.grad.sum(dim=1)[:2].tolist()
    assert totals == pytest.approx([-0.0625, -0.0625], abs=1e-14)
    assert ones.grad[:2, 0].tolist() == pytest.approx([-0.000625, -6.25e-05], abs=1e-15)
    # A constant denominator (Dr. GRPO, 8 completions of a budget of 3000) gives every token the same weight instead.
    ones.grad = None
    aggregate(weights * ones, mask, "length_budget", denominator(mask, "length_budget", budget=3000)).backward()
    totals = ones.grad.sum(dim=1)[:2].tolist()
    assert totals == pytest.approx([-0.0020833333333333333, -0.020833333333333332], abs=1e-14)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
def test_what_is_masked_reaches_neither_value_nor_gradient(mode: str, junk: float) -> None:
    dirty = torch.where(MASK, ROWS, junk).requires_grad_()
    clean = ROWS.clone().requires_grad_()
    results = []
    for rows in (dirty, clean):
        scalar = whole(rows, MASK, mode, GROUPS)
        scalar.backward()
        results.append(scalar.item())
    assert results[0] == results[1]
    assert torch.equal(dirty.grad, clean.grad)


@pytest.mark.parametrize("mode", MODES)
def test_order_and_padding_do_not_show_even_in_the_last_bit_of_float32(mode: str) -> None:
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(37, 61, generator=generator)
    mask = torch.arange(61) < torch.randint(1, 62, (37, 1), generator=generator)
    groups = torch.randint(0, 9, (37,), generator=generator)
    expected = whole(rows, mask, mode, groups).item()
    for _ in range(20):
        order = torch.randperm(37, generator=generator)
        padding = int(torch.randint(0, 50, (), generator=generator))
        wide = torch.nn.functional.pad(rows[order], (0, padding), value=math.nan)
        wide_mask = torch.nn.functional.pad(mask[order], (0, padding))
        assert whole(wide, wide_mask, mode, groups[order]).item() == expected


def test_a_row_without_a_trained_token_adds_nothing_and_counts_as_a_row() -> None:
    rows = torch.tensor([[2.0, 4.0], [9.0, 9.0]], requires_grad=True)
    mask = torch.tensor([[True, True], [False, False]])
    scalar = aggregate(rows, mask, "sequence_mean", denominator(mask, "sequence_mean"))
    scalar.backward()
    assert scalar.item() == 1.5
    assert rows.grad.tolist() == [[0.25, 0.25], [0.0, 0.0]]
    assert aggregate(rows, mask, "token_mean", denominator(mask, "token_mean")).item() == 3.0
    assert whole(rows, mask, "length_budget", torch.tensor([0, 0]), budget=2).item() == 1.5
    # A prompt none of whose rows has a trained token counts as a prompt; a row of another prompt adds nothing to it.
    assert whole(rows, mask, "prompt_mean", torch.tensor([0, 0])).item() == 3.0
    rows.grad = None
    scalar = whole(rows, mask, "prompt_mean", torch.tensor([0, 1]))
    scalar.backward()
    assert scalar.item() == 1.5
    assert rows.grad.tolist() == [[0.25, 0.25], [0.0, 0.0]]


def test_an_empty_microbatch_is_zero() -> None:
    empty = torch.zeros(0, 4)
    mask = torch.zeros(0, 4, dtype=torch.bool)
    nobody = torch.zeros(0, dtype=torch.int64)
    for mode in MODES:
        assert aggregate(empty, mask, mode, 5.0, group_tokens=nobody).item() == 0.0
        assert denominator(mask, mode, groups=nobody, budget=3) == 0.0


def test_the_dtype_is_kept() -> None:
    assert aggregate(ROWS.float(), MASK, "token_mean", 7.0).dtype == torch.float32
    assert aggregate(ROWS, MASK, "token_mean", 7.0).dtype == torch.float64


def test_bad_input_is_named() -> None:
    with pytest.raises(TypeError, match=r"mask must be bool \(True = kept\), got torch\.float64"):
        aggregate(ROWS, MASK.double(), "token_mean", 7.0)
    with pytest.raises(TypeError, match=r"mask must be bool"):
        denominator(MASK.long(), "token_mean")
    with pytest.raises(ValueError, match=r"mask \[1, 4\] and per_token \[3, 4\] must have the same shape"):
        aggregate(ROWS, MASK[:1], "token_mean", 7.0)
    with pytest.raises(ValueError, match=r"per_token must have shape \[B, T\], got \[4\]"):
        aggregate(ROWS[0], MASK[0], "token_mean", 7.0)
    modes = "mode must be one of sequence_mean, token_mean, prompt_mean, length_budget; got 'mean'"
    with pytest.raises(ValueError, match=modes):
        aggregate(ROWS, MASK, "mean", 7.0)
    with pytest.raises(ValueError, match=modes):
        denominator(MASK, "mean")
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="denominator must be a finite number above 0"):
            aggregate(ROWS, MASK, "token_mean", wrong)
    with pytest.raises(TypeError, match=r"per_token must be float32 or float64, got torch\.bfloat16"):
        aggregate(ROWS.bfloat16(), MASK, "token_mean", 7.0)


def test_what_a_mode_needs_is_named() -> None:
    with pytest.raises(ValueError, match="prompt_mean needs groups"):
        denominator(MASK, "prompt_mean")
    for wrong in (None, 0, -8):
        with pytest.raises(ValueError, match=f"length_budget needs a budget of at least 1 token .*, got {wrong}"):
            denominator(MASK, "length_budget", budget=wrong)
    with pytest.raises(ValueError, match="prompt_mean needs group_tokens"):
        aggregate(ROWS, MASK, "prompt_mean", 2.0)
    for function in (
        lambda groups: denominator(MASK, "prompt_mean", groups=groups),
        lambda groups: group_token_counts(MASK, groups),
    ):
        with pytest.raises(ValueError, match=r"groups must have shape \[B\] with the B of mask \[3, 4\], got \[2\]"):
            function(GROUPS[:2])
        with pytest.raises(ValueError, match=r"groups must have shape \[B\].*got \[3, 1\]"):
            function(GROUPS[:, None])
        with pytest.raises(TypeError, match=r"groups must be int64, got torch\.float32"):
            function(GROUPS.float())
    with pytest.raises(ValueError, match=r"group_tokens must have shape \[B\].*got \[1\]"):
        aggregate(ROWS, MASK, "prompt_mean", 2.0, group_tokens=torch.tensor([7]))
    with pytest.raises(TypeError, match=r"group_tokens must be int64, got torch\.float64"):
        aggregate(ROWS, MASK, "prompt_mean", 2.0, group_tokens=torch.ones(3, dtype=torch.float64))
    with pytest.raises(TypeError, match="mask must be bool"):
        group_token_counts(MASK.long(), GROUPS)
    with pytest.raises(ValueError, match=r"mask must have shape \[B, T\], got \[4\]"):
        group_token_counts(MASK[0], GROUPS)
