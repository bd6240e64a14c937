"""What float32 itself differs by between two settings, told from their goldens, beside what is credited to it: noise.REASSOCIATED."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy

from precheck.analysis.noise_floor.drift import ComparedTensor
from precheck.goldens.file import Golden, read
from precheck.goldens.lifecycle import outdated
from precheck.observe.records import Trace
from precheck.rules.golden_stale import rule as staleness


@dataclasses.dataclass(frozen=True, slots=True)
class Movement:
    """Of all tensors between two settings, inputs and updates aside, which are judged otherwise.

    `r`: difference over the floor that REASSOCIATED gives, so that REASSOCIATED times r is the roundoff that explains the
    difference: median, 99th percentile and greatest. `margin`: the greatest r over what is allowed, which fails a check from 1.
    `rewritten`: of so many goldens, those that `--golden-refresh=changed` would write anew.
    """

    tensors: int
    same: int  # bit for bit
    median: float
    p99: float
    r: float
    at: str
    margin: float
    margin_at: str
    stale: int  # updates that a check would call changed
    goldens: int = 0
    rewritten: int = 0


def movement(one: Path, other: Path) -> Movement:
    """Between the goldens of two folders that have the same names."""
    names = [path.name for path in sorted(one.glob("*.safetensors")) if (other / path.name).exists()]
    rows: list[tuple[str, ComparedTensor]] = []
    rewritten = 0
    for name in names:
        before, now = read(one / name), read(other / name)
        rows += [(name.removesuffix(".safetensors"), row) for row in compared(before, now)]
        rewritten += outdated(before, now)
    return dataclasses.replace(summed(rows), goldens=len(names), rewritten=rewritten)


def summed(pairs: Sequence[tuple[str, ComparedTensor]]) -> Movement:
    """Of rows with the names of their goldens."""
    rows = [(name, row) for name, row in pairs if row.record.kind != "update"]
    ratios = numpy.array([row.r for _, row in rows])
    furthest, nearest = max(rows, key=lambda pair: pair[1].r), max(rows, key=lambda pair: pair[1].r / pair[1].allowed)
    return Movement(
        len(rows), sum(not row.drift and row.record.norm == row.reference.norm for _, row in rows),
        float(numpy.median(ratios)), float(numpy.quantile(ratios, 0.99)), furthest[1].r, _place(*furthest),
        nearest[1].r / nearest[1].allowed, _place(*nearest),
        sum(row.record.kind == "update" and row.failed and row.relative > staleness.OTHER_OPTIMIZER for _, row in pairs),
    )  # fmt: skip


def _place(golden: str, row: ComparedTensor) -> str:
    test, _, model = golden.removeprefix("test_").partition("-")
    tensor = row.record.name if row.record.name == row.record.kind else f"{row.record.kind} of {row.record.name}"
    return f"{tensor}: {model}, {test.replace('_', ' ')}"


def compared(recorded: Golden, now: Golden) -> list[ComparedTensor]:
    """As a check under 32-true compares today's run with the golden."""
    return staleness.compare(trace(recorded), {each.record.key: each.spread for each in recorded.records}, trace(now))


def trace(golden: Golden) -> Trace:
    return Trace(records={each.record.key: each.record for each in golden.records if each.record.kind != "input"})
