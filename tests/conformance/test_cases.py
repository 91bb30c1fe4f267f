"""Every literal number of ``cases.json`` comes out of ``oncurve.functional``.

The numbers were computed independently, in float64. ``ONCURVE_CASES`` names another file of the same form.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

# Importing them registers their runners.
from conformance import advantage_cases, kl_cases, loss_cases, number_cases, value_cases  # noqa: F401
from conformance.cases import Anything, Case, NotCovered, cases, differing, problems, runner_of
from oncurve.functional import aggregate, clipped_surrogate, denominator, k3, token_ratio


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.id)
def test_case(case: Case) -> None:
    if not case.numbers:
        assert case.id in WITHOUT_NUMBERS, f"case {case} names no value and has no test of its own"
        WITHOUT_NUMBERS[case.id]()
        return
    found = problems(case)
    assert not found, f"case {case}: " + "; ".join(found)


def junk_in_padding() -> None:
    """Whatever stands in padding, neither value nor gradient feels it (nan * 0 is nan)."""
    torch.manual_seed(0)
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    old, reference = torch.randn(2, 4, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    results = []
    for junk in (0.0, 1e308, -1e308, math.inf, -math.inf, math.nan):
        logprobs = torch.where(mask, old + 0.1, junk).requires_grad_()
        stale = torch.where(mask, old, -junk)
        ratio = token_ratio(logprobs, stale)
        advantages = torch.where(mask, torch.tensor([[1.5], [-0.5]], dtype=torch.float64), junk)
        loss = clipped_surrogate(ratio, advantages, clip_low=0.2, clip_high=0.2)
        per_token = loss + 0.04 * k3(logprobs, torch.where(mask, reference, junk))
        for mode in ("sequence_mean", "token_mean"):
            scalar = aggregate(per_token, mask, mode, denominator(mask, mode))
            (slope,) = torch.autograd.grad(scalar, logprobs, retain_graph=True)
            results.append((mode, scalar.detach(), slope))
    for mode, scalar, slope in results[2:]:
        _, first, first_slope = next(each for each in results if each[0] == mode)
        assert torch.equal(scalar, first)
        assert torch.equal(slope, first_slope)
        assert not slope[~mask].any()


WITHOUT_NUMBERS = {"G07": junk_in_padding}


# -- the net has no holes ----------------------------------------------------------------------------------------------


def test_a_case_of_an_unknown_kind_fails_by_name() -> None:
    with pytest.raises(NotCovered, match=r"Z99 \(another law\) has no runner: .* lambda"):
        problems(Case("Z99", {"title": "another law", "lambda": 1.0}))


def test_a_number_that_nothing_computes_fails_by_name() -> None:
    with pytest.raises(NotCovered, match=r"A98 \(one more\): nothing computes median"):
        problems(Case("A98", {"title": "one more", "rewards": [1.0, 0.0], "rloo": [1.0, -1.0], "median": 0.5}))


def test_another_case_of_a_known_kind_needs_no_code() -> None:
    title = "GAE r=[1,1], V=[0,0]"
    assert not problems(Case("P77", {"title": title, "g1_l1": [2.0, 1.0], "g05_l1": [1.5, 1.0]}))
    assert problems(Case("P77", {"title": title, "g1_l1": [2.0, 1.0], "g05_l1": [1.0, 1.0]}))


def test_an_input_that_the_title_lacks_fails_by_name() -> None:
    with pytest.raises(NotCovered, match=r"P76 \(GAE\): the title gives no list"):
        problems(Case("P76", {"title": "GAE", "g1_l1": [2.0, 1.0]}))


def changed(value: Any) -> Iterator[Any]:
    """``value`` with one number in it wrong, for every number in it."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield value + 1e-3 * max(1.0, abs(value))
    else:
        for key in range(len(value)) if isinstance(value, list) else value:
            for other in changed(value[key]):
                wrong = copy.deepcopy(value)
                wrong[key] = other
                yield wrong


@pytest.mark.parametrize("case", [case for case in cases() if case.numbers], ids=lambda case: case.id)
def test_a_wrong_number_is_noticed(case: Case) -> None:
    """Every number that counts as computed would fail if it were off by a thousandth."""
    found = runner_of(case)
    computed = found.compute(case)
    given = found.inputs | {name for name, value in computed.items() if isinstance(value, Anything)}
    for name in (case.numbers.keys() & computed.keys()) - given:
        for wrong in changed(case[name]):
            assert list(differing(name, wrong, computed[name])), f"{name} may as well be {wrong}"
