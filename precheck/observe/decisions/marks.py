"""Marks tensors of a run by their storages, and finds and replaces tensors among an op's arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from precheck.observe.shadow.memory.storages import Storages
from precheck.torch_support.dense_parts import continuous

Path = tuple[int, ...]
"""The place of a tensor among an op's arguments, and its index if it is in a list there."""


class Marked(Storages[bool]):
    """Marked storages. A tensor is `in` them if it or a tensor that shares its storage was added."""

    def __contains__(self, value: Any) -> bool:
        if not self.entries or not isinstance(value, torch.Tensor) or not continuous(value) or value.layout is not torch.strided:
            return False
        return self.key(value) in self.entries

    def add(self, tensor: torch.Tensor) -> None:
        if tensor.layout is torch.strided:
            self.put(tensor, True)


def arguments(args: Any) -> Iterator[tuple[Path, torch.Tensor]]:
    """The tensors among an op's arguments, also those in lists, with their paths."""
    for place, arg in enumerate(args):
        if isinstance(arg, torch.Tensor):
            yield (place,), arg
        elif isinstance(arg, (list, tuple)):
            yield from (((place, index), item) for index, item in enumerate(arg) if isinstance(item, torch.Tensor))


def replaced(args: Any, paths: Iterable[Path], change: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
    """The arguments of an op, with `change` applied to the tensors at these paths."""
    made: list[Any] = list(args)
    for place, *index in paths:
        if place >= len(made):
            continue
        if index and isinstance(made[place], (list, tuple)) and index[0] < len(made[place]):
            made[place] = [*made[place][: index[0]], change(made[place][index[0]]), *made[place][index[0] + 1 :]]
        elif isinstance(made[place], torch.Tensor):
            made[place] = change(made[place])
    return made
