"""Inputs that a precision stores low: what they lose is required, and hides no error that the code makes itself further on."""

from __future__ import annotations

import torch
from torch import nn

import precheck

REST = 740.0


def waves(time: torch.Tensor) -> torch.Tensor:
    """Of seconds, up to 128 turns in one: what a stored time has lost moves them."""
    angles = time.float() * 2.0 ** torch.arange(8).float()
    return torch.cat([angles.sin(), angles.cos()], -1)


def above_rest(energy: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    return (energy.to(low) - REST).float()


class Driven(nn.Module):
    """An energy above a large rest, of a field that follows the time."""

    def __init__(self, low: torch.dtype) -> None:
        super().__init__()
        self.low, self.field = low, nn.Linear(16, 32)

    def forward(self, time: torch.Tensor) -> torch.Tensor:
        field = self.field(waves(time).to(self.field.weight.dtype))
        return above_rest(REST + 4 * field.float(), self.low)


def measured(low: torch.dtype) -> precheck.Report:
    torch.manual_seed(0)
    time = 10 + 50 * torch.rand(64, 1, generator=torch.Generator().manual_seed(1))
    return precheck.measure(Driven(low), time, precision="bf16-true")


def test_an_error_of_a_function_beside_what_inputs_have_lost() -> None:
    """The waves are moved as far as noise in the time moves them. The rest is taken off in bfloat16, which is the code's own doing."""
    report = measured(torch.bfloat16)
    assert [error.rule for error in report.errors] == ["cancellation"]
    assert "on the same inputs as the reference, above_rest() is off by 66% of its norm" in report.errors[0].message


def test_the_same_in_float32_is_none() -> None:
    report = measured(torch.float32)
    assert report.errors == []
    assert any("noise runs show" in finding.message for finding in report.findings)  # of the time
