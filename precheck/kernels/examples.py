"""Reads the arguments of a kernel from an example, and rebuilds them with other tensors and numbers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from precheck.observe.containers import named_items, tensors
from precheck.observe.job import InputError
from precheck.precisions import Precision
from precheck.torch_internals import without_modes
from precheck.torch_support.dense_parts import continuous


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """One tensor of an example: its path, its values, and whether its gradient is compared."""

    path: str
    tensor: torch.Tensor
    wanted: bool  # whether its gradient is compared


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Example:
    """Arguments as the user gave them."""

    inputs: Any
    leaves: tuple[Leaf, ...]

    @property
    def device(self) -> torch.device:
        """The device that calls run on. A CPU counts only where there is no other."""
        return next((each.tensor.device for each in self.leaves if each.tensor.device.type != "cpu"), torch.device("cpu"))

    def placed(self, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """`values` on the devices of the user's own tensors. They are made, and results are judged, on the CPU."""
        with without_modes():
            return [value.to(leaf.tensor.device) for leaf, value in zip(self.leaves, values, strict=True)]

    def filled(self, values: Sequence[torch.Tensor], numbers: Mapping[int, int] | None = None) -> Any:
        """The arguments with `values` as tensors, on their devices. Python integers that are keys of `numbers` are replaced."""
        left = iter(self.placed(values))
        return _rebuilt(self.inputs, lambda leaf: next(left) if isinstance(leaf, torch.Tensor) else _number(leaf, numbers or {}))

    def numbers(self) -> set[int]:
        """The Python integers among the arguments."""
        return {each for _, each in named_items(self.inputs) if type(each) is int}

    def turned(self) -> list[tuple[str, bool, Example]]:
        """Each flag among the arguments: its path, its value, and the example with the other value."""
        flags = [(path, each) for path, each in named_items(self.inputs) if isinstance(each, bool)]
        return [(path, flag, dataclasses.replace(self, inputs=_turned(self.inputs, place))) for place, (path, flag) in enumerate(flags)]


def _turned(inputs: Any, place: int) -> Any:
    """The arguments with the flag at that place among all flags turned."""
    count = itertools.count()
    return _rebuilt(inputs, lambda leaf: not leaf if isinstance(leaf, bool) and next(count) == place else leaf)


def _number(leaf: Any, numbers: Mapping[int, int]) -> Any:
    return numbers.get(leaf, leaf) if type(leaf) is int else leaf


def _rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return {name: _rebuilt(item, change) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_rebuilt(item, change) for item in value))
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return type(value)(_rebuilt(item, change) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{field.name: _rebuilt(getattr(value, field.name), change) for field in dataclasses.fields(value)})
    return change(value)


def read(inputs: Any, precision: Precision | None, gradients: bool) -> list[Example]:
    """The examples that a user gave: one, or a list. Floating-point tensors are cast to the format in which the precision stores parameters."""
    given = inputs if isinstance(inputs, list) else [inputs]
    if not given:
        raise InputError("inputs=[] has no example; pass the arguments of one call, as in inputs=(x, weight), or a list of such")
    return [_example(each, precision, gradients) for each in given]


def _example(inputs: Any, precision: Precision | None, gradients: bool) -> Example:
    found = list(tensors(inputs))
    if not found:
        raise InputError(f"inputs={inputs!r:.80} has no tensor; pass the arguments of one call: a tensor, a tuple, or a dict of keywords")
    for path, each in found:
        if each.layout is not torch.strided or each.is_quantized:
            raise InputError(f"inputs{path} is a {'quantized' if each.is_quantized else each.layout} tensor; pass dense tensors")
    asked = any(each.requires_grad for _, each in found)
    leaves = [Leaf(path, _stored(each, precision), gradients and continuous(each) and (each.requires_grad or not asked)) for path, each in found]
    return Example(inputs, tuple(leaves))


def _stored(tensor: torch.Tensor, precision: Precision | None) -> torch.Tensor:
    detached = tensor.detach()
    if precision is None or not tensor.is_floating_point() or tensor.dtype.itemsize == 1:
        return detached
    return detached.to(precision.param_dtype)


def parameters(callable_: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The named parameters of a module, or of the module that a function stands for. Other functions have none."""
    callable_ = getattr(callable_, "stands_for", callable_)
    if isinstance(callable_, torch.nn.Module):
        yield from callable_.named_parameters()
