"""The work that is measured. Imported by both sides, so nothing but the standard library."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """One kind of step: P prompts of a length, G completions each."""

    name: str
    model: str
    """``small-200``, ``small-49152`` (4 layers, width 256, and that vocabulary) or ``smollm2``."""
    prompts: int
    group: int
    prompt_tokens: int
    completion_tokens: int
    """Of every completion; with ``varied`` of the longest."""
    epochs: int = 1
    kl: float = 0.0
    varied: bool = False
    """Lengths from 8 to ``completion_tokens``, evenly spread and shuffled."""
    time_target: float | None = None
    memory_target: float | None = None

    def lengths(self) -> list[int]:
        """Tokens of each completion, prompt by prompt."""
        count = self.prompts * self.group
        if not self.varied:
            return [self.completion_tokens] * count
        found = [round(8 + (self.completion_tokens - 8) * index / (count - 1)) for index in range(count)]
        random.Random(7).shuffle(found)
        return found


ROWS = [
    Row("small, vocabulary 200, 64:64", "small-200", 8, 8, 64, 64, time_target=2.5),
    Row("small, vocabulary 200, 512:64", "small-200", 8, 8, 512, 64, time_target=4, memory_target=3),
    Row("small, vocabulary 49,152, 64:64", "small-49152", 8, 8, 64, 64, time_target=4, memory_target=3),
    Row("small, vocabulary 49,152, 512:64", "small-49152", 8, 8, 512, 64, time_target=8, memory_target=6),
    Row("small, 200, 64:64, 3 epochs and KL", "small-200", 8, 8, 64, 64, epochs=3, kl=0.04, time_target=2.5),
    Row("SmolLM2-135M, 1 x 8, 64:64", "smollm2", 1, 8, 64, 64, time_target=1.7, memory_target=3),
    Row("SmolLM2-135M, 1 x 8, 512:64", "smollm2", 1, 8, 512, 64, time_target=3.5, memory_target=4),
    Row("small, vocabulary 49,152, 64:8-256", "small-49152", 8, 8, 64, 256, varied=True, time_target=4),
]


@dataclass(frozen=True)
class Job:
    """What one side is told."""

    row: Row
    model: str
    """A transformers directory with a tokenizer whose end no model writes, or with ``varied`` hardly ever."""
    data: str
    """JSONL with one ``prompt`` a line."""
    work: str
    """A directory for what a side may write."""
    steps: int

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def load(path: Path) -> Job:
        given: dict[str, Any] = json.loads(path.read_text())
        return Job(**(given | {"row": Row(**given["row"])}))


PHASES = ["sampling", "scoring", "forward and backward", "optimizer"]
"""Scoring is computing log-probs without gradient: of the old policy and of the reference."""


def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Something that differs within a group and costs nothing."""
    return [sum(ids) % 7 / 7 for ids in completion_ids]
