"""Checks that passed are not judged again where the same code gives the same numbers, and --precision-fresh judges all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from projects import HEALTHY, Project

NOT_AGAIN = "*not judged again: 1 check that passed before, with the same code, numbers and settings (--precision-fresh judges all)*"
OWN = '''
from layers import Scaled


def test_own(check_precision):
    torch.manual_seed(0)
    check_precision(Scaled(), data(), loss=loss, optimizer=torch.optim.SGD)
'''
LAYERS = '''
import torch


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.wide(x) * scale(x)


def scale(x):
    return 2.0
'''


def judged(pytester: pytest.Pytester, *options: str, precision: str = "bf16") -> bool:
    """Whether the one check of the project was judged. It passes."""
    result = pytester.runpytest_inprocess(f"--precision={precision}", *options)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*1 check under *1 passed, 0 failed; worst r *"])
    return "not judged again" not in result.stdout.str()


@pytest.mark.parametrize("precision", ["bf16", "16-mixed", "bf16-true"])
def test_a_check_that_passed_is_not_judged_again(precision: str, pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY)
    assert judged(pytester, precision=precision)
    result = pytester.runpytest_inprocess(f"--precision={precision}")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*1 check under *1 passed, 0 failed; worst r *", NOT_AGAIN])


DROPS = """
def test_drops(check_precision):
    model = torch.nn.Sequential(make(), torch.nn.Dropout(0.1), torch.nn.Linear(4, 4))
    check_precision(model, data(), loss=loss)
"""


@pytest.mark.parametrize("precision", ["bf16", "bf16-true"])
def test_nor_is_one_of_a_model_with_dropout(precision: str, pytester: pytest.Pytester, project: Project) -> None:
    """Whose factor, 1 / (1 - p), a run that is watched on a CPU rounds otherwise than torch's own kernel does."""
    project(DROPS)
    assert judged(pytester, precision=precision)
    assert not judged(pytester, precision=precision)


@pytest.mark.parametrize("option", [["--precision-fresh"], ["--cache-clear"], ["-p", "no:cacheprovider"], ["--known-failures-write"]])
def test_what_asks_for_more_is_judged(option: list[str], pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY)
    assert judged(pytester)
    assert judged(pytester, *option)


def test_reports_of_a_check_that_is_not_judged_again_are_those_of_the_judged_one(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY)
    forms = {"json": "drift.json", "sarif": "drift.sarif", "markdown": "drift.md", "html": "drift.html"}
    written = []
    for _ in range(2):
        result = pytester.runpytest_inprocess("--precision=bf16", *(f"--drift-report={form}:{path}" for form, path in forms.items()))
        result.assert_outcomes(passed=1)
        written.append({form: (pytester.path / path).read_text(encoding="utf8") for form, path in forms.items()})
    result.stdout.fnmatch_lines([NOT_AGAIN])
    first, second = ([test["report"] for test in json.loads(each["json"])["tests"]] for each in written)
    days = [report["facts"].pop("unchanged_since") for report in second]
    assert len(days) == 1
    assert first == second
    assert first[0]["ops"]
    assert written[0]["sarif"] == written[1]["sarif"]
    assert "with the same code, numbers and settings; the figures are of that day" in written[1]["html"]
    assert "with the same code, numbers and settings; the figures are of that day" not in written[0]["html"]
    assert "1 of 1 check passed" in written[1]["markdown"]


def test_a_report_of_ops_is_made_from_what_a_run_without_it_has_kept(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY)
    assert judged(pytester)
    assert not judged(pytester, "--drift-report=term")


def test_in_another_folder_a_check_is_judged(pytester: pytest.Pytester, project: Project) -> None:
    """Lines in reports are relative to the folder where pytest was called."""
    project(HEALTHY)
    assert judged(pytester)
    folder = pytester.mkdir("below")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        result = pytester.runpytest_inprocess("--precision=bf16", "..")
    result.assert_outcomes(passed=1)
    assert "not judged again" not in result.stdout.str()


