"""Single columns of a run log: how values become them and come back, and what is said of one that has been damaged."""

from __future__ import annotations

import json
import math
import re
import sys
from array import array
from collections.abc import Sequence
from typing import Any, NoReturn

KEYS = {
    "meta": ("key",),
    "metrics": ("stage", "iteration", "step", "name"),
    "completions": ("split", "stage", "iteration", "prompt_id", "sample"),
    "evals": ("stage", "iteration", "kind", "name"),
}
"""The columns that say which row of a table it is."""


class DamagedRow(ValueError):
    """A row that no RunLog has written. The text names the table, the row and the column."""


class Stored:
    """One row as sqlite gives it: whatever column is asked for is what its table says it is, or the row is damaged.

    Every method takes the name of a column and raises DamagedRow.
    """

    def __init__(self, table: str, columns: str, values: Sequence[Any]) -> None:
        self._table = table
        self._values = dict(zip(columns.split(", "), values, strict=True))

    def integer(self, column: str) -> int:
        value = self._values[column]
        return value if isinstance(value, int) else self._refuse(column, "a whole number")

    def number(self, column: str) -> float | None:
        value = self._values[column]
        return value if value is None or isinstance(value, float | int) else self._refuse(column, "a number or NULL")

    def name(self, column: str) -> str:
        value = self._values[column]
        return value if isinstance(value, str) else self._refuse(column, "text")

    def text(self, column: str) -> str:
        """Text, or the bytes of one that UTF-8 cannot hold."""
        value = self._values[column]
        try:
            return text_from_sql(value) if isinstance(value, str | bytes) else self._refuse(column, "text")
        except UnicodeDecodeError:
            return self._refuse(column, "text in UTF-8")

    def array(self, column: str, typecode: str, length: int | None = None) -> tuple[Any, ...]:
        """``length``: how many entries there must be."""
        value = self._values[column]
        if not isinstance(value, bytes) or len(value) % 4 or length not in (None, len(value) // 4):
            size = "4 bytes for each token" if length is None else f"4 bytes for each of {length} tokens"
            self._refuse(column, f"a BLOB of {size}")
        return unpack(typecode, value)

    def optional_array(self, column: str, typecode: str, length: int) -> tuple[Any, ...] | None:
        return None if self._values[column] is None else self.array(column, typecode, length)

    def table(self, column: str) -> dict[str, Any]:
        """A JSON object."""
        value = self._values[column]
        try:
            found = json.loads(value) if isinstance(value, str) else None
        except (ValueError, RecursionError):  # ValueError: also a number of thousands of digits
            found = None
        return found if isinstance(found, dict) else self._refuse(column, "a JSON object")

    def parts(self, column: str) -> dict[str, float | None]:
        """A JSON object of numbers, infinities as they were written, and null."""
        found = self.table(column)
        try:
            return {name: None if value is None else _as_float(value) for name, value in found.items()}
        except (TypeError, OverflowError):
            return self._refuse(column, "a JSON object of numbers and null")

    def sections(self, column: str) -> dict[str, dict[str, Any]]:
        """A JSON object of objects; those that are null are left out."""
        found = {name: value for name, value in self.table(column).items() if value is not None}
        if not all(isinstance(value, dict) for value in found.values()):
            self._refuse(column, "a JSON object of objects")
        return found

    def digits(self, column: str) -> int:
        """A whole number that was written as text."""
        text = self.name(column)
        return int(text) if re.fullmatch("[0-9]{1,18}", text) else self._refuse(column, "a whole number")

    def _refuse(self, column: str, wanted: str) -> NoReturn:
        key = ", ".join(f"{name}={_shown(self._values.get(name))}" for name in KEYS[self._table])
        raise DamagedRow(
            f"table {self._table}, row ({key}), column {column} is {_shown(self._values[column])} where {wanted} "
            "belongs: the row is damaged; put back a copy of that file"
        )


def _as_float(value: Any) -> float:
    if value in ("Infinity", "-Infinity") or (isinstance(value, int | float) and not isinstance(value, bool)):
        return float(value)
    raise TypeError


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return f"a BLOB of {len(value)} bytes"
    return "NULL" if value is None else f"{value!a:.60}"


def number(value: float | None) -> float | None:
    """As a REAL column keeps it: sqlite has no NaN."""
    return None if value is None or math.isnan(value) else float(value)


def number_from_sql(value: float | None) -> float:
    return math.nan if value is None else value


def text_to_sql(text: str) -> str | bytes:
    """The text itself, or bytes if it holds lone surrogates: sqlite's TEXT is UTF-8, which has none."""
    return text if text.isascii() or _is_utf8(text) else text.encode("utf-8", "surrogatepass")


def text_from_sql(value: str | bytes) -> str:
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


def pack(typecode: str, values: Sequence[float]) -> bytes:
    """``i``: int32, ``f``: float32, little-endian."""
    packed = array(typecode, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(typecode: str, blob: bytes) -> tuple[Any, ...]:
    values = array(typecode)
    values.frombytes(blob)
    if sys.byteorder == "big":
        values.byteswap()
    return tuple(values)


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
