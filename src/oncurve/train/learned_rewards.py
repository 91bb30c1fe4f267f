"""``reward_model:PATH``: a saved reward model as a reward function, in the trainer's own process.

A completion is put to the model as in the model's training: the prompt rendered by its own settings, the text tokenised
by its own tokenizer, apart from the prompt, with one EOS at the end. The score is read at the last of these tokens, and
depends on its own text alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from oncurve.data.collate import microbatches
from oncurve.data.labelled import encode_answer
from oncurve.data.prompts import encode_prompt
from oncurve.models.reward_model import RewardModel, checked_scores, load_reward_model
from oncurve.rewards import NamedReward, completion_text
from oncurve.rewards.learned import LEARNED, ModelToLoad
from oncurve.rewards.splitting import Splitter, is_trusted, step_splitter
from oncurve.types import Message, OncurveError

TOKENS = 8192
"""Padded tokens of one forward pass."""

Raw = str | Sequence[Message]
"""A prompt as the data has it."""
ScoredSteps = list[tuple[int, float | None]]
"""``(end in characters, score)`` of each step; None: the step was cut off."""


@dataclass(frozen=True, slots=True)
class LearnedReward:
    """A reward model, called as a reward function."""

    model: RewardModel
    split: Splitter
    """Where steps end, for a process model."""

    def __call__(
        self, *, prompts: Sequence[Raw], completions: Sequence[str | Sequence[Mapping[str, Any]]]
    ) -> list[float | None] | list[ScoredSteps]:
        """One score for each completion, or of a process model one for each step of each. See ``score_texts`` and
        ``score_steps``, also for the errors."""
        texts = [completion_text(completion) for completion in completions]
        if self.model.form.kind == "process":
            return score_steps(self.model, prompts, texts, self.split)
        return score_texts(self.model, prompts, texts)


def load_learned_reward(
    path: str,
    *,
    key: str = "rewards.functions",
    device: torch.device | str = "cpu",
    dtype: str = "float32",
    steps: str | None = None,
) -> LearnedReward:
    """The reward model in the directory ``path``: see ``load_reward_model``. ``key`` is the option that named it, for
    errors; ``steps`` says what ends a step, if not what the model was trained with.

    Raises OncurveError too if the model's file asks for a function of somebody's to be called: then ``steps`` must.
    """
    model = load_reward_model(path, key=key, dtype=dtype)
    found = steps or model.form.steps
    if steps is None and model.form.kind == "process" and not is_trusted(found):
        raise OncurveError(
            f"{key} = {path!r}: its config.json has the steps found by {found!r}, and no code is run because a model's "
            f"file says so; say so too: rewards.options.NAME.steps = {found!r}, where NAME is the reward's name"
        )
    split = step_splitter(found if model.form.kind == "process" else "\n", "steps")
    module = model.module.to(device).requires_grad_(False)  # type: ignore[arg-type]
    return LearnedReward(dataclasses.replace(model, module=module), split)


def with_models(
    rewards: Sequence[NamedReward], device: torch.device | str, prompts: Sequence[Raw] = ()
) -> list[NamedReward]:
    """``rewards`` with the reward models among them loaded, and tried on the first of ``prompts``.

    Raises OncurveError for one that cannot be loaded, or cannot read that prompt.
    """
    found: list[NamedReward] = []
    loaded: dict[tuple[object, ...], LearnedReward] = {}
    for reward in rewards:
        if isinstance(reward.function, ModelToLoad):
            name, path, options = f"{LEARNED}{reward.function.path}", reward.function.path, reward.options
            asked = (path, *sorted(options.items()))
            if asked not in loaded:
                loaded[asked] = load_learned_reward(path, device=device, **options)
            try:
                loaded[asked](prompts=prompts[:1], completions=["."] * len(prompts[:1]))
            except OncurveError as error:
                raise OncurveError(f"rewards.functions: {name}: {error}") from error
            reward = dataclasses.replace(reward, function=loaded[asked], options={})
        found.append(reward)
    return found


def score_texts(
    model: RewardModel,
    prompts: Sequence[Raw],
    completions: Sequence[str],
    *,
    split: Splitter | None = None,
    token_budget: int = TOKENS,
) -> list[float | None]:
    """A number for each of B completions of the B ``prompts``: what ``reward_model:PATH`` gives.

    ``pairwise``, and any model that Oncurve has not trained: the score itself. ``pointwise``: the probability of being
    right. ``process``: the lowest probability of its steps (Math-Shepherd), found by ``split`` or as in its training.

    None where nothing can be said: the prompt leaves no room in the model's context or `reward_model.max_tokens`, or
    there is no step. A text that is too long is cut at its end.

    Raises OncurveError for a score that is not a finite number, and for a prompt that cannot be rendered.
    """
    if model.form.kind == "process":
        of_steps = score_steps(
            model, prompts, completions, split or step_splitter(model.form.steps), token_budget=token_budget
        )
        known = [[score for _, score in steps if score is not None] for steps in of_steps]
        return [min(scores, default=None) for scores in known]
    rows = _rows(model, prompts, completions, [()] * len(completions))
    ends = [[len(ids)] if ids else [] for ids, _ in rows]
    scores = _read(model, [ids for ids, _ in rows], ends, token_budget)
    return [_number(model, row[0]) if row else None for row in scores]


def score_steps(
    model: RewardModel,
    prompts: Sequence[Raw],
    completions: Sequence[str],
    split: Splitter,
    *,
    token_budget: int = TOKENS,
) -> list[ScoredSteps]:
    """For each completion its steps with the probability that each is right: ``(end, score)``, ends in characters as
    ``split`` finds them. None is the score of a step that was cut off. Raises OncurveError as ``score_texts``."""
    places = [split(text) if text.strip() else [] for text in completions]
    rows = _rows(model, prompts, completions, places)
    ends = [[end for end in tokens if end <= len(ids)] if ids else [] for ids, tokens in rows]
    scores = _read(model, [ids for ids, _ in rows], ends, token_budget)
    return [
        [(end, _number(model, found[step]) if step < len(found) else None) for step, end in enumerate(at)]
        for at, found in zip(places, scores, strict=True)
    ]


def _number(model: RewardModel, score: float) -> float:
    """A score, or the probability that it stands for."""
    if model.form.kind == "pairwise":
        return score
    return 1.0 / (1.0 + math.exp(-score)) if score > -700.0 else 0.0


def _rows(
    model: RewardModel, prompts: Sequence[Raw], completions: Sequence[str], places: Sequence[Sequence[int]]
) -> list[tuple[list[int], list[int]]]:
    """For each completion the token ids of the whole, cut to the limit, and the ends in tokens from its beginning. No
    ids: the prompt leaves no room."""
    form, limit = model.form, model.limit
    encoded: dict[str, list[int]] = {}
    rows: list[tuple[list[int], list[int]]] = []
    for prompt, text, at in zip(prompts, completions, places, strict=True):
        known = repr(prompt)
        if known not in encoded:
            encoded[known] = encode_prompt(model.tokenizer, prompt, form.system_prompt, form.suffix, chat=form.chat)[1]
        asked = encoded[known]
        if limit is not None and len(asked) >= limit:
            rows.append(([], []))
            continue
        ids, tokens = encode_answer(model.tokenizer, text, at)
        rows.append(([*asked, *ids][:limit], [len(asked) + end for end in tokens]))
    return rows


def _read(
    model: RewardModel, rows: Sequence[Sequence[int]], ends: Sequence[Sequence[int]], token_budget: int
) -> list[list[float]]:
    """The scores at ``ends`` of each row, whatever the order and the batches in which they are computed."""
    asked = [index for index, places in enumerate(ends) if places]
    found: list[list[float]] = [[] for _ in rows]
    for chosen in microbatches([len(rows[index]) for index in asked], token_budget):
        members = [asked[index] for index in chosen]
        scores = iter(checked_scores(model, [rows[i] for i in members], [ends[i] for i in members]).tolist())
        for index in members:
            found[index] = [next(scores) for _ in ends[index]]
    return found
