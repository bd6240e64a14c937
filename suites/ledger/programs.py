"""The programs of the zoo, each watched once and judged as often as is asked: what a run was is numbers, and judging them is cheap."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import precheck
from precheck.judge import watched_runs
from precheck.observe.shadow.operations import Observation

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "zoo"))
from bugs import ALL
from healthy import EXACT, IDIOMS


@dataclasses.dataclass(frozen=True)
class Program:
    """A program and what its run was. `faulty`: it is a bug; the others are mended twins and healthy look-alikes."""

    name: str
    faulty: bool
    observation: Observation

    def errors(self) -> frozenset[tuple[str, str]]:
        """Rule and line of each error that is found in it now."""
        return frozenset((finding.rule, finding.source) for finding in watched_runs.found(self.observation) if finding.severity == "error")


class _Kept(watched_runs.RunJudge):
    """Keeps what is to be judged, and leaves the verdict to who asks for it."""

    last: Observation | None = None
    parted = False  # whether a part was judged before: what is left then is no whole run

    def settle(self, observation: Observation) -> None:
        _Kept.parted = True
        super().settle(observation)

    def found(self, observation: Observation) -> list[precheck.Finding]:
        _Kept.last = observation
        return []


def program(name: str, code: Callable[[], Any], *, faulty: bool) -> Program | None:
    """What a run of `code` was; None of a run that was judged in parts."""
    _Kept.last, _Kept.parted = None, False
    made: list[Any] = []
    plain, watched_runs.RunJudge = watched_runs.RunJudge, _Kept  # type: ignore[misc]
    try:
        with contextlib.suppress(Exception), warnings.catch_warnings(), precheck.watch(precision=_precision(name)):
            warnings.simplefilter("ignore")
            made.append(code())  # what a user keeps is alive
    finally:
        watched_runs.RunJudge = plain  # type: ignore[misc]
    return None if _Kept.last is None or _Kept.parted else Program(name, faulty, _Kept.last)


def _precision(name: str) -> str | None:
    """float32 where a program says that it is in float32 throughout: else nothing of it would be followed."""
    said = {bug.name: bug.precision or None for bug in ALL} | dict.fromkeys(EXACT, "32-true")
    return said.get(name.removesuffix(" (mended)"))


def named(name: str) -> Program:
    """One program of the zoo: a healthy idiom by its name, a bug by its name, its mended twin by "name (mended)"."""
    return next(found for each, code, faulty in every() if each == name and (found := program(each, code, faulty=faulty)) is not None)


def every() -> Iterator[tuple[str, Callable[[], Any], bool]]:
    """Name, code and whether it is faulty, of all programs."""
    for bug in ALL:
        yield bug.name, bug.bug, True
        yield f"{bug.name} (mended)", bug.fixed, False
    for idiom in IDIOMS:
        yield idiom.__name__, idiom, False


def corpus() -> list[Program]:
    """All that were watched as a whole."""
    torch.set_num_threads(1)
    found = (program(name, code, faulty=faulty) for name, code, faulty in every())
    return [each for each in found if each is not None]
