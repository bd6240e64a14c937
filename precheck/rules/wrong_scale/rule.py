"""Finds codes and scales that do not give the data back, even without rounding.

The data and the dequantised data are both computed without rounding. Their quotient should be 1 in every element. If the operands of a product were
rotated by a Hadamard matrix, the product should be that of the original operands, up to one factor. Factors that were divided out of one tensor and
multiplied into another should cancel in every product of the two. Three more faults need no quotient: codes that are no longer what was rounded,
numbers made of codes and their scales that are not the data, and integers that have wrapped round.
"""

from __future__ import annotations

import math
from typing import ClassVar

from precheck.analysis.facts import Fact
from precheck.analysis.limit import Limit
from precheck.analysis.provenance import percent
from precheck.analysis.quantised_results import KERNEL
from precheck.analysis.quantised_weights import BIAS, CHANCE, FACTOR, FOUND, OFFSET, SHARE, UNLIKE
from precheck.analysis.quantisers import CANCELLED, CLIPPED, MISREAD, SEEN, Miscoded
from precheck.observe.shadow.quantisers.code_notes import Changed, Dead, Derived, Misread, Mixed, Uncancelled, Unfolded, Unrotated, Wrapped
from precheck.observe.shadow.source import shortened
from precheck.rules.rule import Rule
from precheck.rules.wrong_scale.about import ABOUT


class WrongScale(Rule):
    about = ABOUT
    limits: ClassVar[tuple[Limit, ...]] = (CANCELLED, CLIPPED, MISREAD, SEEN, UNLIKE, FOUND, FACTOR, OFFSET, CHANCE, SHARE, BIAS, KERNEL)

    def words(self, fact: Fact) -> str:
        seen = fact.remark if isinstance(fact, Miscoded) else None
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
            return (f"{percent(seen.share)}% of the numbers are NaN, since they and their scale are 0, and 0 / 0 is NaN: "
                    "give the scale a smallest value")  # fmt: skip
        if isinstance(seen, Changed):
            return (f"the codes of {shortened(seen.rounded)} are no longer what was rounded there: they are off by {percent(seen.off)}%, "
                    f"and rounding made an error of {percent(seen.rounding)}%")  # fmt: skip
        if isinstance(seen, Misread):
            return (f"what is decoded here from the codes of {shortened(seen.rounded)} is not the data that was rounded there, in any order: "
                    f"it is off by {percent(seen.off)}%, and rounding explains {percent(seen.rounding)}%. Look at the packing, "
                    "the zero points and the scales")  # fmt: skip
        if isinstance(seen, Wrapped):
            return (f"{percent(seen.share)}% of the codes of {shortened(seen.rounded)} have wrapped round in {seen.dtype}: "
                    "compute in a wider integer, or in float32")  # fmt: skip
        if isinstance(fact, Miscoded) and isinstance(fact.remark, Mixed):
            return (f"{percent(fact.remark.share)}% of these integers have bits of two different codes of {shortened(fact.remark.rounded)}, "
                    "and the others are codes: look at the shifts and masks that take them out")  # fmt: skip
        return super().words(fact)


def _uncancelled(seen: Uncancelled) -> str:
    if seen.fault == "inverse":
        return (
            f"the scale of the codes of {shortened(seen.rounded)} is used the wrong way round, to multiply instead of to divide or the reverse: "
            f"the whole result is {seen.middle:.4g} times what it should be, which is that scale squared"
        )
    if seen.fault == "twice":
        return (
            f"the scale of the codes of {shortened(seen.rounded)} is multiplied by once more than it was divided by: the whole result is "
            f"{seen.middle:.4g} times what it should be, which is that scale"
        )
    if seen.fault == "forgotten":
        return (
            f"one of the two scales of the codes of {shortened(seen.rounded)} is missing here: the whole result is {seen.middle:.4g} times "
            "what it should be, which is one over that scale"
        )
    if seen.fault == "foreign":
        return (
            f"codes of {shortened(seen.rounded)} are multiplied by another tensor's scale: the whole result is {seen.middle:.4g} times "
            "what it should be, which is one scale over the other"
        )
    if seen.fault == "end":
        return (
            f"the scale of the codes of {shortened(seen.rounded)} was made with the largest number of a format, which is forgotten here or is not "
            f"taken out: the whole result is {seen.middle:.4g} times what it should be"
        )
    if seen.fault == "unscaled":
        return (
            f"the numbers of {shortened(seen.rounded)} were cast without a scale, and one that is made of them is taken out here: "
            f"the whole result is {seen.middle:.4g} times what it should be"
        )
    if seen.fault == "left":
        return (
            f"a scale is missing here, that of the codes of {shortened(seen.rounded)} or of the tensor that they are multiplied with: "
            f"what reads the result gets numbers {seen.middle:.4g} times as large as they should be"
        )
    if math.isinf(seen.off):
        return (f"codes of {shortened(seen.rounded)} times these scales make Inf or NaN without any rounding, where the numbers that were "
                "quantised make none")  # fmt: skip
    if seen.whole:
        return (f"codes of {shortened(seen.rounded)} times this scale are {seen.middle:.4g} times the numbers that were quantised, "
                "all over the tensor: "
                "they were quantised with another scale, unless this factor is intended")  # fmt: skip
    if seen.joined:
        return (
            f"a term was added to a product of the codes of {shortened(seen.rounded)} before it was multiplied by this scale, so the scale "
            f"multiplies the term too: without any rounding the result is off by {percent(seen.off)}%"
        )
    return (
        f"these scales do not cancel those of {shortened(seen.rounded)}: without any rounding the result is off by "
        f"{percent(seen.off)}%, by factors that differ {seen.spread:.3g}-fold among its elements"
    )


def _unfolded(seen: Unfolded) -> str:
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


def _unrotated(remark: Unrotated) -> str:
    if not remark.other:
        return (f"what was rotated at {shortened(remark.rotated)} is rotated once more by the same Hadamard matrix; "
                "multiplied by its transpose it would be rotated back")  # fmt: skip
    return (
        f"the operands of this product were rotated by Hadamard matrices at {shortened(remark.rotated)} and {shortened(remark.other)}, which "
        f"do not cancel: without any rounding the result is off by {percent(remark.off)}%"
    )
