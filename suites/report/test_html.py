"""The page of --drift-report=html: what is in it, and that names mean nothing to it. How it behaves is in test_page.py."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from sessions import HOSTILE, check, finding, hostile, of, op, row, without_verdict

from precheck.findings import OpRow
from precheck.formats import BF16, E4M3FN, FP16, Format
from precheck.report.excerpts import AROUND, excerpt
from precheck.report.html import page

VOID = {"meta", "input", "br", "link", "img"}


class Elements(HTMLParser):
    """The elements of a page in order, what scripts and styles hold, and whether each that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self.tags: list[tuple[str, tuple[Any, ...]]] = []
        self.held: list[tuple[dict[str, Any], str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("script", "style"):
            self.held.append((dict(attrs) | {"tag": tag}, ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], f"</{tag}> closes nothing"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            attributes, before = self.held[-1]
            self.held[-1] = attributes, before + data

    def run(self) -> list[tuple[str, str]]:
        """What a browser runs or applies: scripts and styles that are not data."""
        return [(attributes["tag"], text) for attributes, text in self.held if "type" not in attributes]

    def data(self, name: str) -> Any:
        return next(json.loads(text) for attributes, text in self.held if attributes.get("id") == name)


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_name_adds_no_element_and_arrives_whole(name: str) -> None:
    elements, tame = Elements(page(hostile(name))), Elements(page(hostile("tame")))
    assert elements.tags == tame.tags, "the same elements with the same attributes as of a page of tame names"
    assert not elements.open
    assert elements.run() == tame.run()
    told = elements.data("check-0")
    assert {each["module"] for each in told["findings"]} == {name}
    assert name in told["ops"]["op"]["words"]
    assert name in told["rows"]["tensor"]["words"]
    assert name in elements.data("summary")["checks"][0]["nodeid"]
    assert elements.data("summary")["checks"][2]["error"] == name


def test_data_hold_nothing_that_html_reads() -> None:
    for attributes, text in Elements(page(hostile("</script><!--<script>&amp;"))).held:
        if "type" in attributes:
            assert not set("<>&") & set(text)


def test_the_policy_lets_only_the_pages_own_code_and_style_run() -> None:
    elements = Elements(page(of(check(finding()))))
    policy = next(dict(attributes)["content"] for tag, attributes in elements.tags if dict(attributes).get("http-equiv") == "Content-Security-Policy")
    for tag, text in elements.run():
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert len(elements.run()) == 2
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


def test_nothing_is_fetched() -> None:
    for _, attributes in Elements(page(of(check(finding())))).tags:
        for name, value in attributes:
            assert name not in ("src", "srcset", "data", "poster", "style", "onclick")
            assert name != "href" or value.startswith("#")


def test_a_finding_has_its_meaning_its_cure_and_its_lines(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "gpt.py").write_text("".join(f"line {number}\n" for number in range(1, 11)), encoding="utf8")
    told = check(finding(source="models/gpt.py:5", cause_rule="integer-rounding"))
    (only,) = Elements(page(of(told, start=str(tmp_path)))).data("check-0")["findings"]
    assert only["meaning"].startswith("finite inputs gave Inf")
    assert only["remedy"].startswith("keep them as integers"), "the cause's cure, where a cause is known"
    assert only["excerpt"] == {"first": 5 - AROUND, "line": 5, "lines": [f"line {number}" for number in range(5 - AROUND, 6 + AROUND)]}


def test_a_cast_is_called_one_and_leads_to_its_op() -> None:
    told = check(finding(op="aten._to_copy.default"), ops=(op(), op("aten._to_copy.default")))
    data = Elements(page(of(told))).data("check-0")
    assert (data["findings"][0]["op"], data["findings"][0]["at_op"]) == ("cast (aten._to_copy)", 1)
    assert data["ops"]["op"]["words"] == ["aten.mul.Tensor", "cast (aten._to_copy)"]


class TestExcerpt:
    def test_is_cut_at_the_ends_of_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "a.py").write_text("one\ntwo", encoding="utf8")
        assert excerpt("a.py:1", tmp_path) == {"first": 1, "line": 1, "lines": ["one", "two"]}

    @pytest.mark.parametrize(
        "source",
        ["", "a.py", "a.py:0", "a.py:3", "a.py:-1", "a.py:²", "gone.py:1", "secret.txt:1", "a\x00.py:1", "\ud800.py:1", f"{'x' * 9000}.py:1"],
    )
    def test_is_empty_where_there_is_none(self, tmp_path: Path, source: str) -> None:
        (tmp_path / "a.py").write_text("one\ntwo", encoding="utf8")
        (tmp_path / "secret.txt").write_text("secret", encoding="utf8")
        assert excerpt(source, tmp_path) == {}

    def test_a_file_that_is_no_text_has_none(self, tmp_path: Path) -> None:
        (tmp_path / "a.py").write_bytes(b"\xff\xfe\x00")
        assert excerpt("a.py:1", tmp_path) == {}

    def test_another_encoding_is_read_as_the_file_says(self, tmp_path: Path) -> None:
        (tmp_path / "a.py").write_bytes("# coding: latin-1\nü".encode("latin-1"))
        assert excerpt("a.py:2", tmp_path)["lines"][-1] == "ü"


class TestCulprit:
    """Which row a finding leads to."""

    OPS = (op("aten.exp.default"), op(module="narrow"), op(), op(phase="backward"))

    @pytest.mark.parametrize(
        ("wish", "found"),
        [({}, 2), ({"module": "narrow"}, 1), ({"phase": "backward"}, 3), ({"module": "elsewhere"}, 1), ({"op": "aten.exp.default"}, 0),
         ({"op": "aten.log.default"}, -1), ({"op": ""}, -1), ({"source": "models/gpt.py:89"}, -1)],
    )  # fmt: skip
    def test_is_told_by_op_and_line_then_by_module_and_phase(self, wish: dict[str, Any], found: int) -> None:
        told = check(finding(**wish), ops=self.OPS)
        assert Elements(page(of(told))).data("check-0")["findings"][0]["at_op"] == found

    def test_of_several_rows_of_a_tensor_the_worst_is_meant(self) -> None:
        told = check(finding(), finding("nan", tensor=""), rows=(row("other", 50.0), row(r=1.0), row(r=float("inf")), row(r=7.0)))
        assert [each["at_row"] for each in Elements(page(of(told))).data("check-0")["findings"]] == [2, -1]


def test_numbers_keep_four_digits_and_infinity_its_word() -> None:
    told = check(rows=(row(r=1.23456789), row(r=float("inf"))), ops=(op(drift=float("nan")), op(drift=0.000123456)))
    data = Elements(page(of(told))).data("check-0")
    assert data["rows"]["r"] == [1.235, "inf"]
    assert data["ops"]["drift"] == ["nan", 0.0001235]


def test_the_list_of_checks_counts_findings_and_names_the_worst_determined_row() -> None:
    rows = (row("near", 2.0), row("noise", 9.0, relative=90.0))
    told = check(finding(), finding("headroom", "warning"), rows=rows, tolerated={"overflow": "known"})
    first, second = Elements(page(of(told, without_verdict(error="why")))).data("summary")["checks"]
    assert first["counts"] == {"error": 0, "warning": 1, "note": 0, "allowed": 1}
    assert first["worst"] == {"tensor": "near", "kind": "output", "r": 2.0, "allowed": 3.0}, "the other is zero but for rounding"
    assert second == {"nodeid": "tests/test_gpt.py::test_new", "precision": "16-mixed", "verdict": "none", "error": "why"}


class TestTotals:
    """What the header says of the checks."""

    def header(self, *checks: dict[str, Any]) -> str:
        return page(of(*checks)).partition('<p id="totals" class="totals">')[2].partition("</p>")[0]

    def test_a_check_with_warnings_is_not_among_the_good(self) -> None:
        warned = check(finding(severity="warning"))
        assert self.header(check(finding()), without_verdict(), warned, warned, check(finding(severity="note"))) == (
            '5 checks: <b class="error">1 with errors</b>, <b class="error">1 without a verdict</b>, '
            '<b class="warning">2 passed with warnings</b>, <b class="good">1 without errors or warnings</b>'
        )

    def test_what_there_is_none_of_is_left_out(self) -> None:
        assert self.header(check(finding(severity="warning"))) == '1 check: <b class="warning">1 passed with warnings</b>'
        assert self.header() == "no checks"

    def test_what_a_test_allows_does_not_count(self) -> None:
        assert "without errors or warnings" in self.header(check(finding(severity="warning"), tolerated={"overflow": "known"}))


def test_a_tensor_that_a_closer_look_passed_is_marked_and_is_not_the_worst() -> None:
    told = check(rows=(row("far", 5.0), row("near", 2.0)))
    told["report"]["facts"] = {"excused": ["output:far@1"], "unstable": []}
    elements = Elements(page(of(told)))
    assert elements.data("check-0")["rows"]["excused"] == [1, 0]
    assert elements.data("summary")["checks"][0]["worst"]["tensor"] == "near"


def test_an_empty_session_says_what_would_be_here() -> None:
    uses = "if it uses the fixture <code>check_precision</code> or <code>watch_precision</code>."
    assert f"No check ran in this session. A test is listed here {uses}" in page(of())
    assert "No check ran" not in page(of(check()))


def test_one_rounding_is_drawn_for_low_formats_only() -> None:
    roundings = Elements(page(of())).data("summary")["roundings"]
    assert roundings["bfloat16"] == 0.42 * BF16.unit_roundoff
    assert not {"float32", "float64"} & set(roundings)


class TestScaler:
    """The loss scale of a watched run, as the page is given it."""

    HISTORY = ([4.0, True], [2.0, False], [2.0, False], [4.0, True], [2.0, True], ["inf", False])

    def told(self, scaler: dict[str, Any], *ops: OpRow) -> Any:
        told = check(ops=ops)
        told["report"]["scaler"] = scaler
        return Elements(page(of(told))).data("check-0")["scaler"]

    def test_is_a_run_for_each_change_and_the_places_of_the_skipped(self) -> None:
        history = self.told({"history": self.HISTORY, "safe": 3.0})["history"]
        assert history == {"runs": [[4.0, 1], [2.0, 2], [4.0, 1], [2.0, 1], ["inf", 1]], "skipped": [0, 3, 4]}

    def test_leads_to_the_op_that_is_tightest_in_the_backward_pass_if_it_runs_in_both(self) -> None:
        ops = op("aten.exp.default"), op(), op(phase="backward"), op(source="models/gpt.py:89")
        assert self.told({"history": self.HISTORY, "tightest": "aten.mul.Tensor at models/gpt.py:88"}, *ops)["at_op"] == 2
        assert self.told({"history": self.HISTORY, "tightest": ""}, *ops)["at_op"] == -1

    def test_of_a_measured_run_is_as_it_was(self) -> None:
        assert self.told({"scale": 65536.0, "skipped": 0}) == {"scale": 65536.0, "skipped": 0}


@pytest.mark.parametrize("fmt", [BF16, FP16, E4M3FN], ids=str)
def test_a_format_is_given_by_what_its_dead_zone_is_made_of(fmt: Format) -> None:
    precision, least = Elements(page(of())).data("summary")["formats"][fmt.dtype_name]
    for power in (-140, -20, -6, -1, 0, 5):  # below the least exponent all numbers are equally far apart
        weight = max(1.5 * 2.0**power, fmt.min_subnormal)
        assert fmt.half_ulp(weight)[1] == 2.0 ** (max(math.floor(math.log2(weight)), least) - precision)


def test_a_report_of_older_fields_is_drawn() -> None:
    told = check(finding())
    del told["report"]["updates"], told["report"]["findings"][0]["ranks"], told["tolerated"], told["failed"]
    session = of(told)
    del session["start"], session["torch"]
    assert Elements(page(session)).data("check-0")["updates"] == []
