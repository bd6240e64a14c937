"""How a report was made, in words: the same sentences in the text, in Markdown and on the page."""

from __future__ import annotations

from typing import Any

import pytest
from sessions import HOSTILE, check, finding, of, row
from test_html import Elements

from precheck.findings import Report, Row
from precheck.report import markdown, terminal
from precheck.report.facts import COARSE, LISTED, coarse, excused, followed, in_words
from precheck.report.html import page

ROUNDING = "correct rounding explains its error if it is counted op by op, and not only at the results of modules"
REFERENCE = "float64 disagrees with float32 there by about as much, so float32 is no reference for it"


def report(*rows: Row, **facts: Any) -> Report:
    return Report(boundaries=list(rows), facts=facts)


def test_a_cause_and_its_cure_are_told_once() -> None:
    by = {"cause": "cast at gpt.py:9: whole numbers up to 1023", "advice": "leave out this cast"}
    twice = [finding("accumulated-drift", **by), finding("decision-flip", **by), finding("overflow", cause="another", advice="leave out this cast")]
    lines = [line.strip() for line in terminal.summary(Report(findings=twice)).splitlines()]
    assert lines.count(f"by {by['cause']}") == 1
    assert lines.count("by the same, with the same cure") == 1
    assert lines[-2:] == ["by another", "cure: leave out this cast"]


class TestExcused:
    """Tensors beyond their limits that pass."""

    def test_each_has_its_name_its_r_and_the_reason(self) -> None:
        rows = row("layers.0", 4.0, kind="gradient"), row("wide", 9.0, step=2), row("other", 5.0)
        first, second = excused(report(*rows, excused=["gradient:layers.0@1", "output:wide@2"], unstable=["output:wide@2"]))
        beginning = "1 tensor is beyond or near its limit without fault:"
        assert first == f"{beginning} {ROUNDING}: gradient of layers.0 (r 4 of 3 allowed)."
        assert second.endswith(f"without fault: {REFERENCE}: output of wide, step 2 (r 9 of 3 allowed).")

    def test_a_functions_result_is_what_it_returns(self) -> None:
        rows = row("turned()", 4.0, kind="returned"), row("mask()[0]", 5.0, kind="returned", step=2)
        (sentence,) = excused(report(*rows, excused=["returned:turned()@1", "returned:mask()[0]@2"], unstable=[]))
        assert "what mask()[0] returns, step 2 (r 5 of 3 allowed), what turned() returns (r 4 of 3 allowed)" in sentence

    def test_of_many_the_worst_are_named_and_the_others_counted(self) -> None:
        rows = [row(f"a.{number}", 4.0 + number) for number in range(LISTED + 3)]
        (sentence,) = excused(report(*rows, excused=[f"output:{each.tensor}@1" for each in rows], unstable=[]))
        assert sentence.startswith("8 tensors are beyond or near their limits without fault")
        assert ": output of a.7 (r 11 of 3 allowed), output of a.6 " in sentence
        assert sentence.endswith(" and 3 more.")

    def test_an_older_report_does_not_say_which_reason_it_is(self) -> None:
        (sentence,) = excused(report(row(r=4.0), excused=["output:wide@1"]))
        assert ROUNDING in sentence
        assert REFERENCE in sentence

    @pytest.mark.parametrize("name", [*HOSTILE.values(), "a:b@c@2"], ids=[*HOSTILE, "signs"])
    def test_any_name_is_found(self, name: str) -> None:
        (sentence,) = excused(report(row(name, 4.0), excused=[f"output:{name}@1"]))
        assert "(r 4 of 3 allowed)" in sentence

    def test_a_tensor_that_a_table_shows_with_its_reason_is_left_out(self) -> None:
        shown, near = row("layers.0", 4.0), row("wide", 2.9)
        text = terminal.summary(report(shown, near, excused=["output:layers.0@1", "output:wide@1"], unstable=[]))
        assert text.count("layers.0") == 1
        assert "1 tensor is beyond or near its limit" in text

    def test_there_is_none_where_nothing_was_excused(self) -> None:
        for facts in ({}, {"excused": []}, {"excused": "odd"}, {"excused": [1, "odd"]}, {"unstable": ["output:wide@1"]}):
            assert excused(report(row(r=4.0), **facts)) == []

    def test_every_form_says_it_in_the_same_words(self) -> None:
        session = of(check(finding(severity="warning"), rows=(row(r=4.0),)))
        plain = session["tests"][0]["report"]
        plain["facts"] = {"excused": ["output:wide@1"], "unstable": []}
        (sentence,) = excused(report(row(r=4.0), **plain["facts"]))
        assert "(explained: the roundings on the way there add up to as much)" in terminal.session_text(session)
        assert sentence in markdown.text(session).replace("\\", "")
        html = page(session)
        assert ["passed on a closer look", sentence] in Elements(html).data("check-0")["facts"]
        assert "output:wide@1" not in html, "no key of the code's own is shown"


