"""The loss scale and the sizes of steps on the page, in a browser: drawn, walked by keys, clicked, with odd values and any names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import Browser, executable
from sessions import HOSTILE, check, finding, of, op
from views import focus, painted, shown, text, texts

import precheck
from precheck.formats import BF16, FP16

pytestmark = pytest.mark.skipif(executable() is None, reason="no Chromium here (chromium, google-chrome)")

TIGHTEST = "aten.mm.default at gpt.py:58"
SCALER = {"scale": 2.0**16, "steps": 40, "skipped": 4, "calibration": 3, "interval": 10, "safe": 100_000.0, "tightest": TIGHTEST}
HISTORY = [[2.0 ** (19 - step), True] for step in range(3)] + [[2.0**16, step == 20] for step in range(3, 40)]


def update(name: str, weight: Any, step: Any, arrived: Any, dtype: str = "bfloat16", **fields: Any) -> dict[str, Any]:
    fmt = {"bfloat16": BF16, "float16": FP16}.get(dtype, BF16)
    zone = list(fmt.half_ulp(weight)) if isinstance(weight, float) else ["inf", "inf"]
    plain = {"parameter": name, "dtype": dtype, "steps": 6, "edq": arrived, "arrived": arrived, "moved": 1, "sampled": 64, "absorbed": 0.5}
    more = {"lost_mass": 0.5, "rate": 1e-4, "held": False, "aged": None, "horizon": 0, "weight": weight, "step": step, "dead_zone": zone}
    return plain | more | fields


UPDATES = [update("bias", 3e-4, 7e-5, 1.0), update("matrix", 0.02, 8e-5, 0.6), update("norm", 1.0, 9e-5, 0.0, aged=0.0, horizon=700)]


def session(updates: list[dict[str, Any]], scaler: dict[str, Any]) -> Any:
    skips = finding("scaler-skip", "warning", op="", source="", tensor="", message="4 of 40 steps skipped")
    lost = finding("lost-update", op="", source="", tensor="norm", message="norm: 0% arrived")
    told = check(lost, skips, ops=(op(), op("aten.mm.default", phase="backward", source="gpt.py:58")))
    told["report"] |= {"updates": updates, "scaler": scaler}
    return of(told)


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Browser]:
    yield shown(browser, session(UPDATES, SCALER | {"history": HISTORY}), tmp_path)
    browser.settle()
    assert browser.complaints == []
    assert len(browser.asked) == 1, "the page itself"


class TestLossScale:
    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_draws_scale_skips_what_is_safe_and_calibration(self, opened: Browser, theme: str) -> None:
        opened.prefer(theme)
        opened.settle()
        for name in ("drift", "error", "floor", "scaler"):
            assert painted(opened, name, "scaler-canvas") > 10, name

    def test_says_what_is_safe_and_what_made_it(self, opened: Browser) -> None:
        assert text(opened, "#scaler-facts").startswith("40 steps, 4 skipped, 3 of them while the scale came down")
        assert f"largest safe scale, 100,000 (between 2¹⁶ and 2¹⁷), by {TIGHTEST}" in text(opened, "#scaler-key")
        opened.click("#scaler-jump button")
        assert text(opened, "#run-chosen").startswith("aten.mm.default")
        assert "history" not in text(opened, "#fact-rows"), "it is drawn"

    def test_keys_go_from_step_to_step_and_from_skip_to_skip(self, opened: Browser) -> None:
        focus(opened, "#scaler-canvas")
        opened.key("ArrowDown")
        assert text(opened, "#scaler-chosen").startswith("step 1 · loss scale 2¹⁹ (524,288) · skipped · calibration")
        for key, step in (("End", "step 40"), ("ArrowUp", "step 21"), ("ArrowUp", "step 3"), ("ArrowRight", "step 4"), ("Home", "step 1")):
            opened.key(key)
            assert text(opened, "#scaler-chosen").split(" · ")[0] == step

    def test_a_click_chooses_the_step_under_it(self, opened: Browser) -> None:
        x, y, width = opened.place("#scaler-canvas")[:3]
        left, right = 62, 12  # margins, as scaleplot.js has them
        opened.press(x + left + (width - left - right) * 20.5 / 40, y + 60)
        assert text(opened, "#scaler-chosen").startswith("step 21 · loss scale 2¹⁶ (65,536) · skipped")

    def test_zooming_leaves_calibration_out_of_view_and_comes_back(self, opened: Browser) -> None:
        focus(opened, "#scaler-canvas")
        opened.key("End")
        opened.key("+")
        assert painted(opened, "scaler", "scaler-canvas") == 0
        opened.click("#scaler-zoom button:nth-child(3)")
        assert painted(opened, "scaler", "scaler-canvas") > 10

    def test_a_finding_leads_to_it(self, opened: Browser) -> None:
        opened.click("#findings .finding.warning .jump")
        assert opened.value("document.activeElement.id") == "scaler-canvas"
        assert text(opened, "#scaler-chosen").startswith("step 21 "), "the first after calibration"

    def test_is_left_out_where_no_history_was_kept(self, browser: Browser, tmp_path: Path) -> None:
        shown(browser, session([], {"scale": 65536.0, "skipped": 0}), tmp_path)
        assert browser.value("document.querySelector('#scaler').hidden && document.querySelector('#updates').hidden")
        assert "65,536, 0 steps skipped" in text(browser, "#fact-rows")
        assert browser.complaints == []

    @pytest.mark.parametrize("scales", [[0.0], ["inf", "nan"], [2.0**-149, 0.0, "inf"]], ids=str)
    def test_scales_that_left_their_range_are_drawn(self, browser: Browser, tmp_path: Path, scales: list[Any]) -> None:
        shown(browser, session([], {"history": [[scale, True] for scale in scales], "safe": None}), tmp_path)
        assert painted(browser, "error", "scaler-canvas") > 0, "thin crosses, whose edges are blended"
        heights = browser.value("[...scaler.history.scale].map((scale) => scaler.plot.axis.at(scale))")
        top, bottom = browser.value("[scaler.plot.top, scaler.plot.bottom]")
        assert all(top < height < bottom for height in heights)
        assert browser.complaints == []


def across(browser: Browser, weight: float, step: float) -> list[str]:
    """The colours of the pixels from the middle of a point to the right."""
    pixel = f"Math.floor(sizes.plot.x.at({weight})) + away, Math.floor(sizes.plot.y.at({step})), 1, 1"
    colour = f"sizes.plot.pen.getImageData({pixel}).data.slice(0, 3).join(', ')"
    return list(browser.value(f"Array.from({{length: 8}}, (_, away) => 'rgb(' + {colour} + ')')"))


class TestStepSizes:
    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_draws_the_zone_and_each_parameter_by_what_arrived(self, opened: Browser, theme: str) -> None:
        opened.prefer(theme)
        opened.settle()
        assert painted(opened, "warning", "sizes-canvas") > 10, "the zone's edge"
        good, error = (opened.value(f"sizes.plot.colours.{name}") for name in ("good", "error"))
        arrived, lost = across(opened, 3e-4, 7e-5), across(opened, 1.0, 9e-5)
        assert arrived[0] == good, "a dot"
        assert error in lost[3:7], "a ring"
        assert error != lost[0], "an empty one"
        assert "3 parameters, 1 of them lost" in opened.value("document.querySelector('#sizes-canvas').ariaLabel")

    def test_the_zones_edge_is_where_the_format_has_it(self, opened: Browser) -> None:
        for dtype, fmt in (("bfloat16", BF16), ("float16", FP16)):
            for weight in (3e-5, 7e-4, 0.03, 0.9, 1.7):  # no powers of two, where a step down has half the way
                stairs = (f"(() => {{ const p = sizes.plot; [p.x.low, p.x.high] = [-6, 1]; const at = p.x.at({weight});"
                          f"const s = p.stairs(zonesOf([{{dtype: '{dtype}'}}])[0]);"
                          "return s.find(([from], i) => i % 2 === 0 && from <= at && at < s[i + 1][0])[1]; })()")  # fmt: skip
                assert opened.value(stairs) == pytest.approx(opened.value(f"sizes.plot.y.at({fmt.half_ulp(weight)[1]})"), abs=1e-6)  # pixels

    def test_keys_go_by_size_and_enter_goes_to_the_row_and_back(self, opened: Browser) -> None:
        focus(opened, "#sizes-canvas")
        walked = []
        for key in ("Home", "ArrowRight", "End", "ArrowDown"):
            opened.key(key)
            walked.append(text(opened, "#sizes-chosen").split(" · ")[0])
        assert walked == ["bias", "matrix", "norm", "matrix"]
        opened.key("ArrowUp")
        told = text(opened, "#sizes-chosen")
        assert "weights are 1, where bfloat16 drops a change smaller than 0.00391 up or 0.00195 down" in told
        assert "0% of 6 steps arrived, judged over 700 steps of the optimizer alone" in told
        opened.key("Enter")
        assert opened.value("document.activeElement.ariaLabel") == "norm"
        opened.key("Enter")
        assert opened.value("document.activeElement.id") == "sizes-canvas"

    def test_a_click_on_a_point_goes_to_its_row_and_hovering_names_it(self, opened: Browser) -> None:
        x, y = opened.place("#sizes-canvas")[:2]
        across, down = opened.value("[sizes.plot.x.at(0.02), sizes.plot.y.at(8e-5)]")
        opened.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + across + 2, y=y + down - 2)
        opened.settle()
        assert text(opened, "#sizes-tip").startswith("matrix · a step is 8.0e-5")
        assert opened.value("!document.querySelector('#sizes-tip').hidden")
        opened.press(x + across + 2, y + down - 2)
        assert opened.value("document.activeElement.ariaLabel") == "matrix"

    def test_paper_has_a_drawing_of_its_own(self, opened: Browser) -> None:
        before = opened.value("document.querySelector('#sizes-canvas').width")
        opened.value("window.dispatchEvent(new Event('beforeprint'))")
        wide = [opened.value(f"document.querySelector('#{name}-canvas').width") for name in ("run", "scaler", "sizes")]
        assert wide == [700 * 3] * 3, "pixels of the page, as page.css has it, by dots a pixel"
        opened.value("window.dispatchEvent(new Event('afterprint'))")
        assert opened.value("document.querySelector('#sizes-canvas').width") == before

    def test_a_finding_leads_to_its_parameter(self, opened: Browser) -> None:
        opened.click("#findings .finding.error .jump:last-child")
        assert opened.value("document.activeElement.id") == "sizes-canvas"
        assert text(opened, "#sizes-chosen").startswith("norm · ")

    def test_odd_sizes_have_lanes_of_their_own(self, browser: Browser, tmp_path: Path) -> None:
        odd = [update("zero", 0.0, 1e-4, 1.0), update("idle", 0.1, 0.0, 0.0), update("burst", "inf", "nan", 0.9), update("plain", 0.1, 1e-3, 1.0)]
        shown(browser, session(odd, {}), tmp_path)
        zero, plain, burst = (browser.value(f"sizes.plot.x.at({value})") for value in ("0", "0.1", "Infinity"))
        assert zero < plain < burst
        assert browser.value("sizes.plot.y.at(0) > sizes.plot.y.at(1e-3) && sizes.plot.y.at(1e-3) > sizes.plot.y.at(NaN)")
        focus(browser, "#sizes-canvas")
        browser.key("End")
        assert text(browser, "#sizes-chosen").startswith("burst · a step is NaN; weights are inf")
        assert browser.complaints == []

    def test_updates_without_sizes_have_no_picture(self, browser: Browser, tmp_path: Path) -> None:
        shown(browser, session([{"parameter": "norm", "steps": 3, "arrived": 0.04, "uncertainty": 0.02}], {}), tmp_path)
        assert browser.value("document.querySelector('#sizes').hidden && !document.querySelector('#updates').hidden")
        assert texts(browser, "#findings .jump")[-1:] != ["Show the sizes of its steps"]


def watched(dtype: torch.dtype) -> precheck.Report:
    """Six steps: in bfloat16 with a rate that it loses, else in 16-mixed with a loss scale that is too high at first."""
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 16, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, enabled=dtype == torch.float32)
    with precheck.watch(precision="16-mixed" if scaler.is_enabled() else None) as report:
        for _ in range(6):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(8, 16, dtype=dtype)).float().square().mean() * 2.0**8).backward()
            scaler.step(optimizer)
            scaler.update()
    return report


def test_what_watch_reports_is_drawn(browser: Browser, tmp_path: Path) -> None:
    reports = [json.loads(watched(dtype).to_json()) for dtype in (torch.bfloat16, torch.float32)]
    shown(browser, of(*(check(name=str(place)) | {"report": report} for place, report in enumerate(reports))), tmp_path)
    browser.value("showCheck(0)")
    assert "of 2 parameters" in browser.value("document.querySelector('#sizes-canvas').ariaLabel")
    assert "dead zone of bfloat16" in text(browser, "#sizes-key")
    browser.value("showCheck(1)")
    skipped = reports[1]["scaler"]["skipped"]
    assert skipped > 0
    assert text(browser, "#scaler-facts").startswith(f"6 steps, {skipped} skipped")
    assert "largest safe scale" in text(browser, "#scaler-key")
    assert browser.complaints == []


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_names_are_text(browser: Browser, tmp_path: Path, name: str) -> None:
    named = [update(name, 0.5, 1e-4, 0.1, dtype=name), update("tame", 0.5, 1e-3, 0.9)]
    shown(browser, session(named, SCALER | {"history": HISTORY, "tightest": name}), tmp_path)
    focus(browser, "#sizes-canvas")
    browser.key("Home")
    browser.key("Enter")
    tags = browser.value("[...document.querySelectorAll('*')].map((e) => e.tagName).join(' ')").split()
    assert not {"IMG", "IFRAME", "DETAILS", "TEXTAREA"} & set(tags)
    assert tags.count("SCRIPT") == 3, "a summary, a check, the page's own"
    assert browser.value("document.activeElement.parentElement.id") == "update-rows"
    assert browser.complaints == []
    assert len(browser.asked) == 1
    assert browser.value("document.documentElement.scrollWidth") <= 1400


def test_many_parameters_and_steps_are_drawn_by_few_elements(browser: Browser, tmp_path: Path) -> None:
    """2 000 parameters, 20 000 steps: the page stays small, and every one can be reached."""
    many = [update(f"layers.{n}.weight", 10.0 ** (-3 + 3 * n / 2000), 1e-4, 1 - n / 2000) for n in range(2000)]
    history = [[2.0 ** (16 + step // 100% 3), step % 300 == 299] for step in range(20_000)]
    path = tmp_path / "drift.html"
    shown(browser, session(many, SCALER | {"history": history}), tmp_path)
    assert len(path.read_text(encoding="utf8")) < 2_000_000, "800 bytes a parameter, a dozen a change of the scale, and the page's own 120 000"
    assert browser.value("document.querySelectorAll('*').length") < 1500
    for name in ("drift", "error", "floor"):
        assert painted(browser, name, "scaler-canvas") > 10, name
    focus(browser, "#sizes-canvas")
    browser.key("Home")
    browser.key("Enter")
    assert browser.value("document.activeElement.ariaLabel") == "layers.0.weight", "the last of the rows, as all of it arrived"
    assert browser.complaints == []
