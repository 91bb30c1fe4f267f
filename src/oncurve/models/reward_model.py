"""A causal language model with a scalar head: one score for a whole text, or one at the end of each of its steps.

It is transformers' own sequence classifier with one label, so ``AutoModelForSequenceClassification`` loads what is
saved here. Only where the score is read is Oncurve's own: at the last real token by length, EOS or not, where
transformers looks for the last token that is not the pad token.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from oncurve import config
from oncurve.models.load import load_classifier, load_tokenizer
from oncurve.models.save import save_model
from oncurve.types import OncurveError

Kind = Literal["pairwise", "pointwise", "process"]

_IN_CONFIG = "oncurve_reward_model"
"""Under which key of config.json stands what only Oncurve knows: see :class:`Form`."""


@dataclass(frozen=True)
class Form:
    """How a text is put to a reward model, as it was in training."""

    kind: Kind
    """``pairwise``: its scores mean something in comparison; ``pointwise``: a logit of being right; ``process``: such a
    logit at the end of each step."""
    steps: str = "\n"
    """What ends a step: see ``oncurve.rewards.splitting.step_splitter``."""
    max_tokens: int | None = None
    """Longest text in tokens; what is longer is cut at its end."""
    chat: bool = False
    system_prompt: str | None = None
    suffix: str = ""
    """How prompts are rendered: `data.chat`, `data.system_prompt` and `data.suffix`."""


@dataclass(frozen=True)
class RewardModel:
    module: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    """Its own, which need not be the policy's."""
    form: Form

    @property
    def device(self) -> torch.device:
        return self.module.score.weight.device  # type: ignore[union-attr, return-value]

    @property
    def limit(self) -> int | None:
        """Longest text in tokens: ``form.max_tokens``, else the model's context."""
        context = getattr(self.module.config.get_text_config(), "max_position_embeddings", None)
        known = [tokens for tokens in (self.form.max_tokens, context) if tokens is not None]
        return min(known) if known else None

    def scores(self, rows: Sequence[Sequence[int]], ends: Sequence[Sequence[int]] | None = None) -> Tensor:
        """``[N]`` float32, with gradient: the scores of ``rows`` of token ids, read after so many tokens as ``ends``
        say (row by row; at least 1), or, without them, after all.

        Rows are padded on the right, where a causal model never looks: a score depends on its own row alone.
        """
        ends = [[len(row)] for row in rows] if ends is None else ends
        tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)  # any id will do for a pad
        for index, row in enumerate(rows):
            tokens[index, : len(row)] = torch.tensor(list(row))
        places = [(index, end - 1) for index, row in enumerate(ends) for end in row]
        at = torch.tensor(places, dtype=torch.int64).reshape(-1, 2).to(self.device)
        hidden = self.module.base_model(input_ids=tokens.to(self.device), use_cache=False).last_hidden_state
        return self.module.score(hidden[at[:, 0], at[:, 1]]).squeeze(-1).float()  # type: ignore[operator]


def new_reward_model(policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, form: Form) -> RewardModel:
    """A reward model that begins as the causal language model ``policy``, whose layers it takes over (they are not
    copied); every score is 0.

    The pad token becomes one that is not EOS, of the vocabulary's own if it has one: transformers would read the score
    of a text that ends with EOS one token too early.

    Raises OncurveError if transformers has no sequence classifier for this family, or one with another kind of head.
    """
    name = type(policy).__name__
    tokenizer = copy.deepcopy(tokenizer)
    pad = _pad_apart_from_eos(tokenizer)
    if pad >= policy.get_input_embeddings().num_embeddings:  # type: ignore[operator]
        policy.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    settings = copy.deepcopy(policy.config)
    settings.num_labels = 1
    settings.get_text_config().pad_token_id = settings.pad_token_id = pad
    setattr(settings, _IN_CONFIG, asdict(form))
    try:
        with torch.device("meta"):
            module = AutoModelForSequenceClassification.from_config(settings)
    except ValueError as error:
        raise OncurveError(
            f"{name} cannot be a reward model: transformers has no sequence classifier for it"
        ) from error
    head = _head(module)
    if type(module.base_model) is not type(policy.base_model):
        raise OncurveError(
            f"{name} cannot be a reward model: {type(module).__name__} is built on {type(module.base_model).__name__} "
            f"and not on {type(policy.base_model).__name__}"
        )
    setattr(module, module.base_model_prefix, policy.base_model)
    like = next(policy.parameters())
    module.score = nn.Linear(
        head.in_features, 1, bias=head.bias is not None, device=like.device, dtype=like.dtype
    ).requires_grad_(True)
    for weight in module.score.parameters():
        nn.init.zeros_(weight)
    return RewardModel(module.eval(), tokenizer, form)


