"""A judge: completions graded by a rubric, by a model behind any OpenAI-compatible endpoint."""

from oncurve.rewards.judge.reward import judge_reward
from oncurve.rewards.judge.rubric import Criterion, Rubric, RubricError, load_rubric

__all__ = ["Criterion", "Rubric", "RubricError", "judge_reward", "load_rubric"]
