"""Each form of a report shows what became of planted faults (--precheck-selftest), and refuses a damaged record of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sessions import check, of, outcome, planted

from precheck.report import html, markdown, sarif, terminal
from precheck.report.session import Session, SessionError, load, text

DEAF = "tests/test_gpt.py::test_deaf"
CAUGHT = planted(outcome("overflow", size=float("inf")), outcome("drift"), outcome("stale"))
MISSED = planted(
    outcome("overflow", "inapplicable", text="nothing overflows"), outcome("drift"), outcome("stale", "unnoticed", text="it is another's", size=0.0),
    name=DEAF, call=2,
)  # fmt: skip
LET = planted(outcome("drift", "allowed", rule="accumulated-drift", size=0.5), name="tests/test_gpt.py::test_let")
HEAD = "4 of 6 faults caught in 3 checks; 2 of these could not have failed"


def tried() -> Session:
    return of(check(), selftest=[CAUGHT, MISSED, LET])


def test_the_file_comes_back_as_it_was_written_and_is_json_in_the_strict_sense(tmp_path: Path) -> None:
    path = tmp_path / "drift.json"
    path.write_text(text(tried()), encoding="utf8")
    strict = json.loads(path.read_text(encoding="utf8"), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert strict["selftest"][0]["outcomes"][0]["size"] == "inf"
    assert load(path) == tried()


def test_without_the_option_nothing_is_said_of_it() -> None:
    assert "selftest" not in of(check())
    for form in (terminal.session_text, markdown.text, sarif.text):
        assert "elf-test" not in form(of(check()))


def test_as_text_it_is_the_table_that_pytest_prints() -> None:
    lines = terminal.session_text(tried()).splitlines()
    start = lines.index(f"self-test: {HEAD}")
    assert [line.split() for line in lines[start + 1 : start + 5]] == [
        ["overflow", "drift", "stale", "precision", "check"],
        ["caught", "caught", "(1.2%)", "caught", "16-mixed", "tests/test_gpt.py::test_it"],
        ["-", "caught", "(1.2%)", "UNNOTICED", "16-mixed", DEAF, "(call", "2)"],
        ["-", "allowed", "(50%)", "-", "16-mixed", "tests/test_gpt.py::test_let"],
    ]
    assert lines[start + 5 :] == ["  -  overflow: nothing overflows", "  allowed  drift: drift of wide"]


def test_markdown_names_the_checks_that_could_not_have_failed_and_has_the_table() -> None:
    words = markdown.text(tried())
    assert f"### Self-test: {HEAD}\n" in words
    assert f"- ❌ `{DEAF} (call 2)` under 16-mixed could not have failed\n  - stale: it is another's\n    - cure: scale it\n" in words
    assert "  - drift: drift of wide; noticed as accumulated-drift, which allow\\_finding lets through at any size\n" in words
    assert "| check | precision | overflow | drift | stale |" in words
    assert f"| `{DEAF} (call 2)` | 16-mixed | - | caught (1.2%) | UNNOTICED |" in words


def test_sarif_notes_each_check_that_could_not_have_failed_at_its_test() -> None:
    (run,) = json.loads(sarif.text(tried()))["runs"]
    notes = run["invocations"][0]["toolExecutionNotifications"]
    assert [note["level"] for note in notes] == ["warning", "warning"]
    assert notes[0]["message"]["text"] == f"{DEAF} (call 2) could not have failed under 16-mixed: stale: it is another's (scale it)"
    place = notes[0]["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("tests/test_gpt.py", 7)
    assert run["invocations"][0]["executionSuccessful"]


def test_the_page_has_it_as_a_plain_table() -> None:
    pytest.importorskip("jinja2", reason="needs jinja2")
    page = html.page(tried())
    assert HEAD in page
    assert '<th scope="col">check</th><th scope="col">precision</th><th scope="col">overflow</th>' in page
    assert f'<th scope="row">{DEAF} (call 2)</th><td>16-mixed</td><td>-</td><td>caught (1.2%)</td><td class="unnoticed">UNNOTICED</td>' in page
    assert f"<code>{DEAF} (call 2)</code> under 16-mixed<br>stale: it is another&#39;s<br>" in page
    assert 'id="selftest"' not in html.page(of(check()))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda tests: tests.append(1), "selftest[3] is 1; accepted is an object"),
        (lambda tests: tests[0].pop("call"), "selftest[0] has no call; it has to have nodeid, call, precision, outcomes"),
        (lambda tests: tests[1].update(outcomes={}), "selftest[1].outcomes is an object; accepted is a list"),
        (lambda tests: tests[0]["outcomes"][0].pop("text"), "selftest[0].outcomes[0] has no text; it has to have fault, status, text"),
        (lambda tests: tests[0]["outcomes"][0].update(size="large"), "selftest[0].outcomes[0].size is \"large\"; accepted is a number"),
        (lambda tests: tests[0]["outcomes"][0].update(status="lost"), 'selftest[0].outcomes[0].status is "lost"; accepted is "caught" or *'),
    ],
)
def test_a_damaged_file_is_refused_with_what_is_wrong(tmp_path: Path, spoil: Any, said: str) -> None:
    content, path = json.loads(text(tried())), tmp_path / "drift.json"
    spoil(content["selftest"])
    path.write_text(json.dumps(content), encoding="utf8")
    with pytest.raises(SessionError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path} is damaged: {said.partition('*')[0]}")
