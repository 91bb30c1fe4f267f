"""The system calls that a candidate's process may make, and the filter in the kernel that refuses all others."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

from .process import architecture, no_new_privileges, prctl

# What Python needs to compute, to read its own library, to write into pipes and to start threads. Everything else is
# refused: a list of what is forbidden would be out of date with the next kernel. By name: the numbers on x86_64 and on
# aarch64, which lacks the older calls.
_ALLOWED: dict[str, tuple[int, int | None]] = {
    "read": (0, 63),
    "write": (1, 64),
    "open": (2, None),
    "close": (3, 57),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "poll": (7, None),
    "lseek": (8, 62),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "pread64": (17, 67),
    "pwrite64": (18, 68),
    "readv": (19, 65),
    "writev": (20, 66),
    "access": (21, None),
    "pipe": (22, None),
    "select": (23, None),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "msync": (26, 227),
    "mincore": (27, 232),
    "madvise": (28, 233),
    "dup": (32, 23),
    "dup2": (33, None),
    "pause": (34, None),
    "nanosleep": (35, 101),
    "getitimer": (36, 102),
    "alarm": (37, None),
    "setitimer": (38, 103),
    "getpid": (39, 172),
    "sendfile": (40, 71),
    "recvfrom": (45, 207),
    "exit": (60, 93),
    "wait4": (61, 260),
    "uname": (63, 160),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "ftruncate": (77, 46),
    "getcwd": (79, 17),
    "chdir": (80, 49),
    "fchdir": (81, 50),
    "rename": (82, None),
    "mkdir": (83, None),
    "rmdir": (84, None),
    "unlink": (87, None),
    "readlink": (89, None),
    "umask": (95, 166),
    "gettimeofday": (96, 169),
    "getrlimit": (97, 163),
    "getrusage": (98, 165),
    "sysinfo": (99, 179),
    "times": (100, 153),
    "getuid": (102, 174),
    "getgid": (104, 176),
    "geteuid": (107, 175),
    "getegid": (108, 177),
    "getppid": (110, 173),
    "getpgrp": (111, None),
    "getgroups": (115, 158),
    "getresuid": (118, 148),
    "getresgid": (120, 150),
    "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137),
    "rt_sigsuspend": (130, 133),
    "sigaltstack": (131, 132),
    "statfs": (137, 43),
    "fstatfs": (138, 44),
    "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120),
    "arch_prctl": (158, None),
    "gettid": (186, 178),
    "time": (201, None),
    "futex": (202, 98),
    "sched_getaffinity": (204, 123),
    "getdents64": (217, 61),
    "set_tid_address": (218, 96),
    "restart_syscall": (219, 128),
    "fadvise64": (221, 223),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "exit_group": (231, 94),
    "epoll_wait": (232, None),
    "epoll_ctl": (233, 21),
    "openat": (257, 56),
    "mkdirat": (258, 34),
    "newfstatat": (262, 79),
    "unlinkat": (263, 35),
    "renameat": (264, 38),
    "readlinkat": (267, 78),
    "faccessat": (269, 48),
    "pselect6": (270, 72),
    "ppoll": (271, 73),
    "set_robust_list": (273, 99),
    "epoll_pwait": (281, 22),
    "eventfd2": (290, 19),
    "epoll_create1": (291, 20),
    "dup3": (292, 24),
    "pipe2": (293, 59),
    "getcpu": (309, 168),
    "renameat2": (316, 276),
    "getrandom": (318, 278),
    "membarrier": (324, 283),
    "statx": (332, 291),
    "rseq": (334, 293),
    "close_range": (436, 436),
    "faccessat2": (439, 439),
}
_CLONE, _CLONE3 = (56, 220), 435
# Some arguments are safe, others reach beyond the process. By name: numbers, which argument, its permitted values.
_WITH_ARGUMENT: dict[str, tuple[tuple[int, int], int, tuple[int, ...]]] = {
    # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX; not TIOCSTI (types into a terminal) nor FIOSETOWN.
    "ioctl": ((16, 29), 1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),
    # F_DUPFD, GETFD, SETFD, GETFL, SETFL, GETLK, DUPFD_CLOEXEC; not F_SETOWN and F_SETSIG (signals to anybody).
    "fcntl": ((72, 25), 1, (0, 1, 2, 3, 4, 5, 1030)),
    # PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_SET_VMA; not PR_SET_PDEATHSIG and PR_SET_DUMPABLE.
    "prctl": ((157, 167), 0, (3, 15, 16, 0x53564D41)),
    # A pair of sockets that only the process itself holds, which asyncio needs; nothing can be bound or connected.
    "socketpair": ((53, 199), 0, (1,)),
    # The limits of this process; not those of others of the same user.
    "prlimit64": ((302, 261), 0, (0,)),
}
_OWN_PROCESS = {"kill": (62, 129), "tgkill": (234, 131)}
_SENDTO = (44, 206)

_KILL, _ALLOW = 0x80000000, 0x7FFF0000
_NEW_NAMESPACES = 0x7E020000 | 0x2000 | 0x80  # and CLONE_PTRACE, CLONE_NEWTIME
_CLONE_THREAD = 0x10000


def _errno(number: int) -> int:
    return 0x00050000 | number


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _load(offset: int) -> bytes:
    return _op(0x20, offset)


def _argument(index: int) -> int:
    return 16 + 8 * index  # its low half; the kernel takes no more of the arguments looked at here


def _jump_if_equal(value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return _op(0x15, value, if_true, if_false)


def _return(action: int) -> bytes:
    return _op(0x06, action)


class Filter:
    """The seccomp filter of a child, made once; only the child's own process id is put in later."""

    def __init__(self) -> None:
        column, word = architecture()
        start = [_load(4), _jump_if_equal(word, 1, 0), _return(_KILL), _load(0)]
        if column == 0:
            start += [_op(0x35, 0x40000000, 0, 1), _return(_KILL)]  # the x32 calls, numbers with this bit
        start += [_jump_if_equal(_CLONE3, 0, 1), _return(_errno(errno.ENOSYS))]  # glibc then takes clone
        for numbers in _ALLOWED.values():
            number = numbers[column]
            if number is not None:
                start += [_jump_if_equal(number, 0, 1), _return(_ALLOW)]
        for numbers, index, values in _WITH_ARGUMENT.values():
            start += self._block(numbers[column], _any_of(_argument(index), values))
        # Threads; no processes.
        threads_only = [
            _load(_argument(0)),
            _op(0x45, _CLONE_THREAD, 0, 2),
            _op(0x45, _NEW_NAMESPACES, 1, 0),
            _return(_ALLOW),
        ]
        start += self._block(_CLONE[column], threads_only)
        # No address: to the other end of a pair only.
        no_address = [
            _load(_argument(4)),
            _jump_if_equal(0, 0, 3),
            _load(_argument(4) + 4),
            _jump_if_equal(0, 0, 1),
            _return(_ALLOW),
        ]
        start += self._block(_SENDTO[column], no_address)
        self._start = b"".join(start)
        self._own = [numbers[column] for numbers in _OWN_PROCESS.values()]

    @staticmethod
    def _block(number: int, body: Sequence[bytes]) -> list[bytes]:
        body = [*body, _return(_errno(errno.EPERM))]
        return [_jump_if_equal(number, 0, len(body)), *body]

    def apply(self) -> None:
        """Restrict the calling process, for good."""
        own = [op for number in self._own for op in self._block(number, _any_of(_argument(0), (os.getpid(),)))]
        program = self._start + b"".join(own) + _return(_errno(errno.EPERM))
        buffer = ctypes.create_string_buffer(program, len(program))
        header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
        no_new_privileges()
        prctl(22, 2, header)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def _any_of(offset: int, values: Sequence[int]) -> list[bytes]:
    ops = [_load(offset)]
    for value in values:
        ops += [_jump_if_equal(value, 0, 1), _return(_ALLOW)]
    return ops
