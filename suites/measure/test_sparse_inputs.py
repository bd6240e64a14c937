"""Sparse inputs and buffers: measured, held against goldens, disturbed and rounded in the elements that they store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import precheck
from precheck.formats import TF32
from precheck.goldens import lifecycle
from precheck.goldens.file import write
from precheck.measurement import job_of
from precheck.observe.recording.digest import Digest
from precheck.observe.state import rounded_to
from precheck.torch_support.dense_parts import parts
from precheck.torch_support.emulation import rounded

Layout = Callable[[torch.Tensor], torch.Tensor]
LAYOUTS: dict[str, Layout] = {"coo": torch.Tensor.to_sparse, "csr": torch.Tensor.to_sparse_csr, "csc": torch.Tensor.to_sparse_csc}
pytestmark = pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta state")


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, edges: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):  # on a CPU torch has no low product of most of these
            return torch.sparse.mm(edges.float(), self.layer(nodes.to(self.layer.weight.dtype)).float())


class Whole(nn.Module):
    """The same, with the edges in a buffer."""

    keep_in_float32 = False

    def __init__(self, graph: nn.Module, edges: torch.Tensor) -> None:
        super().__init__()
        self.graph = graph
        self.register_buffer("edges", edges)

    def forward(self, nodes: torch.Tensor) -> torch.Tensor:
        return self.graph(self.edges, nodes)


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1)


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


STORED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nested": lambda dense: torch.nested.nested_tensor([dense[:3], dense[3:]]),
    "quantised": lambda dense: torch.quantize_per_tensor(dense, 0.05, 0, torch.qint8),
}
READ: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"nested": lambda given: given.values().view(8, 8), "quantised": torch.Tensor.dequantize}


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage", "ignore:.*other quantized tensor creation functions")
@pytest.mark.parametrize("form", STORED)
def test_a_golden_tells_other_values_of_what_torch_calls_strided_and_few_ops_read(form: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    dense, layer, golden = torch.randn(8, 8), nn.Linear(8, 3), tmp_path / "graph.safetensors"
    model, loss = (lambda given: layer(READ[form](given))), torch.mean
    write(golden, lifecycle.record(job_of(model, STORED[form](dense), loss=loss)))
    assert not precheck.check(model, STORED[form](dense), golden=golden, loss=loss).findings
    assert precheck.check(model, STORED[form](dense.flip(0)), golden=golden, loss=loss).findings[0].rule == "golden-stale"
    held = Digest()
    held.add("inputs", STORED[form](dense))
    assert not held.finish()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_what_is_stored_is_rounded(layout: str) -> None:
    dense = torch.eye(3) * (1 + 2**-15)
    given = LAYOUTS[layout](dense)
    found = rounded(given, TF32)
    assert found.layout is given.layout
    assert torch.equal(found.to_dense(), torch.eye(3))
    assert set(parts(found)) == set(parts(given)) > {"values"}


class Hides(nn.Module):
    """Makes its sparse tensor by itself, so that nothing it is given can be named."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to_sparse_csr() @ torch.ones(8, 3, dtype=x.dtype)


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", torch.eye(4).to_sparse_csr())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.edges @ x


def product(x: torch.Tensor) -> torch.Tensor:
    return x @ torch.ones(8, 3, dtype=x.dtype)


LACKS = "tensor, of which torch has no product in"


@pytest.mark.parametrize(
    ("model", "made", "told"),
    [
        (product, torch.Tensor.to_sparse_csr, f"inputs is a CSR {LACKS}"),
        (product, torch.Tensor.to_sparse_csc, f"inputs is a CSC {LACKS}"),
        (product, lambda dense: dense.to_sparse_bsr((2, 2)), f"inputs is a BSR {LACKS}"),
        (lambda pair: product(pair[1]), lambda dense: ([dense, dense.to_sparse_csr()],), f"inputs[0][1] is a CSR {LACKS}"),
        (Keeps, torch.Tensor.clone, f"edges is a CSR {LACKS}"),
        (Hides, torch.Tensor.clone, "torch has no product of a compressed sparse tensor (CSR, CSC, BSR, BSC) in"),
    ],
    ids=["csr", "csc", "bsr", "in a list", "buffer", "made inside"],
)
@pytest.mark.parametrize(("precision", "kind"), [("bf16-mixed", "bfloat16"), ("bf16-true", "bfloat16"), ("16-true", "float16")])
def test_a_product_that_torch_lacks_is_told_in_one_line(model: Any, made: Any, told: str, precision: str, kind: str) -> None:
    given, model = made(torch.eye(4, 8)), model() if isinstance(model, type) else model
    with pytest.raises(NotImplementedError) as caught:
        precheck.measure(model, given, precision=precision)
    line = str(caught.value)
    assert line.startswith(f"{told} {kind} (")
    assert line.endswith("; pass it as tensor.to_sparse_coo(), or multiply in float32, inside torch.autocast(device, enabled=False)")
    assert "\n" not in line
    assert Path(__file__).name in {Path(each.path).name for each in caught.traceback[1:]}  # the line of the product is still in the traceback


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "16-true"])
def test_what_is_passed_instead_runs(precision: str) -> None:
    dense = torch.eye(4, 8)
    for made in (dense.to_sparse_csr(), dense.to_sparse_csc(), dense.to_sparse_bsr((2, 2))):
        assert not precheck.measure(product, made.to_sparse_coo(), precision=precision).errors


def doubled(dense: torch.Tensor) -> torch.Tensor:
    """Each element as the sum of two, as a COO tensor may hold it before it is coalesced."""
    once = dense.to_sparse()
    return torch.sparse_coo_tensor(once.indices().repeat(1, 2), (once.values() / 2).repeat(2), once.shape, check_invariants=True)


@pytest.mark.parametrize("layout", [*LAYOUTS, "doubled"])
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "16-true", "bf16-master", "tf32", "32-true"])
def test_a_buffer_is_measured_and_comes_back(graph: tuple[nn.Module, torch.Tensor, torch.Tensor], layout: str, precision: str) -> None:
    model, edges, nodes = graph
    kept = {**LAYOUTS, "doubled": doubled}[layout](edges)
    whole = Whole(model, kept)
    assert not precheck.measure(whole, nodes, precision=precision, loss=lambda out: out.square().mean(), optimizer=sgd, steps=2).errors
    assert whole.edges is kept
    assert torch.equal(kept.to_dense(), edges)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_buffer_beyond_a_format_stays_as_it_is(layout: str) -> None:
    given = LAYOUTS[layout](torch.eye(3) * 1e6)
    assert rounded_to(torch.float16)(given) is given
    assert rounded_to(torch.bfloat16)(given).dtype is torch.bfloat16


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_module_that_is_kept_in_float32_keeps_its_buffer(graph: tuple[nn.Module, torch.Tensor, torch.Tensor], layout: str) -> None:
    model, edges, nodes = graph
    whole, seen = Whole(model, LAYOUTS[layout](edges)), set()
    whole.keep_in_float32 = True
    model.register_forward_pre_hook(lambda module, args: seen.add(args[0].dtype))
    precheck.measure(whole, nodes, precision="bf16-true")
    assert seen == {torch.float32}
