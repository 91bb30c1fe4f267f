"""Namespaces: a process that has a root directory, a network and process numbers of its own."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

from .process import architecture, libc, system_call

_READ_ONLY, _NO_SUID, _NO_DEV, _NO_EXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_DETACH = 2


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    if libc.mount(*encoded, ctypes.c_ulong(flags), None if options is None else options.encode()) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {kind or source} on {target}: {os.strerror(number)}")


def mount_scratch(path: str) -> None:
    """A small file system in memory, which ends with the namespace."""
    mount("tmpfs", path, "tmpfs", _NO_SUID | _NO_DEV | _NO_EXEC, "size=16m,nr_inodes=512,mode=0700")


def enter_namespaces(readable: Sequence[str], devices: Sequence[str]) -> None:
    """Move into new namespaces (users, mounts, processes, network, IPC, host name, cgroups) with a root directory that
    holds the ``readable`` paths read-only, the ``devices``, ``/proc`` and an empty ``/tmp``. Returns in process 1 of
    it; the caller waits for that one and exits as it did.

    Raises:
        OSError: the kernel, a container or a security module does not allow it.
    """
    user, group = os.getuid(), os.getgid()
    if libc.unshare(ctypes.c_int(0x7E020000)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")
    child = os.fork()
    if child:
        _follow(child)
    mount("none", "/", None, _REC | _PRIVATE)
    root = next(
        path
        for path in ("/mnt", "/media", "/srv", "/opt", "/run", "/tmp")
        if os.path.isdir(path) and not any(other.startswith(path + "/") for other in (*readable, *devices))
    )
    mount("tmpfs", root, "tmpfs", _NO_SUID | _NO_DEV, "size=1m,mode=0755")
    for path in (*readable, *devices):
        if os.path.exists(path):
            _bind(path, root + path, read_only=path in readable)
    for path in ("/proc", "/tmp"):
        os.makedirs(root + path, exist_ok=True)
    mount("proc", root + "/proc", "proc", _NO_SUID | _NO_DEV | _NO_EXEC)
    mount_scratch(root + "/tmp")
    os.chdir(root)
    number = (155, 41)[architecture()[0]]
    system_call("pivot_root", number, ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    if libc.umount2(b".", _DETACH) < 0:
        raise OSError(ctypes.get_errno(), "umount of the old root")
    os.chdir("/")
    mount("none", "/", None, _BIND | _REMOUNT | _READ_ONLY | _NO_SUID | _NO_DEV)


def _bind(source: str, target: str, *, read_only: bool) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
    mount(source, target, None, _BIND)
    if read_only:
        # What the mount already refuses must be refused again, or the kernel refuses the remount.
        kept = os.statvfs(target).f_flag & (_NO_SUID | _NO_DEV | _NO_EXEC)
        times = os.statvfs(target).f_flag & (1024 | 2048 | 4096)  # noatime, nodiratime, relatime
        flags = (times & 1024) | (times & 2048) | ((1 << 21) if times & 4096 else 0)
        mount("none", target, None, _BIND | _REMOUNT | _READ_ONLY | _NO_SUID | kept | flags)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _follow(child: int) -> None:
    """Wait for process 1 of the namespaces, then end as it did. Of our sockets and files nothing is kept open."""
    os.closerange(0, 1024)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(status if status >= 0 else 128 - status)
