"""From the name of a data set to its rows: plain dicts, in the order of the source.

Everything that can be wrong with a file is found here and named with file and line, before a model is loaded.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import difflib
import hashlib
import io
import json
import logging
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from oncurve.data.verifiers import read_verifiers
from oncurve.types import OncurveError

Row = dict[str, Any]
Split = Literal["train", "eval"]

_LARGEST_CSV_FIELD = 2**31 - 1
"""csv's own limit is 131,072 characters, which a long document passes."""

WITH_OPTIONS = ("reasoning_gym:", "task:", "hub:", "verifiers:")
"""How the sources begin that ``data.options`` go to."""

log = logging.getLogger(__name__)


def read_rows(source: str, *, size: int, seed: int, options: Mapping[str, Any], split: Split = "train") -> list[Row]:
    """All rows of ``source``.

    ======================  ========================================================================================
    ``PATH.jsonl``          one JSON object a line; blank lines are skipped
    ``PATH.csv``            the first line names the columns; every value is text
    ``PATH.parquet``        needs the extra ``parquet``
    ``hub:NAME[:SPLIT]``    a Hugging Face data set, needs the extra ``hub``; SPLIT is by default ``train``, or ``test``
                            when read for evaluation; ``options`` go to ``datasets.load_dataset``
    ``reasoning_gym:NAME``  ``size`` generated questions, needs the extra ``gym``; ``options`` are the generator's own
                            settings; columns ``prompt``, ``answer``, ``metadata``, and ``reasoning_gym``: which of
                            them, with its settings
    ``verifiers:NAME``      the first ``size`` tasks of a taskset of verifiers, needs the extra ``verifiers``;
                            ``options`` are its configuration
    ======================  ========================================================================================

    ``size`` and ``seed`` matter to generated questions alone (``size`` to a taskset as well), ``options`` to the last
    three. The order of the source is
    kept: shuffling is the business of ``oncurve.data.order``.

    Raises OncurveError for whatever is missing, unreadable or empty, and for ``options`` beside a file.
    """
    kind, _, rest = source.partition(":")
    if kind == "hub":
        rows = _read_hub(rest, options, split)
    elif kind == "reasoning_gym":
        rows = _read_reasoning_gym(rest, size, seed, options, split)
    elif kind == "verifiers":
        rows = read_verifiers(rest, size, options)
    else:
        rows = _read_file(source)
        if options:
            raise OncurveError(
                f"data.options.{next(iter(options))}: {source} is a file, which takes no options; they are for "
                f"{', '.join(f'{kind}NAME' for kind in WITH_OPTIONS)}. Leave it out"
            )
    if not rows:
        raise OncurveError(f"{source} has no rows")
    return rows


def options_for(source: str, all_sources: Sequence[str], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """What of ``data.options`` goes to ``source``: nothing to a file, if another of a recipe's sources takes them."""
    elsewhere = any(other.startswith(WITH_OPTIONS) for other in all_sources)
    return {} if elsewhere and not source.startswith(WITH_OPTIONS) else options


def _read_file(source: str) -> list[Row]:
    readers = {".jsonl": _read_jsonl, ".csv": _read_csv, ".parquet": _read_parquet}
    path = Path(os.path.expanduser(source))  # Path.expanduser raises where there is no such user
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise OncurveError(
            f"{source!r} is not a data set: give a .jsonl, .csv or .parquet file, hub:NAME, reasoning_gym:NAME, "
            "verifiers:NAME or task:NAME"
        )
    if path.is_dir():
        raise OncurveError(f"{source} is a directory; give a file")
    try:
        return reader(path)
    except FileNotFoundError as error:
        beside = [p.name for p in path.parent.glob("*")] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, beside, n=1)
        hint = f"; did you mean {path.parent / near[0]}?" if near else f" (looked for {path.absolute()})"
        raise OncurveError(f"there is no file {source}{hint}") from error
    except UnicodeDecodeError as error:
        raise OncurveError(
            f"{source} is not UTF-8 text: {error.reason} at byte {error.start}; save it as UTF-8"
        ) from error
    except OSError as error:
        raise OncurveError(f"{source} cannot be read: {error.strerror or error}") from error


def _read_jsonl(path: Path) -> list[Row]:
    rows: list[Row] = []
    # utf-8-sig drops the byte order mark that some editors write. Text mode splits at line ends only, where
    # str.splitlines would also cut a string at U+2028.
    with path.open(encoding="utf-8-sig") as file:
        for number, text in enumerate(file, 1):
            line = text.strip()
            if not line:
                continue
            where = f"{path}:{number}"
            try:
                row = json.loads(line, object_pairs_hook=lambda pairs, where=where: _object(pairs, where))
            except json.JSONDecodeError as error:
                raise OncurveError(
                    f"{where}: not JSON: {error.msg} at column {error.colno}{_array_hint(line)}"
                ) from error
            except (ValueError, RecursionError) as error:  # a number of thousands of digits, or brackets without end
                raise OncurveError(f"{where}: not JSON that can be read: {error}") from error
            if not isinstance(row, dict):
                raise OncurveError(
                    f"{where}: this line is {_json_type(row)}; it must be an object, for example "
                    f'{{"prompt": "...", "answer": "..."}}'
                )
            if "\\ud" in line.lower():
                _refuse_half_characters(row, where)
            rows.append(row)
    return rows


def _object(pairs: list[tuple[str, Any]], where: str) -> Row:
    row: Row = {}
    for key, value in pairs:
        if key in row:
            raise OncurveError(f"{where}: the key {key!r} stands twice in one object")
        row[key] = value
    return row


