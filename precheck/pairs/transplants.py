"""Calls a module of `other` with what model's call gets. If it then returns what model's module does, its code is right, and what it was given wrong.

So masks of truth values need no comparison of their own, nor options and numbers of Python: each model chooses what its masks mean. What objects
among the arguments hold is exchanged too, and attributes that code outside of the module may have written.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import torch

from precheck.observe.containers import mapped, tensors
from precheck.pairs.comparison import REFUSALS, Comparison
from precheck.pairs.couples import Couples
from precheck.pairs.floors import agree
from precheck.pairs.held_state import OPTIONS, Held, changed, fresh, holders, is_object, leaves
from precheck.pairs.module_dataflow import Passage, floats, real_copy
from precheck.pairs.sides import Side
from precheck.torch_support.dense_parts import continuous
from precheck.words import counted

Items = list[tuple[str, Any]]
"""What a call gets, each with its name."""


class Transplant(NamedTuple):
    """`right`: whether the module returned what model's does. `words`: which argument was another, if one alone was. `absent`: names of arguments
    that only one of the two calls has. `makers`: of what was another, if no argument was, the modules whose code wrote it, in order. `state`: its
    tensors of floats."""

    right: bool
    words: str = ""
    absent: frozenset[str] = frozenset()
    makers: tuple[str, ...] = ()
    state: tuple[torch.Tensor, ...] = ()


class Call(NamedTuple):
    """A call of a module, with what is known of values that it gets beside its arguments."""

    module: str
    number: int
    held: tuple[Held, ...] = ()


def transplanted(comparison: Comparison, call: Call, coupled: Couples, dtype: torch.dtype) -> Transplant:
    """What a module returns if its call has what model's call gets. Both must have as many arguments, of the same kinds and sizes, and the same
    floats: with others, such as rows padded on the other side, a fault of the module may not show."""
    wanted = coupled.matching.modules.get(call.module)
    results = [each.tensor for each in coupled.known.values() if (each.kind, each.module, each.call) == ("out", wanted, call.number)]
    if not call.module or wanted is None or not results:
        return Transplant(False)
    there = coupled.known.get(("in", wanted, call.number, 0))
    keys = {each.key for each in (*call.held, *(there.held if there is not None else ()))}
    theirs: list[torch.Tensor] = []
    words: list[str] = []
    absent: set[str] = set()
    other: dict[str, Any] = {}  # what is exchanged beside arguments
    exchange = contextlib.ExitStack()
    with contextlib.suppress(*REFUSALS), exchange:
        given, state = given_to(comparison.model, Call(wanted, call.number), keys, dtype)

        def enter(module: torch.nn.Module, arguments: inspect.BoundArguments) -> bool:
            own = items_of(arguments)
            pairs = list(zip(own, given, strict=False))
            if len(own) != len(given) or not all(_alike(a, b) for (_, a), (_, b) in pairs):
                return False
            if not all(_same(a, b) for (_, a), (_, b) in pairs if _floating(a) and _floating(b)):
                return False
            unlike = [(name, a, b) for (name, a), (_, b) in pairs if not _same(a, b)]
            words.extend(_otherwise(*each, call.module) for each in unlike)
            absent.update(name for name, a, b in unlike if (a is None) != (b is None))
            left = iter([value for _, value in given])
            for name, value in arguments.arguments.items():
                new = next(left) if isinstance(value, (torch.Tensor, *OPTIONS)) or is_object(value) else mapped(value, lambda each: next(left))
                arguments.arguments[name] = value if is_object(value) and is_object(new) else new
            other.update(exchange.enter_context(_state_exchanged(module, arguments, state)))
            return bool(words or other)

        theirs = run_with(comparison.other, call, dtype, enter)
    right = len(theirs) == len(results) and all(agree(a, b) for a, b in zip(theirs, results, strict=True))
    makers = [each.maker for each in sorted(call.held, key=lambda each: each.order) if each.key in other]
    floats_ = tuple(each for each in other.values() if _floating(each))
    return Transplant(right, words[0] if right and len(words) == 1 else "", frozenset(absent), () if words else tuple(makers), floats_)


def is_absent(comparison: Comparison, module: str, wanted: str, names: Collection[str], dtype: torch.dtype) -> bool:
    """Whether one of the arguments is there in one model alone also where this module is called first."""
    with contextlib.suppress(*REFUSALS):
        own, given = (given_to(side, Call(name, 1), (), dtype)[0] for side, name in ((comparison.other, module), (comparison.model, wanted)))
        return any((a is None) != (b is None) for (name, a), (_, b) in zip(own, given, strict=False) if name in names)
    return False


def with_other_numbers(side: Side, passage: Passage, dtype: torch.dtype) -> list[torch.Tensor]:
    """What a call returns if one of its inputs holds one number throughout, beyond all that it holds."""

    def enter(module: torch.nn.Module, arguments: inspect.BoundArguments) -> bool:
        read = dict(arguments.arguments)
        arguments.arguments.update(exchanged(read, passage.place, lambda each: torch.full_like(each, float(each.abs().max()) + 1)))
        return passage.kind == "in"

    with contextlib.suppress(*REFUSALS):
        return run_with(side, Call(passage.module, passage.call), dtype, enter)
    return []


def exchanged(value: Any, place: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A container in which the tensor of floats at one place is changed."""
    places = itertools.count()
    return mapped(value, lambda each: change(each) if continuous(each) and next(places) == place else each)


