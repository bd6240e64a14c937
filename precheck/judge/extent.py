"""Range: values that left the format at the top (overflow) or at the bottom (underflow), or came close."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from precheck import formats
from precheck.findings import Finding, Phase, Severity
from precheck.judge.drift import Comparison
from precheck.observe.records import Kind, Record, Trace
from precheck.precisions import Precision
from precheck.words import one_line

HEADROOM_BITS = 3.0
"""Healthy float16 models keep 11.0 to 14.2 bits between their largest value and 65504; hazards measured 3 to 9.8. Below 3
bits, values eight times as large (another batch, a few more steps) overflow."""

_PHASES: dict[Kind, Phase] = {
    "input": "data", "handed": "forward", "returned": "forward", "output": "forward", "loss": "forward", "gradient": "backward",
    "parameter-gradient": "backward", "update": "optimizer",
}  # fmt: skip


def phase_of(kind: Kind) -> Phase:
    return _PHASES[kind]


def module_of(name: str, kind: Kind) -> str:
    """The module that a record belongs to: a boundary's own name without call and path, a parameter's owner."""
    if kind in ("parameter-gradient", "update"):
        return name.rpartition(".")[0]
    return "" if kind == "returned" or name in ("output", "output[]", "loss") else name.split("[")[0].split("#")[0]


def label(kind: Kind, name: str) -> str:
    """What a record is, in words: "output of layers.0.attn", "gradient of head.weight", "the model's output[logits]"."""
    name = one_line(name)
    whole = "the model's output" if name in ("output", "output[]") else f"the model's output{name}" if name.startswith("[") else ""
    if kind in ("gradient", "parameter-gradient"):
        return f"gradient of {(kind == 'gradient' and whole) or name}"
    if kind == "output":
        return whole or f"output of {name}"
    if kind == "returned":
        return f"what {name} returns"
    return "loss" if kind == "loss" else f"{kind} of {name}"


def nonfinite(rows: Iterable[Comparison], precision: Precision) -> list[Finding]:
    """The first boundary with more NaN or Inf than its reference, in the order of the run."""
    first = next((row for row in rows if row.excess_nonfinite and row.record.kind != "returned"), None)  # what reads a mask decides what -Inf does
    return [_nonfinite_finding(first.record, first.reference, first.excess_nonfinite, precision)] if first else []


def broke_later(low: Trace, reference: Trace, precision: Precision) -> list[Finding]:
    """The first non-finite boundary of a later step, which was recorded because it went wrong. The reference kept no
    boundaries of that step, but its loss says whether it was well."""
    for record in low.records.values():
        if record.step > 1 and record.nonfinite and record.kind in ("output", "gradient"):
            loss = reference.records.get(f"loss:loss@{record.step}")
            first_step = reference.records.get(record.key.replace(f"@{record.step}", "@1"))
            if loss is not None and not loss.nonfinite and first_step is not None and not first_step.nonfinite:
                return [_nonfinite_finding(record, first_step, record.nonfinite, precision)]
    return []


def _nonfinite_finding(record: Record, reference: Record, excess: int, precision: Precision) -> Finding:
    infinite = record.posinf + record.neginf > reference.posinf + reference.neginf
    top = formats.of_dtype(record.dtype).max if record.dtype in ("float16", "bfloat16") else precision.compute.max
    # NaN without Inf at a boundary is still overflow where the reference needs more range than the format has.
    rule = "overflow" if infinite or reference.amax > top / 16 or precision.compute.max < 1e6 else "nan"
    what = f"{excess} of {record.numel} elements are {'Inf' if infinite else 'NaN'} in {record.dtype}"
    return Finding(
        rule=rule,
        severity="error",
        message=f"{label(record.kind, record.name)}: {what} under {precision} in step {record.step}, where the reference is finite "
        f"with magnitudes up to {reference.amax:.4g} ({precision.compute.name} holds up to {precision.compute.max:.4g})",
        phase=phase_of(record.kind),
        module=module_of(record.name, record.kind),
        step=record.step,
        tensor=record.name,
        measured=float(excess),
        limit=0.0,
    )


def headroom(low: Trace, precision: Precision) -> list[Finding]:
    """A warning for the forward tensor closest to float16's maximum, if fewer than HEADROOM_BITS bits are left."""
    if precision.compute is not formats.FP16:
        return []
    outputs = [r for r in low.records.values() if r.kind == "output" and r.dtype == "float16" and r.amax > 0]
    closest = max(outputs, key=lambda record: record.amax, default=None)
    if closest is None:
        return []
    bits = math.log2(formats.FP16.max / closest.amax)
    if bits >= HEADROOM_BITS:
        return []
    return [
        Finding(
            "headroom", "warning",
            f"{label('output', closest.name)}: magnitudes reach {closest.amax:.4g}, {bits:.1f} bits below float16's 65504",
            module=module_of(closest.name, "output"), tensor=closest.name, measured=bits, limit=HEADROOM_BITS,
        )
    ]  # fmt: skip


