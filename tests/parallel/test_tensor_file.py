"""Any tensors under any names come back with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oncurve.parallel.tensor_file import read_tensors, tensor_bytes, write_tensors


def round_trip(path: Path, named: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    write_tensors(path, named)
    read = read_tensors(path)
    assert list(read) == list(named)
    for name, tensor in named.items():
        assert read[name].dtype == tensor.dtype
        assert read[name].shape == tensor.shape
        assert raw(read[name]) == raw(tensor)
    return read


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    "dtype",
    [
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
    ],
)
def test_every_bit_pattern(tmp_path: Path, dtype: torch.dtype) -> None:
    """NaN payloads, infinities, minus zero and denormals: the bytes are the tensor."""
    patterns = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(dtype)
    round_trip(tmp_path / "x", {"all": patterns})


def test_shapes_and_strides(tmp_path: Path) -> None:
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    round_trip(
        tmp_path / "x",
        {
            "scalar": torch.tensor(3.25),
            "another scalar": torch.tensor(3.25),
            "empty": torch.empty(0, 3),
            "flag": torch.tensor([True, False]),
            "transposed": base.T,
            "every other": base[::2, 1::2],
            "expanded": torch.tensor([1.5]).expand(1000, 3),
            "channels last": torch.arange(48.0).reshape(1, 3, 4, 4).to(memory_format=torch.channels_last),
            "parameter": torch.nn.Parameter(base),
            "of a graph": (torch.nn.Parameter(base) * 2).sum(),
        },
    )


def test_tied_weights_are_stored_once_and_are_one_again(tmp_path: Path) -> None:
    weight = torch.arange(1000, dtype=torch.float32)
    named = {"head": weight, "other": torch.ones(3), "embed": weight.detach()}
    read = round_trip(tmp_path / "x", named)
    assert read["head"] is read["embed"]
    assert read["head"] is not read["other"]
    assert tensor_bytes(named) == 4012
    assert (tmp_path / "x").stat().st_size < 4400


def test_parts_of_one_memory(tmp_path: Path) -> None:
    base = torch.arange(10, dtype=torch.float32)
    overlapping = {"all": base, "left": base[:6], "right": base[4:], "same numbers, other shape": base.view(2, 5)}
    read = round_trip(tmp_path / "x", overlapping)
    read["left"].zero_()
    assert read["all"].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_the_order_of_names_decides_nothing_but_the_order(tmp_path: Path) -> None:
    a, b = torch.ones(2), torch.zeros(2)
    assert list(round_trip(tmp_path / "x", {"b": b, "a": a, "c": b})) == ["b", "a", "c"]
    assert list(round_trip(tmp_path / "y", {"c": b, "a": a, "b": b})) == ["c", "a", "b"]


AWKWARD = [
    "",
    "__metadata__",
    'json:"__metadata__"',
    "json:",
    "a/b\\c",
    'quote"\n\x00',
    "日本語 é",
    "\ud800",
    "x" * 5000,
]


def test_awkward_names(tmp_path: Path) -> None:
    round_trip(tmp_path / "x", {name: torch.tensor(float(i)) for i, name in enumerate(AWKWARD)})


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=[]), max_size=8) | st.sampled_from(AWKWARD), unique=True))
def test_any_names(tmp_path_factory: pytest.TempPathFactory, keys: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "any-names"
    round_trip(path, {key: torch.tensor(i) for i, key in enumerate(keys)})


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(2, dtype=torch.complex64),
        torch.zeros(2, dtype=torch.complex64).conj().imag,
        torch.zeros(2, 2).to_sparse(),
        torch.zeros(2, device="meta"),
    ],
)
def test_what_cannot_be_given_back_is_refused(tmp_path: Path, tensor: torch.Tensor) -> None:
    with pytest.raises(TypeError, match="tensor 'odd one'"):
        write_tensors(tmp_path / "x", {"odd one": tensor})
    assert not (tmp_path / "x").exists()
