"""Cures cure: these programs fail, each is changed as its report says and not further, and then no error is left."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precheck
from precheck.findings import Report

LOW, HALF = torch.bfloat16, torch.float16


def uniform(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Told:
    """A program, which is told whether to be as the cure says."""

    rule: str
    cure: str
    code: Callable[[bool], Any]


def positions(cured: bool) -> Tensor:
    places = torch.arange(400) if cured else torch.arange(400, dtype=LOW)
    return (places * 0.5).cos()


def norm(cured: bool) -> Tensor:
    x = 300 * (1 + uniform(64)).to(HALF)
    x = x.float() if cured else x
    return x.square().mean().sqrt()


def unit(cured: bool) -> Tensor:
    """The gradient of a quotient has the divisor's reciprocal, which float16 has to hold too."""
    x = torch.zeros(4, 8, dtype=HALF, requires_grad=True)
    (x / (x.norm(dim=-1, keepdim=True) + (6.2e-5 if cured else 1e-12))).sum().backward()
    return x.grad


def entropy(cured: bool) -> Tensor | None:
    x = (20 * uniform(64, 1) - 10).to(HALF).requires_grad_()
    if cured:
        nn.functional.logsigmoid(x).mean().backward()
    else:
        torch.log(torch.sigmoid(x * 4) + 1e-8).mean().backward()
    return x.grad


def inverse(cured: bool) -> Tensor:
    x = (1e-3 * (1 + uniform(64))).to(HALF)
    return (100 * x) ** -2 if cured else x**-2


def variance(cured: bool) -> Tensor:
    x = (20 + uniform(8, 64)).to(HALF)
    return x.var(-1, correction=0) if cured else (x * x).mean(-1) - x.mean(-1) ** 2


def counter(cured: bool) -> Tensor:
    total = torch.zeros((), dtype=torch.float32 if cured else LOW)
    for _ in range(600):
        total += torch.ones((), dtype=LOW)
    return total


def wave(cured: bool) -> Tensor:
    phases = 2000 * uniform(256)
    phases = phases if cured else phases.to(LOW)
    return phases.sin().to(LOW)


def bins(cured: bool) -> Tensor:
    """A histogram, each bin of which is a sum of hundreds of shares."""
    shares, places = (uniform(8000) / 100).to(LOW), torch.arange(8000) % 4
    total = torch.zeros(4, dtype=torch.float32 if cured else LOW)
    return total.index_add_(0, places, shares.float() if cured else shares)


def follows(cured: bool) -> Tensor:
    """An average of weights that stands still."""
    average, weight = torch.ones(64), (1.5 + 0.1 * uniform(64)).to(LOW)
    average = average if cured else average.to(LOW)
    for _ in range(40):
        average.lerp_(weight.float() if cured else weight, 1e-3)
    return average


def kept(cured: bool) -> Tensor:
    cache = torch.zeros(8, dtype=torch.float32 if cured else LOW)
    for each in uniform(500, 8):
        cache.copy_(0.999 * cache.float() + 0.001 * each)
    return cache


def chosen(cured: bool) -> Tensor:
    scores = uniform(512, 64)
    return (scores if cured else scores.to(LOW)).topk(4).indices


def clipped(cured: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=HALF):
            loss = model(torch.ones(4, 8)).float().square().mean()
        scaler.scale(loss).backward()
        if cured:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def masked(cured: bool) -> Tensor:
    scores = uniform(4, 8).to(HALF)
    return torch.softmax(scores.masked_fill(scores > 0.5, torch.finfo(torch.float16).min if cured else -1e10), -1)


def copied(cured: bool) -> None:
    """A cast of a weight that is kept, and was first made while the model was validated."""
    weight, bias, low = nn.Parameter(uniform(8, 8)), nn.Parameter(uniform(8)), None
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            low = weight.to(LOW) if cured or low is None else low
            out = (torch.ones(2, 8, dtype=LOW) @ low).float() + bias
    out.square().mean().backward()


def many_uses(cured: bool) -> Tensor | None:
    """A weight that is used in each of 400 steps: autograd adds up its gradients."""
    weight, total = nn.Parameter(torch.ones(32, dtype=LOW)), torch.zeros(())
    wide = weight.float() if cured else weight
    for step in range(400):
        total = total + (wide.to(LOW).float() * (1 / 3 + 0.01 * uniform(400, 32)[step])).sum()
    total.backward()
    return weight.grad


