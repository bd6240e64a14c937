"""What is made of no input: tables in a lower format have a class. And reports say how inputs lay that fail."""

from __future__ import annotations

import pytest
import torch
from cases import as_if, packed

import precheck


def turned(x: torch.Tensor) -> torch.Tensor:
    """Each row times a wave of its place."""
    return x * (torch.arange(len(x)) * 0.37).cos()[:, None]


@pytest.mark.parametrize(("dtype", "step", "rule"), [
    (torch.bfloat16, 0.37, "kernel-rounding"),  # another formula than the reference's: it rounds the step too
    (torch.float32, 0.4, "kernel-contract"),  # another wave
    (torch.float32, 0.37, ""),
])  # fmt: skip
def test_a_table_in_a_lower_format_is_told_from_another_table(dtype: torch.dtype, step: float, rule: str) -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(len(x), dtype=dtype) * torch.tensor(step, dtype=dtype)
        return x * places.float().cos()[:, None]

    report = precheck.compare_kernels(kernel, turned, torch.randn(9, 6, generator=torch.Generator().manual_seed(0)), trials=30)
    assert [finding.rule for finding in report.errors] == [rule][: bool(rule)], report.summary()


def test_a_report_says_how_inputs_lay_that_fail() -> None:
    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * as_if(y, packed(y.shape))

    report = precheck.compare_kernels(kernel, torch.mul, (torch.randn(3, 4), torch.randn(3, 4)), sizes=("a b", "a b"), trials=70)
    assert [finding.rule for finding in report.errors] == ["kernel-stride"]
    last = report.facts["code"].splitlines()[-1]
    assert last == "# each x lay as x.mT.contiguous().mT"
    assert last in report.summary()
