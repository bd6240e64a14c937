"""An r beyond its limit has the reason beside it wherever nothing failed; warnings are counted in the headline."""

from __future__ import annotations

import pytest

from precheck.findings import Finding, Report, Row
from precheck.report.reasons import ROUNDINGS, UNSTABLE, UNTOLD, Reasons
from precheck.report.terminal import entry, summary


def row(tensor: str, r: float, *, step: int = 1) -> Row:
    return Row(tensor, "output", step, (4,), "bfloat16", r=r, allowed=3.0, drift=r, floor=1.0, relative=0.01, nonfinite=0)


EXCUSED = {"excused": ["output:far@1", "output:odd@1"], "unstable": ["output:odd@1"]}


def test_explained_tensors_are_counted_by_reason_and_the_closest_is_another() -> None:
    report = Report("bf16-mixed", boundaries=[row("far", 9.8), row("odd", 4620.0), row("near", 1.2)], facts=EXCUSED)
    headline, *rest = summary(report).splitlines()
    assert headline == (
        "no errors under bf16-mixed: 3 tensors compared; closest to its limit: output of near, r 1.2 of 3 allowed; "
        f"1 more beyond its limit, explained: {ROUNDINGS}; 1 more beyond its limit, explained: {UNSTABLE}"
    )
    (line,) = [line for line in rest if "4620.00" in line]
    assert line.endswith(f"output of odd (explained: {UNSTABLE})")
    assert entry(report)["explained"] == {f"explained: {ROUNDINGS}": 1, f"explained: {UNSTABLE}": 1}


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (Report("bf16-mixed", [Finding("accumulated-drift", "warning", "m", tensor="far", measured=9.0)]), "a warning: accumulated-drift"),
        (Report("bf16-mixed", [Finding("accumulated-drift", "warning", "m; 1 more", tensor="first", measured=9.0)]), "a warning: accumulated-drift"),
        (Report("32-true", [Finding("unstable-reference", "warning", "m", tensor="far", measured=9.0)]), f"a warning: {UNSTABLE}"),
        (Report("bf16-mixed", [Finding("accumulated-drift", "note", "m; allowed: w")], facts={"allowed": {"accumulated-drift": "w"}}), "allowed: w"),
        (Report("bf16-mixed", [Finding("unstable-reference", "note", "m", tensor="far", measured=9.0)]), UNTOLD),
        (Report("bf16-mixed"), "the report gives no reason"),
        (Report("bf16-mixed", [Finding("nan", "error", "m")]), ""),
        (Report("bf16-mixed", facts={"excused": ["output:far@1"]}), f"explained: {ROUNDINGS}, or {UNSTABLE}"),
    ],
)
def test_the_reason_is_that_of_the_finding(report: Report, words: str) -> None:
    assert Reasons(report).reason(row("far", 9.0)) == words
    assert Reasons(report).reason(row("far", 2.0)) == "", "within its limit"


def test_later_steps_of_float32_are_said_to_be_its_own() -> None:
    assert Reasons(Report("32-true")).reason(row("far", 4620.0, step=2)) == "explained: later steps of float32 itself may differ as much"


def test_warnings_are_counted_in_the_headline() -> None:
    findings = [Finding("headroom", "warning", "close"), Finding("nan", "warning", "odd"), Finding("overflow", "note", "no matter")]
    assert summary(Report("bf16-mixed", findings)).startswith("no errors, 2 warnings under bf16-mixed: 0 tensors compared\nwarning: headroom: close")
    watched = Report("bf16-mixed", findings[:1], facts={"ops": 4, "shadowed": 3, "covered": 1})
    assert summary(watched).startswith("no errors, 1 warning under bf16-mixed: 3 of 4 ops compared")


def test_what_float32_does_not_determine_is_no_part_of_a_failing_text() -> None:
    notes = [Finding("unstable-reference", "note", "chance"), Finding("headroom", "note", "kept")]
    failing, passing = (summary(Report("bf16-mixed", [*errors, *notes])) for errors in ([Finding("overflow", "error", "bad")], []))
    assert "note: unstable-reference: chance" in passing
    assert "chance" not in failing
    assert "note: headroom: kept" in failing
