import math

import pytest
import torch

from oncurve.functional import k1, k2, k3, token_ratio
from oncurve.functional.kl import adaptive_kl_coef, k3_ratio
from oncurve.functional.policy_losses import reinforce

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
        (lambda p, r: k3_ratio(p, r, p), [0.34624303734425377, -0.22038908428549142, -0.12585395305876235]),
        (
            lambda p, r: token_ratio(p, p) * k3(p, r),
            [0.34624303734425377, -0.22038908428549142, -0.12585395305876235],
        ),
    ],
    ids=["k1", "k2", "k3", "k3_ratio", "ratio*k3"],
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


# -- k3 with the ratio ------------------------------------------------------------------------------------------------

LOG_P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
LOG_REF = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
LOG_OLD = torch.tensor([0.25, 0.35, 0.4], dtype=torch.float64).log()
GRADIENT_OF_KL = [0.34624303734425377, -0.22038908428549142, -0.12585395305876235]


def test_k3_ratio_values() -> None:
    # ratio 2 and 0.5 times k3
    old = torch.tensor([0.25, 0.4, 0.9, 0.05], dtype=torch.float64).log()
    close(k3_ratio(POLICY, REFERENCE, old), [0.3862943611198906, 0.15342640972002735, 0.0, 0.3068528194400548])


def test_k3_ratio_is_k3_in_the_first_update() -> None:
    assert torch.equal(k3_ratio(POLICY, REFERENCE, POLICY), k3(POLICY, REFERENCE))


def test_on_samples_of_an_older_policy_only_the_form_with_the_ratio_is_right() -> None:
    """Expectations over what the old policy samples, by enumeration, of value and gradient."""
    for estimator, is_right in (
        (lambda p: k3_ratio(p, LOG_REF, LOG_OLD), True),
        (lambda p: k1(p, LOG_REF), False),
        (lambda p: k2(p, LOG_REF), False),
        (lambda p: k3(p, LOG_REF), False),
    ):
        logits = LOG_P.clone().requires_grad_()
        expected = (LOG_OLD.exp() * estimator(logits.log_softmax(-1))).sum()
        expected.backward()
        off = (logits.grad - torch.tensor(GRADIENT_OF_KL, dtype=torch.float64)).abs().max().item()
        assert (abs(expected.item() - 0.2238046571856474) < 1e-12) == is_right
        assert (off < 1e-12) == is_right
        assert is_right or off > 0.05


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [(k1, GRADIENT_OF_KL), (k3, [0.04624303734425379, -0.020389084285491424, -0.02585395305876237])],
)
def test_in_the_reward_k1_is_right_and_k3_is_not(estimator, expected: list[float]) -> None:
    logits = LOG_P.clone().requires_grad_()
    logprobs = logits.log_softmax(-1)
    reward = -estimator(logprobs.detach(), LOG_REF)
    (LOG_P.exp() * reinforce(logprobs, reward)).sum().backward()
    close(logits.grad, expected)


def test_the_written_gradient_is_that_of_the_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    reference, old = torch.randn(2, 500, generator=generator, dtype=torch.float64)
    start = 2.0 * torch.randn(500, generator=generator, dtype=torch.float64)
    assert (reference - start > 3).sum().item() > 20
    found = []
    for formula in (lambda p: k3_ratio(p, reference, old), lambda p: token_ratio(p, old) * k3(p, reference)):
        logprobs = start.clone().requires_grad_()
        value = formula(logprobs)
        value.sum().backward()
        found.append((value.detach(), logprobs.grad))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-12, atol=1e-12)
    logprobs = start[:20].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda p: k3_ratio(p, reference[:20], old[:20]), logprobs, atol=1e-6, rtol=1e-6)


def test_a_token_that_the_policy_has_given_up_is_pulled_back_gently() -> None:
    """log policy 100 below reference and old policy: the ratio underflows and e^d overflows, their product is 1."""
    for drop in (100.0, 1000.0, math.inf):
        logprobs = torch.tensor([-1.0 - drop], requires_grad=True)
        value = k3_ratio(logprobs, torch.tensor([-1.0]), torch.tensor([-1.0]))
        value.sum().backward()
        assert value.item() == pytest.approx(1.0, abs=1e-12)
        assert logprobs.grad.item() == pytest.approx(0.0, abs=1e-40)
    assert k3(torch.tensor([-101.0]), torch.tensor([-1.0])).item() == math.inf


@pytest.mark.parametrize(
    ("logprob", "reference", "old"),
    [(0.0, -1.0, -100.0), (0.0, 10.0, -100.0), (-1.0, 99.0, -1.0), (0.0, -200.0, -88.0)],
)
def test_k3_ratio_that_overflows_is_shown_and_has_no_gradient(logprob: float, reference: float, old: float) -> None:
    logprobs = torch.tensor([logprob], requires_grad=True)
    value = k3_ratio(logprobs, torch.tensor([reference]), torch.tensor([old]))
    value.sum().backward()
    assert value.item() == math.inf
    assert logprobs.grad.item() == 0.0


def test_a_gradient_of_k3_ratio_beyond_float32_is_zero_too() -> None:
    """At a ratio of 2e38 and d = -2 the value still fits, the gradient of 4e38 does not."""
    logprobs = torch.tensor([0.0], requires_grad=True)
    value = k3_ratio(logprobs, torch.tensor([-2.0]), torch.tensor([-math.log(2e38)]))
    value.sum().backward()
    assert value.item() == pytest.approx(2e38 * (math.exp(-2) + 1), rel=1e-5)
    assert logprobs.grad.item() == 0.0


