"""The critic of PPO: what a completion will be worth, estimated before each of its tokens."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from oncurve.functional.logprobs import place
from oncurve.models.causal_lm import CausalLM, causal_lm
from oncurve.models.token_logprobs import predicting_states
from oncurve.types import Batch


@dataclass(frozen=True)
class Critic:
    """A decoder with a scalar head."""

    trunk: CausalLM
    head: nn.Linear
    """``D -> 1`` in float32. It begins at zero: before training every value is 0."""
    own_trunk: bool
    """The decoder is the critic's own and is trained; False: it is the policy's, which the critic only reads."""

    @property
    def module(self) -> nn.Module:
        """All that is trained. The policy has none of it."""
        return nn.ModuleDict(
            {"decoder": self.trunk.decoder, "head": self.head} if self.own_trunk else {"head": self.head}
        )

    def values(self, batch: Batch) -> Tensor:
        """``[B, T]`` float32, in units of reward, token-aligned: at t what is expected before the token at t is chosen;
        0 where the completion mask is False. With gradient to :attr:`module` and to nothing else."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.own_trunk):
            states = predicting_states(self.trunk, batch)
        return place(self.head(states.float()).squeeze(-1), batch.completion_mask)


def critic_of(policy: CausalLM, *, own_trunk: bool) -> Critic:
    """A critic that begins as ``policy`` is now: as a copy of its decoder, or on top of it."""
    trunk = policy
    if own_trunk:
        trunk = causal_lm(copy.deepcopy(policy.module).eval())
        trunk.module.requires_grad_(False)
        trunk.decoder.requires_grad_(True)
    width = policy.module.config.get_text_config().hidden_size
    head = nn.Linear(width, 1, device=policy.device, dtype=torch.float32)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return Critic(trunk, head, own_trunk)
