import math

import pytest
import torch
from torch import Tensor

from oncurve.functional import aggregate, clipped_surrogate
from oncurve.functional.ratios import product_ratio, sequence_ratio, sequence_token_ratio, token_ratio

OLD = torch.tensor([[-1.0, -0.5, -2.0, -0.1], [-0.7, -3.0, -0.2, -0.4]], dtype=torch.float64)
LOG_RATIO = torch.tensor([[0.10, -0.20, 0.40, 0.00], [-0.30, 0.06, 0.00, 0.00]], dtype=torch.float64)
MASK = torch.tensor([[True, True, True, False], [True, True, False, False]])

BY_ROW = [sequence_ratio, sequence_token_ratio, product_ratio]
ALL = [lambda new, old, mask: token_ratio(new, old), *BY_ROW]
NAMES = ["token", "sequence", "sequence_token", "product"]


def every_ratio() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("ratio", ALL, ids=NAMES)


def close(actual: Tensor, expected: list[list[float]], tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=tolerance)


def gradient(ratio, logprobs: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """Of the sum of the ratios at the trained tokens."""
    logprobs = logprobs.detach().clone().requires_grad_()
    torch.where(mask, ratio(logprobs, old, mask), 0.0).sum().backward()
    assert logprobs.grad is not None
    return logprobs.grad


# -- values -----------------------------------------------------------------------------------------------------------


def test_values() -> None:
    new = OLD + LOG_RATIO
    close(
        token_ratio(new, OLD),
        [
            [1.1051709180756477, 0.8187307530779818, 1.4918246976412703, 1.0],
            [0.7408182206817179, 1.0618365465453596, 1.0, 1.0],
        ],
    )
    # the means of the trained log-ratios are 0.1 and -0.12, their sums 0.3 and -0.24
    sequence = [[1.1051709180756477] * 4, [0.8869204367171575] * 4]
    close(sequence_ratio(new, OLD, MASK), sequence)
    close(sequence_token_ratio(new, OLD, MASK), sequence)
    close(product_ratio(new, OLD, MASK), [[1.3498588075760032] * 4, [0.7866278610665535] * 4])


def test_the_gradient_each_has() -> None:
    new = OLD + LOG_RATIO
    close(
        gradient(ALL[0], new, OLD, MASK),
        [
            [1.1051709180756477, 0.8187307530779818, 1.4918246976412703, 0.0],
            [0.7408182206817179, 1.0618365465453596, 0, 0],
        ],
    )
    # n copies of the row's value, each with a gradient of s / n: so s for each trained token
    one_each = [[1.1051709180756477] * 3 + [0.0], [0.8869204367171575] * 2 + [0.0, 0.0]]
    close(gradient(sequence_ratio, new, OLD, MASK), one_each)
    close(gradient(sequence_token_ratio, new, OLD, MASK), one_each)
    # n copies of the product
    close(
        gradient(product_ratio, new, OLD, MASK),
        [[3 * 1.3498588075760032] * 3 + [0.0], [2 * 0.7866278610665535] * 2 + [0.0, 0.0]],
    )


@pytest.mark.parametrize("ratio", [ALL[0], sequence_ratio, product_ratio], ids=["token", "sequence", "product"])
def test_autograd_agrees_with_finite_differences(ratio) -> None:
    logprobs = (OLD + LOG_RATIO).requires_grad_()
    assert torch.autograd.gradcheck(lambda new: ratio(new, OLD, MASK), logprobs, atol=1e-6, rtol=1e-6)


@every_ratio()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_in_the_first_update_every_ratio_is_exactly_one(ratio, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logprobs = (-5 * torch.rand(6, 300, generator=generator)).to(dtype).requires_grad_()
    mask = torch.rand(6, 300, generator=generator) < 0.7
    for old in (logprobs, logprobs.detach().clone()):
        value = ratio(logprobs, old, mask)
        assert torch.equal(value, torch.ones(6, 300, dtype=dtype))
    assert gradient(ratio, logprobs, logprobs, mask)[mask].min().item() > 0.99


def test_the_ratio_of_the_policy_to_itself_has_the_gradient_of_the_policy() -> None:
    logprobs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    ratio = token_ratio(logprobs, logprobs)
    assert ratio.tolist() == [[1.0, 1.0]]
    clipped_surrogate(ratio, torch.tensor([[0.5]]), clip_low=0.2, clip_high=0.2).sum().backward()
    assert logprobs.grad.tolist() == [[-0.5, -0.5]]


@every_ratio()
def test_no_gradient_passes_to_the_old_policy(ratio) -> None:
    logprobs, old = (OLD + LOG_RATIO).requires_grad_(), OLD.clone().requires_grad_()
    ratio(logprobs, old, MASK).sum().backward()
    assert logprobs.grad is not None
    assert old.grad is None


@every_ratio()
def test_what_comes_back_has_the_shape_and_dtype_of_what_went_in(ratio) -> None:
    for dtype in (torch.float32, torch.float64):
        value = ratio((OLD + LOG_RATIO).to(dtype), OLD.to(dtype), MASK)
        assert (value.shape, value.dtype) == (OLD.shape, dtype)


# -- one against the other --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "product"), [(1, 1.01), (20, 1.220190039947967), (200, 7.316017851829954), (1000, 20959.155637813845)]
)
def test_the_product_runs_away_with_the_length_and_the_geometric_mean_does_not(length: int, product: float) -> None:
    old = torch.full((1, length), -1.0, dtype=torch.float64)
    new, mask = old + math.log(1.01), torch.ones(1, length).bool()
    assert product_ratio(new, old, mask)[0, 0].item() == pytest.approx(product, rel=1e-10)
    assert sequence_ratio(new, old, mask)[0, 0].item() == pytest.approx(1.01, rel=1e-12)
    assert (product_ratio(new, old, mask)[0, 0].item() > 1.2) == (length >= 19)
    assert math.log(1.2) / math.log(1.01) == pytest.approx(18.323165278057576, rel=1e-12)


@pytest.mark.parametrize(
    ("length", "of_product", "of_mean"),
    [(100, 0.1, 0.001), (1000, 0.31622776601683794, 0.00031622776601683794), (10000, 1.0, 0.0001)],
)
def test_noise_of_a_hundredth_per_token(length: int, of_product: float, of_mean: float) -> None:
    """The logarithms are linear in the log-probs: independent noise adds up by the squares of the derivatives."""
    logprobs = torch.full((1, length), -1.0, dtype=torch.float64)
    mask = torch.ones(1, length).bool()
    for ratio, deviation in ((product_ratio, of_product), (sequence_ratio, of_mean)):
        new = logprobs.clone().requires_grad_()
        ratio(new, logprobs, mask)[0, 0].log().backward()
        assert 0.01 * new.grad.square().sum().sqrt().item() == pytest.approx(deviation, rel=1e-12)


@pytest.mark.parametrize("ratio", [sequence_ratio, sequence_token_ratio])
def test_gspo_on_four_tokens(ratio) -> None:
    """dL/dlogp = -A s / n for every token when unclipped, in GSPO and in its token form."""
    log_ratios = [0.08, -0.11, 0.2, 4 * 0.02512757927830491 - 0.17]
    old = torch.tensor([[-1.2, -0.3, -2.5, -0.7]], dtype=torch.float64)
    new = (old + torch.tensor([log_ratios], dtype=torch.float64)).requires_grad_()
    mask = torch.ones(1, 4).bool()
    s = ratio(new, old, mask)
    close(s.detach(), [[1.0254459378321519] * 4])
    per_token = clipped_surrogate(s, torch.tensor([[1.5]], dtype=torch.float64), clip_low=0.2, clip_high=0.2)
    loss = aggregate(per_token, mask, "sequence_mean", 1.0)
    loss.backward()
    assert loss.item() == pytest.approx(-1.5381689067482278, abs=1e-12)
    close(new.grad, [[-0.38454222668705695] * 4])


def test_the_token_form_of_gspo_keeps_an_advantage_for_each_token() -> None:
    new = (OLD + LOG_RATIO).requires_grad_()
    advantages = torch.tensor([[1.0, -2.0, 0.5, 9.0], [0.0, 3.0, 9.0, 9.0]], dtype=torch.float64)
    per_token = clipped_surrogate(sequence_token_ratio(new, OLD, MASK), advantages, clip_low=0.5, clip_high=0.5)
    torch.where(MASK, per_token, 0.0).sum().backward()
    first, second = 1.1051709180756477, 0.8869204367171575
    close(new.grad, [[-first, 2 * first, -0.5 * first, 0.0], [0.0, -3 * second, 0.0, 0.0]])


def test_on_policy_the_product_weighs_each_completion_by_its_length() -> None:
    """In the first update GRPO and GSPO have one gradient; the product's is n times that of each completion."""
    advantages = torch.tensor([[1.0], [-0.5]], dtype=torch.float64)
    gradients = []
    for ratio in ALL:
        new = OLD.clone().requires_grad_()
        per_token = clipped_surrogate(ratio(new, OLD, MASK), advantages, clip_low=0.2, clip_high=0.2)
        aggregate(per_token, MASK, "sequence_mean", 2.0).backward()
        gradients.append(new.grad)
    one = [[-1 / 6] * 3 + [0.0], [0.125] * 2 + [0.0, 0.0]]
    for found in gradients[:3]:
        close(found, one)
    close(gradients[3], [[-0.5] * 3 + [0.0], [0.25] * 2 + [0.0, 0.0]])


# -- what goes wrong elsewhere ----------------------------------------------------------------------------------------


def test_a_forgotten_temperature_shows_as_a_ratio_of_three() -> None:
    at_one = torch.tensor([[-0.4401896985611953, -1.4401896985611953, -2.4401896985611953]], dtype=torch.float64)
    at_06 = torch.tensor([[-0.20806040496530187, -1.8747270716319686, -3.5413937382986354]], dtype=torch.float64)
    assert token_ratio(at_one, at_06)[0, 2].item() == pytest.approx(3.007785337678663, abs=1e-12)


def test_logits_rounded_to_bfloat16() -> None:
    exact = torch.tensor(
        [[-0.5964929686484659, -0.9464929686484673, -2.796492968648465, -8.896492968648467]], dtype=torch.float64
    )
    rounded = torch.tensor(
        [[-0.6410614722403487, -0.8910614722403487, -2.7660614722403487, -8.891061472240349]], dtype=torch.float64
    )
    close(
        token_ratio(rounded, exact),
        [[0.9564100803236615, 1.0569966065281065, 1.0308992673271715, 1.0054462737269376]],
    )


# -- junk, extremes, nothing ------------------------------------------------------------------------------------------


@every_ratio()
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30, -1e30])
@pytest.mark.parametrize("place", ["logprobs", "old_logprobs", "both"])
def test_junk_in_padding_reaches_neither_value_nor_gradient(ratio, junk: float, place: str) -> None:
    new, old = (OLD + LOG_RATIO).float(), OLD.float()
    clean, clean_gradient = ratio(new, old, MASK), gradient(ratio, new, old, MASK)
    dirty_new = new if place == "old_logprobs" else torch.where(MASK, new, junk)
    dirty_old = old if place == "logprobs" else torch.where(MASK, old, junk)
    assert torch.equal(ratio(dirty_new, dirty_old, MASK)[MASK], clean[MASK])
    assert torch.equal(gradient(ratio, dirty_new, dirty_old, MASK), clean_gradient)
    assert torch.equal(clean_gradient[~MASK], torch.zeros(3))


