"""A key-value cache that grows in place: one write per token instead of a copy of everything so far."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer


class GrowingLayer(DynamicLayer):
    """``DynamicLayer`` over a buffer with room to spare. ``keys`` and ``values`` are views of what is filled."""

    def __init__(self, room: int) -> None:
        """``room``: tokens to spare whenever a buffer is made."""
        super().__init__()
        self._room = room
        self._key_buffer: Tensor | None = None
        self._value_buffer: Tensor | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if self._key_buffer is None or self._value_buffer is None or end > self._key_buffer.shape[-2]:
            self._key_buffer = _enlarged(self.keys if start else None, key_states, end + self._room)
            self._value_buffer = _enlarged(self.values if start else None, value_states, end + self._room)
        self._key_buffer[:, :, start:end] = key_states
        self._value_buffer[:, :, start:end] = value_states
        self.keys, self.values = self._key_buffer[:, :, :end], self._value_buffer[:, :, :end]
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the rows ``beam_idx`` (repeats allowed: this is also how a prompt's cache is shared by its group)."""
        length = self.get_seq_length()
        if self._key_buffer is None or self._value_buffer is None:
            return
        self._key_buffer = _selected(self._key_buffer, beam_idx, length)
        self._value_buffer = _selected(self._value_buffer, beam_idx, length)
        self.keys, self.values = self._key_buffer[:, :, :length], self._value_buffer[:, :, :length]

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self._key_buffer is not None:
            self.reorder_cache(torch.arange(len(self._key_buffer), device=self.device).repeat_interleave(repeats))

    def reset(self) -> None:
        self._key_buffer = self._value_buffer = None
        super().reset()


def growing_cache(config: PreTrainedConfig, room: int) -> DynamicCache:
    """The cache transformers would make for this model, with every plain layer replaced by one that grows in place,
    ``room`` tokens at a time. Sliding-window and other special layers stay as they are.

    To choose rows use ``reorder_cache``: recurrent layers have it, and not ``batch_select_indices``.
    """
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer(room) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def _enlarged(filled: Tensor | None, new: Tensor, length: int) -> Tensor:
    buffer = new.new_empty(*new.shape[:-2], length, new.shape[-1])
    if filled is not None:
        buffer[:, :, : filled.shape[-2]] = filled
    return buffer


def _selected(buffer: Tensor, indices: Tensor, length: int) -> Tensor:
    chosen = buffer.new_empty(len(indices), *buffer.shape[1:])
    chosen[:, :, :length] = buffer[:, :, :length].index_select(0, indices)
    return chosen
