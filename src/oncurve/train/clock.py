"""Where the time of an iteration goes."""

from __future__ import annotations

import time

from oncurve.types import Engine, Measured, Usage


class Clock:
    """Seconds of each phase of an iteration, as ``time/...`` metrics. A phase may come several times."""

    def __init__(self) -> None:
        self._began = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}
        self._usage = Usage()

    def sampled(self, engine: Engine) -> None:
        """Note how the engine's last call spent its time, if it says so."""
        if isinstance(engine, Measured):
            self._usage += engine.usage

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self._laps[f"time/{phase}"] = self._laps.get(f"time/{phase}", 0.0) + now - self._last
        self._last = now

    def metrics(self, tokens: int) -> dict[str, float]:
        total = time.perf_counter() - self._began
        return self._laps | self._usage.metrics() | {"step_time": total, "perf/tokens_per_second": tokens / total}
