"""Out of memory, on whatever device: which options to lower, in the order to try."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from oncurve.config import Recipe
from oncurve.types import OncurveError

Doing = Literal["loading", "sft", "grpo", "reward_model", "evaluating", "sampling"]

# A CPU says so in a RuntimeError like any other; of CUDA's libraries each has words of its own.
_WORDS = re.compile(
    r"(can't|cannot) allocate memory|(not enough|out of) memory|alloc_failed|bad[ _]alloc", re.IGNORECASE
)


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _WORDS.search(str(error)) is not None


@contextmanager
def memory_explained(recipe: Recipe, doing: Doing) -> Iterator[None]:
    """Turn running out of memory into an error that names what to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory(recipe, doing, error) from error


def out_of_memory(recipe: Recipe, doing: Doing, error: BaseException) -> OncurveError:
    """The error to raise in place of ``error``."""
    reason = " ".join(str(error).split())[:300]
    where = {
        "loading": "loading model and data",
        "evaluating": "evaluating",
        "sampling": "sampling",
    }.get(doing, doing)
    return OncurveError(f"out of memory, {where}" + (f": {reason}" if reason else "") + f"\n{_advice(recipe, doing)}")


def _advice(recipe: Recipe, doing: Doing) -> str:
    smaller = "model.dtype = bfloat16" if recipe.model.dtype == "float32" else "a smaller model"
    if doing == "loading":
        return f"what helps is {smaller}, or another device (run.device)"
    max_rows = f"a lower sampling.max_rows (now {recipe.sampling.max_rows})"
    tokens = f"a lower sampling.max_new_tokens (now {recipe.sampling.max_new_tokens})"
    if doing == "sampling":
        return f"what helps, in the order to try: fewer completions (--n), {tokens}, {smaller}"
    if doing == "evaluating":
        return (
            f"what helps, in the order to try: {max_rows}, a lower eval.samples (now {recipe.eval.samples}), {smaller}"
        )
    section = {"sft": recipe.sft, "grpo": recipe.grpo, "reward_model": recipe.reward_model}[doing]
    assert section is not None
    same_run = [f"a lower {doing}.microbatch_tokens (now {section.microbatch_tokens})"]
    if not recipe.model.gradient_checkpointing:
        same_run.append("model.gradient_checkpointing = true")
    other_run = [smaller]
    if recipe.grpo is not None and doing == "grpo":
        same_run.append(max_rows)
        other_run = [
            f"a lower grpo.group_size (now {recipe.grpo.group_size})",
            f"a lower grpo.prompts_per_iteration (now {recipe.grpo.prompts_per_iteration})",
            tokens,
            smaller,
        ]
    return (
        f"what helps, in the order to try: {', '.join(same_run)}. These change speed alone: the same command with them "
        "resumes the run from its last checkpoint, and nothing that was recorded is lost. If they do not do: "
        f"{', '.join(other_run)}, in a new run (--run.name NAME)"
    )
