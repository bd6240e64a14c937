"""Judges a run beside its reference: runs every rule on boundaries, gradients, updates and loss scale, and fills the tables of the report."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy
import torch

from precheck.analysis.labels import module_of
from precheck.analysis.noise_floor import drift
from precheck.analysis.noise_floor.drift import ComparedTensor
from precheck.analysis.training.displacements import displacements
from precheck.findings import Finding, Loss, Report, Row
from precheck.observe.recording.sketch import inner, sketch
from precheck.observe.records import Record, Trace
from precheck.precisions import Precision
from precheck.rules import classes
from precheck.rules.rule import Compared
from precheck.words import tensor_name


def report_on(
    low: Trace,
    reference: Trace,
    rows: list[drift.ComparedTensor],
    precision: Precision,
    *,
    explained: Collection[str] = (),
    unstable: Collection[str] = (),
    unasked: Collection[str] = (),
) -> Report:
    """Runs every rule that needs only a run and its reference, and returns the report. `explained` and `unstable` are as in `Compared`.

    `unasked`: keys of rows beyond their limits that got no closer look after an error. They are counted and shown, and not judged."""
    report = Report(precision=precision.name)
    report.scaler = {"scale": low.scale, "skipped": low.skipped, "collapsed": low.collapsed} if precision.scaler else {}
    asked = [row for row in rows if row.record.key not in unasked]
    run = Compared(low, reference, asked, precision, explained, unstable, sum(row.failed for row in rows if row.record.key in unasked))
    for rule in classes():
        report.add(rule().beside(run))
    if explained or unstable:
        report.facts["excused"] = sorted({*explained, *unstable})  # keys of records that are beyond their limits, but not by a bug
        report.facts["unstable"] = sorted({*unstable} - {*explained})  # those for which float32 is no reference; rounding explains the others
    report.facts |= unseen(low, reference)
    report.boundaries, report.losses = table(rows), losses(rows)
    moved = displacements(asked, low.aged)
    report.updates = [
        {"parameter": each.record.name, "steps": each.record.step, "arrived": each.arrived, "uncertainty": each.uncertainty, "lost": each.lost}
        for each in moved
    ]
    return report


def unseen(low: Trace, reference: Trace) -> dict[str, Any]:
    """Facts on results that nothing could be said of: those without a finite number in the reference either, and those that hold no tensor."""
    ends = [record for record in reference.records.values() if record.is_result or record.kind == "loss"]
    lost = [tensor_name(each.kind, each.name, each.step) for each in ends if each.numel and each.nonfinite == each.numel]
    found: dict[str, Any] = {"without_numbers": lost} if lost else {}
    alone = not any(record.is_result or record.kind in ("loss", "returned") for record in low.records.values())
    return found | ({"no_results": True} if alone and low.records else {})


def table(rows: Sequence[ComparedTensor]) -> list[Row]:
    """The rows that reports show: all but updates, which are judged by the share of them that arrived."""
    return [_row(row) for row in rows if row.record.kind != "update"]


def _row(comparison: ComparedTensor) -> Row:
    record = comparison.record
    return Row(
        record.name, record.kind, record.step, record.shape, record.dtype, comparison.r, comparison.allowed, comparison.drift,
        comparison.floor, comparison.relative, comparison.excess_nonfinite,
    )  # fmt: skip


def losses(rows: Iterable[ComparedTensor]) -> list[Loss]:
    """The losses in the order of the rows. A record holds the norm. The sign comes from the sketch, which for a scalar is the number times ±1."""
    turn = sketch(torch.ones(1, device="cpu"))
    found = [row for row in rows if row.record.kind == "loss"]
    return [Loss(row.record.step, _number(row.record, turn), _number(row.reference, turn), row.floor) for row in found]


def _number(record: Record, turn: numpy.ndarray) -> float:
    if record.nonfinite:
        return math.nan if record.nan else math.inf * (record.posinf - record.neginf)
    return math.copysign(record.norm, inner(record.sketch, turn))


def located(finding: Finding, rows: Sequence[ComparedTensor], makers: Mapping[str, str]) -> Finding:
    """Returns `finding` with the module whose own code made the drift, if the module that it names received the drift in its input.

    `rows` are those of a run that also recorded what modules pass to each other, in order. `makers` says whose code made each of these tensors.
    """
    first = next((row for row in rows if row.failed or row.excess_nonfinite), None)
    if first is None or first.record.kind != "handed":
        return finding
    maker = makers[first.record.key].split("#")[0]
    owner = f"the code of {maker}" if maker else "the model's own forward"
    return dataclasses.replace(
        finding, module=maker, message=f"{finding.message}; the error begins in {owner}, which passes it to {module_of(first.record.name, 'output')}"
    )
