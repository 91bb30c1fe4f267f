"""One number for all that a run has recorded, to see whether two runs made the same records."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from oncurve.runlog.rows import COMPLETION_COLUMNS

TIMINGS = ("time/", "perf/", "step_time")


def digest(select: Callable[[str], Iterable[tuple[Any, ...]]], exclude_prefixes: Sequence[str]) -> str:
    """sha256 of every metric, completion and evaluation but those whose name begins with one of the prefixes.
    ``select``: SQL to rows."""
    sha = hashlib.sha256()
    for table, key, name_column in (
        ("metrics", "stage, iteration, step, name", 3),
        ("completions", "split, stage, iteration, prompt_id, sample", None),
        ("evals", "stage, iteration, kind, name", 3),
    ):
        columns = COMPLETION_COLUMNS if table == "completions" else "*"
        for row in select(f"SELECT {columns} FROM {table} ORDER BY {key}"):
            if name_column is None or not str(row[name_column]).startswith(tuple(exclude_prefixes)):
                sha.update(table.encode())
                for value in row:
                    sha.update(_tagged(value))
    return sha.hexdigest()


def _tagged(value: str | bytes | int | float | None) -> bytes:
    """Bytes that tell any two column values apart."""
    match value:
        case None:
            return b"n"
        case int():
            return b"i%d;" % value
        case float():
            return b"f" + struct.pack("<d", value)
        case str():
            encoded = value.encode()
            return b"t%d;" % len(encoded) + encoded
        case bytes():
            return b"b%d;" % len(value) + value
