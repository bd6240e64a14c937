"""The twenty-first batch, third part: experts, scans, gates, norms, pictures in blocks, levels.

Faults as such ports have them: a bias of the choice in the shares, neighbours taken for halves, corners in another order.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_nineteenth import State, W
from pair_nineteenth_shapes import B
from pair_twentyfirst import causal, each, family, port
from pair_twentyfirst_parts import PICTURE
from pair_twentyfirst_roles import Caller, ported
from torch import nn


class Chosen(nn.Module):
    """Two of eight experts for each token, from the best two of four pairs of experts. A bias moves the choice alone. `kind`: all tokens for each
    expert, or tokens in the order of their experts."""

    def __init__(self, kind: str = "loop", biased: bool = False, whole: bool = False, scale: float = 2.0, open_: bool = False) -> None:
        super().__init__()
        self.kind, self.biased, self.whole, self.scale, self.open = kind, biased, whole, scale, open_
        self.router, self.shift = nn.Linear(W, 8, bias=False), nn.Parameter(torch.zeros(8))
        self.up, self.down = nn.Parameter(torch.zeros(8, W, 8)), nn.Parameter(torch.zeros(8, 8, W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, 1)
        shares = self.router(rows).float().sigmoid()
        moved = shares + self.shift.detach()
        if not self.open:
            best = moved.unflatten(-1, (4, 2)).sum(-1).topk(2, -1).indices
            allowed = F.one_hot(best, 4).sum(-2).bool().repeat_interleave(2, -1)
            moved = moved.masked_fill(~allowed, -1e4)
        places = moved.topk(2, -1).indices
        weight = (moved if self.biased else shares).gather(-1, places)
        weight = (weight if self.whole else weight / weight.sum(-1, keepdim=True)) * self.scale
        made = torch.zeros_like(rows)
        if self.kind == "loop":
            for number in range(8):
                mine = (weight * (places == number)).sum(-1, keepdim=True).to(rows.dtype)
                hidden = F.silu(rows @ self.up[number])
                made = made + (hidden @ self.down[number] * mine).to(rows.dtype)
        else:
            order = places.flatten().argsort(stable=True)
            counts = torch.bincount(places.flatten(), minlength=8).tolist()
            parts = (rows[order // 2] * 1).split(counts)
            done = torch.cat([F.silu(part @ up) @ down for part, up, down in zip(parts, self.up, self.down, strict=True)])
            made = made.index_add(0, order // 2, (done * weight.flatten()[order][:, None].to(done.dtype)).to(made.dtype))
        return made.view_as(x)


family("pairs of experts", "in the order of experts", port(Chosen, Chosen, kind="sorted"), {
    "the bias in the shares": ({"biased": True}, B, ""), "shares not normed": ({"whole": True}, B, ""), "no factor": ({"scale": 1.0}, B, "2|times"),
    "experts of any pair": ({"open_": True}, B, ""),
})  # fmt: skip


class Linear(nn.Module):
    """A gated linear recurrence whose input is scaled to keep its variance. `kind`: token by token, or by doubling."""

    def __init__(self, kind: str = "steps", whole: bool = False, swapped: bool = False, power: float = 8.0, lost: bool = False) -> None:
        super().__init__()
        self.kind, self.whole, self.swapped, self.power, self.lost = kind, whole, swapped, power, lost
        self.gates, self.inside, self.rate = nn.Linear(W, 2 * W), nn.Linear(W, W), nn.Parameter(torch.zeros(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        reset, take = self.gates(x).float().sigmoid().chunk(2, -1)
        reset, take = (take, reset) if self.swapped else (reset, take)
        fall = -self.power / 8 * reset * F.softplus(self.rate.float())
        given = take * self.inside(x).float() * (1 if self.whole else (1 - (2 * fall).exp() + 1e-3).sqrt())
        keep = fall.exp()
        if self.kind == "steps":
            state, made = torch.zeros_like(given[:, 0]), []
            for place in range(x.shape[1]):
                state = keep[:, place] * state + given[:, place]
                made.append(state)
            return torch.stack(made, 1).to(x.dtype)
        step = 1
        while step < x.shape[1]:
            before, share = (F.pad(each_, (0, 0, step, 0))[:, : x.shape[1]] for each_ in (given, keep))
            share = torch.cat([torch.zeros_like(keep[:, :step]), share[:, step:]], 1)
            given = given + keep * before
            keep = keep if self.lost and step == 2 else keep * share
            step *= 2
        return given.to(x.dtype)


family("a linear recurrence", "by doubling", port(Linear, Linear, kind="doubling"), {
    "inputs not scaled": ({"whole": True}, B, ""), "gates exchanged": ({"swapped": True}, B, ""), "another power": ({"power": 4.0}, B, "8"),
    "shares of one step lost": ({"lost": True}, B, ""),
})  # fmt: skip


class Clamped(nn.Module):
    """A gate and a value, limited, in neighbouring rows. `halves`: the gates first."""

    def __init__(self, halves: bool = False, open_: bool = False, bare_: bool = False, slope: float = 1.702, wrong: bool = False) -> None:
        super().__init__()
        self.halves, self.open, self.bare, self.slope, self.wrong = halves, open_, bare_, slope, wrong
        self.up, self.down = nn.Linear(W, 24), nn.Linear(12, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.up(x * 2)
        gate, value = y.chunk(2, -1) if self.halves != self.wrong else (y[..., 0::2], y[..., 1::2])
        if not self.open:
            gate, value = gate.clamp(max=2), value.clamp(-2, 2)
        gate = gate * torch.sigmoid(self.slope * gate)
        return self.down(gate * (value if self.bare else value + 1))


def halved(state: State) -> State:
    return each(state, "up", lambda value: {"up": torch.cat([value[0::2], value[1::2]])})


family("gates beside values", "gates first", port(Clamped, Clamped, halved, halves=True), {
    "as neighbours": ({"wrong": True}, B, ""), "without a limit": ({"open_": True}, B, ""), "no one is added": ({"bare_": True}, B, ""),
    "another slope": ({"slope": 1.0}, B, "1.702"),
})  # fmt: skip


class Blocks(nn.Module):
    """Two by two places of a picture as channels, a layer, and back. `kind`: torch's reordering, or a filter with a stride."""

    def __init__(self, kind: str = "shuffle", columns: bool = False, back: bool = False) -> None:
        super().__init__()
        self.kind, self.columns, self.back = kind, columns, back
        self.line, self.norm = nn.Linear(4 * W, 4 * W), nn.LayerNorm(4 * W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.mT.unflatten(-1, (6, 6))
        if self.kind == "shuffle":
            y = F.pixel_unshuffle(y, 2).flatten(2).mT
            return F.pixel_shuffle(self.norm(torch.tanh(self.line(y))).mT.unflatten(-1, (3, 3)), 2).flatten(2).mT
        corners = [y[..., row::2, column::2] for row in range(2) for column in range(2)]
        corners = [corners[number] for number in (0, 2, 1, 3)] if self.columns else corners
        y = torch.stack(corners, 2).flatten(1, 2).flatten(2).mT
        y = self.norm(torch.tanh(self.line(y))).mT.unflatten(-1, (3, 3)).unflatten(1, (W, 2, 2))
        y = y.permute(0, 1, 4, 3, 5, 2) if self.back else y.permute(0, 1, 4, 2, 5, 3)
        return y.flatten(4, 5).flatten(2, 3).flatten(2).mT


family("places as channels", "corner by corner", port(Blocks, Blocks, inputs=PICTURE, kind="corners"), {
    "columns first": ({"columns": True}, B, ""), "put back by columns": ({"back": True}, B, ""),
})  # fmt: skip


class Levels(nn.Module):
    """Each number becomes the nearest of five levels, and its gradient passes. `kind`: the gradient by a difference, or by a function of its own."""

    def __init__(self, kind: str = "difference", stopped: bool = False, fewer: bool = False) -> None:
        super().__init__()
        self.kind, self.stopped, self.fewer, self.inside, self.out = kind, stopped, fewer, nn.Linear(W, 5), nn.Linear(5, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.tanh(self.inside(x).float() * 0.7)
        count = 1.0 if self.fewer else 2.0
        if self.kind == "difference":
            made = wide + ((wide * count).round() / count - wide).detach()
        else:
            made = Passed.apply(wide, count)
        return self.out((made.detach() if self.stopped else made).to(x.dtype))


class Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, wide: torch.Tensor, count: float) -> torch.Tensor:
        return torch.round(wide * count) / count

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


family("five levels", "a gradient of its own", port(Levels, Levels, kind="own"), {
    "no gradient": ({"stopped": True}, (*B, "body.b.inside"), ""), "three levels": ({"fewer": True}, B, ""),
})  # fmt: skip


class Sized(nn.Module):
    """Norms of queries and keys by root mean square, with one added to the weight. `merged`: weights that hold the one."""

    def __init__(self, merged: bool = False, plain: bool = False, whole: bool = False, eps: float = 1e-3) -> None:
        super().__init__()
        self.merged, self.plain, self.whole, self.eps = merged, plain, whole, eps
        self.qkv, self.q, self.k = nn.Linear(W, 3 * W), nn.Parameter(torch.zeros(8)), nn.Parameter(torch.zeros(8))

    def normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        square = wide.square().mean((1, 3) if self.whole else -1, keepdim=True)
        made = wide / (square + self.eps).sqrt() * (weight.float() if self.merged or self.plain else 1 + weight.float())
        return made.to(x.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(self.normed(q, self.q), self.normed(k, self.k), v, is_causal=True).transpose(1, 2).flatten(2)


def with_one(state: State) -> State:
    return {name: value + 1 if name.rpartition(".")[2] in ("q", "k") else value for name, value in state.items()}


family("one and a weight", "merged", port(Sized, Sized, with_one, merged=True), {
    "one more": ({"merged": False}, B, ""), "a norm of all heads": ({"whole": True}, B, ""), "another eps": ({"eps": 1e-1}, B, "0.001"),
})  # fmt: skip


class Forgetting(nn.Module):
    """Attention whose scores fall by the gates between two tokens. `kind`: differences of sums, or token by token with keys kept."""

    def __init__(self, kind: str = "sums", own: bool = False, raw: bool = False) -> None:
        super().__init__()
        self.kind, self.own, self.raw = kind, own, raw
        self.qkv, self.gate = nn.Linear(W, 3 * W), nn.Linear(W, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        gate = self.gate(x).float().mT
        fall = gate.sigmoid() - 1 if self.raw else F.logsigmoid(gate)
        if self.kind == "sums":
            along = fall.cumsum(-1)
            return causal(q, k, v, along[..., None] - along[:, :, None]).transpose(1, 2).flatten(2)
        kept, made = torch.zeros_like(fall[..., :0]), []
        for place in range(x.shape[1]):
            step = fall[..., place : place + 1]
            kept = torch.cat([kept + step, step if self.own else torch.zeros_like(step)], -1)
            scores = (q[:, :, place, None] @ k[:, :, : place + 1].mT).float() / math.sqrt(8) + kept[..., None, :]
            made.append((scores.softmax(-1).to(v.dtype) @ v[:, :, : place + 1])[:, :, 0])
        return torch.stack(made, 1).flatten(2)


family("gates that forget", "token by token", port(Forgetting, Forgetting, kind="steps"), {
    "a token's own gate too": ({"own": True}, B, ""), "no logarithm": ({"raw": True}, B, ""),
})  # fmt: skip


class Spectral(nn.Module):
    """A learned filter on a spectrum. `ready`: the caller has the transform, and gives real and imaginary parts."""

    def __init__(self, ready: bool) -> None:
        super().__init__()
        self.ready, self.taps = ready, nn.Parameter(torch.zeros(2, 6, W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.ready:
            made = torch.fft.rfft(x.float(), dim=1, norm="ortho")
            x = torch.stack([made.real, made.imag], 1)
        (a, b), (c, d) = x.unbind(1), self.taps.float()
        made = torch.complex(a * c - b * d, a * d + b * c)
        return torch.fft.irfft(made, 10, dim=1, norm="ortho")


class Spectrum(Caller):
    kind = Spectral

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, ways = self.norm(x), self.ways
        if not self.ready:
            return torch.tanh(self.part(y)).to(x.dtype)
        made = torch.fft.rfft(y.float(), dim=1, norm="backward" if ways.get("norm") else "ortho")
        made = made.conj() if ways.get("back") else made
        return torch.tanh(self.part(torch.stack([made.real, made.imag], 1))).to(x.dtype)


family("a spectrum for waves", "made by the caller", ported(Spectrum), {
    "not normed": ({"norm": True}, B, "times"), "time turned round": ({"back": True}, B, ""),
})  # fmt: skip
