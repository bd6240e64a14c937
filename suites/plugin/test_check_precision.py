"""check_precision: what a failure says, which golden it uses, what is shown of errors that are not its own."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from projects import HEALTHY, OVERFLOWS, Project

from precheck.goldens.place import golden_files


def test_a_failure_begins_with_the_finding_and_ends_with_the_command_that_shows_it_again(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY, OVERFLOWS)
    result = pytester.runpytest_inprocess("--precision=16-mixed,bf16")
    text = result.stdout.str()
    failure = text.partition("FAILURES")[2].splitlines()[2:]
    assert re.match(r"overflow: output of wide: .* under 16-mixed .*", failure[0])
    assert any(line.strip().startswith("cure: ") for line in failure)
    assert "Traceback" not in text
    assert "def test_overflows" not in text
    found = re.search(r"^to see this again: (pytest .*)$", text, re.MULTILINE)
    assert found
    again = pytester.runpytest_inprocess(*shlex.split(found[1])[1:])
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines([failure[0].replace("[", "[[]")])


def test_it_gives_the_report(pytester: pytest.Pytester, project: Project) -> None:
    project(
        """
def test_it(check_precision):
    report = check_precision(make(), data(), loss=loss, optimizer=lambda p: torch.optim.SGD(p, lr=0.1), steps=2)
    if report.facts.get("refreshed") is None:
        assert report.precision == "bf16-mixed"
        assert not report.errors
        assert report.facts["golden"] == "golden/test_it/test_it.safetensors"
        assert {row.step for row in report.boundaries} == {1, 2}
"""
    )
    pytester.runpytest_inprocess("--precision=bf16").assert_outcomes(passed=1)


@pytest.mark.parametrize("options", [("--golden-refresh",), ("--precision=bf16",)])
def test_an_exception_of_the_model_shows_the_models_own_frames(pytester: pytest.Pytester, project: Project, options: tuple[str, ...]) -> None:
    project(
        """
import contextlib

@contextlib.contextmanager
def entered():
    yield

class Breaks(torch.nn.Module):
    broken = False

    @entered()  # a frame of the standard library between forward's caller and forward
    def forward(self, x):
        return self.inner(x)

    def inner(self, x):
        return x @ torch.ones(3, 3) if Breaks.broken else x

def test_breaks(check_precision, request):
    Breaks.broken = request.config.getoption("verbose") > 0
    check_precision(Breaks(), data())
"""
    )
    result = pytester.runpytest_inprocess("-v", "--tb=short", *options)
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    frames = re.findall(r"^(\S+):\d+: in (\w+)$", text, re.MULTILINE)
    assert frames == [("test_it.py", "test_breaks"), ("test_it.py", "forward"), ("test_it.py", "inner")]
    result.stdout.fnmatch_lines(["E   RuntimeError: *mat1 and mat2 shapes cannot be multiplied*"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("torch.nn.Linear(4, 4), torch.ones(2, 5)", "E *RuntimeError: *mat1 and mat2 shapes cannot be multiplied (2x5 and 4x4)"),
        ("torch.nn.Linear(4, 4), torch.ones(2, 4).long()", "E *RuntimeError: mat1 and mat2 must have the same dtype*"),
        ("torch.nn.Embedding(4, 4), torch.ones(2, 4)", "E *RuntimeError: Expected tensor for argument #1 'indices' *"),
        ("torch.nn.Linear(4, 4), torch.ones(2, 4), loss=torch.nn.MSELoss()", "E *TypeError: *forward() missing 1 required positional argument*"),
    ],
)
def test_what_a_layer_of_torch_raises_is_shown_at_the_users_call(pytester: pytest.Pytester, project: Project, call: str, message: str) -> None:
    """No frame is the user's, and those of torch and precheck say nothing of the mistake."""
    project(f"def test_it(check_precision):\n    check_precision({call})", record=False)
    result = pytester.runpytest_inprocess("--golden-refresh", "--tb=short")
    assert re.findall(r"^(\S+):\d+: in (\w+)$", result.stdout.str(), re.MULTILINE) == [("test_it.py", "test_it")]
    result.stdout.fnmatch_lines([message])


