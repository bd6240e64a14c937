"""Converts a model to a low format, by its own methods if its author has written any.

A module may override `_apply`, and a model `to`, `half` or `bfloat16`, to keep a part in float32. These methods are then called here, on a copy of
the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch

from precheck.observe import state
from precheck.torch_support.dense_parts import address

Table = tuple[torch.nn.Module, str]
"""A buffer: its module, and its name there."""
_SHORT = {torch.bfloat16: "bfloat16", torch.float16: "half"}
_PLAIN = ("torch.", "precheck.")
"""Packages whose methods convert every floating tensor, or follow `keep_in_float32`, which is handled elsewhere."""


def conversion(model: torch.nn.Module, dtype: torch.dtype | None) -> Callable[[], object] | None:
    """The author's own method that converts `model`. None if there is none, or if `dtype` is not a low format."""
    host = model.__dict__.get("host", model)  # the module inside a `Guest`
    if dtype not in _SHORT or isinstance(host, torch.jit.ScriptModule):
        return None
    short = _SHORT[dtype]
    if _overrides(host, short) and not _overrides(host, "to"):
        return getattr(host, short)  # type: ignore[no-any-return]
    if _overrides(host, "to") or any(_overrides(module, "_apply") for module in host.modules()):
        return lambda: host.to(dtype)
    return None


def _overrides(module: torch.nn.Module, name: str) -> bool:
    method = getattr(module, name)
    return not str(getattr(method, "__module__", "")).startswith(_PLAIN)


def left_alone(model: torch.nn.Module, dtype: torch.dtype | None) -> frozenset[int]:
    """The storages of the weights and buffers that the author's own conversion to `dtype` leaves unchanged, bit for bit."""
    if conversion(model, dtype) is None:
        return frozenset()
    before = {name: tensor.detach() for name, tensor in _floating(model).items()}
    with state.preserved(model):
        converted(model, dtype)
        now = _floating(model)
        same = (name for name in before.keys() & now.keys() if now[name].dtype is before[name].dtype and torch.equal(now[name], before[name]))
        return frozenset(address(before[name]) for name in same)


def converted(model: torch.nn.Module, dtype: torch.dtype | None) -> None:
    """Gives `model` new storage and runs the author's own conversion on it. Call it inside `state.preserved`."""
    convert = conversion(model, dtype)
    assert convert is not None
    state.refresh(model, parameter=_cloned, buffer=_cloned)
    convert()


def tables(model: torch.nn.Module, dtype: torch.dtype, kept: Collection[int]) -> list[Table]:
    """Buffers that a conversion to `dtype` rounds, except for those in the storages `kept`. Statistics of torch's own modules do not count."""
    found = []
    for module in model.modules():
        own = not type(module).__module__.startswith(_PLAIN)
        for name, value in module._buffers.items() if own else ():
            if value is not None and value.dtype is torch.float32 and address(value) not in kept and bool((value.to(dtype) != value).any()):
                found.append((module, name))
    return found


def rounded(held: Sequence[Table], dtype: torch.dtype) -> None:
    """Converts these buffers, each tensor once."""
    seen = dict[int, torch.Tensor]()
    for module, name in held:
        value = module._buffers[name]
        assert value is not None
        module._buffers[name] = seen.setdefault(id(value), value.to(dtype)) if id(value) not in seen else seen[id(value)]


def _cloned(value: torch.Tensor) -> torch.Tensor:
    return value.detach().clone()


def _floating(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The floating parameters and buffers, under each of their names: a conversion may turn a buffer with two names into two."""
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {name: tensor for name, tensor in named if tensor.is_floating_point()}
