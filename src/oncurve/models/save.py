"""Write a model as a plain transformers directory: all of it, or nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from oncurve.types import OncurveError


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path | str) -> None:
    """Weights (safetensors), configuration, tokenizer and chat template, to be read by ``AutoModelForCausalLM`` and
    ``AutoTokenizer``. What is at ``directory`` is replaced once the new one is complete on disk.

    Raises OncurveError if it cannot be written, with what was there before still there.
    """
    generation = getattr(model, "generation_config", None)  # a classifier has none
    if generation is not None and generation.eos_token_id is None:  # or generate() would never end
        generation.eos_token_id = tokenizer.eos_token_id
        generation.pad_token_id = tokenizer.pad_token_id
    with atomic_directory(Path(directory)) as unfinished:
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)


@contextlib.contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """An empty directory to fill. It becomes ``target`` when the block ends without an error, and vanishes otherwise.

    Everything is on the disk before the name is. A directory that is already there is put aside for the moment of the
    exchange: killed right then, the process leaves it beside as ``.NAME.old-*``.
    """
    unfinished: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.new-", dir=target.parent))
        unfinished.chmod(0o755)  # mkdtemp's 0o700 would lock others out of the finished directory
        yield unfinished
        for path in (*unfinished.rglob("*"), unfinished):
            _fsync(path)
        _exchange(unfinished, target)
        _fsync(target.parent)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OncurveError(f"{target} cannot be written: {reason}; nothing that was there is lost") from error
    finally:
        if unfinished is not None:
            shutil.rmtree(unfinished, ignore_errors=True)


def _exchange(new: Path, target: Path) -> None:
    if not target.exists():
        new.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=target.parent))
    target.rename(old)  # onto an empty directory, which POSIX allows
    try:
        new.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
