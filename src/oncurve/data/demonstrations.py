"""From rows to demonstrations for supervised fine-tuning.

The prompt is encoded exactly as it is for sampling, the completion is tokenised apart from it and ends with EOS: the
model is taught on the very ids that it is going to see.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oncurve.config import Data
from oncurve.data.order import question
from oncurve.data.prompts import (
    MESSAGES_COLUMN,
    Row,
    bad_row,
    completion_ids,
    encode_row,
    missing_column,
    over_long,
    parse_messages,
    prompt_of,
)
from oncurve.types import Demonstration, OncurveError, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DemonstrationSet:
    demonstrations: list[Demonstration]
    dropped: int
    """Rows left out because they were over-long (``data.over_long = "drop"``)."""
    held_out: int
    """Rows left out because they show the answer to a held-out prompt."""


def build_demonstrations(
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    *,
    context: int | None,
    held_out: Sequence[Prompt] = (),
) -> DemonstrationSet:
    """A Demonstration for each row that is neither over-long nor about a ``held_out`` prompt.

    A row has a prompt and a completion column (text, or a list with one message of the assistant), or a ``messages``
    column, of which the last turn, the assistant's, is the completion: **the loss falls on that turn alone**, earlier
    ones are part of the prompt. A completion is its text and EOS; nothing else that a chat template would write after
    a turn is learned.

    Raises OncurveError, naming the row, for whatever is missing, empty or of a wrong type, for a row that is over-long
    while ``data.over_long`` is "error", and if no row is left.
    """
    asked = {question(prompt.raw) for prompt in held_out}
    demonstrations: list[Demonstration] = []
    dropped = skipped = earlier_turns = 0
    for index, row in enumerate(rows):
        raw = prompt_of(row, data, index)
        if question(raw) in asked:
            skipped += 1
            continue
        completion = _completion_of(row, data, index)
        earlier_turns += not isinstance(raw, str) and any(message["role"] == "assistant" for message in raw)
        _, prompt = encode_row(tokenizer, raw, data, index)
        try:
            answer = completion_ids(tokenizer, completion)
        except OncurveError as error:
            raise bad_row(index, str(error)) from error
        problem = _over_long(len(prompt), len(answer), data.max_prompt_tokens, context)
        if problem is not None:
            if data.over_long == "error":
                raise over_long(index, problem)
            dropped += 1
            continue
        demonstrations.append(Demonstration(tuple(prompt), tuple(answer)))
    if earlier_turns:
        log.info("%d rows have earlier turns of the assistant; the loss falls on the last one alone", earlier_turns)
    if not demonstrations:
        raise OncurveError(
            f"no demonstration is left of {len(rows)} rows: {dropped} are over-long and {skipped} are about held-out "
            "prompts"
        )
    return DemonstrationSet(demonstrations, dropped, skipped)


def check_demonstrations(rows: Sequence[Row], data: Data) -> None:
    """Raises OncurveError for what ``build_demonstrations`` would refuse of these rows whatever the tokenizer."""
    for index, row in enumerate(rows):
        prompt_of(row, data, index)
        _completion_of(row, data, index)


def _completion_of(row: Row, data: Data, index: int) -> str:
    if data.prompt_column in row:
        if data.completion_column not in row:
            raise missing_column(row, index, data.completion_column, "completion_column")
        value, column = row[data.completion_column], data.completion_column
    else:
        value, column = row[MESSAGES_COLUMN], MESSAGES_COLUMN
    if not isinstance(value, str):
        messages = list(parse_messages(value, index, column))
        if messages[-1]["role"] != "assistant":
            raise bad_row(index, f"the last message of {column} is from {messages[-1]['role']!r}, not from 'assistant'")
        if column != MESSAGES_COLUMN and len(messages) > 1:
            raise bad_row(
                index, f"{column} has {len(messages)} messages; give the assistant's one, the rest in the prompt"
            )
        value = messages[-1]["content"]
    if not value.strip():
        raise bad_row(index, f"{column} is empty")
    return value


def _over_long(prompt: int, completion: int, max_prompt_tokens: int | None, context: int | None) -> str | None:
    """What is too long about a row of that many tokens, if anything."""
    if max_prompt_tokens is not None and prompt > max_prompt_tokens:
        return f"the prompt has {prompt} tokens; data.max_prompt_tokens is {max_prompt_tokens}"
    if context is not None and prompt + completion > context:
        return f"prompt and completion have {prompt} + {completion} tokens; the model's context is {context}"
    return None
