"""Finds additions that leave an accumulator's bits unchanged although its shadow moves: sums, moving averages, counters, merged weights.

An accumulator is a tensor that is added to: in place, by rebinding a name, or by a cast back to the low format after wide arithmetic
(`stored_states`). Its displacement is followed on a sample, from the first addition that leaves at least half of the moved elements
unchanged. The intended displacement is what the run's own additions give in the reference precision (`additions`). Where
it is unknown, the shadow's is taken.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy
import torch

from precheck import ops
from precheck.observe.shadow.comparing.fetching import fetched
from precheck.observe.shadow.comparing.statistics import norm, ratio, sampled, share
from precheck.observe.shadow.memory.cells import Cell, Memory
from precheck.observe.shadow.op_notes import Absorbed
from precheck.observe.shadow.operations import Operation, Value
from precheck.observe.shadow.probes import additions, stored_states
from precheck.observe.shadow.signed_terms import takes_back
from precheck.observe.shadow.training.decayed_weights import DecayedWeights
from precheck.observe.shadow.training.gradients import Gradients

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call
    from precheck.observe.shadow.replaying.replay import OpPlan

SAMPLE = 1024
ABSORBING = 0.5
"""An addition counts as absorbed if at least this share of the elements that should move keep their bits."""

CARRYING = {"copy"} | (ops.MEETING - ops.ADDITIONS)
"""Ops whose result is an accumulator again: copies, and bounds that change no number."""

Samples = tuple[torch.Tensor, torch.Tensor]


@dataclasses.dataclass(slots=True)
class Accumulator:
    """The content of an accumulator at its first absorbed addition, in the run and in the reference, and counts of the additions since.
    `exact` is what it would hold if nothing had been lost since. None: one of the additions cannot be repeated on samples.
    """

    start: Samples
    first: Operation
    exact: torch.Tensor | None
    additions: int = 0
    times: int = 0
    way: float = 0.0  # how far `exact` has gone, each update for itself
    unscaled: torch.Tensor | None = None  # `exact` before a factor, which is part of the update that the next addition ends: m * d + (1 - d) * x
    rounds: int = 0  # how often an addition read it through a cast, from a wide format that had stored it between turns of a training
    turns: int = 0  # `ModuleTracker.turns` at the last addition

    def goes(self, exact: torch.Tensor | None, *, scales: bool) -> None:
        """Takes in what `exact` became by one op. `scales`: the op is a factor."""
        held, self.exact = self.exact, exact
        if held is None or exact is None:
            return
        if scales:
            self.way += 0.0 if self.unscaled is None else norm(held - self.unscaled)  # two factors in a row are two updates
            self.unscaled = held
        else:
            self.way += norm(exact - (held if self.unscaled is None else self.unscaled))
            self.unscaled = None


class Accumulation:
    """Follows the accumulators of a run."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.stores, self.gradients = memory, stored_states.StoredStates(), Gradients()
        self.decayed_weights = DecayedWeights()

    def before(
        self, operation: Operation, planned: OpPlan, floats: list[torch.Tensor], cells: list[Cell | None], written: set[int],
    ) -> dict[int, Samples]:  # fmt: skip
        """Samples of the accumulators that an op is about to overwrite, by the tensor's id. Weights in an optimizer step belong to `updates`."""
        stored = planned.base == "copy" and bool(cells) and stored_states.from_overwritten(operation, cells[0])
        adding = (planned.base in ops.ACCUMULATING or stored) and not (operation.in_optimizer and operation.parameter)
        adding = adding and _adds_in_place(planned, floats, written)
        kept = {}
        for tensor, cell in zip(floats, cells, strict=True):
            if id(tensor) in written and cell is not None:
                if adding and cell.value.low:
                    kept[id(tensor)] = (_copied(tensor), _copied(self.memory.view(cell, tensor)))
                else:
                    cell.accumulator = None
        return kept

    def after(self, call: Call, outputs: list[torch.Tensor], values: list[Value]) -> None:
        """After an op: sets `operation.absorbed` if it adds to an accumulator: a tensor that it writes, or the operand that its result replaces."""
        if call.operation.derived and call.mode.tracker.one_kernel(call.operation.module):
            return
        if call.operation.derived and call.plan.base == "add" and values[0].low:
            self.gradients.added(call, outputs[0], values[0])
        if call.plan.base in CARRYING and not call.before:
            self.carried(call, outputs[0])
        if (call.plan.base not in ops.ACCUMULATING or call.written) and not call.before:
            return
        if call.before:
            if takes_back(call.operation):
                _compensated(call)
            for tensor, value in _floating(outputs, values):
                if id(tensor) in call.before:
                    self._one(call, tensor, value, call.before[id(tensor)])
            return
        operand = self._operand(call, outputs[0]) if values[0].low else None
        if operand is None and not any(cell is not None and cell.accumulator is not None for cell in call.cells):
            return
        if takes_back(call.operation):
            _compensated(call)
            return
        if operand is None:
            return
        was, source = operand
        self._one(call, outputs[0], values[0], was, source)

    def carried(self, call: Call, output: torch.Tensor) -> None:
        """After a copy into a whole tensor, or a clamp that gave each number back: the result is the accumulator now."""
        target = self.memory.find(output)
        for tensor, cell in zip(call.floats, call.cells, strict=True):
            if target is None or cell is None or cell is target or cell.accumulator is None:
                continue
            whole = tensor.shape == output.shape and target.content.numel() == cell.content.numel() == output.numel()
            if whole and bool(torch.eq(sampled(tensor, SAMPLE), sampled(output, SAMPLE)).all()):
                target.accumulator = cell.accumulator

    def stored(self, call: Call, output: torch.Tensor, value: Value) -> None:
        """After a cast to a low format: if it stores a state that it also stored one iteration of the loop before, measures what the iteration
        absorbed."""
        latest = self.stores.latest(call, value)
        if latest is None:
            return
        before, now = latest
        now.samples = _copied(output), sampled(self.memory.view(self.memory.find(output), output), SAMPLE).clone()  # type: ignore[arg-type]
        if before is None or before.samples is None:
            return
        was, was_exact, low, exact = fetched([*before.samples, *now.samples])
        now.accumulator = None if before.accumulator is None else dataclasses.replace(before.accumulator)
        found = None if value.nonfinite else self._followed(call.operation, now, (was, was_exact), (low, exact), value)
        call.operation.absorbed = None if found is None else dataclasses.replace(found, carried=True)

    def _one(self, call: Call, output: torch.Tensor, value: Value, was: Samples, operand: tuple[torch.Tensor, Cell] | None = None) -> None:
        """Measures one accumulator. `operand` is the tensor that was added to and its cell, if that is not the output itself."""
        cell = self.memory.find(output)
        if cell is None:
            return
        if not value.low:
            cell.accumulator = None
            return
        operation, added = call.operation, additions.on_samples(call, output if operand is None else operand[0], SAMPLE)
        given, again = added or ([], None)
        turns = call.mode.tracker.turns
        held, source = (call.inputs[_place(call, output)], cell) if operand is None else (operand[1].value, operand[1])
        cast = held.maker is not None and held.maker.base == "_to_copy"
        if (known := source.accumulator) is not None:  # a copy may keep it as it is, and bring it back
            known = dataclasses.replace(known, rounds=known.rounds + (cast and turns > known.turns))
        cell.accumulator = known
        if value.nonfinite:
            return
        host = fetched([*was, sampled(output, SAMPLE), sampled(self.memory.view(cell, output), SAMPLE), *given])
        further = None if again is None else lambda held: again(held, host[4:])
        found = self._followed(operation, cell, (host[0], host[1]), (host[2], host[3]), value, further, host[4:])
        if cell.accumulator is not None:
            cell.accumulator.turns = turns
        if found is not None and (operation.absorbed is None or found.times > operation.absorbed.times):
            operation.absorbed = found

    def _operand(self, call: Call, output: torch.Tensor) -> tuple[Samples, tuple[torch.Tensor, Cell]] | None:
        """The tensor that was added to: the largest of the operands that have the shape and dtype of the result. None if the addition absorbs
        nothing, whichever it is."""
        fitting = [
            (tensor, cell)
            for tensor, cell in zip(call.floats, call.cells, strict=True)
            if cell is not None and tensor.shape == output.shape and tensor.dtype == output.dtype
        ]
        if not fitting or not self._absorbs(call, output, fitting):
            return None
        tensor, cell = fitting[0] if len(fitting) == 1 else max(fitting, key=lambda each: norm(sampled(each[0], SAMPLE).float()))
        return (sampled(tensor, SAMPLE), sampled(call.shadows[id(tensor)], SAMPLE)), (tensor, cell)

    def _absorbs(self, call: Call, output: torch.Tensor, fitting: list[tuple[torch.Tensor, Cell]]) -> bool:
        """Whether one of these operands is already an accumulator, or may be one from now on: the addition left enough of its elements unchanged.

        An element of a sum that has changed was added to. So of the elements that should move, those that did are known without a look at what was
        added. In a difference, or with a factor before a term, an element may also change by its own sign or factor.
        """
        held = self.memory.find(output)
        if held is None or any(cell.accumulator is not None for _, cell in fitting):
            return True
        differs = call.plan.base in ops.SUBTRACTIONS or bool(call.op.kwargs)
        now = sampled(output, SAMPLE)
        for tensor, _ in fitting:
            same = torch.eq(now, sampled(tensor, SAMPLE)).cpu().numpy()
            unchanged = numpy.count_nonzero(same)
            if unchanged:
                exact = sampled(self.memory.view(held, output), SAMPLE)
                moved = torch.ne(exact, sampled(call.shadows[id(tensor)], SAMPLE)).cpu().numpy()
                if differs or unchanged >= ABSORBING * numpy.count_nonzero(moved > same):  # moved in both
                    return True
        return False

    def _followed(
        self, operation: Operation, cell: Cell | stored_states.Stored, was: Samples, now: Samples, value: Value,
        again: Callable[[torch.Tensor], torch.Tensor] | None = None, given: Sequence[torch.Tensor] = (),
    ) -> Absorbed | None:  # fmt: skip
        accumulator: Accumulator | None = cell.accumulator
        same = now[0] == was[0]
        if isinstance(cell, stored_states.Stored):
            same &= was[0] != 0  # zero absorbs nothing: its sum with a number is that number
        unchanged = share(same)
        if accumulator is None and not unchanged:
            return None
        moved = now[1] != was[1]
        if operation.base in ops.ADDITIONS and len(given) == 1 and given[0].shape == moved.shape:
            moved &= given[0] != 0  # where the run itself adds nothing there is nothing to absorb
        many = share(moved)
        if accumulator is None and unchanged < ABSORBING * many:
            return None
        stuck = ratio(share(same & moved), many)
        if accumulator is None:
            if stuck < ABSORBING:
                return None
            accumulator = cell.accumulator = Accumulator((was[0].clone(), was[1].clone()), operation, was[0].to(was[1].dtype))
        accumulator.additions += 1
        accumulator.times += stuck >= ABSORBING
        if accumulator.start[0].shape != now[0].shape:
            cell.accumulator = None
            return None
        if (held := accumulator.exact) is not None:
            accumulator.goes(None if again is None else again(held), scales=operation.base in ops.SCALING)
        return _absorbed(accumulator, stuck, norm(now[1] - was[1]), now, value)


