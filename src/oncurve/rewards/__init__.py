"""Reward functions: the built-in ones, loading a user's, and calling them all."""

from oncurve.rewards.answer import Answer, accuracy, read_answer, read_gold
from oncurve.rewards.extract import completion_text, extract_answer
from oncurve.rewards.format import format_reward, think_format_reward
from oncurve.rewards.functions import BUILT_IN, NamedReward, RewardError, check_signature, load_functions
from oncurve.rewards.score import Scores, joined, score

__all__ = [
    "BUILT_IN",
    "Answer",
    "NamedReward",
    "RewardError",
    "Scores",
    "accuracy",
    "check_signature",
    "completion_text",
    "extract_answer",
    "format_reward",
    "joined",
    "load_functions",
    "read_answer",
    "read_gold",
    "score",
    "think_format_reward",
]
