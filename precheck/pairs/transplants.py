"""Calls a module of `other` with the arguments of model's call. If it then returns what model's module does, its code is right, and its caller wrong.

So masks of truth values need no comparison of their own, nor options and numbers of Python: each model chooses what its masks mean.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from precheck.observe.containers import mapped, tensors
from precheck.pairs.backward_difference import PARTED
from precheck.pairs.capture import copied
from precheck.pairs.comparison import REFUSALS, Comparison
from precheck.pairs.couples import Couples
from precheck.pairs.floors import relative
from precheck.pairs.sides import Side
from precheck.words import counted

OPTIONS = (bool, int, float, str)
"""Arguments that are exchanged beside tensors. Other objects, such as a cache, stay what they are: they belong to their own model."""


class Transplant(NamedTuple):
    """`right`: whether the module returned what model's does. `words`: which argument was another, if one alone was."""

    right: bool
    words: str


def transplanted(comparison: Comparison, module: str, call: int, coupled: Couples, dtype: torch.dtype) -> Transplant:
    """What a module returns if its call of that number has the arguments of model's call. Both must have as many, of the same kinds and sizes, and
    the same floats: with others, such as rows padded on the other side, a fault of the module may not show."""
    wanted = coupled.matching.modules.get(module)
    results = [each.tensor for each in coupled.known.values() if (each.kind, each.module, each.call) == ("out", wanted, call)]
    if not module or wanted is None or not results:
        return Transplant(False, "")
    theirs: list[torch.Tensor] = []
    words: list[str] = []
    with contextlib.suppress(*REFUSALS):
        given = _given(comparison.model, wanted, call, dtype)

        def enter(arguments: inspect.BoundArguments) -> bool:
            own = dict(_items(arguments))
            alike = len(own) == len(given) and all(_alike(a, b) for a, b in zip(own.values(), given, strict=True))
            if alike and all(_same(a, b) for a, b in zip(own.values(), given, strict=True) if _floating(a)):
                words.extend(
                    _otherwise(name, here, there, module) for (name, here), there in zip(own.items(), given, strict=True) if not _same(here, there)
                )
                left = iter(given)
                for name, value in arguments.arguments.items():
                    arguments.arguments[name] = next(left) if isinstance(value, OPTIONS) else mapped(value, lambda each: next(left))
            return alike and bool(words)

        theirs = _run(comparison.other, module, call, dtype, enter)
    same = len(theirs) == len(results) and all(a.shape == b.shape and relative(a, b) <= PARTED for a, b in zip(theirs, results, strict=True))
    return Transplant(same, words[0] if same and len(words) == 1 else "")


def _given(side: Side, module: str, call: int, dtype: torch.dtype) -> list[Any]:
    """The arguments of one call, in the order of the signature."""
    found: list[Any] = []

    def enter(arguments: inspect.BoundArguments) -> bool:
        found.extend(_fresh(each) for _, each in _items(arguments))
        return False

    _run(side, module, call, dtype, enter)
    return found


def _run(side: Side, name: str, call: int, dtype: torch.dtype, enter: Callable[[inspect.BoundArguments], bool]) -> list[torch.Tensor]:
    """Runs a side. `enter` is told the arguments of one call, and may change them. If it says so, the results of the call are returned."""
    module, calls, kept, results = side.job.model.get_submodule(name), 0, False, list[torch.Tensor]()

    def before(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        nonlocal calls, kept
        calls, kept = calls + 1, False
        if calls != call:
            return None
        arguments = inspect.signature(module.forward).bind(*args, **kwargs)
        arguments.apply_defaults()
        kept = enter(arguments)
        return (arguments.args, arguments.kwargs) if kept else None

    def after(module: torch.nn.Module, args: Any, output: Any) -> None:
        if kept and calls == call:
            results.extend(copied(each) for _, each in tensors(output) if each.is_floating_point() and each.numel())

    handles = module.register_forward_pre_hook(before, with_kwargs=True), module.register_forward_hook(after)
    try:
        with contextlib.suppress(*REFUSALS):  # a loss may have no gradient then, after the call
            side.once(dtype)
    finally:
        for handle in handles:
            handle.remove()
    return results


def _items(arguments: inspect.BoundArguments) -> Iterator[tuple[str, Any]]:
    """Tensors, in containers too, and options, in the order of the signature."""
    for name, value in arguments.arguments.items():
        yield from [(name, value)] if isinstance(value, OPTIONS) else tensors(value, name)


def _fresh(value: Any) -> Any:
    return copied(value).requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value


def _floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _alike(here: Any, there: Any) -> bool:
    if isinstance(here, torch.Tensor) and isinstance(there, torch.Tensor):
        return here.shape == there.shape and here.dtype == there.dtype
    return type(here) is type(there)


def _same(here: Any, there: Any) -> bool:
    if not isinstance(here, torch.Tensor):
        return bool(here == there)
    return relative(here, there) <= PARTED if here.is_floating_point() else torch.equal(here, there)


def _otherwise(name: str, here: Any, there: Any, module: str) -> str:
    """In words, what is given otherwise."""
    what = f"{module} is given another {name} than model's"
    if not isinstance(here, torch.Tensor):
        return f"{what}: {here!r}, and not {there!r}"
    if here.dtype is not torch.bool:
        return what
    only = [int((a & ~b).sum()) for a, b in ((here, there), (there, here))]
    return f"{what}: of {counted(here.numel(), 'truth value')} {only[0]} are true in other alone, {only[1]} in model alone"
