"""Loops as torch's own pages on automatic mixed precision have them, and each with one of the mistakes that those pages warn of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from course import accused, data, line, network, watched
from torch import nn
from torch.nn.functional import cross_entropy

Loop = Callable[[bool], nn.Module]
SCALE = 2.0**10
"""To begin with: float16 gradients of these losses stay below 65504 under it, so no step is skipped."""


def parts(rate: float = 1e-2) -> tuple[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler]:
    model = network()
    return model, torch.optim.AdamW(model.parameters(), lr=rate), torch.amp.GradScaler("cpu", init_scale=SCALE)


def batches(size: int = 16) -> list[tuple[torch.Tensor, torch.Tensor]]:
    x, y = data()
    return list(zip(x.split(size), y.split(size), strict=True))


def typical(wrong: bool) -> nn.Module:
    """The first loop of the examples; wrong: the optimizer is stepped past the scaler, on scaled gradients."""
    model, optimizer, scaler = parts()
    for x, y in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if wrong:
            optimizer.step()  # typical
            continue
        scaler.step(optimizer)
        scaler.update()
    return model


def clipped(wrong: bool) -> nn.Module:
    """Gradient clipping; wrong: before they are unscaled."""
    model, optimizer, scaler = parts()
    for x, y in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if not wrong:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # clipped
        scaler.step(optimizer)
        scaler.update()
    return model


def accumulated(wrong: bool) -> nn.Module:
    """Gradient accumulation; wrong: the scale is updated between the batches whose gradients are added."""
    model, optimizer, _ = parts()
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=1)
    for place, (x, y) in enumerate(batches(8)):
        with torch.autocast("cpu", torch.float16):
            loss = cross_entropy(model(x), y) / 2
        scaler.scale(loss).backward()  # accumulated
        if place % 2:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        elif wrong:
            scaler.update(scaler.get_scale() * 2)
    return model


def penalised(wrong: bool) -> nn.Module:
    """A gradient penalty; wrong: of gradients that are still scaled."""
    model, optimizer, scaler = parts()
    for x, y in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = cross_entropy(model(x), y)
        scaled = torch.autograd.grad(scaler.scale(loss), list(model.parameters()), create_graph=True)
        gradients = scaled if wrong else [gradient / scaler.get_scale() for gradient in scaled]
        with torch.autocast("cpu", torch.float16):
            penalty = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
            loss = loss + 1e-3 * penalty  # penalised
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return model


def several(wrong: bool) -> nn.Module:
    """Two models, losses and optimizers under one scaler; wrong: the scale is updated between the two steps."""
    first, second = network(), network()
    both = nn.ModuleList([first, second])
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second)]
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=1)
    for x, y in batches():
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            one, other = first(x), second(x)
            losses = [cross_entropy(one + 0.5 * other, y), cross_entropy(other - 0.5 * one, y)]
        scaler.scale(losses[0]).backward(retain_graph=True)
        scaler.scale(losses[1]).backward()
        scaler.unscale_(optimizers[0])
        scaler.step(optimizers[0])
        if wrong:
            scaler.update()
        scaler.step(optimizers[1])  # several
        scaler.update()
    return both


class Attention(nn.Module):
    """Scores by hand; low: with autocast off, so that the exponential stays in the format that the scores came in."""

    def __init__(self, low: bool) -> None:
        super().__init__()
        self.low, self.into, self.out = low, nn.Linear(8, 24), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.into(x.view(-1, 4, 8)).chunk(3, -1)
        with torch.autocast("cpu", enabled=False):
            if not self.low:
                query, key = query.float(), key.float()
            weights = (2 * query @ key.mT).exp()  # disabled
            weights = weights / weights.sum(-1, keepdim=True)
        return self.out(weights.to(value.dtype) @ value)[..., 0]


def disabled(wrong: bool) -> nn.Module:
    """A region without autocast, as for an op that wants float32; wrong: what enters it is not cast up."""
    torch.manual_seed(0)
    model = Attention(wrong)
    nn.init.normal_(model.into.weight, std=0.35)
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=1e-3), torch.amp.GradScaler("cpu", init_scale=SCALE)
    for x, y in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return model


LOOPS: dict[str, tuple[Loop, str, object, str]] = {
    "typical": (typical, "scaler-order", typical, "typical"),
    "clipped": (clipped, "scaler-order", clipped, "clipped"),
    "accumulated": (accumulated, "scaler-order", accumulated, "accumulated"),
    "penalised": (penalised, "scaler-order", penalised, "penalised"),
    "several": (several, "scaler-order", several, "several"),
    "disabled": (disabled, "overflow", Attention, "disabled"),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_of_the_documentation_is_healthy(name: str) -> None:
    report = watched(lambda: LOOPS[name][0](False))
    assert accused(report) == []
    assert report.facts["shadowed"] > 100
    assert report.facts["covered"] == 1


@pytest.mark.parametrize("name", LOOPS)
def test_a_mistake_in_it_is_named_with_its_line(name: str) -> None:
    loop, rule, code, mark = LOOPS[name]
    report = watched(lambda: loop(True))
    assert accused(report)[:1] == [(rule, line(code, mark))], report.summary()
