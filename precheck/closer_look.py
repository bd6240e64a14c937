"""The closer look at what noise runs leave suspicious, and no more runs of it than the answer takes.

The story: one closer run of each kind settles what one noise run leaves open, if it explains that plainly. Else there are two noise runs, and the
closer look begins with the forward pass and the loss, since an error there is the first of the run and needs no backward pass. A module whose own
code makes n low-format results has n roundings, not one; that settles most. What is left gets narrower floors, and float64 is asked whether float32
is a yardstick there. Each look makes half of its runs, and the others only where these could still change what it comes to. What could be a warning
at most is worth the first half of a look, and no narrower floor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from precheck.analysis import boundaries, labels, noise
from precheck.analysis.drift import UNDETERMINED, Comparison
from precheck.observe.records import Record

Rows = dict[str, Comparison]
FIRST_LOOK, SECOND_LOOK, THIRD_LOOK = 2, noise.MOST, 4
"""Noise runs of a first look, and of one that narrows its floors; and closer runs, which have more roundings, at most. Two settle a healthy
model (p99 of r changes by 0.01 from 2 to 16). Eight narrow what small tensors may do."""
ALIKE = 8
"""Floors of a noise run that the floor of a closer run may have, for one closer run to be believed. A module of n roundings of its own has √n times
the floor of its last one, and few have more than 64."""
EARLY = frozenset({"output", "returned", "loss"})
"""Kinds of records that the first step has before its backward pass."""
_NONE: Mapping[str, Comparison] = {}
_LUCK = 1.5
"""By which limits of drift exceed what luck does to as many elements (`judge.noise`)."""


class Noises(Protocol):
    """Who makes noise runs, and compares with them."""

    brief: bool

    def chained(self, count: int, *, everywhere: bool, early: bool) -> list[Comparison]:
        """Every row of the run beside so many runs with the roundings inside modules, or of every op."""

    def narrowed(self, rows: list[Comparison], *, early: bool) -> list[Comparison]:
        """`rows` with the floors of as many runs as are made at most."""

    def contradicted(self, rows: Rows, *, early: bool) -> set[str]:
        """Of these, those on which float64 contradicts float32."""

    def added_up(self) -> Mapping[str, tuple[str, str]]:
        """Keys of gradients that autograd alone makes, as sums over another gradient, and the keys that their terms are told by."""


class Scrutiny:
    """A closer look, once `taken`: the rows that it `explained`, those where float32 is no yardstick (`unstable`), and those that it had no need
    to ask about."""

    def __init__(self, by: Noises, rows: list[Comparison], *, settled: bool, halting: bool) -> None:
        """`settled`: floors are narrow enough. `halting`: whether there are runs that end with the loss, and an error there is one of the run."""
        self.by, self.rows, self.settled, self.halting = by, rows, settled, halting
        self.explained: set[str] = set()
        self.unstable: set[str] = set()
        self.unasked: set[str] = set()

    def at_once(self) -> bool:
        """Whether one closer run of each kind explains all that one noise run leaves open. More runs could not change that.

        A second noise run would cost as much, and leave the same question. The floor of a single run may be large by chance. So a closer run counts
        only where its floor is at most `ALIKE` times that of the noise run.
        """
        if not _results_clear(self.rows):
            return False
        left = {row.record.key: row for row in self.rows if row.record.kind != "update" and not _fine(row)}
        gradients = {key: row for key, row in left.items() if "gradient" in row.record.kind}
        others = {key: row for key, row in left.items() if key not in gradients}
        early = self.halting and all(is_early(row.record) for row in others.values())
        if not (self._at_once(others, early=early) and self._at_once(gradients, everywhere=True)):
            return False
        self.explained |= left.keys()
        return True

    def _at_once(self, left: Rows, *, everywhere: bool = False, early: bool = False) -> bool:
        if not left:
            return True
        found = {row.record.key: row for row in self.by.chained(1, everywhere=everywhere, early=early)}
        return all(_fine(found[key]) and found[key].floor <= ALIKE * row.floor for key, row in left.items())

    def taken(self, starved: Rows) -> None:
        """`starved` are gradients of which float64 is asked anyway."""
        suspects = {key: row for key, row in suspicious(self.rows).items() if key not in self.explained}
        early = {key: row for key, row in suspects.items() if is_early(row.record)}
        late = suspects.keys() - early.keys()
        if self.halting and early and (not late or any(map(_grave, early.values()))):
            guilty = self._looked(early, is_early, early=True)
            self.unasked = late if harmful(guilty) else set()
            suspects = {key: row for key, row in suspects.items() if key in late - self.unasked}
            self._looked(suspects, lambda record: not is_early(record), starved)
        else:
            self._looked(suspects, lambda record: True, starved)

    def _looked(
        self, suspects: Rows, among: Callable[[Record], bool], starved: Mapping[str, Comparison] = _NONE, *, early: bool = False
    ) -> list[Comparison]:
        """The suspects that are guilty, by all that there is to ask. `among`: which records may be suspects."""
        explained = self._explained(suspects, early) if suspects else set()
        grave = {key: row for key, row in suspects.items() if key not in explained and _grave(row)}
        unstable = self.by.contradicted({**starved, **grave}, early=early)  # one run, where narrower floors take six
        left = [row for key, row in grave.items() if key not in unstable]
        if left and not self.settled and not certain(left, FIRST_LOOK, noise.MOST):
            self.rows = self.by.narrowed(self.rows, early=early)
            suspects = {key: row for key, row in suspicious(self.rows).items() if among(row.record)}
            explained = self._explained(suspects, early) if suspects else set()
        guilty = {key: row for key, row in suspects.items() if row.failed and key not in explained}
        unstable |= self.by.contradicted({key: row for key, row in guilty.items() if key not in grave}, early=early)
        self.explained |= explained
        self.unstable |= unstable
        return [row for key, row in guilty.items() if key not in unstable]

    def _explained(self, suspects: Rows, early: bool) -> set[str]:
        """Of the suspects, those that correct rounding explains after all.

        Roundings inside modules settle outputs. A gradient is compared with noise on every op, which has that noise in it: a backward pass is
        derived, not written, so that an ill-conditioned gradient (of a scale before a norm, say) is nobody's bug, while an output that one
        rounding spoils is.
        """
        gradients = {key: row for key, row in suspects.items() if "gradient" in row.record.kind}
        others = {key: row for key, row in suspects.items() if key not in gradients}
        explained = self._within(others, early=early) if others else set()
        if gradients and self.by.brief and any(row.failed for key, row in suspects.items() if key not in explained | gradients.keys()):
            return explained | gradients.keys()
        if gradients:
            explained |= self._within(gradients, everywhere=True) | self._of_right_terms(gradients)
        return explained | _beside(suspects, explained)

    def _of_right_terms(self, suspects: Rows) -> set[str]:
        """Sums of gradients that are right themselves, over places at which the module's output is right.

        Errors e of n terms add up to √n |e| at most, and do so where they go one way, as where a kernel rounds a mean that it takes off all of them.
        Noise is independent and adds up to |e|, which is little beside that. But nobody's code has made a sum that autograd takes of terms that
        are right to rounding. Whether its kernel adds up low, the ops tell.
        """
        rows, sums = {row.record.key: row for row in self.rows}, self.by.added_up()
        terms = {key: [rows.get(each) for each in sums[key]] for key in suspects if key in sums}
        return {key for key, two in terms.items() if all(row is not None and row.r <= noise.WARN and not row.untold for row in two)}

    def _within(self, suspects: Rows, *, everywhere: bool = False, early: bool = False) -> set[str]:
        """Those that failed and fail no more, or were doubtful and are no more, beside runs of that kind: two, or four where two leave open
        whether something is an error."""
        grave = {key: before for key, before in suspects.items() if _grave(before)}
        for count in (FIRST_LOOK, THIRD_LOOK):
            found = {row.record.key: row for row in self.by.chained(count, everywhere=everywhere, early=early)}
            within = {key for key, before in suspects.items() if _innocent(found[key], before)}
            left = [found[key] for key in grave if key not in within]
            if left and certain(left, count, THIRD_LOOK):
                break
            if not left and all(_stays(found[key], before, count, THIRD_LOOK) for key, before in grave.items()):
                break
        return within


def suspicious(rows: Iterable[Comparison]) -> Rows:
    """What drifts too far or nearly so. Updates are judged by the share that arrived. Inf and NaN need no closer look."""
    drifting = (row for row in rows if (row.failed or row.doubtful) and row.record.kind != "update" and not row.excess_nonfinite)
    return {row.record.key: row for row in drifting}


def is_early(record: Record) -> bool:
    return record.step == 1 and record.kind in EARLY


def harmful(guilty: Iterable[Comparison]) -> bool:
    """Whether these are an error whatever else there is: they reach what the user gets, or are plain (`boundaries.drifted`)."""
    return any(row.record.is_result or row.record.kind == "loss" or row.r > boundaries.PLAIN * row.allowed for row in guilty)


def certain(rows: list[Comparison], made: int, planned: int) -> bool:
    """Whether the first of the rows, by the floors of `made` noise runs, fails and does harm by those of `planned` as well.

    That a run's error is more than `luck` times that of as many others has a chance of one in a million (Fisher's F, `judge.noise`). So none of the
    runs to come adds more than that to the mean square.
    """
    first = rows[0]
    luck = noise.allowed(first.record.numel, made) / _LUCK
    least = first.r / math.sqrt((made + (planned - made) * luck**2) / planned)
    needed = noise.allowed(first.record.numel, planned)
    plain = first.record.is_result or first.record.kind in ("loss", "parameter-gradient")
    return first.failed and least > needed * (1 if plain else boundaries.PLAIN)


def _grave(row: Comparison) -> bool:
    """Whether the row may be an error: it has failed, or does so by the limit for the most noise runs that are made."""
    return row.failed or row.r > noise.allowed(row.record.numel, noise.MOST)


def _innocent(row: Comparison, before: Comparison) -> bool:
    return not row.failed and not row.untold and (before.failed or not row.doubtful)


def _stays(row: Comparison, before: Comparison, made: int, planned: int) -> bool:
    """Whether that holds by the floor of `planned` runs too: those to come add no less than nothing to the mean square."""
    most = row.r * math.sqrt(planned / made)
    return most <= (noise.allowed(row.record.numel, planned) if before.failed else _near(row, planned))


def _near(row: Comparison, samples: int) -> float:
    """The r from which the row is doubtful, by the floor of so many runs (`Comparison.doubtful`)."""
    return max(noise.WARN, _limit(row, samples) * noise.WARN / noise.FAIL)


def _limit(row: Comparison, samples: int) -> float:
    """The r from which the row may be an error, by the floor of so many runs, or of the most that are made."""
    return min(noise.allowed(row.record.numel, samples), noise.allowed(row.record.numel, noise.MOST))


def settled(rows: list[Comparison]) -> bool:
    """Whether the rows are healthy by the floor of one noise run, and no error by that of a first look, whatever its other run says."""
    judged = [row for row in rows if row.record.kind != "update"]
    return all(_fine(row) for row in judged) and _results_clear(judged)


def _fine(row: Comparison) -> bool:
    """Whether the row is healthy by the floor of one run, and no error by that of two: the other cannot make the mean square less than half."""
    return not row.untold and row.r <= _near(row, FIRST_LOOK) and row.r * math.sqrt(FIRST_LOOK) <= _limit(row, FIRST_LOOK)


def _results_clear(rows: list[Comparison]) -> bool:
    """Whether no result drowns in rounding (`Comparison.undetermined`). What the noise run did to it is one draw of what rounding does, and what the
    run itself is off by is another."""
    results = [row for row in rows if row.record.is_result]
    return bool(results) and all(_clear(row) for row in results)


def _clear(row: Comparison) -> bool:
    """Whether rounding drowns a result in one case of a thousand at most, in which a warning is not given."""
    return math.hypot(row.floor, row.drift) / math.sqrt(2) < noise.least(row.record.numel) * UNDETERMINED * row.reference.norm


def _beside(suspects: Mapping[str, Comparison], explained: set[str]) -> set[str]:
    """Gradients that are only near their limits, of modules of which others were beyond theirs and all such are explained."""
    modules = {key: labels.module_of(row.record.name, row.record.kind) for key, row in suspects.items() if "gradient" in row.record.kind}
    failed = {module for key, module in modules.items() if suspects[key].failed}
    guilty = {module for key, module in modules.items() if suspects[key].failed and key not in explained}
    return {key for key, module in modules.items() if not suspects[key].failed and module in failed - guilty}
