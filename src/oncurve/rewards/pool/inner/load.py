"""From ``path/to/file.py:function`` or ``package.module:function`` to the function, and where an error came from.

The same code loads a function in the trainer's process and in a worker's. Standard library only.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any


class LoadError(Exception):
    """A function that is not there. ``public`` are the names its module has instead."""

    def __init__(self, text: str, wanted: str | None = None, public: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.wanted, self.public = wanted, public


class ImportFailed(Exception):
    """The user's file or module raised; the cause is the error itself."""


@contextlib.contextmanager
def process_state_kept() -> Iterator[None]:
    """Python's ``random`` and the working directory are afterwards as they were, whatever a user's code did: a run must
    resume to the same bits, and its relative paths must go on meaning the same."""
    state, directory = random.getstate(), os.getcwd()
    try:
        yield
    finally:
        random.setstate(state)
        os.chdir(directory)


def load(source: str, attribute: str, files: dict[Path, ModuleType]) -> Callable[..., Any]:
    """The function ``attribute`` of a file or module. A file in ``files`` is not run again.

    Raises:
        LoadError: there is no such file, module or function.
        ImportFailed: running the file or importing the module raised.
    """
    if is_file(source):
        path = Path(os.path.expanduser(source)).resolve()
        if path not in files:
            files[path] = _run_file(path)
        module = files[path]
    else:
        module = _import_module(source)
    if not hasattr(module, attribute):
        public = tuple(name for name, value in vars(module).items() if callable(value) and not name.startswith("_"))
        raise LoadError(f"{source} has no {attribute!r}", attribute, public)
    function = getattr(module, attribute)
    if not callable(function) or inspect.isclass(function):
        kind = "a class" if inspect.isclass(function) else f"a value of type {type(function).__name__}"
        raise LoadError(f"{attribute!r} is {kind}, not a function")
    return function


def is_file(source: str) -> bool:
    return source.endswith(".py") or "/" in source


def line_of(error: BaseException, *ours: str) -> str:
    """Where in the user's code ``error`` was raised: ``file.py, line 3 (`source`): ``, or "" if it never got there.

    ``ours``: directories whose files are not the user's.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno} (`{(error.text or '').strip()}`): "
    not_theirs = {*map(Path, ours), Path(__file__).parent, Path(importlib.__file__).parent}
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and Path(frame.filename).parent not in not_theirs
    ]
    if not frames:
        return ""
    # The error may come from deep inside a library; what the user can mend is the last line of the file it was
    # called from.
    frame = [frame for frame in frames if frame.filename == frames[0].filename][-1]
    return f"{frame.filename}, line {frame.lineno} (`{frame.line}`): "


def _run_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise LoadError(f"there is no file {path}")
    _allow_imports_from(path.parent)
    # Compiled from the source itself and not through importlib's cache, which would take a file that was edited within
    # the same second, to the same size, for unchanged.
    module = ModuleType(f"oncurve_rewards_{path.stem}")
    module.__file__ = str(path)
    # Dataclasses and pickling look a class's module up by its name.
    sys.modules[module.__name__] = module
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise ImportFailed from error
    return module


def _import_module(name: str) -> ModuleType:
    _allow_imports_from(Path.cwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise LoadError(f"there is no module {error.name!r}") from error
        raise ImportFailed from error


def _allow_imports_from(directory: Path) -> None:
    # At the end: a user's `random.py` must not stand in for the standard library's.
    if str(directory) not in sys.path:
        sys.path.append(str(directory))
