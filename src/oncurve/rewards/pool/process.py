"""The trainer's end of a worker: start it, send and receive with a deadline, end it whatever it is doing."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from oncurve.rewards.pool.inner import wire

_HERE = Path(__file__).parent
_BOOT = (
    "import sys; kind, fd, told, here = sys.argv[1:]; sys.path.append(here); from inner.serve import main; "
    "sys.path.remove(here); sys.argv = ['']; main(kind, int(fd), told)"
)
_MOST_ANSWER = 256 << 20
_LOOK_EVERY = 0.25
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Gone(Exception):
    """The worker ended, or closed its end."""


class Late(Exception):
    """No answer by the deadline."""


class Heavy(Exception):
    """It holds more memory than it may."""


class Channel:
    """Messages to and from one process, over a socket. Not for two threads at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock

    def close(self) -> None:
        self.socket.close()

    def send(self, message: Any, deadline: float, descriptors: list[int] | None = None) -> None:
        """Raises: Gone, Late."""
        try:
            self.socket.settimeout(max(0.01, deadline - time.monotonic()))
            if descriptors is not None:
                socket.send_fds(self.socket, [json.dumps(message).encode()], descriptors)
            else:
                self.socket.sendall(wire.pack(message))
        except TimeoutError:
            raise Late from None
        except OSError as error:
            raise Gone(str(error)) from error

    def receive(self, deadline: float, *, pid: int | None = None, most_bytes: int | None = None) -> Any:
        """The next message. ``most_bytes``: the resident memory that the process ``pid`` may have meanwhile.

        Raises: Gone, Late, Heavy.
        """
        data = bytearray()
        size = 8
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Late
            if not poll.poll(1000 * min(left, _LOOK_EVERY)):
                if most_bytes is not None and pid is not None and resident_bytes(pid) > most_bytes:
                    raise Heavy
                continue
            try:
                part = self.socket.recv(min(1 << 20, size - len(data)))
            except OSError as error:
                raise Gone(str(error)) from error
            if not part:
                raise Gone("it closed its end")
            data += part
            if len(data) == 8 and size == 8:
                size = 8 + int.from_bytes(data, "big")
                if size > _MOST_ANSWER:
                    raise Gone("it answered with more than 256 MiB")
            if len(data) == size:
                return json.loads(bytes(data[8:]))


class Process:
    """A Python process that serves: see ``inner/serve.py``. In a session of its own, so that a Ctrl-C for the trainer
    does not end it."""

    def __init__(self, kind: str, told: dict[str, Any], *, quiet: bool) -> None:
        ours, theirs = socket.socketpair()
        # Where a lone worker stood when its time was over.
        self._dump = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        with theirs:
            descriptors = [theirs.fileno(), self._dump.fileno()]
            told = told | {"dump": self._dump.fileno()}
            command = [sys.executable, "-P", "-c", _BOOT, kind, str(theirs.fileno()), json.dumps(told), str(_HERE)]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if quiet else None,
                stderr=subprocess.DEVNULL if quiet else None,
                pass_fds=descriptors,
                start_new_session=True,
            )
        self.channel = Channel(ours)
        self.pid = self._process.pid
        self._code: int | None = None

    def where_it_stood(self) -> str:
        """The stack at the moment its time was over, innermost first; "" if it was not asked in time."""
        self._dump.seek(0)
        return self._dump.read().decode("utf-8", "replace").strip()

    def end(self, patience: float = 0.0) -> int:
        """End it, with whatever it has started, and reap it. Returns its exit code."""
        if self._code is not None:
            return self._code
        self.channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            if patience:
                self._process.wait(patience)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()
        self._code = self._process.wait()
        self._dump.close()
        return self._code

    def __del__(self) -> None:
        if getattr(self, "_code", 0) is None:
            self.end()

    def forget(self) -> None:
        """In a fork of the trainer, where the process belongs to the parent."""
        self.channel.close()
        self._dump.close()
        self._code = self._process.returncode = 0  # not a child of this process: nothing to wait for


def resident_bytes(pid: int) -> int:
    """0 where that cannot be seen."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0
