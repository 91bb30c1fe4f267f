"""Where in a completion's tokens a place in its text is."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence


def token_ends(token_ids: Sequence[int], ends: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[int]:
    """For each place in the decoded text, the number of tokens that it takes to write the text up to there.

    The text is never tokenised again, which could give other tokens than those that were sampled: the tokens are
    decoded up to one of them, and what comes out is measured. A place within a token belongs to the whole token.

    Args:
        token_ids: of one completion.
        ends: exclusive ends in characters of ``decode(token_ids)``, each at least 1, ascending.
        decode: token ids to text, as the completion's own text was made (without special tokens).

    Returns:
        As many numbers of tokens, each in ``[1, len(token_ids)]``, ascending.

    >>> token_ends([4, 5, 6], [1, 2, 6], lambda ids: "".join({4: "a", 5: "bcd", 6: "ef"}[i] for i in ids))
    [1, 2, 3]
    """
    found: list[int] = []
    for end in ends:
        # Bisection: a completion of T tokens with S steps is decoded S log T times, not T times. Decoding a few tokens
        # more never gives less text, but for a character whose bytes are not all there yet, and that is one token off.
        low = found[-1] if found else 1
        found.append(
            bisect_left(range(len(token_ids)), end, lo=low, key=lambda count: len(decode(token_ids[:count])))
            if token_ids
            else 0
        )
    return found
