"""From the names in a recipe to reward functions.

A user's function runs in a process of its own, with the user's rights, unless it is asked for ``inline:``.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from oncurve.rewards.code import code_partial_reward, code_reward, code_speed_reward
from oncurve.rewards.correctness import accuracy
from oncurve.rewards.format import format_reward, graded_format_reward, think_format_reward
from oncurve.rewards.gym import reasoning_gym_reward
from oncurve.rewards.judge import judge_reward
from oncurve.rewards.language import language_reward
from oncurve.rewards.learned import LEARNED, ModelToLoad
from oncurve.rewards.length import cosine_reward, overlong_reward, repetition_reward
from oncurve.rewards.pool import FunctionFailed, FunctionLate, Lone, Supervised
from oncurve.rewards.pool.inner import load
from oncurve.rewards.verifiers import verifiers_reward
from oncurve.types import OncurveError

BUILT_IN: Mapping[str, Callable[..., Any]] = {
    "accuracy": accuracy,
    "code": code_reward,
    "code_partial": code_partial_reward,
    "code_speed": code_speed_reward,
    "cosine": cosine_reward,
    "format": format_reward,
    "graded_format": graded_format_reward,
    "judge": judge_reward,
    "language": language_reward,
    "overlong": overlong_reward,
    "reasoning_gym": reasoning_gym_reward,
    "repetition": repetition_reward,
    "think_format": think_format_reward,
    "verifiers": verifiers_reward,
}
"""The reward functions that a recipe may call by a bare name."""

KEYWORDS = ("prompts", "prompt_texts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
"""What every reward function is offered beside the data set's columns. A column of the same name is not passed on."""


INLINE = "inline:"
"""Before the name of a function: run it in the trainer's own process."""


class RewardError(OncurveError):
    """A reward function that cannot be loaded, that failed, or that returned something else than scores."""


@dataclass(frozen=True, slots=True)
class NamedReward:
    """A reward function, the name its numbers are recorded under, and its weight in the total."""

    name: str
    weight: float
    function: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keywords that it is given beside what every function is offered. They come before a column of the same name."""
    place: str = ""
    """The file or module it comes from; empty for one of Oncurve's own."""

    @property
    def title(self) -> str:
        """How an error names it: ``'mine' (my_reward.py)``."""
        return f"{self.name!r} ({self.place})" if self.place else repr(self.name)


def load_functions(
    names: Sequence[str],
    weights: Sequence[float] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[NamedReward]:
    """Load reward functions in the order given.

    A file is run once however many of its functions are named, in a process that they share, and its directory is put
    at the end of ``sys.path`` so that it can import its neighbours; for modules the working directory is, as
    ``python -m`` does it. With ``inline:`` before its name a function is loaded into this process.

    Args:
        names: for each function a name from ``BUILT_IN``, ``path/to/file.py:function`` (relative to the working
            directory) or ``package.module:function``, the two also after ``inline:``; or ``reward_model:DIRECTORY``,
            which ``oncurve.train.learned_rewards`` has yet to load.
        weights: one finite number for each; default 1.0.
        options: keywords for a function, by the name it gets.

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
    loaded = _Loaded()
    for spec, weight in zip(names, weights, strict=True):
        if not math.isfinite(weight):
            raise RewardError(f"the weight of reward {spec!r} is {weight}; give a finite number")
        name, function = _load(spec, loaded)
        name = _unused(name, {reward.name for reward in rewards})
        place = "" if spec in BUILT_IN or spec.startswith(LEARNED) else spec.removeprefix("inline:").rpartition(":")[0]
        rewards.append(NamedReward(name, float(weight), function, dict((options or {}).get(name, {})), place))
        _check_options(rewards[-1])
    for name in options or {}:
        known = [reward.name for reward in rewards]
        if name not in known:
            raise RewardError(f"rewards.options.{name}: there is no function {name!r}{_did_you_mean(name, known)}")
    return rewards


def check_signature(reward: NamedReward, columns: Collection[str]) -> None:
    """Check before any sampling that ``reward`` can be called on a data set with these columns.

    Raises:
        RewardError: it requires a parameter that neither a column nor ``KEYWORDS`` gives, or one by position only.
    """
    offered = {*KEYWORDS, *columns, *reward.options}
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
                f"and every reward is also offered {_listed(KEYWORDS)}; what is no column can be set as "
                f"rewards.options.{reward.name}.{parameter.name}"
            )


def _check_options(reward: NamedReward) -> None:
    """Its options are parameters of it; one of Oncurve's own is called with an empty batch, to look at their values."""
    parameters = _parameters(reward.function)
    if parameters is None or not reward.options:
        return
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    own = _is_own(reward.function)
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters) and not own
    for name in reward.options:
        if name in KEYWORDS or (name not in named and not takes_all):
            free = [parameter for parameter in named if parameter not in KEYWORDS]
            raise RewardError(
                f"rewards.options.{reward.name}.{name}: reward {reward.name!r} takes no option {name!r}"
                f"{_did_you_mean(name, free)}"
            )
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if own:
        try:
            reward.function(**{name: [] for name in required} | dict(reward.options))
        except (ValueError, TypeError, OncurveError) as error:
            raise RewardError(f"rewards.options.{reward.name}: {error}") from error


