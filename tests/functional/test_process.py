import itertools
import math

import pytest
import torch

from oncurve.functional.advantages import group_normalised
from oncurve.functional.process import capped_tokens, dropped_steps, process_advantages

NAN = math.nan
# Two completions, of four tokens in two steps and of five tokens in three.
REWARDS = torch.tensor([[[0.2, 0.8, NAN], [0.6, 0.1, 0.5]]], dtype=torch.float64)
ENDS = torch.tensor([[[1, 3, -9], [0, 2, 4]]])
LENGTHS = torch.tensor([[4, 5]])


def close(actual: torch.Tensor, expected: list, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=tolerance)


def by_the_book(rewards: list, ends: list, width: int, ddof: int, eps: float, max_steps: int | None) -> list:
    """One group, from the formula, with loops. Steps are listed in the order in which they end."""
    kept = [
        [(e, r) for e, r in zip(ends_, rewards_, strict=True) if not math.isnan(r)][:max_steps]
        for ends_, rewards_ in zip(ends, rewards, strict=True)
    ]
    pool = [r for steps in kept for _, r in steps]
    if len(pool) < 2 or max(pool) == min(pool):
        return [[0.0] * width for _ in kept]
    mean = math.fsum(pool) / len(pool)
    std = math.sqrt(math.fsum((r - mean) ** 2 for r in pool) / (len(pool) - ddof))
    return [[math.fsum((r - mean) / (std + eps) for e, r in steps if e >= t) for t in range(width)] for steps in kept]


def test_the_group_of_two_and_three_steps() -> None:
    close(
        process_advantages(REWARDS, ENDS, LENGTHS, width=6, ddof=0, eps=0.0),
        [
            [
                [0.4656903154237996, 0.4656903154237996, 1.397070946271399, 1.397070946271399, 0.0, 0.0],
                [
                    -0.46569031542380057,
                    -1.0866107359888666,
                    -1.0866107359888666,
                    0.23284515771189962,
                    0.23284515771189962,
                    0.0,
                ],
            ]
        ],
    )
    close(
        process_advantages(REWARDS, ENDS, LENGTHS, width=5, eps=0.0),
        [
            [
                [0.4165260807003738, 0.4165260807003738, 1.249578242101122, 1.249578242101122, 0.0],
                [
                    -0.4165260807003748,
                    -0.9718941883008732,
                    -0.9718941883008732,
                    0.2082630403501868,
                    0.2082630403501868,
                ],
            ]
        ],
    )


def test_one_step_at_the_last_token_is_outcome_supervision() -> None:
    rewards = torch.tensor([[1.0, 0.9, 0.0, 1.0], [0.1, NAN, 0.1, 0.1], [0.3, NAN, 0.2, NAN]], dtype=torch.float64)
    lengths = torch.tensor([[3, 1, 2, 3], [3, 3, 3, 3], [2, 0, 1, 3]])
    for ddof, eps in itertools.product((0, 1), (0.0, 1e-4)):
        tokens = process_advantages(
            rewards.unsqueeze(2), (lengths - 1).unsqueeze(2), lengths, width=3, ddof=ddof, eps=eps
        )
        outcome = group_normalised(rewards, ddof=ddof, eps=eps).unsqueeze(2)
        inside = torch.arange(3) < lengths.unsqueeze(2)
        assert torch.equal(tokens, torch.where(inside, outcome, 0.0))


def test_the_debate_example() -> None:
    rewards = torch.tensor([[[1.0], [0.9], [0.0], [1.0]]], dtype=torch.float64)
    tokens = process_advantages(rewards, torch.full((1, 4, 1), 2), torch.full((1, 4), 3), width=3, ddof=0, eps=0.0)
    close(
        tokens,
        [
            [
                [0.6538821281055405] * 3,
                [0.4161068087944349] * 3,
                [-1.7238710650055156] * 3,
                [0.6538821281055405] * 3,
            ]
        ],
    )


