"""Saves and restores a candidate's state between calls: caches in modules, closures, attributes."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator
from typing import Any

import torch

_CONTAINERS = (dict, list, set)
_SIMPLE = (int, float, str, bool, type(None), tuple, torch.Tensor, *_CONTAINERS)
_DEEP = 3
"""The depth of nested objects that are searched. A cache belongs to the called object, or to an attribute of it."""


class State:
    """Names and containers that a callable can reach, with their contents when this was made."""

    def __init__(self, function: Any) -> None:
        self.places: list[tuple[dict[str, Any] | list[Any] | set[Any], Any]] = []
        self.cells: list[tuple[types.CellType, Any]] = []
        self.caches: list[Any] = []
        self.tensors: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.seen: set[int] = set()
        self._look(function, _DEEP)

    def _look(self, value: Any, deep: int) -> None:
        if id(value) in self.seen or deep < 0:
            return
        self.seen.add(id(value))
        if isinstance(value, functools.partial):
            for each in (value.func, *value.args, *value.keywords.values()):
                self._look(each, deep)
        if hasattr(value, "cache_clear") and not isinstance(value, type):
            self.caches.append(value)
        wrapped = getattr(value, "__wrapped__", None)
        if wrapped is not None:
            self._look(wrapped, deep)
        if isinstance(value, (types.MethodType, types.BuiltinMethodType)):  # the object it is bound to; for `Function.apply`, the class
            self._look(value.__self__, deep)
            value = getattr(value, "__func__", value)
        if isinstance(value, types.FunctionType):
            self._function(value, deep)
        elif isinstance(value, torch.Tensor):
            if not isinstance(value, torch.nn.Parameter):
                self.tensors.append((value, value.detach().clone()))
        elif isinstance(value, _CONTAINERS):
            self._keep(value)
            for each in list(value.values() if isinstance(value, dict) else value)[:64]:
                self._look(each, deep - 1)
        elif isinstance(value, type) and value.__module__ not in ("builtins", "torch") and not value.__module__.startswith("torch."):
            self._class(value, deep)
        elif not isinstance(value, (types.ModuleType, type, *_SIMPLE)) and hasattr(value, "__dict__"):
            self._keep(vars(value))
            for each in list(vars(value).values()):
                self._look(each, deep - 1)
            self._look(type(value), deep - 1)

    def _function(self, function: types.FunctionType, deep: int) -> None:
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):
                self.cells.append((cell, cell.cell_contents))
                self._look(cell.cell_contents, deep - 1)
        for each in function.__defaults__ or ():
            self._look(each, deep - 1)
        self._keep(function.__dict__)
        space = function.__globals__
        names = _names(function.__code__)
        own = {name: space[name] for name in names if name in space and isinstance(space[name], _SIMPLE)}
        self.places.append((space, own))
        for name in names:
            if name in space and not isinstance(space[name], types.ModuleType):
                self._look(space[name], deep - 1)

    def _class(self, kind: type, deep: int) -> None:
        for name, each in list(vars(kind).items()):
            function = getattr(each, "__func__", each)
            if isinstance(function, types.FunctionType):
                self._look(function, deep - 1)
            elif not name.startswith("__") and isinstance(each, _SIMPLE):
                self.places.append((_Attributes(kind), {name: each}))
                self._look(each, deep - 1)

    def _keep(self, container: Any) -> None:
        self.places.append((container, container.copy()))

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Restores the saved state within the context, and the present state afterwards."""
        with torch.no_grad():
            now = [(place, _copied(place, kept)) for place, kept in self.places]
            cells = [(cell, _contents(cell)) for cell, _ in self.cells]
            tensors = [(tensor, tensor.detach().clone()) for tensor, _ in self.tensors]
            self._put(self.places, self.cells, self.tensors)
        for cache in self.caches:
            cache.cache_clear()
        try:
            yield
        finally:
            with torch.no_grad():
                self._put(now, cells, tensors)

    @staticmethod
    def _put(places: Any, cells: Any, tensors: Any) -> None:
        for place, kept in places:
            _fill(place, kept)
        for cell, contents in cells:
            cell.cell_contents = contents
        for tensor, values in tensors:
            if tensor.shape == values.shape and not torch.equal(tensor.nan_to_num() if tensor.is_floating_point() else tensor,
                                                                values.nan_to_num() if values.is_floating_point() else values):  # fmt: skip
                tensor.copy_(values)


class _Attributes(dict):  # type: ignore[type-arg]
    """The attributes of a class, whose `__dict__` cannot be written."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.kind = kind


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _names(code: types.CodeType) -> set[str]:
    found = set(code.co_names)
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            found |= _names(each)
    return found


def _copied(place: Any, kept: Any) -> Any:
    if isinstance(place, _Attributes):
        return {name: getattr(place.kind, name, None) for name in kept}
    if isinstance(kept, dict) and "__builtins__" in place:  # the names of a module, of which only some are saved
        return {name: place[name] for name in kept if name in place}
    return place.copy()


def _fill(place: Any, kept: Any) -> None:
    if isinstance(place, _Attributes):
        for name, value in kept.items():
            setattr(place.kind, name, value)
    elif isinstance(place, dict) and "__builtins__" in place:
        place.update(kept)
    elif isinstance(place, list):
        place[:] = kept
    else:
        place.clear()
        place.update(kept)
