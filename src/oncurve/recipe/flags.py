"""Flags laid over a recipe: ``--section.key value``."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterator, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from oncurve.config import Recipe, leaves, usual_pass_at
from oncurve.presets import without_preset
from oncurve.recipe.errors import nearest_key
from oncurve.recipe.text import KeyPath, RecipeError, Tree, is_table


def apply_flags(tree: Tree, flags: Sequence[str]) -> tuple[Tree, list[KeyPath]]:
    """A copy of ``tree`` with the flags in it, and the keys they set. Of two flags for one key the last counts.

    ``--grpo.learning-rate 1e-5``, ``--grpo.learning_rate=1e-5`` and ``grpo.learning_rate=1e-5`` mean the same;
    a switch needs no value (``--model.gradient-checkpointing``); a list is ``a,b`` or ``[a, b]``; below
    ``data.options`` any key goes, and its value is read as TOML if it can be, else as text. ``none`` takes a key
    out, but for an option of which it is a value (``--grpo.ratio none``). ``--grpo.preset NAME`` puts that preset in
    the place of the one in ``tree``, whose own terms go with it. A value that does not fit its option stays text, for
    the check that follows to refuse. Raises RecipeError for a flag that is no option.
    """
    tree = copy.deepcopy(tree)
    pairs = list(_pairs(flags))
    if is_table(tree.get("grpo")) and any(key == "grpo.preset" for key, _ in pairs):
        tree["grpo"] = without_preset(tree["grpo"])
    if is_table(tree.get("eval")) and any(key == "eval.samples" for key, _ in pairs):
        tree["eval"] = _without_usual_pass_at(tree["eval"])
    paths: list[KeyPath] = []
    for key, text in pairs:
        path = tuple(key.split("."))
        _put(tree, path, _value(key, text))
        paths.append(path)
    return tree, paths


def _without_usual_pass_at(section: Tree) -> Tree:
    """``section`` ([eval]) without a pass_at that is what it would be anyway: it follows the number of samples, also in
    a recipe that was written out whole."""
    if section.get("pass_at") != usual_pass_at(section.get("samples")):
        return section
    return {name: value for name, value in section.items() if name != "pass_at"}


def _put(tree: Tree, path: tuple[str, ...], value: Any) -> None:
    """Set a key, making the tables on its way; None takes it out, and then a missing table is left missing."""
    *tables, last = path
    for table in tables:
        if not isinstance(tree.get(table), dict):
            if value is None:
                return
            tree[table] = {}
        tree = tree[table]
    if value is None:
        tree.pop(last, None)
    else:
        tree[last] = value


def _pairs(flags: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """``(dotted key, text of the value or None)`` of each flag."""
    waiting = list(reversed(flags))
    while waiting:
        flag = waiting.pop()
        name, equals, text = flag.removeprefix("--").partition("=")
        if not flag.startswith("--") and not (equals and "." in name):
            raise RecipeError(f"command line: {flag!r} is no flag; an option is set by --section.key value")
        value: str | None = text
        if not equals:
            value = waiting.pop() if waiting and not waiting[-1].startswith("--") else None
        yield name.replace("-", "_"), value


def _value(key: str, text: str | None) -> Any:
    """What the flag puts under its key; None to take the key out."""
    options = leaves()
    free = any(_is_dict(info.annotation) and key.startswith(f"{name}.") for name, info in options.items())
    if not free and key not in options and key not in Recipe.model_fields:
        near = nearest_key(key)
        raise RecipeError(f"command line: --{key}: no such option" + (f"; did you mean --{near}?" if near else ""))
    annotation = options[key].annotation if key in options else None
    if text is None and annotation is not bool:
        raise RecipeError(f"command line: --{key} needs a value")
    if text is None:
        return True
    if text.lower() == "none":
        return "none" if get_origin(annotation) is Literal and "none" in get_args(annotation) else None
    if free or _is_dict(annotation):
        return _free(text)
    if annotation is None:
        one = next(name for name in options if name.startswith(f"{key}."))
        raise RecipeError(f"command line: --{key} {text}: {key} is a section; set one of its options, such as --{one}")
    return _typed(text, annotation)


def _is_dict(annotation: Any) -> bool:
    return get_origin(annotation) is dict


def _typed(text: str, annotation: Any) -> Any:
    """The text as its option's type wants it, or unchanged if it does not fit."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _typed(text, inside[0])
    if origin in (Union, UnionType):
        return _typed(text, next(kind for kind in inside if kind is not NoneType))
    if origin in (list, tuple):
        return [_typed(item, inside[0]) for item in _items(text)]
    if annotation is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if annotation is int and re.fullmatch(r"[+-]?[0-9]{1,30}(_[0-9]{1,30})*", text):
        return int(text)
    if annotation is float:
        try:
            return float(text)
        except ValueError:
            return text
    return text


def _free(text: str) -> Any:
    """A value nobody has a type for: TOML if it is (3, 1e-5, true, "3", [1, 2], {a = 1}), a list of words, or text."""
    try:
        found: dict[str, Any] = tomllib.loads(f"value = {text}")
    except ValueError:
        return [_free(item) for item in _items(text)] if re.fullmatch(r"\[.*\]", text, re.DOTALL) else text
    value: Any = found["value"]
    plain = len(found) == 1 and isinstance(value, str | int | float | list | dict)  # else a date, or a second line
    return value if plain else text  # pyright: ignore[reportUnknownVariableType]


def _items(text: str) -> list[str]:
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    return [item.strip().strip("\"'") for item in inner.split(",")] if inner.strip() else []
