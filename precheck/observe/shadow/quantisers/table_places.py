"""Follows places in a table of numbers, which stand for the numbers that are nearest to them, until they are read from a table.

Where rows have tables of their own, such as their centres, or where there is no scale, each number is compared with all of a table. What is read by
their places must be the nearest numbers, if it is read from the same numbers. Other tables may hold anything, as in an interpolation.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from precheck import ops
from precheck.observe.shadow.probes.partial_writes import region
from precheck.observe.shadow.quantisers import rounding_costs
from precheck.observe.shadow.quantisers.code_copies import cost
from precheck.observe.shadow.quantisers.code_notes import Changed
from precheck.observe.shadow.quantisers.code_rounding import Origin, make_codes
from precheck.observe.shadow.quantisers.scales.scaled_tensors import Scaled
from precheck.observe.shadow.replaying.replay import OpCall

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes

PLACED = ops.PLACES | ops.MOVING | ops.POWERS.keys() | ops.WHOLE_COPIES | {"pow"}
"""Ops after which places in a table are still such places, or those of a neighbour."""
NUMBERS = 1 << 10
"""The largest table of numbers for each row. A code of eight bits has 256."""


def begins(base: str, args: tuple[Any, ...]) -> bool:
    """Whether each number of one operand is compared with all numbers along the last axis of the other, of which there are fewer."""
    if base != "sub" or not all(isinstance(each, torch.Tensor) and each.is_floating_point() and each.dim() for each in args[:2]):
        return False
    data, table = _sides(args)
    return data.shape[-1] == 1 < table.shape[-1] <= NUMBERS and table.numel() < data.numel()


def _sides(args: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """The data and the table."""
    return (args[0], args[1]) if args[0].shape[-1] == 1 else (args[1], args[0])


def after_difference(codes: Codes, op: OpCall, result: torch.Tensor) -> None:
    """After such a difference."""
    if op.base != "sub" or not begins(op.base, op.args):
        return
    data, table = _sides(op.args)
    wide, nearest = data.detach().float().squeeze(-1), result.detach().float().abs().min(-1)
    if result.shape[:-1] == wide.shape and (codes.scaled.get(data) is None or table.numel() > table.shape[-1]):
        ones = torch.ones_like(wide)
        held = table.detach().float().flatten().sort().values, nearest.indices, float(nearest.values.norm() / wide.norm().clamp_min(1e-30))
        codes.origins.put(result, Origin(wide.clone(), [ones], Scaled(region(data), [ones]), wide, held))


def after_op(codes: Codes, op: OpCall, inputs: list[torch.Tensor], result: torch.Tensor) -> None:
    """After an op on places in a table. If it reads the numbers from the table, the result holds codes."""
    place, origin = next((each, found) for each in inputs if (found := codes.origins.get(each)) is not None)
    table = not place.is_floating_point() and result.is_floating_point() and op.base in ops.MOVING
    if table and result.numel() == origin.exact.numel() and origin.table is not None:
        _after_unscaled_lookup(codes, op, origin, result)
    elif table and result.numel() == origin.exact.numel():
        _after_lookup(codes, op, origin, result)
    elif origin.table is not None and op.base in ops.PLACES and not _same(result, origin.table[1]):
        return  # the farthest number, or the nearest of some
    elif not table and (op.base in PLACED or op.base.startswith("clamp") or (op.base in ops.ADDITIONS and len(inputs) == 1)):
        codes.origins.put(result, _moved(codes, op, place, origin, result))


def _moved(codes: Codes, op: OpCall, place: torch.Tensor, origin: Origin, result: torch.Tensor) -> Origin:
    """The numbers whose places have been moved."""
    others = [each for each in op.args if isinstance(each, torch.Tensor) and each is not place and each.is_floating_point()]
    if op.base not in ops.MOVING or place.shape != origin.exact.shape or others or op.plan.written or op.base in ("abs", "neg"):
        return origin

    def moved(numbers: torch.Tensor) -> torch.Tensor:
        return codes.mode.replay.on_others(op, lambda each: numbers.expand(place.shape) if each is place else each)

    return dataclasses.replace(origin, exact=moved(origin.exact), bys=list(map(moved, origin.bys)), before=moved(origin.before))


def _after_unscaled_lookup(codes: Codes, op: OpCall, origin: Origin, result: torch.Tensor) -> None:
    """Numbers without a scale have become those of a table: whether it is the one that they were compared with."""
    assert origin.table is not None
    table, _, rounding = origin.table
    if _same(op.args[0].detach().float().flatten().sort().values, table):
        exact = origin.exact.reshape(result.shape)
        place = codes.described(op.plan.name)
        codes.casts.meant.add(place.blamed)
        codes.casts.note_changed(place, Changed(place.blamed, cost(exact, result)[0], rounding))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool((one == other).all())


def _after_lookup(codes: Codes, op: OpCall, origin: Origin, result: torch.Tensor) -> None:
    """Scaled numbers have become those of a table."""
    bys = [each.expand(origin.exact.shape).reshape(result.shape) for each in origin.bys]
    exact = origin.exact.reshape(result.shape)
    made = make_codes(codes, op, exact, exact, bys, result, origin.scaled)
    table, before = op.args[0].detach().float(), origin.before.reshape(result.shape)
    ends = float(table.amin()), float(table.amax())
    rounding_costs.note_clipping(codes, result, before, before.clamp(*ends), name=op.plan.name)
    table = table.reshape(-1).sort().values
    rounding_costs.note_wasted_bits(codes, made, origin.scaled, exact, result, table)
    off, rounding = cost(exact, result)[0], cost(exact, table[torch.bucketize(exact, (table[1:] + table[:-1]) / 2)])[0]
    codes.casts.note_changed(made, Changed(made.blamed, off, rounding))
