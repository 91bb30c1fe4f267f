"""The embedded engine: batched sampling with plain torch, from the very weights that are trained.

A prompt is read once for its whole group; rows that are finished leave the batch, and waiting ones take their place; a
token is the inverse CDF of its distribution at one uniform number, which depends on (seed, iteration, prompt id, sample
number, position) alone. So the same seed gives the same completions whatever the batch size, as long as no uniform
number falls into the rounding error between two ways of batching the same matrix product. In float32 that is about 1e-6
for a token, so one completion of 100 tokens in some ten thousand may differ; in 16 bits it is a thousand times as much.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from oncurve.engines.drawing import Meter, Wanted
from oncurve.engines.group_decoding import decode_groups
from oncurve.engines.row_decoding import decode_rows
from oncurve.functional.decoding import row_keys
from oncurve.functional.masking import completion_lengths, truncated
from oncurve.models.causal_lm import CausalLM, eval_mode
from oncurve.models.group_decoding import can_decode_groups
from oncurve.types import Completion, Group, OncurveError, Prompt, SamplingParams, Usage


class TorchEngine:
    """Implements ``oncurve.types.Engine``."""

    def __init__(
        self,
        lm: CausalLM,
        *,
        eos_ids: Sequence[int],
        decode: Callable[[Sequence[int]], str],
        max_rows: int,
    ) -> None:
        """``eos_ids``: any of these ends a completion. ``decode``: token ids to text, special tokens left out.
        ``max_rows``: completions decoded side by side."""
        self._lm = lm
        self._eos_ids = sorted(set(eos_ids))
        self._decode = decode
        self._max_rows = max_rows
        with eval_mode(lm.module):
            self._way = decode_groups if can_decode_groups(lm) else decode_rows
        self.usage = Usage()
        """Of the last call of ``sample``."""

    def load_weights(self, policy: nn.Module) -> None:
        """Nothing to do when ``policy`` is the module this engine samples from; otherwise a copy of its weights."""
        if policy is not self._lm.module:
            self._lm.module.load_state_dict(policy.state_dict())

    @torch.no_grad()
    def sample(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        params: SamplingParams,
        *,
        seed: int,
        iteration: int,
    ) -> list[Group]:
        """``group_size`` completions for each of ``prompts``, in their order.

        ``sampler_logprobs`` are of the distribution that was drawn from, filters included; for greedy decoding, of
        temperature 1. The module is in eval mode meanwhile, and then again in the mode it was found in.

        Raises OncurveError for a prompt that is empty, or that leaves no room in the model's context for
        ``params.max_new_tokens``.
        """
        for prompt in prompts:
            _check_fits(prompt, params.max_new_tokens, self._lm.context)
        meter, self.usage = Meter(), Usage()
        if not prompts:
            return []
        began = time.perf_counter()
        device = self._lm.device
        rows = len(prompts) * group_size
        numbers = torch.arange(group_size).repeat(len(prompts))
        of_row = torch.tensor([prompt.id for prompt in prompts]).repeat_interleave(group_size)
        wanted = Wanted(
            [prompt.token_ids for prompt in prompts for _ in range(group_size)],
            row_keys(seed, iteration, of_row, numbers).to(device),
            torch.tensor(self._eos_ids, dtype=torch.int64, device=device),
            params,
            self._max_rows,
            self._lm.quick_logits(min(self._max_rows, rows), rows * params.max_new_tokens),
            int(getattr(self._lm.module.config.get_text_config(), "vocab_size", 1)),
        )
        # In train mode there may be dropout, and with gradient checkpointing some models drop their cache unasked: each
        # token would be drawn as if nothing stood before it.
        with eval_mode(self._lm.module):
            ids, logprobs = self._way(self._lm, wanted, meter)
        # What a row drew after it had ended is cut off here.
        counts = completion_lengths(ids, self._eos_ids).tolist()
        cut = truncated(ids, self._eos_ids).tolist()
        completions = [
            Completion(tuple(row[:count]), self._decode(row[:count]), tuple(of_row[:count]), was_cut)
            for row, of_row, count, was_cut in zip(ids.tolist(), logprobs.tolist(), counts, cut, strict=True)
        ]
        seconds = time.perf_counter() - began
        self.usage = Usage(seconds, meter.prefill_seconds, sum(counts), meter.running, meter.places)
        return [
            Group(prompt, tuple(completions[index * group_size : (index + 1) * group_size]))
            for index, prompt in enumerate(prompts)
        ]


def _check_fits(prompt: Prompt, max_new_tokens: int, context: int | None) -> None:
    length = len(prompt.token_ids)
    if length == 0:
        raise OncurveError(f"prompt {prompt.id} is empty; a completion needs at least one token to follow")
    if context is not None and length + max_new_tokens > context:
        raise OncurveError(
            f"prompt {prompt.id} has {length} tokens and max_new_tokens is {max_new_tokens}, but the model's context "
            f"is {context} tokens; at most {context - max_new_tokens} fit"
        )
