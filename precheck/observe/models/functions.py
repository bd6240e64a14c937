"""Finds the modules and weights that a function uses, and turns a function into a module that has them: `Called`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch


class Called(torch.nn.Module):
    """A function as a module. Modules that it can reach (closure, `self`, bound arguments, named globals) become children, so that their weights are
    converted and restored like those of any model."""

    curable = False  # `in_float32` takes no function

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.__dict__["function"] = function  # not registered as a child: the weights of a compiled module have the names of the original module
        for name, module in reached(function):
            self.add_module(name.replace(".", "_"), module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["function"](*args, **kwargs)


def reached(function: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """The modules that a function can reach, each once and with its name in the function. Also those in lists and dicts."""
    seen: set[int] = set()
    for name, value in _bound(function):
        for place, module in _modules(name, value):
            if id(module) not in seen:
                seen.add(id(module))
                yield place, module


def trained(function: Any) -> list[torch.nn.Module | torch.Tensor]:
    """The modules that a function can reach, and the tensors that receive a gradient where it is used."""
    bound = [value for _, value in _bound(function)]
    leaves = [value for value in bound if isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf]
    return [*(module for _, module in reached(function)), *leaves]


def _modules(name: str, value: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    if isinstance(value, torch.nn.Module):
        yield name, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _modules(f"{name}_{key}", each) if isinstance(each, torch.nn.Module) else ()
    elif isinstance(value, (list, tuple)):
        for place, each in enumerate(value):
            yield from _modules(f"{name}_{place}", each) if isinstance(each, torch.nn.Module) else ()


def _bound(function: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    if depth > 3:  # a function that calls another function of the user's, and so on
        return
    if isinstance(function, functools.partial):
        yield from ((f"bound{place}", each) for place, each in enumerate(function.args))
        yield from function.keywords.items()
        function = function.func
    function = getattr(function, "_torchdynamo_orig_callable", function)
    while True:  # through decorators, each of which keeps what it wraps
        if isinstance(function, torch.nn.Module):
            yield "wrapped", function
            return
        owner = getattr(function, "__self__", None)
        if owner is not None and not inspect.ismodule(owner):
            yield "self", owner
            yield from (vars(owner).items() if hasattr(owner, "__dict__") and not isinstance(owner, torch.nn.Module) else ())
        if not inspect.isroutine(function) and hasattr(function, "__dict__"):
            yield from vars(function).items()  # an object with a __call__
        inner = getattr(function, "__func__", function)
        if not hasattr(inner, "__wrapped__"):
            break
        function = inner.__wrapped__
    code = getattr(inner, "__code__", None)
    if code is None:
        return
    cells = zip(code.co_freevars, inner.__closure__ or (), strict=False)
    reached = {name: cell.cell_contents for name, cell in cells if _filled(cell)}
    reached |= {name: inner.__globals__[name] for name in code.co_names if name in inner.__globals__}
    yield from reached.items()
    for each in reached.values():
        if inspect.isfunction(each) and not each.__module__.startswith("torch"):
            yield from _bound(each, depth + 1)


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