def _refuse_half_characters(row: Row, where: str) -> None:
    """JSON may escape half of a UTF-16 pair; no tokenizer and no database takes such a string."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise OncurveError(f"{where}: {error.object[error.start]!a} is half a character (a lone surrogate)") from error


def _array_hint(line: str) -> str:
    return "; JSONL is one complete object a line, not one array" if line in ("[", "{") else ""


def _json_type(value: Any) -> str:
    names = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "true or false"}
    return names.get(type(value), "null")


def _read_csv(path: Path) -> list[Row]:
    limit = csv.field_size_limit(_LARGEST_CSV_FIELD)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            try:
                return list(_csv_rows(reader, path))
            except csv.Error as error:
                raise OncurveError(f"{path}:{reader.line_num}: not CSV: {error}") from error
    finally:
        csv.field_size_limit(limit)


def _csv_rows(reader: Any, path: Path) -> Iterable[Row]:
    header: list[str] = next(reader, [])
    for name in header:
        if not name.strip():
            raise OncurveError(f"{path}:1: a column has no name; the first line must name every column")
        if header.count(name) > 1:
            raise OncurveError(f"{path}:1: two columns are named {name!r}")
    for fields in reader:
        if not fields:
            continue
        if len(fields) != len(header):
            raise OncurveError(
                f"{path}:{reader.line_num}: {len(fields)} fields, but the first line names {len(header)}"
            )
        yield dict(zip(header, fields, strict=True))


def _read_parquet(path: Path) -> list[Row]:
    try:
        import pyarrow  # noqa: PLC0415
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as error:
        raise OncurveError(f"{path}: parquet needs pyarrow: pip install 'oncurve[parquet]'") from error
    try:
        return parquet.read_table(path).to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise OncurveError(f"{path} is not a parquet file: {error}") from error


def _read_hub(name: str, options: Mapping[str, Any], split: Split) -> list[Row]:
    name, _, part = name.partition(":")  # what is left may hold a colon itself: train[:500]
    part = part or ("train" if split == "train" else "test")
    if "split" in options:
        raise OncurveError(f"data.options.split: name the split in the source instead, hub:{name}:{options['split']}")
    try:
        import datasets  # noqa: PLC0415  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise OncurveError(f"hub:{name} needs the package datasets: pip install 'oncurve[hub]'") from error
    try:
        return [dict(row) for row in datasets.load_dataset(name, split=part, **options)]
    except (OSError, ValueError, TypeError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise OncurveError(
            f"hub:{name}: the split {part!r} cannot be loaded: {_one_line(error)}. "
            "Check name, split, data.options and the network, or download it and give a file"
        ) from error


def _read_reasoning_gym(name: str, size: int, seed: int, options: Mapping[str, Any], split: Split) -> list[Row]:
    for taken, instead in (("seed", "run.seed"), ("size", "data.size and data.eval_size")):
        if taken in options:
            raise OncurveError(f"data.options.{taken} is set by {instead}; leave it out")
    # Some generators print when they are imported, and some touch the global generator.
    state = random.getstate()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            items = _generate(name, size, _far_apart(seed, split), options)
    finally:
        random.setstate(state)
    rows = [
        {
            "prompt": item["question"],
            "answer": item["answer"],
            "metadata": item["metadata"],
            "reasoning_gym": {"name": name, "options": dict(options)},
        }
        for item in items
        if item["answer"] is not None
    ]
    if len(rows) < len(items):
        log.warning(
            "reasoning_gym:%s: %d of %d questions have no answer and were left out",
            name,
            len(items) - len(rows),
            len(items),
        )
    if not rows:
        raise OncurveError(f"reasoning_gym:{name} gives no reference answers, so there is nothing to compare with")
    return rows


def _generate(name: str, size: int, seed: int, options: Mapping[str, Any]) -> list[Row]:
    try:
        import reasoning_gym  # noqa: PLC0415
        from reasoning_gym.factory import DATASETS  # noqa: PLC0415
    except ImportError as error:
        raise OncurveError(
            f"reasoning_gym:{name} needs the package reasoning-gym: pip install 'oncurve[gym]'"
        ) from error
    if name not in DATASETS:
        near = difflib.get_close_matches(name, list(DATASETS), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise OncurveError(f"reasoning-gym has no data set {name!r}{hint}")
    known = [field.name for field in dataclasses.fields(DATASETS[name][1]) if field.name not in ("seed", "size")]
    for option in options:
        if option not in known:
            raise OncurveError(
                f"data.options.{option}: reasoning_gym:{name} has no such option; it has {', '.join(known)}"
            )
    try:
        data = reasoning_gym.create_dataset(name, size=size, seed=seed, **options)
    except (AssertionError, ValueError, TypeError) as error:  # how its configurations report bad values
        raise OncurveError(f"data.options: reasoning_gym:{name} refuses {dict(options)}: {_one_line(error)}") from error
    return [data[index] for index in range(size)]  # its iterator is shared and has one cursor


def _far_apart(seed: int, split: Split) -> int:
    """A generator's seed. reasoning-gym makes question i from seed + i, so that neighbouring seeds give nearly the same
    questions: training and evaluation, and run.seed 0 and 1, must start far from one another."""
    digest = hashlib.sha256(f"reasoning_gym/{split}/{seed}".encode()).digest()
    return int.from_bytes(digest[:4]) >> 2  # 30 bits: seed + i stays under what numpy takes


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
