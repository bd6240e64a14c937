"""The line that says what long work is doing: there on a terminal, below pytest's own, and nowhere else; nothing is left of it."""

from __future__ import annotations

import os
import re

import pytest
from projects import FAKED_LIGHT, HEALTHY, Project

from precheck.plugin import progress

if os.name != "posix":
    pytest.skip("the line is for terminals of POSIX", allow_module_level=True)
from screen import screens, written

pytestmark = pytest.mark.usefixtures("forked_python")
LEAN = ("-p", "no:hypothesispytest", "-p", "no:benchmark", "-p", "no:cacheprovider")

WORKS = (
    FAKED_LIGHT
    + '''
from precheck.observe.listeners import doing


def worked(model, inputs, **settings):
    with doing("working"):
        for number in range(2):
            with doing(f"noise run {number + 1} of 2"):
                print("of the model", number)
                sys.stderr.write("and of its errors\\n")
    return said(model, inputs, **settings)


sys.modules["precheck.checking"] = types.SimpleNamespace(check=worked)
'''
)

CHECKS = """
    def test_before(): pass
    def test_one(check_precision): check_precision(1.0, {})
    def test_captured(check_precision, capsys):
        check_precision(1.0, {})
        assert capsys.readouterr() == ("of the model 0\\nof the model 1\\n", 2 * "and of its errors\\n")
    def test_failing(check_precision):
        check_precision(9.0, {"32-true": [("error", "nan")]})
    def test_after(): pass
"""


