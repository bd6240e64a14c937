"""Kernels of Triton's on a CPU: judged where its interpreter computes as a GPU does, and else said to be not judged."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import precheck
from precheck.kernels import triton_interpreter

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton here: pip install triton")
KERNEL = """
import torch
import triton
import triton.language as tl

import precheck


@triton.jit
def kernel(x, out, columns, OTHER: tl.constexpr, BLOCK: tl.constexpr):
    row, places = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + places, mask=places < columns, other=OTHER).to(tl.float32)
    powers = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + places, powers / tl.sum(powers, 0), mask=places < columns)


def softmax(other=float("-inf")):
    def candidate(x):
        x, out = x.contiguous(), torch.empty(x.shape, dtype=x.dtype)
        if x.numel():
            kernel[(x.numel() // x.shape[-1],)](x, out, x.shape[-1], other, triton.next_power_of_2(x.shape[-1]))
        return out

    return candidate


def reference(x):
    return torch.softmax(x, -1)


X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
"""


@pytest.fixture
def outcomes(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.RunResult]:
    """Tests of that kernel, in a process in which Triton interprets, or compiles."""

    def run(tests: str, *, interpret: bool = True) -> pytest.RunResult:
        monkeypatch.setenv("TRITON_INTERPRET", "1" if interpret else "0")
        pytester.makepyfile(KERNEL + tests)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-rs")

    return run


@needs_triton
def test_the_interpreter_is_judged_where_it_computes_as_a_gpu_does(outcomes: Any) -> None:
    """In float32 and float16. In bfloat16 nothing is said where it computes on raw bits; or it is judged, once the installed one does better."""
    result = outcomes("""
def test_right(check_kernel):
    check_kernel(softmax(), reference, X, gradients=False, trials=40)
    check_kernel(softmax(), reference, X.half(), gradients=False, trials=20)


def test_padded_with_zero():
    report = precheck.compare_kernels(softmax(0.0), reference, X, gradients=False, trials=150)
    assert [finding.rule for finding in report.errors] == ["kernel-edge"], report.summary()


def test_wrong_or_not_judged(check_kernel):
    report = precheck.compare_kernels(softmax(), reference, X.bfloat16(), gradients=False, trials=20)
    assert not report.errors
    assert report.verdict in ("not judged", "rounding")
    if report.verdict == "not judged":
        assert report.facts["trials"] == 0
        assert report.summary().startswith("nothing was judged here")
        assert "computes on the raw bits" in report.summary()
        check_kernel(softmax(), reference, X.bfloat16(), gradients=False)
        assert False, "this is skipped"


def test_of_two_examples_the_other_is_judged():
    report = precheck.compare_kernels(softmax(0.0), reference, [X.bfloat16(), X], gradients=False, trials=150)
    assert report.verdict == "different"
""")
    found = result.parseoutcomes()
    assert found["passed"] + found.get("skipped", 0) == 4
    if "skipped" in found:
        assert found["skipped"] == 1
        result.stdout.fnmatch_lines(["SKIPPED*not judged: the candidate launches a kernel of Triton's on bfloat16*"])


@needs_triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles here")
def test_where_triton_has_no_device_it_says_how_to_go_on(outcomes: Any) -> None:
    outcomes("""
def test_compiled():
    report = precheck.compare_kernels(softmax(), reference, X, gradients=False)
    assert report.verdict == "not judged"
    assert "set TRITON_INTERPRET=1 before triton is imported" in report.findings[0].message
""", interpret=False).assert_outcomes(passed=1)  # fmt: skip


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What stands in for Triton's interpreter, where no triton is installed: it launches a function on tensors."""
    module = types.ModuleType("triton.runtime.interpreter")
    exec("class GridExecutor:\n    def __call__(self, *args, **kwargs):\n        args[-1](*args[:-1])\n", module.__dict__)
    if "triton" not in sys.modules:
        monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
    return module.GridExecutor()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("proven", "verdict"), [(False, "not judged"), (True, "rounding")])
def test_what_is_proven_is_judged(launcher: Any, monkeypatch: pytest.MonkeyPatch, proven: bool, verdict: str) -> None:
    monkeypatch.setattr(triton_interpreter, "_answers", [proven])

    def candidate(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        launcher(x, out, lambda x, out: out.copy_(x.float() * 3))
        return out

    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    assert precheck.compare_kernels(candidate, lambda x: x * 3, x.bfloat16(), gradients=False, trials=20).verdict == verdict
    assert precheck.compare_kernels(candidate, lambda x: x * 3, x, gradients=False, trials=20).verdict == "rounding"


def test_the_command_ends_with_2(launcher: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from precheck import __main__, commands

    monkeypatch.setattr(triton_interpreter, "_answers", [False])
    parts = {"candidate": lambda x: launcher(x, lambda x: None) or x * 2, "reference": lambda x: x + x, "inputs": torch.ones(3, 4).bfloat16()}
    monkeypatch.setattr(commands, "imported", lambda name: parts[name.partition(":")[2]])
    assert __main__.main(["kernel", "here:candidate", "here:reference", "--trials", "20"]) == 2
    assert "nothing was judged here" in capsys.readouterr().out


class InterpreterError(Exception):
    """As Triton's is named."""


def test_where_the_interpreter_stops_nothing_is_judged(launcher: Any) -> None:
    def candidate(x: torch.Tensor) -> torch.Tensor:
        raise InterpreterError("'float' object has no attribute 'to'")

    report = precheck.compare_kernels(candidate, lambda x: x * 3, torch.randn(4, 6), trials=10)
    assert report.verdict == "not judged", report.summary()
    assert "may be a limit of the interpreter" in report.findings[0].message
