"""The dense tensors that a tensor is made of: itself if it is dense, indices and values if it is sparse, the inner tensors of a subclass.

A subclass that is made of other tensors says so by `__tensor_flatten__`, torch's own protocol. Of this kind are the quantised weights of torchao
(codes, scales, zero points) and the distributed tensors of FSDP2.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from precheck.torch_internals import no_class_code
from precheck.torch_support.sparse import LAYOUTS, coalesced

STORES_CODES = 2
"""Floating formats of fewer bytes an element (float8 and below) hold codes, which mean nothing without a scale."""

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def continuous(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements are floating-point or complex numbers."""
    return tensor.is_floating_point() or tensor.is_complex()


def holds_numbers(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements are real floating-point numbers, and no codes."""
    return tensor.is_floating_point() and tensor.element_size() >= STORES_CODES


def composed(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of a subclass that consists of other tensors. Such a tensor has no data of its own."""
    kind = type(tensor)
    return kind not in _PLAIN and hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")


def parts(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The dense tensors that a tensor consists of, by name. A dense tensor is its own part, named "". Unknown layouts have no parts.

    torch's own quantised tensors, and nested ones that are not jagged, are strided to torch, and yet few ops read them.
    """
    if composed(tensor):
        return {f"{name}{'.' if deeper else ''}{deeper}": dense for name, part in _made_of(tensor).items() for deeper, dense in parts(part).items()}
    if tensor.layout is torch.strided and tensor.is_nested:
        return {"values": tensor.values()}
    if tensor.layout is torch.strided:
        return {"": tensor.dequantize() if tensor.is_quantized else tensor}
    known = coalesced(tensor.detach())
    return {name: getattr(known, name)() for name in LAYOUTS.get(tensor.layout, ())}


def numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a composed tensor that holds its numbers, detached, such as the weight inside a wrapper. Any other tensor is its own part."""
    if not composed(tensor):
        return tensor
    held: torch.Tensor = next(filter(holds_numbers, parts(tensor).values()), tensor)
    return held.detach()


def with_values(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Returns a copy of a sparse or composed tensor with `change` applied to its numbers. Returns any other tensor unchanged.

    Codes are no numbers: in a quantised weight only floating scales and zero points are changed.
    """
    if composed(tensor):
        return _rebuilt(tensor, lambda part: _part_with_values(part, change))
    if tensor.layout not in LAYOUTS:
        return tensor
    fresh = coalesced(tensor.detach().clone())
    fresh.values().copy_(change(fresh.values()))
    return fresh.requires_grad_(tensor.requires_grad)


def _part_with_values(part: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    if not _dense(part):
        return with_values(part, change)
    return change(part) if holds_numbers(part) else part.clone()


def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns a copy in `dtype` that shares no storage with the tensor."""
    if not composed(tensor):
        return tensor.detach().to(dtype, copy=True)
    fresh = tensor.detach().clone().to(dtype)  # several subclasses take no `copy=`
    return fresh if fresh.dtype is dtype else _renamed(fresh, dtype)


def _renamed(tensor: Any, dtype: torch.dtype) -> torch.Tensor:
    """A composed tensor that gives its numbers in `dtype`, for a subclass whose `to(dtype)` leaves that as it was. Its codes and scales stay."""
    names, context = tensor.__tensor_flatten__()
    fresh: torch.Tensor = tensor
    if isinstance(context, dict) and fresh.dtype in context.values():
        named = {name: dtype if value is fresh.dtype else value for name, value in context.items()}
        inner = {name: getattr(tensor, name) for name in names}
        fresh = type(tensor).__tensor_unflatten__(inner, named, tensor.size(), tensor.stride())
    return fresh


def held(tensor: torch.Tensor) -> dict[str, Any]:
    """The attributes in which a composed tensor keeps its parts and what it says of them. Any other tensor has none.

    To set `tensor.data` changes the format that torch reports and none of these, so `hold` must follow.
    """
    return vars(tensor) | _made_of(tensor) if composed(tensor) else {}


def hold(tensor: torch.Tensor, attributes: Mapping[str, Any]) -> None:
    """Gives a tensor what `held` has returned, of itself or of another one of its class."""
    for name, value in attributes.items():
        setattr(tensor, name, value)


def address(tensor: torch.Tensor) -> int:
    """The address of the first element that a tensor stores. 0 if it stores none, and for a COO tensor that is not coalesced."""
    if composed(tensor):
        return next((address(part) for part in _made_of(tensor).values()), 0)
    if tensor.layout in LAYOUTS:
        whole = tensor.layout is not torch.sparse_coo or tensor.is_coalesced()
        return tensor.detach().values().data_ptr() if whole else 0
    if type(tensor) is torch.Tensor:
        return tensor.data_ptr()
    with no_class_code():  # a parameter's class may refuse it
        return tensor.data_ptr()


def _made_of(tensor: Any) -> dict[str, torch.Tensor]:
    names, _ = tensor.__tensor_flatten__()
    return {name: part for name in names if isinstance(part := getattr(tensor, name), torch.Tensor)}


def _rebuilt(tensor: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    _, context = tensor.__tensor_flatten__()
    inner = {name: change(part.detach()) for name, part in _made_of(tensor).items()}
    fresh: torch.Tensor = type(tensor).__tensor_unflatten__(inner, context, tensor.size(), tensor.stride())
    return fresh.requires_grad_(tensor.requires_grad)


def _dense(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not composed(tensor)


@contextlib.contextmanager
def explained(named: Iterable[tuple[str, torch.Tensor]]) -> Iterator[None]:
    """Inside the block, an exception says what to do instead, if there is a composed tensor among the weights `named`.

    Several kinds of quantised weights work in one format only, and their `to(dtype)` does nothing without an error.
    """
    try:
        yield
    except Exception as error:
        name, kind = next(((name, type(tensor).__name__) for name, tensor in named if composed(tensor)), ("", ""))
        if not name:
            raise
        raise TypeError(
            f"{_first(error)}; {name} is of class {kind}, which may know one format alone: "
            "precheck.quantised(original, model, inputs) judges a quantised model as it is"
        ) from error


def _first(error: Exception) -> str:
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)[:200]
