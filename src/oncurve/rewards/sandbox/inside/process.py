"""What a process gives up for itself: privileges, capabilities, limits. By ctypes; no library.

Nothing here, in ``seccomp`` or in ``landlock`` can be undone by the process that has done it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct

libc = ctypes.CDLL(None, use_errno=True)

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def architecture() -> tuple[int, int]:
    """Column in the tables of system calls, and the kernel's word for the architecture.

    Raises:
        OSError: not one whose system calls are known here.
    """
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no list of system calls for {machine} (there is one for x86_64 and aarch64)")
    return _ARCHITECTURES[machine]


def prctl(option: int, second: int = 0, third: bytes | int = 0) -> int:
    value = ctypes.c_char_p(third) if isinstance(third, bytes) else ctypes.c_ulong(third)
    result = libc.prctl(option, ctypes.c_ulong(second), value, ctypes.c_ulong(0), ctypes.c_ulong(0))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}: {os.strerror(ctypes.get_errno())}")
    return result


def no_new_privileges() -> None:
    prctl(38, 1)


def not_dumpable() -> None:
    """Others of the same user cannot attach to this process or read its memory."""
    prctl(4, 0)


def die_with_parent() -> None:
    prctl(1, 9)


def drop_capabilities() -> None:
    """Keep the user id, lose what root may do beyond it."""
    prctl(47, 4)  # the ambient set
    for capability in range(64):
        try:
            prctl(24, capability)  # the bounding set
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EPERM):  # no such capability; or none to drop
                raise
    no_new_privileges()
    header, nothing = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    number = (126, 91)[architecture()[0]]
    system_call("capset", number, ctypes.c_char_p(header), ctypes.c_char_p(nothing))


def limit(memory: int, cpu_seconds: int, file_size: int, files: int, threads: int | None) -> None:
    """Set the process's limits, which it can only lower.

    Args:
        memory: address space in bytes.
        cpu_seconds: a whole number; the finer limit is the supervisor's.
        file_size: of one file, in bytes.
        files: open at a time.
        threads: of this user in this user namespace; None where the user has other processes in it.
    """
    limits = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CPU: cpu_seconds,
        resource.RLIMIT_FSIZE: file_size,
        resource.RLIMIT_NOFILE: files,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if threads is not None:
        limits[resource.RLIMIT_NPROC] = threads
    for kind, value in limits.items():
        most = resource.getrlimit(kind)[1]
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(kind, (value, value))
    # Deep recursion is legitimate; the address space bounds it anyway, and to raise this limit must not be an error.
    most = resource.getrlimit(resource.RLIMIT_STACK)[1]
    wanted = 64 << 20
    resource.setrlimit(resource.RLIMIT_STACK, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


def system_call(name: str, number: int, *arguments: object) -> int:
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return result
