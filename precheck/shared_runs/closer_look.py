"""Decides which suspicious rows (tensors that drift more than noise runs explain) are errors, with as few further runs as possible.

A closer run is a noise run with more roundings: inside modules, or at every op. A module whose own code makes n low-format results has n roundings,
and a plain noise run has only one of them.

1. One closer run of each kind is made after a single noise run. If it clearly explains every suspicious row, that is all (`at_once`).
2. Otherwise two noise runs are made, and rows of the forward pass and the loss are looked at first. They need no backward pass, and an error there
   is the first one of the run.
3. Rows that closer runs do not explain get narrower floors from more noise runs, and a float64 run checks that float32 is a valid reference there.

Each step makes half of its runs first, and the others only if they could still change the result. A row within its limit gets no further run, unless
the limit of so few errors is lower by more noise runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from precheck.analysis import labels
from precheck.analysis.chance import LUCK
from precheck.analysis.noise_floor import boundaries, noise
from precheck.analysis.noise_floor.drift import UNDETERMINED, ComparedTensor
from precheck.observe.records import Record

Rows = dict[str, ComparedTensor]
FIRST_LOOK, SECOND_LOOK, THIRD_LOOK = 2, noise.MOST, 4
"""The noise runs of a first look and of a look with narrower floors, and the most closer runs. Two are enough for a healthy model (p99 of r changes
by 0.01 from 2 to 16). Eight narrow the limits of small tensors."""
ALIKE = 8
"""A single closer run counts if its floor is at most this many times that of the noise run. A module with n roundings of its own has √n times the
floor of its last rounding, and few modules have more than 64."""
EARLY = frozenset({"output", "returned", "loss"})
"""Kinds of records that the first step makes before its backward pass."""
_NONE: Mapping[str, ComparedTensor] = {}


class NoiseRuns(Protocol):
    """The further runs that `CloserLook` may ask for. `Measurement` makes them."""

    brief: bool

    def chained(self, count: int, *, everywhere: bool, early: bool) -> list[ComparedTensor]:
        """Compares the run with `count` closer runs. Their roundings are inside modules, or at every op if `everywhere`."""

    def narrowed(self, rows: list[ComparedTensor], *, early: bool) -> list[ComparedTensor]:
        """Returns `rows` with floors from the largest number of noise runs."""

    def contradicted(self, rows: Rows, *, early: bool) -> set[str]:
        """Keys of the rows on which float64 contradicts float32."""

    def added_up(self) -> Mapping[str, tuple[str, str]]:
        """Keys of gradients that autograd makes as sums over another gradient, each with the two keys of the records that show its terms."""


class CloserLook:
    """A closer look. After `taken` it holds the keys of rows that rounding `explained`, of rows where float32 is no valid reference (`unstable`), and
    of rows that it did not need to look at (`unasked`)."""

    def __init__(self, by: NoiseRuns, rows: list[ComparedTensor], *, settled: bool, halting: bool, fails: bool = False) -> None:
        """`settled`: floors are narrow enough. `halting`: further runs may end after the loss, and an error up to there decides the verdict. `fails`:
        there is one already, at an op."""
        self.by, self.rows, self.settled, self.halting, self.fails = by, rows, settled, halting, fails
        self.explained: set[str] = set()
        self.unstable: set[str] = set()
        self.unasked: set[str] = set()

    def at_once(self) -> bool:
        """Whether one closer run of each kind explains all suspicious rows, so that more runs could not change the verdict.

        A second noise run would cost as much and leave the same question. The floor of a single run may be large by chance. So a closer run counts
        only where its floor is at most `ALIKE` times that of the noise run.
        """
        if not _results_clear(self.rows):
            return False
        left = {row.record.key: row for row in self.rows if row.record.kind != "update" and not _healthy(row)}
        late = {key for key, row in left.items() if self.fails and not is_early(row.record)}
        left = {key: row for key, row in left.items() if key not in late}
        gradients = {key: row for key, row in left.items() if "gradient" in row.record.kind}
        others = {key: row for key, row in left.items() if key not in gradients}
        early = self.halting and all(is_early(row.record) for row in others.values())
        if not (self._at_once(others, early=early) and self._at_once(gradients, everywhere=True)):
            return False
        self.explained |= left.keys()
        self.unasked |= late
        return True

    def _at_once(self, left: Rows, *, everywhere: bool = False, early: bool = False) -> bool:
        if not left:
            return True
        found = {row.record.key: row for row in self.by.chained(1, everywhere=everywhere, early=early)}
        return all(_healthy(found[key]) and found[key].floor <= ALIKE * row.floor for key, row in left.items())

    def taken(self, starved: Rows) -> None:
        """Takes the look. `starved`: gradients that the float64 run checks in any case."""
        suspects = {key: row for key, row in suspicious(self.rows).items() if key not in self.explained}
        early = {key: row for key, row in suspects.items() if is_early(row.record)}
        late = suspects.keys() - early.keys()
        if self.fails:
            self.unasked |= late
            self._looked(early, is_early, early=True)
        elif self.halting and early:
            guilty = self._looked(early, is_early, early=True)
            self.unasked = late if harmful(guilty) else set()
            suspects = {key: row for key, row in suspects.items() if key in late - self.unasked}
            self._looked(suspects, lambda record: not is_early(record), starved)
        else:
            self._looked(suspects, lambda record: True, starved)

    def _looked(
        self, suspects: Rows, among: Callable[[Record], bool], starved: Mapping[str, ComparedTensor] = _NONE, *, early: bool = False
    ) -> list[ComparedTensor]:
        """Makes all further runs that are needed, and returns the suspects that are errors. `among`: whether a record may be a suspect.

        Two noise runs alone make no error, however far it is beyond its limit: they do not show what rounding does once in a while, as where a norm
        divides by a variance that happens to be small.
        """
        explained = self._explained(suspects, early) if suspects else set()
        grave = {key: row for key, row in suspects.items() if key not in explained}
        unstable = self.by.contradicted({**starved, **grave}, early=early)  # asked first, since it is one run, and narrower floors take six
        left = [row for key, row in grave.items() if key not in unstable]
        if left and not self.settled:
            self.rows = self.by.narrowed(self.rows, early=early)
            suspects = {key: row for key, row in suspicious(self.rows).items() if among(row.record)}
            explained = self._explained(suspects, early) if suspects else set()
        guilty = {key: row for key, row in suspects.items() if row.failed and key not in explained}
        unstable |= self.by.contradicted({key: row for key, row in guilty.items() if key not in grave}, early=early)
        self.explained |= explained
        self.unstable |= unstable
        return [row for key, row in guilty.items() if key not in unstable]

    def _explained(self, suspects: Rows, early: bool) -> set[str]:
        """Keys of the suspects that correct rounding explains after all.

        Outputs are compared with runs that round inside modules, gradients with runs that round at every op. Autograd derives the backward pass, so
        an ill-conditioned gradient (say, of a scale before a norm) is nobody's bug. An output that a single rounding spoils is a bug.
        """
        gradients = {key: row for key, row in suspects.items() if "gradient" in row.record.kind}
        others = {key: row for key, row in suspects.items() if key not in gradients}
        explained = self._within(others, early=early) if others else set()
        if gradients and self.by.brief and any(row.failed for key, row in suspects.items() if key not in explained | gradients.keys()):
            return explained | gradients.keys()
        if gradients:
            explained |= self._within(gradients, everywhere=True)
            explained |= self._of_right_terms(gradients, explained)
        return explained | _near_explained_ones(suspects, explained)

    def _of_right_terms(self, suspects: Rows, explained: set[str]) -> set[str]:
        """Keys of gradients that autograd sums up from terms whose error is rounding only, in modules whose output has only rounding error too: by
        noise runs, or by closer ones (`explained`).

        An error vector e of n terms adds up to √n |e| at most, if all errors have one sign, as where a kernel rounds a mean that it subtracts from
        all terms. Independent noise adds up to |e| only. But the sum is autograd's, so no user code is wrong if its terms are right up to
        rounding. Whether its kernel accumulates in a low format is judged at the op.
        """
        rows, sums = {row.record.key: row for row in self.rows}, self.by.added_up()
        terms = {key: [rows.get(each) for each in sums[key]] for key in suspects if key in sums}
        right = {key for key, row in rows.items() if row.r <= noise.WARN and not row.floor_unknown} | explained
        return {key for key, two in terms.items() if all(row is not None and row.record.key in right for row in two)}

    def _within(self, suspects: Rows, *, everywhere: bool = False, early: bool = False) -> set[str]:
        """Keys of suspects that are no longer failed or doubtful beside closer runs of that kind. Two runs are made, or four where two leave open
        whether a row is an error."""
        for count in (FIRST_LOOK, THIRD_LOOK):
            found = {row.record.key: row for row in self.by.chained(count, everywhere=everywhere, early=early)}
            within = {key for key, before in suspects.items() if _innocent(found[key], before)}
            left = [found[key] for key in suspects if key not in within]
            if left and certain(left, count, THIRD_LOOK):
                break
            if not left and all(_most(found[key], count, THIRD_LOOK) <= _limit(before, THIRD_LOOK) for key, before in suspects.items()):
                break
        return within


def suspicious(rows: Iterable[ComparedTensor]) -> Rows:
    """The rows that are errors by their limit, or would be by that of more noise runs. Not updates, which are judged by the share that arrived, and
    not Inf and NaN."""
    drifting = (row for row in rows if (row.failed or row.doubtful) and row.record.kind != "update" and not row.excess_nonfinite)
    return {row.record.key: row for row in drifting}


def is_early(record: Record) -> bool:
    return record.step == 1 and record.kind in EARLY


def harmful(guilty: Iterable[ComparedTensor]) -> bool:
    """Whether one of these rows is an error in any case: it is a result or the loss, or it is far beyond its limit (`boundaries.drifted`)."""
    return any(row.record.is_result or row.record.kind == "loss" or row.r > boundaries.TOO_LARGE_TO_HEAL * row.allowed for row in guilty)


def certain(rows: list[ComparedTensor], made: int, planned: int) -> bool:
    """Whether the first row is a harmful failure by the floor of `made` noise runs, and will be one by the floor of `planned` runs as well.

    A run's error is more than `luck` times that of as many others with a probability of one in a million (Fisher's F, `analysis.noise`). So no
    further run adds more than that to the mean square.
    """
    first = rows[0]
    luck = noise.allowed(first.errors, made) / LUCK
    least = first.r / math.sqrt((made + (planned - made) * luck**2) / planned)
    needed = noise.allowed(first.errors, planned)
    plain = first.record.is_result or first.record.kind in ("loss", "parameter-gradient")
    return first.failed and least > needed * (1 if plain else boundaries.TOO_LARGE_TO_HEAL)


def _innocent(row: ComparedTensor, before: ComparedTensor) -> bool:
    within = not row.failed and not row.floor_unknown and (before.failed or not row.doubtful)
    return within and (not before.failed or row.drift <= _most_explained(row, before))


def _most_explained(closer: ComparedTensor, before: ComparedTensor) -> float:
    """The largest error that closer runs explain beyond what noise runs do.

    The limit of few errors is higher by fewer runs, since their floor may be small by chance. Roundings inside modules add to those at boundaries
    in quadrature. So only the part of the floor that they add is as uncertain as the few closer runs are. The rest is known from the noise runs.
    """
    added = max(closer.floor**2 - before.floor**2, 0.0)
    return math.hypot(min(closer.allowed, before.allowed) * before.floor, closer.allowed * math.sqrt(added))


def _most(row: ComparedTensor, made: int, planned: int) -> float:
    """The largest r that the row may have by the floor of `planned` runs, of which `made` have given the floor.

    A run's error is less than that of as many others by more than a factor of `luck` with a probability of one in a million (Fisher's F,
    `analysis.noise`). So each further run adds at least that share to the mean square.
    """
    luck = noise.allowed(row.errors, made) / LUCK
    return row.r / math.sqrt((made + (planned - made) / luck**2) / planned)


def _limit(row: ComparedTensor, samples: int) -> float:
    """The limit of r by the floor of `samples` runs. Where the row has not failed, it is the limit by the floor of the largest number of runs."""
    return noise.allowed(row.errors, samples if row.failed else noise.MOST)


def settled(rows: list[ComparedTensor]) -> bool:
    """Whether all rows are healthy by the floor of one noise run, so that a second noise run could not make one an error."""
    judged = [row for row in rows if row.record.kind != "update"]
    return all(_healthy(row) for row in judged) and _results_clear(judged)


def _healthy(row: ComparedTensor) -> bool:
    """Whether the row is healthy by the floor of one run, and will be by that of two."""
    return not row.floor_unknown and _most(row, 1, FIRST_LOOK) <= noise.allowed(row.errors, noise.MOST)


def _results_clear(rows: list[ComparedTensor]) -> bool:
    """Whether rounding leaves every result determined (`ComparedTensor.undetermined`). The floor of the noise run and the run's own error are two
    samples of what rounding does."""
    results = [row for row in rows if row.record.is_result]
    return bool(results) and all(_clear(row) for row in results)


def _clear(row: ComparedTensor) -> bool:
    """Whether the probability that rounding leaves this result undetermined is at most one in a thousand. In that case a warning is missed."""
    return math.hypot(row.floor, row.drift) / math.sqrt(2) < noise.least_estimate(row.record.numel) * UNDETERMINED * row.reference.norm


def _near_explained_ones(suspects: Mapping[str, ComparedTensor], explained: set[str]) -> set[str]:
    """Keys of gradients that are only near their limits, in modules whose gradients beyond the limits are all explained."""
    modules = {key: labels.module_of(row.record.name, row.record.kind) for key, row in suspects.items() if "gradient" in row.record.kind}
    failed = {module for key, module in modules.items() if suspects[key].failed}
    guilty = {module for key, module in modules.items() if suspects[key].failed and key not in explained}
    return {key for key, module in modules.items() if not suspects[key].failed and module in failed - guilty}