def given_to(side: Side, call: Call, keys: Collection[str], dtype: torch.dtype) -> tuple[Items, dict[str, Any]]:
    """The arguments of one call, in the order of the signature, and what it gets beside them under these keys."""
    found: Items = []
    state: dict[str, Any] = {}

    def enter(module: torch.nn.Module, arguments: inspect.BoundArguments) -> bool:
        found.extend((name, fresh(each)) for name, each in items_of(arguments))
        for prefix, holder in holders(module, _values(arguments)):
            if isinstance(holder, torch.nn.Module):
                state.update((f"{prefix}{key}", fresh(value)) for key, value in leaves(holder) if f"{prefix}{key}" in keys)
            else:
                state[prefix] = fresh(holder)
        return False

    run_with(side, call, dtype, enter)
    return found, state


@contextlib.contextmanager
def _state_exchanged(module: torch.nn.Module, arguments: inspect.BoundArguments, state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Puts values of model's call in the place of those that objects and attributes have. Yields those that were others. Of objects of two classes,
    Python's numbers are exchanged, in order, if both hold as many. Tensors may have another form in each."""
    with contextlib.ExitStack() as undo:
        unlike: dict[str, Any] = {}
        for prefix, holder in holders(module, _values(arguments)):
            there = state.get(prefix)
            if isinstance(holder, torch.nn.Module):
                now = {key: state[f"{prefix}{key}"] for key, _ in leaves(holder) if f"{prefix}{key}" in state}
            elif type(there) is type(holder):
                unlike |= {f"{prefix}{key}": value for key, value in undo.enter_context(_object_exchanged(holder, there)).items()}
                continue
            else:
                own, given = ([(key, value) for key, value in leaves(each) if type(value) in (int, float)] for each in (holder, there))
                now = {key: value for (key, _), (_, value) in zip(own, given, strict=False)} if len(own) == len(given) else {}
            unlike |= {f"{prefix}{key}": value for key, value in undo.enter_context(_values_exchanged(holder, now)).items()}
        yield unlike


@contextlib.contextmanager
def _values_exchanged(holder: Any, now: dict[str, Any]) -> Iterator[dict[str, Any]]:
    before = {key: value for key, value in leaves(holder) if key in now and not _same(value, now[key])}
    changed(holder, lambda key, value: now[key] if key in before else value)
    try:
        yield before
    finally:  # but for what the run has written since
        changed(holder, lambda key, value: before[key] if key in before and value is now[key] else value)


@contextlib.contextmanager
def _object_exchanged(holder: Any, there: Any) -> Iterator[dict[str, Any]]:
    own, given = dict(leaves(holder)), dict(leaves(there))
    unlike = [key for key in dict.fromkeys((*own, *given)) if key not in own or key not in given or not _same(own[key], given[key])]
    before = dict(vars(holder))
    if unlike:
        vars(holder).update(vars(there))
    try:
        yield {key: own.get(key) for key in unlike}
    finally:
        vars(holder).update(before)


def run_with(
    side: Side, call: Call, dtype: torch.dtype, enter: Callable[[torch.nn.Module, inspect.BoundArguments], bool]
) -> list[torch.Tensor]:  # fmt: skip
    """Runs a side. `enter` is told the arguments of one call, and may change them. If it says so, the results of the call are returned. Code that was
    not written for such arguments may raise any error, which ends the run. So may a loss, which has no gradient then."""
    module, calls, kept, results = side.job.model.get_submodule(call.module), 0, False, list[torch.Tensor]()

    def before(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        nonlocal calls, kept
        calls, kept = calls + 1, False
        if calls != call.number:
            return None
        arguments = inspect.signature(module.forward).bind(*args, **kwargs)
        arguments.apply_defaults()
        kept = enter(module, arguments)
        return (arguments.args, arguments.kwargs) if kept else None

    def after(module: torch.nn.Module, args: Any, output: Any) -> None:
        if kept and calls == call.number:
            results.extend(map(real_copy, floats(output)))

    handles = module.register_forward_pre_hook(before, with_kwargs=True), module.register_forward_hook(after)
    try:
        with contextlib.suppress(Exception):
            side.forward(dtype)
    finally:
        for handle in handles:
            handle.remove()
    return results


def _values(arguments: inspect.BoundArguments) -> list[Any]:
    return list(arguments.arguments.values())


def items_of(arguments: inspect.BoundArguments) -> Items:
    """Tensors, in containers too, options and objects, in the order of the signature."""
    found: Items = []
    for name, value in arguments.arguments.items():
        found += [(name, value)] if isinstance(value, OPTIONS) or is_object(value) else tensors(value, name)
    return found


def _floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and continuous(value)


def _alike(here: Any, there: Any) -> bool:
    """Whether one can take the other's place: tensors of one size and format, options of one kind, or nothing on one side. Objects stay, since they
    belong to their own model."""
    if isinstance(here, torch.Tensor) and isinstance(there, torch.Tensor):
        return here.shape == there.shape and here.dtype == there.dtype
    return type(here) is type(there) or here is None or there is None or (is_object(here) and is_object(there))


def _same(here: Any, there: Any) -> bool:
    if is_object(here) and is_object(there):
        return True
    if not isinstance(here, torch.Tensor) or not isinstance(there, torch.Tensor):
        return here is there or (not isinstance(here, torch.Tensor) and not isinstance(there, torch.Tensor) and bool(here == there))
    return agree(here, there) if continuous(here) else torch.equal(here, there)


def _otherwise(name: str, here: Any, there: Any, module: str) -> str:
    """In words, what is given otherwise."""
    what = f"{module} is given another {name} than model's"
    if here is None or there is None:
        return f"{module} is given no {name}, and model's is" if here is None else f"{module} is given {_article(name)}, and model's is not"
    if not isinstance(here, torch.Tensor):
        return f"{what}: {here!r}, and not {there!r}"
    if here.dtype is not torch.bool:
        return what
    only = [int((a & ~b).sum()) for a, b in ((here, there), (there, here))]
    return f"{what}: of {counted(here.numel(), 'truth value')} {only[0]} are true in other alone, {only[1]} in model alone"


def _article(name: str) -> str:
    return f"{'an' if name[:1] in 'aeiou' else 'a'} {name}"
