"""Checkpoints that outlive a kill at any moment, a full disk and a flipped bit.

A checkpoint is a directory of plain files; reading one runs no code, so somebody else's can be opened safely:

    ROOT/step-00000123/
        state.json           the step, and what else JSON can hold
        NAME.safetensors     one file of tensors per name (`policy`, `optimizer`)
        manifest.json        size and sha256 of every other file; written last

It is written under a temporary name; every file, the manifest and the directory are flushed to the disk, and only then
is the directory renamed. So a directory with the final name is whole, and the manifest shows what befell it afterwards.
Names starting with ``.tmp-`` are leftovers of a process that died; the next `save` or `prune` removes them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from oncurve.parallel.manifest import FILE_NAME, MANIFEST, CheckpointError, manifest_text, reason, verified_files
from oncurve.parallel.tensor_file import check_tensors, read_tensors, tensor_bytes, write_tensors

STATE = "state.json"
_TENSORS = ".safetensors"

# A checkpoint that another one of the same step is about to replace is moved aside under the longer name, and counts as
# long as the new one is not in place: between two renames there must be no moment without either.
_REPLACED = ".replaced"
_DIRECTORY = re.compile(r"step-(\d{8,})(\.replaced)?")


@dataclass(frozen=True)
class Loaded:
    """A checkpoint in memory, with the very bits that were saved."""

    path: Path
    step: int
    tensors: dict[str, dict[str, Tensor]]
    """On the CPU. The memory is a private map of the files: copy what is to live on (``load_state_dict`` does)."""
    state: dict[str, Any]


# -- writing ----------------------------------------------------------------------------------------------------------


def save(root: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: dict[str, Any]) -> Path:
    """Write ``ROOT/step-00000123`` and return its path; on return it is on the disk. One of the same step is replaced.

    Args:
        tensors: ``{file: {name: tensor}}``, of plain dense tensors; see `write_tensors`.
        state: what JSON gives back unchanged: str, int, float (NaN and infinities too), bool, None, and lists and dicts
            with str keys of these.

    Raises:
        CheckpointError: the disk is full, read-only, failing or not ours to write to. Nothing half-written stays, and
            earlier checkpoints are as they were.
        TypeError, ValueError: ``tensors`` or ``state`` has what could not be given back unchanged. Nothing is touched.
    """
    for file, named in tensors.items():
        if not FILE_NAME.fullmatch(file):
            raise ValueError(f"tensors has the key {file!r}; it becomes a file name: letters, digits, '_', '-' and '.'")
        check_tensors(named)
    _check_json(state, "state")
    text = json.dumps({"step": step, "state": state}, indent=1) + "\n"
    final = root / f"step-{step:08d}"
    temporary = root / f".tmp-{final.name}"
    previous: Path | None = None
    try:
        _make(root)
        _clean(root)
        previous = next((path for path in _candidates(root) if path.name != final.name), None)
        temporary.mkdir()
        _write(temporary / STATE, text)
        for file, named in tensors.items():
            path = temporary / (file + _TENSORS)
            write_tensors(path, named)
            shutil.copymode(temporary / STATE, path)  # some versions of safetensors make it readable by its owner alone
            _flush(path)
        _write(temporary / MANIFEST, manifest_text(temporary))
        _flush(temporary)
        _put_in_place(temporary, final)
    except (OSError, SafetensorError) as error:
        needed = len(text) + sum(map(tensor_bytes, tensors.values()))
        before = f"The previous checkpoint, {previous}, is intact" if previous else "There is no earlier checkpoint"
        raise CheckpointError(
            f"checkpoint {final} was not saved: {reason(error)}. It needs {needed:,} bytes, {_free(root)}. {before}"
        ) from error
    finally:
        # Gone already if all went well. What cannot be removed now is removed by the next save.
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def _make(root: Path) -> None:
    if not root.exists():
        root.mkdir(parents=True)
        _flush(root.parent)


def _put_in_place(temporary: Path, final: Path) -> None:
    aside = final.with_name(final.name + _REPLACED)
    if final.exists():
        os.rename(final, aside)
    os.rename(temporary, final)
    _flush(final.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _write(path: Path, text: str) -> None:
    with path.open("xb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def _flush(path: Path) -> None:
    """Force a file's contents, or a directory's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_json(value: object, where: str) -> None:
    """Refuse what JSON would silently turn into something else (tuples into lists, number keys into text)."""
    if type(value) is dict:
        for key, inner in value.items():
            if type(key) is not str:
                raise TypeError(f"{where} has the key {key!r}, which JSON would give back as text")
            _check_json(inner, f"{where}[{key!r}]")
    elif type(value) is list:
        for number, inner in enumerate(value):
            _check_json(inner, f"{where}[{number}]")
    elif value is not None and type(value) not in (str, int, float, bool):
        raise TypeError(f"{where} is a {type(value).__name__}, which JSON does not give back as it was")


