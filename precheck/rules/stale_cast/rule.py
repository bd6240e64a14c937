"""Finds casts of weights that are used although the weights have changed since.

When a cast of a weight is read, the weight is compared with its value at the time of the cast. Copies that are separate on purpose (a teacher, a
snapshot) do not count.
"""

from __future__ import annotations

from collections.abc import Iterator

from precheck.analysis.facts import Part
from precheck.analysis.propagation.provenance import percent, placed
from precheck.observe.shadow.op_notes import Outdated
from precheck.observe.shadow.operations import Operation
from precheck.rules.rule import Candidate, Rule


class StaleCast(Rule):
    """Blames a cast by autocast at the call that reads it, and a cast by the program where it was made."""

    limits = ()  # a copy is that of the weight as it is, or it is not

    def noted(self, operation: Operation, part: Part) -> Iterator[Candidate]:
        """A read of a cast that differs from its weight."""
        if operation.outdated is not None:
            yield _candidate(operation, operation.outdated)


def _candidate(operation: Operation, outdated: Outdated) -> Candidate:
    changed = f"{placed(outdated.written)} has changed {percent(outdated.share)}% of its elements since, by {percent(outdated.off)}% of its norm"
    if outdated.implicit:
        text = f"autocast reuses a cast of {outdated.name} that it made before the weight changed; {changed}"
        return Candidate("stale-cast", operation, text, outdated.share, 0.0, tensor=outdated.name)
    text = f"{placed(operation)} still reads this cast of {outdated.name}, and sends its gradients there; {changed}"
    return Candidate("stale-cast", outdated.made, text, outdated.share, 0.0, tensor=outdated.name)
