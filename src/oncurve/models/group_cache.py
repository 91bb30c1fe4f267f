"""Keys and values of rows that are decoded side by side, with those of their prompts held once for each prompt.

A cohort is a set of rows that began at the same time, so that all have written as many tokens: rows of some prompts,
the rows of a prompt side by side. Tensors have the heads first, ``[K, rows, S, D]`` (K key-value heads, S tokens, D
width of a head): then the scores over the prompt, computed prompt by prompt, and those over a row's own tokens,
computed row by row, stand in memory in the same order, and are put together without being sorted.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer

# Tokens for which a cohort's buffers have room at first; they grow by half of what they have. Completions that end
# early leave no large buffer idle, and what is copied in growing is lost in what is read in each step.
_ROOM = 64

# A prompt without rows left costs time and memory until the others are copied to a place of their own.
_CROWDED = 0.75


@dataclass(frozen=True)
class Prefix:
    """What was read of U prompts, padded on the right to W tokens."""

    keys: list[Tensor]
    """By layer ``[K, U, W, D]``."""
    values: list[Tensor]
    lengths: Tensor
    """int64 ``[U]``."""

    @property
    def width(self) -> int:
        return int(self.keys[0].shape[2])

    def take(self, prompts: Sequence[int]) -> Prefix:
        """A copy of those prompts, no wider than the longest of them."""
        index = self.lengths.new_tensor(list(prompts))
        lengths = self.lengths[index]
        width = int(lengths.max())
        keys, values = ([t[:, :, :width].index_select(1, index) for t in of] for of in (self.keys, self.values))
        return Prefix(keys, values, lengths)

    def joined(self, other: Prefix) -> Prefix:
        """Both, these prompts first."""
        width = max(self.width, other.width)
        keys, values = (
            [torch.cat([widened(one, width), widened(two, width)], dim=1) for one, two in zip(*pair, strict=True)]
            for pair in ((self.keys, other.keys), (self.values, other.values))
        )
        return Prefix(keys, values, torch.cat([self.lengths, other.lengths]))


def widened(tensor: Tensor, width: int) -> Tensor:
    """``[K, U, W, D]`` with zeros up to ``width`` tokens: no NaN that a mask could not undo."""
    return torch.nn.functional.pad(tensor, (0, 0, 0, width - tensor.shape[2]))


class Cohort:
    """Rows that began together: what was read for them, and what they have written."""

    def __init__(self, prefix: Prefix, rows: Sequence[int], limit: int) -> None:
        """``rows``: how many rows each prompt of ``prefix`` has, side by side. ``limit``: the most tokens of a row."""
        self.prefix = prefix
        self.written = 0
        """Tokens of each row of which keys and values are held."""
        self._limit = limit
        layers = len(prefix.keys)
        self._keys: list[Tensor | None] = [None] * layers
        self._values: list[Tensor | None] = [None] * layers
        self._lay_out([prompt for prompt, count in enumerate(rows) for _ in range(count)])

    def __len__(self) -> int:
        return len(self._of_row)

    @property
    def starts(self) -> Tensor:
        """int64 ``[rows]``: the tokens of each row's prompt."""
        return self.prefix.lengths[self.prefix.lengths.new_tensor(self._of_row)]

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Add one token's ``[rows, K, D]`` at place ``written``, which moves on with the last layer."""
        at = self.written
        key_buffer, value_buffer = self._keys[layer], self._values[layer]
        if key_buffer is None or value_buffer is None or at == key_buffer.shape[2]:
            room = min(self._limit, max(_ROOM, at + at // 2))
            key_buffer = self._keys[layer] = _enlarged(key_buffer, keys, at, room)
            value_buffer = self._values[layer] = _enlarged(value_buffer, values, at, room)
        key_buffer[:, :, at] = keys.transpose(0, 1)
        value_buffer[:, :, at] = values.transpose(0, 1)
        if layer == len(self._keys) - 1:
            self.written += 1

    def attend(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        """``[K, rows, Q, D]`` for queries of the same shape (Q of them share a key), after this layer's ``write``."""
        key_buffer, value_buffer = self._keys[layer], self._values[layer]
        assert key_buffer is not None
        assert value_buffer is not None
        # The last layer's write has moved the end already.
        end = self.written + (layer < len(self._keys) - 1)
        own_keys, own_values = key_buffer[:, :, :end], value_buffer[:, :, :end]
        keys, values = self.prefix.keys[layer], self.prefix.values[layer]
        heads, _rows, queries, width = query.shape
        query = query * scaling
        of_prompt = query if self._slots is None else query[:, self._slots]
        prompts, tokens = keys.shape[1], keys.shape[2]
        scores = of_prompt.reshape(heads, prompts, -1, width) @ keys.transpose(2, 3)
        if self._padding is not None:
            scores.masked_fill_(self._padding, -torch.inf)
        scores = scores.view(heads, -1, queries, tokens)
        if self._slot_of_row is not None:
            scores = scores[:, self._slot_of_row]
        weights = torch.cat([scores, query @ own_keys.transpose(2, 3)], dim=-1)
        weights = weights.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
        on_prompt = weights[..., :tokens]
        if self._slots is not None:
            on_prompt = on_prompt[:, self._slots]
        read = on_prompt.view(heads, prompts, -1, tokens) @ values
        read = read.view(heads, -1, queries, width)
        if self._slot_of_row is not None:
            read = read[:, self._slot_of_row]
        return read.add_(weights[..., tokens:] @ own_values)

    def keep(self, rows: Sequence[int]) -> None:
        """Only these rows stay, in this order, which must leave the rows of a prompt side by side."""
        of_row = [self._of_row[row] for row in rows]
        live = sorted(set(of_row))
        if len(live) <= _CROWDED * len(self.prefix.lengths):
            self.prefix = self.prefix.take(live)
            place = {prompt: at for at, prompt in enumerate(live)}
            of_row = [place[prompt] for prompt in of_row]
        index = self.prefix.lengths.new_tensor(list(rows))
        for buffers in (self._keys, self._values):
            for layer, buffer in enumerate(buffers):
                if buffer is not None:
                    kept = buffer.new_empty(buffer.shape[0], len(rows), *buffer.shape[2:])
                    kept[:, :, : self.written] = buffer[:, :, : self.written].index_select(1, index)
                    buffers[layer] = kept
        self._lay_out(of_row)

    def _lay_out(self, of_row: list[int]) -> None:
        """Note which prompt each row has. Attention to the prompts is one product for all: each has as many slots as
        the one with most rows. If all have the same number of rows, slots are rows."""
        self._of_row = of_row
        prefix, device = self.prefix, self.prefix.lengths.device
        prompts = len(prefix.lengths)
        counts = [0] * prompts
        for prompt in of_row:
            counts[prompt] += 1
        most = max(counts)
        self._slots = self._slot_of_row = None
        if any(count != most for count in counts):
            slots, slot_of_row = [0] * (prompts * most), list[int]()  # the slots left over repeat row 0
            first = dict[int, int]()
            for row, prompt in enumerate(of_row):
                slot = prompt * most + row - first.setdefault(prompt, row)
                slots[slot] = row
                slot_of_row.append(slot)
            self._slots = torch.tensor(slots, device=device)
            self._slot_of_row = torch.tensor(slot_of_row, device=device)
        beyond = torch.arange(prefix.width, device=device) >= prefix.lengths[:, None]
        self._padding = beyond[:, None] if bool(beyond.any()) else None  # [U, 1, W]


class GroupCache(Cache):
    """The form in which transformers hands the keys and values of a new token to the cohorts: the rows of a forward
    pass are those of the cohorts, one after another. Only the attention of ``models.group_decoding`` reads it."""

    def __init__(self, cohorts: Sequence[Cohort]) -> None:
        super().__init__(layers=[_GroupLayer(self, layer) for layer in range(len(cohorts[0].prefix.keys))])
        self.cohorts = cohorts
        self.bounds = list(itertools.pairwise(itertools.accumulate((len(c) for c in cohorts), initial=0)))


class _GroupLayer(DynamicLayer):
    def __init__(self, cache: GroupCache, layer: int) -> None:
        super().__init__()
        self._cache = cache
        self._layer = layer

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        for cohort, (begin, end) in zip(self._cache.cohorts, self._cache.bounds, strict=True):
            cohort.write(self._layer, key_states[begin:end, :, 0], value_states[begin:end, :, 0])
        return key_states, value_states

    def get_seq_length(self) -> int:
        return self._cache.cohorts[0].prefix.width + self._cache.cohorts[0].written


def _enlarged(filled: Tensor | None, new: Tensor, end: int, room: int) -> Tensor:
    """``[K, rows, room, D]`` for entries ``[rows, K, D]``, with ``end`` tokens of ``filled``."""
    rows, heads, width = new.shape
    buffer = new.new_empty(heads, rows, room, width)
    if filled is not None:
        buffer[:, :, :end] = filled[:, :, :end]
    return buffer
