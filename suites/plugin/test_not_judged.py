"""What a check could not judge, or what its precision is too coarse for, is said at the end of the session, in a line each."""

from __future__ import annotations

import pytest
from projects import HEALTHY, Project

from precheck import Finding, Report

AVERAGES = '''
class Averages(torch.nn.Module):
    """Keeps a moving average of what it makes."""

    def __init__(self):
        super().__init__()
        self.wide = torch.nn.Linear(8, 32)
        self.register_buffer("average", torch.ones(32, dtype=torch.DTYPE))

    def forward(self, x):
        made = self.wide(x)
        with torch.no_grad():
            self.average.lerp_(made.detach().mean(0).to(self.average.dtype), 1e-3)
        return made


def test_averages(check_precision):
    torch.manual_seed(0)
    check_precision(Averages(), data(), loss=loss)
'''


@pytest.mark.parametrize(("dtype", "told"), [("bfloat16", True), ("float32", False)])
def test_an_average_of_one_step_is_said_to_need_more(dtype: str, told: bool, pytester: pytest.Pytester, project: Project) -> None:
    project(AVERAGES.replace("DTYPE", dtype))
    result = pytester.runpytest_inprocess("--precision=bf16")
    result.assert_outcomes(passed=1)
    if told:
        result.stdout.fnmatch_lines(["too few steps to tell: absorption at *test_it.py:* needed) in test_it.py::test_averages*"])
    else:
        result.stdout.no_fnmatch_line("too few steps to tell*")


def test_what_a_finding_tells_is_not_told_twice() -> None:
    report = Report(facts={"too_few_steps": {"absorption at model.py:7": 9, "absorption at model.py:8": 9}})
    report.add([Finding("absorption", "note", "too few steps", source="model.py:7")])
    assert "too few steps to tell: absorption at model.py:8 (9 needed)" in report.summary().splitlines()


def test_a_check_of_boundaries_says_what_it_did_not_look_at(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY, HEALTHY.replace("test_healthy", "test_again"))
    result = pytester.runpytest_inprocess("--precision=bf16", "--precision-depth=boundaries")
    line = "not looked at: single ops, and what functions return, since the depth is boundaries in test_it.py::test_healthy* and 1 more check"
    result.stdout.fnmatch_lines([line])
    pytester.runpytest_inprocess("--precision=bf16").stdout.no_fnmatch_line("not looked at*")
    pytester.runpytest_inprocess("--precision=32-true", "--precision-depth=boundaries").stdout.no_fnmatch_line("not looked at*")


INVERSE = """
class Inverse(torch.nn.Module):
    '''A flow that is run back: right to a rounding in each layer, and each layer makes the error larger.'''

    def __init__(self):
        super().__init__()
        self.nets = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16)) for _ in range(LAYERS)
        )
        for net in self.nets:
            torch.nn.init.normal_(net[2].weight, std=0.3)

    def forward(self, z):
        for net in self.nets:
            left, right = z.chunk(2, -1)
            log_scale, shift = net(left).chunk(2, -1)
            z = torch.cat([(right - shift) * torch.exp(-log_scale), left], -1)
        return z


def test_inverse(check_precision):
    torch.manual_seed(0)
    check_precision(Inverse(), torch.randn(64, 16), loss=lambda out: out.square().mean())
"""


@pytest.mark.parametrize(("layers", "told"), [(16, True), (2, False)])
def test_a_model_that_rounding_alone_moves_far_passes_and_is_told_to_be_too_coarse(
    layers: int, told: bool, pytester: pytest.Pytester, project: Project
) -> None:
    project(INVERSE.replace("LAYERS", str(layers)))
    result = pytester.runpytest_inprocess("--precision=bf16-true")
    result.assert_outcomes(passed=1)
    if told:
        result.stdout.fnmatch_lines(["bf16-true is too coarse for * of *nets.* (*%)*correct rounding explains it in test_it.py::test_inverse*"])
    else:
        result.stdout.no_fnmatch_line("*too coarse*")


def test_a_test_that_asks_for_a_fixture_and_never_calls_it_is_warned_of(pytester: pytest.Pytester, project: Project) -> None:
    project(
        'def test_nothing(check_precision, watch_precision):\n    print("passes whatever the model does")\n',
        "def test_skipped(check_precision):\n    pytest.skip()\n",
        "def test_called(watch_precision):\n    with watch_precision():\n        torch.ones(2) + 1\n",
        record=False,
    )
    result = pytester.runpytest_inprocess("-Wdefault")
    result.assert_outcomes(passed=2, skipped=1, warnings=1)
    result.stdout.fnmatch_lines(["*this test asks for check_precision and watch_precision, and made no check: precheck has judged nothing in it"])
    pytester.runpytest_inprocess("-Werror", "--golden-refresh").assert_outcomes(passed=2, skipped=1)
    pytester.runpytest_inprocess("-Werror").assert_outcomes(passed=1, failed=1, skipped=1)


UNITTEST = """
import unittest


class TestUnit(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def _given(self, check_precision):
        self.check = check_precision

    def test_checked(self):
        torch.manual_seed(0)
        self.check(torch.nn.Linear(4, 4), torch.ones(2, 4))

    def test_of_something_else(self):
        self.assertEqual(1, 1)
"""


def test_a_test_of_unittest_says_that_it_ran_under_one_precision_alone(pytester: pytest.Pytester, project: Project) -> None:
    project(UNITTEST)
    result = pytester.runpytest_inprocess("-Wdefault", "--precision=bf16,bf16-true")
    result.assert_outcomes(passed=2, warnings=1)  # the other test does not ask for the fixture, though its class has it
    result.stdout.fnmatch_lines(["*unittest once, so this one was judged under bf16-mixed alone; for the others: pytest --precision=bf16-true"])