def test_k3_ratio_is_never_negative_and_has_no_step_where_its_form_changes() -> None:
    sizes = torch.logspace(-30, 1.9, 2001)
    d = torch.cat([-sizes, torch.zeros(1), sizes])
    for old in (-40.0, -1.0, 0.0, 1.0, 40.0):
        assert k3_ratio(-d, torch.zeros_like(d), torch.full_like(d, old)).min().item() >= 0.0
    d = torch.tensor([3.0 - 1e-12, 3.0 + 1e-12], dtype=torch.float64)
    below, above = k3_ratio(-d, torch.zeros_like(d), torch.zeros_like(d)).tolist()
    assert below == pytest.approx(math.exp(-3) * (math.exp(3) - 4), rel=1e-10)
    assert above == pytest.approx(below, rel=1e-10)


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30, -1e30])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_junk_in_padding_does_not_come_back_through_k3_ratio(junk: float, place: int) -> None:
    tensors = [torch.tensor([-1.0, -1.0]), torch.tensor([-2.0, -2.0]), torch.tensor([-1.5, -1.5])]
    tensors[place][1] = junk
    tensors[0].requires_grad_()
    torch.where(torch.tensor([True, False]), k3_ratio(*tensors), 0.0).sum().backward()
    # -ratio * d = -e^0.5 * -1
    assert tensors[0].grad.tolist() == [pytest.approx(1.6487212707001282, rel=1e-6), 0.0]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_junk_in_a_trained_token_is_seen_in_k3_ratio(place: int) -> None:
    tensors = [torch.tensor([-1.0]), torch.tensor([-2.0]), torch.tensor([-1.5])]
    tensors[place][0] = math.nan
    assert math.isnan(k3_ratio(*tensors).item())


def test_no_gradient_passes_to_the_reference_or_the_old_policy() -> None:
    logprobs, reference, old = (torch.tensor([x], requires_grad=True) for x in (-1.0, -1.5, -1.2))
    k3_ratio(logprobs, reference, old).sum().backward()
    assert logprobs.grad is not None
    assert reference.grad is None
    assert old.grad is None


def test_bad_input_to_k3_ratio_is_named() -> None:
    with pytest.raises(ValueError, match=r"ref_logprobs \[3\] and logprobs \[2, 3\] must have the same shape"):
        k3_ratio(torch.zeros(2, 3), torch.zeros(3), torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"old_logprobs \[2, 1\] and logprobs \[2, 3\] must have the same shape"):
        k3_ratio(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 1))
    with pytest.raises(TypeError, match=r"old_logprobs must be float32 or float64, got torch\.float16"):
        k3_ratio(torch.zeros(2), torch.zeros(2), torch.zeros(2, dtype=torch.float16))


# -- adaptive coefficient ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        (6.0, 0.1),
        (6.3, 0.1 * (1 + 0.05 * 0.0512)),
        (5.7, 0.1 * (1 - 0.05 * 0.0512)),
        (7.2, 0.101024),
        (600.0, 0.101024),
        (0.0, 0.098976),
        (-3.0, 0.098976),
    ],
)
def test_the_coefficient_follows_the_kl(kl: float, expected: float) -> None:
    found = adaptive_kl_coef(0.1, kl, target=6.0, horizon=10_000, n=512)
    assert found == pytest.approx(expected, abs=1e-15)


def test_the_coefficient_settles_where_the_kl_is_at_its_target() -> None:
    """A policy whose KL is 0.5 / coefficient has its target of 5 at a coefficient of 0.1."""
    kl_coef = 0.02
    for _ in range(2000):
        kl_coef = adaptive_kl_coef(kl_coef, 0.5 / kl_coef, target=5.0, horizon=1000, n=50)
    assert kl_coef == pytest.approx(0.1, rel=1e-6)


def test_the_coefficient_stays_positive_and_zero_stays_zero() -> None:
    assert adaptive_kl_coef(0.1, 0.0, target=6.0, horizon=100, n=100) == pytest.approx(0.08)
    assert adaptive_kl_coef(0.1, 99.0, target=6.0, horizon=100, n=0) == 0.1
    assert adaptive_kl_coef(0.0, 99.0, target=6.0, horizon=100, n=50) == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kl_coef": -0.1}, r"kl_coef must be a finite number of at least 0, got -0\.1"),
        ({"kl_coef": math.inf}, "kl_coef must be a finite number of at least 0, got inf"),
        ({"kl": math.nan}, "kl must be finite, got nan"),
        ({"kl": math.inf}, "kl must be finite, got inf"),
        ({"target": 0.0}, r"target must be a finite number above 0, got 0\.0"),
        ({"target": math.nan}, "target must be a finite number above 0, got nan"),
        ({"horizon": -1.0}, r"horizon must be a finite number above 0, got -1\.0"),
        ({"n": -1}, "n must be a finite number of at least 0, got -1"),
        ({"n": 10_001}, "n must be at most the horizon of 10000 completions, got 10001"),
    ],
)
def test_bad_numbers_are_named(change: dict[str, float], message: str) -> None:
    settings = {"kl_coef": 0.1, "kl": 5.0, "target": 6.0, "horizon": 10_000, "n": 512} | change
    kl_coef, kl = settings.pop("kl_coef"), settings.pop("kl")
    with pytest.raises(ValueError, match=message):
        adaptive_kl_coef(kl_coef, kl, **settings)
