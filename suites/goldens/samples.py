"""Goldens made by hand, of every kind of record."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy

from precheck.goldens.file import Golden, GoldenRecord
from precheck.observe.records import Record

PROVENANCE: dict[str, str | int | float | bool] = {
    "torch": "2.13.0", "seed": 0, "steps": 1, "tf32": False, "lr": 0.1, "optimizer": "", "loss": True, "weights": "5e", "inputs": "1f",
}  # fmt: skip


def record(name: str = "head", *, scale: float = 1.0, seed: int = 0, **facts: Any) -> Record:
    """A record whose sketch is `scale` times noise drawn with `seed`. Its norm is the sketch's, as it is on average."""
    sketch = numpy.random.default_rng(seed).standard_normal(127) * scale
    greatest = float(numpy.abs(sketch).max())
    norm = greatest * float(numpy.linalg.norm(sketch / greatest)) if greatest else 0.0
    known: dict[str, Any] = {"kind": "output", "step": 1, "shape": (4, 8), "dtype": "float32", "norm": norm, "amax": greatest}
    return Record(name=name, **{"sketch": sketch, **known, **facts})


def golden(*records: Record, floors: dict[str, float] | None = None, **provenance: str | int | float | bool) -> Golden:
    """`records` with the same floors each, and PROVENANCE with changes."""
    held = {"mixed": 0.4, "true": 0.5} if floors is None else floors
    return Golden([GoldenRecord(each, dict(held)) for each in records], {**PROVENANCE, **provenance})


def everything() -> Golden:
    """Each kind of record, and each of what is rare in one."""
    plain = golden(
        record("input['x']", kind="input", seed=1, dtype="int64"),
        record("", seed=2, shape=(), is_result=True, roundings=3, zeros=1),
        record("маска\n☃", seed=3, shape=(0, 3), posinf=1, neginf=12),
        record("layers.0#2", kind="gradient", seed=4, scale=1e-300),
        record("layers.0.weight", kind="parameter-gradient", seed=5, scale=0.0),
        record("loss", kind="loss", seed=6, step=2, scale=1e300),
        record("layers.0.weight", kind="update", seed=7, weight_norm=math.pi),
    )
    few = [{}, {"mixed": math.nan, "true": 0.1}, {"true": 0.25}]
    floors = [*few, *(each.floors for each in plain.records[len(few) :])]
    return Golden([GoldenRecord(each.record, held) for each, held in zip(plain.records, floors, strict=True)], PROVENANCE)


def equal(a: Golden, b: Golden) -> bool:
    """Whether two goldens hold the same, up to what a stored sketch loses."""
    return a.provenance == b.provenance and len(a.records) == len(b.records) and all(map(_same, a.records, b.records))


def _same(a: GoldenRecord, b: GoldenRecord) -> bool:
    return _facts(a.record) == _facts(b.record) and close(a.record.sketch, b.record.sketch) and list(_floors(a)) == list(_floors(b))


def _floors(each: GoldenRecord) -> Iterable[tuple[str, str]]:
    return ((placement, repr(floor)) for placement, floor in sorted(each.floors.items()))  # NaN equals itself as text


def _facts(each: Record) -> dict[str, Any]:
    return {name: getattr(each, name) for name in Record.__slots__ if name != "sketch"}


def close(a: numpy.ndarray, b: numpy.ndarray) -> bool:
    """Within half a float32 ulp of the greatest number, 2^-24 of the power of two above it; float64 itself may be coarser than that."""
    greatest = float(numpy.abs(a).max())
    return bool((numpy.abs(a / 2 - b / 2) <= max(greatest * 2.0**-24, 5e-324)).all()) if greatest else bool((b == 0).all())