def many_batches(cured: bool) -> Tensor | None:
    """Gradients of 400 backward passes, of which the cure takes each out of `.grad`."""
    weight, total = nn.Parameter(torch.ones(32, dtype=LOW)), torch.zeros(32)
    for step in range(400):
        (weight.float() * (1 / 3 + 0.01 * uniform(400, 32)[step])).sum().backward()
        if cured and weight.grad is not None:
            total += weight.grad
            weight.grad = None
    return total if cured else weight.grad


def silent_row(cured: bool) -> Tensor:
    """Rows in half as codes of eight bits and back, of which one is zero. The format has no 1e-12, by which float32 would be helped."""
    rows = uniform(8, 32).to(HALF)
    rows[3] = 0
    scale = rows.abs().amax(-1, keepdim=True) / 448
    scale = scale.clamp(min=torch.finfo(scale.dtype).tiny) if cured else scale
    return (rows / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale.float()


def units(cured: bool) -> Tensor:
    """What a network tells, in the units of its user, channel by channel and in place."""
    told = uniform(32, 2).to(HALF)
    told = told.float() if cured else told.clone()
    told[:, 1] = told[:, 1].float() * 9500 + 96_000 if cured else told[:, 1] * 9500 + 96_000
    return told.float()


def steep_loss(cured: bool) -> Tensor | None:
    """Its gradient is beyond half, in which the answers are."""
    weight = nn.Parameter(torch.full((4, 4), 0.5))
    x = uniform(8, 4)
    with torch.autocast("cpu", dtype=HALF, enabled=not cured):
        out = x @ weight
    (1e6 * out.float().square()).sum().backward()
    return weight.grad


EVERY = (
    Told("integer-rounding", "do not create them in bfloat16: keep whole numbers in torch.long or float32", positions),
    Told("overflow", "stay in float32 from ", norm),
    Told("overflow", "and let it write into a float32 tensor, not into one that is float16 since ", units),
    Told("overflow", "keep the tensor that this line casts in float32, from where it is made on", steep_loss),
    Told("vanished-constant", "give a constant that float16 holds (at least 6e-05, ", unit),
    Told("vanished-constant", "torch.nn.functional.logsigmoid(x) gives the log of this sigmoid without its zeros", entropy),
    Told("overflow", "; or scale its input up, and undo this later", inverse),
    Told("cancellation", "x.var(dim, correction=0) gives mean(x**2) - mean(x)**2 without this difference", variance),
    Told("absorption", "make the accumulator float32 ", counter),
    Told("absorption", "cast the tensor to float32 once, before all its uses", many_uses),
    Told("absorption", "after each backward pass add .grad to a float32 tensor", many_batches),
    Told("amplified-rounding", "leave out this cast, and round after aten.sin.default", wave),
    Told("accumulated-drift", "let it write into a float32 tensor, not into one that is bfloat16 since ", kept),
    Told("local-drift", ", and call .float() on its other operands, since torch asks for one dtype", bins),
    Told("absorption", ", and call .float() on its other operands, since torch asks for one dtype", follows),
    Told("decision-flip", "compare in float32: stay in float32 on this line", chosen),
    Told("scaler-order", "call scaler.unscale_(optimizer) first", clipped),
    Told("overflow", "give a number that float16 holds, such as torch.finfo(torch.float16).min", masked),
    Told("wrong-scale", "as by scale.clamp(min=torch.finfo(scale.dtype).tiny)", silent_row),
    Told("missing-gradient", "make this copy in each forward pass", copied),
)


def watched(code: Callable[[bool], Any], cured: bool) -> Report:
    """The report on a program, which torch may refuse to run."""
    reports = list[Report]()
    with contextlib.suppress(RuntimeError), precheck.watch() as report:
        reports.append(report)
        result = code(cured)  # held to the end of the block: what a user keeps is alive
        assert result is None or result.numel()
    return reports[0]


@pytest.mark.parametrize("told", EVERY, ids=lambda told: told.code.__name__)
def test_what_the_cure_says_is_enough(told: Told) -> None:
    report = watched(told.code, cured=False)
    assert report.errors, report.summary()
    assert report.errors[0].rule == told.rule
    assert told.cure in report.errors[0].remedy
    assert f"    cure: {report.errors[0].remedy}" in report.summary()
    after = watched(told.code, cured=True)
    assert not [each for each in after.findings if each.severity != "note"], after.summary()
