"""``oncurve tasks``: the generated tasks there are, each with a sample."""

from __future__ import annotations

import importlib.util
from typing import Any

from oncurve.data.readers import read_rows
from oncurve.recipe import need_task
from oncurve.tasks import TASKS
from oncurve.terminal import Terminal

_GYM = "reasoning_gym"
_LONGEST = 300
"""Characters of a value that are shown."""


def list_tasks(terminal: Terminal) -> None:
    """A line for each of Oncurve's own tasks; then the names of reasoning-gym's, or how to get them."""
    rows = [[f"task:{name}", *_sample(task.showcase[0])] for name, task in TASKS.items()]
    terminal.table("generated, each with a small model of its own, embedded:NAME", ["", "prompt", "answer"], rows)
    terminal.say()
    names = gym_names()
    if not names:
        terminal.say("reasoning_gym:NAME has about a hundred more: pip install 'oncurve[gym]'")
        return
    terminal.say(f"reasoning_gym:NAME, where NAME is one of {len(names)}:")
    terminal.say(", ".join(names))
    terminal.say(f"\n`oncurve tasks {_GYM}:{names[0]}` shows one of them.")


def show_task(name: str, terminal: Terminal) -> None:
    """What there is to know about one task, with a row of it.

    Raises OncurveError, naming the nearest, if there is none of that name."""
    if name.startswith(f"{_GYM}:"):
        (row,) = read_rows(name, size=1, seed=0, options={})
        terminal.say(f"{name}\n")
        _show_row(row, terminal)
        return
    name = name.removeprefix("task:")
    need_task(name)
    task = TASKS[name]
    sizes = ", ".join(f"{split} {count}" for split, count in task.check(0).items())
    terminal.say(
        f"task:{name}, with the model embedded:{name}\n"
        f"reward        {task.reward}\n"
        f"metrics       {', '.join(task.metrics)}\n"
        f"step checker  {task.steps or '-'}\n"
        f"data.options  {', '.join(task.options)}: shares from 0 to 1, how careless the tutor is\n"
        f"no question is in two splits (looked at: {sizes})\n"
    )
    _show_row(task.rows(1, 0, "train")[0], terminal)
    examples = task.demonstrations(1000, 0)
    right = task.tutor_score(examples)["right_and_boxed"]
    terminal.say(f"a demonstration (of 1000, {right:.0%} are right and in the form that was asked for)")
    terminal.say(_indented(examples[0]["completion"]))


def gym_names() -> list[str]:
    """The data sets of reasoning-gym; none if it is not installed."""
    if importlib.util.find_spec(_GYM) is None:
        return []
    import reasoning_gym.factory  # noqa: PLC0415

    return sorted(reasoning_gym.factory.DATASETS)


def _sample(row: dict[str, Any]) -> list[str]:
    return [" ".join(str(row[column]).split()) for column in ("prompt", "answer")]


def _show_row(row: dict[str, Any], terminal: Terminal) -> None:
    for column, value in row.items():
        text = str(value)
        shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
        terminal.say(f"{column}\n{_indented(shown)}")


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
