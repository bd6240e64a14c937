"""Under tf32 a product that only moves values loses what float32 would hand on: told where it is all that the result is off by."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import precheck

Made = Callable[[torch.Tensor], torch.Tensor]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def one_hot(rows: int, among: int) -> torch.Tensor:
    return nn.functional.one_hot(torch.arange(rows) * 7 % among, among).float()


class Moves(nn.Module):
    def __init__(self, move: Made) -> None:
        super().__init__()
        self.move = move

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.move(x)  # here


SELECTIONS: dict[str, Made] = {
    "identity": lambda x: x @ torch.eye(16),
    "permutation": lambda x: torch.eye(64).flip(0) @ x,
    "rows": lambda x: one_hot(40, 64) @ x,
    "batches": lambda x: torch.bmm(one_hot(8, 16).expand(4, 8, 16), x.view(4, 16, 16)),
    "turned and moved": lambda x: x @ torch.eye(16).roll(1, 0) - 3,
    "with a bias": lambda x: nn.functional.linear(x, torch.eye(16), torch.ones(16)),
    "twice": lambda x: torch.eye(64) @ (x @ torch.eye(16).flip(0)),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_what_only_moves_is_told(name: str) -> None:
    report = precheck.measure(nn.Sequential(Moves(SELECTIONS[name])), normal(64, 16), precision="tf32")
    (finding,) = report.findings
    assert (finding.rule, finding.severity, finding.phase, finding.module) == ("local-drift", "error", "forward", "0")
    assert finding.op in ("aten.mm.default", "aten.bmm.default", "aten.addmm.default")
    assert "suites/measure/test_selections.py:" in finding.source
    assert finding.limit is not None
    assert finding.measured is not None
    assert finding.limit < finding.measured < 2**-11
    assert "all of it by products that move or select values (an identity, a permutation, one-hot rows): float32 does them exactly" in finding.message
    assert f"is the first of {2 if name == 'twice' else 1}" in finding.message
    assert finding.remedy == "index instead, or keep tf32 off there"


class Experts(nn.Module):
    """Tokens sent to an expert and back by products with zeros and ones, as GShard writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sent = torch.eye(64).flip(0)
        result: torch.Tensor = sent.t() @ self.down(torch.relu(self.up(sent @ x)))
        return result


class Looked(nn.Module):
    """An embedding as a product, and a layer after it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Linear(50, 16, bias=False), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(nn.functional.layer_norm(self.table(one_hot(len(x), 50)), (16,)))
        return result


HEALTHY: dict[str, Callable[[], nn.Module]] = {
    "a product that computes": lambda: nn.Linear(16, 16),
    "dispatch": Experts,
    "embedding": Looked,
    "zeros": lambda: Moves(lambda x: x @ torch.zeros(16, 3)),
    "whole numbers": lambda: Moves(lambda x: x.round() @ torch.eye(16)),
    "in float32": lambda: Moves(lambda x: (x[:, :, None] * torch.eye(16)).sum(1)),
    "nearly one": lambda: Moves(lambda x: x @ (1.1 * torch.eye(16))),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_what_computes_or_loses_nothing_is_let_be(name: str) -> None:
    torch.manual_seed(0)
    report = precheck.measure(HEALTHY[name](), normal(64, 16), precision="tf32", loss=lambda out: out.square().mean())
    assert report.findings == []


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "fp8-e4m3-mixed"])
def test_where_results_are_low_anyway_nothing_is_said(precision: str) -> None:
    report = precheck.measure(Moves(lambda x: x @ torch.eye(16, dtype=x.dtype)), normal(64, 16), precision=precision)
    assert report.findings == []


def test_nothing_stays_on() -> None:
    model, x = Moves(SELECTIONS["identity"]), normal(64, 16)
    before = torch.get_float32_matmul_precision(), model(x)
    assert precheck.measure(model, x, precision="tf32").errors
    assert torch.get_float32_matmul_precision() == before[0]
    assert torch.equal(model(x), before[1])
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
