"""How far a candidate's results are from the exact ones, and from those of another trial."""

from __future__ import annotations

import math

import torch

from precheck.kernels.judged import Judged


def errors(judged: Judged, name: str) -> torch.Tensor | None:
    """Of each element, 0 where the exact result is not finite; None where there is nothing to compare."""
    if judged.outcome is None or judged.reference is None:
        return None
    got, right = judged.outcome.values.get(name), judged.reference.exact.values.get(name)
    if got is None or right is None or got.shape != right.shape or not right.is_floating_point():
        return None
    return (got.double() - right).where(right.isfinite(), 0.0)


def error(judged: Judged, name: str) -> float:
    """Relative, of the norm."""
    each = errors(judged, name)
    if each is None or judged.reference is None:
        return math.nan
    right = judged.reference.exact.values[name]
    norm = float(right.where(right.isfinite(), 0.0).norm()) if right is not None else 0.0
    far = float(each.norm())
    return math.inf if not math.isfinite(far) else far / norm if norm else far


def differ(first: Judged, second: Judged) -> bool:
    """Whether any result of the two trials is another."""
    if first.outcome is None or second.outcome is None:
        return False
    pairs = ((value, second.outcome.values.get(name)) for name, value in first.outcome.values.items())
    return any(a is not None and b is not None and a.shape == b.shape and not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


def explained(first: Judged, second: Judged) -> bool:
    """Whether the two are apart by far less than either is off: then it is not chance that makes the error."""
    assert first.outcome is not None
    assert second.outcome is not None
    for name, value in first.outcome.values.items():
        other, off = second.outcome.values.get(name), errors(first, name)
        if value is not None and other is not None and off is not None and float((value.double() - other.double()).norm()) > 0.05 * float(off.norm()):
            return False
    return True
