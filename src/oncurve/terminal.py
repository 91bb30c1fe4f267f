"""What a run prints. Text of a model or a data set is shown as text: never as markup, colour or cursor movement.

On a terminal, stages have a progress bar with the time left; elsewhere (a log file, a pipe, a notebook) they print a
plain line now and then. Nothing here writes a carriage return to anything but a terminal.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

_SECONDS_BETWEEN_LINES = 30.0
_LINES_PER_STAGE = 10

_NOT_TEXT = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement, clearing
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, ...: titles, links
    r"|\x1b[ -/]*[0-~]"  # the other escape sequences
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # C0 but tab and newline, DEL, C1
    r"|[\u202a-\u202e\u2066-\u2069]"  # bidirectional embeddings, overrides and isolates: they reorder what follows
    r"|[\ud800-\udfff]"  # lone surrogates: no encoding can write them
)


def clean(text: str) -> str:
    """``text`` without anything a terminal would act on; newlines and tabs stay. Linear in the length."""
    return _NOT_TEXT.sub("", text)


def show_number(value: Any) -> str:
    """A number in at most four significant digits, an integer with thousands, None as a dash, text as it is."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return clean(str(value))
    if isinstance(value, int) or (math.isfinite(value) and value.is_integer() and abs(value) >= 1000):
        return f"{int(value):,}"
    return f"{value:.4g}"


def show_seconds(seconds: float) -> str:
    """``42 s``, ``3 min 20 s``, ``2 h 05 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Stage:
    """A stage under way: ``advance`` as its work gets done."""

    def __init__(self, report: Callable[[int, dict[str, float | str]], None]) -> None:
        self._report = report

    def advance(self, n: int = 1, **numbers: float | str) -> None:
        """``n`` more units are done; ``numbers`` (by any name: ``**{"kl": 0.1}``) are the latest figures; text
        is shown as it is."""
        self._report(n, numbers)


class Terminal:
    """Where a run speaks to its user. ``quiet`` says nothing at all. ``stream`` is standard output by default."""

    def __init__(
        self, quiet: bool = False, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._quiet = quiet
        self._stream = stream or sys.stdout
        self._clock = clock
        self._progress: Progress | None = None
        self._console: Console | None = None
        if self._stream.isatty() and os.environ.get("TERM") != "dumb":
            self._console = Console(file=self._stream, markup=False, highlight=False, emoji=False)

    def say(self, text: str = "") -> None:
        """Print text, on lines of its own."""
        if self._quiet:
            return
        text = self._fit(text)
        if self._console:
            self._console.print(Text(text), soft_wrap=True)
        else:
            print(text, file=self._stream, flush=True)

    def _fit(self, text: str) -> str:
        """``text`` cleaned, and with an escape for every character that the stream cannot encode: no run shall end for
        what it prints."""
        encoding = self._stream.encoding or "utf-8"
        return clean(text).encode(encoding, "backslashreplace").decode(encoding)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Print a table; numbers are rounded for reading, None is a dash."""
        cells = [[" ".join(self._fit(show_number(cell)).split()) for cell in row] for row in rows]
        columns = [self._fit(column) for column in columns]
        right = [bool(rows) and all(_is_number(row[at]) for row in rows) for at in range(len(columns))]
        if self._console and not self._quiet:
            table = Table(title=Text(self._fit(title)) if title else None, title_justify="left")
            for column, is_right in zip(columns, right, strict=True):
                table.add_column(Text(column), justify="right" if is_right else "left", overflow="fold")
            for row in cells:
                table.add_row(*map(Text, row))
            self._console.print(table)
            return
        lines = [columns, *cells]
        widths = [max(cell_len(line[at]) for line in lines) for at in range(len(columns))]
        if title:
            self.say(title)
        for line in lines:
            padded = [
                " " * (width - cell_len(cell)) + cell if is_right else cell + " " * (width - cell_len(cell))
                for cell, width, is_right in zip(line, widths, right, strict=True)
            ]
            self.say("  ".join(padded).rstrip())

    @contextmanager
    def stage(self, title: str, total: int, done: int = 0) -> Iterator[Stage]:
        """Show that ``total`` units of work are being done, ``done`` of them by an earlier run; stages may stand inside
        one another."""
        title = self._fit(title)
        if self._quiet:
            yield Stage(lambda n, numbers: None)
        elif self._console:
            with self._bar(self._console, title, total, done) as stage:
                yield stage
        else:
            yield Stage(_PlainLines(title, total, done, self.say, self._clock).report)

    @contextmanager
    def _bar(self, console: Console, title: str, total: int, done: int) -> Iterator[Stage]:
        outermost = self._progress is None
        progress = self._progress = self._progress or Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=console,
            get_time=self._clock,
        )
        task = progress.add_task(title, total=total, completed=done, numbers="")

        def report(n: int, numbers: dict[str, float | str]) -> None:
            progress.update(task, advance=n)
            if numbers:
                progress.update(task, numbers=self._fit(_numbers(numbers)))

        if outermost:
            progress.start()
        try:
            yield Stage(report)
        finally:
            if outermost:
                progress.stop()
                self._progress = None
            else:
                progress.refresh()
                progress.remove_task(task)


class _PlainLines:
    """Progress without a terminal: a line for each tenth of the work, and at the latest every half minute."""

    def __init__(
        self, title: str, total: int, done: int, say: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._title, self._total, self._say, self._clock = title, total, say, clock
        self._done = self._found_done = done
        self._tenths = self._tenths_done()
        self._started = self._last = self._clock()

    def report(self, n: int, numbers: dict[str, float | str]) -> None:
        self._done += n
        now = self._clock()
        tenths = self._tenths_done()
        if tenths == self._tenths and now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._tenths, self._last = tenths, now
        spent = now - self._started
        left = spent / max(self._done - self._found_done, 1) * (self._total - self._done)
        times = show_seconds(spent) + (f", about {show_seconds(left)} left" if left > 0 else "")
        line = f"{self._title}  {self._done:,}/{self._total:,}  {times}  {_numbers(numbers)}"
        self._say(line.rstrip())

    def _tenths_done(self) -> int:
        return self._done * _LINES_PER_STAGE // max(self._total, 1)


def _numbers(numbers: dict[str, float | str]) -> str:
    return "  ".join(f"{clean(name)} {show_number(value)}" for name, value in numbers.items())


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