@pytest.mark.parametrize("ratio", BY_ROW)
def test_junk_in_padding_is_not_even_seen_in_padding(ratio) -> None:
    dirty = torch.where(MASK, OLD + LOG_RATIO, math.nan)
    assert torch.equal(ratio(dirty, torch.where(MASK, OLD, math.inf), MASK), ratio(OLD + LOG_RATIO, OLD, MASK))


@pytest.mark.parametrize("ratio", BY_ROW)
def test_padding_has_no_gradient_even_without_a_mask_behind_it(ratio) -> None:
    new = (OLD + LOG_RATIO).requires_grad_()
    ratio(new, OLD, MASK).sum().backward()
    assert torch.equal(new.grad == 0, ~MASK)


@every_ratio()
@pytest.mark.parametrize(
    ("log_ratio", "value", "slope"),
    [
        (100.0, math.inf, 0.0),
        (88.0, 1.6516363e38, 1.6516363e38),
        (-100.0, 3.783506e-44, 3.783506e-44),
        (-200.0, 0.0, 0.0),
        (-math.inf, 0.0, 0.0),
        (math.inf, math.inf, 0.0),
        (math.nan, math.nan, 0.0),
    ],
)
def test_extremes_in_float32(ratio, log_ratio: float, value: float, slope: float) -> None:
    old, mask = torch.tensor([[0.0]]), torch.tensor([[True]])
    found = ratio(torch.tensor([[log_ratio]]), old, mask)
    assert found.item() == pytest.approx(value, rel=2e-6, abs=1e-45, nan_ok=True)
    assert gradient(ratio, torch.tensor([[log_ratio]]), old, mask).item() == pytest.approx(slope, rel=2e-6, abs=1e-45)