@pytest.mark.skipif(sys.version_info < (3, 11), reason="an exception takes notes from Python 3.11")
def test_a_loss_that_wants_targets_is_told_how_to_be_called(pytester: pytest.Pytester, project: Project) -> None:
    project("def test_it(check_precision):\n    check_precision(torch.nn.Linear(4, 4), torch.ones(2, 4), loss=torch.nn.MSELoss())", record=False)
    told = "*loss is called with what the model returns, alone; *loss=lambda out: criterion(out, targets)"
    pytester.runpytest_inprocess("--golden-refresh").stdout.fnmatch_lines([told])


def test_a_type_error_inside_a_loss_gets_no_such_advice(pytester: pytest.Pytester, project: Project) -> None:
    project("def test_it(check_precision):\n    check_precision(torch.nn.Linear(4, 4), torch.ones(2, 4), loss=lambda out: out + 'a')", record=False)
    result = pytester.runpytest_inprocess("--golden-refresh")
    result.stdout.fnmatch_lines(["E *TypeError: *"])
    result.stdout.no_fnmatch_line("*loss is called with what*")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("check_precision(make(), data(), steps=0)", "steps=0; pass a whole number from 1"),
        ("check_precision(make(), data(), optimizer=torch.optim.SGD)", "*optimizer*loss*"),
        ("check_precision(make(), data(), loss=lambda out: out)", "*loss*scalar*"),
        ("check_precision(make(), data(), allow=['lost-update'])", "allow is a list; pass a dict of rules, each with the reason, as in *"),
        (
            "check_precision(make(), data(), data())",
            "2 inputs were passed one by one; pass them as a tuple: check_precision(model, (first, second), ...)",
        ),
    ],
)
def test_bad_input_is_one_message(pytester: pytest.Pytester, project: Project, call: str, message: str) -> None:
    golden = project(f"def test_it(check_precision):\n    {call}\n", record=False)
    result = pytester.runpytest_inprocess("--golden-refresh")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([message, "goldens: 1 not recorded"])
    assert "Traceback" not in result.stdout.str()
    assert "in check_precision" not in result.stdout.str()
    assert not golden.exists()


NAMES = """
    import pytest

    @pytest.mark.parametrize("text", ["a", 'say "$HOME"', "x::y", "s/[z]"])
    def test_text(check_precision, text):
        check_precision(make(), data())

    class TestGroup:
        class TestInner:
            def test_deep(self, check_precision):
                check_precision(make(), data())
                check_precision(make(), data())
"""


def test_every_command_that_a_missing_golden_names_records_that_golden(pytester: pytest.Pytester, project: Project) -> None:
    golden = project(*[line.removeprefix("    ") for line in NAMES.splitlines()], record=False)
    result = pytester.runpytest_inprocess("--precision=tf32")
    # pytest's own summary repeats these lines, whole where CI is set and cut short elsewhere: read the failures themselves.
    commands = re.findall(r"^no golden .* record it with: (pytest .*)$", result.stdout.str(), re.MULTILINE)
    assert len(commands) == 5
    for number, command in enumerate(commands, start=1):
        outcome = pytester.runpytest_inprocess(*shlex.split(command)[1:])
        outcome.assert_outcomes(passed=1)
        assert len(golden_files(golden)) == number + (number == 5), "the last test checks twice"
    names = [path.relative_to(golden).as_posix() for path in golden_files(golden)]
    assert sum("deep" in name for name in names) == 2
    assert not any("32" in re.sub("~.*", "", name) for name in names)
    assert pytester.runpytest_inprocess("--precision=bf16").ret == 0


