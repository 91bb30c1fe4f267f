"""Messages between the trainer and its workers: JSON behind a length, with a tag for what JSON lacks. Never pickled."""

from __future__ import annotations

import base64
import datetime
import decimal
import fractions
import json
import os
from typing import Any

_TAG = "\x00oncurve"
_PLAIN = frozenset({str, int, float, bool, type(None)})


class Foreign(Exception):
    """A value that cannot be sent. ``kind`` is its type's name, ``shown`` a short text."""

    def __init__(self, value: Any) -> None:
        super().__init__(f"a {type(value).__name__} cannot be sent")
        self.kind, self.shown = type(value).__name__, repr(value)[:200]


def encode(value: Any) -> Any:
    """A value of a data set or of a reward function as JSON has it; tuples become lists, arrays and tensors too.

    Raises:
        Foreign: it is, or holds, something that has no such form.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, list | tuple):
        return [item if type(item) in _PLAIN else encode(item) for item in value]
    if isinstance(value, dict):
        if all(type(key) is str for key in value) and _TAG not in value:
            return {key: encode(item) for key, item in value.items()}
        return {_TAG: "dict", "v": [[encode(key), encode(item)] for key, item in value.items()]}
    if hasattr(value, "tolist"):
        return encode(value.tolist())
    for kind, tag, to_text in _TAGGED:
        if isinstance(value, kind):
            return {_TAG: tag, "v": to_text(value)}
    if isinstance(value, set | frozenset):
        return {_TAG: "set", "v": [encode(item) for item in value]}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    raise Foreign(value)


def decode(value: Any) -> Any:
    """What ``encode`` was given, but for tuples and arrays."""
    if isinstance(value, list):
        return [item if type(item) in _PLAIN else decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: decode(item) for key, item in value.items()}
    tag, inner = value[_TAG], value["v"]
    if tag == "dict":
        return {_hashable(decode(key)): decode(item) for key, item in inner}
    if tag == "set":
        return {_hashable(decode(item)) for item in inner}
    return _FROM_TEXT[tag](inner)


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


# In this order: a datetime is a date as well.
_TAGGED: tuple[tuple[Any, str, Any], ...] = (
    (bytes, "bytes", lambda value: base64.b64encode(value).decode()),
    (decimal.Decimal, "decimal", str),
    (fractions.Fraction, "fraction", str),
    (datetime.datetime, "datetime", datetime.datetime.isoformat),
    (datetime.date, "date", datetime.date.isoformat),
    (datetime.time, "time", datetime.time.isoformat),
    (datetime.timedelta, "timedelta", datetime.timedelta.total_seconds),
)
_FROM_TEXT: dict[str, Any] = {
    "bytes": base64.b64decode,
    "decimal": decimal.Decimal,
    "fraction": fractions.Fraction,
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "timedelta": lambda value: datetime.timedelta(seconds=value),
}


def pack(message: Any) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    return len(body).to_bytes(8, "big") + body


def read_message(fd: int) -> Any | None:
    """The next message; None at the end of the stream."""
    head = _read_exactly(fd, 8)
    body = _read_exactly(fd, int.from_bytes(head, "big")) if head is not None else None
    return None if body is None else json.loads(body)


def write_message(fd: int, message: Any) -> None:
    left = memoryview(pack(message))
    while left:
        left = left[os.write(fd, left) :]


def _read_exactly(fd: int, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = os.read(fd, min(1 << 20, size - len(data)))
        if not part:
            return None
        data += part
    return bytes(data)
