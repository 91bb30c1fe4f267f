"""Landlock: which files a process may open, without any privilege. Written against the kernel's interface."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

from .process import libc, no_new_privileges, system_call

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
# Write, remove and make files and directories; no devices, sockets, fifos or links.
_CHANGE = _WRITE_FILE | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 13 | _TRUNCATE


def landlock_abi() -> int:
    """The version of Landlock that the kernel has; 0 if it has none, or has it switched off."""
    return max(0, libc.syscall(ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(1)))


def restrict_files(readable: Iterable[str], devices: Iterable[str], writable: Iterable[str]) -> None:
    """From now on the process opens nothing but what is beneath ``readable``, and writes only to the devices named and
    beneath ``writable``. Also no TCP and no signals or abstract sockets to the outside, as far as the kernel knows how.

    Paths that do not exist are left out.
    """
    abi = landlock_abi()
    if not abi:
        raise OSError(errno.ENOSYS, "the kernel has no Landlock")
    rights = (1 << 13) - 1
    for version, right in ((2, 1 << 13), (3, 1 << 14), (5, 1 << 15)):
        rights |= right if abi >= version else 0
    ruleset = _create_ruleset(abi, rights, 0b11, 0b11)
    try:
        for path in readable:
            _allow_beneath(ruleset, path, _READ_FILE | _READ_DIR)
        for path in devices:
            _allow_beneath(ruleset, path, (_READ_FILE | _WRITE_FILE | _TRUNCATE) & rights)
        for path in writable:
            _allow_beneath(ruleset, path, (_READ_FILE | _READ_DIR | _CHANGE) & rights)
        _restrict_self(ruleset)
    finally:
        os.close(ruleset)


def restrict_signals() -> None:
    """A domain of its own within the parent's: the parent may signal this process, not the other way round."""
    abi = landlock_abi()
    if abi >= 6:
        ruleset = _create_ruleset(abi, 0, 0, 0b11)
        try:
            _restrict_self(ruleset)
        finally:
            os.close(ruleset)


def _create_ruleset(abi: int, files: int, tcp: int, scopes: int) -> int:
    fields = (files, tcp, scopes)[: 1 if abi < 4 else 2 if abi < 6 else 3]
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    return system_call(
        "landlock_create_ruleset",
        _CREATE_RULESET,
        ctypes.c_char_p(attributes),
        ctypes.c_size_t(len(attributes)),
        ctypes.c_uint(0),
    )


def _allow_beneath(ruleset: int, path: str, rights: int) -> None:
    try:
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return
    try:
        if not os.path.isdir(path):
            rights &= _READ_FILE | _WRITE_FILE | _TRUNCATE
        rule = struct.pack("=Qi", rights, target)
        system_call(
            "landlock_add_rule",
            _ADD_RULE,
            ctypes.c_int(ruleset),
            ctypes.c_int(1),
            ctypes.c_char_p(rule),
            ctypes.c_uint(0),
        )
    finally:
        os.close(target)


def _restrict_self(ruleset: int) -> None:
    no_new_privileges()
    system_call("landlock_restrict_self", _RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0))
