"""Recurrent networks, a state-space scan, linear attention and dilated convolutions, each step by step and all at once."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from torch import nn

W = 16


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.rnn, self.out = nn.Embedding(20, W), nn.LSTM(W, W, 2, batch_first=True, bidirectional=True), nn.Linear(2 * W, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.rnn(self.embedding(tokens))[0])


class Cell(nn.Module):
    """One direction of one layer."""

    def __init__(self, source: nn.LSTM, suffix: str, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.w_ih, self.w_hh, self.b_ih, self.b_hh = (
            nn.Parameter(getattr(source, f"{kind}_{suffix}").detach().clone()) for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )

    def forward(self, x: torch.Tensor, back: bool) -> torch.Tensor:
        given = F.linear(x, self.w_ih, self.b_ih)
        h = c = x.new_zeros(len(x), W, dtype=given.dtype)
        states = []
        for place in reversed(range(x.shape[1])) if back else range(x.shape[1]):
            gates = given[:, place] + F.linear(h, self.w_hh, None if self.ways.get("one_bias") else self.b_hh)
            i, f, g, o = gates.chunk(4, -1)
            if self.ways.get("order"):
                i, f, o, g = i, f, g, o
            c = torch.sigmoid(f + self.ways.get("forget", 0.0)) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * (c if self.ways.get("linear") else torch.tanh(c))
            states.append(h)
        if self.ways.get("unturned"):
            return torch.stack(states, 1)
        return torch.stack(states[::-1] if back else states, 1)


class ByHand(nn.Module):
    def __init__(self, source: Tagger, bad: dict[str, Any] | None = None, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.lookup, self.cells, self.last = nn.Embedding(20, W), nn.ModuleList(), nn.Linear(2 * W, 5)
        self.lookup.load_state_dict(source.embedding.state_dict())
        self.last.load_state_dict(source.out.state_dict())
        for layer in range(2):
            for way in ("", "_reverse"):
                self.cells.append(Cell(source.rnn, f"l{layer}{way}", **((bad or {}) if layer and way else {})))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.lookup(tokens)
        for layer in range(2):
            both = [self.cells[2 * layer](x, False), self.cells[2 * layer + 1](x, True)]
            x = torch.cat(both[::-1] if self.ways.get("swapped") else both, -1)
        return self.last(x)


def lstm(**ways: Any) -> Made:
    torch.manual_seed(0)
    model = spread(Tagger())
    tokens, labels = torch.randint(0, 20, (2, 7)), torch.randint(0, 5, (14,))
    assert isinstance(model, Tagger)
    return model, ByHand(model, **ways), tokens, {"loss": lambda out: F.cross_entropy(out.flatten(0, 1).float(), labels)}


class Scan(nn.Module):
    """h' = a h + (delta x) b, y = c h + d x, a = exp(-delta exp(log_a)); step by step, or as one product over all steps."""

    def __init__(self, form: str = "steps", **ways: Any) -> None:
        super().__init__()
        self.form, self.ways = form, ways
        self.log_a, self.d = nn.Parameter(torch.linspace(-1, 1, W)), nn.Parameter(torch.ones(W))
        self.delta, self.b, self.c = nn.Linear(W, W), nn.Linear(W, W), nn.Linear(W, W)
        self.conv = nn.Conv1d(W, W, 3, groups=W, padding=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways, length = self.ways, x.shape[1]
        kept = slice(2, length + 2) if ways.get("late") else slice(length)
        x = F.silu(self.conv(x.transpose(1, 2))[..., kept].transpose(1, 2))
        delta = self.delta(x).exp() if ways.get("exp") else F.softplus(self.delta(x))
        decay, given = -delta.float() * self.log_a.float().exp(), (delta * x * self.b(x)).float()
        if self.form == "steps":
            h, states = torch.zeros_like(given[:, 0]), []
            for place in range(length):
                h = decay[:, place].exp() * h + given[:, place]
                states.append(h)
            state = torch.stack(states, 1)
        else:
            total = decay.cumsum(1)
            shift = 1 if ways.get("exclusive") else 0
            seen = torch.ones(length, length, dtype=torch.bool).tril(-shift)
            weights = (total[:, :, None] - total[:, None]).masked_fill(~seen[..., None], float("-inf")).exp()
            state = torch.einsum("bqkw,bkw->bqw", weights, given)
        y = self.c(x) * state.to(x.dtype)
        return y if ways.get("no_skip") else y + self.d * x


class Mixed(nn.Module):
    def __init__(self, form: str, **ways: Any) -> None:
        super().__init__()
        self.first, self.scan, self.last = nn.Linear(8, W), Scan(form, **ways), nn.Linear(W, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.scan(self.first(x)))


def scan(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Mixed("steps")), Mixed(ways.pop("form", "product"), **ways)
    other.load_state_dict(model.state_dict())
    return model, other, torch.randn(2, 9, 8), MEAN


class Linear(nn.Module):
    """Attention without a softmax: all at once, in chunks with a state, or with a state alone."""

    def __init__(self, form: str, **ways: Any) -> None:
        super().__init__()
        self.form, self.ways = form, ways
        self.qkv, self.out = nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        size = {"whole": x.shape[1], "chunks": 4, "steps": 1}[self.form]
        state, norm, given = x.new_zeros(len(x), W, W, dtype=torch.float32), x.new_zeros(len(x), W, dtype=torch.float32), []
        for place in range(0, x.shape[1], size):
            a, b, c = (each[:, place : place + size].float() for each in (q, k, v))
            scores = (a @ b.mT).tril()
            mixed, total = scores @ c, scores.sum(-1)
            if not self.ways.get("forgetful") or place < 8:
                mixed, total = mixed + a @ state, total + (a @ norm[..., None])[..., 0]
            given.append(mixed / (1 if self.ways.get("unnormed") else total[..., None]))
            state, norm = state + b.mT @ c, norm + b.sum(1)
        return self.out(torch.cat(given, 1).to(x.dtype))


class Stack(nn.Module):
    def __init__(self, form: str, bad: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.one, self.two = Linear(form), Linear(form, **(bad or {}))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.one(x)
        return x + self.two(x)


def linear_attention(form: str, **ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Stack("whole"), 0.2), Stack(form, **ways)
    other.load_state_dict(model.state_dict())
    return model, other, torch.randn(2, 12, W), MEAN


healthy("lstm", "gate by gate, in both directions", lstm)
broken("lstm", "gates in another order", lambda: lstm(bad={"order": True}), "cells.3")
broken("lstm", "one of two biases", lambda: lstm(bad={"one_bias": True}), "cells.3", said="bias")
broken("lstm", "a forget gate's bias of one more", lambda: lstm(bad={"forget": 1.0}), "cells.3")
broken("lstm", "no tanh of the cell", lambda: lstm(bad={"linear": True}), "cells.3")
broken("lstm", "backward states not turned round", lambda: lstm(bad={"unturned": True}), "cells.3")
broken("lstm", "directions swapped", lambda: lstm(swapped=True), "")
healthy("scan", "all steps as one product", scan)
broken("scan", "the step itself left out", lambda: scan(exclusive=True), "scan")
broken("scan", "exp for softplus", lambda: scan(form="steps", exp=True), "scan")
broken("scan", "a convolution that sees the future", lambda: scan(late=True), "scan")
broken("scan", "no skip", lambda: scan(no_skip=True), "scan")
healthy("linear attention", "in chunks", lambda: linear_attention("chunks"))
healthy("linear attention", "a step at a time", lambda: linear_attention("steps"))
broken("linear attention", "the state dropped after two chunks", lambda: linear_attention("chunks", bad={"forgetful": True}), "two")
broken("linear attention", "not normalised", lambda: linear_attention("chunks", bad={"unnormed": True}), "two")
