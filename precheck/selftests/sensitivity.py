"""Computes how large an error each output may have before a check notices it, and which output has the widest limit.

The limits are those of the rules, as shares of a tensor's norm. A self-test plants faults that are larger than that.
"""

from __future__ import annotations

import dataclasses

from precheck.analysis.labels import label
from precheck.analysis.noise_floor import drift
from precheck.analysis.training.displacements import displacements
from precheck.checking import Checking
from precheck.measurement import Measurement
from precheck.rules.golden_stale.rule import OTHER_OPTIMIZER

LUCKY = 30
"""Tensors of up to this many elements are allowed more than `noise.FAIL`, so that their limits show chance and not the check."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """An output that the check compares. `limit`: the share of its norm up to which drift is no error. None if it is never judged."""

    key: str
    label: str
    numel: int
    rows: bool  # whether it has several rows, which can be shuffled
    limit: float | None


class Sensitivity:
    """The limits of one check. Makes about eight runs under a low precision, two under float32."""

    def __init__(self, checking: Checking) -> None:
        self.precision = checking.precision
        self.looks = self._looks(checking)
        known = {row.record.key: row for row in self.looks[0] if row.record.kind == "output" and row.record.step == 1}
        places = {key: self._place(row) for key, row in known.items()}
        results = [places[key] for key, row in known.items() if row.record.is_result]
        self.result = next((place for place in results if place.numel > 1), results[0] if results else None)
        self.weakest = _weakest(list(places.values()))

    def _looks(self, checking: Checking) -> list[list[drift.ComparedTensor]]:
        if not self.precision.is_low:
            return [checking.stale()[1]]
        seen = checking.seen()
        first = checking.against_golden(seen.trace)
        return [*([first] if first else []), *Measurement(checking.job, self.precision, seen=seen).looks()]

    def _place(self, row: drift.ComparedTensor) -> Place:
        record = row.record
        rows = [each for look in self.looks for each in look if each.record.key == record.key]
        unknown = any(each.undetermined or not each.reference.norm for each in rows)
        limit = None if unknown else max(_allowed(each) for each in rows)
        return Place(record.key, label("output", record.name), record.numel, any(size > 1 for size in record.shape), limit)

    @property
    def updates(self) -> list[drift.ComparedTensor]:
        """The updates of the last step."""
        rows = [row for row in self.looks[-1] if row.record.kind == "update"]
        return [row for row in rows if row.record.step == max(each.record.step for each in rows)]

    @property
    def judged_updates(self) -> list[str]:
        """The parameters whose lost updates would be noticed, the most uncertain one first."""
        if self.precision.is_low:
            return [each.record.name for each in sorted(displacements(self.looks[-1]), key=lambda each: -each.uncertainty)]
        drowned = {row.record.name: float("inf") if row.undetermined else _allowed(row) for row in self.updates if row.reference.norm}
        return sorted((name for name, share in drowned.items() if share < OTHER_OPTIMIZER), key=lambda name: -drowned[name])

    @property
    def gradients(self) -> list[str]:
        """The outputs that receive a gradient, in order."""
        return [row.record.name for row in self.looks[-1] if row.record.kind == "gradient"]


def _allowed(row: drift.ComparedTensor) -> float:
    return row.allowed * row.floor / row.reference.norm


def _weakest(places: list[Place]) -> Place | None:
    """The output with the widest limit, if possible among those that are judged and have enough elements."""
    judged = [place for place in places if place.limit is not None] or places
    broad = [place for place in judged if place.numel > LUCKY] or judged
    return max(broad, key=lambda place: place.limit or 0.0, default=None)