def flushed(low: Trace, rows: Sequence[Comparison], precision: Precision, *, unstable: Collection[str] = ()) -> list[Finding]:
    """The first parameter gradient that lost its norm to zeros that the reference does not have.

    An error if it is `starved`; otherwise, from a tenth of the norm, a note. What float32 itself gets wrong is left out.
    """
    if precision.compute is not formats.FP16:
        return []
    grave = [row.record.key for row in starved(low, rows, precision)]
    found = [
        _flushed(row, precision, low.scale, "error" if row.record.key in grave else "note")
        for row in rows
        if _lost(row) > 0.1 and row.record.key not in unstable and _quantised(row, precision, low.scale)
    ]
    return sorted(found, key=lambda finding: finding.severity != "error")[:1]


def starved(low: Trace, rows: Sequence[Comparison], precision: Precision) -> list[Comparison]:
    """Parameter gradients of which more than half became zero, with nothing to bring it back.

    Not GradScaler, which doubles its scale for as long as gradients stay finite; and the loss is more than what rounding takes
    from the whole gradient anyway.
    """
    if any(row.record.is_result and row.record.norm == 0 < row.reference.norm for row in rows):
        return []  # the forward vanished, which no loss scale mends
    gradients = [row for row in rows if row.record.kind == "parameter-gradient"]
    whole = math.sqrt(sum(row.reference.norm**2 for row in gradients))
    return [
        row
        for row in gradients
        if _lost(row) > 0.5
        and _quantised(row, precision, low.scale)
        and _needed(row) > _reachable(low, precision)
        and _lost(row) * row.reference.norm > precision.roundoff * whole
    ]


def _lost(row: Comparison) -> float:
    """Share of a parameter gradient's norm that is gone."""
    return 1 - row.record.norm / row.reference.norm if row.record.kind == "parameter-gradient" and row.reference.norm else 0.0


def _quantised(row: Comparison, precision: Precision, scale: float) -> bool:
    """Zeros that the reference does not have, in a gradient whose root mean square is within 5 bits of float16's last step, and
    which noise does not drown."""
    if precision.compute is not formats.FP16 or row.record.zeros <= row.reference.zeros:
        return False
    step = formats.FP16.min_subnormal / scale
    root = math.sqrt(row.reference.numel)
    rounding = row.floor / row.reference.norm
    return row.reference.norm / root < 32 * step and rounding < max(0.5, step * root / row.reference.norm)


def _needed(row: Comparison) -> float:
    """The loss scale, a power of two, that lifts the gradient's root mean square 5 bits above float16's last step."""
    return 2.0 ** math.ceil(math.log2(32 * formats.FP16.min_subnormal * math.sqrt(row.reference.numel) / row.reference.norm))


def _reachable(low: Trace, precision: Precision) -> float:
    """The loss scale that GradScaler grows to: the largest power of two under which the run's gradients stay finite."""
    largest = max((r.amax for r in low.records.values() if r.kind in ("gradient", "parameter-gradient")), default=0.0)
    return 2.0 ** math.floor(math.log2(formats.FP16.max / largest)) if precision.scaler and largest else 1.0


def _flushed(row: Comparison, precision: Precision, scale: float, severity: Severity) -> Finding:
    lost = _lost(row)
    zeros = row.record.zeros - row.reference.zeros
    return Finding(
        "gradient-underflow", severity,
        f"gradient of {row.record.name}: {zeros} of {row.record.numel} elements became zero under {precision} at loss scale {scale:g}, "
        f"{lost:.0%} of its norm is lost; a loss scale of {max(_needed(row), 2 * scale):g} or more would keep it",
        phase="backward", module=module_of(row.record.name, row.record.kind), tensor=row.record.name, measured=lost, limit=0.5,
    )  # fmt: skip


def collapsed(low: Trace, reference: Trace, precision: Precision) -> list[Finding]:
    """GradScaler halved its scale down to 1 and gradients were still not finite, while float32's are."""
    if not low.collapsed or any(record.nonfinite for record in reference.records.values() if record.kind in ("loss", "parameter-gradient")):
        return []
    return [
        Finding("scaler-collapse", "error", f"gradients are not finite at any loss scale from 65536 down to 1 under {precision}", phase="scaler",
                measured=1.0, limit=1.0)
    ]  # fmt: skip
