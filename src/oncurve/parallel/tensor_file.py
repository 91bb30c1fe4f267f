"""Tensors under any names, shared memory and all, in one safetensors file and back with the same bits.

safetensors alone refuses tensors that share memory (tied weights) or are not contiguous, forgets the order, and has
names it cannot store. What each name stands for is therefore written into the file's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

# What every allowed version of safetensors stores bit for bit.
_DTYPES = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    }
)


def write_tensors(path: Path, named: Mapping[str, Tensor]) -> None:
    """Write ``named`` to ``path``. The same mapping gives the same bytes.

    Any names; any strides, though contiguous when read again; float, integer or bool; on any device. Names of the same
    view of the same memory are stored once.

    Raises:
        safetensors.SafetensorError: the file cannot be written.
        TypeError: see `check_tensors`.
    """
    check_tensors(named)
    keys = _storage_keys(named)
    save_file(_packed(named, keys), path, metadata={"names": json.dumps(keys)})


def read_tensors(path: Path) -> dict[str, Tensor]:
    """What `write_tensors` wrote, in its order, on the CPU; names of one tensor are one tensor again.

    The memory is a private map of the file: copy what is to live on (``load_state_dict`` does).
    """
    with safe_open(path, framework="pt") as file:
        keys: dict[str, str] = json.loads(file.metadata()["names"])
        stored = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
    return {name: stored[key] for name, key in keys.items()}


def check_tensors(named: Mapping[str, Tensor]) -> None:
    """Refuse what could not be given back unchanged.

    Raises:
        TypeError: complex, quantised, sparse, or without data; the text names the tensor.
    """
    for name, tensor in named.items():
        if tensor.dtype not in _DTYPES or tensor.layout is not torch.strided or tensor.is_meta or tensor.is_neg():
            kind = f"{tensor.dtype}, {tensor.layout}, on {tensor.device}"
            raise TypeError(f"tensor {name!r} is {kind}: only plain dense real tensors can be saved")


def tensor_bytes(named: Mapping[str, Tensor]) -> int:
    """Bytes of data that `write_tensors` would write, the header left out."""
    return sum({_view(tensor): tensor.nbytes for tensor in named.values()}.values())


def _view(tensor: Tensor) -> tuple[Any, ...]:
    """Equal for two tensors that are the same view of the same memory."""
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _storage_keys(named: Mapping[str, Tensor]) -> dict[str, str]:
    """For every name the key its tensor is stored under: its own, or the first name's if they are one tensor."""
    first: dict[tuple[Any, ...], str] = {}
    return {name: first.setdefault(_view(tensor), _key(name)) for name, tensor in named.items()}


def _key(name: str) -> str:
    """``name`` itself, but for those safetensors cannot store: its own header's, and broken unicode."""
    if name == "__metadata__" or name.startswith("json:") or not _is_utf8(name):
        return "json:" + json.dumps(name)
    return name


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _packed(named: Mapping[str, Tensor], keys: Mapping[str, str]) -> dict[str, Tensor]:
    """What safetensors accepts: contiguous tensors, no two in the same memory. Copies only what is not so already."""
    stored: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name, tensor in named.items():
        if keys[name] in stored:
            continue
        dense = tensor.detach().contiguous()
        if dense.untyped_storage().data_ptr() in memory:
            dense = dense.clone()
        memory.add(dense.untyped_storage().data_ptr())
        stored[keys[name]] = dense
    return stored
