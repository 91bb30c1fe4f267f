"""An optimizer goes on from a checkpoint as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from oncurve.parallel.checkpoint import load, save
from oncurve.parallel.manifest import CheckpointError
from oncurve.parallel.optimizer_state import load_optimizer, optimizer_tensors


class Tied(nn.Module):
    """Embedding and head share their weight, as in a language model."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embed(tokens)))


def adamw(module: nn.Module) -> torch.optim.AdamW:
    matrices = [p for p in module.parameters() if p.ndim >= 2]
    vectors = [p for p in module.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.95))


def train(module: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    losses = []
    for step in steps:
        tokens = torch.tensor([step % 7, (3 * step + 1) % 7, 5])
        loss = nn.functional.cross_entropy(module(tokens), tokens.roll(1))
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (1 + step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses


def everything(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    tensors, state = optimizer_tensors(optimizer, module)
    named = module.state_dict() | tensors
    return {name: tensor.reshape(-1).view(torch.uint8).tolist() for name, tensor in named.items()} | {"": state}


@pytest.mark.parametrize("make", [adamw, lambda module: torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)])
def test_resuming_is_exact(tmp_path: Path, make: Any) -> None:
    module = Tied(0)
    optimizer = make(module)
    train(module, optimizer, range(4))
    tensors, state = optimizer_tensors(optimizer, module)
    save(tmp_path, 4, {"policy": module.state_dict(), "optimizer": tensors}, {"optimizer": state})
    losses = train(module, optimizer, range(4, 9))

    resumed = Tied(1)
    other = make(resumed)
    loaded = load(tmp_path / "step-00000004")
    resumed.load_state_dict(loaded.tensors["policy"])
    load_optimizer(other, resumed, loaded.tensors["optimizer"], loaded.state["optimizer"])
    assert resumed.head.weight is resumed.embed.weight
    assert train(resumed, other, range(4, 9)) == losses
    assert everything(resumed, other) == everything(module, optimizer)


def test_what_is_kept_has_names() -> None:
    module = Tied(0)
    optimizer = adamw(module)
    train(module, optimizer, range(1))
    tensors, state = optimizer_tensors(optimizer, module)
    assert sorted(tensors) == [
        "exp_avg:embed.weight",
        "exp_avg:norm.bias",
        "exp_avg:norm.weight",
        "exp_avg_sq:embed.weight",
        "exp_avg_sq:norm.bias",
        "exp_avg_sq:norm.weight",
        "step:embed.weight",
        "step:norm.bias",
        "step:norm.weight",
    ]
    assert tensors["step:embed.weight"].item() == 1.0
    assert state["class"] == "AdamW"
    assert [group["params"] for group in state["groups"]] == [["embed.weight"], ["unused", "norm.weight", "norm.bias"]]
    assert state["groups"][0]["betas"] == [0.8, 0.95]


def test_options_come_back_as_they_were() -> None:
    module = Tied(0)
    optimizer = adamw(module)
    train(module, optimizer, range(3))
    tensors, state = optimizer_tensors(optimizer, module)
    fresh = adamw(module)
    load_optimizer(fresh, module, tensors, state)
    assert [group["lr"] for group in fresh.param_groups] == [0.01 / 3, 0.01 / 3]
    assert fresh.param_groups[0]["betas"] == (0.8, 0.95)
    assert [group["weight_decay"] for group in fresh.param_groups] == [0.1, 0.0]


def test_loading_copies() -> None:
    module = Tied(0)
    optimizer = adamw(module)
    train(module, optimizer, range(2))
    tensors, state = optimizer_tensors(optimizer, module)
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    fresh = adamw(module)
    load_optimizer(fresh, module, kept, state)
    before = {name: tensor.clone() for name, tensor in kept.items()}
    train(module, fresh, range(2, 4))
    assert all(torch.equal(kept[name], before[name]) for name in kept)


def refused(change: Any, message: str) -> None:
    module = Tied(0)
    optimizer = adamw(module)
    train(module, optimizer, range(2))
    before = everything(module, optimizer)
    tensors, state = optimizer_tensors(optimizer, module)
    change(tensors, state)
    with pytest.raises(CheckpointError, match=message):
        load_optimizer(optimizer, module, tensors, state)
    assert everything(module, optimizer) == before


def test_another_optimizer_is_refused() -> None:
    refused(lambda _, state: state.update({"class": "SGD"}), "holds SGD state, the run uses AdamW")


def test_other_parameters_are_refused() -> None:
    def other(_: Any, state: Any) -> None:
        state["groups"][1]["params"] = ["unused", "norm.gain", "norm.bias"]

    refused(other, "group 1: the model has norm.weight where the checkpoint has norm.gain")


def test_fewer_parameters_are_refused() -> None:
    refused(
        lambda _, state: state["groups"][1]["params"].pop(), "the model has norm.bias where the checkpoint has none"
    )


def test_fewer_groups_are_refused() -> None:
    refused(lambda _, state: state["groups"].pop(), "has 2 parameter groups, the checkpoint 1")


def test_a_slot_of_no_parameter_is_refused() -> None:
    refused(lambda tensors, _: tensors.update({"exp_avg:ghost": torch.zeros(2)}), "exp_avg of ghost")


@pytest.mark.parametrize("wrong", [torch.zeros(1, 4), torch.zeros(7, 4, dtype=torch.bfloat16)])
def test_another_shape_or_dtype_is_refused(wrong: torch.Tensor) -> None:
    refused(
        lambda tensors, _: tensors.update({"exp_avg:embed.weight": wrong}), r"the parameter is torch.float32 \[7, 4\]"
    )
