"""GGUF files, the quantised form that llama.cpp reads: turned once into a plain transformers directory in float32.

Reading one takes transformers most of a minute, so the result is kept in the user's cache under the file's own sha256.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib.util
import json
import logging
import os
import tempfile
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from oncurve.models.save import atomic_directory
from oncurve.types import OncurveError

_READERS = ("gguf", "accelerate")
"""What transformers asks for to read a GGUF file."""

log = logging.getLogger(__name__)


def cache_directory() -> Path:
    """``$XDG_CACHE_HOME/oncurve/gguf``, by default ``~/.cache/oncurve/gguf``."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "oncurve" / "gguf"


def converted(gguf: Path) -> Path:
    """A transformers directory with the model and tokenizer of ``gguf``, made now or found in the cache.

    The weights are de-quantised to float32; training and saving know nothing of quantisation.
    Raises OncurveError if the file is missing, damaged or of a kind transformers cannot read.
    """
    try:
        stat = gguf.stat()
        digest = _sha256(gguf, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise OncurveError(f"{gguf} cannot be read: {error.strerror}; give the path of a .gguf file") from error
    target = cache_directory() / digest[:16]
    if target.is_dir():
        return target
    missing = [name for name in _READERS if importlib.util.find_spec(name) is None]
    if missing:
        raise OncurveError(f"{gguf}: reading GGUF needs {' and '.join(missing)}: pip install 'oncurve[gguf]'")
    _check_writable(target.parent)
    log.info("converting %s to %s; this is done once and takes up to a minute", gguf, target)
    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    except Exception as error:  # a damaged file can raise anything here, tokenizers raises Exception itself
        raise OncurveError(f"{gguf} cannot be converted: {type(error).__name__}: {error}") from error
    with atomic_directory(target) as unfinished:
        tokenizer.save_pretrained(unfinished)
        _without_quantisation(quantised).save_pretrained(unfinished)
        source = {"file": gguf.name, "sha256": digest, "transformers": transformers.__version__}
        (unfinished / "source.json").write_text(json.dumps(source, indent=1), encoding="utf-8")
    return target


def _check_writable(cache: Path) -> None:
    """Before a minute is spent on what could not be kept."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache).close()
    except OSError as error:
        raise OncurveError(
            f"a .gguf file is converted once and kept in {cache}, which cannot be written: {error.strerror}; set "
            "XDG_CACHE_HOME to a directory that can be"
        ) from error


@functools.cache  # asked for tokenizer, configuration and weights alike, and the file may have gigabytes
def _sha256(path: Path, size: int, modified: int) -> str:
    """Of the file at ``path``, which had that size in bytes and time of change."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _without_quantisation(model: PreTrainedModel) -> PreTrainedModel:
    """The same weights in a model that has never heard of GGUF: transformers refuses to save the one it has loaded."""
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        delattr(config, "quantization_config")
    plain = type(model)(config)
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    return plain
