"""Updates that a low format rounds away are found in the user's own loop, and those that only look so are not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bugs.bug import normal
from bugs.loops import told, watched
from torch import nn

import precheck
from precheck.findings import Finding, Report

WAYS = pytest.mark.parametrize("way", [{"foreach": True}, {"foreach": False}, {"fused": True}], ids=["foreach", "single", "fused"])
START, RATE = 1.23456, 1e-4
"""bfloat16 holds 1.234375, whose neighbours are 2^-7 away: what is less than 2^-8 = 0.0039 is rounded away, 1e-4 forty times over."""


def lost(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.rule == "lost-update"]


def constant_gradient(dtype: torch.dtype, make: Callable[[list[Any]], Any], *, start: float = START, steps: int = 10) -> tuple[Report, torch.Tensor]:
    """`steps` steps of an optimizer under a gradient of one everywhere."""
    weight = nn.Parameter(torch.full((64,), start, dtype=dtype))
    optimizer = make([weight])

    def code() -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            weight.sum().backward()
            optimizer.step()

    return watched(code), weight.detach()


@WAYS
@pytest.mark.parametrize(("dtype", "kept"), [(torch.bfloat16, 1.234375), (torch.float16, 1.234375)], ids=["bfloat16", "float16"])
def test_steps_below_half_a_spacing_arrive_nowhere(way: dict[str, bool], dtype: torch.dtype, kept: float) -> None:
    """float16 is spaced 2^-10 there, of which a half is 4.9e-4: 1e-4 is lost in it too."""
    report, weight = constant_gradient(dtype, lambda parameters: torch.optim.SGD(parameters, lr=RATE, **way))
    assert bool((weight == kept).all())
    (finding,) = lost(report)
    assert finding.severity == "error"
    assert finding.phase == "optimizer"
    assert finding.measured == 0.0
    assert finding.limit == 0.5


@pytest.mark.parametrize("verb", ["measure", "watch"])
def test_a_kernel_that_leaves_weights_alone_is_found_and_not_put_down_to_rounding(verb: str) -> None:
    """torch 2.13's fused SGD on a CPU: of bfloat16 weights it writes those alone that are left over after whole vectors of 32 (AVX512)."""

    def fused(parameters: list[Any]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.5, fused=True)

    if verb == "watch":
        report, weight = constant_gradient(torch.bfloat16, fused, steps=1)
        if not bool((weight == 1.234375).any()):
            pytest.skip("this torch's kernel writes them")
    else:
        weight = nn.Parameter(torch.ones(64).bfloat16())
        optimizer, weight.grad = fused([weight]), torch.ones(64).bfloat16()
        optimizer.step()
        if not bool((weight == 1).any()):
            pytest.skip("this torch's kernel writes them")
        torch.manual_seed(0)
        model, x = nn.Linear(64, 64), torch.randn(32, 64)
        report = precheck.measure(model, x, precision="bf16-true", loss=lambda out: 100 * out.float().square().mean(), optimizer=fused)
    (finding,) = lost(report)
    assert finding.severity == "error"
    assert "so rounding does not explain it: does the optimizer write these weights?" in finding.message


def test_the_message_says_how_much_and_why() -> None:
    report, _ = constant_gradient(torch.bfloat16, lambda parameters: torch.optim.SGD(parameters, lr=RATE, foreach=True))
    (finding,) = lost(report)
    for piece in (r"0% of the update of 10 steps arrived.*: at weights of about 1\.23", r"bfloat16 drops changes smaller than 0\.0039,",
                  r"a step is about 0\.0001", r"1 of 1 parameter lost more than half"):  # fmt: skip
        assert re.search(piece, finding.message), finding.message
    assert "fp32 master" in finding.remedy or "float32" in finding.remedy


@pytest.mark.parametrize("foreach", [True, False])
def test_steps_above_half_a_spacing_arrive(foreach: bool) -> None:
    """0.008 is a spacing and a bit."""
    report, weight = constant_gradient(torch.bfloat16, lambda parameters: torch.optim.SGD(parameters, lr=0.008, foreach=foreach))
    assert bool((weight < 1.2).all())
    assert not told(report), report.summary()


