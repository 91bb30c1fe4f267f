"""The run directory and its record: every metric, every completion, every evaluation of a run. No torch here.

``runs/<name>/`` holds ``config.toml`` (the resolved recipe; can be run again), ``run.sqlite`` (this package's),
``checkpoints/``, ``models/``, ``report.html`` and ``.lock``. The tables of ``run.sqlite`` are described in
``schema.py``; any tool that reads SQLite can read them.
"""

from oncurve.runlog.digest import TIMINGS
from oncurve.runlog.export import export
from oncurve.runlog.files import replacing
from oncurve.runlog.listing import RunInfo, list_runs
from oncurve.runlog.lock import locked, refuse_if_locked
from oncurve.runlog.log import RunLog
from oncurve.runlog.rows import CompletionRow, EvalRow, Outcome
from oncurve.runlog.schema import FORMAT_VERSION, RunLogError

__all__ = [
    "FORMAT_VERSION",
    "TIMINGS",
    "CompletionRow",
    "EvalRow",
    "Outcome",
    "RunInfo",
    "RunLog",
    "RunLogError",
    "export",
    "list_runs",
    "locked",
    "refuse_if_locked",
    "replacing",
]
