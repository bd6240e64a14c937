"""The eighteenth batch, fifth part: quantiles, losses on ranks, recordings, and more ways to write the networks of the other parts."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, broken, healthy, spread
from pair_eighteenth import GROUPS, HEADS, LAST, LENGTH, SIZE, Heads, Sink, SinkAfter, W, Window, causal, made
from pair_eighteenth_rest import Adapted, Timed, Weighted
from pair_eighteenth_scans import Block, Cells, Clamped, Filter, Gated
from pair_eighteenth_sights import PICTURES, Grouped, Next, Picture, Speech
from pair_fourteenth_scans import Stream, numbers
from torch import nn
from torch.utils.checkpoint import checkpoint

import precheck


class Quantiles(nn.Module):
    """Three quantiles that do not cross: the middle, and steps to both sides."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.inside, self.head = ways, nn.Linear(W, W), nn.Linear(W, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low, middle, high = self.head(torch.tanh(self.inside(x))).unbind(-1)
        return torch.stack([middle - F.softplus(low), middle, middle + F.softplus(high)], -1)


class QuantilesPort(Quantiles):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways, made = self.ways, self.head(torch.tanh(self.inside(x)))
        size = made[..., ::2].exp() if ways.get("exp") else torch.logaddexp(made[..., ::2], torch.zeros_like(made[..., ::2]))
        size = size.flip(-1) if ways.get("sides") else size
        return made[..., 1:2] + torch.cat([-size[..., :1], torch.zeros_like(size[..., :1]), size[..., 1:]], -1)


def pinball(out: torch.Tensor) -> torch.Tensor:
    off = numbers(*out.shape[:2])[..., None] - out.to(torch.promote_types(out.dtype, torch.float32))
    shares = torch.tensor([0.1, 0.5, 0.9])
    return torch.maximum(shares * off, (shares - 1) * off).mean()


def quantiles(**bad: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Quantiles()), QuantilesPort(**bad)
    other.load_state_dict(model.state_dict())
    return model, other, numbers(4, 6, W), {"loss": pinball}


healthy("quantiles", "in one", quantiles)
broken("quantiles", "exp for softplus", lambda: quantiles(exp=True), "")
broken("quantiles", "sides exchanged", lambda: quantiles(sides=True), "")


class Contrast(nn.Module):
    """Two towers, and the loss of pairs among all."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.one, self.two, self.warm = ways, nn.Linear(W, 8), nn.Linear(W, 8), nn.Parameter(torch.tensor([1.2]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = F.normalize(self.one(x[:, 0]), dim=-1), F.normalize(self.two(x[:, 1]), dim=-1)
        scores = self.warm.exp() * a @ b.mT
        wanted = torch.arange(len(x))
        return (F.cross_entropy(scores, wanted) + F.cross_entropy(scores.mT, wanted)) / 2


class ContrastPort(Contrast):
    """Two ranks, each with half of the rows, beside all of the other tower's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        a, b = self.one(x[:, 0]), self.two(x[:, 1])
        a, b = (each / each.square().sum(-1, keepdim=True).sqrt() for each in (a, b))
        half, total = len(x) // 2, 0.0
        for rank in range(2):
            rows = slice(rank * half, rank * half + half)
            all_a, all_b = (each.detach() for each in (a, b)) if ways.get("detached") else (a, b)
            wanted = torch.arange(half) + (0 if ways.get("start") else rank * half)
            warm = self.warm if ways.get("warm") else self.warm.exp()
            for mine, theirs in ((a[rows], all_b), (b[rows], all_a)):
                total = total + F.cross_entropy((warm * mine) @ theirs.mT, wanted) / 4
        return total  # type: ignore[return-value]


def contrast(**bad: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Contrast()), ContrastPort(**bad)
    other.load_state_dict(model.state_dict())
    return model, other, numbers(6, 2, W), {"loss": lambda out: out.float() if out.dtype != torch.float64 else out}


healthy("two towers", "on two ranks", contrast)
broken("two towers", "labels from zero on", lambda: contrast(start=True), "")
broken("two towers", "no exp", lambda: contrast(warm=True), "")
broken("two towers", "others' rows detached", lambda: contrast(detached=True), "", "one", "two")


def recorded(**bad: Any) -> Made:
    """What a port gave in a run of its own, in a file. A fault of the second layer shows in outputs and gradients."""
    model, other, x, given = made(Sink, SinkAfter, bad)
    return model, precheck.record(Path(tempfile.mkdtemp()) / "run.safetensors", other, x, **given), x, given


