"""A remedy's trials: models with some parts kept in float32. Each is judged by one low run or a whole measurement, until trials or time run out."""

from __future__ import annotations

import time
from collections.abc import Callable, Container

from precheck.findings import Report
from precheck.observe import float32_parts
from precheck.observe.job import Job
from precheck.observe.listeners import doing
from precheck.observe.timing.contestant import Contestant, borrowed
from precheck.precisions import Precision, resolve
from precheck.screening import Screening
from precheck.words import counted

PATIENCE, LEAST = 15.0, 0.5
"""How long a failed test waits for its cure unless asked for more. The time is so many of its own low and float32 steps, or seconds if these are
longer. With what finding the failure takes it stays below 40 steps, and a model of a millisecond gets its trials too."""

Kept = tuple[tuple[str, ...], tuple[str, ...]]
"""Modules, and the functions they call to which that is limited; none where all of the modules is kept."""


class SpentError(Exception):
    """No trial is left, or no time."""


def patience(job: Job, precision: Precision) -> float:
    """Seconds, by one plain step of each."""
    taken = 0.0
    with borrowed(job):
        for each in (precision, resolve("32-true")):
            contestant = Contestant(job, each)
            with contestant.placed():
                begun = time.perf_counter()
                contestant.step()
                taken += time.perf_counter() - begun
    return max(LEAST, PATIENCE * taken)


class Trials:
    """`best` is the last that passed, with its report; `measured` are those that one low run has not told about alone."""

    def __init__(
        self, job: Job, precision: Precision, report: Report, most: int, seconds: float | None, measured: Callable[[], Report], *, screens: bool
    ) -> None:
        """`measured` makes a whole measurement of the job as it is then; `screens`: whether one low run may stand for it."""
        self.job, self.precision, self.most, self.whole, self.made = job, precision, most, measured, 0
        self.spent = ""  # what ended them
        self.known: dict[Kept, Report | None] = {((), ()): report}
        self.measured: set[Kept] = {((), ())}
        self.best: tuple[Kept, Report] | None = None
        self.screening = self._screening(report) if screens else None
        self.ends = None if seconds is None else time.perf_counter() + seconds  # of trials alone

    def report(self, key: Kept, functions: Container[str] | None = None) -> Report | None:
        """The report with those modules, or those of their functions, in float32; None where the model does not run so.

        `functions` stand for those of the key, and are asked for anew each time.
        """
        if functions is not None:
            return self._tried(key, functions)
        if key not in self.known:
            self.known[key] = self._tried(key, key[1])
        report = self.known[key]
        if report is not None and not report.errors:
            self.best = key, report  # what is tried after a set that passed is a part of it
        return report

    def confirmed(self) -> bool:
        """Whether a whole measurement passes, too, with what passed last. If not, each trial is one from here on, and none has passed yet."""
        if self.best is None or self.best[0] in self.measured:
            return True
        key = self.best[0]
        report = self._whole(key)
        self.best = None if report is None or report.errors else (key, report)
        if self.best is None:
            self.screening = None
            self.known = {key: each for key, each in self.known.items() if key in self.measured or (each is not None and each.errors)}
        return self.best is not None

    def _screening(self, report: Report) -> Screening | None:
        """None where one low run does not tell."""
        try:
            with doing("looking for a remedy"):
                screening = Screening(self.job, self.precision, report)
        except Exception:  # as of trials
            return None
        return screening if screening.tells else None

    def _tried(self, key: Kept, functions: Container[str]) -> Report | None:
        self._counted()
        try:
            with doing(f"looking for a remedy, trial {self.made} of at most {self.most}"), float32_parts.exempted(self.job.model, key[0], functions):
                report = None if self.screening is None else self.screening.report()
                if report is not None and (report.errors or self.best is not None):
                    return report
                if functions is key[1]:
                    self.measured.add(key)
                return self.whole()
        except Exception:  # a trial is a model that nobody has written: whatever it raises, it is no remedy
            return None

    def _whole(self, key: Kept) -> Report | None:
        """A whole measurement of what one low run has let pass."""
        self.measured.add(key)
        try:
            with doing("looking for a remedy, the last measurement"), float32_parts.exempted(self.job.model, *key):
                self.known[key] = self.whole()
        except Exception:
            self.known[key] = None
        return self.known[key]

    def _counted(self) -> None:
        """Counts a trial. Raises SpentError where there is no trial or no time left."""
        late = self.ends is not None and time.perf_counter() > self.ends
        if late or self.made >= self.most:
            ended = f"after {counted(self.made, 'trial')} time was up; to make more: -o remedy_trials={self.most}"
            self.spent = ended if late else f"none in {counted(self.made, 'trial')}; to make more: -o remedy_trials={2 * self.most}"
            raise SpentError
        self.made += 1
