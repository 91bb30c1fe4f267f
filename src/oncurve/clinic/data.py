"""``oncurve check data``: what is in a data set, and what a model would read of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from transformers import PreTrainedTokenizerBase

from oncurve.clinic.rows import Row, recipe_for, rows_of
from oncurve.config import EMBEDDED_CONTEXT, Recipe
from oncurve.data.order import question
from oncurve.data.prompts import bare_prompts, completion_ids, data_of, encode_row, prompt_limit
from oncurve.models.load import load_tokenizer
from oncurve.models.source import context_of, find_source
from oncurve.rewards import read_gold
from oncurve.rewards.code_tests import read_tests
from oncurve.tasks import task
from oncurve.terminal import Terminal
from oncurve.types import OncurveError, Prompt

_NAMED = 5
"""Rows that are named of each thing that is wrong."""
_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Wrong:
    """Something that would spoil training, and the rows (from 0) that have it."""

    what: str
    rows: list[int]

    def __str__(self) -> str:
        named = ", ".join(map(str, self.rows[:_NAMED])) + (", ..." if len(self.rows) > _NAMED else "")
        return f"{self.what}: {len(self.rows)} rows ({named})"


def check_data(
    source: str, flags: Sequence[str], terminal: Terminal, *, model: str | None = None, rows: int | None = None
) -> list[Wrong]:
    """Print what there is to know about a data set (or the training data of a recipe) before training on it.

    With a ``model``, or a recipe that names one, also what the model reads: the first prompt, rendered up to where
    generation starts, and the lengths in tokens. Returns what is wrong.

    Raises OncurveError for a row that training would refuse, and for a model or a file that is not there.
    """
    recipe = recipe_for(source, flags, model)
    named_model = model or (recipe.model.path if source != recipe.data.train else None)
    given = rows_of(recipe, rows)
    with data_of("data.train", recipe.data.train):
        prompts = bare_prompts(given, recipe.data)
    terminal.say(f"{recipe.data.train}: {len(given)} rows\n")
    _columns(given, terminal)
    wrong = [*_repeated(prompts, terminal), *_unreadable(given, terminal)]
    if named_model is not None:
        wrong += _read_by(recipe, given, prompts, terminal)
    for each in wrong:
        terminal.say(f"WRONG  {each}")
    if not wrong:
        terminal.say("nothing wrong was found")
    return wrong


def _columns(rows: Sequence[Row], terminal: Terminal) -> None:
    table = []
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row[name] for row in rows if row.get(name) is not None]
        kinds = ", ".join(kind for kind, _ in Counter(type(value).__name__ for value in values).most_common())
        table.append([name, len(values), kinds or "-", _short(values[0]) if values else "-"])
    terminal.table("columns", ["", "rows that have it", "type", "for example"], table)
    terminal.say()


def _repeated(prompts: Sequence[Prompt], terminal: Terminal) -> list[Wrong]:
    """Questions that are asked again; wrong if with another answer."""
    first: dict[str, Prompt] = {}
    again: list[int] = []
    contradicted: list[int] = []
    for prompt in prompts:
        earlier = first.setdefault(question(prompt.raw), prompt)
        if earlier is not prompt:
            again.append(prompt.id)
            if earlier.columns.get("answer") != prompt.columns.get("answer"):
                contradicted.append(prompt.id)
    terminal.say(f"questions that were asked before: {len(again)} of {len(prompts)}")
    return [Wrong("asked before, with another answer", contradicted)] if contradicted else []


def _unreadable(rows: Sequence[Row], terminal: Terminal) -> list[Wrong]:
    """Right answers and tests that no reward can use."""
    readers: dict[str, Callable[[Row], Any]] = {
        "answer": lambda row: read_gold(row["answer"]),
        "tests": lambda row: read_tests(row["tests"], row.get("entry_point")),
        "hidden_tests": lambda row: read_tests(row["hidden_tests"], row.get("entry_point")),
    }
    wrong: list[Wrong] = []
    for column, read in readers.items():
        if not any(column in row for row in rows):
            continue
        absent = [at for at, row in enumerate(rows) if row.get(column) is None]
        failed: list[int] = []
        reason = ""
        for at, row in enumerate(rows):
            if at not in set(absent):
                try:
                    read(row)
                except (OncurveError, ValueError) as error:
                    reason = reason or str(error)
                    failed.append(at)
        share = (len(rows) - len(absent) - len(failed)) / len(rows)
        terminal.say(
            f"`{column}` can be read in {share:.1%} of the rows; {len(absent)} have none and would be unscored"
        )
        if failed:
            wrong.append(Wrong(f"column `{column}` cannot be read ({reason})", failed))
        if len(absent) == len(rows):
            wrong.append(Wrong(f"column `{column}` is empty everywhere", absent))
    return wrong


def _read_by(recipe: Recipe, rows: Sequence[Row], prompts: Sequence[Prompt], terminal: Terminal) -> list[Wrong]:
    tokenizer = _tokenizer(recipe)
    data = recipe.data
    with data_of("data.train", data.train):
        encoded = [encode_row(tokenizer, prompt.raw, data, prompt.id) for prompt in prompts]
    text, ids = encoded[0]
    terminal.say(f"\nthe first prompt, as {recipe.model.path} reads it; generation starts at the mark\n")
    terminal.say(f"{text}<<< generation starts here >>>\n")
    pieces = [repr(tokenizer.decode([i])) for i in ids[-_TOKENS:]]
    terminal.say(f"its last tokens: {' '.join(pieces)}\n")
    lengths = [("prompt", [len(ids) for _, ids in encoded])]
    completions = [row.get(data.completion_column) for row in rows]
    if all(isinstance(completion, str) for completion in completions):
        lengths.append(("completion with EOS", [len(completion_ids(tokenizer, str(text))) for text in completions]))
    terminal.table(
        "tokens",
        ["", "least", "median", "most", "all"],
        [[name, min(values), int(median(values)), max(values), sum(values)] for name, values in lengths],
    )
    asked_for = recipe.sampling.max_new_tokens if "max_new_tokens" in recipe.sampling.model_fields_set else 1
    limit, why = prompt_limit(data, _context(recipe), asked_for, "sampling.max_new_tokens")
    long = [at for at, (_, ids) in enumerate(encoded) if limit is not None and len(ids) > limit]
    return [Wrong(f"prompts over {limit} tokens ({why})", long)] if long and data.over_long == "error" else []


def _context(recipe: Recipe) -> int | None:
    """The model's context in tokens, if the disk says so."""
    if recipe.model.path.startswith("embedded:"):
        return EMBEDDED_CONTEXT
    return context_of(find_source("model.path", recipe.model.path))


def _tokenizer(recipe: Recipe) -> PreTrainedTokenizerBase:
    kind, _, name = recipe.model.path.partition(":")
    if kind == "embedded":
        with data_of("model.path", recipe.model.path):
            return task(name).build_tokenizer()
    return load_tokenizer(recipe.model)


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
