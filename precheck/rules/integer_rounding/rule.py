"""Finds whole numbers in a format that cannot hold them.

If a tensor's elements are whole numbers in the reference, the rule counts those that the format changes. Measures that happen to be whole do not
count. They are recognised by their operands and readers.
"""

from __future__ import annotations

from precheck import ops
from precheck.analysis.facts import Fact, Readers
from precheck.analysis.propagation.provenance import placed
from precheck.analysis.unrepresentable.exceptions import Counted, Misindexed
from precheck.analysis.unrepresentable.whole_numbers import AMOUNTS, EXPLAINED, FRACTIONAL, SEVERAL, UNRESOLVED, MadeInteger, RoundedWholes
from precheck.observe.shadow.op_notes import Recut, Renumbered
from precheck.observe.shadow.places.source import shortened
from precheck.rules.advice import left_out, uncast, widened
from precheck.rules.rule import Candidate, Rule


class IntegerRounding(Rule):
    limits = (SEVERAL, FRACTIONAL, AMOUNTS, EXPLAINED, UNRESOLVED)

    def advice(self, candidate: Candidate, readers: Readers, wide: str) -> str:
        operation, made = candidate.operation, next((value.dtype for value in candidate.operation.outputs), "")
        if operation.policy:
            return f"{widened(operation, wide)}; or pass these whole numbers in torch.long, which FSDP does not cast"
        if operation.implicit:
            return uncast(operation, wide)
        if operation.base in ops.CASTS or not operation.inputs:
            what = left_out(operation) if operation.base in ops.CASTS else f"do not create them in {made}"
            return f"{what}: keep whole numbers in torch.long or {wide} until they have been multiplied by a step or looked up"
        return f"count in torch.long or {wide}: {widened(operation, wide)}"

    def words(self, fact: Fact) -> str:
        if isinstance(fact, RoundedWholes):
            value = fact.value
            return (f"whole numbers up to {value.peak:.0f} in {value.dtype}, which holds every whole number only up to {1 / value.roundoff:.0f}: "
                    f"at least {value.wholes_moved} changed")  # fmt: skip
        if isinstance(fact, Counted):
            return (f"{fact.measured:.0f} becomes {fact.became:.0f} in {fact.read.inputs[0].dtype}, which holds every whole number only up to "
                    f"{fact.limit:.0f}; Python reads it at {shortened(fact.read.blamed)}, and the code raised {fact.raised}, whose message has both "
                    f"numbers")  # fmt: skip
        if isinstance(fact, Misindexed):
            return (f"{fact.was:.0f} becomes {fact.became:.0f}, beyond all integers of the reference, since the number was rounded to {fact.dtype} "
                    f"before {placed(fact.converted)} makes an integer of it; then an index is out of range ({fact.raised})")  # fmt: skip
        if not isinstance(fact, MadeInteger):
            return super().words(fact)
        changes = fact.changes
        if isinstance(changes, Renumbered):
            several = f"; {changes.moved} different numbers change" if changes.moved > 1 else ""
            return (f"{changes.was:.0f} becomes {changes.became:.0f} in {fact.dtype}, which holds every whole number only up to {changes.reach:.0f}, "
                    f"and {placed(fact.converted)} makes an integer of it{several}")  # fmt: skip
        if isinstance(changes, Recut):
            return (f"{changes.count} of {changes.total} integers that {placed(fact.converted)} makes differ from those in the reference, since the "
                    f"numbers were rounded to {fact.dtype} before the cast: {changes.was:.0f} becomes {changes.became:.0f}")  # fmt: skip
        return (f"{changes.was:.6g} in the reference is {changes.became:g} in {fact.dtype}, beyond the range of {changes.dtype}, which ends at "
                f"{changes.end}: {placed(fact.converted)} stores {changes.stored}")  # fmt: skip
