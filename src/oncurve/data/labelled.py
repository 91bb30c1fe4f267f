"""From rows to what a reward model learns from: pairs of completions, completions with a label, or with one a step.

A completion is its text and EOS, tokenised apart from its prompt, as for supervised fine-tuning. What nothing can be
learned from is dropped and counted; what is no such row at all is an error that names it.
"""

from __future__ import annotations

import math
import numbers
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oncurve.config import Data
from oncurve.data.order import permutation, question
from oncurve.data.prompts import Row, bad_row, encode_row, missing_column, parse_messages, prompt_of
from oncurve.data.token_ends import token_ends
from oncurve.types import OncurveError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Labelled:
    """Two completions of a prompt of which the first was chosen, or one completion with labels."""

    question: str
    """Rows with the same one are about the same prompt."""
    rows: tuple[tuple[int, ...], ...]
    """Token ids, prompt and completion together: chosen and rejected, or one."""
    ends: tuple[tuple[int, ...], ...]
    """For each row after how many of its tokens a score is read."""
    labels: tuple[float, ...]
    """One for each end, between 0 and 1; of a pair none."""
    margin: float
    lengths: tuple[int, ...]
    """Tokens of the completion up to each end."""


@dataclass(frozen=True)
class LabelledSet:
    rows: list[Labelled]
    dropped: Mapping[str, int]
    """Reason -> rows left out for it."""


def build_labelled(
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    kind: str,
    *,
    limit: int | None,
    margin: float = 0.0,
) -> LabelledSet:
    """What can be learned from ``rows``.

    ``pairwise``: columns prompt, ``chosen``, ``rejected``, and ``margin`` if there is one, else ``margin`` holds.
    ``pointwise``: prompt, completion, ``label``. ``process``: prompt, completion, ``steps``: ``[end, label]`` for each
    step, where ``end`` counts the characters of the completion up to the step's end and a label of null is no label.
    Labels lie between 0 and 1. Texts longer than ``limit`` tokens are cut at their end.

    Dropped are rows whose prompt leaves no room for a completion ("over-long"), whose completion is "empty", pairs that
    are "equal" or "equal after truncation", and completions with "no steps" that have a label (and are not cut off).

    Raises OncurveError, naming the row, for whatever is missing or of a wrong type; and if no row is left.
    """
    build = {"pairwise": _pair, "pointwise": _point, "process": _process}[kind]
    found: list[Labelled] = []
    dropped: Counter[str] = Counter()
    for index, row in enumerate(rows):
        raw = prompt_of(row, data, index)
        texts = _Texts(tokenizer, tuple(encode_row(tokenizer, raw, data, index)[1]), limit)
        outcome = build(row, data, index, texts, question(raw), margin)
        if isinstance(outcome, str):
            dropped[outcome] += 1
        else:
            found.append(outcome)
    if not found:
        raise OncurveError(f"no row is left of {len(rows)}: {left_out(dropped)}")
    return LabelledSet(found, dict(dropped))


def left_out(dropped: Mapping[str, int]) -> str:
    """``3 equal, 1 empty``."""
    return ", ".join(f"{number} {reason}" for reason, number in sorted(dropped.items()))


def check_labelled(rows: Sequence[Row], data: Data, kind: str) -> None:
    """Raises OncurveError for what ``build_labelled`` would refuse of these rows whatever the tokenizer."""
    for index, row in enumerate(rows):
        prompt_of(row, data, index)
        if kind == "pairwise":
            text_of(row, "chosen", index)
            text_of(row, "rejected", index)
            _number(row.get("margin") or 0.0, "margin", index, math.inf)
        elif kind == "pointwise":
            text_of(row, data.completion_column, index, "completion_column")
            _number(_present(row, "label", index), "label", index, 1.0)
        else:
            text = text_of(row, data.completion_column, index, "completion_column")
            _steps(_present(row, "steps", index), text, index)


def hold_out(rows: Sequence[Labelled], prompts: int, seed: int) -> tuple[list[Labelled], list[Labelled]]:
    """(to train on, held out): all rows of ``prompts`` of the prompts are held out, so that no prompt is in both.

    Raises OncurveError if nothing would be left to train on.
    """
    questions = list(dict.fromkeys(row.question for row in rows))
    if prompts >= len(questions):
        raise OncurveError(
            f"reward_model.held_out is {prompts}, but the rows are about only {len(questions)} different prompts; "
            "lower it, or give more"
        )
    chosen = permutation(len(questions), f"reward_model/held out/{seed}")[:prompts]
    held_out = {questions[index] for index in chosen}
    return [row for row in rows if row.question not in held_out], [row for row in rows if row.question in held_out]


def encode_answer(
    tokenizer: PreTrainedTokenizerBase, text: str, ends: Sequence[int] = ()
) -> tuple[list[int], list[int]]:
    """The token ids of a completion, EOS last, and for each end in characters the number of tokens up to it. Unlike a
    demonstration's, the text may hold what looks like EOS: a policy may have written it."""
    if getattr(tokenizer, "is_fast", False):
        encoded = tokenizer(text, add_special_tokens=False, verbose=False, return_offsets_mapping=True)
        ids = [int(i) for i in encoded["input_ids"]]  # type: ignore[union-attr]
        starts = [int(start) for start, _ in encoded["offset_mapping"]]  # type: ignore[misc]
        tokens = [max(1, sum(start < end for start in starts)) for end in ends]
    else:
        ids = [int(i) for i in tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]]  # type: ignore[union-attr]
        tokens = token_ends(ids, ends, lambda some: str(tokenizer.decode(list(some), skip_special_tokens=True)))
    return [*ids, int(tokenizer.eos_token_id)], tokens  # type: ignore[arg-type]