def test_a_kernel_that_moves_nothing_is_found() -> None:
    """torch 2.13's fused SGD for bfloat16 on a CPU leaves the weights as they are, whatever the rate."""
    report, weight = constant_gradient(torch.bfloat16, lambda parameters: torch.optim.SGD(parameters, lr=0.008, fused=True))
    if bool((weight != 1.234375).all()):
        pytest.skip("this build of torch carries the step out")
    (finding,) = lost(report)
    assert finding.measured == 0.0
    assert "a step is about 0.008" in finding.message


@WAYS
def test_in_float32_nothing_is_lost(way: dict[str, bool]) -> None:
    report, weight = constant_gradient(torch.float32, lambda parameters: torch.optim.SGD(parameters, lr=RATE, **way))
    assert bool((weight < START).all())
    assert not told(report), report.summary()


class Rounded(torch.optim.Optimizer):
    """Gradient descent by 1e-4 that rounds up or down by chance, or that keeps what rounding took: `kind` says which."""

    def __init__(self, parameters: Any, kind: str) -> None:
        super().__init__(parameters, {})
        self.kind, self.drawn = kind, torch.Generator().manual_seed(0)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for weight in self.param_groups[0]["params"]:
            wanted = weight.grad.float() * -RATE
            if self.kind == "stochastic":
                bits = (weight.float() + wanted).view(torch.int32)
                noise = torch.randint(0, 1 << 16, bits.shape, generator=self.drawn, dtype=torch.int32)
                weight.copy_(((bits + noise) & ~0xFFFF).view(torch.float32))
                continue
            owed = self.state[weight].setdefault("owed", torch.zeros_like(weight))
            wanted += owed
            before = weight.float()
            weight.add_(wanted.to(weight.dtype))
            owed.copy_(wanted - (weight.float() - before))


@pytest.mark.parametrize("kind", ["stochastic", "kahan"])
def test_what_arrives_late_is_not_lost(kind: str) -> None:
    report, _ = constant_gradient(torch.bfloat16, lambda parameters: Rounded(parameters, kind), steps=100)
    assert not lost(report), report.summary()


def small() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8))


def adamw(master: bool) -> Callable[[], None]:
    """AdamW at 1e-4, on bfloat16 weights or on float32 copies of them."""

    def code() -> None:
        model = small().bfloat16()
        own = list(model.parameters())
        kept = [each.detach().float().requires_grad_() for each in own] if master else own
        optimizer = torch.optim.AdamW(kept, lr=1e-4, weight_decay=0.0)
        for step in range(12):
            model.zero_grad()
            (model(normal(64, 32, seed=step).bfloat16()).float() - normal(64, 8, seed=99)).square().mean().backward()
            if master:
                for each, copy in zip(own, kept, strict=True):
                    copy.grad = each.grad.float()
            optimizer.step()
            if master:
                with torch.no_grad():
                    for each, copy in zip(own, kept, strict=True):
                        each.copy_(copy)

    return code


def test_adamw_on_bfloat16_weights_loses_what_norms_should_learn() -> None:
    """At a weight of one, 1e-4 is a twentieth of what is rounded away even downwards (2^-9)."""
    (finding,) = lost(watched(adamw(master=False)))
    assert finding.measured == pytest.approx(0.0, abs=1e-6)
    assert finding.message.find("1.weight") >= 0
    assert finding.module == "1"


def test_a_float32_master_loses_nothing() -> None:
    report = watched(adamw(master=True))
    assert not lost(report), report.summary()


@pytest.mark.parametrize("idle", ["frozen", "no gradient", "no rate"])
def test_what_was_not_to_move_is_not_missed(idle: str) -> None:
    weight, other = (nn.Parameter(torch.full((64,), START, dtype=torch.bfloat16)) for _ in range(2))
    weight.requires_grad_(idle != "frozen")
    optimizer = torch.optim.SGD([weight, other], lr=0.0 if idle == "no rate" else 0.05)

    def code() -> None:
        for _ in range(5):
            optimizer.zero_grad(set_to_none=False)
            (other.sum() + (weight * (0.0 if idle == "no gradient" else 1.0)).sum()).backward()
            optimizer.step()

    report = watched(code)
    assert bool((weight == weight[0]).all())
    assert not told(report), report.summary()


def test_a_bias_before_a_norm_is_not_accused() -> None:
    """Its gradient is zero but for rounding: there is no update that it could have got."""

    def code() -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32, affine=False), nn.Linear(32, 4)).bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for step in range(6):
            optimizer.zero_grad()
            (model(normal(64, 16, seed=step).bfloat16()).float() - normal(64, 4, seed=50 + step)).square().mean().backward()
            optimizer.step()

    assert not [finding for finding in lost(watched(code)) if "0.bias" in finding.message]