def load_reward_model(path: Path | str, *, key: str = "rewards.functions", dtype: str = "float32") -> RewardModel:
    """What ``save_reward_model`` wrote, or any sequence classifier of transformers on a causal model with one label; on
    the CPU. ``key`` is the option that named it, for errors.

    Raises OncurveError if it cannot be found or read, has another number of labels, or has NaN in its weights.
    """
    model = config.Model.model_validate({"path": str(path), "dtype": dtype})
    tokenizer = load_tokenizer(model, key)
    module = load_classifier(model, tokenizer, key)
    _head(module)
    known: Any = getattr(module.config, _IN_CONFIG, None)
    form = _form(known, f"{key} = {str(path)!r}") if known else Form("pairwise", chat=bool(tokenizer.chat_template))
    return RewardModel(module, tokenizer, form)


def _form(known: Any, where: str) -> Form:
    """What config.json has under ``oncurve_reward_model``."""
    try:
        form = Form(**known)
    except TypeError as error:
        raise OncurveError(f"{where}: {_IN_CONFIG} in its config.json cannot be read: {error}") from error
    if form.kind not in get_args(Kind) or not isinstance(form.steps, str) or not form.steps:
        raise OncurveError(
            f"{where}: {_IN_CONFIG} in its config.json has kind = {form.kind!r} and steps = {form.steps!r}; kind must "
            f"be one of {', '.join(get_args(Kind))}, and steps a text"
        )
    return form


def save_reward_model(model: RewardModel, directory: Path | str) -> None:
    """Write a plain transformers directory; raises OncurveError as ``save_model``."""
    setattr(model.module.config, _IN_CONFIG, asdict(model.form))
    save_model(model.module, model.tokenizer, directory)


@torch.no_grad()
def checked_scores(model: RewardModel, rows: Sequence[Sequence[int]], ends: Sequence[Sequence[int]] | None) -> Tensor:
    """``model.scores`` without gradient. Raises OncurveError for a score that is not a finite number."""
    found = model.scores(rows, ends).cpu()
    wrong = ~found.isfinite()
    if bool(wrong.any()):
        raise OncurveError(
            f"the reward model gives {int(wrong.sum())} of {len(found)} texts a score of {float(found[wrong][0])}; its "
            "weights are no good (training diverged?), or its dtype is too narrow for them"
        )
    return found


def _head(module: PreTrainedModel) -> nn.Linear:
    head = getattr(module, "score", None)
    if not isinstance(head, nn.Linear) or head.out_features != 1:
        raise OncurveError(
            f"{type(module).__name__} cannot be a reward model: it has no linear layer `score` with one output on a "
            "causal language model"
        )
    return head


def _pad_apart_from_eos(tokenizer: PreTrainedTokenizerBase) -> int:
    taken = (tokenizer.eos_token_id, tokenizer.bos_token_id)
    special = [tokenizer.pad_token_id, tokenizer.unk_token_id, *sorted(map(int, tokenizer.all_special_ids))]
    free = [token for token in special if token is not None and token not in taken]
    if free:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(int(free[0]))  # type: ignore[arg-type]
    else:
        tokenizer.add_special_tokens({"pad_token": "<pad>"})
    return int(tokenizer.pad_token_id)  # type: ignore[arg-type]