@pytest.fixture
def works(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest(WORKS)
    pytester.makepyfile(test_it=CHECKS)
    return pytester


def timeless(lines: list[str]) -> list[str]:
    return [re.sub(r"=* (.*) in [\d.]+s =*", r"\1", line) for line in lines]


@pytest.mark.parametrize(
    ("rows", "options"), [(100, ()), (6, ()), (6, ("-v",)), (100, ("--capture=sys",)), (100, ("--color=no",))],
    ids=["top", "scrolling", "scrolling verbose", "sys", "colourless"],
)  # fmt: skip
def test_it_is_below_the_line_that_pytest_writes_and_then_gone(works: pytest.Pytester, options: tuple[str, ...], rows: int) -> None:
    text, status = written(*LEAN, *options, cwd=works.path, rows=rows)
    seen = list(screens(text, rows))
    shown = [screen for screen in seen if any("noise run 2 of 2" in line for line in screen)]
    assert {"working: noise run 2 of 2 in test_it.py::test_failing[32-true]"} <= {line for screen in shown for line in screen}
    for screen in shown:
        place = next(number for number, line in enumerate(screen) if "noise run 2 of 2" in line)
        assert re.fullmatch(r"test_it\.py (::test_\w+\S* ?|\.{1,2}|\.{3})", screen[place - 1].replace("py::", "py ::")), "the line above is whole"
        assert not any(screen[place + 1 :]), "and nothing is below"
    alone, same = written(*LEAN, *options, cwd=works.path, rows=rows, TERM="dumb")
    assert "noise run" not in alone
    assert status == same == pytest.ExitCode.TESTS_FAILED
    *_, last = screens(alone, rows)
    assert timeless(seen[-1]) == timeless(last)


QUIET = {
    "quiet": (("-q",), {}),
    "in CI": ((), {"CI": "true"}),
    "in CI by another name": ((), {"BUILD_NUMBER": "7"}),
    "a terminal that obeys nothing": ((), {"TERM": "dumb"}),
    "no reporter": (("-p", "no:terminal"), {}),
    "output is let through": (("-s",), {}),
    "and in part": (("--capture=tee-sys",), {}),
    "live logs": (("--log-cli-level=INFO",), {}),
    "no capture": (("-p", "no:capture"), {}),
}


@pytest.mark.parametrize("case", QUIET)
def test_nothing_is_said_where_nobody_looks_on_or_the_line_is_not_ours(works: pytest.Pytester, case: str) -> None:
    options, environment = QUIET[case]
    text, status = written(*LEAN, *options, cwd=works.path, **environment)
    assert "noise run" not in text
    assert status == pytest.ExitCode.TESTS_FAILED, text


def test_nothing_is_said_by_workers_nor_of_them(works: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    text, status = written(*LEAN, "-n2", cwd=works.path)
    assert "noise run" not in text
    assert status == pytest.ExitCode.TESTS_FAILED


def test_nothing_is_said_into_a_pipe_or_a_file(works: pytest.Pytester) -> None:
    result = works.runpytest_subprocess(*LEAN)
    result.assert_outcomes(passed=4, failed=1)
    assert "noise run" not in result.stdout.str() + result.stderr.str()




def logged(every: float) -> str:
    """The conftest, with that many seconds between two lines of the log."""
    return f"{WORKS}\nfrom precheck.plugin import progress\n\nprogress.EVERY = {every}\n"


@pytest.mark.parametrize("options", [("--precision=32-true",), ("--precision=32-true", "-q")], ids=["plain", "quiet"])
def test_a_log_gets_a_line_where_the_last_is_old_enough(works: pytest.Pytester, options: tuple[str, ...]) -> None:
    works.makeconftest(logged(0))
    result = works.runpytest_subprocess(*LEAN, *options)
    result.stdout.fnmatch_lines(["precheck: after 0 min, test 2 of 5: working: noise run 2 of 2 in test_it.py::test_one*"])
    assert sum(line.startswith("precheck: after") for line in result.outlines) == 9, "three for each check: it, and its two runs"
    works.makeconftest(logged(1e9))
    assert "precheck: after" not in works.runpytest_subprocess(*LEAN, *options).stdout.str()


@pytest.mark.parametrize("options", [("--precision=32-true", "-qq"), ("-v",)], ids=["very quiet", "no precision"])
def test_a_log_gets_none_where_nobody_asked(works: pytest.Pytester, options: tuple[str, ...]) -> None:
    works.makeconftest(logged(0))
    assert "precheck: after" not in works.runpytest_subprocess(*LEAN, *options).stdout.str()


def test_a_test_that_redirects_its_output_keeps_it(works: pytest.Pytester) -> None:
    works.makeconftest(logged(0))
    works.makepyfile(
        test_it="""
        import contextlib, io

        def test_it(check_precision):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                check_precision(1.0, {})
                print("after it")
            assert printed.getvalue() == "of the model 0\\nof the model 1\\nafter it\\n"
        """
    )
    result = works.runpytest_subprocess(*LEAN, "--precision=32-true")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["precheck: after 0 min, test 1 of 1: working: noise run 2 of 2 in test_it.py::test_it*"])


def test_nothing_is_said_while_a_test_writes_to_the_terminal_itself(works: pytest.Pytester) -> None:
    code = "def test_it(check_precision, {0}):\n    with {0}.disabled():\n        print('begun', end='')\n        check_precision(1.0, {{}})\n"
    for name in ("capsys", "capfd"):
        works.makepyfile(test_it=code.format(name))
        text, status = written(*LEAN, cwd=works.path)
        assert status == 0
        assert "noise run 1 of 2" not in text
        assert "begunof the model 0" in text


def test_a_long_name_keeps_to_its_line(works: pytest.Pytester) -> None:
    names = ("long" * 60, "ü" * 5 + "長" * 60)
    works.makepyfile(test_it="".join(f"def test_{name}(check_precision): check_precision(1.0, {{}})\n" for name in names))
    text, _ = written(*LEAN, cwd=works.path, columns=60)
    lines = {line for screen in screens(text) for line in screen if line.startswith("working: noise run 2")}
    assert sorted(len(line) for line in lines) == [51 + 3 + 1, 59], lines  # of 59 columns, so that none is written into the last; wide signs take two
    assert all(line.endswith("…") for line in lines)


def test_a_debugger_finds_the_line_gone(works: pytest.Pytester) -> None:
    code = "from precheck.observe.listeners import doing\ndef test_it():\n    with doing('working'):\n        breakpoint()"
    works.makepyfile(test_it=code)
    works.makeconftest("import pdb\npdb.Pdb.interaction = lambda self, *what: print('ASKED', flush=True)")
    text, _ = written(*LEAN, cwd=works.path)
    asked = next(screen for screen in screens(text) if any("ASKED" in line for line in screen))
    assert any("working in test_it.py" in line for screen in screens(text) for line in screen)
    assert not any(line.startswith("working") for line in asked)


def test_a_log_hears_of_recording(pytester: pytest.Pytester, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    project(HEALTHY, record=False)
    result = pytester.runpytest_inprocess("--golden-refresh")
    result.stdout.fnmatch_lines(["precheck: after 0 min, test 1 of 1: recording the golden: noise run 3 of 4 in test_it.py::test_healthy[[]32-true]"])


PARTLY = '''
class Far(torch.nn.Module):
    def forward(self, x):
        return x * 1e5 / 1e5


def test_overflows(check_precision):
    parts = torch.nn.Linear(8, 8), Far(), torch.nn.Linear(8, 8)
    check_precision(torch.nn.Sequential(*parts), data())
'''


def test_real_work_says_how_far_it_is(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY, PARTLY)
    text, status = written(*LEAN, "--precision=16-mixed", "--precheck-selftest", cwd=pytester.path, columns=160)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "looking for a remedy, the last measurement: noise run 1 of 2 in test_it.py::test_overflows[16-mixed]" in text
    assert "self-test, fault 4 of 7, drift" in text
    assert "looking at every op in test_it.py::test_overflows[16-mixed]" in text
