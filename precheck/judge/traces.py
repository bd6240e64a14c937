"""The verdict on a run beside its reference: every rule on boundaries, gradients, updates and the loss scale."""

from __future__ import annotations

from collections.abc import Collection

from precheck.findings import Report
from precheck.judge import boundaries, drift, extent, updates
from precheck.judge.losses import losses
from precheck.observe.records import Trace
from precheck.precisions import Precision


def judged(
    seen: Trace,
    reference: Trace,
    rows: list[drift.Comparison],
    precision: Precision,
    *,
    explained: Collection[str] = (),
    unstable: Collection[str] = (),
) -> Report:
    """Every rule that can be told from a run and its reference, on the run `seen`; `explained` and `unstable` as in boundaries.drifted."""
    report = Report(precision=precision.name)
    report.scaler = {"scale": seen.scale, "skipped": seen.skipped, "collapsed": seen.collapsed} if precision.scaler else {}
    report.add(extent.nonfinite(rows, precision) or extent.broke_later(seen, reference, precision))
    report.add(extent.collapsed(seen, reference, precision))
    report.add(extent.flushed(seen, rows, precision, unstable=unstable))
    report.add(boundaries.misshapen(seen, reference, precision))
    report.add(boundaries.undetermined(rows, reference, precision))
    report.add(boundaries.missing_gradients(seen, reference))
    report.add(boundaries.drifted(rows, precision, explained=explained, unstable=unstable))
    moved = updates.displacements(rows)
    report.add(updates.lost(moved, seen.aged))
    report.add(boundaries.leaks(seen, precision))
    report.add(extent.headroom(seen, precision))
    if explained or unstable:
        report.facts["excused"] = sorted({*explained, *unstable})  # keys of records that are beyond their limits for a reason
        report.facts["unstable"] = sorted({*unstable} - {*explained})  # of these, where float32 is no reference; rounding explains the others
    report.boundaries, report.losses = boundaries.table(rows), losses(rows)
    report.updates = [
        {"parameter": each.record.name, "steps": each.record.step, "arrived": each.arrived, "uncertainty": each.uncertainty} for each in moved
    ]
    return report
