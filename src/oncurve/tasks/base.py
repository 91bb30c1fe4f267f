"""What a generated task is: a few functions. Everything they return follows from their arguments."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

from oncurve.config import EMBEDDED_CONTEXT
from oncurve.types import OncurveError

Split = Literal["train", "validation", "eval"]
Row = dict[str, Any]
"""Always ``prompt`` and ``answer`` (text), and ``completion`` in a demonstration. Other columns are the task's own."""

SPECIAL = PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
"""The first tokens of every vocabulary, in this order."""
LARGEST_NUMBER = 99

OPEN, CLOSE = "<think>\n", "</think>\n"


class NotEnough(OncurveError):
    """A task was asked for more rows than it has."""


@dataclass(frozen=True, slots=True)
class Task:
    """A generated task with the small model that goes with it."""

    name: str
    rows: Callable[[int, int, str], list[Row]]
    """``rows(size, seed, split)``: ``train`` for GRPO, ``validation`` to tune on, ``eval`` to report."""
    demonstrations: Callable[..., list[Row]]
    """``demonstrations(size, seed, **options)``: worked examples for SFT, made from the training split alone."""
    options: tuple[str, ...]
    """The names of the options that ``demonstrations`` takes; all are shares, from 0.0 to 1.0."""
    tutor_score: Callable[[Sequence[Row]], dict[str, float]]
    """``tutor_score(demonstrations)``: the shares that are ``right_and_boxed``, ``right`` and ``boxed`` (in the form
    that was asked for)."""
    check: Callable[[int], dict[str, int]]
    """``check(seed)``: confirm that the splits of this seed do not overlap; the number of questions in each."""
    build_tokenizer: Callable[[], PreTrainedTokenizerFast]
    build_model_config: Callable[[], LlamaConfig]
    showcase: tuple[Row, ...]
    """Questions to show people. In no split."""
    metrics: tuple[str, ...]
    """Functions in the form of a reward that are worth recording for this task, as ``package.module:function``."""
    reward: str = "accuracy"
    """The reward that says whether an answer is right, as ``rewards.functions`` has it."""
    steps: str | None = None
    """Its step checker (see ``oncurve.tasks.steps``), as ``package.module:function``."""


def word_level_tokenizer(phrases: Sequence[str]) -> PreTrainedTokenizerFast:
    """One token for each phrase, for each lower-case letter and for each number from 0 to 99.

    Text is cut at the longest phrase that fits, and tokens are put back together without a space, so decoding gives the
    text again. Whatever is not in the vocabulary becomes ``<unk>``, one a character. Nothing is added around the text:
    there is no BOS, and EOS stands for itself."""
    numbers = [str(n) for n in range(LARGEST_NUMBER + 1)]
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *letters, *numbers, *phrases))}
    longest_first = sorted(phrases, key=len, reverse=True)
    pieces = "|".join([*(_escape(p) for p in longest_first), "[1-9]?[0-9]", r"[\s\S]"])
    if len(vocabulary) < len((*SPECIAL, *letters, *numbers, *phrases)):
        raise ValueError("a phrase stands twice, or is a letter or a number")
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pieces), behavior="isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="right",
        model_max_length=EMBEDDED_CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def _escape(text: str) -> str:
    """For the Oniguruma syntax of `tokenizers`: letters and digits as they are, everything else by its code."""
    return "".join(c if c.isalnum() else rf"\x{{{ord(c):x}}}" for c in text)


def small_llama_config(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """A quarter of a million parameters: enough to copy, compare and count, small enough to train in minutes."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        intermediate_size=192,
        max_position_embeddings=EMBEDDED_CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.05,  # the usual 0.02 is made for layers ten times as wide
        bos_token_id=None,
        eos_token_id=SPECIAL.index(EOS),
        pad_token_id=SPECIAL.index(PAD),
    )


def need_split(split: str) -> None:
    """Raises OncurveError unless ``split`` is one of the three."""
    if split not in ("train", "validation", "eval"):
        raise OncurveError(f"split is {split!r}; a task has 'train', 'validation' and 'eval'")


def split_of_text(text: str) -> Split:
    """Which split a question belongs to, from its text alone: of 20, one is for ``eval`` and one for ``validation``.

    It does not depend on the seed: what one seed trains on is never held out by another."""
    held_out: dict[int, Split] = {0: "eval", 1: "validation"}
    return held_out.get(zlib.crc32(text.encode()) % 20, "train")


def need_options(task: Task, options: Mapping[str, Any]) -> None:
    """Raises OncurveError if the task has no option of one of these names, or if its value is no share."""
    for name, value in options.items():
        if name not in task.options:
            raise OncurveError(f"the task {task.name!r} has no option {name!r}; it has: {', '.join(task.options)}")
        need_share(name, value)


def need_share(name: str, value: float) -> None:
    """Raises OncurveError unless ``value`` lies in [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise OncurveError(f"data.options.{name} is {value!r}; it is a share, from 0.0 to 1.0")


def last_number(text: str) -> str | None:
    """The last run of digits, as it stands."""
    found = re.findall(r"[0-9]+", text)
    return found[-1] if found else None


def boxed_answer(number: int, boxed: bool) -> str:
    """How a completion ends."""
    return f"\\boxed{{{number}}}" if boxed else str(number)


def tutor_score(demonstrations: Sequence[Row]) -> dict[str, float]:
    """How good the examples are themselves: a model that only imitates them can hope for no more when it samples."""
    boxed = ["\\boxed{" in row["completion"] for row in demonstrations]
    right = [last_number(row["completion"]) == row["answer"] for row in demonstrations]
    return {
        "right_and_boxed": fmean(r and b for r, b in zip(right, boxed, strict=True)),
        "right": fmean(right),
        "boxed": fmean(boxed),
    }


def distinct_prompts(splits: Mapping[str, Sequence[Row]]) -> dict[str, int]:
    """The number of rows in each split. Raises OncurveError naming the prompt if one occurs in two splits."""
    seen: dict[str, str] = {}
    for split, rows in splits.items():
        for row in rows:
            if seen.setdefault(row["prompt"], split) != split:
                raise OncurveError(f"the prompt {row['prompt']!r} is in the splits {seen[row['prompt']]} and {split}")
    return {split: len(rows) for split, rows in splits.items()}
