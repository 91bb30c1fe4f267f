import ctypes
import platform
import subprocess
import sys

import pytest

from oncurve.train.allocator import keep_freed_memory

# Blocks that stand in the kernel's books and not in the heap, before and after the first one of 20 MiB.
MAPPED = """
import ctypes
from oncurve.train.allocator import keep_freed_memory
class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks a b c d e f".split()]
mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Mallinfo2
tuned = keep_freed_memory({environment})
before = mallinfo().hblks
block = bytearray(20 << 20)
print(tuned, mallinfo().hblks - before)
"""


def mapped(environment):
    found = subprocess.run(
        [sys.executable, "-c", MAPPED.format(environment=environment)], capture_output=True, text=True, check=True
    )
    return found.stdout.split()


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc 2.33 or later"
)
def test_large_blocks_come_from_the_heap_that_is_kept():
    assert mapped({}) == ["True", "0"]
    assert mapped({"MALLOC_ARENA_MAX": "2"}) == ["False", "1"]


@pytest.mark.parametrize(
    "environment",
    [{"MALLOC_MMAP_THRESHOLD_": "65536"}, {"MALLOC_TOP_PAD_": "0"}, {"GLIBC_TUNABLES": "glibc.malloc.top_pad=1"}],
)
def test_what_the_user_has_tuned_stays(environment):
    assert not keep_freed_memory(environment)