def text_of(row: Row, column: str, index: int, option: str | None = None) -> str:
    """A completion: text, or a list with the assistant's one message."""
    value = _present(row, column, index, option)
    if isinstance(value, str):
        return value
    messages = parse_messages(value, index, column)
    if len(messages) != 1 or messages[0]["role"] != "assistant":
        raise bad_row(index, f"{column} must be text, or a list with one message of the assistant")
    return messages[0]["content"]


@dataclass(frozen=True)
class _Texts:
    """The prompt of a row, to which completions are put."""

    tokenizer: PreTrainedTokenizerBase
    prompt: tuple[int, ...]
    limit: int | None

    @property
    def no_room(self) -> bool:
        return self.limit is not None and len(self.prompt) >= self.limit

    def whole(self, text: str, ends: Sequence[int] = ()) -> tuple[tuple[int, ...], list[int]]:
        """Prompt and completion, cut to the limit, and the ends in tokens from the beginning of the prompt."""
        ids, tokens = encode_answer(self.tokenizer, text, ends)
        return (*self.prompt, *ids)[: self.limit], [len(self.prompt) + end for end in tokens]


def _pair(row: Row, data: Data, index: int, texts: _Texts, asked: str, margin: float) -> Labelled | str:
    chosen, rejected = text_of(row, "chosen", index), text_of(row, "rejected", index)
    given = row.get("margin")
    margin = margin if given is None else _number(given, "margin", index, math.inf)
    if not chosen.strip() or not rejected.strip():
        return "empty"
    if chosen == rejected:
        return "equal"
    if texts.no_room:
        return "over-long"
    both = texts.whole(chosen)[0], texts.whole(rejected)[0]
    if both[0] == both[1]:
        return "equal after truncation"
    ends = tuple((len(ids),) for ids in both)
    return Labelled(asked, both, ends, (), margin, tuple(len(ids) - len(texts.prompt) for ids in both))


def _point(row: Row, data: Data, index: int, texts: _Texts, asked: str, _: float) -> Labelled | str:
    text = text_of(row, data.completion_column, index, "completion_column")
    label = _number(_present(row, "label", index), "label", index, 1.0)
    if not text.strip():
        return "empty"
    if texts.no_room:
        return "over-long"
    ids, _ends = texts.whole(text)
    return Labelled(asked, (ids,), ((len(ids),),), (label,), 0.0, (len(ids) - len(texts.prompt),))


def _process(row: Row, data: Data, index: int, texts: _Texts, asked: str, _: float) -> Labelled | str:
    text = text_of(row, data.completion_column, index, "completion_column")
    steps = _steps(_present(row, "steps", index), text, index)
    if not text.strip():
        return "empty"
    if texts.no_room:
        return "over-long"
    ids, ends = texts.whole(text, [end for end, _ in steps])
    kept = [(end, label) for end, (_, label) in zip(ends, steps, strict=True) if label is not None and end <= len(ids)]
    if not kept:
        return "no steps"
    ends, labels = tuple(end for end, _ in kept), tuple(label for _, label in kept)
    return Labelled(asked, (ids,), (ends,), labels, 0.0, tuple(end - len(texts.prompt) for end in ends))


def _present(row: Row, column: str, index: int, option: str | None = None) -> Any:
    if column in row:
        return row[column]
    if option is not None:
        raise missing_column(row, index, column, option)
    raise bad_row(index, f"there is no column {column!r}, only: {', '.join(map(str, row)) or 'none'}")


def _number(value: Any, name: str, index: int, most: float) -> float:
    """Between 0 and ``most``, and finite; true and false are 1 and 0."""
    number = float(value) if isinstance(value, numbers.Real) else math.nan
    if not 0.0 <= number <= most or math.isinf(number):
        wanted = "a number from 0 to 1" if most == 1.0 else "a number of at least 0"
        raise bad_row(index, f"{name} is {value!r:.60}; it must be {wanted}")
    return number


def _steps(value: Any, text: str, index: int) -> list[tuple[int, float | None]]:
    if not isinstance(value, list | tuple) or not all(
        isinstance(step, list | tuple) and len(step) == 2 for step in value
    ):
        raise bad_row(index, f"steps is {value!r:.60}; it must be a list of [end, label]")
    found: list[tuple[int, float | None]] = []
    for number, (end, label) in enumerate(value):
        least = found[-1][0] if found else 1
        if isinstance(end, bool) or not isinstance(end, int) or not least <= end <= len(text):
            raise bad_row(
                index,
                f"step {number} ends at {end!r:.60}; give the number of characters up to its end, "
                f"from {least} to {len(text)}",
            )
        found.append((end, None if label is None else _number(label, f"the label of step {number}", index, 1.0)))
    return found
