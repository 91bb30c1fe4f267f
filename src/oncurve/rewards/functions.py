"""From the names in a recipe to reward functions.

Loading a function runs the user's code, in this process and with all its rights.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import math
import os
import random
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from oncurve.rewards.answer import accuracy
from oncurve.rewards.code import code_partial_reward, code_reward, code_speed_reward
from oncurve.rewards.format import format_reward, think_format_reward
from oncurve.types import OncurveError

BUILT_IN: Mapping[str, Callable[..., Any]] = {
    "accuracy": accuracy,
    "code": code_reward,
    "code_partial": code_partial_reward,
    "code_speed": code_speed_reward,
    "format": format_reward,
    "think_format": think_format_reward,
}
"""The reward functions that a recipe may call by a bare name."""

KEYWORDS = ("prompts", "prompt_texts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
"""What every reward function is offered beside the data set's columns. A column of the same name is not passed on."""


class RewardError(OncurveError):
    """A reward function that cannot be loaded, that failed, or that returned something else than scores."""


@dataclass(frozen=True, slots=True)
class NamedReward:
    """A reward function, the name its numbers are recorded under, and its weight in the total."""

    name: str
    weight: float
    function: Callable[..., Any]


def load_functions(names: Sequence[str], weights: Sequence[float] | None = None) -> list[NamedReward]:
    """Load reward functions in the order given.

    A file is run once however many of its functions are named, and its directory is put at the end of ``sys.path`` so
    that it can import its neighbours; for modules the working directory is, as ``python -m`` does it.

    Args:
        names: for each function a name from ``BUILT_IN``, ``path/to/file.py:function`` (relative to the working
            directory) or ``package.module:function``.
        weights: one finite number for each; default 1.0.

    Returns:
        One ``NamedReward`` each. Built-in functions keep the name of the registry, others are called by their
        ``__name__``; of two that are called the same the second becomes ``name_2``.

    Raises:
        RewardError: no such name, file, module or function (the nearest is named); it cannot be called; the file or
            module fails on import (its line is shown); weights that do not fit.
    """
    if weights is None:
        weights = [1.0] * len(names)
    if len(weights) != len(names):
        raise RewardError(
            f"{len(weights)} weights for {len(names)} reward functions ({', '.join(names)}); give one each"
        )
    rewards: list[NamedReward] = []
    files: dict[Path, ModuleType] = {}
    for spec, weight in zip(names, weights, strict=True):
        if not math.isfinite(weight):
            raise RewardError(f"the weight of reward {spec!r} is {weight}; give a finite number")
        with process_state_kept():
            name, function = _load(spec, files)
        rewards.append(NamedReward(_unused(name, {reward.name for reward in rewards}), float(weight), function))
    return rewards


def check_signature(reward: NamedReward, columns: Collection[str]) -> None:
    """Check before any sampling that ``reward`` can be called on a data set with these columns.

    Raises:
        RewardError: it requires a parameter that neither a column nor ``KEYWORDS`` gives, or one by position only.
    """
    offered = {*KEYWORDS, *columns}
    for parameter in _parameters(reward.function) or ():
        if parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise RewardError(
                f"reward {reward.name!r} takes `{parameter.name}` by position only; rewards are called with keywords"
            )
        if parameter.name not in offered:
            raise RewardError(
                f"reward {reward.name!r} requires `{parameter.name}`, which the data set does not have"
                f"{_did_you_mean(parameter.name, offered)}; its columns are {_listed(columns)}, "
                f"and every reward is also offered {_listed(KEYWORDS)}"
            )


@contextmanager
def process_state_kept() -> Iterator[None]:
    """Python's ``random`` and the working directory are afterwards as they were, whatever a user's code did: a run must
    resume to the same bits, and its relative paths must go on meaning the same."""
    state, directory = random.getstate(), os.getcwd()
    try:
        yield
    finally:
        random.setstate(state)
        os.chdir(directory)


def accepted(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the ``offered`` keywords that ``function`` takes: all if it has ``**kwargs``, else the ones it names."""
    parameters = _parameters(function)
    if parameters is None or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(offered)
    named = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    return {name: value for name, value in offered.items() if name in named}


def line_of(error: BaseException) -> str:
    """Where in the user's code ``error`` was raised: ``file.py, line 3 (`source`): ``, or "" if it never got there."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno} (`{(error.text or '').strip()}`): "
    ours = Path(__file__).parent
    imports = Path(importlib.__file__).parent
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and Path(frame.filename).parent not in (ours, imports)
    ]
    if not frames:
        return ""
    # The error may come from deep inside a library; what the user can mend is the last line of the file it was
    # called from.
    frame = [frame for frame in frames if frame.filename == frames[0].filename][-1]
    return f"{frame.filename}, line {frame.lineno} (`{frame.line}`): "


def _load(spec: str, files: dict[Path, ModuleType]) -> tuple[str, Callable[..., Any]]:
    if spec in BUILT_IN:
        return spec, BUILT_IN[spec]
    source, colon, attribute = spec.rpartition(":")
    if not colon or not source or not attribute:
        raise RewardError(
            f"there is no reward {spec!r}{_did_you_mean(spec, BUILT_IN)}; give one of {_listed(BUILT_IN)}, "
            "path/to/file.py:function, or package.module:function"
        )
    if source.endswith(".py") or "/" in source:
        path = Path(os.path.expanduser(source)).resolve()
        if path not in files:
            files[path] = _run_file(path, spec)
        module = files[path]
    else:
        module = _import_module(source, spec)
    if not hasattr(module, attribute):
        public = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise RewardError(f"reward {spec!r}: {source} has no {attribute!r}{_did_you_mean(attribute, public)}")
    function = getattr(module, attribute)
    if not callable(function) or inspect.isclass(function):
        kind = "a class" if inspect.isclass(function) else f"a value of type {type(function).__name__}"
        raise RewardError(f"reward {spec!r}: {attribute!r} is {kind}, not a function")
    return getattr(function, "__name__", attribute), function


def _run_file(path: Path, spec: str) -> ModuleType:
    if not path.is_file():
        raise RewardError(f"reward {spec!r}: there is no file {path}")
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
        raise _failed_import(error, spec) from error
    return module


def _import_module(name: str, spec: str) -> ModuleType:
    _allow_imports_from(Path.cwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise RewardError(f"reward {spec!r}: there is no module {error.name!r}") from error
        raise _failed_import(error, spec) from error


def _failed_import(error: BaseException, spec: str) -> RewardError:
    return RewardError(f"reward {spec!r} failed on import: {line_of(error)}{type(error).__name__}: {error}")


def _allow_imports_from(directory: Path) -> None:
    # At the end: a user's `random.py` must not stand in for the standard library's.
    if str(directory) not in sys.path:
        sys.path.append(str(directory))


def _unused(name: str, taken: Collection[str]) -> str:
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    return candidate


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:
        # Some functions written in C do not tell.
        return None


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "(none)"