healthy("recorded sinks", "weighed afterwards", recorded)
broken("recorded sinks", "a sink of zero", lambda: recorded(zero=True), LAST)


class Five(Heads):
    """Queries with an axis for groups, so that keys are not repeated."""

    def forward(self, x: torch.Tensor, *_: Any) -> torch.Tensor:
        q = self.q(x).unflatten(-1, (GROUPS, HEADS // GROUPS, SIZE))
        k, v = (part(x).unflatten(-1, (GROUPS, SIZE)) for part in (self.k, self.v))
        scores = torch.einsum("btgrd,bsgd->bgrts", q, k) / math.sqrt(SIZE)
        shares = scores.masked_fill(~causal(x.shape[1]), -math.inf).softmax(-1).to(v.dtype)
        return self.out(torch.einsum("bgrts,bsgd->btgrd", shares, v).flatten(2))


class Zero(Sink):
    """The sink is a key more, whose value is zero."""

    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen = F.pad(torch.zeros(q.shape[2], q.shape[2]).masked_fill(~causal(q.shape[2]), -math.inf), (1, 0)).expand(len(q), HEADS, -1, -1)
        bias = seen.to(q.dtype) + F.pad(self.sinks[:, None, None], (0, q.shape[2])).to(q.dtype)
        return F.scaled_dot_product_attention(q, F.pad(k, (0, 0, 1, 0)), F.pad(v, (0, 0, 1, 0)), bias)


class Near(Window):
    """Each query beside its own four keys."""

    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (F.pad(each, (0, 0, 3, 0)).unfold(2, 4, 1) for each in (k, v))  # batch, heads, length, size, 4
        scores = (q[..., None] * k).sum(-2) * SIZE**-0.5
        seen = torch.arange(q.shape[2])[:, None] + torch.arange(4) >= 3
        return (scores.masked_fill(~seen, -1e4).softmax(-1).to(v.dtype)[..., None, :] * v).sum(-1)


class Whole(Gated):
    """All pairs of tokens at once."""

    def scan(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
        along = (F.logsigmoid(decay) / 16).cumsum(2)
        far = along[:, :, :, None] - along[:, :, None]
        far = far.masked_fill(~causal(q.shape[2])[..., None], -math.inf)
        return torch.einsum("bhtd,bhsd,bhtsd->bhts", q, k, far.exp().to(q.dtype)).to(v.dtype) @ v


class Rows(Cells):
    """Row by row, without padding."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = [self.cells(row[None, :length])[0][0] for row, length in zip(x, self.lengths, strict=True)]
        return self.out(nn.utils.rnn.pad_sequence(rows, batch_first=True))


class Mapped(Stream):
    """One row at a time, by vmap."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: super(Mapped, self).forward(row[None])[0])(x)


class Again(Stream):
    """Layers that are computed again for the backward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=False)
        return self.head(self.norm(x))


def way(family: str, name: str, mine: Any, theirs: Any = None, turn: Callable[[Any], Any] | None = None, **more: Any) -> None:
    def make() -> Made:
        model, other, x, given = made(mine, theirs or mine, {}, **more)
        return model, turn(other) if turn else other, x, given

    healthy(family, name, make)


def exported(model: Any) -> Any:
    return torch.export.export(model, (numbers(2, LENGTH, W),))


def last(model: Any) -> Any:
    return model.to(memory_format=torch.channels_last)


def traced(model: Any) -> Any:
    return torch.jit.trace(model, numbers(2, LENGTH, W))


way("heads", "an axis for groups", Heads, Five)
way("heads", "mapped over rows", Heads, port=Mapped)
way("sinks", "a key without a value", Sink, Zero)
way("windows in blocks", "four keys beside each query", Window, Near)
way("gated sums", "all at once", Gated, Whole)
way("cells with lengths", "row by row", Cells, Rows, inputs=numbers(3, LENGTH, W))
way("a fused residual", "computed again", Block, port=Again)
way("heads", "exported", Heads, turn=exported)
way("limited gates", "traced", Clamped, turn=traced)
way("sized adapters", "mapped over rows", Adapted, port=Mapped)
way("a filter by its spectrum", "mapped over rows", Filter, port=Mapped)
way("filters with channels last", "in memory alone", Next, turn=last, stream=Picture, inputs=PICTURES)
way("groups with channels last", "in memory alone", Grouped, turn=last, stream=Picture, inputs=PICTURES)
way("sizes and directions", "computed again", Weighted, port=Again)
way("steps of diffusion", "computed again", Timed, port=Again)
way("speech", "filters computed again", Speech, port=Again)