def test_the_defaults_are_those_of_the_group_normalised() -> None:
    # mean 0.44, std 0.28809720581775866 with ddof 1.
    last = (0.5 - 0.44) / (0.28809720581775866 + 1e-4)
    assert process_advantages(REWARDS, ENDS, LENGTHS, width=5)[0, 1, 4].item() == pytest.approx(last, abs=1e-14)


def test_against_the_formula_in_loops() -> None:
    generator = torch.Generator().manual_seed(11)
    for width, steps, max_steps in itertools.product((1, 4, 9), (1, 3, 6), (None, 1, 2)):
        lengths = torch.randint(0, width + 1, (2, 3), generator=generator)
        ends = torch.randint(0, 10**6, (2, 3, steps), generator=generator) % lengths.clamp(min=1).unsqueeze(2)
        ends = ends.sort(dim=2).values
        rewards = torch.randint(0, 4, (2, 3, steps), generator=generator).double() / 3
        unscored = torch.rand(2, 3, steps, generator=generator) < 0.3
        rewards[unscored | (lengths == 0).unsqueeze(2)] = NAN
        actual = process_advantages(rewards, ends, lengths, width=width, max_steps=max_steps)
        expected = [
            by_the_book(r, e, width, 1, 1e-4, max_steps) for r, e in zip(rewards.tolist(), ends.tolist(), strict=True)
        ]
        close(actual, expected)
        assert (actual[torch.arange(width).expand(2, 3, -1) >= lengths.unsqueeze(2)] == 0).all()


def test_groups_do_not_touch_one_another() -> None:
    rewards = torch.cat([REWARDS, REWARDS * 100 + 7, torch.full_like(REWARDS, NAN)])
    tokens = process_advantages(rewards, ENDS.expand(3, -1, -1), LENGTHS.expand(3, -1), width=5, eps=0.0)
    torch.testing.assert_close(tokens[1], tokens[0], rtol=0, atol=1e-12)
    assert tokens[2].tolist() == [[0.0] * 5] * 2


def test_the_order_in_which_steps_are_listed_does_not_matter() -> None:
    order = [2, 0, 1]
    for max_steps in (None, 1, 2):
        expected = process_advantages(REWARDS, ENDS, LENGTHS, width=5, max_steps=max_steps)
        shuffled = process_advantages(REWARDS[..., order], ENDS[..., order], LENGTHS, width=5, max_steps=max_steps)
        torch.testing.assert_close(shuffled, expected, rtol=0, atol=1e-14)


def test_several_steps_may_end_at_one_token() -> None:
    rewards = torch.tensor([[[1.0, 1.0], [0.0, 0.0]]], dtype=torch.float64)
    tokens = process_advantages(
        rewards, torch.tensor([[[1, 1], [0, 1]]]), torch.tensor([[2, 2]]), width=2, ddof=0, eps=0.0
    )
    assert tokens.tolist() == [[[2.0, 2.0], [-2.0, -1.0]]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [0.0, 1e-9, 1e-4])
def test_steps_without_a_difference_give_exact_zeros(dtype: torch.dtype, eps: float) -> None:
    equal = torch.full((1, 3, 4), 2.3, dtype=dtype)
    one = torch.full((1, 3, 4), NAN, dtype=dtype)
    one[0, 1, 2] = 0.7
    ends = torch.tensor([0, 1, 3, 5]).expand(1, 3, 4)
    for rewards in (equal, one, torch.full((1, 3, 4), NAN, dtype=dtype)):
        tokens = process_advantages(rewards, ends, torch.full((1, 3), 6), width=6, eps=eps)
        assert tokens.dtype == dtype
        assert tokens.tolist() == [[[0.0] * 6] * 3]


def test_one_completion_is_held_against_its_own_steps() -> None:
    tokens = process_advantages(
        torch.tensor([[[1.0, 0.0]]], dtype=torch.float64),
        torch.tensor([[[0, 1]]]),
        torch.tensor([[3]]),
        width=3,
        ddof=0,
        eps=0.0,
    )
    assert tokens.tolist() == [[[0.0, -1.0, 0.0]]]


