"""Known failures: compares a failed check with the failures that are on file, and computes the new content of the file.

A known failure may get better; the file then stores the better numbers. If it gets worse, the check fails. Imports neither torch nor numpy, since
under xdist the controller updates the file from what its workers measured.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from precheck.words import digits

NEVER = frozenset({"golden-stale"})
"""Rules that cannot be known failures. A check against a golden of something else has measured nothing."""
_MANY = 3
"""Up to this many modules of one pattern (layers.*.norm) are written by their own names."""
_COUNTS: Mapping[str, float] = MappingProxyType({"decision-flip": 1.5, "missing-gradient": 1.0})
"""Rules whose `measured` is a count, with the factor by which the count may grow by chance. Flips are partly chance, and their limit is three times
what rounding explains. A gradient is either present or not. For other rules, `beyond` says how bad the failure is."""
_FEWER: Mapping[str, float] = MappingProxyType({**_COUNTS, "accumulated-drift": 1.5})
"""Rules whose failure is worse the larger `measured` is, with the factor by which it must fall before the lower number is written."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """An error of a check. `place` is its phase and module; `measured` is as in `Finding`."""

    rule: str
    place: str
    measured: float | None = None

    def __str__(self) -> str:
        return f"{self.rule} at {self.place}"


@dataclasses.dataclass(frozen=True, slots=True)
class Reach:
    """How far a place is beyond its limit: its error is `times` the limit, and chance may change that by a factor of `noise`.

    `clear`: it is beyond the limit by more than chance.
    """

    times: float
    noise: float
    clear: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Observed:
    """The result of a check. `beyond` also holds places that are close to their limits. `excused` holds places that a closer look found healthy,
    each with how many times its limit its error was before. Another noise run may not excuse them, so they are recorded and never judged.
    """

    faults: tuple[Fault, ...] = ()
    beyond: Mapping[str, Reach] = dataclasses.field(default_factory=dict)
    excused: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Observed:
        """Rebuilds it from the dict of `dataclasses.asdict`, read back from JSON."""
        beyond = {place: Reach(**reach) for place, reach in plain["beyond"].items()}
        return cls(tuple(Fault(**fault) for fault in plain["faults"]), beyond, plain["excused"])


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """The places of one pattern that are beyond their limits: how many there are, and how many times its limit the worst is."""

    times: float
    modules: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """A known fault. The first one of each check holds `beyond`, the places beyond their limits by pattern, where `*` stands for a number."""

    rule: str
    place: str
    measured: float | None = None
    until: datetime.date | None = None  # the last day on which it is excused
    reason: str = ""
    beyond: Mapping[str, Family] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.rule} at {self.place}" + (f", until {self.until}" if self.until else "") + (f": {self.reason}" if self.reason else "")


_DRIFT = "accumulated-drift"


def worse(known: Sequence[Known], seen: Observed, today: datetime.date) -> list[str]:
    """Sentences on what is worse in `seen` than in `known`. Empty if nothing is."""
    table = _table(known)
    new = [f"{fault} is new; known {_named(known)}" for fault in seen.faults if _owner(fault, known, table) is None]
    return [*expired(known, seen, today), *new, *_larger_counts(known, seen), *_further_beyond(table, seen)]


def expired(known: Sequence[Known], seen: Observed, today: datetime.date) -> list[str]:
    """Sentences on known faults that are still present, and whose date `until` has passed."""
    over = [each for each in present(known, seen) if each.until is not None and each.until < today]
    return [f"{each.rule} at {each.place} was known until {each.until}, which has passed; mend it, or give it another `until`" for each in over]


def present(known: Sequence[Known], seen: Observed) -> list[Known]:
    table = _table(known)
    return [each for each in known if any(_owner(fault, known, table) is each for fault in seen.faults)]


def tightened(known: Sequence[Known], seen: Observed) -> list[Known]:
    """Returns `known` without the faults that were mended, and with lower numbers where they got better. Differences that chance explains change
    nothing."""
    table = _table(known)
    kept = []
    for each in known:
        fault = next((fault for fault in seen.faults if _owner(fault, known, table) is each), None)
        if fault is not None:
            kept.append(_lowered(each, fault))
        elif each.place in seen.beyond:
            kept.append(each)
    if not kept:
        return []
    shrunk = {pattern: _shrunk(pattern, old, seen) for pattern, old in table.items()}
    return _with_table(kept, {pattern: family for pattern, family in shrunk.items() if family is not None})


def recorded(known: Sequence[Known], seen: Observed) -> list[Known]:
    """Returns all faults of `seen` as known faults. Reasons and dates are taken from `known`, by place, or else by rule."""
    made = []
    for fault in seen.faults:
        before = _same(fault, known) or next((each for each in known if each.rule == fault.rule), Known(fault.rule, fault.place))
        made.append(Known(fault.rule, fault.place, _shortened(fault), before.until, before.reason))
    return _with_table(made, _families(seen)) if made else tightened(known, seen)


def _named(known: Iterable[Known]) -> str:
    names = [f"{each.rule} at {each.place}" for each in known]
    return f"{'is' if len(names) == 1 else 'are'} {', '.join(names)}"


def _table(known: Iterable[Known]) -> dict[str, Family]:
    """All known places beyond their limits, by pattern."""
    return {pattern: family for each in known for pattern, family in each.beyond.items()}


def _with_table(known: list[Known], table: Mapping[str, Family]) -> list[Known]:
    return [dataclasses.replace(each, beyond=table if each is known[0] else {}) for each in known]


def _same(fault: Fault, known: Iterable[Known]) -> Known | None:
    """The known fault of the same rule and place."""
    return next((each for each in known if (each.rule, each.place) == (fault.rule, fault.place)), None)


def _owner(fault: Fault, known: Iterable[Known], table: Mapping[str, Family]) -> Known | None:
    """The known fault that covers `fault`: one of its rule at its place, or of its rule elsewhere if the place was beyond its limit too.

    Drift at a place that was beyond its limit is covered by any known fault, since whether drift is an error depends on what it reaches.
    """
    exact = _same(fault, known)
    if exact is not None or not any(_matches(pattern, fault.place) for pattern in table):
        return exact
    any_rule = next(iter(known), None) if fault.rule == _DRIFT else None
    return next((each for each in known if each.rule == fault.rule), any_rule)


def _matches(pattern: str, place: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", r"\d+"), place) is not None


def _larger_counts(known: Sequence[Known], seen: Observed) -> list[str]:
    """Sentences on counts that are larger than is known."""
    lines = []
    for fault in seen.faults:
        before = _same(fault, known)
        if before is not None and fault.rule in _COUNTS and before.measured is not None and fault.measured is not None:
            if fault.measured > before.measured * _COUNTS[fault.rule]:
                lines.append(f"{fault}: {fault.measured:g}, where {before.measured:g} are known")
    return lines


def _further_beyond(table: Mapping[str, Family], seen: Observed) -> list[str]:
    """Sentences on places that are newly beyond their limits, or further beyond them than is known."""
    lines = []
    for place, reach in seen.beyond.items():
        family = next((family for pattern, family in table.items() if _matches(pattern, place)), None)
        if family is None and reach.clear:
            lines.append(f"{place} is {digits(reach.times, 3)} times its limit, and was within it")
        elif family is not None and reach.times > family.times * reach.noise:
            lines.append(f"{place} is {digits(reach.times, 3)} times its limit, where {digits(family.times, 3)} is known")
    for pattern, family in table.items():
        now = [place for place, reach in seen.beyond.items() if reach.clear and _matches(pattern, place)]
        if len(now) > family.modules:
            lines.append(f"{pattern}: {len(now)} modules are beyond their limits, where {family.modules} are known: {', '.join(now)}")
    return lines


def _lowered(known: Known, fault: Fault) -> Known:
    """Returns `known` with today's place if the fault moved, and with today's number if that is clearly lower."""
    if fault.place != known.place:
        return dataclasses.replace(known, place=fault.place, measured=_shortened(fault))
    if known.rule in _FEWER and known.measured is not None and fault.measured is not None and fault.measured * _FEWER[known.rule] < known.measured:
        return dataclasses.replace(known, measured=_shortened(fault))
    return known


def _shrunk(pattern: str, old: Family, seen: Observed) -> Family | None:
    """Today's family of a pattern, with lower numbers where it got better. None if no place of it is beyond its limit."""
    places = [place for place in {**seen.beyond, **seen.excused} if _matches(pattern, place)]
    if not places:
        return None
    most = max(places, key=lambda place: _times(seen, place))
    noise = seen.beyond[most].noise if most in seen.beyond else math.inf
    times = _times(seen, most)
    return Family(_short(times) if times * noise < old.times else old.times, min(len(places), old.modules))


def _times(seen: Observed, place: str) -> float:
    return max(seen.beyond[place].times if place in seen.beyond else 0.0, seen.excused.get(place, 0.0))


def _families(seen: Observed) -> dict[str, Family]:
    """The places beyond their limits. Where many places have one pattern, they are one family."""
    all_times = {place: _times(seen, place) for place in {**seen.beyond, **seen.excused}}
    places = {place: times for place, times in all_times.items() if times > 1}
    patterns: dict[str, list[str]] = {}
    for place in places:
        patterns.setdefault(re.sub(r"(?<=[ .])\d+(?=\.|$)", "*", place), []).append(place)
    families: dict[str, Family] = {}
    for pattern, own in patterns.items():
        groups = {pattern: own} if len(own) > _MANY else {place: [place] for place in own}
        families |= {name: Family(_short(max(places[place] for place in group)), len(group)) for name, group in groups.items()}
    return families


def _short(number: float) -> float:
    return float(f"{number:.3g}")


def _shortened(fault: Fault) -> float | None:
    return None if fault.measured is None else _short(fault.measured)