class TestCoarse:
    """Tensors that pass, and that the precision is too coarse for."""

    def test_they_are_named_with_their_drift_the_furthest_first(self) -> None:
        rows = [row("layers.0", relative=0.31, kind="gradient"), row("head", r=2.0, relative=0.62), row(relative=0.1)]
        (sentence,) = coarse(Report(precision="bf16-true", boundaries=rows))
        assert sentence.startswith("bf16-true is too coarse for output of head (62%), gradient of layers.0 (31%): ")
        assert sentence.endswith(": off by so much of its norm, and correct rounding explains it")

    def test_beyond_five_they_are_counted(self) -> None:
        (sentence,) = coarse(report(*(row(f"layers.{index}", relative=0.5) for index in range(LISTED + 2))))
        assert " and 2 more: " in sentence

    @pytest.mark.parametrize(
        ("fields", "told"),
        [
            ({"relative": COARSE}, True),
            ({"relative": COARSE - 0.01}, False),
            ({"relative": 1.0, "nonfinite": 2}, False),
            ({"relative": 1.0, "r": 1.0}, False),  # zero in theory, such as the gradient of a bias before a norm
            ({"relative": 1.0, "r": 1.0, "kind": "loss"}, True),  # a loss is never that
        ],
    )
    def test_a_quarter_of_the_norm_of_what_is_not_zero_in_theory(self, fields: dict[str, Any], told: bool) -> None:
        assert bool(coarse(report(row(**{"r": 2.9} | fields)))) is told

    def test_an_allowed_error_is_not_called_rounding(self) -> None:
        rows = [row("allowed", r=115.0, relative=0.33), row("head", r=82.0, relative=0.5), row("body", r=2.0, relative=0.4)]
        allowed = Report(precision="bf16-true", boundaries=rows, findings=[finding(severity="note")])
        allowed.facts["excused"] = ["output:head@1"]
        (sentence,) = coarse(allowed)
        assert sentence.startswith("bf16-true is too coarse for output of head (50%), output of body (40%): ")

    def test_where_a_check_fails_its_errors_are_told_alone(self) -> None:
        assert coarse(Report(boundaries=[row(relative=0.5)], findings=[finding()])) == []

    def test_every_form_says_it_in_the_same_words(self) -> None:
        far = row(r=2.5, relative=0.5)
        session = of(check(finding(severity="warning"), rows=(far,)))
        (sentence,) = coarse(Report(precision=session["tests"][0]["precision"], boundaries=[far]))
        assert sentence in terminal.session_text(session)
        assert sentence in markdown.text(session).replace("\\", "")
        assert ["too coarse", sentence] in Elements(page(session)).data("check-0")["facts"]


class TestTold:
    def test_facts_are_sentences(self) -> None:
        facts = {"noise_runs": 8, "decisions": 200, "flips": 3, "ops": 40, "shadowed": 30, "covered": 0.5, "opaque": {"aten.foo.default": 2}}
        made = Report(facts=facts | {"golden": "golden/a.safetensors"}, scaler={"scale": 65536.0, "skipped": 1, "collapsed": False})
        assert in_words(made) == [
            ("loss scale", "65,536, 1 step skipped"),
            ("noise floor", "estimated from 8 runs with random rounding"),
            ("decisions", "200 elements chosen by comparisons, top-k, arg-max or casts to integers, as in the run; 3 would differ in float32"),
            ("ops", "30 of 40 ops compared with float32, 50.0% of them to the end; the others have no low-precision input"),
            ("ops not followed", "aten.foo.default (2 times)"),
            ("golden", "golden/a.safetensors"),
        ]

    def test_a_fact_that_has_no_sentence_is_shown_as_it_is(self) -> None:
        assert in_words(report(some_number=[1, 2], decisions="odd", ops="odd")) == [
            ("some number", "[1, 2]"), ("decisions", "odd"), ("ops", "odd"),
        ]  # fmt: skip

    def test_a_loss_scale_that_is_drawn_is_not_told_too(self) -> None:
        assert in_words(Report(scaler={"scale": 2.0, "history": [[2.0, False]]})) == []
        assert followed(Report()) == ""
