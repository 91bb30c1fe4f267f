"""Load any transformers causal language model, with the rules its tokenizer must keep."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from oncurve import config
from oncurve.models.gguf import converted
from oncurve.models.source import SOURCES, ModelSource, find_source, looked_for, no_reward_model, read_chat_template
from oncurve.types import OncurveError

_HUB_SECONDS = 10.0

log = logging.getLogger(__name__)


def load_tokenizer(model: config.Model, key: str = "model.path") -> PreTrainedTokenizerBase:
    """The tokenizer of ``model.tokenizer`` or else of ``model.path``, with ``model.chat_template`` if that is set.

    It has an EOS, by which completions end. Where it has no pad token EOS takes its place, which is harmless: masks go
    by length, and rows are padded on the right by Oncurve itself (``padding_side`` is not used).

    Raises OncurveError if it cannot be found or read, or has no EOS.
    """
    key, name = (key, model.path) if model.tokenizer is None else ("model.tokenizer", model.tokenizer)
    tokenizer = _load(AutoTokenizer.from_pretrained, key, name, trust_remote_code=model.trust_remote_code)
    if tokenizer.eos_token_id is None:
        raise OncurveError(
            f"{key} = {name!r}: the tokenizer has no end-of-sequence token, so no completion could ever end. Set "
            "eos_token in its tokenizer_config.json, or set model.tokenizer to one that has it"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if model.chat_template is not None:
        tokenizer.chat_template = read_chat_template(model.chat_template)
    return tokenizer


def load_policy(model: config.Model, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """The model of ``model.path`` in ``model.dtype``, on the CPU, ready to be trained: every parameter requires a
    gradient and nothing in it is random.

    Dropout is off, in train mode as in eval mode: a ratio of probabilities is meaningless if the same tokens get other
    ones in every pass. Whatever the model's own code draws while it is built follows from ``seed``.

    Raises OncurveError if it cannot be found or read, lacks weights, has NaN in them, is quantised, or is too small for
    ``tokenizer``.
    """
    return _load_model(AutoModelForCausalLM.from_pretrained, model, tokenizer, seed, "model.path")


def load_classifier(model: config.Model, tokenizer: PreTrainedTokenizerBase, key: str) -> PreTrainedModel:
    """As ``load_policy``, for a reward model: a sequence classifier with one label. ``key``: the option that named it.

    Raises OncurveError too if it has another number of labels, or is no classifier.
    """
    settings = _load(AutoConfig.from_pretrained, key, model.path, trust_remote_code=model.trust_remote_code)
    problem = no_reward_model(getattr(settings, "architectures", None) or [], settings.num_labels)
    if problem is not None:
        raise OncurveError(f"{key} = {model.path!r} {problem}")
    return _load_model(AutoModelForSequenceClassification.from_pretrained, model, tokenizer, 0, key)


def _load_model(
    loader: Callable[..., Any], model: config.Model, tokenizer: PreTrainedTokenizerBase, seed: int, key: str
) -> PreTrainedModel:
    where = f"{key} = {model.path!r}"
    settings = _load(AutoConfig.from_pretrained, key, model.path, trust_remote_code=model.trust_remote_code)
    if getattr(settings, "quantization_config", None) is not None:
        raise OncurveError(
            f"{where}: the weights are quantised and cannot be trained; give the model they were made from"
        )
    _switch_off_randomness(settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy, report = _load(
            loader,
            key,
            model.path,
            config=settings,
            dtype=getattr(torch, model.dtype),
            trust_remote_code=model.trust_remote_code,
            output_loading_info=True,
        )
    absent = sorted(report["missing_keys"])
    if absent:
        raise OncurveError(
            f"{where}: its files lack {len(absent)} of the weights that {type(policy).__name__} needs, such as "
            f"{absent[0]}; they would be left at random values"
        )
    for module in policy.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    policy.requires_grad_(True)
    _check_finite(policy, where)
    _check_vocabulary(policy, tokenizer, where)
    return policy.eval()


def recompute_activations(module: PreTrainedModel) -> None:
    """Keep no activations for the backward pass (in train mode): ``model.gradient_checkpointing``.

    Raises OncurveError if the model cannot.
    """
    # transformers 5 gave it a new name on the way, and 6 will not know the old one.
    enable = getattr(module, "activation_checkpointing_enable", None) or module.gradient_checkpointing_enable
    try:
        enable({"use_reentrant": False})
    except ValueError as error:
        raise OncurveError(
            f"model.gradient_checkpointing = true: {type(module).__name__} cannot recompute its activations; set it to "
            "false"
        ) from error


def _switch_off_randomness(settings: Any) -> None:
    """Set every dropout, layer drop and router jitter of a transformers configuration to 0, nested ones too."""
    for name, value in list(vars(settings).items()):
        if hasattr(value, "model_type"):
            _switch_off_randomness(value)
        elif isinstance(value, float) and re.search("drop|jitter", name):
            setattr(settings, name, 0.0)


def _check_finite(policy: PreTrainedModel, where: str) -> None:
    for name, weight in policy.named_parameters():
        # The extremes of a tensor with a NaN are NaN, and finding them takes no memory.
        if weight.numel() and not all(extreme.isfinite() for extreme in weight.detach().aminmax()):
            raise OncurveError(f"{where}: the weight {name} holds NaN or infinity; its training or its file went wrong")


def _check_vocabulary(policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, where: str) -> None:
    rows = policy.get_input_embeddings().num_embeddings
    assert isinstance(rows, int)
    for kind in ("eos", "pad", "bos"):
        token = getattr(tokenizer, f"{kind}_token_id")
        if token is not None and token >= rows:
            raise OncurveError(
                f"{where}: the tokenizer's {kind} token has id {token}, but the model knows only ids below {rows}; "
                "this tokenizer belongs to another model"
            )
    # A few ids too many are common (image tokens in a text-only model) and harmless while no prompt contains them.
    if len(tokenizer) > rows:
        log.warning("%s: the tokenizer has %d tokens, the model only %d", where, len(tokenizer), rows)


def _load(loader: Callable[..., Any], key: str, name: str, **options: Any) -> Any:
    """``loader(source, **options)`` for the source that ``name`` stands for; whatever goes wrong names ``key``."""
    try:
        with _no_progress_bar():
            source = _local_source(find_source(key, name))
            if source is not None:
                return loader(source, **options)
            try:
                return loader(name, local_files_only=True, **options)  # a copy from the hub that is already here
            except OSError:
                _ask_hub(key, name)
            return loader(name, **options)
    except OncurveError:
        raise
    except Exception as error:  # tokenizers raises Exception itself, and remote code whatever it likes
        raise OncurveError(f"{key} = {name!r} cannot be loaded: {type(error).__name__}: {error}") from error


def _local_source(source: ModelSource) -> str | None:
    """The directory to load, or None if the source is a name on the hub."""
    if source.path is None:
        return None
    return str(converted(source.path) if source.is_gguf else source.path)


def _ask_hub(key: str, name: str) -> None:
    """Raise OncurveError unless the hub answers for ``name``. Asked once and briefly: transformers itself would go on
    trying for half a minute, for each file."""
    try:
        HfApi().model_info(name, timeout=_HUB_SECONDS)
    except Exception as error:  # which HTTP library raises depends on huggingface_hub's version
        reason = " ".join(str(error).split())[:200]
        raise OncurveError(
            f"{key} = {name!r}: there is no such directory{looked_for(Path(name))}, and the Hugging Face Hub does not "
            f"give a model of that name ({reason}). {SOURCES}"
        ) from error


@contextlib.contextmanager
def _no_progress_bar() -> Iterator[None]:
    """transformers' own bar would break the terminal's."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
