"""Labels of steps without a checker: what becomes of a completion that is begun again after each of its steps.

Math-Shepherd (arXiv 2312.08935), section 3.3.2: the policy completes every prefix N times. Hard: 1 if any of them comes
to the right answer (eq. 3). Soft: the share that does (eq. 4). The label of the last step is whether the completion
itself is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oncurve.data.token_ends import token_ends
from oncurve.rewards import NamedReward, score
from oncurve.rewards.splitting import Splitter
from oncurve.train.setup import Parts, decode
from oncurve.train.step import check_sampled
from oncurve.types import Completion, Group, Prompt, SamplingParams

_STEPS = 1 << 12  # more steps than a completion has, so that every prefix has draws of its own

Labels = list[list[list[tuple[int, float | None]]]]


@dataclass(frozen=True, slots=True)
class _Prefix:
    p: int
    g: int
    step: int
    ids: tuple[int, ...]
    """Of the completion, up to the end of the step."""
    room: int
    """Tokens that the completion may still have."""


def monte_carlo_labels(
    parts: Parts,
    groups: Sequence[Group],
    values: Sequence[Sequence[float | None]],
    measure: NamedReward,
    split: Splitter,
    *,
    completions: int,
    soft: bool,
    seed: int,
    advance: Callable[[int], None] = lambda _: None,
) -> Labels:
    """``[P][G]`` lists of ``(end in characters, label)``: see the module. ``values``: the measure of the completions
    themselves. ``advance`` is told how many prefixes are done.

    The tokens are those that were sampled: a prefix is cut from them and never tokenised again, and is read once for
    its ``completions``. A continuation has no more tokens than the completion could have had. None is the label of a
    step of which no continuation could be scored.
    """
    found: Labels = []
    prefixes: list[_Prefix] = []
    most = parts.recipe.sampling.max_new_tokens
    for p, (group, own) in enumerate(zip(groups, values, strict=True)):
        found.append([])
        for g, (completion, value) in enumerate(zip(group.completions, own, strict=True)):
            ends = split(completion.text) if completion.text.strip() else []
            tokens = token_ends(completion.token_ids, ends, lambda ids: decode(parts.tokenizer, ids))
            # The last step, and every one with no token left: its label is what came of it.
            found[p].append([(end, None if value is None else float(value == 1.0)) for end in ends])
            for step, end in enumerate(tokens[:-1]):
                if most > end:
                    prefixes.append(_Prefix(p, g, step, completion.token_ids[:end], most - end))
    for chunk in _chunks(prefixes, groups, parts.lm.context, max(1, parts.recipe.sampling.max_rows // completions)):
        asked = [_asked(groups[x.p].prompt, x) for x in chunk]
        params = SamplingParams(max(x.room for x in chunk), parts.recipe.sampling.temperature)
        sampled = parts.engine.sample(asked, completions, params, seed=seed, iteration=1)
        check_sampled(sampled)
        whole = [
            Group(groups[x.p].prompt, tuple(_joined(parts, x, completion) for completion in group.completions))
            for x, group in zip(chunk, sampled, strict=True)
        ]
        scores = score(whole, [measure], trainer_state={"iteration": 0}).parts[measure.name]
        for x, row in zip(chunk, scores, strict=True):
            right = [float(value == 1.0) for value in row if value is not None]
            label = None if not right else sum(right) / len(right) if soft else max(right)
            found[x.p][x.g][x.step] = (found[x.p][x.g][x.step][0], label)
        advance(len(chunk))
    return found


def _chunks(
    prefixes: Sequence[_Prefix], groups: Sequence[Group], context: int | None, most: int
) -> list[list[_Prefix]]:
    """Prefixes to complete side by side: those with like room, since all of a chunk are sampled as far as the one with
    the most; and never further than the context goes."""
    chunks: list[list[_Prefix]] = []
    for prefix in sorted(prefixes, key=lambda x: -x.room):  # stable
        last = chunks[-1] if chunks else []
        longest = max((len(groups[x.p].prompt.token_ids) + len(x.ids) for x in [*last, prefix]), default=0)
        room = max(x.room for x in [*last, prefix])
        if last and len(last) < most and (context is None or longest + room <= context):
            last.append(prefix)
        else:
            chunks.append([prefix])
    return chunks


def _asked(prompt: Prompt, prefix: _Prefix) -> Prompt:
    """What is sampled from. Its number keys the draws, and is no other's."""
    number = (prompt.id * _STEPS + prefix.g) * _STEPS + prefix.step
    return Prompt(number, prompt.raw, prompt.text, (*prompt.token_ids, *prefix.ids), prompt.columns)


def _joined(parts: Parts, prefix: _Prefix, continued: Completion) -> Completion:
    """The prefix and its continuation as one completion, cut where it would have been."""
    ids = (*prefix.ids, *continued.token_ids[: prefix.room])
    cut = continued.truncated or len(continued.token_ids) > prefix.room
    return Completion(ids, decode(parts.tokenizer, ids), (), cut)