def test_the_sums_grow_with_the_number_of_steps() -> None:
    rewards = torch.full((1, 2, 10), NAN, dtype=torch.float64)
    rewards[0, 0] = 1.0
    rewards[0, 1, 0] = 0.0
    ends = torch.arange(10).expand(1, 2, 10)
    tokens = process_advantages(rewards, ends, torch.tensor([[10, 10]]), width=10, ddof=0, eps=0.0)
    # Ten of 1 and one of 0: z-scores 0.316... and -3.16...
    assert tokens[0, 0, 0].item() == pytest.approx(math.sqrt(10), abs=1e-12)
    assert tokens[0, 1, 0].item() == pytest.approx(-math.sqrt(10), abs=1e-12)


# -- the two bounds ----------------------------------------------------------------------------------------------------


def test_max_steps_drops_steps_before_the_statistics() -> None:
    # Left are 0.2, 0.8, 0.6, 0.1.
    close(
        process_advantages(REWARDS, ENDS, LENGTHS, width=5, max_steps=2),
        [
            [
                [0.4538525820689163, 0.4538525820689163, 1.1346314551722905, 1.1346314551722905, 0.0],
                [-0.453852582068916, -0.9833472611493181, -0.9833472611493181, 0.0, 0.0],
            ]
        ],
    )
    assert dropped_steps(REWARDS, max_steps=2).tolist() == [[0, 1]]
    assert dropped_steps(REWARDS, max_steps=1).tolist() == [[1, 2]]
    assert dropped_steps(REWARDS, max_steps=None).tolist() == [[0, 0]]
    unbounded = process_advantages(REWARDS, ENDS, LENGTHS, width=5)
    assert torch.equal(process_advantages(REWARDS, ENDS, LENGTHS, width=5, max_steps=3), unbounded)


