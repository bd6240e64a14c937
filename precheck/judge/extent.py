"""Range: values that left the format at the top (overflow) or at the bottom (underflow), or came close."""

from __future__ import annotations

import math
from collections.abc import Iterable

from precheck import formats
from precheck.findings import Finding, Phase
from precheck.judge.drift import Comparison
from precheck.observe.records import Kind, Record, Trace
from precheck.precisions import Precision

HEADROOM_BITS = 3.0
"""Healthy float16 models keep 11.0 to 14.2 bits between their largest value and 65504; hazards measured 3 to 9.8. Below 3
bits, values eight times as large (another batch, a few more steps) overflow."""

_PHASES: dict[Kind, Phase] = {
    "input": "data", "output": "forward", "loss": "forward", "gradient": "backward", "parameter-gradient": "backward", "update": "optimizer",
}  # fmt: skip


def phase_of(kind: Kind) -> Phase:
    return _PHASES[kind]


def module_of(name: str, kind: Kind) -> str:
    """The module that a record belongs to: a boundary's own name without call and path, a parameter's owner."""
    if kind in ("parameter-gradient", "update"):
        return name.rpartition(".")[0]
    return "" if name in ("output", "loss") or name.startswith("output[") else name.split("[")[0].split("#")[0]


def label(kind: Kind, name: str) -> str:
    """What a record is, in words: "output of layers.0.attn", "gradient of head.weight"."""
    if kind in ("gradient", "parameter-gradient"):
        return f"gradient of {name}"
    if kind == "output":
        return f"output of {name}" if name != "output" else "the model's output"
    return "loss" if kind == "loss" else f"{kind} of {name}"


def nonfinite(rows: Iterable[Comparison], precision: Precision) -> list[Finding]:
    """The first boundary with more NaN or Inf than its reference, in the order of the run."""
    first = next((row for row in rows if row.excess_nonfinite), None)
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
            f"output {closest.name}: magnitudes reach {closest.amax:.4g}, {bits:.1f} bits below float16's 65504",
            module=module_of(closest.name, "output"), tensor=closest.name, measured=bits, limit=HEADROOM_BITS,
        )
    ]  # fmt: skip


def flushed(rows: Iterable[Comparison], precision: Precision, scale: float) -> list[Finding]:
    """Parameter gradients that lost most of their norm to zeros that the reference does not have.

    An error where more than half of the norm went (and the reference itself is certain of it), a warning from a tenth.
    """
    if precision.compute is not formats.FP16:
        return []
    findings = []
    for row in rows:
        zeros = row.record.zeros - row.reference.zeros
        if row.record.kind != "parameter-gradient" or zeros <= 0 or row.reference.norm == 0:
            continue
        rounding = row.floor / row.reference.norm
        step = precision.compute.min_subnormal / scale
        lost = 1 - row.record.norm / row.reference.norm
        quantised = row.reference.norm / math.sqrt(row.reference.numel) < 32 * step  # root mean square within 5 bits of the last step
        if lost > 0.1 and quantised and rounding < max(0.5, step * math.sqrt(row.reference.numel) / row.reference.norm):
            findings.append(_flushed_finding(row, precision, zeros, lost, scale))
    return findings[:1]


def _flushed_finding(row: Comparison, precision: Precision, zeros: int, lost: float, scale: float) -> Finding:
    needed = 2.0 ** math.ceil(math.log2(32 * precision.compute.min_subnormal * math.sqrt(row.reference.numel) / row.reference.norm))
    return Finding(
        "gradient-underflow",
        "error" if lost > 0.5 else "warning",
        f"gradient of {row.record.name}: {zeros} of {row.record.numel} elements became zero under {precision} at loss scale {scale:g}, "
        f"{lost:.0%} of its norm is lost; a loss scale of {max(needed, 2 * scale):g} or more would keep it",
        phase="backward", module=module_of(row.record.name, row.record.kind), tensor=row.record.name, measured=lost, limit=0.5,
    )  # fmt: skip


def collapsed(low: Trace, precision: Precision) -> list[Finding]:
    """GradScaler halved its scale down to 1 and gradients were still not finite."""
    if not low.collapsed:
        return []
    return [
        Finding("scaler-collapse", "error", f"gradients are not finite at any loss scale from 65536 down to 1 under {precision}", phase="scaler",
                measured=1.0, limit=1.0)
    ]  # fmt: skip
