"""``oncurve compare``: several methods on one task, from the same models, with the same seeds and the same samples."""

from oncurve.compare.plan import Method, Plan, read_plan
from oncurve.compare.report import write_report
from oncurve.compare.runs import Done, run_all

__all__ = ["Done", "Method", "Plan", "read_plan", "run_all", "write_report"]
