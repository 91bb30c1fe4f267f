"""Reward functions: the built-in ones, loading a user's, and calling them all."""

from oncurve.rewards.answer import Answer, read_answer, read_gold
from oncurve.rewards.code import code_partial_reward, code_reward, code_speed_reward, extract_code, sandbox_for
from oncurve.rewards.combine import Combination, combination
from oncurve.rewards.correctness import accuracy
from oncurve.rewards.extract import completion_text, extract_answer
from oncurve.rewards.format import format_reward, graded_format_reward, think_format_reward
from oncurve.rewards.functions import BUILT_IN, NamedReward, RewardError, check_signature, load_functions
from oncurve.rewards.judge import judge_reward
from oncurve.rewards.language import language_reward
from oncurve.rewards.length import cosine_reward, overlong_reward, repetition_reward
from oncurve.rewards.score import Scores, joined, score
from oncurve.rewards.steps import Step, StepScores, Unit

__all__ = [
    "BUILT_IN",
    "Answer",
    "Combination",
    "NamedReward",
    "RewardError",
    "Scores",
    "Step",
    "StepScores",
    "Unit",
    "accuracy",
    "check_signature",
    "code_partial_reward",
    "code_reward",
    "code_speed_reward",
    "combination",
    "completion_text",
    "cosine_reward",
    "extract_answer",
    "extract_code",
    "format_reward",
    "graded_format_reward",
    "joined",
    "judge_reward",
    "language_reward",
    "load_functions",
    "overlong_reward",
    "read_answer",
    "read_gold",
    "repetition_reward",
    "sandbox_for",
    "score",
    "think_format_reward",
]
