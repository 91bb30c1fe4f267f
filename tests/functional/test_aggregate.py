import math

import pytest
import torch

from oncurve.functional import aggregate, denominator

ROWS = torch.tensor([[1.0, 3.0, 0.0, 0.0], [2.0, 2.0, 2.0, 6.0], [4.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]).bool()


def test_values_and_the_weight_of_each_token() -> None:
    for mode, value, weights in (
        ("sequence_mean", 3.0, [0.16666666666666666, 0.08333333333333333, 0.3333333333333333]),
        ("token_mean", 2.857142857142857, [0.14285714285714285, 0.14285714285714285, 0.14285714285714285]),
    ):
        rows = ROWS.clone().requires_grad_()
        scalar = aggregate(rows, MASK, mode, denominator(MASK, mode))
        scalar.backward()
        assert scalar.item() == pytest.approx(value, abs=1e-15)
        for row, weight in enumerate(weights):
            expected = weight * MASK[row].double()
            torch.testing.assert_close(rows.grad[row], expected, rtol=0, atol=1e-15)


def test_denominators() -> None:
    assert denominator(MASK, "sequence_mean") == 3.0
    assert denominator(MASK, "token_mean") == 7.0


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
    aggregate(weights * ones, mask, "token_mean", 8 * 3000.0).backward()
    totals = ones.grad.sum(dim=1)[:2].tolist()
    assert totals == pytest.approx([-0.0020833333333333333, -0.020833333333333332], abs=1e-14)


@pytest.mark.parametrize("mode", ["sequence_mean", "token_mean"])
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
def test_what_is_masked_reaches_neither_value_nor_gradient(mode: str, junk: float) -> None:
    dirty = torch.where(MASK, ROWS, junk).requires_grad_()
    clean = ROWS.clone().requires_grad_()
    results = []
    for rows in (dirty, clean):
        scalar = aggregate(rows, MASK, mode, denominator(MASK, mode))
        scalar.backward()
        results.append(scalar.item())
    assert results[0] == results[1]
    assert torch.equal(dirty.grad, clean.grad)


@pytest.mark.parametrize("mode", ["sequence_mean", "token_mean"])
def test_order_and_padding_do_not_show_even_in_the_last_bit_of_float32(mode: str) -> None:
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(37, 61, generator=generator)
    mask = torch.arange(61) < torch.randint(1, 62, (37, 1), generator=generator)
    expected = aggregate(rows, mask, mode, denominator(mask, mode)).item()
    for _ in range(20):
        order = torch.randperm(37, generator=generator)
        padding = int(torch.randint(0, 50, (), generator=generator))
        wide = torch.nn.functional.pad(rows[order], (0, padding), value=math.nan)
        wide_mask = torch.nn.functional.pad(mask[order], (0, padding))
        assert aggregate(wide, wide_mask, mode, denominator(wide_mask, mode)).item() == expected


def test_a_row_without_a_trained_token_adds_nothing_and_counts_as_a_row() -> None:
    rows = torch.tensor([[2.0, 4.0], [9.0, 9.0]], requires_grad=True)
    mask = torch.tensor([[True, True], [False, False]])
    scalar = aggregate(rows, mask, "sequence_mean", denominator(mask, "sequence_mean"))
    scalar.backward()
    assert scalar.item() == 1.5
    assert rows.grad.tolist() == [[0.25, 0.25], [0.0, 0.0]]
    assert aggregate(rows, mask, "token_mean", denominator(mask, "token_mean")).item() == 3.0


def test_an_empty_microbatch_is_zero() -> None:
    empty = torch.zeros(0, 4)
    mask = torch.zeros(0, 4, dtype=torch.bool)
    for mode in ("sequence_mean", "token_mean"):
        assert aggregate(empty, mask, mode, 5.0).item() == 0.0
        assert denominator(mask, mode) == 0.0


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
    with pytest.raises(ValueError, match="mode must be one of sequence_mean, token_mean; got 'mean'"):
        aggregate(ROWS, MASK, "mean", 7.0)
    with pytest.raises(ValueError, match="mode must be one of sequence_mean, token_mean; got 'mean'"):
        denominator(MASK, "mean")
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="denominator must be a finite number above 0"):
            aggregate(ROWS, MASK, "token_mean", wrong)
    with pytest.raises(TypeError, match=r"per_token must be float32 or float64, got torch\.bfloat16"):
        aggregate(ROWS.bfloat16(), MASK, "token_mean", 7.0)
