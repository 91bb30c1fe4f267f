"""A transformers causal language model, seen as two functions: tokens to hidden states, hidden states to logits.

The split is what makes scoring cheap: the output layer runs on the positions that are asked for and on no other, so
full ``[B, T, V]`` logits never exist.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from oncurve.types import OncurveError

_PROBE_TOLERANCE = 1e-4
"""Relative to the largest logit. The two ways differ by rounding if they are the same function, and by percents if the
model scales, caps or shifts its logits."""

_LARGE_LOGIT = 100.0
"""What the probe enlarges the logits to: a cap (Gemma 2 has 30) hardly bends those of a model with small weights, and
would show itself in the middle of training."""


@dataclass(frozen=True)
class CausalLM:
    """``module`` with its decoder and its output layer, and whether the two together really are the model."""

    module: PreTrainedModel
    decoder: nn.Module
    head: Callable[[Tensor], Tensor]
    cache_keyword: str
    """What this model calls its key-value cache: ``cache``, or ``past_key_values`` as it was before."""

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    @property
    def context(self) -> int | None:
        """Longest sequence in tokens that the model was made for, if its configuration says so."""
        return getattr(self.module.config.get_text_config(), "max_position_embeddings", None)

    @property
    def padding_is_unseen(self) -> bool:
        """Whether padding on the left changes nothing: true of attention, which has it masked. A recurrent layer reads
        it, what it does about that differs from family to family, and attention in chunks counts it."""
        config = self.module.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ())
        stateful = getattr(self.module, "_is_stateful", False)
        return kinds <= {"full_attention", "sliding_attention"} and not stateful

    def hidden(
        self,
        tokens: Tensor,
        *,
        cache: Cache | None = None,
        visible: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Last hidden states ``[B, T, D]`` of ``tokens [B, T]``.

        Args:
            cache: what came before, S slots; these tokens are added to it.
            visible: bool ``[B, S + T]``, True = may be looked at. None: everything; rows must be padded on the right.
            positions: int64 ``[B, T]``. None: counted on from what is in the cache.

        ``use_cache`` is given always: left to its default, transformers builds a cache in training too.
        """
        options: dict[str, Any] = {} if cache is None else {self.cache_keyword: cache}
        output = self.decoder(
            input_ids=tokens,
            attention_mask=None if visible is None else visible.long(),
            position_ids=positions,
            use_cache=cache is not None,
            **options,
        )
        return output.last_hidden_state

    def logits(self, hidden: Tensor) -> Tensor:
        """``[..., V]`` logits of hidden states ``[..., D]``."""
        return self.head(hidden)

    def frozen_copy(self) -> CausalLM:
        """The same weights, in memory, that nobody trains: the reference."""
        return causal_lm(copy.deepcopy(self.module).eval().requires_grad_(False))


def causal_lm(module: PreTrainedModel) -> CausalLM:
    """Split ``module``. If decoder and output layer alone do not reproduce its logits (some families scale or cap
    them), the output layer is the model's own ``forward`` with the decoder short-circuited.

    Raises OncurveError for a model that is no causal language model, that keeps no key-value cache, or that cannot be
    split.
    """
    name = type(module).__name__
    decoder, head = module.get_decoder(), module.get_output_embeddings()
    if not isinstance(decoder, nn.Module) or not isinstance(head, nn.Module) or decoder is module:
        raise OncurveError(f"{name} is not a causal language model: it has no decoder or no output layer")
    parameters = inspect.signature(decoder.forward).parameters
    cache_keyword = next((keyword for keyword in ("cache", "past_key_values") if keyword in parameters), None)
    if cache_keyword is None:
        raise OncurveError(f"{name} keeps no key-value cache, so Oncurve cannot sample from it")
    with eval_mode(module):
        for way in (head, _HeadOfForward(module, decoder)):
            lm = CausalLM(module, decoder, way, cache_keyword)
            if _same_logits(lm):
                return lm
    raise OncurveError(f"the logits of {name} cannot be computed from its last hidden states")


@contextlib.contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Every part in eval mode, and afterwards in the mode it was found in."""
    in_train_mode = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in in_train_mode:
            part.training = True


@torch.no_grad()
def _same_logits(lm: CausalLM) -> bool:
    """Does the split agree with the module, as it is and where logits are large?"""
    tokens = torch.arange(4, device=lm.device)[None]
    largest = float(lm.logits(lm.hidden(tokens)).abs().max())
    for factor in (1.0, _LARGE_LOGIT / max(largest, 1e-3)):
        with _hidden_times(factor, lm.decoder):
            whole = lm.module(input_ids=tokens, use_cache=False).logits
            hidden = lm.hidden(tokens)
        split = lm.logits(hidden)
        tolerance = max(_PROBE_TOLERANCE, 4 * torch.finfo(whole.dtype).eps)
        if not (whole - split).abs().max() <= tolerance * whole.abs().max():
            return False
    return True


@contextlib.contextmanager
def _hidden_times(factor: float, decoder: nn.Module) -> Iterator[None]:
    """The decoder's last hidden states come out multiplied."""

    def multiply(_module: nn.Module, _arguments: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state * factor
        return output

    hook = decoder.register_forward_hook(multiply)
    try:
        yield
    finally:
        hook.remove()


class _HeadOfForward:
    """The model's own ``forward`` from the hidden states on: meanwhile its decoder does nothing but return them."""

    def __init__(self, module: PreTrainedModel, decoder: nn.Module) -> None:
        self._module = module
        self._decoder = decoder

    def __call__(self, hidden: Tensor) -> Tensor:
        flat = hidden.reshape(1, -1, hidden.shape[-1])
        output = _Output(last_hidden_state=flat)  # type: ignore[arg-type]
        self._decoder.forward = lambda *_, **__: output
        try:
            logits = self._module(inputs_embeds=flat, use_cache=False).logits
        finally:
            del self._decoder.forward
        return logits.reshape(*hidden.shape[:-1], logits.shape[-1])


class _Output(BaseModelOutputWithPast):
    def __getattr__(self, _: str) -> None:
        """None for what else the decoders of some families return: router logits, cross attentions."""
