"""The text of a recipe: TOML and YAML in, with the line of every key; TOML out. It knows no option of any recipe."""

# pyright: standard
# (PyYAML comes without complete types)
from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import yaml

from oncurve.types import OncurveError

Tree = dict[str, Any]
KeyPath = tuple[str | int, ...]
"""Where a value stands: ``("grpo", "betas", 0)``."""


class RecipeError(OncurveError):
    """A recipe that cannot be used. The text names the file, the line, the key, its value and what would be right."""


@dataclass(frozen=True)
class Source:
    """What one file says."""

    name: str
    """The path as the user wrote it."""
    tree: Tree
    lines: Mapping[KeyPath, int]
    """Line (from 1) of every key that has one of its own."""

    def place(self, path: KeyPath) -> str:
        """``file:line`` of a key, or of the nearest table around it, or ``file`` alone."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return f"{self.name}:{self.lines[path[:length]]}"
        return self.name


def read_source(path: Path | str) -> Source:
    """Read a ``.toml``, ``.yaml`` or ``.yml`` file. Raises RecipeError for anything that is not one."""
    path, name = Path(path), str(path)
    if path.is_dir():
        inside = path / "config.toml"
        hint = f"; did you mean {inside}?" if inside.is_file() else ""
        raise RecipeError(f"{name} is a directory; a recipe is a .toml or .yaml file{hint}")
    parse = {".toml": _parse_toml, ".yaml": _parse_yaml, ".yml": _parse_yaml}.get(path.suffix.lower())
    if parse is None:
        raise RecipeError(f"{name}: a recipe ends in .toml, .yaml or .yml, not {path.suffix or 'without a suffix'}")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise RecipeError(f"{name}: no such file") from None
    except OSError as error:
        raise RecipeError(f"{name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{name} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from None
    try:
        source = parse(text, name)
    except RecursionError:
        raise RecipeError(f"{name}: nested too deeply") from None
    if not source.tree:
        raise RecipeError(f"{name} is empty: a recipe needs at least [model] with a path and [data] with train")
    return source


# --- TOML -----------------------------------------------------------------------------------------------------------


def _parse_toml(text: str, name: str) -> Source:
    try:
        tree = tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, or an integer of thousands of digits
        found = re.search(r"\(at line (\d+), column \d+\)", str(error))
        place = f"{name}:{found[1]}" if found else name
        reason = re.sub(r" \(at .*\)$", "", str(error))
        if "overwrite" in reason or "Cannot declare" in reason or "Cannot mutate" in reason:
            reason = "the same key or table is given twice"
        line = text.split("\n")[int(found[1]) - 1].strip() if found else ""
        raise RecipeError(f"{place}: not valid TOML: {reason}" + (f": {line}" if line else "")) from None
    return Source(name, tree, _toml_lines(text))


_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY_PART = re.compile(r"""[ \t]*("(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[A-Za-z0-9_-]+)[ \t]*""")
_VALUE_PART = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}' + r"|'''.*?'{3,5}" + r'|"(?:[^"\\\n]|\\.)*"|' + r"'[^'\n]*'|#[^\n]*|.", re.DOTALL
)


def _toml_lines(text: str) -> dict[KeyPath, int]:
    """The line of each table and key. tomllib gives no positions, so this scans once more; since tomllib has accepted
    the text, the scan may take its grammar for granted. Keys inside an inline table have the line of that table."""
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    line, counted, at = 1, 0, _skip_blank(text, 0)
    while at < len(text):
        line, counted = line + text.count("\n", counted, at), at
        if text[at] == "[":
            table, at = _toml_key(text, at + (2 if text.startswith("[[", at) else 1))
            lines.setdefault(table, line)
            at = _skip_value(text, at)
        else:
            key, at = _toml_key(text, at)
            lines[table + key] = line
            at = _skip_value(text, at + 1)
        at = _skip_blank(text, at)
    return lines


def _skip_blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _toml_key(text: str, at: int) -> tuple[KeyPath, int]:
    """A dotted key and the position of what follows it."""
    parts: list[str] = []
    while found := _KEY_PART.match(text, at):
        part, at = found[1], found.end()
        parts.append(tomllib.loads(f"key = {part}")["key"] if part[0] in "\"'" else part)
        if text[at : at + 1] != ".":
            break
        at += 1
    return tuple(parts), at


