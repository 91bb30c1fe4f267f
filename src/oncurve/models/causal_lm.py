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

from oncurve.functional.linear_logprobs import packed_linear
from oncurve.models.kv_cache import growing_cache
from oncurve.types import OncurveError

_PROBE_TOLERANCE = 1e-4
"""Relative to the largest logit. The two ways differ by rounding if they are the same function, and by percents if the
model scales, caps or shifts its logits."""

_CACHE_TOLERANCE = 0.01
_CACHE_TOLERANCE_IN_16_BITS = 0.1
"""Relative to the largest entry of the hidden states. Read rightly from a cache they are off by 1e-6 in float32, in the
odd family by 2e-3; from one that loses state or mixes up rows by 0.06 even where the weights are random. In 16 bits
rounding alone may come near that, so only what is far off is told here, and the rest by the first training batch."""

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

    @property
    def keeps_packed_rows_apart(self) -> bool:
        """Whether sequences that stand end to end in one row are told apart by their positions. Transformers' masks do
        that; a convolution reads across the border, and ALiBi measures distances across it."""
        return self.padding_is_unseen and bool(getattr(self.module, "_supports_sdpa", False))

    @property
    def shares_prefixes(self) -> bool:
        """Whether a prompt may be computed once for several completions in training: its keys and values must be all
        that a completion sees of it, and all of them. A sliding window drops some; attention of a family's own (ALiBi)
        may give nan for padding on the left; and what is recomputed in the backward pass (gradient checkpointing) is
        refused a cache by transformers."""
        config = self.module.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ())
        window = getattr(config, "sliding_window", None) if not kinds else None
        # The property of transformers that says so has two names, of which the old one warns.
        checkpointing = any(getattr(part, "gradient_checkpointing", False) for part in self.module.modules())
        usual = kinds <= {"full_attention"} and not window and getattr(self.module, "_supports_sdpa", False)
        return self.padding_is_unseen and bool(usual) and not checkpointing

    @property
    def output_layer(self) -> nn.Linear | None:
        """The head, if it is a plain linear layer and nobody listens to it."""
        head = self.head
        if not isinstance(head, nn.Linear) or type(head) is not nn.Linear:
            return None
        return None if head._forward_hooks or head._forward_pre_hooks else head

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

    def quick_logits(self, rows: int, total: int) -> Callable[[Tensor], Tensor]:
        """What computes :meth:`logits` without gradient, about ``rows`` at a time and ``total`` in all, as long as the
        weights stay as they are. A large output layer may be copied into an order that a CPU reads faster."""
        layer = self.output_layer
        if layer is None:
            return self.logits
        return packed_linear(layer.weight, layer.bias, rows, total)

    def frozen_copy(self) -> CausalLM:
        """The same weights, in memory, that nobody trains: the reference."""
        return causal_lm(copy.deepcopy(self.module).eval().requires_grad_(False))


def causal_lm(module: PreTrainedModel) -> CausalLM:
    """Split ``module``. If decoder and output layer alone do not reproduce its logits (some families scale or cap
    them), the output layer is the model's own ``forward`` with the decoder short-circuited.

    Raises OncurveError for a model that is no causal language model, that keeps no key-value cache or one that sampling
    cannot use, that cannot be split, or whose logits are no numbers.
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
        _check_finite(module)
        for way in (head, _HeadOfForward(module, decoder)):
            lm = CausalLM(module, decoder, way, cache_keyword)
            if _same_logits(lm):
                _check_cache(lm)
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
def _check_finite(module: PreTrainedModel) -> None:
    tokens = torch.arange(4, device=module.device)[None]
    if not bool(module(input_ids=tokens, use_cache=False).logits.isfinite().all()):
        raise OncurveError(
            f"the logits of {type(module).__name__} are not finite, even for a plain text: its weights are no good, or "
            f"too large for {str(module.dtype).removeprefix('torch.')} (model.dtype = float32 may do)"
        )


@torch.no_grad()
def _check_cache(lm: CausalLM) -> None:
    """Sampling reads a prompt once, gives every row of its group a copy of the cache, and goes on token by token. A
    model that keeps some of its state elsewhere would go on from something else, unnoticed.

    Raises OncurveError unless rows that are read in this way come out as when they are read whole.
    """
    name = type(lm.module).__name__
    tokens = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3], [1, 0, 3, 2, 3, 2, 1, 0]], device=lm.device)
    prompt, rows = 6, torch.tensor([1, 0, 0], device=lm.device)
    whole = lm.hidden(tokens[rows])
    try:
        cache = growing_cache(lm.module.config, room=1)
        lm.hidden(tokens[:, :prompt], cache=cache)
        cache.reorder_cache(rows)  # type: ignore[arg-type]
        parts = [lm.hidden(tokens[rows, at : at + 1], cache=cache) for at in range(prompt, tokens.shape[1])]
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a cache of its own kind may fail in any way
        raise OncurveError(
            f"{name} cannot be sampled from: it does not work with the cache of transformers that Oncurve uses "
            f"({type(error).__name__}: {error})"
        ) from error
    gap = float((torch.cat(parts, dim=1) - whole[:, prompt:]).abs().max() / whole.abs().max())
    if not gap <= (_CACHE_TOLERANCE_IN_16_BITS if whole.dtype.itemsize == 2 else _CACHE_TOLERANCE):
        raise OncurveError(
            f"{name} cannot be sampled from: with a cache that the rows of a group share it does not read what it does "
            f"without one (hidden states differ by {gap:.2g} of the largest). Recurrent models that keep some of their "
            "state outside the cache are not supported"
        )


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
