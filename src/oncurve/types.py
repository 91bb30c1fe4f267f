"""The frozen data and the protocols that every layer shares.

Shape letters used everywhere in Oncurve (see docs/notation.md):
    P prompts, G group size, B = P*G rows, T tokens, V vocabulary, K reward functions.

Every ``[B, T]`` tensor is token-aligned: its entry at ``t`` speaks about ``tokens[b, t]``. Only
``oncurve.functional.logprobs`` shifts by one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

Message = dict[str, str]
"""One chat turn: ``{"role": "user", "content": "..."}``."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question, rendered and tokenised once, when the data is read."""

    id: int
    """Row number in its data set. Together with the seed it keys every random draw of its completions."""
    raw: str | tuple[Message, ...]
    """The prompt as the data set gave it (plain text or chat messages); this is what reward functions receive."""
    text: str
    """The prompt as the model reads it, after the chat template."""
    token_ids: tuple[int, ...]
    columns: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Every other column of the row; handed to the reward functions by name."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled answer. ``token_ids`` includes the end-of-sequence token if the model wrote it."""

    token_ids: tuple[int, ...]
    text: str
    """Decoded without special tokens. For people and reward functions only: it is never tokenised again."""
    sampler_logprobs: tuple[float, ...]
    """Nats per token, of logits/temperature, as the engine saw them when it drew the token."""
    truncated: bool
    """True if the token limit ended it and the model did not."""


@dataclass(frozen=True, slots=True)
class Group:
    """The G completions of one prompt."""

    prompt: Prompt
    completions: tuple[Completion, ...]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One supervised example: the loss falls on ``completion_ids`` alone (they end with the end-of-sequence token)."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to draw. ``temperature=0`` is greedy. top_k/top_p/min_p are for evaluation: they are refused in training,
    because the sampler would then draw from another distribution than the one the ratio is computed with."""

    max_new_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    """0 keeps every token."""
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of prompt + completion, padded on the right. All tensors are ``[B, T]`` unless said otherwise.

    Padding on the right means that positions are 0..T-1 for every row and that a causal model needs no attention mask:
    no real token can look at a pad.
    """

    tokens: torch.Tensor
    """int64 token ids."""
    lengths: torch.Tensor
    """int64 ``[B]``: real tokens (prompt + completion) of each row."""
    completion_mask: torch.Tensor
    """bool, True = trained on: the completion's tokens up to and including the first end-of-sequence token."""

    positions: torch.Tensor | None = None
    """int64 positions of packed rows, which begin again at 0 with every sequence of the row. None: 0..T-1."""

    def __len__(self) -> int:
        return int(self.tokens.shape[0])

    def take(self, rows: Sequence[int]) -> Batch:
        """Those rows, trimmed to the longest of them."""
        index = self.lengths.new_tensor(list(rows))
        lengths = self.lengths[index]
        width = int(lengths.max())
        positions = None if self.positions is None else self.positions[index, :width]
        return Batch(self.tokens[index, :width], lengths, self.completion_mask[index, :width], positions)


@dataclass(frozen=True, slots=True)
class Usage:
    """How the sampling of some completions spent its time."""

    seconds: float = 0.0
    prefill_seconds: float = 0.0
    """Of these, reading prompts."""
    tokens: int = 0
    """Sampled and kept."""
    running: int = 0
    """Completions that had not ended, summed over the decoding steps."""
    places: int = 0
    """Completions that could have been decoded side by side, summed likewise."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.seconds + other.seconds,
            self.prefill_seconds + other.prefill_seconds,
            self.tokens + other.tokens,
            self.running + other.running,
            self.places + other.places,
        )

    def metrics(self) -> dict[str, float]:
        """Under the names in docs/metrics.md; nothing if nothing was sampled."""
        if not self.places or not self.seconds:
            return {}
        return {
            "perf/sampling_tokens_per_second": self.tokens / self.seconds,
            "perf/batch_occupancy": self.running / self.places,
            "perf/prefill_share": self.prefill_seconds / self.seconds,
        }


@runtime_checkable
class Measured(Protocol):
    """An engine that measures itself."""

    @property
    def usage(self) -> Usage:
        """Of the last call of ``sample``."""
        ...


class Engine(Protocol):
    """Whatever can sample. Its weights may lag behind the policy until ``load_weights``."""

    def sample(
        self, prompts: Sequence[Prompt], group_size: int, params: SamplingParams, *, seed: int, iteration: int
    ) -> list[Group]:
        """Draw ``group_size`` completions for each prompt. The draws depend on (seed, iteration, prompt id, sample
        number, position) alone, never on batch shape or scheduling."""
        ...

    def load_weights(self, policy: torch.nn.Module) -> None:
        """Make the engine sample from ``policy``'s present weights."""
        ...


class RewardFunction(Protocol):
    """TRL's shape: called with keywords only (``prompts, completions, completion_ids``, every data set column,
    ``trainer_state, log_extra, log_metric``); returns one float or None (unscored) per completion, possibly async."""

    def __call__(self, **kwargs: Any) -> Sequence[float | None] | Awaitable[Sequence[float | None]]: ...


class OncurveError(Exception):
    """An error a user can mend: the command line prints its text alone and exits with code 2."""


class Stopped(Exception):
    """A signal ended a run in good order: what was done is on disk, and the same command goes on from there.

    The command line prints its text and exits with 128 + ``signal`` (SIGINT: 130, SIGTERM: 143).
    """

    def __init__(self, signal: int, message: str) -> None:
        super().__init__(message)
        self.signal = signal
