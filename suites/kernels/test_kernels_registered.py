"""Operators of torch.library must do what their registration says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import precheck

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
Made = Callable[..., Any]


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    """A namespace that is gone after the test."""
    with torch.library._scoped_library("precheck_tests", "FRAGMENT") as made:
        yield made


@pytest.fixture
def doubled(library: torch.library.Library) -> Made:
    """An operator `x + x`, registered as the test asks."""

    def make(fake: Callable[[torch.Tensor], torch.Tensor] | None = torch.empty_like, gradient: bool = True) -> Any:
        @torch.library.custom_op("precheck_tests::doubled", mutates_args=())
        def kernel(x: torch.Tensor) -> torch.Tensor:
            return (x.double() * 2).to(x.dtype)

        if fake is not None:
            kernel.register_fake(fake)
        if gradient:
            kernel.register_autograd(lambda ctx, dy: dy * 2)
        return kernel

    return make


def reference(x: torch.Tensor) -> torch.Tensor:
    return x + x


def told(report: precheck.Report) -> list[tuple[str, str]]:
    return [(finding.rule, finding.severity) for finding in report.findings]


def test_what_is_registered_as_it_is_passes(doubled: Made) -> None:
    report = precheck.compare_kernels(doubled(), reference, X, trials=20)
    assert not report.findings, report.summary()
    report = precheck.compare_kernels(torch.ops.precheck_tests.doubled, reference, {"x": X.bfloat16()}, trials=20)
    assert not report.findings, report.summary()


def test_a_fake_kernel_that_is_missing_is_a_warning_since_nothing_is_wrong_where_nothing_is_compiled(doubled: Made) -> None:
    report = precheck.compare_kernels(doubled(fake=None), reference, X, trials=20)
    assert told(report) == [("kernel-contract", "warning")]
    assert "precheck_tests::doubled has no fake kernel: torch.compile and torch.export cannot trace it" in report.findings[0].message


@pytest.mark.parametrize(
    "fake",
    [lambda x: x.new_empty(x.shape[0]), lambda x: x.new_empty(x.shape, dtype=torch.float64), lambda x: x.new_empty(x.shape[::-1]).mT],
    ids=["shape", "format", "strides"],
)
def test_a_fake_kernel_that_gives_something_else_is_an_error(doubled: Made, fake: Any, request: pytest.FixtureRequest) -> None:
    if request.node.callspec.id == "strides" and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12):
        pytest.skip("up to torch 2.11 opcheck does not compare strides")
    report = precheck.compare_kernels(doubled(fake=fake), reference, X, trials=20)
    assert told(report) == [("kernel-contract", "error")]
    message = report.errors[0].message
    assert "its fake kernel gives other shapes, strides or formats than the kernel (test_faketensor of torch.library.opcheck" in message


def test_a_result_in_the_memory_of_an_input_that_the_schema_does_not_name(library: torch.library.Library) -> None:
    library.define("same(Tensor x) -> Tensor")
    library.impl("same", lambda x: x.view(x.shape), "CPU")
    report = precheck.compare_kernels(torch.ops.precheck_tests.same.default, lambda x: x * 1, X, gradients=False, trials=20)
    assert [finding.rule for finding in report.errors] == ["kernel-mutation"]
    assert "is in the memory of an input" in report.errors[0].message


def test_a_derivative_that_is_registered_nowhere_is_found_by_its_absence(doubled: Made) -> None:
    assert precheck.compare_kernels(doubled(gradient=False), reference, X, trials=20).errors[0].rule == "kernel-gradient"
    assert not precheck.compare_kernels(doubled(gradient=False), reference, X, gradients=False, trials=20).findings


def test_a_function_that_calls_an_operator_is_judged_by_what_it_gives(doubled: Made) -> None:
    operator = doubled(fake=None)
    assert not precheck.compare_kernels(lambda x: operator(x), reference, X, trials=20).findings
