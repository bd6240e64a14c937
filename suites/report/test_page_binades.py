"""Exponents on the page, in a browser: drawn, told in words, walked by keys, reached from the table and from findings, with any names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import Browser, executable
from sessions import HOSTILE, binades, check, finding, of, op, row
from views import focus, painted, shown, text, texts

import precheck
from precheck.findings import Binades

pytestmark = pytest.mark.skipif(executable() is None, reason="no Chromium here (chromium, google-chrome)")

HIGH = binades("high", elements=100, least=14, counts=(40, 30, 20, 10))
TINY = binades("tiny", "gradient", elements=1000, least=-28, counts=(500, 0, 0, 300, 0, 199), zeros=1)
SCALED = binades("scaled.weight", "parameter-gradient", dtype="float32", elements=8, least=-30, counts=(8,), scale=2.0**16)
MADE = binades("", "op", op="aten.exp.default", phase="forward", module="deep", source="gpt.py:7", dtype="bfloat16", elements=1 << 20, nonfinite=2)


def session(*exponents: Binades, **told: Any) -> Any:
    ops = op("aten.exp.default", module="deep", source="gpt.py:7"), op()
    blamed = finding(op="aten.exp.default", module="deep", source="gpt.py:7", tensor="")
    return of(check(blamed, rows=(row("tiny", kind="gradient"), row("high"), row("other")), ops=ops, exponents=exponents, **told))


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Browser]:
    yield shown(browser, session(HIGH, TINY, SCALED, MADE), tmp_path)
    assert browser.complaints == []
    assert len(browser.asked) == 1


def held(browser: Browser) -> dict[str, str]:
    return dict(zip(texts(browser, "#binades-held dt"), texts(browser, "#binades-held dd"), strict=True))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_bars_are_coloured_by_what_becomes_of_them(opened: Browser, theme: str) -> None:
    opened.prefer(theme)
    opened.value("showBinades(0)")
    opened.settle()
    assert text(opened, "#binades-facts").startswith("output of high · 100 elements, stored as float16")
    assert painted(opened, "drift", "binades-canvas") > 100, "held"
    assert painted(opened, "error", "binades-canvas") > 100, "beyond 65504"
    assert painted(opened, "half", "binades-canvas") == 0, "none is subnormal"
    opened.value("showBinades(1)")
    assert painted(opened, "half", "binades-canvas") > 100


def test_what_lies_outside_each_format_is_said_in_words(opened: Browser) -> None:
    opened.value("showBinades(0)")
    assert held(opened) == {
        "float16": "30% beyond 65504",
        "bfloat16": "holds all of it with all its digits",
        "fp8 e4m3fn": "100% beyond 448",
        "fp8 e5m2": "30% beyond 57344",
    }


def test_of_a_gradient_what_a_loss_scale_would_do_is_said_too(opened: Browser) -> None:
    """500 of 999 below 2^-25 are lost, 300 at 2^-25 are rounded up, 199 at 2^-23 are subnormal; 2^16 times as large all are in range."""
    opened.value("showBinades(1)")
    told = held(opened)
    assert told["float16"] == "50.1% becomes zero, below 2⁻²⁵ · 49.9% subnormal, with fewer digits, below 2⁻¹⁴"
    assert told["float16 × 2¹⁶"] == "holds all of it with all its digits"
    assert "0.1% zero" in text(opened, "#binades-facts")


def test_a_scaled_gradient_is_judged_under_its_scale_first(opened: Browser) -> None:
    opened.value("showBinades(2)")
    assert list(held(opened))[:2] == ["float16 × 2¹⁶", "float16"]
    assert "under a loss scale of 2¹⁶ (65,536), divided out here" in text(opened, "#binades-facts")
    assert painted(opened, "drift", "binades-canvas") > 100
    assert painted(opened, "error", "binades-canvas") == 0


def test_a_sample_and_what_is_infinite_anyway_are_told(opened: Browser) -> None:
    opened.value("showBinades(3)")
    told = text(opened, "#binades-facts")
    assert told.startswith("result of aten.exp.default at gpt.py:7 · 1,048,576 elements, stored as bfloat16, 18 of them looked at")
    assert "2 elements Inf or NaN in the reference too" in told


def test_what_fits_least_comes_first(opened: Browser) -> None:
    assert opened.value("binades.at") == 1, "half of it is lost"


def test_another_format_can_colour_the_bars(opened: Browser) -> None:
    opened.value("showBinades(0)")
    opened.click("#binades-lead label:nth-of-type(2)")
    assert painted(opened, "error", "binades-canvas") == 0, "bfloat16 holds all"
    assert next(iter(held(opened))) == "bfloat16"
    assert "all digits in bfloat16" in text(opened, "#binades-key")


def test_keys_go_from_bar_to_bar_and_from_tensor_to_tensor(opened: Browser) -> None:
    opened.value("showBinades(0)")
    focus(opened, "#binades-canvas")
    opened.key("End")
    assert text(opened, "#binades-chosen") == "2¹⁷ to 2¹⁸ (1.3e+5 to 2.6e+5) · 10 elements, 10% · in float16 beyond the largest"
    opened.key("ArrowLeft")
    assert text(opened, "#binades-chosen").startswith("2¹⁶ to 2¹⁷ ")
    opened.key("Home")
    assert text(opened, "#binades-chosen").endswith("in float16 held with all digits")
    opened.key("ArrowDown")
    assert (opened.value("binades.at"), opened.value("document.querySelector('#binades-of').value")) == (1, "1")
    for _ in range(3):
        opened.key("ArrowUp")
    assert opened.value("binades.at") == 0


def test_a_click_chooses_the_bar_under_the_pointer(opened: Browser) -> None:
    opened.value("showBinades(0)")
    x, y = opened.place("#binades-canvas")[:2]
    across = opened.value("binades.plot.x(15) + binades.plot.step / 2")
    opened.press(x + across, y + 100)
    assert text(opened, "#binades-chosen").startswith("2¹⁵ to 2¹⁶ ")
    assert text(opened, "#binades-tip").startswith("2¹⁵ to 2¹⁶ ")


def test_bars_stand_where_their_exponents_are(opened: Browser) -> None:
    opened.value("showBinades(0)")
    pixel = "(e) => binades.plot.pen.getImageData(binades.plot.x(e) + binades.plot.step / 2, binades.plot.bottom - 3, 1, 1).data.slice(0, 3).join()"
    ground, *bars = opened.value(f"[5, 14, 15, 16, 17, 18].map({pixel})")
    assert bars[-1] == ground, "nothing there"
    assert bars[0] == bars[1] != bars[2] == bars[3] != ground


def test_the_table_and_the_list_of_tensors_choose_what_is_shown(opened: Browser) -> None:
    opened.value("showKind('rows')")
    opened.value("choose(1)")
    assert opened.value("binades.at") == 0
    opened.value("choose(2)")
    assert opened.value("binades.at") == 0, "a tensor without a histogram changes nothing"
    opened.value("(() => { const e = document.querySelector('#binades-of'); e.value = '2'; e.dispatchEvent(new Event('change')); })()")
    assert text(opened, "#binades-facts").startswith("gradient of scaled.weight")


def test_a_finding_leads_to_its_exponents(opened: Browser) -> None:
    opened.value("[...document.querySelectorAll('#findings .jump')].find((e) => e.innerText === 'Show its exponents').click()")
    opened.settle()
    assert opened.value("document.activeElement.id") == "binades-canvas"
    assert text(opened, "#binades-facts").startswith("result of aten.exp.default")


def test_paper_has_a_drawing_of_its_own(opened: Browser) -> None:
    opened.value("window.dispatchEvent(new Event('beforeprint'))")
    assert opened.value("document.querySelector('#binades-canvas').width") == 700 * 3, "pixels of the page, as page.css has it, by dots a pixel"
    opened.value("window.dispatchEvent(new Event('afterprint'))")


def test_is_left_out_where_nothing_was_counted(browser: Browser, tmp_path: Path) -> None:
    shown(browser, session(), tmp_path)
    assert browser.value("document.querySelector('#binades').hidden")
    assert "Show its exponents" not in texts(browser, "#findings .jump")
    assert browser.complaints == []


@pytest.mark.parametrize(
    "odd",
    [
        binades(counts=(), zeros=16), binades(counts=(), nonfinite=16), binades(least=-1023, counts=(1,) * 2046), binades(least=-127, counts=(1,)),
        binades(kind="gradient", scale=3e4), binades(kind="gradient", scale=2.0**-20), binades(counts=(2**40,), elements=2**40),
    ],
    ids=["zeros", "infinite", "everywhere", "least", "odd-scale", "small-scale", "many"],
)  # fmt: skip
def test_odd_histograms_are_drawn(browser: Browser, tmp_path: Path, odd: Binades) -> None:
    shown(browser, session(odd), tmp_path)
    focus(browser, "#binades-canvas")
    for key in ("End", "ArrowRight", "Home", "ArrowDown"):
        browser.key(key)
    shades = ("drift", "half", "error", "soft")
    assert sum(painted(browser, name, "binades-canvas") for name in shades) > 20
    assert len(held(browser)) >= 4
    assert browser.complaints == []


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_names_are_text(browser: Browser, tmp_path: Path, name: str) -> None:
    named = binades("", "op", op=name, source=name, module=name, phase="forward")
    shown(browser, session(binades(name, dtype=name), named), tmp_path)
    for place in (0, 1):
        browser.value(f"jumpToBinades({place})")
    tags = browser.value("[...document.querySelectorAll('*')].map((e) => e.tagName).join(' ')").split()
    assert not {"IMG", "IFRAME", "DETAILS", "TEXTAREA"} & set(tags)
    assert tags.count("SCRIPT") == 3, "a summary, a check, the page's own"
    assert not set(text(browser, "#binades")) & set("\u202e\u2066\u200b\x00\x1b")
    assert browser.complaints == []
    assert len(browser.asked) == 1
    assert browser.value("document.documentElement.scrollWidth") <= 1400


def test_thousands_of_tensors_are_reached_by_few_elements(browser: Browser, tmp_path: Path) -> None:
    many = [binades(f"layers.{n}", elements=1000, least=-n % 30, counts=(n + 1,) * 12) for n in range(3000)]
    shown(browser, session(*many), tmp_path)
    assert browser.value("document.querySelectorAll('*').length") < 1500
    assert "2,500 more" in text(browser, "#binades-more")
    browser.value("showBinades(2998)")
    focus(browser, "#binades-canvas")
    browser.key("ArrowDown")
    browser.key("ArrowDown")
    assert text(browser, "#binades-facts").startswith("output of layers.2999 ")
    assert browser.complaints == []


def test_what_watch_reports_is_drawn(browser: Browser, tmp_path: Path) -> None:
    with precheck.watch() as report:
        x = torch.full((8,), 300.0, dtype=torch.float16)
        kept = (x * x).float().sum()
    assert kept.isinf()
    shown(browser, of(check() | {"report": json.loads(report.to_json())}), tmp_path)
    assert text(browser, "#binades-facts").startswith("result of aten.mul.Tensor at ")
    assert held(browser)["float16"] == "100% beyond 65504"
    assert "Show its exponents" in texts(browser, "#findings .jump")
    assert browser.complaints == []
