"""``oncurve iterate``: iterative GRPO, in which policy and reward model are trained in turns."""

from oncurve.train.iterate.chain import IterateResult, iterate
from oncurve.train.iterate.check import check_iterate
from oncurve.train.iterate.report import show_iterate_result

__all__ = ["IterateResult", "check_iterate", "iterate", "show_iterate_result"]
