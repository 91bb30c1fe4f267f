"""Where a run is, and its checkpoints: what is saved, how it is found again."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

import oncurve
from oncurve.models.causal_lm import CausalLM
from oncurve.models.reward_model import RewardModel
from oncurve.parallel.checkpoint import Loaded, load_newest, prune, save
from oncurve.parallel.optimizer_state import load_optimizer, optimizer_tensors
from oncurve.types import OncurveError


@dataclass(frozen=True)
class Position:
    """How far a run has come; what a checkpoint is a checkpoint of."""

    stage: Literal["sft", "grpo", "reward_model"]
    iteration: int
    """GRPO iterations done; 0 in SFT."""
    step: int
    """Optimizer steps done in this stage."""
    tokens: int
    """Completion tokens sampled for training since the run began."""
    seconds: float
    """Time spent so far, interruptions left out."""
    stage_done: bool
    kl_coef: float | None = None
    """Where an adaptive `grpo.kl_coef` stands; None: where the recipe begins."""


START = Position("sft", 0, 0, 0, 0.0, stage_done=False)


class Checkpoints:
    """The checkpoints of one run: policy, optimizer, position. Saving the same position twice writes it once."""

    def __init__(self, directory: Path, keep_last: int, lm: CausalLM | RewardModel) -> None:
        self._directory = directory
        self._keep_last = keep_last
        self._lm = lm
        self._began = time.perf_counter()
        self._loaded: Loaded | None = None
        self._critic: tuple[nn.Module, torch.optim.Optimizer] | None = None
        self.last: Position | None = None
        """The position of the newest checkpoint, found or saved."""

    def find(self, say: Callable[[str], None]) -> Position | None:
        """The position of the newest valid checkpoint. Damaged ones are named through ``say`` and passed over."""
        self._loaded = load_newest(self._directory, say=say)
        if self._loaded is not None:
            self.last = Position(**self._loaded.state["position"])
        return self.last

    def also(self, critic: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Save and restore a critic and its optimizer too, from now on."""
        self._critic = critic, optimizer

    def restore(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Put the weights, and the optimizer's state if there is one, back to what ``find`` found.

        Raises OncurveError if the model is not the one that was saved.
        """
        assert self._loaded is not None
        try:
            self._lm.module.load_state_dict(self._loaded.tensors["policy"])
        except RuntimeError as error:
            raise OncurveError(
                f"{self._loaded.path} does not fit the model: model.path is not what the run began with; put it back, "
                "or begin a new run with --run.name NAME"
            ) from error
        if optimizer is not None and "optimizer" in self._loaded.tensors:
            state = self._loaded.state["optimizer"]
            load_optimizer(optimizer, self._lm.module, self._loaded.tensors["optimizer"], state)
        if self._critic is not None and "critic" in self._loaded.tensors:
            module, theirs = self._critic
            module.load_state_dict(self._loaded.tensors["critic"])
            state = self._loaded.state["critic_optimizer"]
            load_optimizer(theirs, module, self._loaded.tensors["critic_optimizer"], state)

    def save(self, position: Position, number: int, optimizer: torch.optim.Optimizer | None) -> None:
        """Checkpoint ``position``, whose records must be committed already; ``number`` orders the checkpoints."""
        position = dataclasses.replace(position, seconds=0.0)
        if self.last is not None and position == dataclasses.replace(self.last, seconds=0.0):
            return
        position = dataclasses.replace(position, seconds=self.seconds())
        tensors: dict[str, Any] = {"policy": self._lm.module.state_dict()}
        state: dict[str, Any] = {"oncurve": oncurve.__version__, "position": dataclasses.asdict(position)}
        if optimizer is not None:
            tensors["optimizer"], state["optimizer"] = optimizer_tensors(optimizer, self._lm.module)
        if self._critic is not None:
            module, theirs = self._critic
            tensors["critic"] = module.state_dict()
            tensors["critic_optimizer"], state["critic_optimizer"] = optimizer_tensors(theirs, module)
        save(self._directory, number, tensors, state)
        prune(self._directory, self._keep_last)
        self.last = position

    def seconds(self) -> float:
        """Time this run has taken so far, all its sittings together."""
        earlier = float(self._loaded.state["position"]["seconds"]) if self._loaded else 0.0
        return earlier + time.perf_counter() - self._began
