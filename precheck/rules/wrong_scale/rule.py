"""Finds codes and scales that do not give the data back, even without rounding.

The data and the dequantised data are both computed without rounding. Their quotient should be 1 in every element. If the operands of a product were
rotated by a Hadamard matrix, the product should be that of the original operands, up to one factor. Factors that were divided out of one tensor and
multiplied into another should cancel in every product of the two. Three more faults need no quotient: codes that are no longer what was rounded,
numbers made of codes and their scales that are not the data, and integers that have wrapped round.
"""

from __future__ import annotations

import math

from precheck.analysis.chance import DEVIATIONS
from precheck.analysis.facts import Fact, Readers
from precheck.analysis.propagation.provenance import percent
from precheck.analysis.quantisation.quantised_layers import BIAS, FACTOR, FOUND, KERNEL, OFFSET, OTHER_WEIGHT, WRONG_BLOCKS, Fit
from precheck.analysis.quantisation.quantisers import CLIPPED, LEAST_CLIPPED, MISREAD, SCALES_LEFT, remark_of
from precheck.findings import Finding
from precheck.observe.shadow.places.source import shortened
from precheck.observe.shadow.quantisers.code_notes import Changed, Dead, Derived, Misread, MixedCodes, Uncancelled, Unfolded, Unrotated, WrappedCodes
from precheck.rules.rule import Candidate, Rule


class WrongScale(Rule):
    limits = (SCALES_LEFT, CLIPPED, MISREAD, LEAST_CLIPPED, OTHER_WEIGHT, FOUND, FACTOR, OFFSET, DEVIATIONS, WRONG_BLOCKS, BIAS, KERNEL)

    def words(self, fact: Fact) -> str:
        seen = remark_of(fact)
        if isinstance(seen, Uncancelled):
            return _uncancelled(seen)
        if isinstance(seen, Unrotated):
            return _unrotated(seen)
        if isinstance(seen, Unfolded):
            return _unfolded(seen)
        if isinstance(seen, Derived):
            return (f"the derivative of the forward product gives another gradient of the {seen.operand}: what is returned here is off by "
                    f"{percent(seen.off)}%, and rounding explains {percent(seen.rounding)}%")  # fmt: skip
        if isinstance(seen, Dead):
            return f"{percent(seen.share)}% of the numbers are NaN, since they and their scale are 0, and 0 / 0 is NaN"
        if isinstance(seen, Changed):
            return (f"the codes of {shortened(seen.rounded)} are no longer what was rounded there: they are off by {percent(seen.off)}%, "
                    f"and rounding made an error of {percent(seen.rounding)}%")  # fmt: skip
        if isinstance(seen, Misread):
            return (f"what is decoded here from the codes of {shortened(seen.rounded)} is not the data that was rounded there, in any order: "
                    f"it is off by {percent(seen.off)}%, and rounding explains {percent(seen.rounding)}%. Look at the packing, "
                    "the zero points and the scales")  # fmt: skip
        if isinstance(seen, WrappedCodes):
            return (f"{percent(seen.share)}% of the codes of {shortened(seen.rounded)} have wrapped round in {seen.dtype}: "
                    "compute in a wider integer, or in float32")  # fmt: skip
        if isinstance(seen, MixedCodes):
            return (f"{percent(seen.share)}% of these integers have bits of two different codes of {shortened(seen.rounded)}, "
                    "and the others are codes: look at the shifts and masks that take them out")  # fmt: skip
        return super().words(fact)

    def advice(self, candidate: Candidate, readers: Readers, wide: str) -> str:
        seen = remark_of(candidate.fact)
        return _CURES.get(type(seen), "") or super().advice(candidate, readers, wide)


