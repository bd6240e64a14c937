"""The page with names of any kind, without checks, and with more ops than a table of elements could hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import Browser, executable
from sessions import HOSTILE, check, finding, hostile, of, op
from views import column, painted, shown, text, texts

pytestmark = pytest.mark.skipif(executable() is None, reason="no Chromium here (chromium, google-chrome)")

MANY = 20_000
CULPRIT = 11_111


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_hostile_names_are_text(browser: Browser, tmp_path: Path, name: str) -> None:
    shown(browser, hostile(name), tmp_path)
    elements = "[...document.querySelectorAll('*')].map((e) => e.tagName).join(' ')"
    for number in range(3):
        browser.click(f"#check-list button:nth-child({number + 1})")
        drawn = browser.value(elements).split()
        assert not {"IMG", "IFRAME", "DETAILS", "TEXTAREA"} & set(drawn)
        assert drawn.count("SCRIPT") == 5, "a summary, three checks, the page's own"
    browser.value("openCheck(0)")
    browser.click("#findings .jump")
    assert browser.value("document.querySelectorAll('#grid tr[aria-selected=true]').length") == 1
    assert browser.complaints == []
    assert len(browser.asked) == 1
    assert browser.value("document.documentElement.scrollWidth") <= 1400
    title = browser.value("(() => { openCheck(0); return document.querySelector('#check-title').textContent; })()")
    seen = [name.split()[0][:20]] if name.split() and name.isascii() else []
    assert all(part in title for part in seen)
    assert not set(title) & set("\u202e\u2066\u200b\x00\x1b\n"), "marks of direction and control characters are spelled out"


def test_a_session_without_checks_says_so(browser: Browser, tmp_path: Path) -> None:
    shown(browser, of(), tmp_path)
    seen = "[...document.querySelectorAll('main *')].filter((e) => e.getBoundingClientRect().height).map((e) => e.id || e.tagName)"
    assert browser.value(seen) == ["nothing", "CODE", "CODE"], "no panel, and no part of one"
    assert text(browser, "#totals") == "no checks"
    assert browser.complaints == []


@pytest.fixture(scope="class")
def many(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Browser:
    phases = ("forward", "backward", "optimizer")
    ops = [
        op(f"aten.op{n % 50}.default", phase=phases[3 * n // MANY], module=f"layers.{n % 300}", drift=1e-4 * (1 + n % 97), first=n)
        for n in range(MANY)
    ]
    place = {"phase": "backward", "module": "layers.11", "source": "gpt.py:3"}
    ops[CULPRIT] = op("aten.exp.default", **place, drift=float("inf"), nonfinite=4, first=CULPRIT)
    blamed = finding(op="aten.exp.default", **place)
    return shown(browser, of(check(blamed, ops=tuple(ops))), tmp_path_factory.mktemp("many"))


class TestManyOps:
    """20 000 of them: the table has few elements and reaches every row, the chart draws all. What that takes is in no test's power to say."""

    def test_are_all_drawn_by_few_elements(self, many: Browser) -> None:
        assert many.value("document.querySelectorAll('#grid tr').length") < 80
        assert many.value("document.querySelectorAll('*').length") < 3000
        assert text(many, "#table-count") == "20,000 rows"
        for name in ("drift", "floor", "error", "forward", "backward", "optimizer"):
            assert painted(many, name) > 10, name

    def test_are_reached_one_and_all(self, many: Browser) -> None:
        many.click("#findings .jump")
        assert many.value("document.querySelector('#grid tr[aria-selected=true]').dataset.index") == str(CULPRIT)
        place = texts(many, "#grid th").index("#") + 1
        many.click(f"#grid th:nth-child({place}) button")
        assert column(many, "#")[0] == "0"
        many.value("document.querySelector('.grid').focus()")
        many.key("End")
        assert column(many, "#")[-1] == str(MANY - 1)
        assert many.value("document.querySelector('#grid table').ariaRowCount") == str(MANY + 1)
