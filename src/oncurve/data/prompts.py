"""From rows to prompts: rendered, tokenised once, and measured.

The beginning-of-sequence token stands exactly once in front of whatever the model was made to read with it, as text and
as chat alike: a template that writes it is not tokenised with special tokens again, and a plain text is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from jinja2 import TemplateError

from oncurve.config import Data, leaves
from oncurve.types import Message, OncurveError, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Row = Mapping[str, Any]

MESSAGES_COLUMN = "messages"

RESERVED_COLUMNS = frozenset(
    {"prompts", "prompt_texts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"}
)
"""What reward functions are called with beside the columns."""


@dataclass(frozen=True)
class PromptSet:
    prompts: list[Prompt]
    dropped: int
    """Rows left out because their prompt was over-long (``data.over_long = "drop"``)."""


def build_prompts(
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    *,
    context: int | None,
    max_new_tokens: int,
    limit_option: str = "sampling.max_new_tokens",
) -> PromptSet:
    """A Prompt for each row; its id is the row's number, from 0.

    Every column but the prompt's is kept for the reward functions; a row without a column that others have gets None
    there. ``context`` is the model's longest sequence in tokens (None: unlimited), of which ``max_new_tokens`` are kept
    free for the completion, by ``limit_option``.

    Raises OncurveError, naming the row, for a prompt that is missing, empty, of a wrong type, or over-long while
    ``data.over_long`` is "error"; and if no prompt is left.
    """
    names = _reward_columns(rows, data)
    limit, why = prompt_limit(data, context, max_new_tokens, limit_option)
    prompts: list[Prompt] = []
    dropped = 0
    for index, row in enumerate(rows):
        raw = prompt_of(row, data, index)
        text, ids = encode_row(tokenizer, raw, data, index)
        if limit is not None and len(ids) > limit:
            if data.over_long == "error":
                raise over_long(index, f"the prompt has {len(ids)} tokens; at most {limit} fit ({why})")
            dropped += 1
            continue
        prompts.append(Prompt(index, raw, text, tuple(ids), {name: row.get(name) for name in names}))
    if not prompts:
        raise OncurveError(
            f"no prompt is left: all {dropped} are longer than {limit} tokens ({why})"
            if dropped
            else "the data has no rows"
        )
    return PromptSet(prompts, dropped)


def bare_prompts(rows: Sequence[Row], data: Data) -> list[Prompt]:
    """As ``build_prompts``, but neither rendered nor tokenised. Raises OncurveError for what that would refuse of these
    rows whatever the tokenizer."""
    names = _reward_columns(rows, data)
    return [
        Prompt(index, prompt_of(row, data, index), "", (), {name: row.get(name) for name in names})
        for index, row in enumerate(rows)
    ]


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase,
    raw: str | Sequence[Message],
    system_prompt: str | None = None,
    suffix: str = "",
    *,
    chat: bool = False,
) -> tuple[str, list[int]]:
    """What the model reads for ``raw``: the text, and its token ids.

    Messages go through the tokenizer's chat template, with the header of the assistant's turn at the end, or, if the
    last message is the assistant's, with that turn left open to be continued. A text stays plain, unless ``chat`` is
    set or there is a ``system_prompt``: then it is the user's one message. ``suffix`` is put after the text, or after
    the last message of the user. ``system_prompt`` is put first, unless the messages bring their own.

    Raises OncurveError if the tokenizer has no chat template, or its template refuses the messages.
    """
    if isinstance(raw, str) and not chat and system_prompt is None:
        text = raw + suffix
        return text, _plain_ids(tokenizer, text)
    text = _render(tokenizer, _conversation(raw, system_prompt, suffix))
    return text, _with_one_bos(tokenizer, _tokens(tokenizer, text, special=False))


def _conversation(raw: str | Sequence[Message], system_prompt: str | None, suffix: str) -> list[Message]:
    messages = [{"role": "user", "content": raw}] if isinstance(raw, str) else [dict(message) for message in raw]
    if suffix:
        asked = [message for message in messages if message["role"] == "user"]
        if not asked:
            raise OncurveError("data.suffix goes after the user's last message, but there is no message of the user")
        asked[-1]["content"] += suffix
    if system_prompt is not None and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system_prompt})
    return messages


def _render(tokenizer: PreTrainedTokenizerBase, messages: list[Message]) -> str:
    if not tokenizer.chat_template:
        raise OncurveError(
            "the prompt is a chat (messages, data.chat or data.system_prompt), but the tokenizer has no chat template; "
            "set model.chat_template to a file that holds one, or give the prompts as plain text"
        )
    unfinished = messages[-1]["role"] == "assistant"
    try:
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=not unfinished, continue_final_message=unfinished
        )
    except (TemplateError, ValueError) as error:
        raise OncurveError(f"the chat template refuses the messages: {error}") from error
    assert isinstance(text, str)
    return text


def _plain_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    ids = _tokens(tokenizer, text, special=True)
    # Some tokenizers end every text with EOS. A prompt that has ended cannot be continued.
    if (
        ids
        and ids[-1] == tokenizer.eos_token_id
        and _tokens(tokenizer, "a", special=True)[-1] == tokenizer.eos_token_id
    ):
        ids.pop()
    return _with_one_bos(tokenizer, ids)


def _with_one_bos(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[int]:
    """``ids`` with exactly one BOS in front if they have one already or the tokenizer puts one before a text."""
    if tokenizer.bos_token_id is None:
        return ids
    bos = cast("int", tokenizer.bos_token_id)
    start = 0
    while start < len(ids) and ids[start] == bos:
        start += 1
    if start or _wants_bos(tokenizer):
        return [bos, *ids[start:]]
    return ids


def _wants_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    return getattr(tokenizer, "add_bos_token", False) or _tokens(tokenizer, "a", special=True)[:1] == [
        tokenizer.bos_token_id
    ]


def _tokens(tokenizer: PreTrainedTokenizerBase, text: str, *, special: bool) -> list[int]:
    # verbose=False: the lengths are checked here, against the model and not against what the tokenizer believes.
    ids = cast("list[int]", tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])
    return list(ids)


def completion_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """The tokens of a demonstrated completion, tokenised apart from its prompt as a sampled one is, ending with exactly
    one EOS. Raises OncurveError if EOS stands inside: nothing after it could ever be sampled."""
    ids = _tokens(tokenizer, text, special=False)
    while ids and ids[-1] == tokenizer.eos_token_id:
        ids.pop()
    if tokenizer.eos_token_id in ids:
        raise OncurveError(f"{tokenizer.eos_token!r}, the end of a sequence, stands in the middle of the completion")
    return [*ids, int(tokenizer.eos_token_id)]  # type: ignore[arg-type]


def prompt_of(row: Row, data: Data, index: int) -> str | tuple[Message, ...]:
    """The prompt of a row as its data set gives it: its prompt column, or, in a row that has ``messages`` instead, what
    comes before the assistant's last turn."""
    if data.prompt_column not in row:
        if MESSAGES_COLUMN in row:
            messages = parse_messages(row[MESSAGES_COLUMN], index, MESSAGES_COLUMN)
            prompt = messages[:-1] if messages[-1]["role"] == "assistant" else messages
            if not prompt:
                raise bad_row(index, "messages has nothing before the assistant's turn")
            return prompt
        raise missing_column(row, index, data.prompt_column, "prompt_column")
    value = row[data.prompt_column]
    if isinstance(value, str):
        if not value.strip():
            raise bad_row(index, f"{data.prompt_column} is empty")
        return value
    return parse_messages(value, index, data.prompt_column)


