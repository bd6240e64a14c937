"""The verdict over a run's boundaries: which rows are findings, how grave, and what each says."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from precheck.findings import Finding, Row
from precheck.judge.drift import Comparison
from precheck.judge.extent import label, module_of, phase_of
from precheck.observe.records import Trace
from precheck.precisions import Precision

UNSTABLE = 0.25
"""float32's own distance from float64, as a share of the drift, above which float32 is no yardstick for that tensor."""

PLAIN = 2.0
"""Times the limit beyond which drift is an error even where later layers heal it. Thousands of rows that absorb the same small
term alike keep an error that independent noise averages out: 1.3 times the limit in YOLOS' attention over 4197 tokens."""


def drifted(
    rows: Sequence[Comparison],
    precision: Precision,
    *,
    explained: Collection[str] = (),
    unstable: Collection[str] = (),
) -> list[Finding]:
    """The first failed row of the run as an error, with the count of others; doubtful ones as one warning, excused ones as a note.

    `explained` are keys that rounding inside modules explains after all, `unstable` those that float32 itself gets wrong.
    """
    finite = [row for row in rows if not row.excess_nonfinite]
    failed = [row for row in finite if row.failed and row.record.kind != "update"]
    guilty = [row for row in failed if row.record.key not in explained and row.record.key not in unstable]
    excused = [row for row in failed if row.record.key in explained]
    wavering = [row for row in failed if row.record.key in unstable and row.record.key not in explained]
    wondering = (row for row in finite if row.doubtful and row.record.kind != "update" and row.record.key not in explained)
    doubtful = sorted(wondering, key=lambda row: -row.r)
    if not precision.is_low:  # a float32 run that float64 does not confirm is ill-conditioned, not imprecise
        # Later steps are left out: where a gradient is zero but for rounding, Adam's step is a coin's, and so is what follows.
        wavering, guilty, excused, doubtful = [row for row in failed if row.record.step == 1], [], [], []
    findings = []
    if guilty:
        findings.append(_drift(guilty[0], precision, "error" if _harmful(guilty) else "warning", others=len(guilty) - 1))
    elif doubtful:
        findings.append(_drift(doubtful[0], precision, "warning", others=len(doubtful) - 1))
    elif excused:
        findings.append(_drift(excused[0], precision, "note", others=len(excused) - 1))
    if wavering:
        findings.append(_unstable(wavering[0], precision))
    return findings


def _harmful(guilty: Sequence[Comparison]) -> bool:
    """Whether drift reaches what the user gets (a result, the loss, a parameter's gradient), or is plain on its own."""
    reached = any(row.record.is_result or row.record.kind in ("loss", "parameter-gradient") for row in guilty)
    return reached or any(row.r > PLAIN * row.allowed for row in guilty)


def _drift(row: Comparison, precision: Precision, severity: str, *, others: int) -> Finding:
    more = f"; {others} more tensor(s) too" if others > 0 else ""
    limit = f"({row.allowed:.3g} allowed)" if row.failed else f"(near the {row.allowed:.3g} allowed)"
    return Finding(
        "accumulated-drift",
        severity,  # type: ignore[arg-type]
        f"{label(row.record.kind, row.record.name)}: off by {row.r:.3g} noise floors under {precision} {limit}, "
        f"{row.relative:.2%} of its norm where rounding explains {_share(row):.2%}{more}",
        phase=phase_of(row.record.kind), module=module_of(row.record.name, row.record.kind), step=row.record.step,
        tensor=row.record.name, measured=row.r, limit=row.allowed,
    )  # fmt: skip


def _unstable(row: Comparison, precision: Precision) -> Finding:
    return Finding(
        "unstable-reference", "warning",
        f"{label(row.record.kind, row.record.name)}: off by {row.r:.3g} noise floors under {precision}, but float32 and float64 disagree "
        "there about as much",
        phase=phase_of(row.record.kind), module=module_of(row.record.name, row.record.kind), step=row.record.step,
        tensor=row.record.name, measured=row.r, limit=row.allowed,
    )  # fmt: skip


def _share(row: Comparison) -> float:
    return row.floor / row.reference.norm if row.reference.norm else 0.0


def mismatched(rows: Sequence[Comparison], precision: Precision, *, flips: int) -> list[Finding]:
    """A note on a run that is off its golden, yet within its floor along its own decisions and from its own rounded buffers."""
    off = [row for row in rows if row.failed and row.record.kind != "update"]
    if not off:
        return []
    first = off[0]
    return [
        Finding(
            "golden-mismatch", "note",
            f"{label(first.record.kind, first.record.name)}: off its golden by {first.r:.3g} noise floors under {precision} "
            f"({first.allowed:.3g} allowed; {len(off)} of {len(rows)} tensors are); {flips} decision(s) that fell otherwise than in float32, "
            "and buffers rounded with the model, explain it",
            phase=phase_of(first.record.kind), module=module_of(first.record.name, first.record.kind), step=first.record.step,
            tensor=first.record.name, measured=first.r, limit=first.allowed,
        )
    ]  # fmt: skip


