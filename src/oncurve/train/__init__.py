"""The loops: supervised fine-tuning, GRPO, evaluation, and the run around them."""

import sys

from oncurve.train.api import CallablePackage
from oncurve.train.commands import conform_command, evaluate_command, sample_command
from oncurve.train.demo import run_demo
from oncurve.train.iterate import iterate, show_iterate_result
from oncurve.train.outcome import Result, show_result
from oncurve.train.reward_run import show_reward_result, train_reward_model
from oncurve.train.run import STAGES, run

__all__ = [
    "STAGES",
    "Result",
    "conform_command",
    "evaluate_command",
    "iterate",
    "run",
    "run_demo",
    "sample_command",
    "show_iterate_result",
    "show_result",
    "show_reward_result",
    "train_reward_model",
]

sys.modules[__name__].__class__ = CallablePackage  # so that `oncurve.train(recipe)` is a function too
