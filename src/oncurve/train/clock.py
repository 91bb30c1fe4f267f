"""Where the time of an iteration goes."""

from __future__ import annotations

import time


class Clock:
    """Seconds of each phase of an iteration, as ``time/...`` metrics. A phase may come several times."""

    def __init__(self) -> None:
        self._began = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self._laps[f"time/{phase}"] = self._laps.get(f"time/{phase}", 0.0) + now - self._last
        self._last = now

    def metrics(self, tokens: int) -> dict[str, float]:
        total = time.perf_counter() - self._began
        return self._laps | {"step_time": total, "perf/tokens_per_second": tokens / total}
