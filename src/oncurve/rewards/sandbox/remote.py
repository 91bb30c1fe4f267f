"""A sandbox that runs elsewhere, behind HTTP: the ``run_code`` endpoint of SandboxFusion, or one of the same form.

What holds a program in is that service's affair. The verdict stays ours: programs and arguments are sent, never what is
expected.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

from oncurve.rewards.sandbox import levels
from oncurve.rewards.sandbox.inside import wire
from oncurve.rewards.sandbox.outcome import Call, Called, Ran
from oncurve.rewards.sandbox.workers import Limits

_ATTEMPTS = 3
_MARK = "oncurve-results:"

# Runs in the candidate's process, since the service gives us only one. It sends values, which is all we take.
_DRIVER = """
import sys, types
wire = types.ModuleType("wire")
exec({wire!r}, wire.__dict__)
results = []
module = types.ModuleType("solution")
sys.modules["solution"] = module
try:
    exec(compile({source!r}, "solution.py", "exec"), module.__dict__)
except BaseException as error:
    results.append({{"e": [type(error).__name__, str(error)[:200]]}})
else:
    for name, arguments in {calls!r}:
        try:
            names = module.__dict__
            function = names[name] if name in names or "Solution" not in names else getattr(names["Solution"](), name)
            results.append({{"v": wire.encode(function(*map(wire.decode, arguments)))}})
        except BaseException as error:
            results.append({{"e": [type(error).__name__, str(error)[:200]]}})
print()
print({mark!r} + wire.json.dumps(results))
"""


class RemoteSandbox:
    """Programs and calls go to ``url``; tests in code, which need two processes that talk, are refused.

    Args:
        url: of the endpoint: it takes ``{"code", "language", "stdin", "run_timeout", "memory_limit_MB"}`` by POST.
        workers: requests side by side.

    Raises:
        SandboxError: it cannot be reached, or does not run a first program.
    """

    def __init__(self, url: str, *, workers: int = 8, limits: Limits | None = None) -> None:
        self.level = f"remote:{url}"
        self.url = url
        self.workers = workers
        self.limits = limits or Limits()
        self.infra_errors = 0
        self.description = f"remote ({url}; what holds programs in is up to it)"
        try:
            answer = self._post("print(6 * 7)", "", self.limits)
        except OSError as error:
            raise levels.SandboxError(f"the sandbox at {url} does not answer: {error}") from error
        if answer.status != "ok" or answer.stdout.strip() != b"42":
            raise levels.SandboxError(
                f"the sandbox at {url} answered `print(6 * 7)` with {answer.stdout[:80]!r} ({answer.status}); "
                "it must speak SandboxFusion's run_code"
            )

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run_program(self, source: str, stdin: str = "", limits: Limits | None = None) -> Ran:
        for attempt in range(_ATTEMPTS):
            try:
                ran = self._post(source, stdin, limits or self.limits)
            except OSError:
                ran = Ran("infra_error", b"", "", None)
            if ran.status != "infra_error":
                return ran
            if attempt + 1 < _ATTEMPTS:
                time.sleep(0.5 * 2**attempt)
        self.infra_errors += 1
        return Ran("infra_error", b"", "", None)

    def call(
        self, source: str, calls: Sequence[Call], limits: Limits | None = None
    ) -> tuple[list[Called], float | None]:
        listed = [(call.name, [wire.encode(item) for item in call.arguments]) for call in calls]
        program = _DRIVER.format(
            wire=Path(wire.__file__).read_text(encoding="utf-8"), source=source, calls=listed, mark=_MARK
        )
        ran = self.run_program(program, "", limits)
        if ran.status != "ok":
            return [Called(ran.status, error=ran.stderr[-200:]) for _ in calls], None
        return _results(ran.stdout, len(calls)), None

    def check(self, source: str, tests: Sequence[str], **_: Any) -> NoReturn:
        """Refused.

        Raises:
            SandboxError: always.
        """
        raise levels.SandboxError(
            "tests that are code (assert ...) need a local sandbox, where they run in a process of their own; use "
            'rewards.sandbox = "strict" or "landlock", or write the tests as calls with the value that is right'
        )

    def _post(self, source: str, stdin: str, limits: Limits) -> Ran:
        body = {
            "code": source,
            "language": "python",
            "stdin": stdin,
            "run_timeout": limits.wall_seconds,
            "memory_limit_MB": limits.memory_mb,
        }
        request = urllib.request.Request(self.url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=limits.wall_seconds + 30) as response:
                # JSON takes up to six bytes for one.
                answer = wire.unpack(response.read(6 * limits.output_bytes + (1 << 20)))
        except (wire.WireError, urllib.error.HTTPError):
            return Ran("infra_error", b"", "", None)
        match answer:
            case {"run_result": {"status": str(status), "stdout": str(out), "stderr": str(err), **more}}:
                code = more.get("return_code")
            case _:
                return Ran("infra_error", b"", "", None)
        stdout = out.encode("utf-8", "replace")
        if status == "TimeLimitExceeded":
            return Ran("timeout", stdout, err[-2000:], None)
        if status != "Finished":
            return Ran("infra_error", stdout, err[-2000:], None)
        if len(stdout) > limits.output_bytes:
            return Ran("output", stdout[: limits.output_bytes], err[-2000:], None)
        return Ran("ok" if code == 0 else "exception", stdout, err[-2000:], None)


def _results(stdout: bytes, number: int) -> list[Called]:
    _, mark, last = stdout.decode("utf-8", "replace").rpartition(_MARK)
    try:
        answers = wire.unpack(last.strip().encode()) if mark else []
    except wire.WireError:
        answers = []
    results: list[Called] = []
    for answer in answers[:number] if isinstance(answers, list) else []:
        match answer:
            case {"v": value}:
                results.append(Called("ok", value))
            case {"e": [str(kind), str(message)]}:
                results.append(Called("exception", error=f"{kind}: {message}"))
            case _:
                results.append(Called("killed"))
    failed = results[0] if results and results[0].status == "exception" and len(results) == 1 else Called("killed")
    return [*results, *[failed] * (number - len(results))]
