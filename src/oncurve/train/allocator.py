"""Telling glibc's allocator to keep memory that tensors have given back.

As it comes, glibc asks the kernel for every block over 128 KiB anew and returns it when it is freed; each page of it is
then faulted in and zeroed again. A training step does that with the same sizes over and over: half the time of sampling
behind a prompt of 512 tokens was page faults.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping

# The numbers of malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
MMAP_THRESHOLD = 32 << 20
"""Bytes: what is larger comes from the kernel each time. glibc takes no more than this."""
TRIM_THRESHOLD = 512 << 20
"""Bytes of free memory at the end of the heap that are kept."""
TOP_PAD = 64 << 20
"""Bytes by which the heap grows at a time."""


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Raise glibc's thresholds for this process, once and for all; whether that was done.

    Nothing is done under another C library, or if the user has tuned the allocator by ``MALLOC_...`` or
    ``GLIBC_TUNABLES``. It changes speed and the memory that lies idle (up to 512 MiB), and no result.
    """
    tuned = any(name.startswith("MALLOC_") for name in environment) or "glibc.malloc" in environment.get(
        "GLIBC_TUNABLES", ""
    )
    if tuned or platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_MMAP_THRESHOLD, MMAP_THRESHOLD), (_TRIM_THRESHOLD, TRIM_THRESHOLD), (_TOP_PAD, TOP_PAD))
    # mallopt returns 1 if it took the value.
    taken = [mallopt(ctypes.c_int(option), ctypes.c_int(value)) == 1 for option, value in settings]
    return all(taken)
