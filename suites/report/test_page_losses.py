"""The loss beside the reference's on the page, in a browser: drawn, walked by keys, told in words, with odd values and any names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import Browser, executable
from sessions import HOSTILE, check, of
from views import focus, painted, shown, text, texts

import precheck
from precheck.findings import Loss

pytestmark = pytest.mark.skipif(executable() is None, reason="no Chromium here (chromium, google-chrome)")

MEASURED = tuple(Loss(step, 4.0 / step + 0.004 * step, 4.0 / step, 0.002) for step in range(1, 41))
INF = float("inf")
NAN = float("nan")


def session(*losses: Loss) -> Any:
    return of(check(losses=losses))


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Browser]:
    yield shown(browser, session(*MEASURED), tmp_path)
    assert browser.complaints == []
    assert len(browser.asked) == 1


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_draws_both_and_how_far_they_are_apart(opened: Browser, theme: str) -> None:
    opened.prefer(theme)
    opened.settle()
    for name in ("drift", "reference", "floor"):
        assert painted(opened, name, "losses-canvas") > 50, name
    assert painted(opened, "error", "losses-canvas") == 0, "all are finite"
    assert texts(opened, "#losses-key li") == ["this run", "reference", "relative error that correct rounding explains"]
    assert "Loss over 40 steps" in opened.value("document.querySelector('#losses-canvas').ariaLabel")


def test_says_where_they_are_furthest_apart(opened: Browser) -> None:
    """0.16 of 0.1 in the last step."""
    told = text(opened, "#losses-facts")
    assert told == "40 losses; furthest apart: step 40 · loss 0.26, in the reference 0.1 · 160% apart, rounding explains 2%"


def test_keys_and_clicks_choose_a_step(opened: Browser) -> None:
    focus(opened, "#losses-canvas")
    opened.key("Home")
    assert text(opened, "#losses-chosen") == "step 1 · loss 4.004, in the reference 4 · 0.1% apart, rounding explains 0.05%"
    opened.key("ArrowRight")
    assert text(opened, "#losses-chosen").startswith("step 2 · ")
    x, y = opened.place("#losses-canvas")[:2]
    opened.press(x + opened.value("losses.plot.x(20)"), y + 60)
    assert text(opened, "#losses-chosen").startswith("step 21 · ")


def test_heights_are_those_of_the_losses(opened: Browser) -> None:
    low, high = opened.value("[losses.plot.losses.at(0.1), losses.plot.losses.at(4)]")
    top, middle = opened.value("[losses.plot.top, losses.plot.middle]")
    assert top < high < low < middle, "greater is higher"
    assert opened.value("losses.plot.apart.y(1.6) < losses.plot.apart.y(0.02)")
    ticks = opened.value("losses.plot.losses.ticks(5).map(([y, word]) => [y, losses.plot.losses.at(Number(word))])")
    assert len(ticks) >= 3
    assert all(y == pytest.approx(expected, abs=0.5) for y, expected in ticks), "labels say where they stand"


def test_zooming_shows_a_stretch(opened: Browser) -> None:
    focus(opened, "#losses-canvas")
    opened.key("End")
    opened.key("+")
    assert opened.value("[losses.view.from, losses.view.to]") == [20, 40]
    opened.click("#losses-zoom button:nth-child(3)")
    assert opened.value("[losses.view.from, losses.view.to]") == [0, 40]


def test_one_step_is_told_and_not_drawn(browser: Browser, tmp_path: Path) -> None:
    shown(browser, session(Loss(1, 2.5, 2.0)), tmp_path)
    assert text(browser, "#losses-facts") == "step 1 · loss 2.5, in the reference 2 · 25% apart"
    assert browser.value("document.querySelector('#losses-canvas').hidden")
    assert browser.value("getComputedStyle(document.querySelector('#losses-line')).display") == "none"
    assert browser.complaints == []


def test_is_left_out_where_there_is_none(browser: Browser, tmp_path: Path) -> None:
    shown(browser, session(), tmp_path)
    assert browser.value("document.querySelector('#losses').hidden")
    assert browser.complaints == []


def test_losses_of_two_lines_are_drawn_apart(browser: Browser, tmp_path: Path) -> None:
    both = [Loss(step, value, value, source=source) for step in range(1, 11) for value, source in ((1.0, "gan.py:7"), (-50.0, "gan.py:9"))]
    shown(browser, session(*both), tmp_path)
    assert texts(browser, "#losses-of option") == ["gan.py:7", "gan.py:9"]
    assert "loss 1, in" in text(browser, "#losses-facts")
    browser.value("(() => { const e = document.querySelector('#losses-of'); e.value = 'gan.py:9'; e.dispatchEvent(new Event('change')); })()")
    assert text(browser, "#losses-facts").startswith("10 losses; furthest apart: step 1 · loss -50, in the reference -50 · 0% apart")
    assert browser.complaints == []


@pytest.mark.parametrize(
    ("losses", "crosses"),
    [
        ([Loss(1, 1.0, 1.0), Loss(2, INF, 1.5), Loss(3, NAN, 2.0), Loss(4, 1.0, 1.0)], True),
        ([Loss(1, NAN, NAN), Loss(2, INF, -INF)], True),
        ([Loss(1, 0.0, 0.0, 0.0), Loss(2, 0.0, 0.0, 0.0)], False),
        ([Loss(1, 1e30, 1e-30), Loss(2, -1e30, 1e-30)], False),
        ([Loss(1, 7.0, 7.0), Loss(2, 7.0, 7.0)], False),
        ([Loss(1, 1e-7, 1.1e-7), Loss(2, 1e-7, 1.2e-7)], False),
    ],
    ids=["overflow", "nothing-known", "zeros", "far-apart", "constant", "small"],
)
def test_odd_losses_are_drawn(browser: Browser, tmp_path: Path, losses: list[Loss], crosses: bool) -> None:
    shown(browser, session(*losses), tmp_path)
    assert (painted(browser, "error", "losses-canvas") > 0) is crosses
    focus(browser, "#losses-canvas")
    browser.key("End")
    assert text(browser, "#losses-chosen").startswith(f"step {len(losses)} · ")
    assert browser.complaints == []


def test_steps_without_a_finite_loss_are_counted(browser: Browser, tmp_path: Path) -> None:
    shown(browser, session(Loss(1, 1.0, 1.0), Loss(2, INF, 1.5), Loss(3, NAN, 2.0), Loss(4, INF, INF)), tmp_path)
    assert text(browser, "#losses-facts").endswith("2 of them Inf or NaN where the reference is finite")


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_names_are_text(browser: Browser, tmp_path: Path, name: str) -> None:
    shown(browser, session(*(Loss(step, 1.0, 1.0, source=source) for step in (1, 2) for source in (name, "tame.py:1"))), tmp_path)
    tags = browser.value("[...document.querySelectorAll('*')].map((e) => e.tagName).join(' ')").split()
    assert not {"IMG", "IFRAME", "DETAILS", "TEXTAREA"} & set(tags)
    assert tags.count("SCRIPT") == 3, "a summary, a check, the page's own"
    assert not set(text(browser, "#losses")) & set("\u202e\u2066\u200b\x00\x1b")
    assert browser.complaints == []
    assert browser.value("document.documentElement.scrollWidth") <= 1400
    browser.value("showLosses(current().losses[0][4])")
    assert browser.value("losses.series.length") == 2


def test_many_steps_are_drawn_and_reached(browser: Browser, tmp_path: Path) -> None:
    shown(browser, session(*(Loss(step, 1.0 + 1 / step, 1.0) for step in range(1, 20_001))), tmp_path)
    assert browser.value("document.querySelectorAll('*').length") < 1500
    assert painted(browser, "drift", "losses-canvas") > 100
    focus(browser, "#losses-canvas")
    browser.key("End")
    assert text(browser, "#losses-chosen").startswith("step 20,000 · ")
    assert browser.complaints == []


def test_what_measure_reports_is_drawn(browser: Browser, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, inputs = torch.nn.Linear(8, 8), torch.randn(4, 8)
    optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731
    report = precheck.measure(model, inputs, precision="bf16-true", loss=lambda out: out.square().mean(), optimizer=optimizer, steps=6)
    shown(browser, of(check() | {"report": json.loads(report.to_json())}), tmp_path)
    assert text(browser, "#losses-facts").startswith("6 losses; furthest apart: step ")
    assert painted(browser, "drift", "losses-canvas") > 100
    assert browser.complaints == []