def parse_messages(value: Any, index: int, column: str) -> tuple[Message, ...]:
    """Chat messages out of a column, checked. Keys that are None (parquet fills them in) are left out."""
    if not isinstance(value, list | tuple) or not all(isinstance(message, Mapping) for message in value):
        raise bad_row(index, f"{column} is {value!r:.60}; it must be text or a list of messages with role and content")
    if not value:
        raise bad_row(index, f"{column} is an empty list of messages")
    for message in value:
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise bad_row(index, f"{column} has a message whose {key} is {message.get(key)!r:.60}; it must be text")
    if not any(message["content"].strip() for message in value):
        raise bad_row(index, f"{column} has only empty messages")
    return tuple({key: part for key, part in message.items() if part is not None} for message in value)


def encode_row(
    tokenizer: PreTrainedTokenizerBase, raw: str | Sequence[Message], data: Data, index: int
) -> tuple[str, list[int]]:
    """``encode_prompt`` with the settings of ``data``; errors name the row."""
    try:
        text, ids = encode_prompt(tokenizer, raw, data.system_prompt, data.suffix, chat=data.chat)
    except OncurveError as error:
        raise bad_row(index, str(error)) from error
    if not ids:
        raise bad_row(index, "the prompt has no tokens")
    return text, ids


def prompt_limit(data: Data, context: int | None, max_new_tokens: int, limit_option: str) -> tuple[int | None, str]:
    """Most tokens a prompt may have, and the reason in words."""
    limit, why = data.max_prompt_tokens, "data.max_prompt_tokens"
    if context is not None:
        room = context - max_new_tokens
        if room < 1:
            raise OncurveError(
                f"{limit_option} is {max_new_tokens}, which leaves no room for a prompt in the model's "
                f"context of {context} tokens; set it to {context - 1} less the longest prompt, or lower"
            )
        if limit is None or room < limit:
            limit, why = room, f"the model's context of {context} less {limit_option} = {max_new_tokens}"
    return limit, why


class RowError(OncurveError):
    """A row that cannot be used. The text names the row; whoever knows the data set's name puts it in front."""


@contextmanager
def data_of(option: str, source: str) -> Iterator[None]:
    """Put the option that names a data set, and its name, before what is said about it. What begins with the name of
    another option stays as it is."""
    try:
        yield
    except OncurveError as error:
        text = str(error)
        named = re.match(r"\w+\.\w+", text)
        if named is not None and named[0] in leaves():
            raise
        if isinstance(error, RowError) or source not in text:
            text = f"{source}: {text}"
        raise OncurveError(f"{option}: {text}") from error


def bad_row(index: int, what: str) -> RowError:
    return RowError(f"data row {index} (counted from 0): {what}")


def over_long(index: int, what: str) -> RowError:
    return bad_row(index, f"{what}. Shorten it, or set data.over_long = 'drop' to leave such rows out")


def missing_column(row: Row, index: int, column: str, option: str) -> RowError:
    there = ", ".join(map(str, row)) or "none"
    return bad_row(index, f"there is no column {column!r}, only: {there}. Set data.{option} to the right one")


def _reward_columns(rows: Sequence[Row], data: Data) -> list[str]:
    """The columns of all rows together, in the order in which they first come, without the prompt's."""
    names = dict.fromkeys(name for row in rows for name in row if name not in (data.prompt_column, MESSAGES_COLUMN))
    taken = [name for name in names if name in RESERVED_COLUMNS]
    if taken:
        raise OncurveError(
            f"the data has a column {taken[0]!r}, which is what Oncurve itself calls something it gives to reward "
            "functions; rename it"
        )
    return list(names)