def _absorbed(accumulator: Accumulator, stuck: float, latest: float, now: Samples, value: Value) -> Absorbed:
    """The figures since the accumulator's first absorbed addition. `latest` is how far the last one moved the shadow."""
    wide, exact = now[1].dtype, accumulator.exact
    start = accumulator.start[0].to(wide)
    covered = now[0].to(wide) - start
    meant = now[1] - accumulator.start[1] if exact is None else exact - start
    drift = value.drift if exact is None else ratio(norm(covered - meant), norm(exact))
    size = norm(meant)
    steady = 0.0 if exact is None else min(1.0, ratio(size, accumulator.way))  # after a factor alone the way is that of the updates before
    shadow = now[1] - accumulator.start[1]
    return Absorbed(
        stuck, accumulator.times, accumulator.additions, arrived=ratio(float((covered * meant).sum()), size**2),
        intended=max(ratio(size, norm(start)), ratio(size * size, math.sqrt(meant.numel()) * norm(start * meant))),
        lost=ratio(norm(covered - meant), size), drift=drift, first=accumulator.first, steady=steady,
        rounds=accumulator.rounds, followed=ratio(float((covered * shadow).sum()), norm(shadow) ** 2),
        pace=ratio(latest * accumulator.additions, norm(shadow)),
    )  # fmt: skip


def _compensated(call: Call) -> None:
    """Drops `exact`: a compensated sum adds lost remainders again, so its additions amount to more than the program intends."""
    for cell in call.cells:
        if cell is not None and cell.accumulator is not None:
            cell.accumulator.exact = None


def _place(call: Call, tensor: torch.Tensor) -> int:
    return next(place for place, each in enumerate(call.floats) if each is tensor)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A sample of a tensor that is about to be written. The sample of a large tensor is a copy already."""
    few = sampled(tensor, SAMPLE)
    return few.clone() if tensor.numel() <= SAMPLE else few


def _adds_in_place(planned: OpPlan, floats: list[torch.Tensor], written: set[int]) -> bool:
    """Whether an op reads the tensor that it writes. With `out=` it does so only if that tensor is also an operand."""
    if "out" not in planned.written_names:
        return True
    return any(sum(each is tensor for each in floats) > 1 for tensor in floats if id(tensor) in written)


def _floating(outputs: list[torch.Tensor], values: list[Value]) -> list[tuple[torch.Tensor, Value]]:
    """The floating outputs with their values. Other outputs have no value."""
    return list(zip([output for output in outputs if output.is_floating_point()], values, strict=False))