_CURES = {
    Uncancelled: "dequantise by the scale that the tensor was quantised with, once and along the same axis",
    Unrotated: "rotate both operands of a product by one matrix, or rotate back by its transpose",
    Unfolded: "where a tensor is divided by a factor for each channel, multiply what it is multiplied with by the same factors, and nothing else",
    Derived: "derive the gradient of the forward product again: its other operand, transposed, with its scale",
    Dead: "give the scale a smallest value that its format holds, as by scale.clamp(min=torch.finfo(scale.dtype).tiny)",
    Changed: "keep the codes as they were rounded, or take them out as they were packed",
    Misread: "take codes out as they were packed, and dequantise by the scale and the zero point that they were made with",
    MixedCodes: "take codes out as they were packed: with the same shifts, masks and order",
    WrappedCodes: "compute with codes in torch.int32, or in float32",
}


def _uncancelled(seen: Uncancelled) -> str:
    """The message on scales that do not cancel."""
    line = shortened(seen.rounded)
    told = {
        "inverse": f"the scale of the codes of {line} is used the wrong way round, to multiply instead of to divide or the reverse: "
                   f"the whole result is {seen.middle:.4g} times what it should be, which is that scale squared",
        "twice": f"the scale of the codes of {line} is multiplied by once more than it was divided by: the whole result is {seen.middle:.4g} times "
                 "what it should be, which is that scale",
        "forgotten": f"one of the two scales of the codes of {line} is missing here: the whole result is {seen.middle:.4g} times what it should be, "
                     "which is one over that scale",
        "foreign": f"codes of {line} are multiplied by another tensor's scale: the whole result is {seen.middle:.4g} times what it should be, "
                   "which is one scale over the other",
        "end": f"the scale of the codes of {line} was made with the largest number of a format, which is forgotten here or is not taken out: "
               f"the whole result is {seen.middle:.4g} times what it should be",
        "unscaled": f"the numbers of {line} were cast without a scale, and one that is made of them is taken out here: "
                    f"the whole result is {seen.middle:.4g} times what it should be",
        "left": f"a scale is missing here, that of the codes of {line} or of the tensor that they are multiplied with: what reads the result gets "
                f"numbers {seen.middle:.4g} times as large as they should be",
    }  # fmt: skip
    if seen.fault:
        return told[seen.fault]
    if math.isinf(seen.off):
        return f"codes of {line} times these scales make Inf or NaN without any rounding, where the numbers that were quantised make none"
    if seen.whole:
        return (f"codes of {line} times this scale are {seen.middle:.4g} times the numbers that were quantised, all over the tensor: they were "
                "quantised with another scale, unless this factor is intended")  # fmt: skip
    if seen.joined:
        return (f"a term was added to a product of the codes of {line} before it was multiplied by this scale, so the scale multiplies the term "
                f"too: without any rounding the result is off by {percent(seen.off)}%")  # fmt: skip
    return (f"these scales do not cancel those of {line}: without any rounding the result is off by {percent(seen.off)}%, by factors that differ "
            f"{seen.spread:.3g}-fold among its elements")  # fmt: skip


def _unfolded(seen: Unfolded) -> str:
    """The message on factors that were divided out of one tensor, and do not cancel."""
    if seen.summed:
        return (
            "the channels of one term of this sum were divided by factors, which a weight multiplies by again, and those of the other term were not: "
            "multiply the first term by the factors, or divide the other one too"
        )
    if not seen.rounded:
        return (
            "the channels of this input were divided by factors. The weight of another layer multiplies by them again, and the weight of this layer "
            "does not: multiply it too"
        )
    why = f"the tensor that was divided by them then went through {seen.through}, so they do not" if seen.through else "no tensor was divided by them"
    return (
        f"an operand of this product of codes of {shortened(seen.rounded)} was multiplied by a factor for each channel. The factors come from other "
        f"data, so they must cancel, but {why}"
    )


def _unrotated(seen: Unrotated) -> str:
    """The message on rotations that do not cancel."""
    line = shortened(seen.rotated)
    if not seen.other:
        return f"what was rotated at {line} is rotated once more by the same Hadamard matrix; multiplied by its transpose it would be rotated back"
    return (f"the operands of this product were rotated by Hadamard matrices at {line} and {shortened(seen.other)}, which do not cancel: without any "
            f"rounding the result is off by {percent(seen.off)}%")  # fmt: skip


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
