"""An optimizer's state as named tensors and plain JSON, for checkpoints without pickle.

torch numbers the parameters by their position; here they go by name, so that a checkpoint says what it holds, and one
that does not fit the model is refused instead of being loaded into the wrong parameters.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from oncurve.parallel.manifest import CheckpointError


def optimizer_tensors(optimizer: torch.optim.Optimizer, module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The whole state of ``optimizer``, whose parameters are parameters of ``module``.

    Returns:
        tensors: ``{"exp_avg:model.norm.weight": ..., "step:model.norm.weight": ...}``, the optimizer's own, not copies.
            Parameters that have never been stepped have none.
        state: JSON: the class, the parameter groups with their options, and slots that are plain numbers.
    """
    names = _names(optimizer, module)
    packed = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for index, slots in packed["state"].items():
        for slot, value in slots.items():
            if isinstance(value, Tensor):
                tensors[f"{slot}:{names[index]}"] = value
            else:
                numbers[f"{slot}:{names[index]}"] = value
    groups = [
        {key: list(value) if isinstance(value, tuple) else value for key, value in group.items()}
        | {"params": [names[index] for index in group["params"]]}
        for group in packed["param_groups"]
    ]
    return tensors, {"class": type(optimizer).__name__, "groups": groups, "numbers": numbers}


def load_optimizer(
    optimizer: torch.optim.Optimizer, module: nn.Module, tensors: dict[str, Tensor], state: dict[str, Any]
) -> None:
    """Put back what `optimizer_tensors` gave: every slot and every option of the groups, bit for bit. Copies.

    Raises:
        CheckpointError: it was another optimizer, or over other parameters; ``optimizer`` is as it was.
    """
    if state["class"] != type(optimizer).__name__:
        raise CheckpointError(f"the checkpoint holds {state['class']} state, the run uses {type(optimizer).__name__}")
    names = _names(optimizer, module)
    packed = optimizer.state_dict()
    for number, (group, saved) in enumerate(zip(packed["param_groups"], state["groups"], strict=False)):
        ours = [names[index] for index in group["params"]]
        if ours != saved["params"]:
            here, there = next(pair for pair in _padded(ours, saved["params"]) if pair[0] != pair[1])
            raise CheckpointError(f"parameter group {number}: the model has {here} where the checkpoint has {there}")
    if len(packed["param_groups"]) != len(state["groups"]):
        raise CheckpointError(
            f"the optimizer has {len(packed['param_groups'])} parameter groups, the checkpoint {len(state['groups'])}"
        )
    index_of = {name: index for index, name in enumerate(names)}
    parameters = dict(zip(names, _parameters(optimizer), strict=True))
    slots: dict[int, dict[str, Any]] = {}
    for key, value in (tensors | state["numbers"]).items():
        slot, _, name = key.partition(":")
        if name not in index_of:
            raise CheckpointError(f"the checkpoint has {slot} of {name}, which is no parameter of the optimizer")
        if isinstance(value, Tensor):
            _check_fits(slot, name, value, parameters[name])
            value = value.clone()
        slots.setdefault(index_of[name], {})[slot] = value
    groups = [
        {key: tuple(value) if isinstance(group.get(key), tuple) else value for key, value in saved.items()}
        | {"params": group["params"]}
        for group, saved in zip(packed["param_groups"], state["groups"], strict=True)
    ]
    optimizer.load_state_dict({"state": slots, "param_groups": groups})


def _check_fits(slot: str, name: str, value: Tensor, parameter: Tensor) -> None:
    """torch would broadcast, or round to the parameter's dtype, without a word. Step counters are scalars of their own
    dtype."""
    if value.ndim == 0 and slot == "step":
        return
    if value.shape != parameter.shape or value.dtype != parameter.dtype:
        raise CheckpointError(
            f"{slot} of {name} is {value.dtype} {list(value.shape)} in the checkpoint, "
            f"the parameter is {parameter.dtype} {list(parameter.shape)}"
        )


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """In torch's order: group by group."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _names(optimizer: torch.optim.Optimizer, module: nn.Module) -> list[str]:
    name_of = {id(parameter): name for name, parameter in module.named_parameters()}
    return [name_of[id(parameter)] for parameter in _parameters(optimizer)]


def _padded(ours: list[str], theirs: list[str]) -> list[tuple[str, str]]:
    """Pairs, the shorter list filled up."""
    length = max(len(ours), len(theirs))
    return list(zip(*((names + ["none"] * (length - len(names))) for names in (ours, theirs)), strict=True))