def located(finding: Finding, rows: Sequence[Comparison], makers: Mapping[str, str]) -> Finding:
    """`finding` with the module whose own code made the drift, if the module it names was handed it.

    `rows` are those of a run that also recorded what modules hand to one another, in order; `makers` whose code made that.
    """
    first = next((row for row in rows if row.failed or row.excess_nonfinite), None)
    if first is None or first.record.kind != "handed":
        return finding
    maker = makers[first.record.key].split("#")[0]
    whose = f"the code of {maker}" if maker else "the model's own forward"
    return dataclasses.replace(
        finding, module=maker, message=f"{finding.message}; {whose} made it, and hands it to {module_of(first.record.name, 'output')}"
    )


def misshapen(low: Trace, reference: Trace, precision: Precision) -> list[Finding]:
    """A result whose shape is not the reference's."""
    for path, key in low.results.items():
        other = reference.results.get(path)
        if other is not None and low.records[key].shape != reference.records[other].shape:
            here, there = low.records[key], reference.records[other]
            message = f"the model's output{path} has shape {here.shape} under {precision}, and {there.shape} in float32"
            return [Finding("accumulated-drift", "error", message, module=module_of(here.name, here.kind), tensor=here.name)]
    return []


def undetermined(rows: Sequence[Comparison], reference: Trace, precision: Precision) -> list[Finding]:
    """What nothing can be said of: a loss or gradient that is not finite in float32, a result that one rounding changes by half."""
    for record in reference.records.values():
        if record.kind in ("loss", "parameter-gradient") and record.nonfinite:
            what = f"the {label(record.kind, record.name)} is {'NaN' if record.nan else 'Inf'} in float32 too, in step {record.step}"
            return [Finding("nan", "warning", f"{what}: nothing can be told from it", step=record.step, tensor=record.name)]
    results = [row for row in rows if (row.record.is_result or row.record.kind == "loss") and not row.excess_nonfinite]
    vague = [row for row in results if row.undetermined and row.reference.norm > 0]
    if not vague or not precision.is_low:
        return []
    first = vague[0]
    message = (
        f"{label(first.record.kind, first.record.name)}: roundings under {precision} change it by {_share(first):.0%} of its norm, so nothing can be "
        "told from it; if the model is not chaotic, it gives something else every time it is called"
    )
    return [Finding("unstable-reference", "warning", message, step=first.record.step, tensor=first.record.name, measured=_share(first), limit=0.5)]


def missing_gradients(low: Trace, reference: Trace) -> list[Finding]:
    """Parameters whose gradient the reference has and the run has not."""
    names = [r.name for key, r in reference.records.items() if r.kind == "parameter-gradient" and key not in low.records and r.norm > 0]
    if not names:
        return []
    return [
        Finding("missing-gradient", "error", f"{names[0]}: no gradient, where the reference has one ({len(names)} parameter(s) in all)",
                phase="backward", module=module_of(names[0], "parameter-gradient"), tensor=names[0], measured=float(len(names)), limit=0.0)
    ]  # fmt: skip


def leaks(low: Trace, precision: Precision) -> list[Finding]:
    """Under a float32 or float64 precision: the first output that the model stores in a low format all the same."""
    if precision.is_low or precision.autocasts:
        return []
    low_outputs = [record for record in low.records.values() if record.kind == "output" and record.dtype in ("bfloat16", "float16")]
    if not low_outputs:
        return []
    first = low_outputs[0]
    return [
        Finding("dtype-leak", "warning", f"output of {first.name} is stored in {first.dtype} under {precision} ({len(low_outputs)} output(s) in all)",
                module=module_of(first.name, "output"), tensor=first.name, measured=float(len(low_outputs)), limit=0.0)
    ]  # fmt: skip


def table(rows: Sequence[Comparison]) -> list[Row]:
    """What reports show of the run: all but updates, which are judged by how much of them arrived."""
    return [_row(row) for row in rows if row.record.kind != "update"]


def _row(comparison: Comparison) -> Row:
    record = comparison.record
    return Row(
        record.name, record.kind, record.step, record.shape, record.dtype, comparison.r, comparison.allowed, comparison.drift,
        comparison.floor, comparison.relative, comparison.excess_nonfinite,
    )  # fmt: skip
