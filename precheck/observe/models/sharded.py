"""Copies a model that FSDP2 has sharded whole on every rank.

This is a module of its own because FSDP takes half a second to import, with 900 modules, sympy among them. Only a model that is sharded needs it.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from precheck.observe.job import InputError
from precheck.torch_internals import sharded_class

_HOOKS = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
          "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks")  # fmt: skip
_STATE = ("__composable_api", "_fsdp", "_is_fsdp")
"""Prefixes of the attributes that FSDP adds to a module, such as process groups."""
_OWN = ("torch.distributed.fsdp", "torch.distributed._composable")
"""Modules of FSDP's own hooks."""


def gathered(model: torch.nn.Module) -> torch.nn.Module:
    """The copy. All ranks must call this. Raises InputError if the weights were not sharded by FSDP."""
    spread = [name for name, parameter in model.named_parameters() if isinstance(parameter, DTensor)]
    if not any(isinstance(module, FSDPModule) for module in model.modules()):
        raise InputError(
            f"{spread[0]} is spread over ranks, and not by FSDP; measure the model before parallelize_module, "
            "or put precheck.watch() around what trains it"
        )
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # frees weights that a forward pass left gathered; changes no number
    memo: dict[int, Any] = {id(parameter): _whole(parameter) for parameter in model.parameters()}
    for module in model.modules():
        memo[id(module)] = object.__new__(_plain(type(module)))
    for module in model.modules():
        own = {name: value for name, value in module.__dict__.items() if not name.startswith(_STATE)}
        held = {name: _kept(value) if name in _HOOKS else value for name, value in own.items()}
        memo[id(module)].__dict__.update(copy.deepcopy(held, memo))
    plain: torch.nn.Module = memo[id(model)]
    return plain


def _plain(kind: type) -> type:
    """The original class, without the one that fully_shard mixed in."""
    return sharded_class(kind) if issubclass(kind, FSDPModule) else kind


def _whole(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    values = parameter.detach()
    whole = values.full_tensor() if isinstance(values, DTensor) else values
    return torch.nn.Parameter(whole.clone(), parameter.requires_grad)


def _kept(hooks: Any) -> Any:
    """Hooks without FSDP's own."""
    return type(hooks)((number, hook) for number, hook in hooks.items() if not str(getattr(hook, "__module__", "")).startswith(_OWN))
