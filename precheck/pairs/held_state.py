"""Follows what a call of a module gets beside its arguments and weights: what objects among the arguments hold, such as a cache, and attributes of
modules that are written during the run. It tells whose code wrote each value."""

from __future__ import annotations

import copy
import itertools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from precheck.pairs.capture import copied
from precheck.torch_internals import is_transformed, version

OPTIONS = (bool, int, float, str, type(None))
"""Values that are compared and exchanged beside tensors. Other objects, such as a cache, stay what they are, since they belong to their own model."""
INTERNAL = frozenset(vars(torch.nn.Module())) - {"training", "_buffers"}
"""Attributes of a module that torch itself keeps. Weights are compared elsewhere."""
DEPTH = 6
"""Objects in objects that are looked into."""
NO_STATE = torch.nn.Module, torch.Tensor, type, types.FunctionType, types.MethodType, types.ModuleType, types.BuiltinFunctionType
Mark = tuple[Any, ...]


class Held(NamedTuple):
    """One value that a call gets from an object or an attribute. `maker`: the module whose code wrote it. `order`: of all that were written.
    `before`: whose code wrote what was there before. `wanted`: whether it requires a gradient."""

    key: str
    maker: str
    order: int
    before: str | None = None
    wanted: bool = False


class HeldState:
    """Notes at the beginning and at the end of each call what has been written since."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.known: dict[tuple[int, str], tuple[Mark, str | None, int, str | None]] = {}
        self.alive: list[Any] = []  # so that no id is used twice
        for module in model.modules():
            self._note(module, None)

    def entering(self, module: torch.nn.Module, given: Any, caller: str) -> tuple[Held, ...]:
        """What a call gets that was written during the run, by `caller` if it was not noted before."""
        found = [(key, self._note(holder, caller)) for key, holder in holders(module, given)]
        return tuple(each._replace(key=f"{key}{each.key}") for key, some in found for each in some)

    def leaving(self, module: torch.nn.Module, given: Any, name: str) -> None:
        """What was written within the call was written by the module, or by a part of it that has noted so."""
        for _, holder in holders(module, given):
            self._note(holder, name)

    def _note(self, holder: Any, maker: str | None) -> list[Held]:
        found = []
        for key, value in leaves(holder):
            mark, known = _mark(value), self.known.get((id(holder), key))
            if known is None or known[0] != mark:
                self.alive += [value, holder]
                known = self.known[id(holder), key] = (mark, maker, len(self.alive), known[1] if known else None)
            if known[1] is not None:
                found.append(Held(key, known[1], known[2], known[3], isinstance(value, torch.Tensor) and value.requires_grad))
        return found


def intruders(held: Sequence[Held], module: str) -> list[str]:
    """The code outside of a module that has written what only the module itself had written before."""
    return [each.maker for each in held if each.before is not None and _within(each.before, module) and not _within(each.maker, module)]


def _within(maker: str, module: str) -> bool:
    return f"{maker}.".startswith(f"{module}.")


def holders(module: torch.nn.Module, given: Any) -> Iterator[tuple[str, Any]]:
    """Objects among the arguments, and the module with its parts. Each has a name that is the same in two models of one structure."""
    yield from ((f"argument {number}: ", each) for number, each in enumerate(objects(given)))
    yield from ((f"{name}." if name else "", part) for name, part in module.named_modules())


def objects(value: Any) -> list[Any]:
    """The outermost objects in `value`."""
    found: list[Any] = []

    def enter(each: Any) -> bool:
        found.append(each)
        return False

    _walked(value, lambda leaf: leaf, enter, 0, set())
    return found


def leaves(holder: Any) -> list[tuple[str, Any]]:
    """The tensors, numbers and words that an object or a module holds, in containers and objects too, each with a key."""
    found: list[tuple[str, Any]] = []

    def kept(key: str, value: Any) -> Any:
        found.append((key, value))
        return value

    changed(holder, kept)
    return found


def changed(holder: Any, change: Callable[[str, Any], Any]) -> None:
    """Replaces what an object or a module holds, in place, by what `change` returns for its key and value."""
    seen = {id(holder)}
    for name, value in list(vars(holder).items()):
        if name in INTERNAL and isinstance(holder, torch.nn.Module):
            continue
        count = itertools.count()
        new = _walked(value, lambda leaf, name=name, count=count: change(f"{name}[{next(count)}]", leaf), lambda each: True, 0, seen)  # type: ignore[misc]
        if new is not value:
            vars(holder)[name] = new


def fresh(value: Any) -> Any:
    """A copy that no later write reaches: of tensors, and of containers and objects that hold some."""
    if isinstance(value, torch.Tensor):
        return value if is_transformed(value) else copied(value).requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {key: fresh(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        items = [fresh(each) for each in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if is_object(value):
        made = copy.copy(value)
        vars(made).update(fresh(vars(value)))
        return made
    return value


def is_object(value: Any) -> bool:
    """Whether a value is an object of the user's with attributes, such as a cache, and no container, module or function."""
    plain = isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, (Mapping, *NO_STATE))
    return plain and not type(value).__module__.startswith(("torch.", "builtins", "enum"))


def _walked(value: Any, change: Callable[[Any], Any], enter: Callable[[Any], bool], depth: int, seen: set[int]) -> Any:
    if isinstance(value, (torch.Tensor, *OPTIONS)):
        return value if isinstance(value, torch.Tensor) and is_transformed(value) else change(value)
    if depth > DEPTH or id(value) in seen or isinstance(value, NO_STATE):
        return value
    if isinstance(value, tuple):
        items = [_walked(each, change, enter, depth + 1, seen) for each in value]
        same = all(a is b for a, b in zip(items, value, strict=True))
        return value if same else type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    seen.add(id(value))
    inside: Any = None
    if isinstance(value, dict):
        inside = value
    elif isinstance(value, list):
        inside = dict(enumerate(value))
    elif is_object(value) and enter(value):
        inside = vars(value)
    for key, each in list((inside or {}).items()):
        new = _walked(each, change, enter, depth + 1, seen)
        if new is not each:
            (value if isinstance(value, list) else inside)[key] = new
    return value


def _mark(value: Any) -> Mark:
    return (id(value), version(value)) if isinstance(value, torch.Tensor) else (type(value), value)
