"""Runs a reference in float64, whatever formats its code specifies."""

from __future__ import annotations

from typing import Any

import torch

from precheck.observe.profiling import UncompiledMode
from precheck.observe.shadow.replaying.replay import with_items
from precheck.ops import base_name
from precheck.torch_internals import once_an_op, schema

WIDE = {torch.complex64: torch.complex128, torch.complex32: torch.complex128}


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for floating-point formats, complex128 for complex ones. Others are unchanged."""
    return torch.float64 if dtype.is_floating_point else WIDE.get(dtype, dtype)


def widened(value: Any) -> Any:
    """Tensors in float64 and dtypes as float64, also those in lists."""
    return with_items(value, _widened)


def _widened(item: Any) -> Any:
    return item.to(wide_dtype(item.dtype)) if isinstance(item, torch.Tensor) else wide_dtype(item) if isinstance(item, torch.dtype) else item


@once_an_op
def written(op: Any) -> frozenset[int]:
    """The positions of the arguments that an op writes to."""
    return frozenset(place for place, argument in enumerate(schema(op).arguments) if argument.alias_info is not None and argument.alias_info.is_write)


@once_an_op
def _views(op: Any) -> bool:
    """Whether a result of the op is, or views, an argument."""
    return any(result.alias_info is not None for result in schema(op).returns)


class Exact(UncompiledMode):
    """In the block, casts to formats below float64 have no effect, and tensors in lower formats are widened when an op reads them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        keep, views = written(func), _views(func)
        if not views or keep:
            args = tuple(each if place in keep else widened(each) for place, each in enumerate(args))
        if kwargs:
            names = {argument.name for place, argument in enumerate(schema(func).arguments) if place in keep}
            kwargs = {name: each if name in names or (views and name != "dtype") else widened(each) for name, each in kwargs.items()}
        if base_name(func.overloadpacket.__name__) in ("_softmax", "_log_softmax") and len(args) > 2:
            args = (*args[:2], False)
        return func(*args, **(kwargs or {}))


class Named(Exact):
    """The same, noting the names of ops."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        self.names.add(base_name(func.overloadpacket.__name__))
        return super().__torch_dispatch__(func, types, args, kwargs)