def test_without_an_error_the_stored_report_is_the_one_that_was_made(pytester: pytest.Pytester, project: Project) -> None:
    printed = "    print('R', max((row.r for row in report.boundaries), default=0), len(report.ops))\n"
    project(HEALTHY.replace("    check_precision", "    report = check_precision") + printed)
    runs = [pytester.runpytest_inprocess("--precision=bf16", "-s") for _ in range(2)]
    lines = [[line for line in run.outlines if "R 1." in line] for run in runs]
    assert lines[0] == lines[1]
    assert len(lines[0]) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return 2.0", "return 2.0  # twice"),  # the code that runs, though not its numbers
        ("self.wide(x) * scale(x)", "self.wide(x) * 2"),
        ("torch.nn.Linear(8, 8)", "torch.nn.Linear(8, 8, bias=True).requires_grad_()"),
    ],
)
def test_a_file_whose_code_runs_has_changed(old: str, new: str, pytester: pytest.Pytester, project: Project) -> None:
    layers = pytester.makepyfile(layers=LAYERS)
    project(OWN)
    assert judged(pytester)
    assert not judged(pytester)
    assert old in LAYERS
    layers.write_text(LAYERS.replace(old, new), encoding="utf8")
    pytester.syspathinsert()
    assert judged(pytester)


def test_an_installed_file_whose_code_runs_has_changed(pytester: pytest.Pytester, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a project installs itself again under the same version."""
    folder = pytester.mkdir("site-packages")
    layers = folder / "layers.py"
    layers.write_text(LAYERS, encoding="utf8")
    monkeypatch.syspath_prepend(folder)
    project(OWN)
    assert judged(pytester)
    assert not judged(pytester)
    layers.write_text(LAYERS.replace("return 2.0", "return 2.0  # twice"), encoding="utf8")
    assert judged(pytester)


def test_a_file_whose_code_does_not_run_may_change(pytester: pytest.Pytester, project: Project) -> None:
    other = pytester.makepyfile(other="ANSWER = 42")
    project("import other", HEALTHY)
    assert judged(pytester)
    other.write_text("ANSWER = 43", encoding="utf8")
    assert not judged(pytester)


def test_another_allowance_or_golden_is_judged(pytester: pytest.Pytester, project: Project) -> None:
    golden = project(HEALTHY)
    assert judged(pytester)
    file = Path(pytester.path / "test_it.py")
    file.write_text(file.read_text(encoding="utf8").replace("loss=loss)", "loss=loss, allow={'accumulated-drift': 'known'})"), encoding="utf8")
    pytester.runpytest_inprocess("--precision=bf16").assert_outcomes(passed=1)
    file.write_text(file.read_text(encoding="utf8").replace("make()", "make(1)"), encoding="utf8")
    result = pytester.runpytest_inprocess("--precision=bf16", "-o", "remedy_trials=0")
    result.assert_outcomes(failed=1)  # the weights are others than in the golden
    assert golden.exists()


def test_numbers_that_come_from_elsewhere_are_seen(pytester: pytest.Pytester, project: Project) -> None:
    """No code changes, but a number that it reads does."""
    reading = LAYERS.replace("    return 2.0", "    return float(Path('scale.txt').read_text())")
    pytester.makepyfile(layers="from pathlib import Path\n" + reading)
    number = pytester.path / "scale.txt"
    number.write_text("2.0", encoding="utf8")
    project(OWN, record=False)
    run = ["--golden-refresh=missing", "-q"]
    assert pytester.runpytest_inprocess(*run).ret == 0
    assert judged(pytester)
    assert not judged(pytester)
    number.write_text("3.0", encoding="utf8")
    assert "golden-stale" in pytester.runpytest_inprocess("--precision=bf16", "-o", "remedy_trials=0").stdout.str()


def test_a_failure_is_judged_each_time(pytester: pytest.Pytester, project: Project) -> None:
    project("""
        def test_positions(check_precision):
            class Positions(torch.nn.Module):
                def forward(self, x):
                    return x + torch.arange(300).to(torch.bfloat16).float().sin().mean()
            check_precision(Positions(), data())
    """.replace("\n        ", "\n"))
    for _ in range(2):
        result = pytester.runpytest_inprocess("--precision=bf16", "-o", "remedy_trials=0")
        result.assert_outcomes(failed=1)
        assert "not judged again" not in result.stdout.str()


@pytest.mark.parametrize("damage", ["{}", '{"passed": {"given": 1}, "report": {}, "day": ""}', "[1]", "no json"])
def test_a_damaged_cache_is_passed_over(damage: str, pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY)
    assert judged(pytester)
    kept = list((pytester.path / ".pytest_cache" / "v" / "precheck").iterdir())
    assert len(kept) == 1
    json.loads(kept[0].read_text(encoding="utf8"))
    kept[0].write_text(damage, encoding="utf8")
    assert judged(pytester)
