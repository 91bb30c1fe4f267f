"""A sandbox for programs that a model wrote. ``docs/sandbox.md`` says what each level stops and what it does not.

>>> with open_sandbox("strict") as sandbox:
...     sandbox.run_program("print(int(input()) ** 2)", "12").stdout
b'144\\n'
"""

from __future__ import annotations

import threading

from oncurve.rewards.sandbox.levels import SandboxError, check_level
from oncurve.rewards.sandbox.local import Sandbox
from oncurve.rewards.sandbox.outcome import Call, Called, Ran, Status, Tested, same, same_output
from oncurve.rewards.sandbox.remote import RemoteSandbox
from oncurve.rewards.sandbox.workers import Limits

__all__ = [
    "Call",
    "Called",
    "Limits",
    "Ran",
    "RemoteSandbox",
    "Sandbox",
    "SandboxError",
    "Status",
    "Tested",
    "check_level",
    "current_sandbox",
    "open_sandbox",
    "same",
    "same_output",
    "use_sandbox",
]

_lock = threading.Lock()
_current: Sandbox | RemoteSandbox | None = None


def open_sandbox(level: str = "strict", *, limits: Limits | None = None) -> Sandbox | RemoteSandbox:
    """A sandbox of the level asked for, and of no other.

    Args:
        level: "strict", "landlock", "remote:URL", or "none", which holds nothing in.

    Raises:
        SandboxError: this machine does not have it; the text says why, and how to mend it.
    """
    check_level(level)
    if level.startswith("remote:"):
        return RemoteSandbox(level.removeprefix("remote:"), limits=limits)
    return Sandbox(level, limits=limits)


def use_sandbox(level: str) -> str:
    """From now on the rewards that run code do it at this level.

    Returns:
        A description of it, for a run to print and to record.

    Raises:
        SandboxError: as ``open_sandbox``. What was in use before stays so.
    """
    global _current  # the rewards are plain functions, and a pool of processes outlives their calls
    with _lock:
        if _current is None or _current.level != level:
            opened = open_sandbox(level)
            if _current is not None:
                _current.close()
            _current = opened
        return _current.description


def current_sandbox() -> Sandbox | RemoteSandbox:
    """What ``use_sandbox`` chose; the level "strict" if it has not been called.

    Raises:
        SandboxError: as ``open_sandbox``.
    """
    if _current is None:
        use_sandbox("strict")
    assert _current is not None
    return _current
