"""A twentieth batch, committed before the judge has seen any of it: unusual wiring, since such ports are named wrongly most easily.

Parts that are called by other methods, parts that write to their inputs, a module for each head, branches, statistics of norms, layers that get the
wrong layer's result. The second of three parts has the fault, or the code that calls them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made
from pair_fourteenth_scans import numbers
from pair_nineteenth import LENGTH, ROWS, State, W, family, filled, seeded
from pair_nineteenth_shapes import B, Two, three
from torch import nn


class Coder(nn.Module):
    """An encoder and a decoder in one, which have methods of their own."""

    def __init__(self, port: bool = False, **ways: Any) -> None:
        super().__init__()
        self.port, self.ways = port, ways
        self.inside, self.middle, self.outside = nn.Linear(W, 12), nn.Linear(12, 12), nn.Linear(12, W)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        if not self.port:
            return self.middle(F.elu(self.inside(x))).softmax(-1)
        y = self.inside(x)
        y = self.middle(torch.where(y > 0, y, (0.5 if self.ways.get("slope") else 1) * torch.expm1(y.clamp(max=0))))
        return (y - y.logsumexp(1 if self.ways.get("axis") else -1, keepdim=True)).exp().to(x.dtype)

    def decode(self, y: torch.Tensor) -> torch.Tensor:
        return self.outside(y * (2 if self.ways.get("twice") else 1))


class Coders(nn.Module):
    def __init__(self, port: bool = False, bad: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.inside, self.head, self.ways = nn.Linear(6, W), nn.Linear(W, 5), bad or {}
        self.first, self.second = Coder(port), Coder(port, **(bad or {}))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.inside(x))
        x = x + self.first.decode(self.first.encode(x))
        y = self.second.encode(x)
        return self.head(x + (self.first if self.ways.get("other") else self.second).decode(y))


def coders(**bad: Any) -> Made:
    return filled(seeded(Coders), Coders(True, bad), ROWS)


family("methods of parts", "by formulas", coders, {
    "another slope": ({"slope": True}, ("second",)), "a softmax over time": ({"axis": True}, ("second",)), "doubled": ({"twice": True}, ("second",)),
    "the other's method": ({"other": True}, ("",)),
})  # fmt: skip


class Writing(nn.Module):
    """A branch on a stream. `over`: works in place where it may."""

    def __init__(self, over: bool = False, **ways: Any) -> None:
        super().__init__()
        self.over, self.ways, self.norm, self.up, self.down = over, ways, nn.LayerNorm(W), nn.Linear(W, 24), nn.Linear(24, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.over:
            return self.down(F.relu(self.up(self.norm(x) + 1)))
        y = x if self.ways.get("input") else self.norm(x)
        y = y.add_(1) if not self.ways.get("input") else self.norm(y.mul_(0.5)) + 1
        y = self.up(y).relu_()
        y = self.down(y)
        return y.mul_(2) if self.ways.get("twice") else y


class Adding(Two):
    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        for part in self.body.values():
            x = x + part(x)
        return self.head(x)


def written(**bad: Any) -> Made:
    return filled(seeded(Adding, kind=Writing), Adding(Writing, bad, over=True), ROWS)


family("in place", "a norm's result is written to", written, {
    "the input is halved": ({"input": True}, B), "the result is doubled": ({"twice": True}, B),
})  # fmt: skip


class Head(nn.Module):
    def __init__(self, scale: float = 0.5, causal: bool = True) -> None:
        super().__init__()
        self.scale, self.causal, self.q, self.k, self.v = scale, causal, *(nn.Linear(W, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.q(x) @ self.k(x).mT * self.scale
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return (scores.masked_fill(mask, -1e4) if self.causal else scores).softmax(-1).to(x.dtype) @ self.v(x)


class Heads(nn.Module):
    """A module for each of four heads."""

    def __init__(self, swapped: bool = False, **bad: Any) -> None:
        super().__init__()
        self.swapped, self.heads, self.out = swapped, nn.ModuleList([Head(), Head(), Head(**bad), Head()]), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = [head(x) for head in self.heads]
        return self.out(torch.cat(made[::-1] if self.swapped else made, -1))


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (each.unflatten(-1, (4, 4)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def by_heads(state: State) -> State:
    found = {name: value for name, value in state.items() if "qkv" not in name}
    for name, value in state.items():
        if "qkv" in name:
            base, _, kind = name.partition("qkv.")
            for part, all_ in zip("qkv", value.chunk(3), strict=True):
                found |= {f"{base}heads.{number}.{part}.{kind}": rows for number, rows in enumerate(all_.chunk(4))}
    return found


def heads(**bad: Any) -> Made:
    return filled(seeded(Two, kind=Joined), Two(Heads, bad), ROWS, by_heads)


THIRD = ("body.b.heads.2",)
family("a module for each head", "side by side", heads, {
    "the third's scale": ({"scale": 0.25}, THIRD), "the third sees all": ({"causal": False}, THIRD), "heads from the last": ({"swapped": True}, B),
})  # fmt: skip


class Branches(nn.Module):
    """Three branches of other widths of filters, joined and made one. `apart`: each branch's share of the last layer by itself, then a sum."""

    def __init__(self, apart: bool = False, **ways: Any) -> None:
        super().__init__()
        self.apart, self.ways = apart, ways
        self.filters = nn.ModuleDict({f"w{size}": nn.Conv1d(W, 6, size, padding=size // 2) for size in (1, 3, 5)})
        self.join, self.gain = nn.Linear(18, W), nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [gain * F.gelu(part(x.mT)).mT for gain, part in zip(self.gain, self.filters.values(), strict=True)]
        if not self.apart:
            return self.join(torch.cat(parts, -1))
        parts = [parts[0], parts[2], parts[1]] if self.ways.get("order") else parts
        parts = [parts[0], parts[1] * (0.8 if self.ways.get("weak") else 1), parts[2]]
        shares = self.join.weight.chunk(3, 1)
        made = sum(F.linear(part, share) for part, share in zip(parts, shares, strict=True))
        return made + self.join.bias * (3 if self.ways.get("bias") else 1)


family("branches", "shares of the last layer", three(Branches, ROWS, apart=True), {
    "two exchanged": ({"order": True}, B), "the second weaker": ({"weak": True}, B), "a bias from each": ({"bias": True}, B),
})  # fmt: skip


class Counted(nn.Module):
    """A norm over all rows with statistics that it keeps. `hand`: by formulas."""

    def __init__(self, hand: bool = False, **ways: Any) -> None:
        super().__init__()
        self.hand, self.ways, self.up, self.norm = hand, ways, nn.Linear(W, W), nn.BatchNorm1d(W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x).flatten(0, 1)
        if not self.hand:
            return F.silu(self.norm(y)).view_as(x)
        ways, norm, wide = self.ways, self.norm, y.float()
        spread, mean = wide.var(0, unbiased=False), wide.mean(0)
        with torch.no_grad():
            kept = spread if ways.get("biased") else spread * len(y) / (len(y) - 1)
            share = 0.9 if ways.get("share") else 0.1
            norm.running_mean.lerp_(mean.to(norm.running_mean), share)
            norm.running_var.lerp_(kept.to(norm.running_var), share)
        made = (wide - (mean.detach() if ways.get("cut") else mean)) * (spread + 1e-5).rsqrt() * norm.weight + norm.bias
        return F.silu(made).to(x.dtype).view_as(x)


family("statistics that are kept", "by formulas", three(Counted, ROWS, hand=True), {
    "a spread of one less": ({"biased": True}, (*B, "body.b.norm")), "shares exchanged": ({"share": True}, (*B, "body.b.norm")),
    "no gradient of the mean": ({"cut": True}, (*B, "body.b.norm")),
})  # fmt: skip


class Dense(nn.Module):
    """Each of three parts reads all results before it."""

    def __init__(self, port: bool = False, **ways: Any) -> None:
        super().__init__()
        self.port, self.ways = port, ways
        self.parts = nn.ModuleList([nn.Sequential(nn.LayerNorm(6 + 8 * number), nn.Linear(6 + 8 * number, 8)) for number in range(3)])
        self.head = nn.Linear(30, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.port:
            seen = [x]
            for part in self.parts:
                seen.append(torch.tanh(part(torch.cat(seen, -1))))
            return self.head(torch.cat(seen, -1))
        ways, whole = self.ways, x.new_zeros(*x.shape[:-1], 30)
        whole = torch.cat([x, whole[..., 6:]], -1)
        for number, part in enumerate(self.parts):
            width = 6 + 8 * number
            made = torch.tanh(part(whole[..., :width])) if not (ways.get("bare") and number == 1) else part(whole[..., :width])
            at = width - 8 if ways.get("over") and number == 2 else width
            whole = torch.cat([whole[..., :at], made, whole[..., at + 8 :]], -1)
        return self.head(whole.roll(8, -1) if ways.get("turned") else whole)


family("all results before", "one tensor that fills up", lambda **bad: filled(seeded(Dense), Dense(True, **bad), ROWS), {
    "the second without tanh": ({"bare": True}, ("",)), "the third over the second": ({"over": True}, ("",)),
    "results turned for the head": ({"turned": True}, ("",)),
})  # fmt: skip


class Twin(nn.Module):
    """One network for two inputs, and layers that read what earlier layers gave."""

    def __init__(self, port: bool = False, **ways: Any) -> None:
        super().__init__()
        self.port, self.ways, self.net = port, ways, nn.Sequential(nn.Linear(6, W), nn.Tanh(), nn.Linear(W, W))
        self.a, self.b, self.c, self.head = nn.Linear(W, W), nn.Linear(W, W), nn.Linear(W, W), nn.Linear(W, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        if self.port:
            one, two = self.net(torch.cat([x, y.flip(1) if ways.get("turned") else y])).chunk(2)
        else:
            one, two = self.net(x), self.net(y)
        two = two.detach() if ways.get("cut") else two
        apart = (one - two).abs() if not ways.get("signed") else one - two
        first = torch.sin(self.a(apart))
        second = torch.sin(self.b(apart if ways.get("early") else first))
        third = self.c(second) + first + (apart if ways.get("skip") else 0)
        return self.head(third)


def twin(**bad: Any) -> Made:
    return filled(seeded(Twin), Twin(True, **bad), (ROWS, numbers(3, LENGTH, 6).flip(0) * 0.6))


family("one network for two", "both in one batch", twin, {
    "the second turned round": ({"turned": True}, ("",)), "the second cut off": ({"cut": True}, ("",)),
    "a difference with its sign": ({"signed": True}, ("",)),
    "the second reads what the first read": ({"early": True}, ("",)), "one term too many": ({"skip": True}, ("",)),
})  # fmt: skip


class Back(nn.Module):
    """A gated branch whose backward pass may be wrong. `hand`: a product of halves of one layer."""

    def __init__(self, hand: bool = False, **ways: Any) -> None:
        super().__init__()
        self.hand, self.ways, self.both, self.down = hand, ways, nn.Linear(W, 48), nn.Linear(24, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        if not self.hand:
            return self.down(F.glu(self.both(x)))
        read = x.detach() if ways.get("input") else x
        a, b = self.both(read).chunk(2, -1)
        gate = 1 / (1 + (-b).exp())
        gate = gate.detach() if ways.get("gate") else gate
        a = a * 0.5 + 0.5 * a.detach() if ways.get("half") else a
        return self.down((a * gate).to(x.dtype))


family("gradients of gates", "halves of one layer", three(Back, ROWS, hand=True), {
    "none of the input": ({"input": True}, B), "none of the gate": ({"gate": True}, (*B, "body.b.both")),
    "a half of it": ({"half": True}, (*B, "body.b.both")),
})  # fmt: skip
