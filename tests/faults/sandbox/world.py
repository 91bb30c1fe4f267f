"""What an attack could reach if the sandbox did not hold, planted so that reaching it is noticed."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

SECRET = "PLANTED-SECRET-5f1c"
VARIABLES = ("HF_TOKEN", "WANDB_API_KEY")


class World:
    """Files, sockets, variables and a process, within reach of anybody who is not held in."""

    def __init__(self) -> None:
        # Orphans of what runs below come to this process, so that none can get away.
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
        self.known = set(descendants())
        self.directory = Path(tempfile.mkdtemp(prefix="oncurve-attack-"))
        self.directory.chmod(0o755)
        self.secret = self.directory / "tests.jsonl"
        self.secret.write_text(f'{{"answer": "{SECRET}"}}\n', encoding="utf-8")
        self.secret.chmod(0o644)
        self.open_directory = self.directory / "open"
        self.open_directory.mkdir()
        self.open_directory.chmod(0o777)
        self.marker = self.open_directory / "marker"
        self.before = {name: os.environ.get(name) for name in VARIABLES}
        os.environ.update(dict.fromkeys(VARIABLES, SECRET))
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(str(self.open_directory / "socket"))
        self.unix.listen()
        self.abstract_name = f"oncurve-{os.getpid()}"
        self.abstract = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.abstract.bind(f"\0{self.abstract_name}")
        for server in (self.tcp, self.udp, self.unix, self.abstract):
            server.setblocking(False)
        self.bystander = subprocess.Popen(["/bin/sleep", "3600"])
        self.bystander_limit = self._limits()

    def fill_in(self, source: str) -> str:
        values = {
            "@SECRET@": str(self.secret),
            "@MARKER@": str(self.marker),
            "@SOCKET@": str(self.open_directory / "socket"),
            "@ABSTRACT@": self.abstract_name,
            "@TCP@": str(self.tcp.getsockname()[1]),
            "@UDP@": str(self.udp.getsockname()[1]),
            "@BYSTANDER@": str(self.bystander.pid),
            "@HOST@": str(os.getpid()),
        }
        for name, value in values.items():
            source = source.replace(name, value)
        return source

    def damage(self, text: str) -> list[str]:
        """What an attack that wrote ``text`` has reached."""
        found = [line for line in text.splitlines() if "ESCAPED" in line][:3]
        if SECRET in text:
            found.append("the secret is in its output")
        if self.marker.exists():
            found.append("it wrote a file")
            self.marker.unlink()
        if self.bystander.poll() is not None:
            found.append("it ended another process")
            self.bystander = subprocess.Popen(["/bin/sleep", "3600"])
        elif self._limits() != self.bystander_limit:
            found.append("it changed another process")
        if self.secret.stat().st_mode & 0o777 != 0o644:
            found.append("it changed the mode of a file")
            self.secret.chmod(0o644)
        for name, server in (("TCP", self.tcp), ("UDP", self.udp), ("unix", self.unix), ("abstract", self.abstract)):
            try:
                server.accept()[0].close() if name in ("TCP", "unix") else server.recv(1)
                found.append(f"it reached a {name} socket")
            except BlockingIOError:
                continue
        return found

    def leftovers(self) -> tuple[list[int], list[int]]:
        """Processes below this one that were not there before: those alive, and zombies."""
        deadline = time.monotonic() + 2.0
        while True:
            found = {pid: state for pid, state in descendants().items() if pid not in self.known | {self.bystander.pid}}
            if not found or time.monotonic() > deadline:
                break
            time.sleep(0.02)  # a worker that is being replaced takes a moment to end
        return [pid for pid, state in found.items() if state != "Z"], [pid for pid in found if found[pid] == "Z"]

    def close(self) -> None:
        self.bystander.kill()
        self.bystander.wait()
        for server in (self.tcp, self.udp, self.unix, self.abstract):
            server.close()
        for name, value in self.before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(self.directory, ignore_errors=True)
        ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)

    def _limits(self) -> str:
        return Path(f"/proc/{self.bystander.pid}/limits").read_text(encoding="ascii")


def descendants() -> dict[int, str]:
    """Process ids below this process, and their states."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = Path(f"/proc/{entry}/stat").read_text(encoding="latin-1").rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry)] = int(fields[1]), fields[0]
    found: dict[int, str] = {}
    frontier = [os.getpid()]
    while frontier:
        parent = frontier.pop()
        for pid, (above, state) in parents.items():
            if above == parent:
                found[pid] = state
                frontier.append(pid)
    return found


def end(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            continue
