"""The scoreboard adds up what tests note, also when xdist's workers note it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from rivals import InFloat32, results
from scoreboard import Scoreboard

BUG = {"mechanism": "overflow", "link": "a/b#1"}
CASES = """
from types import SimpleNamespace
import pytest

def case(name, mechanism):
    return SimpleNamespace(name=name, mechanism=mechanism, link="")

@pytest.mark.parametrize("number", range(6))
def test_watch(number, score):
    score(case(f"bug {number}", "even" if number % 2 == 0 else "odd"), found=number != 3, rule=number > 3, accused=False)

@pytest.mark.parametrize("number", range(6))
def test_line(number, score):
    score(case(f"bug {number}", "even" if number % 2 == 0 else "odd"), line=number < 2)
    assert number != 5, "what was noted before a test failed counts"

def test_control(score):
    score(case("healthy", "healthy"), control=True)
"""


def cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


def test_facts_of_a_case_come_together_and_the_last_word_counts() -> None:
    board = Scoreboard()
    board.add({"name": "one", **BUG, "found": False})
    board.add({"name": "one", **BUG, "found": True, "rule": False})
    board.add({"name": "two", **BUG, "link": "", "found": False, "accused": True, "measure_found": True})
    lines = board.lines()
    assert cells(lines[1]) == ["overflow", "2", "1/2", "0/1", "-", "1/1"]
    assert cells(lines[2]) == ["with a public issue", "1", "1/1", "0/1", "-", "-"]
    assert "missed: two" in lines
    assert "measure(): 1/1 bugs found, - twins and controls accused" in lines


def test_nothing_noted_is_nothing_printed() -> None:
    assert Scoreboard().lines() == []


def test_what_a_user_has_otherwise_gets_a_row_each() -> None:
    board = Scoreboard()
    board.add({"name": "one", **BUG, "NaN|bug": True, "NaN|twin": False})
    board.add({"name": "two", **BUG, "NaN|bug": False, "close|bug": True})
    board.add({"name": "three", **BUG, "NaN|control": True})
    rows = {cells(line)[0]: cells(line)[1:] for line in board.lines()}
    assert rows["NaN"] == ["1/2", "0/1", "1/1"]
    assert rows["close"] == ["1/1", "-", "-"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.usefixtures("forked_python")
def test_the_summary_of_a_session_is_the_same_with_and_without_workers(pytester: pytest.Pytester, workers: int) -> None:
    if workers:
        pytest.importorskip("xdist")
    here = Path(__file__).parent
    for name in ("conftest.py", "scoreboard.py"):
        pytester.path.joinpath(name).write_text(here.joinpath(name).read_text(encoding="utf8"), encoding="utf8")
    pytester.makepyfile(test_cases=CASES)
    done = pytester.runpytest_subprocess(*(["-n", str(workers)] if workers else []))
    done.assert_outcomes(passed=12, failed=1)
    rows = {cells(line)[0]: cells(line)[1:] for line in done.outlines if "  " in line}
    assert rows["even"] == ["3", "3/3", "1/3", "1/3", "0/3"]
    assert rows["odd"] == ["3", "2/3", "1/3", "1/3", "0/3"]
    assert rows["all"] == ["6", "5/6", "2/6", "2/6", "0/6"]
    done.stdout.fnmatch_lines(["missed: bug 3", "controls accused by watch(): 1/1"])


def test_in_float32_code_is_what_it_would_be_without_its_casts() -> None:
    def code() -> object:
        layer = torch.nn.Linear(3, 1, bias=False, dtype=torch.bfloat16)
        with torch.no_grad():
            layer.weight.fill_(1 / 3)
        with torch.autocast("cpu", dtype=torch.float16):
            out = layer.half()(torch.full((1, 3), 300.1))
        out.sum().backward()
        return out, layer.weight.grad, torch.arange(300, dtype=torch.bfloat16)[-1]

    low, wide = results(code)
    assert [str(each.dtype) for each in low] == ["torch.float16", "torch.float16", "torch.bfloat16"]
    assert {str(each.dtype) for each in wide} == {"torch.float32"}
    assert float(wide[0]) == pytest.approx(300.1, rel=1e-6)
    assert float(wide[1][0, 0]) == pytest.approx(300.1, rel=1e-6)
    assert (float(low[2]), float(wide[2])) == (300.0, 299.0)
    with InFloat32():
        assert float(torch.tensor(70_000.0).half()) == 70_000.0
