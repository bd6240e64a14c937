"""The self-test of `compare` and `vary`: plants faults into what one side of a passed comparison returns, and reports which of them it catches.

The faults are functions of the side's output, and are in all of its runs: its run under the precision, and its exact ones. So each is another
function, as a broken port is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from precheck import interpreter, interrupts
from precheck.comparing import Pair
from precheck.observe.containers import mapped, tensors
from precheck.observe.listeners import doing
from precheck.observe.models import faults
from precheck.pairs.sides import Planted
from precheck.pairs.verdicts import Judged
from precheck.precisions import Precision
from precheck.selftests.checks import Outcome, Status, first_of, percent, scaled
from precheck.varying import Parts, Varied

FAULTS = ("zeroed", "shuffled", "scaled", "stale")
_ORDER: tuple[Status, ...] = ("unnoticed", "allowed", "caught", "same", "inapplicable")
"""Of several ways: a fault is caught if nothing worse happened in any of them."""
RULES = {"different": "different", "less accurate": "less-accurate"}
"""The verdicts that are errors, with their rules."""

Change = Callable[[torch.nn.Module, Any, Any, Any], Any]
"""Takes a module, its arguments, its keywords and its result. Returns another result, or a text that says why the fault cannot be planted there."""


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """One comparison that can be repeated with a fault. `of` says whose output has it."""

    name: str  # of the variation; "" for `compare`
    of: str
    judged: Callable[[Planted], Sequence[Judged]]


@interrupts.held()
@interpreter.spared
def parity_selftested(
    model: Any, other: Any, inputs: Any, *, precision: str | Precision = "32-true", tolerated: Collection[str] = (),
    match: Mapping[str, str] | None = None, allow: Mapping[str, str] | None = None, **settings: Any,
) -> list[Outcome]:  # fmt: skip
    """Plants each fault of FAULTS into what `other` returns, where `compare` has passed with these arguments. Returns an outcome for each.

    If `other` is a recording, the faults are planted into what `model` returns. `tolerated` are rules whose errors do not fail the test, as those of
    `allow`; `settings` are loss, optimizer, steps and seed. Models and random states come back as they were. Raises what `compare` raises.
    """
    pair = Pair(model, other, inputs, precision, match, settings)
    recorded = isinstance(other, (str, Path))
    way = Way("", "what model returns" if recorded else "what other returns", lambda planted: pair.comparison(planted).judged())
    return _outcomes([way], {*tolerated, *(allow or {})})


@interrupts.held()
@interpreter.spared
def invariance_selftested(
    model: Any, inputs: Any, over: Iterable[str] | Mapping[str, int | None] | None = None, *, precision: str | Precision = "32-true",
    tolerated: Collection[str] = (), allow: Mapping[str, str] | None = None, **settings: Any,
) -> list[Outcome]:  # fmt: skip
    """Plants each fault of FAULTS into what the model returns when it is run in another way, for each way of `over`.

    A fault counts as caught if it is caught in every way. `settings` are loss, reduction, step and seed, as in `vary`. Raises what `vary` raises.
    """
    varied = Varied(model, inputs, over, precision, **settings)
    ways = [Way(each.name, "what the model returns", lambda planted, each=each: varied.comparison(each, planted).judged())  # type: ignore[misc]
            for each in varied.variations]  # fmt: skip
    return _outcomes(ways, {*tolerated, *(allow or {})})


def _outcomes(ways: Sequence[Way], tolerated: Collection[str]) -> list[Outcome]:
    found = []
    limits = [_limit(way.judged(_nothing)) for way in ways]
    for number, fault in enumerate(FAULTS, 1):
        with doing(f"self-test, fault {number} of {len(FAULTS)}, {fault}"):
            found.append(first_of(_ORDER, [_tried(fault, way, limit, tolerated) for way, limit in zip(ways, limits, strict=True)]))
    return found


@contextlib.contextmanager
def _nothing(module: torch.nn.Module) -> Iterator[None]:
    yield


def _limit(rows: Sequence[Judged]) -> float:
    """The smallest share of its norm by which an output or the loss may differ and pass, as far as the passed comparison has found it. 0 for equal
    bits."""
    shares = [row.allowed * row.floor / row.norm for row in rows if row.subject.kind in ("result", "loss") and row.norm and row.floor]
    return min((each for each in shares if math.isfinite(each)), default=0.0)


def _tried(fault: str, way: Way, limit: float, tolerated: Collection[str]) -> Outcome:
    if fault != "scaled":
        return _planted(fault, _CHANGES[fault], way, tolerated)
    return scaled(limit, lambda share: _planted(fault, _scaled(share), way, tolerated))


def _planted(fault: str, change: Change, way: Way, tolerated: Collection[str]) -> Outcome:
    effect, refused = faults.Effect(), list[str]()

    @contextlib.contextmanager
    def planted(module: torch.nn.Module) -> Iterator[None]:
        def hook(module: torch.nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
            made = change(module, args, kwargs, result)
            if isinstance(made, str):
                refused.append(made)
                return result
            effect.note_all(_numbers(result), _numbers(made))
            return made

        handle = module.register_forward_hook(hook, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    told = f"{_TOLD[fault].format(of=way.of)}{f' ({way.name})' if way.name else ''}"
    try:
        rows = way.judged(planted)
    except Exception as error:
        if not effect.size:
            raise  # the fault did not cause it
        return Outcome(fault, "caught", told, size=effect.size, rule=f"{type(error).__name__}: {error}".splitlines()[0])
    if refused:
        return Outcome(fault, "same" if refused[0] == _ALIKE else "inapplicable", refused[0])
    if effect.size is None:
        return Outcome(fault, "unnoticed", f"{way.of} holds no tensor, so that no fault in one is noticed", "let it return tensors")
    told = f"{told}, which changes it by {percent(effect.size)}"
    rules = list(dict.fromkeys(RULES[row.verdict] for row in rows if row.verdict in RULES and row.subject.kind != "buffer"))
    left = [rule for rule in rules if rule not in tolerated]
    if rules:
        return Outcome(fault, "caught" if left else "allowed", told, size=effect.size, rule=(left or rules)[0])
    if fault == "shuffled" and not effect.size:
        return Outcome(fault, "same", f"the input cannot show it: the rows of {way.of} are equal; pass a batch whose rows differ")
    return Outcome(fault, "unnoticed", told, _ADVICE[fault], effect.size)


def _numbers(result: Any) -> list[torch.Tensor]:
    held = [each for part in result.parts for _, each in tensors(part)] if isinstance(result, Parts) else [each for _, each in tensors(result)]
    return [each.abs() if each.is_complex() else each for each in held]


def _each(result: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return Parts([mapped(part, change) for part in result.parts]) if isinstance(result, Parts) else mapped(result, change)


def _zeroed(module: torch.nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
    return _each(result, lambda value: value * 0 if value.is_floating_point() or value.is_complex() else torch.zeros_like(value))


def _shuffled(module: torch.nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
    if isinstance(result, Parts):
        return "of parts of a batch the loss alone is compared, which need not depend on the order of rows"
    if all(value.numel() < 2 for value in _numbers(result)):
        return "what is returned has one element, which has no other place"
    return _each(result, faults.rolled)


def _scaled(share: float) -> Change:
    def change(module: torch.nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
        if not any(value.is_floating_point() for value in _numbers(result)):
            return "what is returned has no floating-point number"
        return _each(result, lambda value: value * (1 + share) if value.is_floating_point() or value.is_complex() else value)

    return change


def _stale(module: torch.nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
    changed = faults.other((args, kwargs))
    if changed is None:
        return _ALIKE
    try:
        made = module.forward(*changed[0], **changed[1])
    except Exception as error:  # the model's own error on an input that is not the user's
        return f"the model does not run on its input back to front ({type(error).__name__}: {error})".splitlines()[0]
    shapes = [[tuple(each.shape) for each in _numbers(some)] for some in (made, result)]
    return made if shapes[0] == shapes[1] else "the output for another input has another shape"


_ALIKE = "the input cannot show it: it is the same back to front (all zeros?); pass one whose values differ"
_CHANGES: dict[str, Change] = {"zeroed": _zeroed, "shuffled": _shuffled, "stale": _stale}
_TOLD = {
    "zeroed": "{of} is zero", "shuffled": "the rows of {of} are shifted by one", "scaled": "{of} is scaled",
    "stale": "{of} is the result for another input (each tensor back to front)",
}  # fmt: skip
_ADVICE = {
    "zeroed": "the output is zero, or nothing but rounding, already (a head that starts at zero?): give it weights that show",
    "shuffled": "pass a batch whose rows differ by more than rounding explains",
    "scaled": "rounding drowns the output, or it is zero: scale the weights or inputs so that it is determined",
    "stale": "the output hardly depends on the input: pass an input that matters to it, or look whether the model reads it at all",
}
