"""What optimizers of torch add to a divisor: 1e-8 is nothing in float16, and one that asks for the format's own eps means it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import precheck
from precheck.findings import Report

BOTH = pytest.mark.parametrize("foreach", [False, True], ids=["single", "foreach"])


def trained(kind: Any, dtype: torch.dtype, steps: int, **options: Any) -> tuple[nn.Module, Report]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)).to(dtype)
    optimizer = kind(model.parameters(), **options)
    with precheck.watch(model) as report:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(16, 64).to(dtype)).float().square().mean().backward()
            optimizer.step()
    return model, report


@BOTH
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam])
def test_an_eps_that_vanishes_in_float16_is_what_is_blamed(kind: Any, foreach: bool) -> None:
    """Moments vanish beside it, as they may: the eps is there for when they do. RAdam divides by 0 on purpose in its first steps."""
    model, report = trained(kind, torch.float16, 12, lr=1e-2, foreach=foreach)
    assert any(bool(parameter.isnan().any()) for parameter in model.parameters()), "the harm"
    nonfinite = [finding for finding in report.errors if "made" in finding.message]
    assert {finding.rule for finding in nonfinite} == {"vanished-constant"}, report.summary()
    assert "1e-08 is zero in float16" in nonfinite[0].message


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_adafactor_takes_the_eps_of_its_format_on_purpose(dtype: torch.dtype, foreach: bool) -> None:
    model, report = trained(torch.optim.Adafactor, dtype, 3, foreach=foreach)
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    assert report.findings == [], report.summary()


def test_outside_of_an_optimizer_the_eps_of_a_low_format_is_still_a_leak() -> None:
    x = 1e-3 * torch.randn(64, generator=torch.Generator().manual_seed(0)).bfloat16()
    with precheck.watch() as report:
        kept = x / (x.abs().mean() + torch.finfo(x.dtype).eps)
    assert len(kept) == 64
    assert [finding.rule for finding in report.errors] == ["dtype-leak"], report.summary()
