"""Files that are either the old one or the new one, whatever happens, and where sqlite may use its write-ahead log."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# sqlite's write-ahead log needs memory shared between processes, which these do not give (sqlite.org/wal.html, 2).
_NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "lustre", "ceph", "gpfs", "beegfs", "glusterfs", "afs", "9p", "fuse")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its place when the block ends well, and vanishes when it does not.

    The bytes are on disk before the name is: a reader, or a machine that lost power, sees the old file or the new one.
    Makes the directory if need be. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # Left by a killed process that had the same number.
    try:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def on_network(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """True if ``path`` lies on a network (or user-space) file system. Known on Linux only; elsewhere False."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False  # No /proc, as in some containers: then the usual case is assumed.
    found, kind = "", ""
    for line in lines:
        # "36 35 98:0 /root /mount/point rw,noatime [optional...] - ext3 /dev/root rw"; blanks are written \040.
        before, _, after = line.partition(" - ")
        point = before.split(" ")[4].replace("\\040", " ")
        # Later lines lie on top of earlier ones at the same point, hence >=.
        if path.resolve().is_relative_to(point) and len(point) >= len(found):
            found, kind = point, after.split(" ")[0]
    return kind.startswith(_NETWORK_FILE_SYSTEMS)
