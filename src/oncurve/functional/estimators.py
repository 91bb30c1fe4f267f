"""What a finite number of samples says about a model, and how surely. Plain numbers in and out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from fractions import Fraction


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of k completions is right, from n of which c are.

        pass@k = 1 - C(n - c, k) / C(n, k)

    Unbiased, unlike 1 - (1 - c/n)^k, and of lower variance than drawing k once.

    Args:
        n: completions sampled for one prompt, at least k.
        c: the right ones, between 0 and n.
        k: at least 1.

    Returns:
        A fraction, for one prompt; average over prompts.

    Source: Chen et al., Codex (arXiv 2107.03374) eq. 1; computed with exact integers in place of their product.

    >>> pass_at_k(n=8, c=2, k=4)
    0.7857142857142857
    """
    if not 1 <= k <= n:
        raise ValueError(f"k must be between 1 and the n = {n} samples, got {k}")
    if not 0 <= c <= n:
        raise ValueError(f"c must be between 0 and the n = {n} samples, got {c}")
    return (math.comb(n, k) - math.comb(n - c, k)) / math.comb(n, k)


def majority_at_k(answers: Sequence[Hashable | None], correct: Sequence[bool], k: int) -> float:
    """The chance that a vote among k completions elects a right answer, from n of them.

        maj@k = mean over the C(n, k) subsets of [right answers among the m with most votes] / m

    The mean is exact over all subsets, by counting and not by drawing, and so unbiased. An answer wins with v votes if
    no other has more; a tie of m answers is broken by lot, so each counts 1/m.

    Args:
        answers: the final answer of each of n completions of one prompt, in the form in which equal answers are equal
            (parsed and normalised). None = no answer found: it takes a place among the k and gives no vote.
        correct: whether each answer is right. Two forms of the right answer ("1/2", "0.5") are two candidates.
        k: between 1 and n. With k = n this is the one vote among all of them.

    Returns:
        A fraction, for one prompt; average over prompts. A subset without any answer counts as wrong. At k = 1 it is
        the mean of ``correct``; unlike pass@k it can fall as k grows, where a wrong answer is the most frequent.

    Raises:
        ValueError: a wrong k or length, one answer that is both right and wrong, a missing answer that is right.

    Source: self-consistency (arXiv 2203.11171) section 2; Maj@K of DeepSeekMath (arXiv 2402.03300) figure 7. Deviation:
    neither says how ties are broken or what a missing answer does.

    >>> majority_at_k(["7", "7", "9", None], [True, True, False, False], k=3)
    0.75
    """
    n = len(answers)
    if len(correct) != n:
        raise ValueError(f"correct must have one entry for each of the {n} answers, got {len(correct)}")
    if not 1 <= k <= n:
        raise ValueError(f"k must be between 1 and the n = {n} answers, got {k}")
    right: dict[Hashable, bool] = {}
    for index, (answer, is_right) in enumerate(zip(answers, correct, strict=True)):
        if answer is None and is_right:
            raise ValueError(f"correct[{index}] is True, but answers[{index}] is None: there is no answer to be right")
        if answer is not None and right.setdefault(answer, bool(is_right)) != is_right:
            raise ValueError(f"the answer {answer!r} is marked right in one completion and wrong in another")
    votes = Counter(answer for answer in answers if answer is not None)
    silent = n - votes.total()
    won = Fraction(0)
    for answer, is_right in right.items():
        if is_right:
            rivals = [count for other, count in votes.items() if other != answer]
            won += _subsets_won(votes[answer], rivals, silent, k)
    return float(won / math.comb(n, k))


