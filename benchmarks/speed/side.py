"""What both sides do alike: answer each line on standard input with one step and a line of what it cost."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def cpu_seconds() -> float:
    """User and system time of this process: what others do on the machine does not count."""
    return time.process_time()


def resident() -> int:
    """Bytes of memory that this process has now."""
    return _status("VmRSS")


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """Most bytes since :func:`reset_peak`."""
    return _status("VmHWM")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {field}")


class Stopwatch:
    """CPU seconds by phase, of a step."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, whose time is counted under ``phase`` and no longer under a phase that it is called from."""

        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            before, began = sum(self.spent.values()), cpu_seconds()
            try:
                return function(*arguments, **keywords)
            finally:
                inner = sum(self.spent.values()) - before
                self.spent[phase] = self.spent.get(phase, 0.0) + cpu_seconds() - began - inner

        return wrapper


class Link:
    """The pipe to the script that compares."""

    def __init__(self) -> None:
        self._out = sys.stdout
        sys.stdout = sys.stderr  # whatever else is printed
        self._began = 0.0

    def ready(self, **told: Any) -> None:
        """The model is loaded."""
        reset_peak()
        self._loaded = resident()
        self._say(told)

    def wait(self) -> None:
        """Until the next step is wanted."""
        if not sys.stdin.readline():
            sys.exit(0)
        self._began = cpu_seconds()

    def done(self, watch: Stopwatch, **told: Any) -> None:
        """After a step."""
        total = cpu_seconds() - self._began
        phases, watch.spent = watch.spent, {}
        self._say({"seconds": total, "phases": phases, "memory": peak() - self._loaded, **told})

    def _say(self, told: dict[str, Any]) -> None:
        self._out.write(json.dumps(told) + "\n")
        self._out.flush()
