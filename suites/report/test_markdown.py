"""Markdown: what it says, that it stays within its size, and that names mean nothing to it."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
from sessions import HOSTILE, check, finding, hostile, of, op, row, without_verdict

from precheck.findings import Loss
from precheck.report.markdown import CAP, code, grid, text

markdown_it = pytest.importorskip("markdown_it", reason="needs markdown-it-py")


def parsed(words: str) -> list[Any]:
    return list(markdown_it.MarkdownIt("commonmark").enable("table").enable("strikethrough").parse(words))


def spans(words: str) -> list[Any]:
    return [child for token in parsed(words) for child in token.children or ()]


def cells(words: str) -> list[list[str]]:
    """The tables' rows, each cell as its text."""
    rows: list[list[str]] = []
    tokens = parsed(words)
    for before, token in pairwise(tokens):
        if token.type == "tr_open":
            rows.append([])
        elif before.type in ("td_open", "th_open"):
            rows[-1].append("".join(child.content for child in token.children or ()))
    return rows


def test_failed_checks_come_first_with_what_and_where_and_cure() -> None:
    healthy = check(rows=(row(r=1.25),), name="a.py::test_well")
    told = {"name": "a.py::test_broken", "cure": "in_float32(model)", "again": "pytest a.py"}
    broken = check(finding(), rows=(row(r=float("inf"), nonfinite=3), row("wide#2[1]")), ops=(op(nonfinite=3),), **told)
    words = text(of(healthy, without_verdict("a.py::test_new"), broken))
    assert words.splitlines()[0] == "## precheck: 1 of 3 checks failed, 1 without a verdict"
    headings = [token.children[1].content for before, token in pairwise(parsed(words)) if (before.tag, before.nesting) == ("h3", 1)]
    assert headings == ["a.py::test_new", "a.py::test_broken"]
    for said in ("**overflow**", "`models/gpt.py:88`", "module `wide`", "`aten.mul.Tensor`", "cure: compute this module in float32"):
        assert said in words
    assert "\n```python\nin_float32(model)\n```\n" in words
    assert "\nTo see this again: `pytest a.py`\n" in words
    table = cells(words)
    assert ["3 Inf/NaN", "3.00", "wide", "output", "float16", "1"] in table
    assert ["1.00", "3.00", "wide[1] in call 2", "output", "float16", "1"] in table
    assert ["3 Inf/NaN", "1", "aten.mul.Tensor", "models/gpt.py:88", "wide", "float16"] in table
    assert table[-3:] == [
        ["❌", "a.py::test_new", "16-mixed", "", "no verdict"],
        ["❌", "a.py::test_broken", "16-mixed", "inf of 3.00", "overflow"],
        ["✅", "a.py::test_well", "16-mixed", "1.25 of 3.00", ""],
    ]


def test_a_cast_is_called_one_where_it_is_blamed_and_in_the_table() -> None:
    words = text(of(check(finding(op="aten._to_copy.default"), ops=(op("aten._to_copy.default"),))))
    assert "`models/gpt.py:88`, module `wide`, `cast (aten._to_copy)`" in words
    assert ["1%", "1", "cast (aten._to_copy)", "models/gpt.py:88", "wide", "float16"] in cells(words)


def test_what_a_test_allows_is_no_failure_and_says_why() -> None:
    words = text(of(check(finding(), finding("nan", "warning"), tolerated={"overflow": "known"})))
    assert words.startswith("## precheck: 1 of 1 check passed, 1 of them with warnings, 1 of them with errors that are known or allowed\n")
    assert "**overflow** (known)" in words
    assert "✅" not in words, "there is a warning left"
    alone = text(of(check(finding(), tolerated={"overflow": "known to fail"})))
    assert alone.startswith("## precheck: 1 of 1 check passed, 1 of them with errors that are known or allowed\n")
    assert [alone.count(mark) for mark in "☑✅"] == [1, 0]
    assert "overflow (known to fail)" in alone


def test_a_session_without_checks_says_so() -> None:
    assert "No checks." in text(of())


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_names_mean_nothing(name: str) -> None:
    """Neither HTML nor a link, an image, a heading or a table of the name's own making; and nothing of ours is broken by it."""
    words = text(hostile(name))
    plain, tokens = text(hostile("plain")), parsed(words)
    ours = {token.content.strip() for token in parsed(plain) if token.type == "html_block"}
    assert {token.content.strip() for token in tokens if token.type == "html_block"} == ours
    assert not {child.type for child in spans(words)} & {"html_inline", "link_open", "image", "s_open", "em_open"}
    shape = [token.type for token in parsed(plain)]
    assert [token.type for token in tokens] == shape
    assert [len(line) for line in cells(words)] == [len(line) for line in cells(plain)]
    assert not re.search(r"[\u202a-\u202e\u2066-\u2069\x00-\x09\x0b-\x1f]", words)
    bare = re.sub(r"(`+)[^\n]*?\1(?!`)", "", re.sub(r"^(`{3,}).*?^\1$", "", words, flags=re.S | re.M))
    assert not re.search(r"https?://|www\.|@\w", bare), "GitHub makes links and mentions of these outside code"


@pytest.mark.parametrize("name", ["a|b", "a\\|b", "a`b", "`", "``a", "|", "\\", "a\\\\"])
def test_a_name_in_a_table_keeps_its_cell(name: str) -> None:
    (_, (first, second)) = cells("\n".join(grid(("a", "b"), [(code(name), "next")])))
    assert second == "next"
    assert first.replace(" ", "") == name


def test_it_stays_within_its_size_and_says_what_is_left_out() -> None:
    many = of(*(check(finding(message=f"finding {number} " + "é" * 400), rows=(row(r=9.0),), name=f"t.py::test_{number}") for number in range(500)))
    words = text(many)
    assert 0.8 * CAP < len(words.encode()) <= CAP
    shown = words.count("### ")
    assert 0 < shown < 500
    assert f"the details of {500 - shown} more checks and the table of all" in words
    assert "json:PATH" in words
    assert words.startswith("## precheck: 500 of 500 checks failed")


def test_a_table_too_long_is_left_out_alone() -> None:
    words = text(of(check(finding(), name="t.py::test_bad"), *(check(name=f"t.py::test_{number}_{'x' * 100}") for number in range(600))))
    assert words.count("### ") == 1
    assert "Left out, as the report would pass 60000 bytes: the table of all checks." in words


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ((), ""),
        ((Loss(1, 2.5, 2.0, 0.01),), "loss in step 1: 2.5, in the reference 2, 25% apart (rounding explains 0.5%)"),
        ((Loss(1, 2.0, 2.0), Loss(2, -1.5, -1.0)), "loss in step 2: -1.5, in the reference -1, 50% apart; the furthest of 2"),
        ((Loss(1, 9.0, 2.0), Loss(2, float("nan"), 2.0)), "loss in step 2: nan, in the reference 2; the furthest of 2"),
        ((Loss(1, 1.0, 0.0), Loss(2, float("nan"), float("nan"))), "loss in step 1: 1, in the reference 0; the furthest of 2"),
        ((Loss(3, float("-inf"), 1.0, float("inf")),), "loss in step 3: -inf, in the reference 1"),
    ],
    ids=["none", "one", "two", "undefined", "zero", "infinite"],
)
def test_the_loss_furthest_from_the_references_is_told(losses: tuple[Loss, ...], said: str) -> None:
    words = text(of(check(finding(), losses=losses)))
    assert [line.content for line in parsed(words) if line.type == "inline" and line.content.startswith("loss in")] == ([said] if said else [])
