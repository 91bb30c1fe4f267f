"""Scoring that can be killed: worker processes with limits of time and memory for each item.

``Pool`` is for scorers that judge one item at a time, such as a comparison of two formulas. ``Supervised`` is a user's
reward function in a process of its own. Neither shares memory, locks or threads with the trainer: workers are new
processes, never forks of one that has torch.
"""

from oncurve.rewards.pool.pool import Outcome, Pool, PoolError, Status
from oncurve.rewards.pool.supervised import FunctionFailed, FunctionLate, Lone, Supervised

__all__ = ["FunctionFailed", "FunctionLate", "Lone", "Outcome", "Pool", "PoolError", "Status", "Supervised"]
