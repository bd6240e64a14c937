"""Numbers learnt later: on an accelerator no op asks for one, and what is found in the end is the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from precheck.findings import Finding
from precheck.judge import watched_runs
from precheck.observe.shadow.comparing import deferred
from precheck.observe.shadow.comparing.deferred import Deferred
from precheck.observe.shadow.mode import Shadow
from precheck.observe.shadow.operations import Observation
from precheck.observe.shadow.places.module_tracker import ModuleTracker


def observed(code: Callable[[], Any], *, always: bool) -> Observation:
    where = ModuleTracker()
    shadow = Shadow(where, later=Deferred(always=always))
    with where.followed(), shadow.scalers.watched(), shadow:
        kept = code()
    seen = shadow.finish()
    del kept
    return seen


def found(code: Callable[[], Any], *, always: bool) -> list[Finding]:
    return watched_runs.found(observed(code, always=always))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def training(dtype: torch.dtype | None = torch.bfloat16, **options: Any) -> Callable[[], Any]:
    def code() -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(Block(), nn.Dropout(0.1), Block())
        model = model.to(dtype) if dtype is not None else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **options)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype is None):
                out = model(torch.ones(4, 16, dtype=dtype or torch.float32))
            choice = out.topk(2, -1)
            (out.float().square().mean() + choice.values.float().sum() * 1e-3).backward()
            optimizer.step()
        return model

    return code


@pytest.mark.parametrize("dtype", [torch.bfloat16, None], ids=["bf16-true", "bf16-mixed"])
@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=["single", "foreach", "fused"])
def test_no_op_asks_for_its_own_measurements(asked: list[str], dtype: torch.dtype | None, options: dict[str, Any]) -> None:
    """What is asked at once: before and after each of 3 steps whether a low weight's gradient is zero, and what `topk` chose."""
    code = training(dtype, **options)
    torch.manual_seed(0)
    model = code()
    weights = len(list(model.parameters())) if dtype is not None else 0
    plain = len(asked)  # torch's own, in its optimizers
    asked.clear()
    observed(code, always=True)
    assert len(asked) <= plain + 3 * (2 * weights + 2), asked


def test_the_fixture_sees_who_asks(asked: list[str]) -> None:
    observed(training(), always=False)
    assert len(asked) > 100, "on a CPU numbers are taken as they come"


def test_a_transfer_serves_many_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    transfers: list[int] = []
    flush = Deferred.flush

    def counted(self: Deferred) -> None:
        transfers.append(len(self.waiting))
        flush(self)

    monkeypatch.setattr(Deferred, "flush", counted)
    seen = observed(training(), always=True)
    assert len(transfers) <= 2 + 4 * seen.shadowed // deferred.FETCHED, "an op leaves its numbers, its row, its accumulator and little else"
    assert max(transfers) == deferred.FETCHED


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


@pytest.mark.parametrize("code", [overflow, positions, vanished, counter, sum_of_chunks, difference, starved, stuck], ids=lambda code: code.__name__)
def test_what_is_found_is_the_same(code: Callable[[], Any]) -> None:
    at_once, later_on = found(code, always=False), found(code, always=True)
    assert at_once
    assert [(f.rule, f.op, f.source, f.severity) for f in later_on] == [(f.rule, f.op, f.source, f.severity) for f in at_once]


def test_inf_outside_the_sample_is_counted() -> None:
    def code() -> Any:
        x = torch.ones(1 << 18).half()
        x[12_345] = 300.0
        return x * 300.0

    (finding,) = found(code, always=True)
    assert (finding.rule, finding.measured) == ("overflow", 90_000.0)


def test_what_waits_is_a_copy() -> None:
    answers: list[list[float]] = []
    waiting = Deferred(always=True)
    tensor = torch.ones(2)
    waiting([tensor], lambda seen: answers.append(seen.tolist()))
    tensor.zero_()
    assert answers == []
    waiting.flush()
    assert answers == [[1.0, 1.0]]


def test_answers_come_in_order_whatever_the_dtypes() -> None:
    order: list[int] = []
    waiting = Deferred(always=True)
    for number in range(deferred.FETCHED + 3):
        dtype = (torch.float32, torch.bfloat16, torch.bool, torch.int64)[number % 4]
        waiting([torch.ones(number % 3 + 1, dtype=dtype), torch.zeros(2)], functools.partial(lambda number, *seen: order.append(number), number))
    waiting.flush()
    assert order == list(range(deferred.FETCHED + 3))
