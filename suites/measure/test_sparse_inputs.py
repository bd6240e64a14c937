"""Sparse inputs of a model that takes them: measured, held against goldens, disturbed and rounded in the elements that they store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import precheck
from precheck.emulation import rounded
from precheck.formats import TF32
from precheck.goldens import lifecycle
from precheck.goldens.file import write
from precheck.measurement import job_of
from precheck.sparse import parts

Layout = Callable[[torch.Tensor], torch.Tensor]
LAYOUTS: dict[str, Layout] = {"coo": torch.Tensor.to_sparse, "csr": torch.Tensor.to_sparse_csr, "csc": torch.Tensor.to_sparse_csc}
pytestmark = pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta state")


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, edges: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):  # torch has no bfloat16 product of these
            return torch.sparse.mm(edges, self.layer(nodes).float())


@pytest.fixture
def graph() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return Graph(), torch.randn(8, 8) * (torch.rand(8, 8) < 0.3), torch.randn(8, 8)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", ["bf16-mixed", "tf32", "32-true"])
def test_they_are_measured(graph: tuple[nn.Module, torch.Tensor, torch.Tensor], layout: str, precision: str) -> None:
    model, edges, nodes = graph
    given = LAYOUTS[layout](edges)
    report = precheck.measure(model, (given, nodes), precision=precision, loss=lambda out: out.square().mean())
    assert not report.findings
    assert torch.equal(given.to_dense(), edges)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_golden_tells_other_values_and_places(graph: tuple[nn.Module, torch.Tensor, torch.Tensor], layout: str, tmp_path: Path) -> None:
    (model, edges, nodes), golden = graph, tmp_path / "graph.safetensors"
    make = LAYOUTS[layout]
    write(golden, lifecycle.record(job_of(model, (make(edges), nodes))))

    def rules(given: torch.Tensor) -> list[str]:
        return [finding.rule for finding in precheck.check(model, (make(given), nodes), golden=golden).findings]

    assert not rules(edges)
    assert rules(edges * 2)[0] == "golden-stale"
    assert rules(edges.flip(0))[0] == "golden-stale"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_what_is_stored_is_rounded(layout: str) -> None:
    dense = torch.eye(3) * (1 + 2**-15)
    given = LAYOUTS[layout](dense)
    found = rounded(given, TF32)
    assert found.layout is given.layout
    assert torch.equal(found.to_dense(), torch.eye(3))
    assert set(parts(found)) == set(parts(given)) > {"values"}
