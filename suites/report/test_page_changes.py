"""The page of what changed between two sessions, in a browser and as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browser import Browser, executable
from sessions import HOSTILE, check, finding, hostile, of, row, without_verdict
from test_html import Elements
from views import focus, text, texts

from precheck.report.changes import between, left_out
from precheck.report.html import compared as page

drawn = pytest.mark.skipif(executable() is None, reason="no Chromium here (chromium, google-chrome)")

BEFORE = of(check(finding(), name="t.py::mended"), check(rows=(row(r=1.0),), name="t.py::drifts"), check(name="t.py::gone"))
NOW = of(
    check(name="t.py::mended"), check(rows=(row(r=2.0),), name="t.py::drifts"), check(finding("nan"), name="t.py::new"),
    without_verdict("t.py::mute"),
)  # fmt: skip


def test_the_page_holds_the_changes_in_their_order_and_how_many_there_are() -> None:
    html = page(BEFORE, NOW)
    told = Elements(html).data("summary")
    kinds = told["changes"]["kind"]
    changes = between(BEFORE, NOW)
    assert [kinds["words"][at] for at in kinds["at"]] == [change.kind for change in changes]
    assert '<h2 id="changes-title">without a verdict: 1, new errors: 1, tensors further off: 1' in html
    assert '<p id="totals" class="totals">checks: 3 before and 4 now</p>' in html
    for sentence in left_out(BEFORE, NOW, changes):
        assert f"<li>{sentence}</li>" in html


def test_an_infinite_factor_has_its_word() -> None:
    told = Elements(page(of(check(rows=(row(r=1.0),))), of(check(rows=(row(r=float("inf")),))))).data("summary")
    assert told["changes"]["factor"] == ["inf"]


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_name_adds_no_element_and_arrives_whole(name: str) -> None:
    elements, tame = Elements(page(of(), hostile(name))), Elements(page(of(), hostile("tame")))
    assert elements.tags == tame.tags
    assert elements.run() == tame.run()
    assert any(name in word for word in elements.data("summary")["changes"]["nodeid"]["words"])


def shown(browser: Browser, folder: Path, before: Any, now: Any, **view: Any) -> Browser:
    path = folder / "changes.html"
    path.write_text(page(before, now), encoding="utf8")
    browser.open(path, **view)
    return browser


@drawn
class TestPage:
    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_rows_are_worst_first(self, browser: Browser, tmp_path: Path, theme: str) -> None:
        shown(browser, tmp_path, BEFORE, NOW, theme=theme)
        rows = [line.split("\t") for line in texts(browser, "#grid tbody tr[data-index]")]
        assert [row[0] for row in rows] == ["no verdict", "new error", "error grew", "check gone", "new check", "finding gone"]
        assert rows[2][3:] == ["output of wide: r 1 -> 2 of 3 allowed", "2"]
        assert text(browser, "#changes-title").startswith("without a verdict: 1, new errors: 1")
        assert text(browser, "#totals") == "checks: 3 before and 4 now"
        assert browser.complaints == []
        assert len(browser.asked) == 1

    def test_a_row_is_told_in_full_and_keys_go_from_row_to_row(self, browser: Browser, tmp_path: Path) -> None:
        long = check(finding("nan", message="m" * 900), name="t.py::mended")
        shown(browser, tmp_path, BEFORE, of(long))
        focus(browser, "#grid .grid")
        browser.key("Home")
        assert "m" * 900 in text(browser, "#changes-chosen")
        browser.key("ArrowDown")
        assert text(browser, "#changes-chosen").startswith("check gone · t.py::")
        browser.key("Enter")
        assert browser.complaints == []

    def test_words_and_kinds_filter(self, browser: Browser, tmp_path: Path) -> None:
        shown(browser, tmp_path, BEFORE, NOW)
        browser.key("/")
        browser.type("drifts")
        assert text(browser, "#changes-count") == "1 of 6 rows"
        browser.value("(() => { const e = document.querySelector('#filter'); e.value = ''; e.dispatchEvent(new Event('input')); })()")
        browser.value("(() => { const e = document.querySelector('#changes-kind'); e.value = 'error'; e.dispatchEvent(new Event('change')); })()")
        assert len(texts(browser, "#grid tbody tr[data-index]")) == 1

    def test_nothing_changed_is_said(self, browser: Browser, tmp_path: Path) -> None:
        shown(browser, tmp_path, NOW, NOW)
        assert text(browser, "#changes-title") == "nothing changed"
        assert browser.value("document.querySelector('#changes').hidden")
        assert browser.complaints == []

    @pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
    def test_names_are_text(self, browser: Browser, tmp_path: Path, name: str) -> None:
        shown(browser, tmp_path, of(), hostile(name))
        browser.click("#grid tbody tr[data-index]")
        tags = browser.value("[...document.querySelectorAll('*')].map((e) => e.tagName).join(' ')").split()
        assert not {"IMG", "IFRAME", "DETAILS", "TEXTAREA"} & set(tags)
        assert tags.count("SCRIPT") == 2, "a summary, the page's own"
        assert not set(text(browser, "main")) & set("\u202e\u2066\u200b\x00\x1b")
        assert browser.complaints == []
        assert browser.value("document.documentElement.scrollWidth") <= 1400

    def test_thousands_of_changes_are_few_elements(self, browser: Browser, tmp_path: Path) -> None:
        shown(browser, tmp_path, of(), of(*(check(name=f"t.py::{number}") for number in range(5000))))
        assert browser.value("document.querySelectorAll('*').length") < 600
        focus(browser, "#grid .grid")
        browser.key("End")
        assert text(browser, "#changes-chosen").startswith("new check · t.py::4999")
        assert browser.complaints == []