def _is_own(function: Callable[..., Any]) -> bool:
    return isinstance(function, ModelToLoad) or function in BUILT_IN.values()


def accepted(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the ``offered`` keywords that ``function`` takes: all if it has ``**kwargs``, else the ones it names."""
    parameters = _parameters(function)
    if parameters is None or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(offered)
    named = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    return {name: value for name, value in offered.items() if name in named}


def line_of(error: BaseException) -> str:
    """Where in the user's code ``error`` was raised: ``file.py, line 3 (`source`): ``, or "" if it never got there."""
    if isinstance(error, FunctionFailed | FunctionLate):
        return error.place
    return load.line_of(error, str(Path(__file__).parent), str(Path(__file__).parent / "pool"))


def kind_of(error: BaseException) -> str:
    """The type of ``error`` as the user's code has it; "" for what Oncurve itself says."""
    if isinstance(error, OncurveError):
        return ""
    return error.kind if isinstance(error, FunctionFailed | FunctionLate) else type(error).__name__


def said_by(error: BaseException) -> str:
    """Place, type and text of an error."""
    kind = kind_of(error)
    return f"{line_of(error)}{kind}: {error}" if kind else f"{line_of(error)}{error}"


def _load(spec: str, loaded: _Loaded) -> tuple[str, Callable[..., Any]]:
    if spec in BUILT_IN:
        return spec, BUILT_IN[spec]
    if spec.startswith(LEARNED):
        path = spec.removeprefix(LEARNED)
        if not path:
            raise RewardError(f"rewards.functions: {spec!r} names no model; give the directory of one after it")
        return LEARNED.removesuffix(":"), ModelToLoad(path)
    source, colon, attribute = spec.removeprefix(INLINE).rpartition(":")
    if not colon or not source or not attribute:
        raise RewardError(
            f"there is no reward {spec!r}{_did_you_mean(spec, BUILT_IN)}; give one of {_listed(BUILT_IN)}, "
            "path/to/file.py:function, package.module:function, or reward_model:DIRECTORY"
        )
    try:
        # Oncurve's own functions look after themselves.
        if spec.startswith(INLINE) or source.partition(".")[0] == "oncurve":
            with load.process_state_kept():
                function = load.load(source, attribute, loaded.files)
            return getattr(function, "__name__", attribute), function
        key = str(Path(source).expanduser().resolve()) if load.is_file(source) else source
        supervised = Supervised(source, attribute, loaded.process(key))
        return supervised.__name__, supervised
    except load.LoadError as error:
        hint = _did_you_mean(error.wanted, error.public) if error.wanted else ""
        raise RewardError(f"reward {spec!r}: {error}{hint}") from error
    except (load.ImportFailed, FunctionFailed, FunctionLate) as error:
        cause = error.__cause__ if isinstance(error, load.ImportFailed) and error.__cause__ else error
        raise RewardError(f"reward {spec!r} failed on import: {line_of(cause)}{kind_of(cause)}: {cause}") from cause


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What the functions of one recipe share."""

    files: dict[Path, ModuleType] = field(default_factory=dict[Path, ModuleType])
    processes: dict[str, Lone] = field(default_factory=dict[str, Lone])
    """By file or module."""

    def process(self, key: str) -> Lone:
        return self.processes.setdefault(key, Lone())


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