class Chance(torch.optim.Optimizer):
    """AdamW's first step, the sign of the gradient times the rate, rounded up or down by chance."""

    def __init__(self, parameters: Any, seed: int) -> None:
        super().__init__(parameters, {"lr": RATE})
        self.drawn = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for weight in self.param_groups[0]["params"]:
            bits = (weight.float() - RATE * weight.grad.float().sign()).view(torch.int32)
            noise = torch.randint(0, 1 << 16, bits.shape, generator=self.drawn, dtype=torch.int32)
            weight.copy_((((bits + noise) >> 16) << 16).view(torch.float32) if weight.dtype == torch.bfloat16 else bits.view(torch.float32))


@pytest.mark.parametrize("seed", range(6))
def test_one_step_rounded_by_chance_is_not_lost_to_measure_either(seed: int) -> None:
    """Of a norm's 64 weights 1.6 move on average; with a chance of one in five none does, as if they never could."""
    model = nn.Sequential(nn.Linear(8, 64), nn.LayerNorm(64), nn.Linear(64, 4))
    report = precheck.measure(
        model, normal(16, 8), precision="bf16-true", loss=lambda out: out.float().square().mean(), optimizer=lambda them: Chance(them, seed)
    )
    assert not lost(report), report.summary()


def test_one_step_rounded_to_nearest_is_lost_to_measure() -> None:
    model = nn.Sequential(nn.Linear(8, 64), nn.LayerNorm(64), nn.Linear(64, 4))
    report = precheck.measure(
        model, normal(16, 8), precision="bf16-true", loss=lambda out: out.float().square().mean(),
        optimizer=lambda them: torch.optim.AdamW(them, lr=RATE),
    )  # fmt: skip
    (finding,) = lost(report)
    assert "would arrive after" in finding.message


class KahanInTheGradient(Rounded):
    """Kahan summation that works the remainder out in the memory of the gradient, as low-precision optimizers do. `owes`: keeps it."""

    def __init__(self, parameters: Any, *, owes: bool) -> None:
        super().__init__(parameters, "kahan")
        self.owes = owes

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for weight in self.param_groups[0]["params"]:
            owed = self.state[weight].setdefault("owed", torch.zeros_like(weight))
            owed.sub_(weight.grad.sign(), alpha=RATE)
            weight.grad.copy_(weight)
            weight.add_(owed)
            owed.add_(weight.grad.sub_(weight)) if self.owes else owed.zero_()


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("owes", [True, False])
def test_a_remainder_that_is_worked_out_in_the_gradient_arrives_later(steps: int, owes: bool) -> None:
    """The optimizer is continued with the gradient of the last step as it was before the step overwrote it."""
    model = nn.Sequential(nn.Linear(8, 64), nn.LayerNorm(64), nn.Linear(64, 4))
    report = precheck.measure(
        model, normal(16, 8), precision="bf16-true", loss=lambda out: out.float().square().mean(), steps=steps,
        optimizer=lambda them: KahanInTheGradient(them, owes=owes),
    )  # fmt: skip
    assert bool(lost(report)) is not owes, report.summary()
    assert owes or "0% would arrive after" in lost(report)[0].message


def test_moments_that_vanish_are_called_by_name() -> None:
    """Squares of gradients of 1e-5 times 0.001 are 1e-13, and float16 ends at 6e-8."""
    weight = nn.Parameter(torch.ones(64, dtype=torch.float16))
    optimizer = torch.optim.AdamW([weight], lr=1e-2, fused=True)

    def code() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            (weight.float() * 1e-5).sum().backward()
            optimizer.step()

    report = watched(code)
    assert "exp_avg_sq of a parameter is zero for 100% of its elements" in " ".join(finding.message for finding in report.errors)


def test_a_state_that_became_zero_is_told_once() -> None:
    """Its second moment is zero in float16, so it adds up nothing either. float32 states mend both."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).half()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4)
    with precheck.watch(model) as report:
        for _ in range(15):
            (model(torch.randn(32, 16).half()).float().square().mean() * 1e-2).backward()
            optimizer.step()
            optimizer.zero_grad()
    steps = [finding.rule for finding in report.errors if "optimizer.step()" in report.summary() and finding.phase == "optimizer"]
    assert "underflow" in {finding.rule for finding in report.errors}
    assert "absorption" not in steps
