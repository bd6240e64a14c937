"""The page of --drift-report=html in a browser: drawn, filtered, sorted, clicked to a culprit, in both themes, on paper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, executable
from sessions import check, finding, of, op, row, without_verdict
from views import column, painted, shown, text, texts

from precheck.report.session import Session

pytestmark = pytest.mark.skipif(executable() is None, reason="no Chromium here (chromium, google-chrome)")


def broken() -> dict[str, Any]:
    """Forty ops in three phases, of which the tenth gave Inf, and tensors of two modules."""
    ops = [op(f"aten.op{n}.default", module=f"layers.{n % 2}.attn", source=f"gpt.py:{n}", drift=1e-3 * (n + 1), first=5 * n) for n in range(20)]
    ops += [op("aten.mm.default", phase="backward", dtype="float32", module="layers.0", drift=2e-2, calls=7, source=f"gpt.py:{n}") for n in range(19)]
    ops += [op("aten.addcdiv_.default", phase="optimizer", module="", drift=0.0, opaque="no float32 kernel")]
    ops[10] = op("aten.exp.default", module="layers.0.attn", source="gpt.py:3", drift=float("inf"), nonfinite=4, first=50)
    gradient = row("layers.1.weight", 2.5, kind="parameter-gradient")
    rows = (row("layers.0.attn", float("inf"), nonfinite=4), row("layers.1", 1.5), gradient, row("output"))
    blamed = finding(op="aten.exp.default", module="layers.0.attn", source="gpt.py:3", tensor="layers.0.attn")
    near = finding("headroom", "warning", op="", source="", tensor="layers.1")
    told = check(blamed, near, rows=rows, ops=tuple(ops), name="test_gpt.py::test_broken")
    told["report"]["updates"] = [{"parameter": "layers.1.weight", "steps": 3, "arrived": 0.04, "uncertainty": 0.02}]
    return told


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    start = tmp_path_factory.mktemp("project")
    (start / "gpt.py").write_text("import torch\n\nscores = torch.exp(x)\n", encoding="utf8")
    healthy = check(rows=(row("layers.0", 1.25),), name="test_gpt.py::test_healthy")
    return of(healthy, without_verdict("test_gpt.py::test_new", "no golden for this test"), broken(), start=str(start))


@pytest.fixture
def opened(browser: Browser, session: Session, tmp_path: Path) -> Iterator[Browser]:
    """The page, opened; whatever a test does on it, its code raises nothing and asks for nothing."""
    yield shown(browser, session, tmp_path)
    browser.settle()
    assert browser.complaints == []
    assert len(browser.asked) == 1, "the page itself"


class TestFindings:
    def test_the_gravest_check_is_open_and_its_findings_come_first(self, opened: Browser) -> None:
        assert text(opened, "#check-title") == "test_gpt.py::test_broken"
        assert [words.split("\n")[0].split()[1] for words in texts(opened, "#findings .finding h4")] == ["ERROR", "WARNING"]
        first = text(opened, "#findings .finding")
        for words in ("overflow", "output of wide: 3 of 8 elements are Inf", "layers.0.attn", "gpt.py:3", "Cure: compute this module in float32"):
            assert words in first
        assert text(opened, ".excerpt .hit") == "3scores = torch.exp(x)", "the line's number, then the line"

    @pytest.mark.parametrize("verdict", [{}, {"error": "no golden"}], ids=["findings", "no verdict"])
    def test_end_with_the_command_that_repeats_the_check(self, browser: Browser, tmp_path: Path, verdict: dict[str, str]) -> None:
        again = 'pytest --precision=16-mixed "tests/test_gpt.py::test_it[<b>]"'
        told = check(finding(), again=again, **verdict)
        if verdict:
            del told["report"]
        shown(browser, of(told), tmp_path)
        assert texts(browser, "#findings > *")[-1] == f"To see this again: {again}"

    def test_every_check_is_a_click_away_and_the_address_keeps_it(self, opened: Browser) -> None:
        assert texts(opened, "#check-list .test") == ["test_broken", "test_new", "test_healthy"]
        opened.click("#check-list button:nth-child(2)")
        assert "no golden for this test" in text(opened, "#findings")
        assert opened.value("document.querySelector('#run').hidden && document.querySelector('#table').hidden")
        opened.click("#check-list button:nth-child(3)")
        assert "Closest to its limit: output of layers.0, r 1.25 of 3 allowed." in text(opened, "#findings")
        opened.reload()
        assert opened.value("location.hash") == "#0"
        assert text(opened, "#totals") == "3 checks: 1 with errors, 1 without a verdict, 1 without errors or warnings"

    def test_checks_are_filtered_by_name_and_precision(self, opened: Browser) -> None:
        opened.click("#checks input")
        opened.type("HEALTHY 16")
        assert texts(opened, "#check-list .test") == ["test_healthy"]


class TestChart:
    def test_draws_drift_floor_phases_and_findings(self, opened: Browser) -> None:
        for name in ("drift", "floor", "error", "forward", "backward"):
            assert painted(opened, name) > 10, name
        assert painted(opened, "note") == 0, "no finding is a note"

    def test_a_click_on_a_finding_leads_to_its_op_in_chart_and_table(self, opened: Browser) -> None:
        opened.click("#findings .jump")
        assert text(opened, "#run-chosen").startswith("aten.exp.default · relative error inf")
        assert "4 elements Inf or NaN" in text(opened, "#run-chosen")
        assert opened.value("document.querySelector('#grid tr[aria-selected=true]').dataset.index") == "10"
        assert opened.value("document.activeElement.id") == "run-canvas"

    def test_a_click_on_a_finding_leads_to_its_tensor(self, opened: Browser) -> None:
        opened.click("#findings .finding:nth-child(2) .jump")
        assert text(opened, "#run-chosen").startswith("output of layers.1 · r 1.5 of 3 allowed")
        assert text(opened, "#table-title") == "Every tensor at a module boundary"
        assert painted(opened, "limit") > 10

    def test_a_click_on_the_chart_chooses_what_is_under_it(self, opened: Browser) -> None:
        x, y, width = opened.place("#run-canvas")[:3]
        left, right = 62, 10  # margins, as plot.js has them
        opened.press(x + left + (width - left - right) * 10.5 / 40, y + 100)
        assert text(opened, "#run-chosen").startswith("aten.exp.default")

    def test_keys_choose_zoom_and_go_to_the_table(self, opened: Browser) -> None:
        opened.value("document.querySelector('#run-canvas').focus()")
        opened.key("Home")
        opened.key("ArrowRight")
        assert text(opened, "#run-chosen").startswith("aten.op1.default")
        before = painted(opened, "backward")
        opened.key("+")
        assert painted(opened, "backward") < before, "the first half has less of it"
        opened.key("End")
        assert text(opened, "#run-chosen").startswith("aten.addcdiv_.default")
        opened.key("Enter")
        assert opened.value("document.activeElement.className") == "grid"
        opened.key("ArrowUp")
        assert not text(opened, "#run-chosen").startswith("aten.addcdiv_.default")


class TestTable:
    def test_is_filtered_by_words_in_any_column(self, opened: Browser) -> None:
        opened.key("/")
        opened.type("LAYERS.1 op1")
        assert set(column(opened, "op")) == {f"aten.op{n}.default" for n in (1, 11, 13, 15, 17, 19)}
        assert text(opened, "#table-count") == "6 of 40 rows"
        opened.key("Escape")
        assert text(opened, "#table-count") == "40 rows"

    def test_is_sorted_by_a_click_on_a_head_and_the_other_way_by_another(self, opened: Browser) -> None:
        assert column(opened, "added")[:2] == ["inf", "0.02"], "what added most, at first"
        place = texts(opened, "#grid th").index("calls") + 1
        opened.click(f"#grid th:nth-child({place}) button")
        assert column(opened, "calls")[0] == "7"
        assert opened.value(f"document.querySelector('#grid th:nth-child({place})').ariaSort") == "descending"
        opened.click(f"#grid th:nth-child({place}) button")
        assert column(opened, "calls")[0] == "1"

    def test_is_narrowed_by_phase_dtype_module_and_cell(self, opened: Browser) -> None:
        opened.value("(() => { const s = document.querySelector('#select-phase'); s.value = 'optimizer'; s.dispatchEvent(new Event('change')); })()")
        assert column(opened, "not followed") == ["no float32 kernel"]
        opened.click("[data-path='layers.0.attn']")
        assert text(opened, "#table-count") == "0 of 40 rows", "both at once"
        opened.click("#table-within button")
        opened.click("#map button[aria-label^='19 calls'], #map button[aria-label^='133 calls']")
        assert text(opened, "#table-count") == "0 of 40 rows", "the phase is asked for still"
        opened.value("(() => { const s = document.querySelector('#select-phase'); s.value = ''; s.dispatchEvent(new Event('change')); })()")
        assert set(column(opened, "op")) == {"aten.mm.default"}


class TestModules:
    def test_show_the_worst_r_inside(self, opened: Browser) -> None:
        assert text(opened, "[data-path='layers.0.attn']").split() == ["attn", "inf", "inf"]
        assert "over" in opened.value("document.querySelector('[data-path=\"layers.0.attn\"] .heat').className")
        assert text(opened, "[data-path='layers.1']").split()[-3:] == ["1.5", "2.5", "2.5"]

    def test_are_walked_by_keys(self, opened: Browser) -> None:
        opened.value("document.querySelector('#tree [tabindex=\"0\"]').focus()")
        opened.key("ArrowLeft")
        assert len(texts(opened, "#tree [role=treeitem]")) == 1
        opened.key("ArrowRight")
        opened.key("ArrowDown")
        assert opened.value("document.activeElement.dataset.path") == "layers"
        opened.key("Enter")
        assert text(opened, "#table-within") == "module layers ✕"


def test_updates_show_what_arrived(opened: Browser) -> None:
    assert text(opened, ".update").split("\n")[0] == "layers.1.weight"
    assert "4% of 3 steps" in text(opened, ".update")
    assert opened.value("document.querySelector('.track .fill').classList.contains('lost')")


class TestThemes:
    def test_follows_the_system_and_the_switch_overrules_it(self, opened: Browser) -> None:
        ground = "getComputedStyle(document.body).backgroundColor"
        light = opened.value(ground)
        opened.prefer("dark")
        opened.settle()
        dark = opened.value(ground)
        assert dark != light
        assert painted(opened, "forward") > 10, "the chart is drawn anew"
        opened.value("document.querySelector('#theme input[value=light]').click()")
        opened.settle()
        assert opened.value(ground) == light
        assert painted(opened, "forward") > 10

    def test_paper_is_light_and_the_screen_is_as_it_was_afterwards(self, opened: Browser) -> None:
        opened.prefer("dark")
        before = opened.value("getComputedStyle(document.body).backgroundColor")
        assert opened.printed().startswith(b"%PDF")
        scheme = "getComputedStyle(document.documentElement).colorScheme"
        opened.value("window.dispatchEvent(new Event('beforeprint'))")
        assert opened.value(scheme) == "light"
        assert len(column(opened, "op")) == 40, "as many rows as grid.js prints, without a scroll bar"
        opened.value("window.dispatchEvent(new Event('afterprint'))")
        assert opened.value("getComputedStyle(document.body).backgroundColor") == before
        assert len(column(opened, "op")) < 40


def test_whatever_can_be_used_has_a_name(opened: Browser) -> None:
    nodes = opened.call("Accessibility.getFullAXTree")["nodes"]
    used = {"button", "textbox", "searchbox", "combobox", "radio", "application", "treeitem", "tree", "grid", "navigation", "image", "columnheader"}
    found = [(node["role"]["value"], node["name"]["value"]) for node in nodes if not node["ignored"] and node["role"]["value"] in used]
    assert {role for role, _ in found} >= used - {"textbox"}
    assert [role for role, name in found if not name.strip()] == []
    focusable = [node for node in nodes if any(each["name"] == "focusable" and each["value"]["value"] for each in node.get("properties", ()))]
    nameless = [node["role"]["value"] for node in focusable if not node["ignored"] and not node["name"]["value"].strip()]
    assert nameless in ([], ["main"]), "what the keyboard stops at; the main part is reached by a link only"


@pytest.mark.parametrize("width", [380, 800, 1600])
def test_nothing_runs_over_the_side(browser: Browser, session: Session, tmp_path: Path, width: int) -> None:
    shown(browser, session, tmp_path, width=width)
    assert browser.value("document.documentElement.scrollWidth") <= width
