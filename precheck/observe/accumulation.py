"""Additions that leave bits unchanged although the shadow moves: sums, moving averages, counters, merged weights.

An accumulator is whatever is added to, in place or by rebinding a name. Its displacement is followed on a sample, from the
first addition that absorbed at least half of what it was given.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from precheck.observe.memory import Cell, Memory
from precheck.observe.operations import Absorbed, Operation, Value
from precheck.observe.statistics import norm, ratio, sampled, share

ADDING = frozenset({"add", "sub", "rsub", "mul", "div", "lerp", "addcmul", "addcdiv", "index_add", "scatter_add", "native_batch_norm"})
SAMPLE = 1024
ABSORBING = 0.5
"""Share of the moved elements that kept their bits, from which an addition counts as absorbed."""

Samples = tuple[torch.Tensor, torch.Tensor]


@dataclasses.dataclass(slots=True)
class Accumulator:
    """What an accumulator held when it first absorbed something, here and in the reference, and what it was given since."""

    start: Samples
    first: Operation
    additions: int = 0
    times: int = 0


class Accumulation:
    """Follows the accumulators of a run."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def before(self, planned: Any, floats: list[torch.Tensor], cells: list[Any], written: set[int]) -> dict[int, Samples]:
        """Samples of what an op is about to write over, by the tensor's id."""
        base = planned.packet.removeprefix("_foreach_").rstrip("_")
        if not written:
            return {}
        if base not in ADDING or not _adds_in_place(planned, floats, written):
            for tensor, cell in zip(floats, cells, strict=True):
                if id(tensor) in written and cell is not None:
                    cell.accumulator = None
            return {}
        kept = {}
        for tensor, cell in zip(floats, cells, strict=True):
            if id(tensor) in written and cell is not None and cell.value.low and not planned.packet.startswith("_foreach"):
                kept[id(tensor)] = (sampled(tensor, SAMPLE).clone(), sampled(self.memory.view(cell, tensor), SAMPLE).clone())
        return kept

    def after(self, call: Any, outputs: list[torch.Tensor], values: list[Value]) -> Absorbed | None:
        """What an op's accumulator absorbed, if it has one: what it wrote into, or the operand that its result replaces."""
        if call.operation.base not in ADDING or (call.written and not call.before):
            return None
        if call.before:
            found = [
                self._one(call, tensor, value, call.before[id(tensor)]) for tensor, value in _floating(outputs, values) if id(tensor) in call.before
            ]
            return max((each for each in found if each is not None), key=lambda each: each.times, default=None)
        if not values[0].low or values[0].nonfinite:
            return None
        operand = self._operand(call, outputs[0])
        if operand is None:
            return None
        was, accumulator = operand
        cell = self.memory.find(outputs[0])
        if cell is not None:
            cell.accumulator = accumulator
        return self._one(call, outputs[0], values[0], was)

    def _one(self, call: Any, output: torch.Tensor, value: Value, was: Samples) -> Absorbed | None:
        cell = self.memory.find(output)
        if cell is None or not value.low or value.nonfinite:
            return None
        now = sampled(output, SAMPLE), sampled(self.memory.view(cell, output), SAMPLE)
        return self._followed(call.operation, cell, was, now, value, _given(call, output))

    def _operand(self, call: Any, output: torch.Tensor) -> tuple[Samples, Accumulator | None] | None:
        """What was added to: the operand of the result's own shape and dtype that is largest."""
        best: tuple[float, torch.Tensor, Cell] | None = None
        for tensor, cell in zip(call.floats, call.cells, strict=True):
            if cell is not None and tensor.shape == output.shape and tensor.dtype == output.dtype:
                size = norm(sampled(tensor, SAMPLE).float())
                if best is None or size > best[0]:
                    best = (size, tensor, cell)
        if best is None:
            return None
        _, tensor, cell = best
        shadow = call.shadows[id(tensor)]
        accumulator: Accumulator | None = cell.accumulator
        return (sampled(tensor, SAMPLE), sampled(shadow, SAMPLE)), dataclasses.replace(accumulator) if accumulator is not None else None

    def _followed(self, operation: Operation, cell: Cell, was: Samples, now: Samples, value: Value, given: torch.Tensor | None) -> Absorbed | None:
        moved = now[1] != was[1]
        if given is not None:
            moved &= given  # where the run itself adds nothing there is nothing to absorb
        stuck = ratio(share((now[0] == was[0]) & moved), share(moved))
        accumulator: Accumulator | None = cell.accumulator
        if accumulator is None:
            if stuck < ABSORBING:
                return None
            accumulator = cell.accumulator = Accumulator((was[0].clone(), was[1].clone()), operation)
        accumulator.additions += 1
        accumulator.times += stuck >= ABSORBING
        if accumulator.start[0].shape != now[0].shape:
            cell.accumulator = None
            return None
        covered = now[0].to(now[1].dtype) - accumulator.start[0].to(now[1].dtype)
        meant = now[1] - accumulator.start[1]
        size = norm(meant)
        return Absorbed(
            stuck, accumulator.times, accumulator.additions,
            arrived=ratio(float((covered * meant).sum()), size**2), intended=ratio(size, norm(accumulator.start[0].float())),
            lost=ratio(norm(covered - meant), size), drift=value.drift, first=accumulator.first,
        )  # fmt: skip


def _adds_in_place(planned: Any, floats: list[torch.Tensor], written: set[int]) -> bool:
    """Whether an op reads what it writes: with out= only if that is an operand as well."""
    if "out" not in planned.written_names:
        return True
    return any(sum(each is tensor for each in floats) > 1 for tensor in floats if id(tensor) in written)


def _floating(outputs: list[torch.Tensor], values: list[Value]) -> list[tuple[torch.Tensor, Value]]:
    """Outputs with their values, which only floating ones have."""
    return list(zip([output for output in outputs if output.is_floating_point()], values, strict=False))


def _given(call: Any, output: torch.Tensor) -> torch.Tensor | None:
    """Where the run's own addend is not zero; None where the op has no such operand."""
    if call.operation.base not in ("add", "sub", "rsub"):
        return None
    others = [tensor for tensor in call.floats if tensor is not output]
    if len(others) != (1 if call.before else 2) or others[-1].shape != output.shape:
        return None
    return sampled(others[-1], SAMPLE) != 0
