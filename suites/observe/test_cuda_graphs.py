"""While a CUDA graph is captured, a watch runs the program's ops and nothing of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

import precheck
from precheck.observe.shadow import cuda_graphs

Capture = contextlib.AbstractContextManager[None]


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Capture:
    """A block in which the current stream says that it is captured, on a machine without CUDA."""

    @contextlib.contextmanager
    def block() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(cuda_graphs, "capturing", lambda: True)
            yield

    return block()


def test_ops_that_are_captured_are_run_and_counted_as_not_followed(captured: Capture) -> None:
    layer = torch.nn.Linear(4, 4).bfloat16()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    before = layer.weight.detach().clone()
    with precheck.watch() as report, captured:
        layer(torch.ones(2, 4, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    assert not torch.equal(layer.weight, before)
    assert report.facts["shadowed"] == 0
    assert "aten.addmm.default" in report.facts["opaque"]
    assert not report.errors


def test_what_a_captured_op_writes_has_no_reference_afterwards(captured: Capture) -> None:
    """Else the old reference would be compared with the new numbers."""
    values = torch.ones(4, dtype=torch.bfloat16)
    with precheck.watch() as report:
        total = values * 3
        with captured:
            total.fill_(700.0)
        kept = total + 1
    assert bool((kept == 700).all())
    assert not report.errors, report.summary()


def test_a_bug_after_the_capture_is_found(captured: Capture) -> None:
    with precheck.watch() as report:
        with captured:
            torch.ones(4, dtype=torch.bfloat16).mul_(2)
        places = torch.arange(3000, dtype=torch.bfloat16)
    assert [finding.rule for finding in report.errors] == ["integer-rounding"], places


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_graph_that_is_captured_inside_a_watch_replays() -> None:
    layer, x = torch.nn.Linear(64, 64, device="cuda").bfloat16(), torch.randn(16, 64, device="cuda").bfloat16()
    graph, aside = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.no_grad(), precheck.watch() as report:
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            layer(x)
        torch.cuda.current_stream().wait_stream(aside)
        with torch.cuda.graph(graph):
            y = layer(x)
        graph.replay()
    assert torch.equal(y, layer(x))
    assert not report.errors