def wilson(successes: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Interval for a proportion, from independent trials.

        (p + z^2/2n +- z sqrt(p(1 - p)/n + z^2/4n^2)) / (1 + z^2/n),   p = successes / n

    It stays inside [0, 1] and has a width even at 0 or n successes, where the normal interval has none.

    Args:
        successes: between 0 and n.
        n: trials. With 0 nothing is known: (0.0, 1.0).
        z: normal quantile; 1.96 for 95 %.

    Returns:
        ``(low, high)``, fractions.

    Source: E. B. Wilson, JASA 22 (1927) 209-212. For one greedy completion per prompt; several samples of one prompt
    are not independent, use :func:`clustered_interval`.

    >>> tuple(round(bound, 4) for bound in wilson(successes=27, n=30))
    (0.7438, 0.9654)
    """
    if n < 0 or not 0 <= successes <= n:
        raise ValueError(f"successes must be between 0 and n, got {successes} of {n}")
    _check_z(z)
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    centre = p + z**2 / (2 * n)
    half_width = z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    scale = 1 + z**2 / n
    # At 0 or n successes the bound is 0 or 1 by algebra, but not after rounding.
    low = 0.0 if successes == 0 else (centre - half_width) / scale
    high = 1.0 if successes == n else (centre + half_width) / scale
    return low, high


def accuracy(successes: int, n: int, z: float = 1.96) -> tuple[float, float, float]:
    """A share of right answers and how far to trust it.

        successes / n, between the bounds of :func:`wilson`

    Args:
        successes: right ones, between 0 and n.
        n: prompts, with one completion each. With 0 the share is nan and the interval (0, 1).
        z: normal quantile; 1.96 for 95 %.

    Returns:
        ``(share, low, high)``, fractions. 9 of 30 may be anything from 17 % to 48 %.

    Source: Wilson, as in :func:`wilson`.

    >>> tuple(round(number, 4) for number in accuracy(successes=9, n=30))
    (0.3, 0.1666, 0.4788)
    """
    low, high = wilson(successes, n, z)
    return successes / n if n else math.nan, low, high


def clustered_interval(per_prompt_means: Sequence[float], z: float = 1.96) -> tuple[float, float, float]:
    """Mean and interval of a score of which each prompt has several samples.

        mean +- z * s / sqrt(P),   s^2 = sum_p (m_p - mean)^2 / (P - 1)

    Completions of one prompt resemble one another; only prompts are independent, and there are P of them, not P*G.

    Args:
        per_prompt_means: the mean score of each prompt; all prompts weigh the same. No nan: leave unscored prompts out.
        z: normal quantile; 1.96 for 95 %.

    Returns:
        ``(mean, low, high)`` in units of the score. Not cut to [0, 1], for a score need not be a proportion. With one
        prompt ``low`` and ``high`` are nan: it says nothing about spread. Equal means give an interval without width.

    Source: cluster-robust standard error, E. Miller, "Adding error bars to evals" (arXiv 2411.00640) section 2.2, for
    clusters of equal size. Deviation: P - 1 in place of P.

    >>> tuple(round(number, 4) for number in clustered_interval([0.0, 0.5, 0.5, 1.0]))
    (0.5, 0.0999, 0.9001)
    """
    prompts = len(per_prompt_means)
    if prompts == 0:
        raise ValueError("per_prompt_means is empty: there is no prompt to average over")
    _check_z(z)
    if not all(math.isfinite(mean) for mean in per_prompt_means):
        raise ValueError("per_prompt_means holds a number that is not finite: leave unscored prompts out")
    mean = math.fsum(per_prompt_means) / prompts
    if prompts == 1:
        return mean, math.nan, math.nan
    variance = math.fsum((value - mean) ** 2 for value in per_prompt_means) / (prompts - 1)
    half_width = z * math.sqrt(variance / prompts)
    return mean, mean - half_width, mean + half_width


def _check_z(z: float) -> None:
    if not (z >= 0 and math.isfinite(z)):
        raise ValueError(f"z must be a finite number of at least 0, got {z}; 1.96 is for 95%")


def _subsets_won(own: int, rivals: Iterable[int], silent: int, k: int) -> Fraction:
    """Subsets of k completions whose vote elects an answer that ``own`` of them give; a tie of m counts 1/m.

    ``rivals`` are the numbers of completions that give each other answer, ``silent`` give none.
    """
    rivals = list(rivals)
    total = Fraction(0)
    for mine in range(1, min(own, k) + 1):
        # An answer that fewer completions give can neither win nor tie: it is as good as silent.
        harmless = silent + sum(count for count in rivals if count < mine)
        # (rivals that tie, completions taken) -> ways to take them from the rivals seen so far.
        ways = {(0, 0): 1}
        for count in (count for count in rivals if count >= mine):
            grown: Counter[tuple[int, int]] = Counter()
            for (tied, taken), number in ways.items():
                for votes in range(min(mine, k - mine - taken) + 1):
                    grown[tied + (votes == mine), taken + votes] += number * math.comb(count, votes)
            ways = grown
        for (tied, taken), number in ways.items():
            rest = math.comb(harmless, k - mine - taken)
            total += Fraction(math.comb(own, mine) * number * rest, 1 + tied)
    return total