# -- reading ----------------------------------------------------------------------------------------------------------


def load_newest(root: Path, *, say: Callable[[str], None]) -> Loaded | None:
    """The newest checkpoint under ``root`` that is as it was written, or None if there is none at all.

    Every newer one that is damaged is told to ``say`` with the reason. It stays where it is until a save replaces it or
    `prune` finds it older than what is kept.

    Raises:
        CheckpointError: there are checkpoints, and not one of them can be used. Nothing is deleted.
    """
    damaged: list[str] = []
    try:
        candidates = _candidates(root)
    except OSError as error:
        raise CheckpointError(f"{root} cannot be read: {reason(error)}") from error
    for path in candidates:
        try:
            return load(path)
        except CheckpointError as error:
            damaged.append(str(error))
            say(f"skipped a damaged checkpoint: {error}")
    if damaged:
        raise CheckpointError(
            f"none of the checkpoints in {root} can be used, and nothing was deleted:\n  "
            + "\n  ".join(damaged)
            + "\nput back a copy of one of them, or move them away to begin anew"
        )
    return None


def load(path: Path) -> Loaded:
    """Read the checkpoint in ``path``, every byte of it checked against the manifest (about a second per GB).

    Raises:
        CheckpointError: it is not a checkpoint, or not as it was written.
    """
    files, step, state = _verified(path)
    try:
        tensors = {file.stem: read_tensors(file) for file in files if file.suffix == _TENSORS}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: {reason(error)}") from error
    return Loaded(path, step, tensors, state)


def _verified(path: Path) -> tuple[list[Path], int, dict[str, Any]]:
    """Files, step and state of the checkpoint in ``path``, if all is as it was written."""
    files = verified_files(path)
    if path / STATE not in files:
        raise CheckpointError(f"{path}: {MANIFEST} does not list {STATE}")
    content = json.loads((path / STATE).read_bytes())
    named = _DIRECTORY.fullmatch(path.name)
    if named and int(named[1]) != content["step"]:
        raise CheckpointError(f"{path}: it was saved as step {content['step']} and has been renamed")
    return files, content["step"], content["state"]


# -- the directory of checkpoints -------------------------------------------------------------------------------------


def prune(root: Path, keep_last: int) -> None:
    """Delete all checkpoints older than the newest ``keep_last`` valid ones.

    The ones that are kept are read and checked first (about a second per GB), so that a damaged one never counts: while
    fewer than ``keep_last`` are valid, nothing is deleted. Damaged ones newer than the oldest kept stay.

    Raises:
        CheckpointError: one of the old ones cannot be removed.
        ValueError: ``keep_last`` is under 2. A single checkpoint is none, the day it is damaged.
    """
    if keep_last < 2:
        raise ValueError(f"keep_last is {keep_last}; at least 2 must be kept")
    try:
        _clean(root)
        candidates = _candidates(root)
        if len(candidates) <= keep_last:
            return
        kept = 0
        for position, path in enumerate(candidates):
            kept += _is_valid(path)
            if kept == keep_last:
                _delete(candidates[position + 1 :])
                return
    except OSError as error:
        raise CheckpointError(f"old checkpoints in {root} could not be removed: {reason(error)}") from error


def _is_valid(path: Path) -> bool:
    try:
        _verified(path)
    except CheckpointError:
        return False
    return True


def _delete(paths: Iterable[Path]) -> None:
    """Rename first: a directory that a kill leaves half deleted must not look like a checkpoint."""
    for path in paths:
        doomed = path.with_name(f".tmp-del-{path.name}")
        os.rename(path, doomed)
        shutil.rmtree(doomed)


def _candidates(root: Path) -> list[Path]:
    """All directories named like a checkpoint, newest first; one moved aside comes after its successor."""
    if not root.exists():
        return []
    found = [path for path in root.iterdir() if _DIRECTORY.fullmatch(path.name)]
    return sorted(found, key=lambda path: (_step(path), not path.name.endswith(_REPLACED)), reverse=True)


def _step(path: Path) -> int:
    match = _DIRECTORY.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _clean(root: Path) -> None:
    """Remove what a process that died has left. One moved aside is a leftover once its successor is there."""
    if not root.exists():
        return
    for path in list(root.iterdir()):
        replaced = path.name.endswith(_REPLACED) and path.with_name(path.name.removesuffix(_REPLACED)).exists()
        if path.name.startswith(".tmp-") or replaced:
            shutil.rmtree(path)


def _free(root: Path) -> str:
    """Free bytes where ``root`` is or would be, as words for a message."""
    there = next((path for path in (root, *root.parents) if path.exists()), Path("."))
    try:
        return f"{shutil.disk_usage(there).free:,} are free there"
    except OSError:
        return "how many are free cannot be told"
