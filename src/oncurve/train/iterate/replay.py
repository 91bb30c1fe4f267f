"""What the reward model is trained on after an outer iteration: the new rows, and some of earlier ones.

DeepSeekMath (arXiv 2402.03300, 4.1.4) goes on training the old reward model with 10% of historical data
replayed. That can be read as 10% of the rows of the training, or as 10% as many as there are new ones. Here it is the
first: of 1,000 rows 900 are new and 100 old. It is what a share of a mixture means elsewhere, it does not depend on how
long the history has become, and any share below 1 can be asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from oncurve.data.order import permutation
from oncurve.train.iterate.collect import LabelledRow


def replay_size(new: int, share: float) -> int:
    """How many old rows beside ``new`` ones make ``share`` of the whole, rounded half up.

    >>> replay_size(900, 0.1), replay_size(1024, 0.1), replay_size(100, 0.5), replay_size(100, 0.0)
    (100, 114, 100, 0)
    """
    exact = Fraction(str(share))
    return math.floor(new * exact / (1 - exact) + Fraction(1, 2))


def replayed(history: Mapping[int, Sequence[LabelledRow]], count: int, *, seed: int, number: int) -> list[LabelledRow]:
    """``count`` different rows of the ``history`` before outer iteration ``number``, all of it if it has no more.

    Every earlier iteration gives equally many (one that has too few gives all, and the others more); what cannot be
    shared equally the latest give. Which rows of an iteration is a function of the seed, ``number`` and the iteration.
    """
    taken = dict.fromkeys(history, 0)
    left = min(count, sum(map(len, history.values())))
    while left:
        open_ones = sorted((k for k in history if taken[k] < len(history[k])), reverse=True)  # latest first
        each, rest = divmod(left, len(open_ones))
        for place, k in enumerate(open_ones):
            more = min(each + (place < rest), len(history[k]) - taken[k])
            taken[k] += more
            left -= more
    return [
        history[k][index]
        for k in sorted(history)
        for index in permutation(len(history[k]), f"replay/{seed}/{number}/{k}")[: taken[k]]
    ]
