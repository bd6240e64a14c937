"""How a model is converted to a low format: by its own methods, where its author has written any.

A module may override `_apply`, and the model `to`, `half` or `bfloat16`, to keep a part in float32. What `model.to(dtype)` does in the user's
script is then done here, on storage of the run's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch

from precheck.contents import place
from precheck.observe import state

Table = tuple[torch.nn.Module, str]
"""A buffer: the module that holds it, and its name there."""
_SHORT = {torch.bfloat16: "bfloat16", torch.float16: "half"}
_PLAIN = ("torch.", "precheck.")
"""Packages whose methods convert every floating tensor, or as `keep_in_float32` says, which is known otherwise."""


def conversion(model: torch.nn.Module, dtype: torch.dtype | None) -> Callable[[], object] | None:
    """What converts `model` as its author has it; None where that is as any module is converted, or `dtype` is not a low format."""
    host = model.__dict__.get("host", model)  # of a guest
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
    """Where the weights and buffers lie that the author's own conversion to `dtype` leaves as they are, bit for bit."""
    if conversion(model, dtype) is None:
        return frozenset()
    before = {name: tensor.detach() for name, tensor in _floating(model).items()}
    with state.preserved(model):
        converted(model, dtype)
        now = _floating(model)
        same = (name for name in before.keys() & now.keys() if now[name].dtype is before[name].dtype and torch.equal(now[name], before[name]))
        return frozenset(place(before[name]) for name in same)


def converted(model: torch.nn.Module, dtype: torch.dtype | None) -> None:
    """Puts fresh storage under `model` and has its author's own conversion at it. Call it inside `state.preserved`."""
    convert = conversion(model, dtype)
    assert convert is not None
    state.refresh(model, parameter=_cloned, buffer=_cloned)
    convert()


def tables(model: torch.nn.Module, dtype: torch.dtype, kept: Collection[int]) -> list[Table]:
    """Buffers that a conversion to `dtype` rounds, but for those that lie where `kept` says. Statistics of torch's own modules are none."""
    found = []
    for module in model.modules():
        own = not type(module).__module__.startswith(_PLAIN)
        for name, value in module._buffers.items() if own else ():
            if value is not None and value.dtype is torch.float32 and place(value) not in kept and bool((value.to(dtype) != value).any()):
                found.append((module, name))
    return found


def rounded(held: Sequence[Table], dtype: torch.dtype) -> None:
    """Converts these, each tensor once."""
    seen = dict[int, torch.Tensor]()
    for module, name in held:
        value = module._buffers[name]
        assert value is not None
        module._buffers[name] = seen.setdefault(id(value), value.to(dtype)) if id(value) not in seen else seen[id(value)]


def _cloned(value: torch.Tensor) -> torch.Tensor:
    return value.detach().clone()


def _floating(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Under every name: a conversion may make two of a buffer that has two."""
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {name: tensor for name, tensor in named if tensor.is_floating_point()}
