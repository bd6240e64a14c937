"""A fault on a line that several others call: the finding names the call that went wrong, and is silent on calls where there is one alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import precheck
from precheck.findings import Finding, Report


def to_low(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16)  # the helper


def through(x: torch.Tensor) -> torch.Tensor:
    return to_low(x)  # a helper of a helper


shortly = lambda x: x.to(torch.bfloat16)  # noqa: E731  # as people write it


def only_called_once(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16)  # alone


def line_of(words: str) -> int:
    """The only line of this file that ends with these words as its comment."""
    lines = Path(__file__).read_text(encoding="utf8").splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# {words}")]
    return found


def only_error(report: Report) -> Finding:
    (error,) = report.errors
    return error


def calls(text: str) -> list[int]:
    """The lines of calls that a text names."""
    found = re.search(r"\(called at ([^)]*)\)", text)
    return [int(number) for number in re.findall(r":(\d+)", found[1])] if found else []


def test_the_call_that_went_wrong_is_named() -> None:
    with precheck.watch() as report:
        to_low(torch.randn(8)) * 2  # a healthy call
        to_low(torch.arange(600).float()).sin()  # the faulty call
    error = only_error(report)
    assert error.source.endswith(f":{line_of('the helper')}")
    assert calls(error.message) == [line_of("the faulty call")]
    assert re.search(rf"leave out this cast for the call at \S*:{line_of('the faulty call')}:", error.remedy)
    assert f":{line_of('the faulty call')}  |  to_low(torch.arange" in report.summary()


def test_a_lambda_is_a_helper_too() -> None:
    with precheck.watch() as report:
        [shortly(torch.randn(8)) for _ in range(2)]
        shortly(torch.arange(600).float()).sin()  # the lambda's faulty call
    assert calls(only_error(report).message) == [line_of("the lambda's faulty call")]


def test_of_helpers_in_each_other_the_line_is_named_that_tells_the_calls_apart() -> None:
    with precheck.watch() as report:
        through(torch.randn(8)) * 2
        through(torch.arange(600).float()).sin()  # the outer faulty call
    assert calls(only_error(report).message) == [line_of("the outer faulty call")]


def test_all_faulty_calls_are_named_in_one_finding() -> None:
    with precheck.watch() as report:
        to_low(torch.arange(600).float()).sin()  # the first of two
        to_low(torch.arange(700).float()).cos()  # the second of two
        to_low(torch.randn(8)) * 2  # neither
    error = only_error(report)
    assert calls(error.message) == [line_of("the first of two")]
    assert re.search(rf"; the same when called at \S*:{line_of('the second of two')}$", error.message)
    assert f":{line_of('neither')}" not in error.message


def test_the_line_since_which_a_tensor_is_low_is_that_of_the_call() -> None:
    with precheck.watch() as report:
        to_low(torch.randn(8)) * 2
        share = to_low(torch.linspace(0, 1, 300))  # the rounding
        angles = share * 600
        angles.float().sin()
    error = only_error(report)
    assert calls(error.message) == [line_of("the rounding")]
    assert re.search(rf"stay in float32 from \S*:{line_of('the rounding')} on", error.remedy)


def test_two_calls_on_one_line_are_not_told_apart() -> None:
    with precheck.watch() as report:
        to_low(torch.arange(600).float()).sin(), to_low(torch.arange(600).float()).cos()
    error = only_error(report)
    assert "called at" not in error.message + error.remedy


@pytest.mark.parametrize("times", [1, 3])
def test_a_single_line_that_calls_is_not_named(times: int) -> None:
    with precheck.watch() as report:
        for _ in range(times):
            only_called_once(torch.arange(600).float()).sin()
    error = only_error(report)
    assert error.source.endswith(f":{line_of('alone')}")
    assert "called at" not in error.message + error.remedy
