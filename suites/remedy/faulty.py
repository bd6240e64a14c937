"""Small models in which keeping some modules in float32 is the cure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from precheck.findings import Report
from precheck.measurement import Measurement, job_of
from precheck.observe.job import Job
from precheck.precisions import resolve


class Norm(nn.Module):
    """An RMS norm; a faulty one squares what it has multiplied by 300, which float16 cannot hold."""

    def __init__(self, width: int, *, faulty: bool) -> None:
        super().__init__()
        self.weight, self.gain = nn.Parameter(torch.ones(width)), 300.0 if faulty else 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.gain
        return y * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-6) * self.weight


class Block(nn.Module):
    def __init__(self, *, faulty: bool) -> None:
        super().__init__()
        self.norm, self.up, self.down = Norm(16, faulty=faulty), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


class Stack(nn.Module):
    """Blocks and a head; the norms of the blocks named are faulty."""

    def __init__(self, faulty: Collection[int], depth: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(faulty=number in faulty) for number in range(depth)])
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Site(nn.Module):
    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.change(x)


class Rotary(nn.Module):
    """Angles of positions from 1000 on, in whatever format the table of frequencies has; no floating argument but x."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.linspace(0.1, 1, 16))

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions.to(self.frequencies.dtype)[:, None] * self.frequencies
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class Rotated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.rotary, self.after = nn.Linear(16, 16), Rotary(), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.before(x)
        cos, sin = self.rotary(h, positions=torch.arange(1000, 1000 + len(x)))
        return self.after(h * cos + h.flip(-1) * sin)


class Functional(nn.Module):
    """The fault is in the model's own code."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.before, self.after, self.change = nn.Linear(16, 16), nn.Linear(16, 4), change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.change(self.before(x)))


class Gate(nn.Module):
    """Gives back the logits too, of which it goes on to make the weights; an offset spoils both in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = (self.proj(x) + 300) - 300
        return logits, logits.softmax(-1)


class Routed(nn.Module):
    """Four experts, all of them used, and a penalty on the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = Gate(), nn.ModuleList([nn.Linear(16, 4) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits, weights = self.gate(x)
        return sum(weights[:, place, None] * expert(x) for place, expert in enumerate(self.experts)) + logits.square().mean()


class Embedding(nn.Embedding):
    """Out of float16's range on the way."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * 1e5 / 1e5


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.middle, self.head = Embedding(16, 16), nn.Linear(16, 16), nn.Linear(16, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.embed(ids)))


def squared(x: torch.Tensor) -> torch.Tensor:
    """Out of float16's range and back."""
    y = x * 300
    return y * y / (y.abs() + 1e-3) / 300


def around(change: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    """A site between linear layers, two levels down."""
    net, inner = nn.Sequential(), nn.Sequential()
    for name, part in (("first", nn.Linear(16, 16)), ("site", Site(change)), ("second", nn.Linear(16, 16))):
        inner.add_module(name, part)
    for name, part in (("before", nn.Linear(16, 16)), ("inner", inner), ("after", nn.Linear(16, 4))):
        net.add_module(name, part)
    return net


def square(out: torch.Tensor) -> torch.Tensor:
    return out.float().square().mean()


def job(build: Callable[[], nn.Module], inputs: Any = None, **options: Any) -> Job:
    torch.manual_seed(0)
    return job_of(build(), torch.randn(8, 16) if inputs is None else inputs, **{"loss": square} | options)


def measured(it: Job, precision: str) -> Report:
    return Measurement(it, resolve(precision)).report()
