"""Goldens as text, and what tells two of them apart. Imports no torch, so that git may call it for a diff."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy

from precheck.goldens.file import Golden, GoldenRecord
from precheck.observe.records import Record

STILL = 2.0**-20
"""Distance, as a share of a tensor's norm, up to which it has not moved: what float32 may differ by between machines
(precheck.judge.noise.REASSOCIATED)."""
_COLUMNS = ("kind", "tensor", "step", "shape", "dtype", "norm", "amax", "zeros", "nonfinite", "floor mixed", "floor true")


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One difference between two goldens; `distance` is relative to the first one's norm, infinite for what only one has."""

    what: str
    distance: float


def show(golden: Golden, path: str) -> str:
    """Provenance, then one line a tensor in the order of the run. Floors are shares of the norm for each unit roundoff."""
    lines = [f"golden {path}", *(f"{name}: {value}" for name, value in sorted(golden.provenance.items())), ""]
    table = [_COLUMNS, *(_line(each) for each in golden.records)]
    widths = [max(len(row[column]) for row in table) for column in range(len(_COLUMNS))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join(lines) + "\n"


def _line(each: GoldenRecord) -> tuple[str, ...]:
    record = each.record
    floors = [f"{each.floors[place] / (record.norm or 1.0):.4g}" if place in each.floors else "-" for place in ("mixed", "true")]
    shape = "x".join(map(str, record.shape)) or "scalar"
    return (
        record.kind, record.name, str(record.step), shape, record.dtype, f"{record.norm:.6g}", f"{record.amax:.6g}", str(record.zeros),
        str(record.nonfinite), *floors,
    )  # fmt: skip


def difference(before: Golden, now: Golden) -> list[Change]:
    """What moved, appeared or went, worst first; differences in provenance come last. Empty where nothing that matters changed."""
    old = {each.record.key: each.record for each in before.records}
    new = {each.record.key: each.record for each in now.records}
    changes = [Change(f"{_place(record)}: gone", float("inf")) for key, record in old.items() if key not in new]
    changes += [Change(f"{_place(record)}: new", float("inf")) for key, record in new.items() if key not in old]
    changes += [change for key, record in new.items() if key in old for change in _moved(old[key], record)]
    changes.sort(key=lambda change: -change.distance)
    settings = sorted(before.provenance.keys() | now.provenance.keys())
    return changes + [
        Change(f"{name}: {before.provenance.get(name, '-')} -> {now.provenance.get(name, '-')}", 0.0)
        for name in settings
        if name in _MEANINGFUL and before.provenance.get(name) != now.provenance.get(name)
    ]


_MEANINGFUL = ("seed", "steps", "loss", "optimizer")  # digests, versions and devices may differ while every value stays


def _moved(before: Record, now: Record) -> list[Change]:
    if before.shape != now.shape:
        return [Change(f"{_place(now)}: shape {before.shape} -> {now.shape}", float("inf"))]
    if before.nonfinite != now.nonfinite:
        return [Change(f"{_place(now)}: {before.nonfinite} -> {now.nonfinite} elements are not finite", float("inf"))]
    distance = float(numpy.linalg.norm(now.sketch - before.sketch))
    if distance <= STILL * max(before.norm, now.norm):
        return []
    share = distance / before.norm if before.norm else float("inf")
    return [Change(f"{_place(now)}: moved by {share:.3g} of its norm ({before.norm:.6g} -> {now.norm:.6g})", share)]


def _place(record: Record) -> str:
    return f"{record.kind} {record.name}, step {record.step}" if record.step > 1 else f"{record.kind} {record.name}"


def describe(changes: Sequence[Change]) -> str:
    """One line a change."""
    return "\n".join(change.what for change in changes)
