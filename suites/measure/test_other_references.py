"""A reference that takes the run's decisions may end where float32 would not come: then float32 with its own decisions is asked too."""

from __future__ import annotations

import pytest
import torch

import precheck


class Solver(torch.nn.Module):
    """Solves y' = y up to time 1, in steps that are longer where the error estimate is rough: torchode's adaptive solvers do so.

    `fault`: how much the result depends on that estimate, which is rounding alone.
    """

    def __init__(self, fault: float = 0.0) -> None:
        super().__init__()
        self.layer, self.fault = torch.nn.Linear(4, 4), fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        rough = (1e5 * (((y + 1) - y) - 1).abs().mean().float()).clamp(max=1)  # 1 in bfloat16, nearly 0 in float32
        step, time, y = 0.05 * (1 + rough), torch.zeros(()), y.float()
        while time < 1:
            last, y, time = y, y * step.exp(), time + step
        back = (time - 1) / step
        return ((y + back * (last - y)) * (1 + self.fault * rough)).to(x.dtype)


def measured(fault: float) -> precheck.Report:
    torch.manual_seed(0)
    return precheck.measure(Solver(fault), torch.randn(8, 4), precision="bf16-true", depth="boundaries")


def test_a_run_beside_float32_with_its_own_decisions_is_no_error() -> None:
    report = measured(0.0)
    assert not report.errors
    assert report.facts["flips"] > 0
    (finding,) = [each for each in report.findings if each.rule == "unstable-reference"]
    assert finding.severity == "warning"
    assert "or float32 with its own decisions, disagrees with float32 there about as much" in finding.message


@pytest.mark.parametrize("fault", [0.2, -0.4])
def test_a_run_that_is_far_from_both_is_an_error(fault: float) -> None:
    (finding,) = measured(fault).errors
    assert finding.rule == "accumulated-drift"
    assert "the model's output" in finding.message
