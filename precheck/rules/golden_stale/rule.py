"""Checks whether a golden still belongs to the test that is compared with it.

It compares today's inputs, settings and float32 reference with the recorded ones. Differences that float32 may have between machines and library
builds (2^-20, see `noise.REASSOCIATED`) do not count. Neither do differences as large as the error of float32 itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch

from precheck.analysis.labels import label, phase_of
from precheck.analysis.limit import Limit
from precheck.analysis.noise_floor import drift, noise
from precheck.analysis.noise_floor.drift import ComparedTensor
from precheck.findings import Finding
from precheck.formats import BF16
from precheck.observe.recording.sketch import distance
from precheck.observe.records import Record, Trace
from precheck.precisions import PRECISIONS
from precheck.rules.rule import Rule
from precheck.words import counted, of_norm, one_line

OTHER_OPTIMIZER = Limit(0.5, "share of an update")
"""If a larger share of an update differs, the optimizer has changed. Adam's first steps are the signs of gradients, and near zero a sign is chance in
float32. A learning rate that differs by a few percent is found by its recorded value."""


class GoldenStale(Rule):
    """`checking` calls it first, since nothing can be measured against a golden of another test."""

    limits = (OTHER_OPTIMIZER, noise.FAIL, noise.REASSOCIATED)


def inputs(recorded: Mapping[str, Record], now: Mapping[str, Record], *, weights_differ: bool = False) -> list[Finding]:
    """A finding on the first input that differs. Both mappings hold records of kind `input`, by name.

    `weights_differ`: the weights are not those recorded either. Most tests make their model first, and a changed model draws other random numbers. If
    only the model was changed, its author needs to know that this alone changes the inputs too.
    """
    for name, record in now.items():
        before = recorded.get(name)
        if before is None:
            names = ", ".join(map(one_line, recorded)) or "none"
            return [_stale(f"{name} was not among the inputs it was recorded with ({names})", phase="data", tensor=name)]
        if before.shape != record.shape:
            return [_stale(f"{name} has shape {record.shape}, and {before.shape} was recorded", phase="data", tensor=name)]
        moved = distance(before.sketch, record.sketch)
        if moved > noise.REASSOCIATED * before.norm:
            share = f"by {of_norm(moved / before.norm)}" if before.norm else "which were all zero"
            why = "; the weights differ too: a model that draws more or fewer random numbers changes what is drawn after it"
            also = why if weights_differ else ""
            return [_stale(f"{name} differs from the recorded values, {share}{also}", phase="data", tensor=name)]
    gone = [name for name in recorded if name not in now]
    return [_stale(f"{one_line(gone[0])} was among the inputs it was recorded with, and is not now", phase="data", tensor=gone[0])] if gone else []


def settings(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[Finding]:
    """A finding on settings that differ. A check may ask for less than was recorded (no optimizer, fewer steps), but not for more or other things."""
    if now["loss"] and not recorded["loss"]:
        return [_stale("it was recorded without a loss, and this check has one")]
    if now["optimizer"] and recorded["optimizer"] != now["optimizer"]:
        return [_stale(f"it was recorded with {one_line(recorded['optimizer']) or 'no optimizer'}, and this check steps with {now['optimizer']}")]
    if now["optimizer"] and now["steps"] > recorded["steps"]:
        return [_stale(f"it holds {counted(recorded['steps'], 'step')}, and this check runs {now['steps']}")]
    if now["seed"] != recorded["seed"]:
        return [_stale(f"it was recorded with seed={recorded['seed']}, and this check has seed={now['seed']}")]
    return []


def compare(recorded: Trace, spreads: Mapping[str, float], now: Trace, *, errors: Mapping[str, float] | None = None) -> list[ComparedTensor]:
    """Compares today's float32 reference with the recorded one. `spreads`: those of noise of one unit roundoff, by record key.

    Updates are allowed the noise of bfloat16: if a gradient is zero up to rounding (a key's bias), the sign of Adam's step is random.
    `errors`: the distances of today's float32 from float64, if measured. Two machines may each be as far, in opposite directions.
    """
    known = errors or {}
    widened = {
        key: math.hypot(spread * (BF16.unit_roundoff if key.startswith("update:") else noise.REASSOCIATED), math.sqrt(2) * known.get(key, 0.0))
        for key, spread in spreads.items()
    }
    return drift.compare(now, recorded, drift.Spreads(widened, 2), PRECISIONS["32-true"])


def out_of_date(rows: Sequence[ComparedTensor], recorded: Trace, now: Trace, *, weights_differ: bool) -> list[Finding]:
    """A finding on the first record that differs from the recorded one. If the golden lacks tensors, it belongs to another model."""
    shapes = {key: record.shape for key, record in recorded.records.items()}
    strange = [record for key, record in now.records.items() if shapes.get(key) != record.shape and not _again(record, now)]
    if strange:
        new = strange[0]
        message = (
            f"it belongs to another model: {len(strange)} of {len(now.records)} tensors are not in it, first "
            f"{_the(new)} of shape {new.shape}"
        )
        return [_stale(message, phase=phase_of(new.kind), tensor=new.name, measured=float(len(strange)), limit=0.0)]
    changed = [row for row in rows if _changed(row)]
    if not changed:
        return []
    first = changed[0]
    cause = "the weights are not those recorded" if weights_differ else "weights and inputs are those recorded, so the code or a library changed"
    return [
        _stale(
            f"in float32 {_the(first.record)} moved by {of_norm(first.relative)} since ({len(changed)} of "
            f"{len(rows)} tensors moved); {cause}",
            phase=phase_of(first.record.kind), tensor=first.record.name, measured=first.r, limit=first.allowed,
        )
    ]  # fmt: skip


def under(findings: Sequence[Finding], recorded: Mapping[str, Any]) -> list[Finding]:
    """Returns the findings. If another torch version recorded the golden, each says so, since torch's initialisation or kernels may have changed."""
    before, now = (str(each).partition("+")[0] for each in (recorded.get("torch", ""), torch.__version__))
    if before == now:
        return list(findings)
    words = f" (it was recorded under torch {one_line(before)}, and this is torch {now})"
    return [dataclasses.replace(finding, message=finding.message + words) for finding in findings]


def _again(record: Record, now: Trace) -> bool:
    """Whether a module only returns what another one returned, or this is the gradient of such an output. A module that is kept in float32 has an
    output of its own, where the golden may have only that of its last part. This is no other model, since precheck proposes such remedies."""
    made = now.records.get(f"output:{record.name}@{record.step}")
    if made is None or not made.norm or record.kind not in ("output", "gradient"):
        return False
    others = (each for each in now.records.values() if each.kind == "output" and each is not made and each.shape == made.shape)
    return any(numpy.array_equal(each.sketch, made.sketch) for each in others)


def _the(record: Record) -> str:
    """The label of a record with an article: "the gradient of head", "the model's output". "what turned() returns" needs none."""
    words = label(record.kind, record.name)
    return words if record.kind == "returned" or words.startswith("the ") else f"the {words}"


def _changed(row: ComparedTensor) -> bool:
    if row.record.nonfinite != row.reference.nonfinite:
        return True
    if row.record.kind == "update":
        return row.failed and row.relative > OTHER_OPTIMIZER
    return row.r > row.allowed


def _stale(what: str, **place: Any) -> Finding:
    return Finding("golden-stale", "error", f"the golden is out of date: {what}", **place)
