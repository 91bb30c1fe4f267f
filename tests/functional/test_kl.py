import math

import pytest
import torch

from oncurve.functional import k1, k2, k3, token_ratio

POLICY = torch.tensor([0.5, 0.2, 0.9, 0.05], dtype=torch.float64).log()
REFERENCE = torch.tensor([0.25, 0.4, 0.9, 0.10], dtype=torch.float64).log()


def close(actual: torch.Tensor, expected: list[float], tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=tolerance)


def test_values() -> None:
    close(k1(POLICY, REFERENCE), [0.6931471805599453, -0.6931471805599453, 0.0, -0.6931471805599454])
    close(k2(POLICY, REFERENCE), [0.2402265069591007, 0.2402265069591007, 0.0, 0.24022650695910078])
    close(k3(POLICY, REFERENCE), [0.1931471805599453, 0.3068528194400547, 0.0, 0.3068528194400548])


def test_k3_is_not_the_reversed_ratio() -> None:
    log_ratio = torch.tensor([1.0, -1.0], dtype=torch.float64)  # log policy - log reference
    close(k3(log_ratio, torch.zeros(2, dtype=torch.float64)), [0.36787944117144233, 0.7182818284590451])


def test_k3_keeps_its_digits_near_zero_in_float32() -> None:
    d = torch.tensor([1e-6, -1e-6, 1e-4, 0.01, 0.049, 0.051, 0.5, -3.0])
    exact = d.double().expm1() - d.double()
    exact[:3] = d[:3].double() ** 2 / 2 * (1 + d[:3].double() / 3)
    torch.testing.assert_close(k3(-d, torch.zeros(8)).double(), exact, rtol=3e-6, atol=0)
    assert exact[0].item() == pytest.approx(5e-13, rel=1e-5)


def test_k3_of_float64_is_continuous_where_the_series_ends() -> None:
    for edge in (0.05, -0.05):
        d = torch.tensor([edge * (1 - 1e-9), edge * (1 + 1e-9)], dtype=torch.float64)
        below, above = k3(-d, torch.zeros(2, dtype=torch.float64)).tolist()
        assert below == pytest.approx(math.expm1(edge) - edge, rel=1e-8)
        assert above == pytest.approx(below, rel=1e-8)


def test_k3_is_never_negative() -> None:
    sizes = torch.logspace(-30, 1.9, 20001)
    d = torch.cat([-sizes, torch.zeros(1), sizes])
    assert k3(-d, torch.zeros_like(d)).min().item() == 0.0


def test_expectations_over_a_categorical() -> None:
    policy = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    reference = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    for estimator, mean, variance in (
        (k1, 0.2238046571856474, 0.48086906422865927),
        (k2, 0.2654787944033222, 0.024092895672506623),
        (k3, 0.22380465718564743, 0.009004687309470454),
    ):
        values = estimator(policy.log(), reference.log())
        expected = (policy * values).sum()
        assert expected.item() == pytest.approx(mean, abs=1e-12)
        assert (policy * (values - expected).square()).sum().item() == pytest.approx(variance, abs=1e-12)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (k1, [0.0, 0.0, 0.0]),
        (k2, [0.34624303734425377, -0.22038908428549142, -0.12585395305876235]),
        (k3, [0.3, -0.2, -0.1]),
        (
            lambda p, r: token_ratio(p, p) * k3(p, r),
            [0.34624303734425377, -0.22038908428549142, -0.12585395305876235],
        ),
    ],
    ids=["k1", "k2", "k3", "ratio*k3"],
)
def test_the_gradient_each_has_as_a_loss(estimator, expected: list[float]) -> None:
    logits = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log().requires_grad_()
    reference = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    logprobs = logits.log_softmax(-1)
    (logprobs.exp().detach() * estimator(logprobs, reference)).sum().backward()
    close(logits.grad, expected)


@pytest.mark.parametrize("estimator", [k1, k2, k3])
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30, -1e30])
def test_junk_does_not_come_back_as_a_gradient(estimator, junk: float) -> None:
    for junk_in_reference in (False, True):
        logprobs = torch.tensor([-1.0, -1.0 if junk_in_reference else junk], requires_grad=True)
        reference = torch.tensor([-2.0, junk if junk_in_reference else -2.0])
        kept = torch.where(torch.tensor([True, False]), estimator(logprobs, reference), 0.0)
        kept.sum().backward()
        assert logprobs.grad[1].item() == 0.0
        assert math.isfinite(logprobs.grad[0].item())


def test_junk_stays_visible_in_the_value() -> None:
    for estimator in (k1, k2, k3):
        assert math.isnan(estimator(torch.tensor([math.nan]), torch.tensor([-1.0])).item())
    assert k3(torch.tensor([-200.0]), torch.tensor([0.0])).item() == math.inf


def test_no_gradient_passes_to_the_reference() -> None:
    logprobs = torch.tensor([-1.0], requires_grad=True)
    reference = torch.tensor([-1.5], requires_grad=True)
    for estimator in (k1, k2, k3):
        estimator(logprobs, reference).sum().backward()
    assert reference.grad is None


@pytest.mark.parametrize("estimator", [k1, k2, k3])
def test_bad_input_is_named(estimator) -> None:
    with pytest.raises(ValueError, match=r"ref_logprobs \[3\] and logprobs \[2, 3\] must have the same shape"):
        estimator(torch.zeros(2, 3), torch.zeros(3))
    with pytest.raises(TypeError, match=r"logprobs must be float32 or float64, got torch\.bfloat16"):
        estimator(torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2))
