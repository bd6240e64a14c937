"""Planted faults, one a rule, each beside a twin in which it is fixed: the fault is found where it is, the twin is left alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import precheck
from precheck.findings import RULES, Report
from precheck.rules import classes
from precheck.rules.rule import Rule


class Site(nn.Module):
    """Where a fault sits: a module of its own between two linear layers."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.change(x)


def around(change: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    net = nn.Sequential()
    net.add_module("before", nn.Linear(32, 32))
    net.add_module("site", Site(change))
    net.add_module("after", nn.Linear(32, 32))
    return net


class Rotary(nn.Module):
    """Rotations by positions that start at 1000, in the format `positions`."""

    def __init__(self, positions: torch.dtype) -> None:
        super().__init__()
        self.positions = positions
        self.proj = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angle = torch.arange(1000, 1000 + x.shape[0]).to(self.positions).float()[:, None] * torch.linspace(0.1, 1, 32)
        return self.proj(x) * angle.cos().to(x.dtype)


class Detaching(nn.Module):
    """A branch that only one precision takes, and that cuts the graph."""

    def __init__(self, *, cut: bool) -> None:
        super().__init__()
        self.cut = cut
        self.inner = nn.Linear(32, 32)
        self.outer = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.inner(x)
        if self.cut and hidden.dtype is torch.bfloat16:
            hidden = hidden.detach()
        return self.outer(hidden)


class Counting(nn.Module):
    """Every other element is doubled, by a count that stops at 256 in bfloat16."""

    def __init__(self, counts: torch.dtype) -> None:
        super().__init__()
        self.counts = counts
        self.proj = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        odd = torch.ones(x.numel()).to(self.counts).cumsum(0, dtype=self.counts).long() % 2
        return self.proj(x) * (1 + odd.view_as(x))


class Mask(nn.Module):
    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return scores + scores.new_full(scores.shape, -torch.inf).triu(1)


class Masked(nn.Module):
    """Attention under a mask of -inf, of which the values have lost their digits."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.ModuleList([nn.Linear(32, 32) for _ in range(3)])
        self.mask = Mask()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x) for layer in self.qkv)
        return self.mask(q @ k.T / 6).softmax(-1).to(v.dtype) @ ((v + 20) - 20)


class Router(nn.Module):
    """Top-2 of 8 experts by logits that carry an offset, which bfloat16 rounds to halves."""

    def __init__(self, *, offset: float) -> None:
        super().__init__()
        self.offset = offset
        self.gate = nn.Linear(32, 8)
        self.experts = nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.gate(x)
        chosen = (logits + self.offset).topk(2, -1)[1]
        weight = logits.gather(-1, chosen).softmax(-1).to(x.dtype)
        return (self.experts(x).gather(-1, chosen) * weight).sum(-1)


def square(out: torch.Tensor) -> torch.Tensor:
    return out.float().square().mean()


def sgd(lr: float) -> dict[str, Any]:
    return {"optimizer": lambda params: torch.optim.SGD(params, lr=lr), "steps": 3}


@dataclasses.dataclass(frozen=True)
class Case:
    """A fault with what must be said of it, and its twin: the same but for the fix."""

    rule: str
    severity: str
    phase: str
    module: str
    says: str  # part of the message
    precision: str
    fault: Callable[[], nn.Module]
    twin: Callable[[], nn.Module] | None = None  # None: the twin is the same model under another precision, loss or step
    fixed_by: dict[str, Any] = dataclasses.field(default_factory=dict)
    options: dict[str, Any] = dataclasses.field(default_factory=lambda: {"loss": square})


def identity(h: torch.Tensor) -> torch.Tensor:
    return h * 1


CASES = {
    "fp16 overflow in a module": Case(
        "overflow", "error", "forward", "site", "elements are Inf in float16", "16-true", lambda: around(lambda h: h * 1e5 / 1e5),
        lambda: around(lambda h: (h.float() * 1e5 / 1e5).to(h.dtype)), options={}),
    "an infinite output": Case(
        "overflow", "error", "forward", "site", "elements are Inf in float16 under 16-mixed", "16-mixed",
        lambda: around(lambda h: h * 1e6), lambda: around(lambda h: h * 1e3), options={}),
    "0/0 in bfloat16": Case(
        "nan", "error", "forward", "site", "elements are NaN in bfloat16", "bf16-true",
        lambda: around(lambda h: ((h * 1e-4 + 1) - 1) / ((h * 1e-4 + 1) - 1) * h), lambda: around(identity)),
    "bfloat16 positions": Case(
        "accumulated-drift", "error", "forward", "", "off by", "bf16-mixed", lambda: Rotary(torch.bfloat16), lambda: Rotary(torch.float32)),
    "a mean that cancels": Case(
        "accumulated-drift", "error", "forward", "site", "output of site: off by", "bf16-true",
        lambda: around(lambda h: (h + 30) - 30), lambda: around(identity)),
    "no loss scale": Case(
        "gradient-underflow", "error", "backward", "before", "became zero under 16-true at loss scale 1", "16-true",
        lambda: around(identity), fixed_by={"precision": "16-mixed"}, options={"loss": lambda out: square(out) * 1e-5}),
    "a graph cut in low precision": Case(
        "missing-gradient", "error", "backward", "inner", "inner.weight: no gradient, where the reference has one (2 parameters", "bf16-mixed",
        lambda: Detaching(cut=True), lambda: Detaching(cut=False)),
    "updates below half a spacing": Case(
        "lost-update", "error", "optimizer", "before", "of the update of 3 steps arrived: ", "bf16-true",
        lambda: around(identity), fixed_by={"precision": "bf16-master"}, options={"loss": square} | sgd(1e-4)),
    "no loss scale is small enough": Case(
        "scaler-collapse", "error", "scaler", "", "not finite at any loss scale from 65536 down to 1", "16-mixed",
        lambda: around(identity), fixed_by={"loss": square}, options={"loss": lambda out: square(out) * 1e9}),
    "close to 65504": Case(
        "headroom", "warning", "forward", "site", "float16 ends at 65504, ", "16-true",
        lambda: around(lambda h: h * 1e4), lambda: around(lambda h: h * 100), options={}),
    "a cast in the model": Case(
        "dtype-leak", "warning", "forward", "1", "output of module 1 is stored in bfloat16 under 32-true", "32-true",
        lambda: nn.Sequential(nn.Linear(32, 32), Site(torch.Tensor.bfloat16)), lambda: around(identity), options={}),
    "float32 that is not enough": Case(
        "unstable-reference", "warning", "forward", "site", "float32 and float64 disagree", "32-true",
        lambda: around(lambda h: (h + 1e4) - 1e4), lambda: around(identity)),
    "a count in bfloat16": Case(
        "decision-flip", "error", "forward", "", "cast (aten._to_copy) in the model's own forward: ", "bf16-mixed",
        lambda: Counting(torch.bfloat16), lambda: Counting(torch.float32)),
}  # fmt: skip


def measured(build: Callable[[], nn.Module], **options: Any) -> Report:
    torch.manual_seed(0)
    model = build()
    return precheck.measure(model, torch.randn(64, 32), **options)


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_found_where_it_is(name: str) -> None:
    case = CASES[name]
    report = measured(case.fault, precision=case.precision, **case.options)
    found = next((finding for finding in report.findings if finding.rule == case.rule), None)
    assert found is not None, report.summary()
    assert (found.severity, found.phase, found.module) == (case.severity, case.phase, case.module), report.summary()
    assert case.says in found.message
    assert "\n" not in found.message
    assert found.advice or found.remedy == RULES[case.rule].remedy
    assert bool(found.advice) == bool(found.cause), report.summary()  # what to change is known where a line is
    assert found.measured is not None
    assert found.limit is not None
    assert bool(report.errors) == (case.severity == "error")


@pytest.mark.parametrize("name", CASES)
def test_its_fixed_twin_is_left_alone(name: str) -> None:
    case = CASES[name]
    options = {"precision": case.precision, **case.options, **case.fixed_by}
    assert case.twin or case.fixed_by
    report = measured(case.twin or case.fault, **options)
    assert not [finding for finding in report.findings if finding.severity != "note"], report.summary()


def test_every_rule_that_module_boundaries_can_show_has_a_fault() -> None:
    """Those that look at a run beside its reference, and flips, which `measure` counts. Mechanisms of single ops, of recipes and of the user's own
    loop are in suites/zoo, suites/quantised and suites/scaler; pairs and kernels have faults of their own."""
    beside = {rule.about.name for rule in classes() if rule.beside is not Rule.beside}
    assert {case.rule for case in CASES.values()} == beside | {"decision-flip"}


def test_routing_by_logits_that_one_addition_spoiled() -> None:
    report = measured(lambda: Router(offset=100.0), precision="bf16-mixed", loss=square)
    assert [finding.rule for finding in report.errors] == ["decision-flip"]


def test_sound_routing_is_left_alone() -> None:
    report = measured(lambda: Router(offset=0.0), precision="bf16-mixed", loss=square)
    assert report.findings == [], report.summary()


def test_the_bias_before_a_norm_loses_no_update() -> None:
    """Its gradient is zero in theory: what float32 would move it by is float32's own rounding."""
    for seed in range(4):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 16))
        report = precheck.measure(model, torch.randn(32, 16), precision="bf16-true", loss=square, **sgd(0.5))
        assert "lost-update" not in {finding.rule for finding in report.findings}, report.summary()


def test_a_mask_of_infinities_hides_nothing() -> None:
    report = measured(Masked, precision="bf16-true", loss=square)
    assert [finding.rule for finding in report.errors] == ["accumulated-drift"], report.summary()
