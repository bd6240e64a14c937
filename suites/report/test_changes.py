"""What changed between two sessions: what is told, in which order, and what counts as worse."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sessions import HOSTILE, check, finding, hostile, of, row, without_verdict

from precheck.report.changes import MOST, WORSE, Change, between, left_out, markdown, plain, term
from precheck.report.sarif import compared

BAD = check(finding())
GOOD = check()


def kinds(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[str]:
    return [change.kind for change in between(of(*before), of(*now))]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ([BAD], [BAD], []),
        ([GOOD], [BAD], ["error"]),
        ([BAD], [GOOD], ["mended"]),
        ([check(finding(severity="warning"))], [BAD], ["error"]),
        ([BAD], [check(finding(severity="warning"))], ["mended"]),
        ([GOOD], [check(finding(severity="warning"))], ["warning"]),
        ([GOOD], [check(finding(severity="note"))], []),
        ([GOOD], [check(finding(), tolerated={"overflow": "known"})], []),
        ([check(finding(), tolerated={"overflow": "known"})], [BAD], ["error"]),
        ([BAD], [check(finding(source="models/gpt.py:99", message="4 of 8", measured=4.0))], []),
        ([BAD], [check(finding(module="other"))], ["error", "mended"]),
        ([], [BAD], ["error", "new"]),
        ([], [GOOD], ["new"]),
        ([BAD], [], ["gone"]),
        ([BAD, check(precision="bf16-mixed")], [BAD], ["gone"]),
        ([GOOD], [without_verdict("tests/test_gpt.py::test_it")], ["no verdict"]),
        ([], [without_verdict()], ["no verdict"]),
        ([without_verdict()], [without_verdict(error="another")], []),
        ([without_verdict("tests/test_gpt.py::test_it")], [BAD], ["error", "verdict"]),
        ([BAD, GOOD], [BAD, BAD], ["error"]),
    ],
)
def test_verdicts_and_findings(before: list[dict[str, Any]], now: list[dict[str, Any]], expected: list[str]) -> None:
    assert kinds(before, now) == expected


def moved(before: float, now: float, **fields: Any) -> list[Change]:
    return between(of(check(rows=(row(r=before, **fields),))), of(check(rows=(row(r=now, **fields),))))


@pytest.mark.parametrize(
    ("before", "now", "kind"),
    [
        (1.0, 1.45, None), (1.0, 1.55, "further"), (2.0, 3.1, "further"), (3.1, 2.0, "nearer"), (0.1, 0.9, None), (0.9, 0.1, None),
        (0.1, 1.6, "further"), (1.0, float("inf"), "further"), (float("inf"), 1.0, "nearer"), (float("inf"), float("inf"), None),
        (float("nan"), 1.0, "nearer"),
    ],
)  # fmt: skip
def test_tensors_that_moved(before: float, now: float, kind: str | None) -> None:
    """1.45 and 1.55 lie on either side of the factor 1.5; below r = 1 nothing is told."""
    assert [change.kind for change in moved(before, now)] == ([kind] if kind else [])


def test_a_tensor_is_named_with_what_it_was_and_is() -> None:
    (change,) = moved(1.0, 4.0, step=3)
    assert change.words == "output of wide, step 3: r 1 -> 4 of 3 allowed"
    assert change.factor == 4


def test_of_many_tensors_the_three_furthest_are_told() -> None:
    before = check(rows=tuple(row(f"layer.{number}", r=1.0) for number in range(10)))
    now = check(rows=tuple(row(f"layer.{number}", r=2.0 + number) for number in range(10)))
    changes = between(of(before), of(now))
    assert [change.words.partition(":")[0] for change in changes] == [
        "output of layer.9", "output of layer.8", "output of layer.7", "and 7 more tensors, which moved less",
    ]  # fmt: skip
    assert term(of(before), of(now)).startswith("tensors further off: 10\n")


def test_worst_first() -> None:
    same = [check(name=f"t::{letter}") for letter in "abeh"]
    before = [*same, check(finding(), name="t::c"), check(rows=(row(),), name="t::d")]
    now = [
        check(name="t::g"), check(name="t::c"), check(rows=(row(r=9.0),), name="t::d"), check(finding("nan", "warning"), name="t::h"),
        check(finding(), name="t::b"), without_verdict("t::a"),
    ]  # fmt: skip
    order = ["no verdict", "error", "warning", "further", "gone", "new", "mended"]
    assert kinds(before, now) == order
    assert {kind for kind in order if kind in WORSE} == {"no verdict", "error"}
    lines = term(of(*before), of(*now)).splitlines()
    assert lines[0] == "without a verdict: 1, new errors: 1, new warnings: 1, tensors further off: 1, checks gone: 1, checks new: 1, findings gone: 1"
    assert lines[2] == "  error       t::b under 16-mixed: overflow: output of wide: 3 of 8 elements are Inf at models/gpt.py:88"


def test_nothing_changed_is_said() -> None:
    assert term(of(BAD), of(BAD)).startswith("nothing changed\nleft out:\n")
    assert markdown(of(BAD), of(BAD)).startswith("## precheck: nothing changed\n\n\nLeft out: Checks of both sessions without a change: 1 of 1.")
    assert term(of(), of()) == "nothing changed\n", "nothing is left out either"


def test_what_the_list_leaves_out_is_counted() -> None:
    """A note, an allowed error, a tensor that hardly moved, a check that is as it was."""
    rows = row("still", 2.0), row("moved", 2.0), row("alone", 2.0)
    before = of(check(finding(severity="note"), rows=rows, name="t::a"), check(name="t::b"), without_verdict("t::c"))
    allowed = finding("nan"), finding("overflow")
    rows = row("still", 2.5), row("moved", 9.0)
    now = of(check(*allowed, rows=rows, name="t::a", tolerated={"nan": "known", "overflow": "known"}), *before["tests"][1:])
    told = left_out(before, now, between(before, now))
    assert told[:3] == [
        "Checks of both sessions without a change: 2 of 3.",
        "Tensors whose r moved by less than a factor of 1.5, or stayed below 1, within what rounding explains: 1.",
        "Notes, and findings that a test expects or allows: 1 before, 2 now.",
    ]
    assert told[3].startswith("Ops, losses, ")
    assert term(before, now).endswith("".join(f"  {sentence}\n" for sentence in told))
    assert markdown(before, now).endswith(f"\nLeft out: {' '.join(told)}\n")


def test_the_loss_is_named_once() -> None:
    (change,) = moved(1.0, 4.0, tensor="loss", kind="loss", step=3)
    assert change.words.startswith("loss, step 3: r 1 -> 4")


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_names_stay_on_their_line_and_in_their_cell(name: str) -> None:
    lines = term(of(), hostile(name)).splitlines()
    assert len(lines) == len(term(of(), hostile("plain")).splitlines())
    assert not set("".join(lines)) & set("\x1b\u202e\x00")
    assert len(markdown(of(), hostile(name)).splitlines()) == len(markdown(of(), hostile("plain")).splitlines())
    assert json.loads(plain(of(), hostile(name)))["changes"][0]["kind"] == "no verdict"


def test_a_table_of_many_changes_fits_a_comment_on_github() -> None:
    """Of 65 536 characters, however long the names are."""
    words = markdown(of(), of(*(check(finding(message="m" * 500), name=f"t.py::{number}{'x' * 500}") for number in range(MOST))))
    assert len(words) < 65_536
    assert words.endswith(f"\n{MOST} more changes, none of them worse.\n"), "each check is new, and has an error"


def test_sarif_says_what_is_new() -> None:
    before, now = of(check(finding(), finding("nan"))), of(check(finding(), finding("headroom"), finding(op="aten.add.Tensor")))
    results = json.loads(compared(before, now))["runs"][0]["results"]
    told = [(result["ruleId"], result["properties"]["op"], result["baselineState"]) for result in results]
    assert told == [
        ("overflow", "aten.mul.Tensor", "unchanged"), ("headroom", "aten.mul.Tensor", "new"), ("overflow", "aten.add.Tensor", "new"),
        ("nan", "aten.mul.Tensor", "absent"),
    ]  # fmt: skip
    (result,) = json.loads(compared(of(BAD), of(check(finding(message="4 of 8")))))["runs"][0]["results"]
    assert result["baselineState"] == "updated"
