"""On an accelerator ops are compared with their shadows by samples that are fetched. What is found is the same as on a CPU.

A CPU stands in the accelerator's place here: `fetching.elsewhere` says that no tensor lies on the host.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import precheck
from precheck.findings import Finding
from precheck.judge import watched_runs
from precheck.observe.shadow.comparing import fetching
from precheck.observe.shadow.mode import Shadow
from precheck.observe.shadow.places.module_tracker import ModuleTracker

READERS = ("numpy_views.py", "statistics.py", "exponents.py", "reduce.py", "sketch.py")
"""Files whose calls of `numpy()` read tensors that were brought to the host."""


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The CPU counts as an accelerator. Returns the numbers of tensors that were fetched together, one for each transfer."""
    transfers: list[int] = []
    fetched = fetching.fetched

    def counted(tensors: Any) -> Any:
        transfers.append(len(tensors))
        return fetched(tensors)

    monkeypatch.setattr(fetching, "elsewhere", lambda tensor: True)
    monkeypatch.setattr(fetching, "fetched", counted)
    return transfers


def found(code: Callable[[], Any]) -> list[Finding]:
    where = ModuleTracker()
    shadow = Shadow(where)
    with where.followed(), shadow.scalers.watched(), shadow:
        kept = code()
    seen = shadow.finish()
    del kept
    assert not seen.opaque, "an op that cannot be followed is passed over"
    return watched_runs.found(seen)


def overflow() -> Any:
    x = torch.full((64,), 300.0).half()
    return (x * x).sqrt()


def positions() -> Any:
    return torch.arange(1024, dtype=torch.bfloat16).float().cos()


def vanished() -> Any:
    x = torch.zeros(3, 8).half()
    return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12)


def counter() -> Any:
    total = torch.zeros(4).to(torch.bfloat16)
    for _ in range(400):
        total += 1
    return total


def sum_of_chunks() -> Any:
    total = torch.zeros(()).to(torch.bfloat16)
    for _ in range(600):
        total = total + torch.ones(()).to(torch.bfloat16)
    return total


def difference() -> Any:
    torch.manual_seed(0)
    weight, delta = torch.randn(64, 64) * 0.05, torch.randn(64, 64) * 5
    return (weight + delta).half() - delta.half()


def starved() -> Any:
    weight = nn.Parameter(torch.ones(8))
    with torch.autocast("cpu", torch.float16):
        out = nn.functional.linear(torch.full((4, 8), 1e-3), weight[None])
    (out.float().square().mean() * 1e-6).backward()
    return weight


def stuck() -> Any:
    weight = nn.Parameter(torch.ones(64).to(torch.bfloat16))
    optimizer = torch.optim.SGD([weight], lr=1e-4)
    for _ in range(8):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    return weight


def training() -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(32), nn.Linear(32, 4)).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(6):
        optimizer.zero_grad()
        out = model(torch.ones(4, 16, dtype=torch.bfloat16))
        choice = out.topk(2, -1)
        (out.float().square().mean() + choice.values.float().sum() * 1e-3).backward()
        optimizer.step()
    return model


CODES = [overflow, positions, vanished, counter, sum_of_chunks, difference, starved, stuck, training]


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.__name__)
def test_what_is_found_is_the_same(code: Callable[[], Any], request: pytest.FixtureRequest) -> None:
    here = found(code)
    assert here
    transfers = request.getfixturevalue("accelerator")
    assert [(f.rule, f.op, f.source, f.severity) for f in found(code)] == [(f.rule, f.op, f.source, f.severity) for f in here]
    assert transfers


def test_an_op_is_compared_by_one_transfer(accelerator: list[int]) -> None:
    found(lambda: (torch.randn(64, 64).to(torch.bfloat16) * 3).exp())
    assert accelerator == [3, 3, 3], "the run, its shadow, and the sum of the whole run"


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.__name__)
def test_numpy_reads_nothing_that_lies_elsewhere(code: Callable[[], Any], accelerator: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """`numpy()` of a tensor on a GPU raises an error, and the op that it happens in is passed over."""
    plain, brought = torch.Tensor.numpy, torch.Tensor.cpu
    host: set[int] = set()

    def cpu(self: torch.Tensor) -> torch.Tensor:
        copy = brought(self).clone()
        host.add(copy.data_ptr())
        return copy

    def numpy(self: torch.Tensor) -> Any:
        caller = sys._getframe(1).f_code.co_filename
        assert caller.endswith(READERS) or self.data_ptr() in host, caller
        return plain(self)

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    monkeypatch.setattr(torch.Tensor, "numpy", numpy)
    assert found(code)


def test_inf_outside_the_sample_is_counted(accelerator: list[int]) -> None:
    def code() -> Any:
        x = torch.ones(1 << 18).half()
        x[12_345] = 300.0
        return x * 300.0

    (finding,) = found(code)
    assert (finding.rule, finding.measured) == ("overflow", 90_000.0)


def test_what_is_fetched_keeps_its_shape_dtype_and_order(accelerator: list[int]) -> None:
    kinds = (torch.float32, torch.bfloat16, torch.bool, torch.int64)
    given = [torch.ones(number % 3 + 1, 2).mul(number).to(kinds[number % 4]) for number in range(9)]
    for mine, came in zip(given, fetching.fetched(given), strict=True):
        assert came.dtype is mine.dtype
        assert torch.equal(came, mine)


def test_a_tensor_of_the_host_is_not_copied() -> None:
    given = [torch.ones(2)]
    assert fetching.fetched(given) is given


def test_what_a_loop_writes_after_a_comparison_does_not_matter(accelerator: list[int]) -> None:
    with precheck.watch() as report:
        x = torch.full((64,), 300.0).half()
        y = x * x
        y.zero_()
        kept = x * x
    assert {f.rule for f in report.errors} == {"overflow"}
    assert kept.isinf().all()
