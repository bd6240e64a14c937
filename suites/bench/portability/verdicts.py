"""A check as one line of figures, and what many such lines come to."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from precheck.findings import Report, Row
from precheck.measurement import FIRST_LOOK


@dataclasses.dataclass(frozen=True, slots=True)
class Margin:
    """The greatest r/allowed of a check's tensors, and whose it is."""

    value: float
    tensor: str

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Margin:
        """Of what rounding leaves something of; 0 where there is no such row."""
        found = max((row for row in rows if row.determined), key=lambda row: row.r / row.allowed, default=None)
        return cls(found.r / found.allowed, f"{found.kind} of {found.tensor}") if found else cls(0.0, "")


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """Of one check. `margin` is the report's; `golden`'s is beside the golden, before any closer look, None where it holds no floors.

    `noise_runs`: how many the report's own process made, which are none where the golden settled it.
    """

    test: str
    model: str
    precision: str
    seed: int
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    noise_runs: int
    margin: Margin
    golden: Margin | None = None
    excused: bool = False  # whether a tensor beyond its limit was looked at again, and correct rounding explains it

    @property
    def check(self) -> tuple[str, str, str, int]:
        """What is checked, which is the same under all settings."""
        return self.test, self.model, self.precision, self.seed

    @property
    def place(self) -> str:
        how = self.test.removeprefix("test_").replace("_", " ")
        return f"{self.model}, {self.precision}, {f'seed {self.seed}' if how == 'healthy' else how}"

    @property
    def measured(self) -> bool:
        """Whether the golden was not content, so that the run was measured in its own process."""
        return self.noise_runs > 0

    @property
    def closer(self) -> bool:
        """Whether two noise runs did not settle it, or a tensor was beyond its limit beside them."""
        return self.noise_runs > FIRST_LOOK or self.excused


def verdict_of(report: Report, test: str, model: str, *, seed: int = 0, golden: Iterable[Row] | None = None) -> Verdict:
    """`golden`: the rows beside the golden, where there was a look at them."""
    errors, warnings = (tuple(sorted({each.rule for each in report.findings if each.severity == kind})) for kind in ("error", "warning"))
    runs = int(report.facts.get("noise_runs", 0))
    beside = None if golden is None else Margin.of(golden)
    excused = bool(report.facts.get("excused"))
    return Verdict(test, model, report.precision, seed, errors, warnings, runs, Margin.of(report.boundaries), beside, excused)


def line(verdict: Verdict) -> str:
    return json.dumps(dataclasses.asdict(verdict)) + "\n"


def read(path: Path) -> list[Verdict]:
    return [_verdict(json.loads(each)) for each in path.read_text(encoding="utf8").splitlines()]


def _verdict(plain: dict[str, Any]) -> Verdict:
    golden = plain["golden"] and Margin(**plain["golden"])
    found = {"errors": tuple(plain["errors"]), "warnings": tuple(plain["warnings"]), "margin": Margin(**plain["margin"]), "golden": golden}
    return Verdict(**{**plain, **found})


@dataclasses.dataclass(frozen=True, slots=True)
class Total:
    """Of many checks: how many, how many had errors or warnings, how many the golden or two noise runs did not settle.

    `margin` is the greatest of those that were settled so, and `closest` of those that took a closer look, each with its place.
    """

    checks: int
    failed: int
    warned: int
    measured: int
    closer: int
    margin: float
    at: str
    closest: float
    closest_at: str


def total(verdicts: Sequence[Verdict]) -> Total:
    counts = [sum(map(bool, column)) for column in zip(*((v.errors, v.warnings, v.measured, v.closer) for v in verdicts), strict=True)]
    near, close = nearest([each for each in verdicts if not each.closer]), nearest([each for each in verdicts if each.closer])
    return Total(len(verdicts), *(counts or [0] * 4), *near, *close)


def nearest(verdicts: Iterable[Verdict]) -> tuple[float, str]:
    """The greatest margin, and where it is."""
    found = max(verdicts, key=lambda each: each.margin.value, default=None)
    return (found.margin.value, f"{found.margin.tensor}: {found.place}") if found else (0.0, "")


@dataclasses.dataclass(frozen=True, slots=True)
class Travel:
    """What checks came to beside the golden of another setting, and beside their own.

    `more`: how many the other golden did not settle, though their own does. `shift`: by how much the greatest r/allowed of a check that
    its own golden settles grew beside the other's, at most; `margin`: the greatest r/allowed of those that the other golden settled.
    """

    checks: int
    changed: int
    measured: int
    own: int
    more: int
    shift: float
    margin: float
    at: str


def travel(own: Sequence[Verdict], other: Sequence[Verdict]) -> Travel:
    """Of the same checks under the same setting: beside the golden of that setting, and beside one from elsewhere."""
    at_home = {each.check: each for each in own}
    both = [(at_home[each.check], each) for each in other if each.check in at_home]
    shifts = [there.golden.value - here.golden.value for here, there in both if here.golden and there.golden and not here.measured]
    return Travel(
        len(both), sum(here.errors != there.errors for here, there in both), sum(there.measured for _, there in both),
        sum(here.measured for here, _ in both), sum(there.measured and not here.measured for here, there in both),
        max(shifts, default=0.0), *nearest(there for _, there in both if not there.measured),
    )  # fmt: skip