def _skip_value(text: str, at: int) -> int:
    """The position of the line end behind a value: brackets may span lines, strings and comments may hold brackets."""
    depth = 0
    while (found := _VALUE_PART.match(text, at)) and not (found[0] == "\n" and depth <= 0):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        at = found.end()
    return at


# --- YAML -----------------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with fewer surprises: ``1e-6`` is a number, ``010`` and ``1:30`` and dates are text."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own hook)


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"(?:yes|no|true|false|on|off)", list("yYnNtTfFoO")),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F_]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*\.[0-9_]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    _flags = re.IGNORECASE if _tag == "bool" else 0
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z", _flags), _first)


def _parse_yaml(text: str, name: str) -> Source:
    lines: dict[KeyPath, int] = {}
    try:
        for event in yaml.parse(text, _Loader):
            if isinstance(event, yaml.AliasEvent):
                # they could repeat a list a billion times, and a recipe is short
                place = f"{name}:{event.start_mark.line + 1}"
                raise RecipeError(f"{place}: *{event.anchor}: aliases are not read here; write the value out")
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None:
            _walk_yaml(node, (), lines, name)
        tree = None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}" if mark else name
        raise RecipeError(f"{place}: not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(f"{name}: not valid YAML: {' '.join(str(error).split())}") from None
    if tree is not None and not isinstance(tree, dict):
        raise RecipeError(f"{name}: a recipe is a table of sections, such as 'model:', not {describe(tree)}")
    return Source(name, tree or {}, lines)


def _walk_yaml(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], name: str) -> None:
    """Note the line of every key, and refuse keys that stand twice (PyYAML takes the last) or are not text."""
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*path, index)] = item.start_mark.line + 1
            _walk_yaml(item, (*path, index), lines, name)
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if key.tag != "tag:yaml.org,2002:str":
            shown = key.value if isinstance(key, yaml.ScalarNode) else "a list or table"
            raise RecipeError(f"{name}:{line}: a key must be text, not {shown} (put it in quotes)")
        if key.value in seen:
            dotted = dotted_name((*path, key.value))
            raise RecipeError(f"{name}:{line}: {dotted} is given twice (first on line {seen[key.value]})")
        seen[key.value] = line
        lines[(*path, key.value)] = line
        _walk_yaml(value, (*path, key.value), lines, name)


# --- out ------------------------------------------------------------------------------------------------------------


def to_toml(tree: Mapping[str, Any]) -> str:
    """Sections of values as TOML that can be read again: ``[section]``, a table inside it as ``[section.key]``, deeper
    tables in line. What is None is left out, for TOML has no null. Raises RecipeError for a value TOML cannot hold."""
    blocks: list[str] = []
    for name, section in tree.items():
        if section is None:
            continue
        tables = {key: value for key, value in section.items() if isinstance(value, Mapping) and value}
        blocks.append(_block((name,), {key: value for key, value in section.items() if key not in tables}))
        blocks += [_block((name, key), table) for key, table in tables.items()]
    return "\n".join(blocks)


def toml_value(value: Any) -> str:
    """One value in TOML's notation, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str) and not re.search(r"[\ud800-\udfff]", value):
        # JSON's escapes are TOML's, except that TOML wants DEL escaped too
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        pairs = [f"{_key(key)} = {toml_value(item)}" for key, item in value.items() if item is not None]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    raise RecipeError(f"{value!r} cannot stand in a recipe: only text, numbers, true/false, lists and tables can")


def dotted_name(path: KeyPath) -> str:
    """``("grpo", "betas", 0)`` as ``grpo.betas[0]``."""
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return name.removeprefix(".")


def is_table(value: Any) -> TypeGuard[Tree]:
    """For the type checker: what TOML calls a table has text for keys."""
    return isinstance(value, dict)


def describe(value: Any) -> str:
    """The kind of a value in words a user knows."""
    kinds = (bool, "true/false"), (int, "a whole number"), (float, "a decimal number"), (str, "text"), (list, "a list")
    if value is None:
        return "null"
    return next((words for kind, words in kinds if isinstance(value, kind)), "a table")


def _block(path: tuple[str, ...], values: Mapping[str, Any]) -> str:
    lines = [f"{_key(key)} = {toml_value(value)}\n" for key, value in values.items() if value is not None]
    return f"[{'.'.join(map(_key, path))}]\n" + "".join(lines)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)
