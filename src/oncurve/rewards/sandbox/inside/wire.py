"""Values and messages as bytes: JSON behind a length. Nothing that comes from a candidate is ever unpickled.

Scalars are JSON's own. Every array is a container, its first item says which: ``["l", 1, 2]`` is the list ``[1, 2]``,
``["t", ...]`` a tuple, ``["s", ...]`` a set, ``["z", ...]`` a frozenset, ``["d", key, value, ...]`` a dict;
``["i", "ff"]`` is a long integer in hexadecimal, ``["f", "nan"]`` a float that JSON lacks, ``["b", "00ff"]`` bytes,
``["c", re, im]`` a complex number. There are no JSON objects within a value: reading one would hash a candidate's keys.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any

MAX_DEPTH = 200
MAX_FRAME = 8 << 20
_LONG = 1 << 63
_SEQUENCES: tuple[tuple[Any, str], ...] = ((list, "l"), (tuple, "t"), (set, "s"), (frozenset, "z"))


class WireError(ValueError):
    """A value that cannot cross, or bytes that are no message."""


def encode(value: Any, depth: int = 0) -> Any:
    """``value`` in the form above. A subclass (``Counter``, a named tuple, an ``IntEnum``) crosses as the plain type.

    Raises:
        WireError: it is, or holds, something that is no plain value, or it is nested deeper than ``MAX_DEPTH``.
    """
    if value is None or value is True or value is False:
        return value
    if depth > MAX_DEPTH:
        raise WireError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, int):
        number = int.__add__(value, 0)
        return number if -_LONG < number < _LONG else ["i", format(number, "x")]
    if isinstance(value, float):
        number = float.__add__(value, 0.0)
        return number if math.isfinite(number) else ["f", repr(number)]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray):
        return ["b", bytes(value).hex()]
    if isinstance(value, complex):
        return ["c", repr(value.real), repr(value.imag)]
    if isinstance(value, dict):
        flat: list[Any] = ["d"]
        for key, item in dict.items(value):
            flat += (encode(key, depth + 1), encode(item, depth + 1))
        return flat
    for kind, tag in _SEQUENCES:
        if isinstance(value, kind):
            return [tag, *(encode(item, depth + 1) for item in kind.__iter__(value))]
    raise WireError(f"{type(value).__name__} is no plain value (number, text, list, tuple, dict, set, None)")


def decode(wire: Any, depth: int = 0) -> Any:
    """The value that ``encode`` wrote, of exactly the plain types.

    For values from our own side, and for use within the sandbox: to hash what a candidate chose can take long.

    Raises:
        WireError: nothing that ``encode`` writes.
    """
    if depth > MAX_DEPTH:
        raise WireError(f"nested deeper than {MAX_DEPTH}")
    if wire is None or isinstance(wire, bool | int | float | str):
        return wire
    if not isinstance(wire, list) or not wire or not isinstance(wire[0], str):
        raise WireError("not a value")
    tag, items = wire[0], wire[1:]
    try:
        match tag, items:
            case "i", [str(digits)]:
                return int(digits, 16)
            case "f", [str(digits)]:
                return float(digits)
            case "b", [str(digits)]:
                return bytes.fromhex(digits)
            case "c", [str(real), str(imaginary)]:
                return complex(float(real), float(imaginary))
            case (("l" | "t" | "s" | "z" | "d"), _):
                values = [decode(item, depth + 1) for item in items]
                if tag == "d":
                    return dict(zip(values[::2], values[1::2], strict=True))
                return {"l": list, "t": tuple, "s": set, "z": frozenset}[tag](values)
            case _:
                raise WireError(f"no value has the tag {tag[:10]!r}")
    except (TypeError, ValueError) as error:
        raise WireError(str(error)) from error


def pack(message: Any) -> bytes:
    """A message as a frame: four bytes of length, then JSON."""
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii")
    return len(body).to_bytes(4, "big") + body


def unpack(body: bytes) -> Any:
    """The message in the body of a frame, whoever wrote it.

    Raises:
        WireError: not JSON, nested too deep to be read, or with an integer of thousands of digits.
    """
    try:
        return json.loads(body, parse_int=_short_int, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not a message: {type(error).__name__}") from error


def _short_int(digits: str) -> int:
    # To read n decimal digits takes n^2 time, where the interpreter's own limit has been lifted.
    if len(digits) > 40:
        raise ValueError("too long an integer")
    return int(digits)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def read_exactly(fd: int, size: int) -> bytes:
    """``size`` bytes, without reading ahead.

    Raises:
        EOFError: the other end was closed before.
    """
    parts: list[bytes] = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_frame(fd: int) -> Any:
    """The next message. For our own ends within the sandbox: it waits as long as it takes."""
    return unpack(read_exactly(fd, int.from_bytes(read_exactly(fd, 4), "big")))


def write_frame(fd: int, message: Any) -> None:
    view = memoryview(pack(message))
    while view:
        view = view[os.write(fd, view) :]
