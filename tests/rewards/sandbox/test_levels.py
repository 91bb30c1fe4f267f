"""Levels that are there, that are not, and workers that fail."""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from oncurve.config import Recipe
from oncurve.recipe import recipe_from_dict
from oncurve.rewards.sandbox import (
    Call,
    Limits,
    RemoteSandbox,
    Sandbox,
    SandboxError,
    levels,
    open_sandbox,
    same,
    use_sandbox,
)
from oncurve.rewards.sandbox.inside import seccomp
from oncurve.types import OncurveError
from sandboxes import lacking

linux = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    reason = lacking(levels.Way("landlock", None))
    if reason:
        pytest.skip(reason)
    with Sandbox("landlock", workers=2) as opened:
        yield opened


def test_other_systems_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    for level in ("strict", "landlock", "none"):
        with pytest.raises(SandboxError, match=r"needs Linux, and this is darwin; use Linux, or .*remote:"):
            open_sandbox(level)


@pytest.mark.parametrize("level", ["", "Strict", "auto", "docker", "remote:", "remote:ftp://x"])
def test_there_is_no_such_level(level: str) -> None:
    with pytest.raises(SandboxError, match=re.escape(f"no sandbox level {level!r}")):
        open_sandbox(level)
    with pytest.raises(SandboxError, match="no sandbox level"):
        use_sandbox(level)


def test_recipes_know_the_levels() -> None:
    def recipe(level: str) -> Recipe:
        return recipe_from_dict(
            {"run": {"name": "a"}, "model": {"path": "a"}, "data": {"train": "a"}, "rewards": {"sandbox": level}}
        )

    for level in ("strict", "landlock", "none", "remote:http://localhost:8080/run_code"):
        assert recipe(level).rewards.sandbox == level
    with pytest.raises(OncurveError, match=r"rewards\.sandbox = 'auto': give strict, landlock, remote"):
        recipe("auto")


@linux
def test_a_missing_level_is_an_error_and_no_other_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "_bubblewrap", lambda: "/bin/false")
    monkeypatch.setattr(levels, "ways", lambda level: [levels.Way(level, "bubblewrap", "/bin/false")])
    with pytest.raises(SandboxError) as raised:
        Sandbox("strict")
    text = str(raised.value)
    assert text.startswith("the sandbox level 'strict' is not there: bubblewrap: it ended without a word. To mend it: ")
    assert 'rewards.sandbox = "landlock"' in text


@linux
def test_a_level_that_does_not_hold_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that says it is held in, and is not."""
    started = levels.start
    monkeypatch.setattr("oncurve.rewards.sandbox.levels.start", lambda way: started(levels.Way("none", None)))
    with pytest.raises(SandboxError, match=r"it does not hold; a child could read a file outside, list the root"):
        Sandbox("landlock")


@linux
def test_limits_are_above_zero() -> None:
    with pytest.raises(SandboxError, match="cpu_seconds = 0"):
        Limits(cpu_seconds=0)


@linux
def test_the_allowed_calls_are_the_ones_named() -> None:
    """The numbers against the kernel's own headers, where they are installed."""
    headers = {
        0: [Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")],
        1: [Path("/usr/include/asm-generic/unistd.h")],
    }
    checked = 0
    tables = dict(seccomp._ALLOWED)
    tables |= {name: numbers for name, (numbers, *_) in seccomp._WITH_ARGUMENT.items()}
    tables |= seccomp._OWN_PROCESS | {"sendto": seccomp._SENDTO, "clone": seccomp._CLONE}
    for column, paths in headers.items():
        for path in [path for path in paths if path.exists()]:
            known = re.findall(r"#define __NR3?2?6?4?_?_?(\w+)\s+(\d+)$", path.read_text(), re.M)
            numbers = {name.removeprefix("3264_"): int(number) for name, number in known}
            for name, given in tables.items():
                # The generic header has two names for calls whose numbers depend on the word size.
                if given[column] is not None and name in numbers:
                    assert numbers[name] == given[column], name
                    checked += 1
    if not checked:
        pytest.skip("no kernel headers")


# -- workers that fail ------------------------------------------------------------------------------------------------


@linux
def test_a_lost_worker_is_replaced_and_the_run_repeated(sandbox: Sandbox) -> None:
    sandbox.run_program("pass")
    kill_workers()
    assert sandbox.run_program("print(1)").stdout == b"1\n"
    assert sandbox.infra_errors == 0


@linux
def test_a_run_that_loses_two_workers_is_no_failure_of_the_program(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any) -> Any:
        raise levels.SandboxError("no process")

    sandbox.close()
    monkeypatch.setattr("oncurve.rewards.sandbox.levels.start", lost)
    assert sandbox.run_program("print(1)").status == "infra_error"
    assert [called.status for called in sandbox.call("", [Call("f", ())])[0]] == ["infra_error"]
    assert [tested.status for tested in sandbox.check("", ["assert 1"])[0]] == ["infra_error"]
    assert sandbox.infra_errors == 3
    monkeypatch.undo()
    assert sandbox.run_program("print(1)").stdout == b"1\n"


@linux
def test_a_worker_that_is_killed_in_the_middle(sandbox: Sandbox) -> None:
    sandbox.run_program("pass")
    timer = threading.Timer(0.2, kill_workers)
    timer.start()
    ran = sandbox.run_program("import time\ntime.sleep(0.6)\nprint(1)")
    timer.join()
    assert ran.stdout == b"1\n"


@linux
def test_many_threads(sandbox: Sandbox) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda n: sandbox.run_program("print(int(input()) + 1)", str(n)).stdout, range(40)))
    assert found == [f"{n + 1}\n".encode() for n in range(40)]


