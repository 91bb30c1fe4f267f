import math

import pytest
import torch

from oncurve.functional import place, predictor_mask, selected_logprobs

FOUR = [2.0, 1.0, 0.0, -1.0]


def every_logprob(logits: list[float], temperature: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    rows = torch.tensor([logits] * len(logits), dtype=dtype)
    return selected_logprobs(rows, torch.arange(len(logits)), temperature)[0]


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [
        (1.0, [-0.4401896985611953, -1.4401896985611953, -2.4401896985611953, -3.4401896985611953]),
        (0.7, [-0.2706738306895704, -1.699245259260999, -3.1278166878324276, -4.556388116403856]),
        (0.6, [-0.20806040496530187, -1.8747270716319686, -3.5413937382986354, -5.208060404965302]),
    ],
)
def test_log_probs_are_of_logits_over_temperature(temperature: float, expected: list[float]) -> None:
    exact = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(every_logprob(FOUR, temperature), exact, rtol=0, atol=1e-14)
    single = every_logprob(FOUR, temperature, torch.float32)
    torch.testing.assert_close(single.double(), exact, rtol=0, atol=1e-6)


def test_what_a_forgotten_temperature_costs() -> None:
    ratio = (every_logprob(FOUR, 1.0) - every_logprob(FOUR, 0.6))[2].exp()
    assert ratio.item() == pytest.approx(3.007785337678663, abs=1e-12)


def test_bfloat16_logits_are_upcast_before_the_softmax() -> None:
    logprobs = every_logprob([20.25, 20.0, 18.125, 12.0], 1.0, torch.bfloat16)
    assert logprobs.dtype == torch.float32
    expected = [-0.6410614722403487, -0.8910614722403487, -2.7660614722403487, -8.891061472240349]
    # In bfloat16 the same numbers would be off by up to 0.02.
    torch.testing.assert_close(logprobs, torch.tensor(expected), rtol=0, atol=2e-6)


def test_entropy() -> None:
    _, entropy = selected_logprobs(torch.tensor([FOUR], dtype=torch.float64), torch.tensor([0]))
    assert entropy.item() == pytest.approx(0.9475369639754256, abs=1e-14)
    _, entropy = selected_logprobs(torch.zeros(1, 151936), torch.tensor([7]))
    assert entropy.item() == pytest.approx(11.931214658529285, abs=1e-5)
    _, entropy = selected_logprobs(torch.tensor([[0.0, -math.inf, 0.0]]), torch.tensor([0]))
    assert entropy.item() == pytest.approx(math.log(2), abs=1e-6)
    _, entropy = selected_logprobs(torch.tensor([[1000.0, 0.0]]), torch.tensor([0]))
    assert entropy.item() == 0.0


def test_entropy_carries_a_gradient_only_on_request() -> None:
    logits = torch.tensor([[2.0, 1.0, -math.inf, -1.0]], dtype=torch.float64, requires_grad=True)
    _, plain = selected_logprobs(logits, torch.tensor([0]), 0.7)
    assert not plain.requires_grad
    _, entropy = selected_logprobs(logits, torch.tensor([0]), 0.7, entropy_gradient=True)
    torch.testing.assert_close(entropy.detach(), plain, rtol=0, atol=1e-14)
    entropy.sum().backward()
    # dH/dz_v = -p_v (log p_v + H) / temperature
    p = (logits.detach() / 0.7).softmax(-1)
    expected = -p * (p.clamp(min=1e-300).log() + plain) / 0.7
    torch.testing.assert_close(logits.grad, expected, rtol=0, atol=1e-14)


def test_the_gradient_is_one_hot_minus_softmax_over_temperature() -> None:
    logits = torch.tensor([FOUR], dtype=torch.float64, requires_grad=True)
    selected_logprobs(logits, torch.tensor([1]), 0.7)[0].sum().backward()
    p = (logits.detach() / 0.7).softmax(-1)
    expected = (torch.tensor([[0.0, 1.0, 0.0, 0.0]], dtype=torch.float64) - p) / 0.7
    torch.testing.assert_close(logits.grad, expected, rtol=0, atol=1e-14)


def test_log_probs_are_never_above_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 50 * torch.randn(500, 33, generator=generator)
    assert selected_logprobs(logits, logits.argmax(-1))[0].max().item() <= 0.0


def test_no_rows() -> None:
    logprobs, entropy = selected_logprobs(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64))
    assert logprobs.shape == entropy.shape == (0,)


def test_the_input_is_left_alone() -> None:
    logits = torch.tensor([FOUR])
    selected_logprobs(logits, torch.tensor([0]))
    selected_logprobs(logits, torch.tensor([0]), 0.5)
    assert logits.tolist() == [FOUR]


def test_the_one_shift() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()
    expected = torch.tensor([[0, 1, 1, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()
    assert torch.equal(predictor_mask(mask), expected)
    assert predictor_mask(mask[:, :0]).shape == (3, 0)


def test_a_row_from_logits_to_token_aligned_log_probs() -> None:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 7, (3, 6), generator=generator)
    logits = torch.randn(3, 6, 7, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1], [0, 1, 0, 0, 0, 0]]).bool()
    selected, _ = selected_logprobs(logits[predictor_mask(mask)], tokens[mask])
    placed = place(selected, mask)
    for b in range(3):
        for t in range(6):
            expected = logits[b, t - 1].log_softmax(-1)[tokens[b, t]].item() if mask[b, t] else 0.0
            assert placed[b, t].item() == pytest.approx(expected, abs=1e-14)


def test_place_passes_gradients_from_the_true_positions_alone() -> None:
    values = torch.tensor([1.0, 2.0], requires_grad=True)
    mask = torch.tensor([[False, True], [True, False]])
    placed = place(values, mask)
    assert placed.tolist() == [[0.0, 1.0], [2.0, 0.0]]
    placed.backward(torch.tensor([[math.nan, 3.0], [5.0, math.inf]]))
    assert values.grad.tolist() == [3.0, 5.0]
    assert place(torch.zeros(0), torch.zeros(2, 2, dtype=torch.bool)).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_bad_input_is_named() -> None:
    logits, targets = torch.zeros(2, 5), torch.tensor([0, 1])
    for temperature in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="temperature must be a finite number above 0"):
            selected_logprobs(logits, targets, temperature)
    with pytest.raises(ValueError, match=r"logits must have shape \[N, V\], got \[1, 2, 5\]"):
        selected_logprobs(logits[None], targets)
    with pytest.raises(ValueError, match=r"targets must have shape \[N\] with the N of logits \[2, 5\], got \[3\]"):
        selected_logprobs(logits, torch.tensor([0, 1, 2]))
    with pytest.raises(TypeError, match=r"targets must be int64, got torch\.int32"):
        selected_logprobs(logits, targets.int())
    with pytest.raises(TypeError, match=r"logits must be a floating-point tensor, got torch\.int64"):
        selected_logprobs(logits.long(), targets)
    with pytest.raises(TypeError, match=r"completion_mask must be bool \(True = kept\), got torch\.int64"):
        predictor_mask(torch.tensor([[0, 1]]))
    with pytest.raises(ValueError, match="completion_mask is True in its first column"):
        predictor_mask(torch.tensor([[True, True]]))
    with pytest.raises(ValueError, match="values has 3 entries for the 1 True positions of completion_mask"):
        place(torch.zeros(3), torch.tensor([[False, True]]))
