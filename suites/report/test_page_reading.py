"""The page as its reader sees it, in a browser: legends, titles of axes, whole names, narrow screens, tensors that passed a closer look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browser import Browser, executable
from sessions import binades, check, finding, of, op, row
from views import column, painted, shown, text, texts

from precheck.findings import Loss
from precheck.report.session import Session

pytestmark = pytest.mark.skipif(executable() is None, reason="no Chromium here (chromium, google-chrome)")

LONG = "tests/models/language/test_a_file_with_a_rather_long_name_of_its_own.py"
NARROW = 390  # pixels of a telephone


def whole(**told: Any) -> dict[str, Any]:
    """A check with something in every panel."""
    ops = op(drift=0.01), op("aten.exp.default", drift=0.02, phase="backward")
    losses = [Loss(step, 2.0 / step, 2.0 / step, 0.01) for step in range(1, 9)]
    made = check(finding(severity="warning"), rows=(row(r=2.0),), ops=ops, losses=tuple(losses), exponents=(binades(),), **told)
    made["report"]["updates"] = [{"parameter": "layers.1.weight", "steps": 3, "arrived": 0.04, "uncertainty": 0.02}]
    return made


def session(*checks: dict[str, Any]) -> Session:
    return of(*(checks or (whole(name=f"{LONG}::test_it"), whole(name=f"{LONG}::test_that_it_also_has_a_long_name[16-mixed]"))))


def words(browser: Browser, plot: str) -> list[str]:
    """All that a chart writes when it is drawn again."""
    return list(
        browser.value(
            f"(() => {{ const pen = {plot}.pen, found = [], write = pen.fillText; pen.fillText = (word) => found.push(word);"
            f" const {{ constructor }} = {plot}; {plot}.draw(-1); pen.fillText = write; return found; }})()"
        )
    )


class TestLegend:
    def test_names_what_is_drawn_and_nothing_else(self, browser: Browser, tmp_path: Path) -> None:
        shown(browser, session(whole()), tmp_path)
        first = "relative error of an op's result (L2), of its worst call"
        assert texts(browser, "#run-key li") == [first, "one rounding in the op's dtype", "◆warning"]
        assert texts(browser, "#binades-key li") == ["all digits in float16"]

    def test_names_what_goes_wrong_where_it_does(self, browser: Browser, tmp_path: Path) -> None:
        high = binades(least=14, counts=(4, 4, 4), elements=14, zeros=2)
        shown(browser, session(check(finding(), ops=(op(nonfinite=3, drift=float("inf")),), exponents=(high,))), tmp_path)
        assert texts(browser, "#run-key li")[2:] == ["has Inf or NaN", "▲error"]
        assert texts(browser, "#binades-key li") == ["all digits in float16", "beyond the largest number of float16", "zero"]


class TestAxes:
    def test_have_titles(self, browser: Browser, tmp_path: Path) -> None:
        shown(browser, session(whole()), tmp_path)
        assert "relative error" in words(browser, "chart.plot")
        assert {"loss", "relative error", "step"} <= set(words(browser, "losses.plot"))
        assert {"elements", "magnitude"} <= set(words(browser, "binades.plot"))

    def test_few_elements_are_counted_from_zero_in_whole_numbers(self, browser: Browser, tmp_path: Path) -> None:
        shown(browser, session(check(exponents=(binades(counts=(1,), elements=1),))), tmp_path)
        assert browser.value("binades.plot.axis.ticks(6, 1).map(([, label]) => label)") == ["0", "1"]
        assert browser.value("binades.plot.axis.at(0) === binades.plot.bottom")

    def test_many_beside_few_are_on_a_log_scale_which_says_so(self, browser: Browser, tmp_path: Path) -> None:
        shown(browser, session(check(exponents=(binades(counts=(1, 100_000), elements=100_001),))), tmp_path)
        assert "elements (log scale)" in words(browser, "binades.plot")
        assert browser.value("binades.plot.bottom - binades.plot.axis.at(1)") > 3, "one element can be seen"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_equal_losses_show_both_lines(browser: Browser, tmp_path: Path, theme: str) -> None:
    shown(browser, session(whole()), tmp_path, theme=theme)
    for name in ("drift", "reference"):
        assert painted(browser, name, "losses-canvas") > 100, name


def test_a_step_that_only_the_run_lost_is_told(browser: Browser, tmp_path: Path) -> None:
    shown(browser, session(check(losses=(Loss(1, 2.0, 1.9), Loss(2, float("nan"), 1.8)))), tmp_path)
    assert text(browser, "#losses-facts").endswith("1 of them Inf or NaN where the reference is finite")


def test_nothing_is_said_of_what_nobody_chose(browser: Browser, tmp_path: Path) -> None:
    shown(browser, session(), tmp_path)
    assert set(texts(browser, ".chosen")) == {""}


def test_a_tensor_that_passed_a_closer_look_is_not_drawn_as_beyond_its_limit(browser: Browser, tmp_path: Path) -> None:
    told = check(rows=(row("far", 5.0), row("near", 1.0)))
    told["report"]["facts"] = {"excused": ["output:far@1"], "unstable": []}
    shown(browser, session(told), tmp_path)
    assert "beyond its limit, but passed on a closer look" in texts(browser, "#run-key li")
    assert "beyond its limit" not in texts(browser, "#run-key li")
    assert browser.value("[judged(chart.series, 0), judged(chart.series, 1)]") == ["half", "drift"]
    assert browser.value("document.querySelectorAll('#grid .hot, #tree .over').length") == 0
    browser.value("choose(0)")
    assert "r 5 of 3 allowed · passed on a closer look" in text(browser, "#run-chosen")


def test_a_functions_result_is_what_it_returns(browser: Browser, tmp_path: Path) -> None:
    shown(browser, session(check(rows=(row("turned()", 5.0, kind="returned"), row("turned()", 2.0, kind="returned", step=2)))), tmp_path)
    for chosen, words in enumerate(("what turned() returns · r 5 of 3", "what turned() returns, step 2 · r 2 of 3")):
        browser.value(f"choose({chosen})")
        assert text(browser, "#run-chosen").startswith(words)


class TestNames:
    def test_of_files_and_tests_are_whole_in_the_list(self, browser: Browser, tmp_path: Path) -> None:
        shown(browser, session(), tmp_path)
        assert set(texts(browser, "#check-list .file")) == {"test_a_file_with_a_rather_long_name_of_its_own.py"}
        assert "test_that_it_also_has_a_long_name" in texts(browser, "#check-list .test")
        cut = "[...document.querySelectorAll('#check-list span')].filter((e) => e.scrollWidth > e.clientWidth + 1 && e.clientWidth).length"
        assert browser.value(cut) == 0

    def test_of_files_have_as_many_folders_as_tell_them_apart(self, browser: Browser, tmp_path: Path) -> None:
        names = ("a/x/test_one.py", "b/x/test_one.py", "a/test_two.py", "test_one.py")
        shown(browser, session(*(check(name=f"{name}::test_it") for name in names)), tmp_path)
        assert texts(browser, "#check-list .file") == ["a/x/test_one.py", "b/x/test_one.py", "test_two.py", "test_one.py"]

    def test_a_check_without_a_precision_says_so(self, browser: Browser, tmp_path: Path) -> None:
        shown(browser, session(whole(precision="")), tmp_path)
        assert text(browser, "#check-facts .tag") == "its own precision"


class TestNarrow:
    """On a telephone."""

    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_nothing_is_wider_than_the_screen(self, browser: Browser, tmp_path: Path, theme: str) -> None:
        many = [binades(f"layers.{number}.{'attention.' * 9}weight") for number in range(9)]
        shown(browser, session(whole(), check(finding(), exponents=tuple(many))), tmp_path, width=NARROW, theme=theme)
        for number in range(2):
            browser.value(f"showCheck({number})")
            assert browser.value("document.documentElement.scrollWidth") <= NARROW
            boxes = "[...document.querySelectorAll('select, input, canvas')].map((e) => e.getBoundingClientRect().right)"
            assert max(browser.value(boxes)) <= NARROW

    def test_the_table_of_ops_keeps_op_line_and_error(self, browser: Browser, tmp_path: Path) -> None:
        shown(browser, session(), tmp_path, width=NARROW)
        seen = "[...document.querySelectorAll('#grid th')].filter((e) => e.getBoundingClientRect().width).map((e) => e.innerText)"
        assert browser.value(seen) == ["op", "line", "rel. error"]
        assert browser.value("(() => { const box = document.querySelector('.grid'); return box.scrollWidth <= box.clientWidth; })()")
        assert column(browser, "rel. error") == ["0.02", "0.01"]
        browser.click("#grid tr[data-index='1']")
        assert "wide" in text(browser, "#table-chosen"), "what is left out of the row is told below"

    def test_a_wide_screen_has_all_columns(self, browser: Browser, tmp_path: Path) -> None:
        shown(browser, session(), tmp_path)
        assert browser.value("[...document.querySelectorAll('#grid th')].every((e) => e.getBoundingClientRect().width)")


def test_a_short_table_leaves_no_room_below_it(browser: Browser, tmp_path: Path) -> None:
    shown(browser, session(), tmp_path)
    assert browser.value("document.querySelector('.grid').clientHeight") < 130, "two rows and a head"


def test_an_error_that_its_test_allows_is_said_in_words_and_no_other_is_there(browser: Browser, tmp_path: Path) -> None:
    shown(browser, of(check(finding(), rows=(row(),), tolerated={"overflow": "a mask"})), tmp_path)
    assert "1 expected or allowed" in text(browser, "#check-facts")
    assert "no other errors or warnings" in text(browser, "#check-facts"), "its sign stands below"
    assert "allowed by the test: a mask" in text(browser, "#findings")
