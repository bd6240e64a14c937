"""What an optimizer holds: its parameters, their states, its learning rates."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch

from precheck.observe.shadow.replay import addressable, local


def states(optimizer: Any, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """The optimizer's tensors that have an element for each of the parameter's, by name; what this rank has of them.

    Left out are those that keep their elements in a form of their own (torchao's moments of 8 bits and fewer).
    """
    mine = local(parameter)
    held = {name: local(state) for name, state in optimizer.state.get(parameter, {}).items() if isinstance(state, torch.Tensor)}
    return {name: state for name, state in held.items() if state.shape == mine.shape and addressable(state)}


def rate(optimizer: Any, parameter: torch.Tensor) -> float:
    return _asked(optimizer, parameter, "lr")


def decays(optimizer: Any, parameter: torch.Tensor) -> bool:
    """Whether somebody asked for a parameter's weight decay: it is not zero, and not what the optimizer's class does unasked."""
    made: Any = type(optimizer)
    return _asked(optimizer, parameter, "weight_decay") not in (0.0, default_decay(made))


@functools.cache
def default_decay(kind: Any) -> float:
    """The weight decay of optimizers of a class whose maker names none."""
    named = inspect.signature(kind.__init__).parameters.get("weight_decay")
    return float(named.default) if named is not None and isinstance(named.default, (int, float)) else 0.0


def _asked(optimizer: Any, parameter: torch.Tensor, name: str) -> float:
    """What the group of a parameter says of that name, as a number; 0 where it says nothing."""
    groups = optimizer.param_groups if optimizer is not None else ()
    return next((float(group.get(name) or 0.0) for group in groups if any(each is parameter for each in group["params"])), 0.0)


def parameters(optimizer: Any) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def stateless(optimizer: Any) -> bool:
    """Whether it keeps nothing from step to step: torch's SGD without momentum."""
    return type(optimizer) is torch.optim.SGD and not any(group["momentum"] for group in optimizer.param_groups)


def rates(optimizer: Any) -> list[float]:
    """The learning rates of its groups."""
    return [float(group.get("lr", 0.0)) for group in optimizer.param_groups]
