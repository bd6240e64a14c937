"""Shows goldens as text, and lists the differences of two. Imports no torch, since git may call it for each diff."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy

from precheck.goldens.file import PLACEMENTS, Golden, GoldenRecord
from precheck.observe.records import Record
from precheck.words import one_line, tensor_name

STILL = 2.0**-20
"""A tensor has not moved if its distance is at most this share of its norm, by which float32 may differ between machines
(precheck.analysis.noise_floor.noise.REASSOCIATED)."""
_COLUMNS = {
    "kind": 18, "tensor": 40, "step": 4, "shape": 14, "dtype": 8, "norm": 12, "amax": 12, "zeros": 8, "nonfinite": 9, "floor mixed": 11,
    "floor true": 10,
}  # fmt: skip
"""Fixed widths of columns. So a longer cell changes only its own row in a diff."""
MEANINGFUL = ("seed", "steps", "loss", "optimizer")  # digests, versions and devices may differ without a change of values


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One difference between two goldens. `distance` is relative to the norm in the first one, and infinite for tensors that only one has."""

    what: str
    distance: float


def show(golden: Golden, path: str) -> str:
    """The golden as text: provenance, then a line for each tensor in the order of the run. Floors are shares of the norm per unit roundoff."""
    lines = [f"golden {path}", *(f"{name}: {value}" for name, value in sorted(golden.provenance.items())), ""]
    table = [tuple(_COLUMNS), *(_row(each) for each in golden.records)]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, _COLUMNS.values(), strict=True)).rstrip() for row in table]
    return "\n".join(map(one_line, lines)) + "\n"


def _row(each: GoldenRecord) -> tuple[str, ...]:
    record = each.record
    floors = [f"{each.floors[place] / (record.norm or 1.0):.4g}" if place in each.floors else "-" for place in PLACEMENTS]
    shape = "x".join(map(str, record.shape)) or "scalar"
    return (
        record.kind, _name(record), str(record.step), shape, record.dtype, f"{record.norm:.6g}", f"{record.amax:.6g}", str(record.zeros),
        str(record.nonfinite), *floors,
    )  # fmt: skip


def difference(before: Golden, now: Golden) -> list[Change]:
    """Tensors that moved, are new or are gone, worst first, then changed settings of the test. Empty if nothing that matters changed."""
    old = {each.record.key: each.record for each in before.records}
    new = {each.record.key: each.record for each in now.records}
    changes = [Change(f"{_place(record)}: gone", math.inf) for key, record in old.items() if key not in new]
    changes += [Change(f"{_place(record)}: new", math.inf) for key, record in new.items() if key not in old]
    changes += [change for key, record in new.items() if key in old for change in _moved(old[key], record)]
    changes.sort(key=lambda change: -change.distance)
    return changes + [change for name, change in _provenance(before, now) if name in MEANINGFUL]


def circumstances(before: Golden, now: Golden) -> list[Change]:
    """Differences of the provenance that change no verdict: versions, device, digests."""
    return [change for name, change in _provenance(before, now) if name not in MEANINGFUL]


def _provenance(before: Golden, now: Golden) -> list[tuple[str, Change]]:
    names = sorted(before.provenance.keys() | now.provenance.keys())
    values = [(name, before.provenance.get(name, "-"), now.provenance.get(name, "-")) for name in names]
    return [(name, Change(f"{name}: {old} -> {new}", 0.0)) for name, old, new in values if old != new]


def _moved(before: Record, now: Record) -> list[Change]:
    for what, old, new in (
        ("shape", before.shape, now.shape),
        ("dtype", before.dtype, now.dtype),
        ("folded as a sample", before.sampled, now.sampled),
        ("elements NaN, +Inf, -Inf", _nonfinite(before), _nonfinite(now)),
    ):
        if old != new:
            return [Change(f"{_place(now)}: {what} {old} -> {new}", math.inf)]
    greater = max(before.norm, now.norm)
    if not greater:
        return []
    distance = float(numpy.linalg.norm(now.sketch / greater - before.sketch / greater))  # divided first, since squares may leave the range of float64
    if distance <= STILL:
        return []
    share = distance * (greater / before.norm) if before.norm else math.inf
    return [Change(f"{_place(now)}: moved by {share:.3g} of its norm ({before.norm:.6g} -> {now.norm:.6g})", share)]


def _nonfinite(record: Record) -> tuple[int, int, int]:
    return record.nan, record.posinf, record.neginf


def _place(record: Record) -> str:
    """The tensor as reports name it: "output of lin in call 2"."""
    return one_line(tensor_name(record.kind, record.name, record.step))


def _name(record: Record) -> str:
    return " ".join(record.name.split()) or "(model)"


def describe(changes: Sequence[Change]) -> str:
    """The changes as text, one line for each."""
    return "\n".join(one_line(change.what) for change in changes)