def test_commands_fit_the_folder_that_pytest_was_started_in(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makeini("[pytest]\n")
    (pytester.path / "inside").mkdir()
    (pytester.path / "tests").mkdir()
    (pytester.path / "tests" / "test_it.py").write_text("def test_it(check_precision): check_precision(abs, 1)", encoding="utf8")
    monkeypatch.chdir(pytester.path / "inside")
    result = pytester.runpytest_inprocess("../tests", "--golden-dir=my goldens")
    command = 'pytest --golden-refresh=missing "--golden-dir=my goldens" "../tests/test_it.py::test_it[32-true]"'
    line = f"no golden for this test at my goldens/tests/test_it/test_it.safetensors; record it with: {command}"
    result.stdout.fnmatch_lines([line.replace("[", "[[]")])


def test_a_check_in_a_subtest_is_counted_once(told: pytest.Pytester) -> None:
    pytest.importorskip("_pytest.subtests")
    told.makepyfile(
        """
        def test_it(check_precision, subtests):
            for number in range(3):
                with subtests.test(number=number):
                    check_precision(1.0, {"32-true": [("error", "nan")]} if number == 1 else {})
        """
    )
    result = told.runpytest_inprocess()
    result.stdout.fnmatch_lines(["3 checks under 32-true: 2 passed, 1 failed; *", "*SUBFAILED*"])
    assert result.ret == 1


def test_a_test_that_runs_again_starts_again(told: pytest.Pytester) -> None:
    """What rerun plugins do: the same item is run twice, with its fixtures made anew."""
    with (told.path / "conftest.py").open("a", encoding="utf8") as file:
        file.write(
            """
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    from _pytest.runner import runtestprotocol
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        report.outcome = "rerun" if report.when == "call" else report.outcome
        item.ihook.pytest_runtest_logreport(report=report)
    return None
"""
        )
    told.makepyfile(
        """
        runs = []
        def test_it(check_precision):
            runs.append(1)
            report = check_precision(1.0, {"32-true": [("error", "nan")]} if len(runs) == 1 else {})
            assert report.facts["golden"].endswith("test_it.safetensors")

        import pytest
        again = []
        @pytest.mark.expect_finding("nan")
        def test_once(check_precision):
            again.append(1)
            check_precision(1.0, {"32-true": [("error", "nan")]} if len(again) == 1 else {})
        """
    )
    result = told.runpytest_inprocess()
    result.stdout.fnmatch_lines(["expected nan, and it found nothing *", "2 checks under 32-true: 2 passed, 0 failed; *"])
    result.assert_outcomes(passed=1, failed=1)


def test_the_frames_of_a_fault_in_precheck_itself_are_kept() -> None:
    from precheck.plugin.tracebacks import users_frames
    from precheck.precisions import PrecisionError, resolve

    with pytest.raises(PrecisionError) as caught:
        resolve("bf17")
    frames = users_frames(caught.value)
    assert frames is not None
    assert Path(frames.tb_frame.f_code.co_filename) == Path(__file__)
    inner = caught.value.with_traceback(caught.value.__traceback__ and caught.value.__traceback__.tb_next)
    assert users_frames(inner) is inner.__traceback__


def test_a_loss_that_takes_other_arguments_has_no_frame_of_precheck() -> None:
    import torch

    from precheck.observe.containers import scored
    from precheck.plugin.tracebacks import users_frames

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'target'") as caught:
        scored(torch.nn.functional.cross_entropy, torch.ones(2, 3))
    assert caught.value.__traceback__ is not None
    assert users_frames(caught.value.with_traceback(caught.value.__traceback__.tb_next)) is None  # without this test's own frame


DRAWN = """
from hypothesis import HealthCheck, given, settings, strategies

@settings(max_examples=2, deadline=None, derandomize={derandomize}, suppress_health_check=list(HealthCheck))
@given(rows=strategies.integers(1, 4))
def test_drawn(check_precision, rows):
    check_precision(make(), data()[:rows])
"""


@pytest.mark.parametrize("option", ["--golden-refresh", "--precision=bf16"])
def test_inputs_that_hypothesis_draws_in_each_run_have_no_golden(pytester: pytest.Pytester, project: Project, option: str) -> None:
    project(DRAWN.format(derandomize=False), record=False)
    result = pytester.runpytest_inprocess(option)
    result.stdout.fnmatch_lines(["@given draws other inputs in each run*precheck.measure(model, inputs, precision=precision).raise_for_errors()"])
    assert not list(pytester.path.rglob("*.safetensors"))


def test_inputs_that_hypothesis_draws_alike_in_each_run_have_one(pytester: pytest.Pytester, project: Project) -> None:
    project(DRAWN.format(derandomize=True))
    pytester.runpytest_inprocess("--precision=bf16").assert_outcomes(passed=1)