@linux
def test_large_input_and_output(sandbox: Sandbox) -> None:
    ran = sandbox.run_program("import sys\nsys.stdout.write(sys.stdin.read())", "x" * 3_000_000)
    assert ran.stdout == b"x" * 3_000_000
    assert sandbox.run_program("pass", "x" * 3_000_000).status == "ok"


@linux
def test_runs_are_alike(sandbox: Sandbox) -> None:
    program = "import random\nprint(random.random(), {str(n) for n in range(20)})"
    assert len({sandbox.run_program(program).stdout for _ in range(4)}) == 1


@linux
def test_closed_means_no_processes(sandbox: Sandbox) -> None:
    sandbox.run_program("pass")
    assert children()
    sandbox.close()
    assert not children()
    assert sandbox.run_program("print(1)").stdout == b"1\n"


def children() -> list[int]:
    """Workers of this process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if parent == os.getpid() and b"inside.worker" in command:
                found.append(int(entry.name))
    return found


def kill_workers() -> None:
    for pid in children():
        os.kill(pid, signal.SIGKILL)


# -- elsewhere --------------------------------------------------------------------------------------------------------


class Service(http.server.BaseHTTPRequestHandler):
    """The ``run_code`` endpoint of a sandbox service, in front of the local one."""

    local: Sandbox
    fails = 0

    def do_POST(self) -> None:
        job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if Service.fails:
            Service.fails -= 1
            self.send_error(500)
            return
        ran = Service.local.run_program(job["code"], job["stdin"])
        result = {"status": "Finished", "return_code": int(ran.status != "ok")}
        if ran.status == "timeout":
            result = {"status": "TimeLimitExceeded"}
        result |= {"stdout": ran.stdout.decode(), "stderr": ran.stderr}
        body = json.dumps({"status": "Success", "run_result": result}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def url(sandbox: Sandbox) -> Iterator[str]:
    Service.local, Service.fails = sandbox, 0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/run_code"
    server.shutdown()
    server.server_close()
    thread.join()


@linux
def test_remote(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncurve.rewards.sandbox.remote.time.sleep", lambda _: None)
    with open_sandbox(f"remote:{url}") as remote:
        assert remote.run_program("print(int(input()) * 2)", "4").stdout == b"8\n"
        assert remote.run_program("1 / 0").status == "exception"
        called, _ = remote.call("def f(x): return (x, x)", [Call("f", (1,)), Call("g", ()), Call("f", ([2],))])
        assert [call.status for call in called] == ["ok", "exception", "ok"]
        assert same([[2], [2]], called[2].wire)
        assert [call.status for call in remote.call("1 / 0", [Call("f", ())] * 2)[0]] == ["exception"] * 2
        with pytest.raises(SandboxError, match="need a local sandbox"):
            remote.check("", ["assert 1"])
        Service.fails = 2
        assert remote.run_program("print(1)").stdout == b"1\n"
        Service.fails = 3
        assert remote.run_program("print(1)").status == "infra_error"
        assert remote.infra_errors == 1


def test_a_remote_that_is_not_there() -> None:
    with pytest.raises(SandboxError, match=r"does not answer"):
        RemoteSandbox("http://127.0.0.1:9/run_code")
