"""Programs that `measure` once stopped at: Python numbers under `vmap`, containers of the user's class, noise first drawn in inference mode."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch

import precheck


class Space(OrderedDict[str, int]):
    """A dictionary that is made from a name. `copy.copy` fails at it."""

    def __init__(self, name: str) -> None:
        super().__init__({name: 1})


class Program(torch.nn.Module):
    def __init__(self, run: Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.run, self.space = torch.nn.Linear(6, 3), run, Space("x")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(self.layer, x)


def number_under_vmap(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.vmap(lambda row: layer(row).float().square().mean() + 1)(x)


def inference_first(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        offset = layer(x)
    return layer(x) + offset.clone()


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("run", [number_under_vmap, inference_first])
def test_measure_takes(run: Callable[[torch.nn.Module, torch.Tensor], torch.Tensor], precision: str) -> None:
    torch.manual_seed(0)
    report = precheck.measure(Program(run), (torch.randn(8, 6),), precision=precision, loss=lambda out: out.float().square().mean())
    assert not report.errors, report.summary()
