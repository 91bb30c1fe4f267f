"""Decoding with each prompt's keys and values held once for its group, and new prompts let in as rows end.

Rows that begin together are a cohort. Whenever a quarter of the places is free, or all that wait would fit, the next
rows are let in as a cohort of their own; every step is one forward pass for all cohorts. A prompt whose rows do not all
fit is kept for those that come later, and not read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oncurve.engines.drawing import Meter, Wanted, next_tokens
from oncurve.models.causal_lm import CausalLM
from oncurve.models.group_cache import Cohort, Prefix
from oncurve.models.group_decoding import decode_step, prefill

# Padded tokens of prompts in one forward pass.
_PREFILL_TOKENS = 4096

# Leaving costs a copy of the cohort's cache: rows that have ended are carried along until they are a quarter of it.
_CROWDED = 0.75

# Letting in costs attention in one more piece: rows wait until a quarter of the places is free.
_FREE = 0.25


@dataclass
class _Rows:
    """A cohort's rows and where each of them stands; tensors are ``[rows]``."""

    cohort: Cohort
    rows: Tensor
    """Number among the wanted completions."""
    keys: Tensor
    positions: Tensor
    """In the whole sequence, of the token that was chosen last."""
    chosen: Tensor
    running: Tensor
    """bool: has not ended."""
    written: int = 1
    """Tokens drawn so far, for each row the same."""

    def keep(self, stay: Tensor) -> None:
        """Only the rows at the places ``stay``."""
        self.cohort.keep(stay.tolist())
        for name in ("rows", "keys", "positions", "chosen", "running"):
            setattr(self, name, getattr(self, name)[stay])


@torch.no_grad()
def decode_groups(lm: CausalLM, wanted: Wanted, meter: Meter) -> tuple[Tensor, Tensor]:
    """Fills in ``wanted.results()``."""
    ids, logprobs = wanted.results()
    limit, places = wanted.params.max_new_tokens, min(wanted.max_rows, len(wanted.prompts))
    waiting = _Waiting(lm, wanted, meter)
    batch: list[_Rows] = []
    while waiting or batch:
        free = places - sum(len(part.rows) for part in batch)
        if waiting and free >= min(len(waiting), max(1, round(_FREE * places))):
            began = min(free, len(waiting))
            meter.step(began, began)
            batch += waiting.let_in(free, ids, logprobs)
            if waiting and not batch:
                continue
        if not batch:
            break
        hidden = decode_step(lm, [part.cohort for part in batch], _joined(batch, "chosen"), _joined(batch, "positions"))
        meter.step(sum(int(part.running.sum()) for part in batch), places)
        at = torch.cat([torch.full_like(part.rows, part.written) for part in batch])
        chosen, drawn = next_tokens(wanted, hidden, _joined(batch, "keys"), at)
        rows = _joined(batch, "rows")
        ids[rows, at], logprobs[rows, at] = chosen, drawn
        begin = 0
        for part in batch:
            end = begin + len(part.rows)
            part.chosen, part.positions, part.written = chosen[begin:end], part.positions + 1, part.written + 1
            part.running = part.running & ~wanted.ended(part.chosen)
            begin = end
        batch = [part for part in batch if part.written < limit and _compacted(part)]
    return ids, logprobs


class _Waiting:
    """Completions that have not begun, prompts of like length together."""

    def __init__(self, lm: CausalLM, wanted: Wanted, meter: Meter) -> None:
        self._lm, self._wanted, self._meter = lm, wanted, meter
        of_prompt: dict[tuple[int, ...], list[int]] = {}
        for row in sorted(range(len(wanted.prompts)), key=lambda row: len(wanted.prompts[row])):
            of_prompt.setdefault(wanted.prompts[row], []).append(row)
        self._prompts = list(of_prompt.items())
        self._rows_left = len(wanted.prompts)
        self._half_read: tuple[Tensor, Prefix] | None = None
        """Hidden state ``[1, D]`` and cache of the first prompt, if some of its rows have begun."""

    def __len__(self) -> int:
        return self._rows_left

    def let_in(self, free: int, ids: Tensor, logprobs: Tensor) -> list[_Rows]:
        """The next ``free`` completions with their first token, as a cohort; none if all of them ended with it."""
        taken: list[tuple[tuple[int, ...], list[int]]] = []
        while free and self._prompts:
            prompt, rows = self._prompts[0]
            taken.append((prompt, rows[:free]))
            if len(rows) > free:
                self._prompts[0] = (prompt, rows[free:])
            else:
                self._prompts.pop(0)
            free -= len(taken[-1][1])
        self._rows_left -= sum(len(rows) for _, rows in taken)
        with self._meter.prefilling():
            hidden, prefix = self._read([prompt for prompt, _ in taken])
        return self._begun(hidden, prefix, [rows for _, rows in taken], ids, logprobs)

    def _read(self, prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, Prefix]:
        """Hidden states ``[U, D]`` and caches of ``prompts``; what was read before is not read again."""
        before = self._half_read
        if before is None or len(prompts) > 1:
            found = prefill(self._lm, prompts[before is not None :], _PREFILL_TOKENS)
            hidden, prefix = found if before is None else (torch.cat([before[0], found[0]]), before[1].joined(found[1]))
        else:
            hidden, prefix = before
        unfinished = bool(self._prompts) and self._prompts[0][0] == prompts[-1]
        self._half_read = (hidden[-1:], prefix.take([len(prompts) - 1])) if unfinished else None
        return hidden, prefix

    def _begun(
        self, hidden: Tensor, prefix: Prefix, rows_of: Sequence[Sequence[int]], ids: Tensor, logprobs: Tensor
    ) -> list[_Rows]:
        device, wanted = hidden.device, self._wanted
        rows = torch.tensor([row for of in rows_of for row in of], device=device)
        of_row = torch.tensor([place for place, of in enumerate(rows_of) for _ in of], device=device)
        keys, first = wanted.keys[rows], torch.zeros_like(rows)
        ids[rows, 0], logprobs[rows, 0] = next_tokens(wanted, hidden[of_row], keys, first)
        chosen = ids[rows, 0]
        running = ~wanted.ended(chosen)
        limit = wanted.params.max_new_tokens
        if limit == 1 or not bool(running.any()):
            return []
        cohort = Cohort(prefix, [len(of) for of in rows_of], limit)
        part = _Rows(cohort, rows, keys, cohort.starts, chosen, running)
        _compacted(part)
        return [part]


def _joined(batch: Sequence[_Rows], name: str) -> Tensor:
    tensors = [getattr(part, name) for part in batch]
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _compacted(part: _Rows) -> bool:
    """Take rows that have ended out, if they are many; whether any row is left."""
    left = int(part.running.sum())
    if 0 < left <= _CROWDED * len(part.rows):
        part.keep(part.running.nonzero()[:, 0])
    return left > 0
