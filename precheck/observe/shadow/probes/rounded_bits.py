"""Gives a shadow to floats that a model rounds by arithmetic on their bits: it takes them for integers, cuts bits off, and takes the rest for floats.

So programs emulate a tensor core's input format, or store the upper half of a float32 number. That rounds like a cast, and what follows from it is
judged in the same way. Integers alone show no rounding. It is one if each result is less than one step from the number whose bits were taken, where a
step is the lowest bit that any result has. k zero bits at the end of n results are there by chance once in 2^(k n).

What is rounded outside of models may be data, as with a cast to low and back on one line (`casts`). There the shadow starts anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.observe.shadow.call import Call
from precheck.observe.shadow.comparing import measuring
from precheck.observe.shadow.comparing.statistics import apart
from precheck.observe.shadow.memory.storages import Flat
from precheck.observe.shadow.operations import BITS_ROUNDED, Value
from precheck.observe.shadow.replaying.replay import OpCall, plan
from precheck.torch_internals import CAST, located, storage_key

if TYPE_CHECKING:
    from precheck.observe.shadow.mode import Shadow

SIGNIFICAND = 24
"""Bits of float32's significand, with the one that is not stored."""
FEWEST = 8
"""Bits that a number keeps at least. With fewer it is a code or a power of two, which a quantiser makes."""
BY_CHANCE = 20
"""Zero bits in all results together that chance does not explain: one in a million."""


NEAR = 8
"""Ops between a draw of noise and the sum whose bits are cut off, and values that are looked at in each step back."""
LOST = 0.5
"""The relative error from which numbers are wrong already, as is what a difference leaves of a number whose upper bits were taken away. To round them
does no more harm, and the shadow starts anew."""


@dataclasses.dataclass(slots=True)
class Given:
    """What is known of floats whose bits were taken: their value and shadow, and the shadow of the call that took them. None if they have none."""

    storage: int  # the key of their storage
    value: Value
    shadow: Flat | None
    call: int = 0
    own: Flat | None = None
    drawn: bool = False  # whether random numbers are in it
    within: bool = False  # whether a model computes there

    def moved(self, source: torch.Tensor, result: torch.Tensor) -> Given:
        """The same for what an op makes of them, element by element."""
        moved = [None if each is None else Flat.of(result, each.seen(source)) for each in (self.shadow, self.own)]
        return dataclasses.replace(self, shadow=moved[0], own=moved[1])


def given(mode: Shadow, floats: torch.Tensor) -> Given:
    """Before their bits are changed."""
    cell, called = mode.memory.find(floats), mode.function_replay.running()
    second = None if called is None else called.memory.find(floats)
    value = measuring.outside(floats) if cell is None else cell.value
    drawn = mode.wide.draws(located([floats])) or _drawn(value)
    shadow = None if cell is None else Flat.of(floats, mode.memory.view(cell, floats))
    own = None if called is None or second is None else Flat.of(floats, called.memory.view(second, floats))
    within = bool(mode.tracker.stack) or floats.requires_grad
    return Given(storage_key(floats), value, shadow, 0 if called is None else called.number, own, drawn, within)


def _drawn(value: Value) -> bool:
    """Whether the last few ops before a value read random numbers."""
    makers = [value.maker]
    for _ in range(NEAR):
        known = [maker for maker in makers if maker is not None]
        if any(maker.drawn or maker.base in ops.DRAWN for maker in known):
            return True
        makers = [given.maker for maker in known for given in maker.inputs][:NEAR]
    return False


def bits_kept(exact: torch.Tensor, made: torch.Tensor) -> int:
    """How many bits of a significand the numbers `made` keep, if they are `exact` ones rounded, and not all as before. Otherwise 0."""
    counts = exact.isfinite() & (exact != 0) & (made != 0)
    exact, made = exact[counts], made.float()[counts]
    bits = made.view(torch.int32)
    ends = (bits & -bits)[bits != 0]
    if not len(ends) or torch.equal(exact, made):
        return 0
    cut = min(int(ends.min()).bit_length() - 1, SIGNIFICAND)
    step = torch.ldexp(torch.ones_like(exact), torch.frexp(exact)[1] - SIGNIFICAND + cut)
    near = bool(((made - exact).abs() < step).all())
    return SIGNIFICAND - cut if near and cut * len(exact) >= BY_CHANCE and SIGNIFICAND - cut >= FEWEST else 0


def drop_shadows(mode: Shadow, before: Given, made: torch.Tensor) -> None:
    """Drops the shadows of floats that lay where an op on integers has put its result, which `made` views."""
    if storage_key(made) != before.storage:
        for memory in (mode.memory, *(called.memory for called in mode.function_replay.alive)):
            memory.drop(made)


def after_rounding(mode: Shadow, before: Given, exact: torch.Tensor, made: torch.Tensor) -> None:
    """After changed bits have become the floats `made`. Noise that is added before bits are cut off rounds at random, without a mean, so the shadow
    starts anew there. Never raises, since the view is the user's."""
    with mode.lock, contextlib.suppress(Exception):
        known = [each.seen(made) for each in (before.shadow, before.own) if each is not None]
        wrong = any(not apart(exact, each) < LOST for each in known)
        bits = bits_kept(exact, made) if before.within else 0
        if not bits or (before.drawn and bool((made.float().abs() <= exact.abs()).all())):
            return
        call = Call(mode, OpCall(CAST, plan(CAST), (made,), {}), [], [], [])
        call.operation = call.described()
        call.operation.name, call.operation.inputs, call.operation.parameter = BITS_ROUNDED, (before.value,), 0
        call.inputs = call.operation.inputs
        wide = mode.replay.wide(made.dtype)
        right = made if wrong else exact
        shadow = (right if wrong or before.shadow is None else before.shadow.seen(made)).to(wide, copy=True)
        value = measuring.fresh(call, made)
        value.roundoff, value.low, value.kept_low = max(value.roundoff, math.ldexp(1.0, -bits)), True, True
        measuring.measure_cast(call, value, made, shadow, None)
        call.operation.outputs = (value,)
        mode.memory.put(made, shadow, value)
        called = mode.function_replay.running()
        own = before.own if called is not None and before.call == called.number and not wrong else None
        mode.function_replay.written(call, made, (right if own is None else own.seen(made)).to(wide))
        mode.record(call.operation)
