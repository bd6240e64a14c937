"""Reads an optimizer: its parameters, their states, its learning rates and weight decays."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

from precheck.observe.shadow.replaying.replay import addressable, local


def states(optimizer: Any, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """The optimizer's state tensors of the parameter's shape, by name. Only this rank's shard.

    Left out are states in a packed form (torchao's moments of 8 bits and fewer).
    """
    mine = local(parameter)
    held = {name: local(state) for name, state in optimizer.state.get(parameter, {}).items() if isinstance(state, torch.Tensor)}
    return {name: state for name, state in held.items() if state.shape == mine.shape and addressable(state)}


def group_of(optimizer: Any, parameter: torch.Tensor) -> int:
    """The number of the group that holds a parameter, or -1."""
    groups = optimizer.param_groups if optimizer is not None else ()
    return next((number for number, group in enumerate(groups) if any(each is parameter for each in group["params"])), -1)


def rate(optimizer: Any, group: int) -> float:
    """The learning rate of a group at this moment, or 0."""
    groups = optimizer.param_groups if optimizer is not None else ()
    return float(groups[group].get("lr") or 0.0) if 0 <= group < len(groups) else 0.0


def decays(optimizer: Any, parameter: torch.Tensor) -> bool:
    """Whether the user chose a parameter's weight decay: it is neither zero nor the default of the optimizer's class."""
    made: Any = type(optimizer)
    group = group_of(optimizer, parameter)
    return group >= 0 and float(optimizer.param_groups[group].get("weight_decay") or 0.0) not in (0.0, default_decay(made))


@functools.cache
def default_decay(kind: Any) -> float:
    """The default weight decay of a class of optimizers."""
    named = inspect.signature(kind.__init__).parameters.get("weight_decay")
    return float(named.default) if named is not None and isinstance(named.default, (int, float)) else 0.0


def parameters(optimizer: Any) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def stateless(optimizer: Any) -> bool:
    """Whether it has no state: torch's SGD without momentum."""
    return type(optimizer) is torch.optim.SGD and not any(group["momentum"] for group in optimizer.param_groups)


def rates(optimizer: Any) -> list[float]:
    """The learning rates of its groups."""
    return [float(group.get("lr", 0.0)) for group in optimizer.param_groups]


def highest_rates(optimizer: Any) -> list[float]:
    """The highest learning rate of each group that is known: today's, or the one that torch's schedules wrote down as their base or their peak."""
    return [max(float(group.get(key) or 0.0) for key in ("lr", "initial_lr", "max_lr")) for group in optimizer.param_groups]
