"""Writes the findings on layers of a quantised model that do not fit the original layers."""

from __future__ import annotations

from precheck.analysis.quantised_results import KERNEL
from precheck.analysis.quantised_weights import BIAS, Fit
from precheck.findings import Finding

WHAT = {"scale": "its scales are wrong", "zero point": "its zero points are wrong", "order": "its codes are in another order",
        "rotation": "its columns are rotated by an orthogonal matrix, such as a Hadamard matrix, and its input is not"}  # fmt: skip


def misquantised(name: str, fit: Fit, *, bias: float | None = None) -> Finding:
    """The finding on a layer whose dequantised weight or bias differs from the original's."""
    if bias is not None:
        text = f"{name}: the bias that it adds is off by {100 * bias:.3g}% of the original's, which is not quantised"
        return Finding("wrong-scale", "error", text, phase="forward", module=name, tensor=f"{name}.bias", measured=bias, limit=float(BIAS))
    assert fit.misfit is not None
    text = (f"{name}: {WHAT[fit.misfit.what]}: {fit.misfit.detail}; its dequantised weight is off by {100 * fit.error:.3g}% of the original, "
            f"{fit.decibels:.0f} dB")  # fmt: skip
    return Finding(
        "wrong-scale", "error", text, phase="forward", module=name, tensor=f"{name}.weight", measured=fit.misfit.measured, limit=fit.misfit.limit
    )


def misproduced(name: str, off: float, explained: float) -> Finding:
    """The finding on a layer whose output differs from that of its own dequantised weight."""
    text = (f"{name}: its result is off by {100 * off:.3g}% of what its own dequantised weight makes of the same inputs in float32, where rounding "
            f"its inputs and its result explains {100 * explained:.2g}%: the kernel, or the scales of its inputs, are wrong")  # fmt: skip
    return Finding("wrong-scale", "error", text, phase="forward", module=name, tensor=name, measured=off / explained, limit=float(KERNEL))
