"""A tiny random policy with all that a training step needs, built in code: no files, no run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from transformers import PreTrainedModel

from families import EOS, VOCABULARY
from oncurve.engines.torch_engine import TorchEngine
from oncurve.models.causal_lm import causal_lm
from oncurve.recipe import recipe_from_dict
from oncurve.rewards import NamedReward
from oncurve.terminal import Terminal
from oncurve.train.setup import Parts, Stop
from oncurve.types import Prompt

SECTIONS: dict[str, dict[str, Any]] = {
    "model": {"path": "embedded:letters"},  # not looked at
    "data": {"train": "task:letters"},
    "sampling": {"max_new_tokens": 12},
    "grpo": {"iterations": 3, "prompts_per_iteration": 3, "group_size": 4, "learning_rate": 1e-2},
}


def varied(completion_ids: list[tuple[int, ...]], **_: Any) -> list[float]:
    """Anything that differs within a group."""
    return [float(sum(ids) % 7) for ids in completion_ids]


def prompts(number: int = 4) -> list[Prompt]:
    """Of 2, 3, 5, 6, 8, ... tokens."""
    generator = torch.Generator().manual_seed(5)
    lengths = [2 + (3 * index + 1) // 2 for index in range(number)]
    ids = [torch.randint(3, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
    return [Prompt(index, "", "", tuple(tokens)) for index, tokens in enumerate(ids)]


def parts_of(module: PreTrainedModel, *, dtype: torch.dtype = torch.float64, **sections: Any) -> Parts:
    """``sections`` change those of the recipe: ``grpo={"kl_coef": 0.1}``; None leaves one out."""
    chosen = {
        name: SECTIONS.get(name, {}) | sections.get(name, {})
        for name in {**SECTIONS, **sections}
        if sections.get(name, {}) is not None
    }
    lm = causal_lm(module.to(dtype))
    engine = TorchEngine(lm, eos_ids=[EOS], decode=lambda ids: " ".join(map(str, ids)), max_rows=64)
    reward = NamedReward("varied", 1.0, varied)
    return Parts(
        recipe=recipe_from_dict(chosen),
        terminal=Terminal(quiet=True),
        stop=Stop(),
        lm=lm,
        tokenizer=SimpleNamespace(pad_token_id=0),  # type: ignore[arg-type]
        engine=engine,
        train_prompts=prompts(),
        eval_prompts=[],
        demonstrations=[],
        rewards=[reward],
        measures=[reward],
    )
