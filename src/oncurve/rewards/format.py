r"""Format rewards: did the completion think first and then answer, once each? Counting of tags, linear time.

Tags are exact (``<think>``, lower case, no attributes). Space around tags and blocks is free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oncurve.rewards.extract import boxes, completion_text

Conversation = Sequence[Mapping[str, Any]]


def format_reward(
    completions: Sequence[str | Conversation],
    prompts: Sequence[str | Conversation] | None = None,
    prompt_texts: Sequence[str] | None = None,
    **kwargs: Any,
) -> list[float]:
    r"""The ``format`` reward: 1.0 for ``<think>...</think>`` and then an answer that can be checked, else 0.0.

    * The completion begins with one think block that is not empty. Both tags stand in it once. Where the prompt ends
      with ``<think>`` already, as some chat templates make it, the block has begun and the completion must not open
      another; without any prompt to look at, the opening tag is optional.
    * What follows the block is either exactly one ``<answer>...</answer>`` block with nothing after or before it, or
      text with exactly one ``\boxed{...}``. The answer or box is not empty. ``<answer>`` tags anywhere else, and a box
      that is never closed, spoil it; boxes within the thoughts do not matter.

    Args:
        completions: texts, or lists of messages (the last assistant message counts).
        prompts: as the data set gave them.
        prompt_texts: as the model read them, after the chat template; needed only to see what a template put last.
    """
    return _score(completions, prompts, prompt_texts, _is_checkable)


def think_format_reward(
    completions: Sequence[str | Conversation],
    prompts: Sequence[str | Conversation] | None = None,
    prompt_texts: Sequence[str] | None = None,
    **kwargs: Any,
) -> list[float]:
    """The ``think_format`` reward: as ``format_reward``, but any text that is not empty is an answer."""
    return _score(completions, prompts, prompt_texts, _is_not_empty)


def graded_format_reward(
    completions: Sequence[str | Conversation],
    prompts: Sequence[str | Conversation] | None = None,
    prompt_texts: Sequence[str] | None = None,
    **kwargs: Any,
) -> list[float]:
    r"""The ``graded_format`` reward: 1.0 exactly where ``format`` gives 1.0, and elsewhere a quarter for each of these,
    at most 0.75:

    * one ``<think>``, opened by the prompt or the completion, and one ``</think>`` after it;
    * thoughts between them that are not empty;
    * one ``<answer>`` and one ``</answer>`` after it with something between, or, without such tags, one balanced
      ``\boxed{...}`` that is not empty, anywhere after the last ``</think>``;
    * nothing but space before the think block, and none after the answer block (anything may stand around a box).

    A completion without any of the tags and without a box gets 0.0.
    """
    strict = format_reward(completions, prompts, prompt_texts)
    begun = _begun(completions, prompts, prompt_texts)
    return [
        1.0 if whole else min(0.75, _quarters(completion_text(completion), opened) / 4)
        for completion, whole, opened in zip(completions, strict, begun, strict=True)
    ]


def _quarters(text: str, begun: bool) -> int:
    if begun:
        text = "<think>" + text
    before, opened, rest = text.partition("<think>")
    thoughts, closed, _ = rest.partition("</think>")
    one_block = bool(opened and closed) and text.count("<think>") == 1 and text.count("</think>") == 1
    tail = text.rpartition("</think>")[2]
    _, opening, inside = tail.partition("<answer>")
    answer, closing, end = inside.partition("</answer>")
    tagged = tail.count("<answer>") == 1 and tail.count("</answer>") == 1 and bool(opening and closing)
    if "<answer>" in tail or "</answer>" in tail:
        answered = tagged and bool(answer.strip())
    else:
        closed_boxes = [tail[start:stop] for start, stop in boxes(tail) if stop is not None]
        answered, end = len(closed_boxes) == 1 and bool(closed_boxes[0].strip()), ""
    tidy = (bool(opened) or answered) and not (before if opened else "").strip() and not end.strip()
    return one_block + bool(opened and closed and thoughts.strip()) + answered + tidy


def _score(
    completions: Sequence[str | Conversation],
    prompts: Sequence[str | Conversation] | None,
    prompt_texts: Sequence[str] | None,
    is_answer: Callable[[str, str], bool],
) -> list[float]:
    scores: list[float] = []
    for completion, begun in zip(completions, _begun(completions, prompts, prompt_texts), strict=True):
        text = completion_text(completion)
        answer = _after_one_think_block("<think>" + text if begun else text)
        scores.append(float(answer is not None and is_answer(text, answer)))
    return scores


def _begun(
    completions: Sequence[str | Conversation],
    prompts: Sequence[str | Conversation] | None,
    prompt_texts: Sequence[str] | None,
) -> list[bool]:
    """For each completion whether its think block began in the prompt. Without any prompt to look at: whether it must
    have, since the completion does not open one but closes it."""
    known = [given for given in (prompts, prompt_texts) if given is not None]
    if known:
        return [any(_ends_with_think(given[row]) for given in known) for row in range(len(completions))]
    texts = map(completion_text, completions)
    return ["<think>" not in text and "</think>" in text for text in texts]


def _ends_with_think(prompt: str | Conversation) -> bool:
    # Of a conversation only an assistant message at the end is continued by the completion.
    text = prompt if isinstance(prompt, str) else completion_text(prompt[-1:])
    return text.rstrip().endswith("<think>")


def _after_one_think_block(text: str) -> str | None:
    """What follows the one think block that ``text`` begins with; None if there is no such block or it is empty."""
    text = text.strip()
    if not text.startswith("<think>") or text.count("<think>") != 1 or text.count("</think>") != 1:
        return None
    thoughts, _, answer = text.removeprefix("<think>").partition("</think>")
    return answer.strip() if thoughts.strip() else None


def _is_checkable(text: str, answer: str) -> bool:
    if "<answer>" in text or "</answer>" in text:
        if text.count("<answer>") != 1 or text.count("</answer>") != 1:
            return False
        inside = answer.removeprefix("<answer>").removesuffix("</answer>")
        return len(answer) - len(inside) == len("<answer></answer>") and bool(inside.strip())
    match boxes(answer):
        case [(start, int(end))]:
            return bool(answer[start:end].strip())
        case _:
            return False


def _is_not_empty(text: str, answer: str) -> bool:
    return bool(answer)