@pytest.mark.parametrize("ratio", BY_ROW)
def test_one_unknown_token_makes_the_completion_unknown_and_leaves_the_others_alone(ratio) -> None:
    new = (OLD + LOG_RATIO).clone()
    new[0, 1] = math.nan
    value = ratio(new, OLD, MASK)
    assert value[0].isnan().all()
    assert torch.equal(value[1], ratio(OLD + LOG_RATIO, OLD, MASK)[1])
    found = gradient(ratio, new, OLD, MASK)
    assert torch.equal(found[0], torch.zeros(4, dtype=torch.float64))
    assert torch.equal(found[1], gradient(ratio, OLD + LOG_RATIO, OLD, MASK)[1])


def test_long_completions_in_float32() -> None:
    old, mask = torch.full((2, 20_000), -1.0), torch.ones(2, 20_000).bool()
    new = old + torch.tensor([[0.01], [-0.01]])
    assert product_ratio(new, old, mask)[:, 0].tolist() == [math.inf, 0.0]
    assert torch.equal(gradient(product_ratio, new, old, mask), torch.zeros(2, 20_000))
    each = (new - old)[:, 0].double().exp()  # 0.01 itself is not a float32
    assert sequence_ratio(new, old, mask)[:, 0].tolist() == pytest.approx(each.tolist(), rel=1e-7)
    # a sum in float32 would be off by 5e-5 here
    little = torch.full((1, 100_000), 1e-4)
    exact = math.exp(100_000 * float(little[0, 0]))
    product = product_ratio(little, torch.zeros(1, 100_000), torch.ones(1, 100_000).bool())
    assert product[0, 0].item() == pytest.approx(exact, rel=1e-7)


