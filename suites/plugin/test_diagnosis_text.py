"""What a failing check says of op, line and cure, and the op table of --drift-report."""

from __future__ import annotations

import json

import pytest
from projects import HEALTHY, OVERFLOWS, Project

BROKEN_NORM = '''
class Norm(torch.nn.Module):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Scaled(torch.nn.Module):
    def forward(self, x):
        return x * 500


def test_norm(check_precision):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), Scaled(), Norm(), torch.nn.Linear(16, 4))
    check_precision(model, data())
'''


def test_a_failure_ends_with_op_line_and_what_to_keep_in_float32(pytester: pytest.Pytester, project: Project) -> None:
    project(BROKEN_NORM)
    line = next(n for n, text in enumerate((pytester.path / "test_it.py").read_text(encoding="utf8").splitlines(), 1) if "rsqrt" in text)
    result = pytester.runpytest_inprocess("--precision=16-true", "-o", "remedy_trials=12")  # all of them, however busy the machine is
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "accumulated-drift: output of module 2: off by * of its norm under 16-true, where rounding explains *",
            f"    test_it.py:{line}  |  return x [*] torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)",
            "    in module 2",
            f"    by overflow: aten.pow.Tensor_Scalar at test_it.py:{line}: * in the reference is beyond the largest float16, 65504",
            "    cure: call .float() on what this line reads; or scale its input down, and undo this later",
            "with this the check passes (tried):",
            "    from precheck import functions_in_float32",
            '    functions_in_float32(model, [[]"2"], [[]"pow", "mean", "add", "rsqrt"])',
            'to see this again: pytest --precision=16-true "test_it.py::test_norm[[]16-true]"',
        ]
    )


@pytest.mark.parametrize("cure", ['in_float32(model, ["2"])', 'functions_in_float32(model, ["2"], ["pow", "mean", "add", "rsqrt"])'])
def test_the_cure_that_is_printed_cures(pytester: pytest.Pytester, project: Project, cure: str) -> None:
    project(BROKEN_NORM.replace("check_precision(model", f"precheck.{cure}\n    check_precision(model"))
    assert pytester.runpytest_inprocess("--precision=16-true").ret == 0


@pytest.mark.parametrize("trials", ["0", "12"])
def test_remedy_trials_turns_the_search_off(pytester: pytest.Pytester, project: Project, trials: str) -> None:
    project(BROKEN_NORM)
    text = pytester.runpytest_inprocess("--precision=16-true", "-o", f"remedy_trials={trials}").stdout.str()
    assert ("in_float32" in text) == (trials != "0")


@pytest.mark.parametrize("given", ["-1", "many"])
def test_remedy_trials_that_mean_nothing_are_refused(pytester: pytest.Pytester, given: str) -> None:
    result = pytester.runpytest_inprocess("-o", f"remedy_trials={given}")
    assert result.ret == 4
    result.stderr.fnmatch_lines([f"*remedy_trials={given}; accepted is a whole number from 0 (0: none are made)"])


def test_the_drift_report_lists_ops_of_checks_that_pass_too(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY, OVERFLOWS)
    result = pytester.runpytest_inprocess("--precision=16-mixed,bf16", "--drift-report=term", "--drift-top=3", "-o", "remedy_trials=0")
    result.stdout.fnmatch_lines(
        [
            "drift op by op, where it grew most (worst call on each line). An op may only amplify *",
            "*result*inputs*calls*precision*phase*dtype*op*line*module*test",
            "*Inf/NaN*16-mixed*aten.*test_it.py:*test_overflows[[]16-mixed]",
            "* more calls, none of them worse",
        ]
    )
    begins, ends = (next(n for n, line in enumerate(result.outlines) if words in line) for words in ("drift op by op", "more calls, none"))
    assert sum("aten." in line for line in result.outlines[begins:ends]) == 3
    everything = pytester.runpytest_inprocess("--precision=bf16", "--drift-report=term", "--drift-top=0", "-k", "healthy").stdout.str()
    assert "aten.native_layer_norm.default" in everything
    assert "more calls" not in everything


def test_ops_are_not_followed_where_nobody_asked_and_nothing_failed(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY)
    assert "drift op by op" not in pytester.runpytest_inprocess("--precision=bf16").stdout.str()


def test_the_json_report_has_every_op(pytester: pytest.Pytester, project: Project) -> None:
    project(HEALTHY)
    assert pytester.runpytest_inprocess("--precision=bf16", "--drift-report=json:drift.json").ret == 0
    (test,) = json.loads((pytester.path / "drift.json").read_text(encoding="utf8"))["tests"]
    ops = test["report"]["ops"]
    assert {"aten.addmm.default", "aten.native_layer_norm.default", "aten.mm.default"} <= {row["op"] for row in ops}
    assert {row["phase"] for row in ops} >= {"forward", "backward"}
    assert test["report"]["facts"]["covered"] == 1
    assert all(0 <= row["drift"] < 0.1 for row in ops), "a healthy model's ops are off by a few roundings each"


HELPER = '''
def to_low(x):
    return x.to(torch.bfloat16)


def test_positions(watch_precision):
    with watch_precision():
        to_low(torch.randn(8)) * 2
        to_low(torch.arange(600).float()).sin()  # faulty
'''


def test_a_failure_at_a_helper_names_the_line_that_called_it(project: Project, pytester: pytest.Pytester) -> None:
    project(HELPER, record=False)
    lines = (pytester.path / "test_it.py").read_text(encoding="utf8").splitlines()
    helper, call = (next(number for number, line in enumerate(lines, 1) if words in line) for words in ("return x.to", "# faulty"))
    outcome = pytester.runpytest_inprocess("--precision=bf16")
    outcome.assert_outcomes(failed=1)
    outcome.stdout.fnmatch_lines([
        f"integer-rounding: cast to bfloat16 (aten._to_copy) at test_it.py:{helper} (called at test_it.py:{call}): whole numbers up to 599 *",
        f"*test_it.py:{helper}  |  return x.to(torch.bfloat16)",
        f"*test_it.py:{call}  |  to_low(torch.arange(600).float()).sin()  # faulty",
        f"*cure: leave out this cast for the call at test_it.py:{call}: *",
    ])  # fmt: skip


ROUTER = '''
class Router(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(32, 8)

    def forward(self, x):
        chosen = (self.gate(x) * 1e-3 + 5).topk(2).indices
        return torch.nn.functional.one_hot(chosen, 8).sum(1) * self.gate.weight.sum()


def test_router(check_precision):
    torch.manual_seed(0)
    check_precision(Router(), torch.randn(256, 32), loss=lambda out: out.float().square().mean())
'''


def test_a_decision_flip_ends_with_its_cure_and_not_with_tensors_that_are_right(pytester: pytest.Pytester, project: Project) -> None:
    project(ROUTER)
    result = pytester.runpytest_inprocess("--precision=bf16", "-o", "remedy_trials=0")
    lines = result.stdout.lines
    end = next(n for n, line in enumerate(lines) if line.startswith("to see this again"))
    assert any(line.startswith("decision-flip: aten.topk") for line in lines[:end])
    assert lines[end - 1].startswith("    cure: compare in float32")
