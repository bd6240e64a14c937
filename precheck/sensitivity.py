"""What a check allows, and where it sees least: from the comparisons that its verdict on the run as it is may rest on.

The rules' own limits, in shares of a tensor's norm, are what says how large a fault must be to have to be noticed.
"""

from __future__ import annotations

import dataclasses

from precheck.analysis import drift
from precheck.analysis.displacements import displacements
from precheck.analysis.labels import label
from precheck.checking import Checking
from precheck.measurement import Measurement
from precheck.rules.golden_stale.rule import UNLIKE

LUCKY = 30
"""Elements up to which a tensor is allowed more than `noise.FAIL`: a place with so few measures its own luck, not the check."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """An output that the check compares. `limit`: share of its norm up to which nothing is called drift; None: it is never judged."""

    key: str
    label: str
    numel: int
    rows: bool  # whether there is more than one, to be shuffled
    limit: float | None


class Sensitivity:
    """Of one check, from about eight runs of its job under a low precision, two under float32."""

    def __init__(self, checking: Checking) -> None:
        self.precision = checking.precision
        self.looks = self._looks(checking)
        known = {row.record.key: row for row in self.looks[0] if row.record.kind == "output" and row.record.step == 1}
        places = {key: self._place(row) for key, row in known.items()}
        results = [places[key] for key, row in known.items() if row.record.is_result]
        self.result = next((place for place in results if place.numel > 1), results[0] if results else None)
        self.weakest = _weakest(list(places.values()))

    def _looks(self, checking: Checking) -> list[list[drift.Comparison]]:
        if not self.precision.is_low:
            return [checking.stale()[1]]
        seen = checking.seen()
        first = checking.against_golden(seen.trace)
        return [*([first] if first else []), *Measurement(checking.job, self.precision, seen=seen).looks()]

    def _place(self, row: drift.Comparison) -> Place:
        record = row.record
        rows = [each for look in self.looks for each in look if each.record.key == record.key]
        unknown = any(each.undetermined or not each.reference.norm for each in rows)
        limit = None if unknown else max(_allowed(each) for each in rows)
        return Place(record.key, label("output", record.name), record.numel, any(size > 1 for size in record.shape), limit)

    @property
    def updates(self) -> list[drift.Comparison]:
        """Of the last step."""
        rows = [row for row in self.looks[-1] if row.record.kind == "update"]
        return [row for row in rows if row.record.step == max(each.record.step for each in rows)]

    @property
    def judged_updates(self) -> list[str]:
        """The parameters of which it is judged whether their steps arrive, the one with most uncertainty first."""
        if self.precision.is_low:
            return [each.record.name for each in sorted(displacements(self.looks[-1]), key=lambda each: -each.uncertainty)]
        drowned = {row.record.name: float("inf") if row.undetermined else _allowed(row) for row in self.updates if row.reference.norm}
        return sorted((name for name, share in drowned.items() if share < UNLIKE), key=lambda name: -drowned[name])

    @property
    def gradients(self) -> list[str]:
        """The outputs that gradients come back to, the first of them first."""
        return [row.record.name for row in self.looks[-1] if row.record.kind == "gradient"]


def _allowed(row: drift.Comparison) -> float:
    """Share of the tensor's norm."""
    return row.allowed * row.floor / row.reference.norm


def _weakest(places: list[Place]) -> Place | None:
    """Where most is allowed; among outputs that are judged, and of enough elements, if there are such."""
    judged = [place for place in places if place.limit is not None] or places
    broad = [place for place in judged if place.numel > LUCKY] or judged
    return max(broad, key=lambda place: place.limit or 0.0, default=None)