def test_an_unscored_step_does_not_use_up_max_steps() -> None:
    rewards = torch.tensor([[[NAN, 1.0, 0.0], [0.0, NAN, NAN]]], dtype=torch.float64)
    ends = torch.tensor([[[0, 1, 2], [1, 1, 1]]])
    tokens = process_advantages(rewards, ends, torch.tensor([[3, 3]]), width=3, ddof=0, eps=0.0, max_steps=1)
    assert tokens.tolist() == [[[1.0, 1.0, 0.0], [-1.0, -1.0, 0.0]]]
    assert dropped_steps(rewards, max_steps=1).tolist() == [[1, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_cap_bounds_both_signs_and_is_counted_before_and_after(dtype: torch.dtype) -> None:
    rewards = REWARDS.to(dtype)
    free = process_advantages(rewards, ENDS, LENGTHS, width=5)
    for cap, counts in ((0.7, [[2, 2]]), (1.2, [[2, 0]]), (100.0, [[0, 0]])):
        capped = process_advantages(rewards, ENDS, LENGTHS, width=5, cap=cap)
        assert torch.equal(capped, free.clamp(-cap, cap))
        assert capped_tokens(capped, cap=cap).tolist() == counts
        assert capped_tokens(free, cap=cap).tolist() == counts
    assert capped_tokens(free, cap=None).tolist() == [[0, 0]]


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [-1, 4, 10**9])
def test_an_end_outside_its_completion_is_named(end: int) -> None:
    ends = ENDS.clone()
    ends[0, 0, 1] = end
    message = rf"prompt 0, sample 0, step 1 ends at token {end}, outside its completion of 4 tokens"
    with pytest.raises(ValueError, match=message):
        process_advantages(REWARDS, ends, LENGTHS, width=5)
    # Also of a step that max_steps would drop.
    with pytest.raises(ValueError, match=message):
        process_advantages(REWARDS, ends, LENGTHS, width=5, max_steps=1)


def test_a_step_in_an_empty_completion_is_named() -> None:
    with pytest.raises(ValueError, match="prompt 0, sample 1, step 0 ends at token 0, outside its completion of 0 tok"):
        process_advantages(REWARDS, ENDS, torch.tensor([[4, 0]]), width=5)


def test_no_steps_and_no_tokens() -> None:
    no_steps = process_advantages(
        torch.zeros(2, 3, 0), torch.zeros(2, 3, 0, dtype=torch.int64), torch.full((2, 3), 2), width=2
    )
    assert no_steps.tolist() == [[[0.0] * 2] * 3] * 2
    nothing = process_advantages(
        torch.full((2, 3, 1), NAN), torch.zeros(2, 3, 1, dtype=torch.int64), torch.zeros(2, 3).long(), width=0
    )
    assert nothing.shape == (2, 3, 0)


def test_no_gradient_passes_and_the_input_is_left_alone() -> None:
    rewards = REWARDS.clone().requires_grad_()
    ends = ENDS.clone()
    assert not process_advantages(rewards, ends, LENGTHS, width=5, max_steps=1, cap=0.1).requires_grad
    torch.testing.assert_close(rewards.detach(), REWARDS, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(ends, ENDS)


def test_bad_input_is_named() -> None:
    def run(rewards=REWARDS, ends=ENDS, lengths=LENGTHS, width=5, **constants) -> None:
        process_advantages(rewards, ends, lengths, width=width, **constants)

    with pytest.raises(ValueError, match=r"step_rewards\[0, 1, 0\] is inf; use nan for unscored"):
        run(rewards=REWARDS.where(REWARDS != 0.6, math.inf))
    with pytest.raises(ValueError, match=r"step_rewards must have shape \[P, G, S\], got \[1, 2\]"):
        run(rewards=REWARDS[..., 0])
    with pytest.raises(ValueError, match=r"step_rewards must have shape \[P, G, S\] with at least one completion"):
        run(rewards=REWARDS[:, :0], ends=ENDS[:, :0], lengths=LENGTHS[:, :0])
    with pytest.raises(TypeError, match=r"step_rewards must be float32 or float64, got torch\.bfloat16"):
        run(rewards=REWARDS.bfloat16())
    with pytest.raises(ValueError, match=r"step_ends \[1, 2, 2\] and step_rewards \[1, 2, 3\] must have the same sh"):
        run(ends=ENDS[..., :2])
    with pytest.raises(TypeError, match=r"step_ends must be int64, got torch\.int32"):
        run(ends=ENDS.int())
    with pytest.raises(TypeError, match=r"lengths must be int64, got torch\.float32"):
        run(lengths=LENGTHS.float())
    with pytest.raises(ValueError, match=r"lengths must have shape \[P, G\].*got \[2\]"):
        run(lengths=LENGTHS[0])
    with pytest.raises(ValueError, match=r"lengths\[0, 1\] is 5; it must be between 0 and the width 4"):
        run(width=4)
    with pytest.raises(ValueError, match=r"lengths\[0, 0\] is -1; it must be between 0 and the width 5"):
        run(lengths=torch.tensor([[-1, 5]]))
    with pytest.raises(ValueError, match="ddof must be 0 or 1, got 3"):
        run(ddof=3)
    with pytest.raises(ValueError, match="eps must be a finite number of at least 0, got -1"):
        run(eps=-1)
    for wrong in (0.0, -1.0, NAN, math.inf):
        with pytest.raises(ValueError, match="cap must be a finite number above 0"):
            run(cap=wrong)
        with pytest.raises(ValueError, match="cap must be a finite number above 0"):
            capped_tokens(torch.zeros(1, 2, 3), cap=wrong)
    for function in (lambda n: run(max_steps=n), lambda n: dropped_steps(REWARDS, max_steps=n)):
        with pytest.raises(ValueError, match="max_steps must be at least 1, got 0"):
            function(0)
    with pytest.raises(ValueError, match=r"advantages must have shape \[P, G, T\], got \[2, 3\]"):
        capped_tokens(torch.zeros(2, 3), cap=1.0)
    with pytest.raises(ValueError, match=r"step_rewards must have shape \[P, G, S\], got \[2, 3\]"):
        dropped_steps(torch.zeros(2, 3), max_steps=1)