def test_a_product_beyond_float32_is_still_a_number_in_float64() -> None:
    old = torch.full((1, 20_000), -1.0, dtype=torch.float64)
    value = product_ratio(old + 0.01, old, torch.ones(1, 20_000).bool())
    assert math.log(value[0, 0].item()) == pytest.approx(200.0, rel=1e-12)


@every_ratio()
def test_rows_without_a_trained_token(ratio) -> None:
    new, old = torch.tensor([[-1.0, -2.0], [-0.5, -1.0]]), torch.tensor([[-1.0, -2.0], [-9.0, -3.0]])
    mask = torch.tensor([[True, True], [False, False]])
    value = ratio(new, old, mask)
    assert torch.equal(value[0], torch.ones(2))
    if ratio in BY_ROW:
        assert torch.equal(value[1], torch.ones(2))
    assert torch.equal(gradient(ratio, new, old, mask)[1], torch.zeros(2))


@every_ratio()
@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 0)])
def test_nothing_at_all(ratio, shape: tuple[int, int]) -> None:
    assert ratio(torch.zeros(shape), torch.zeros(shape), torch.zeros(shape).bool()).shape == shape
    assert gradient(ratio, torch.zeros(shape), torch.zeros(shape), torch.zeros(shape).bool()).shape == shape


# -- bad input --------------------------------------------------------------------------------------------------------


@every_ratio()
def test_log_probs_of_half_precision_or_another_shape_are_refused(ratio) -> None:
    with pytest.raises(TypeError, match=r"old_logprobs must be float32 or float64, got torch\.float16"):
        ratio(torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.float16), torch.ones(1, 1).bool())
    with pytest.raises(TypeError, match=r"logprobs must be float32 or float64, got torch\.bfloat16"):
        ratio(torch.zeros(1, 1, dtype=torch.bfloat16), torch.zeros(1, 1), torch.ones(1, 1).bool())
    with pytest.raises(TypeError, match=r"logprobs must be float32 or float64, got torch\.int64"):
        ratio(torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1), torch.ones(1, 1).bool())
    with pytest.raises(TypeError, match=r"logprobs must be a torch\.Tensor, got list"):
        ratio([[0.0]], torch.zeros(1, 1), torch.ones(1, 1).bool())
    with pytest.raises(ValueError, match=r"old_logprobs \[1, 2\] and logprobs \[2, 2\] must have the same shape"):
        ratio(torch.zeros(2, 2), torch.zeros(1, 2), torch.ones(2, 2).bool())


@pytest.mark.parametrize("ratio", BY_ROW)
def test_masks_that_are_no_masks_are_refused(ratio) -> None:
    for dtype in (torch.int64, torch.float32, torch.uint8):
        with pytest.raises(TypeError, match=rf"mask must be bool \(True = kept\), got {dtype}"):
            ratio(OLD, OLD, MASK.to(dtype))
    for shape in ((2,), (4,), (1, 4), (2, 1)):
        with pytest.raises(ValueError, match=r"mask .* and logprobs \[2, 4\] must have the same shape"):
            ratio(OLD, OLD, torch.ones(shape).bool())
    with pytest.raises(ValueError, match=r"logprobs must have shape \[B, T\], got \[4\]"):
        ratio(OLD[0], OLD[0], MASK[0])
