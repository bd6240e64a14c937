"""The eighteenth batch, second part: residuals fused with norms, scans in chunks, recurrent cells, long filters, gates of experts, adapters.

A fault is in the second layer alone.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_eighteenth import LENGTH, State, W, entered
from pair_fourteenth_scans import Stream, numbers
from torch import nn

SIZE, HEADS, WIDE = 4, 4, 24


class Block(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.norm, self.up, self.down = nn.RMSNorm(W, 1e-5), nn.Linear(W, WIDE), nn.Linear(WIDE, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(self.norm(x)), approximate="tanh"))


class Fused(Block):
    """Adds what the block before gave, and returns what it gives beside the sum."""

    def forward(self, x: torch.Tensor, rest: torch.Tensor | None = None) -> Any:
        ways = self.ways
        rest = x if rest is None else x + rest
        square = rest.square().mean(-1, keepdim=True)
        normed = rest * (square + 1e-5).rsqrt() * ((self.norm.weight + 1) if ways.get("one") else self.norm.weight)
        hidden = self.up(normed.to(x.dtype))
        hidden = F.gelu(hidden) if ways.get("erf") else hidden * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3))
        return self.down(hidden), normed if ways.get("normed") else x if ways.get("lost") else rest


class Handed(Stream):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, rest = self.inside(x), None
        for layer in self.layers:
            x, rest = layer(x, rest)
        return self.head(self.norm(x + rest))


entered("a fused residual", "handed on beside the result", Block, Fused, {
    "one added to weights": ({"one": True}, "norm"), "the normed one handed on": ({"normed": True}, ""),
    "gelu by erf": ({"erf": True}, ""), "only the last one handed on": ({"lost": True}, ""),
}, port=Handed)  # fmt: skip


class Gated(nn.Module):
    """Queries, keys, values and decays of four heads. Families override `scan`, which gets them as (batch, heads, length, size)."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.q, self.k, self.v, self.decay, self.out = (nn.Linear(W, HEADS * SIZE) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [part(x).unflatten(-1, (-1, SIZE)).transpose(1, 2) for part in (self.q, self.k, self.v, self.decay)]
        return self.out(self.scan(*parts).to(x.dtype).transpose(1, 2).flatten(2))

    def scan(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
        logs, made = F.logsigmoid(decay) / 16, []
        state = torch.zeros(*q.shape[:2], SIZE, SIZE, dtype=v.dtype)
        for place in range(q.shape[2]):
            state = state * logs[:, :, place, :, None].exp() + k[:, :, place, :, None] * v[:, :, place, None]
            made.append((q[:, :, place, None] @ state.to(q.dtype))[:, :, 0])
        return torch.stack(made, 2)


class Chunked(Gated):
    """Chunks of four, by products within a chunk and a state between chunks."""

    def scan(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
        ways, made = self.ways, []
        state = torch.zeros(*q.shape[:2], SIZE, SIZE, dtype=v.dtype)
        logs = F.logsigmoid(decay) / (8 if ways.get("steep") else 16)
        for queries, keys, values, steps in zip(*(each.split(4, 2) for each in (q, k, v, logs)), strict=True):
            along = steps.cumsum(2)
            near = ((queries * along.exp()).to(q.dtype) @ (keys * (-along).exp()).to(q.dtype).mT).tril(-1 if ways.get("strict") else 0)
            before = along - steps if ways.get("early") else along
            made.append(near @ values + (queries * before.exp()).to(q.dtype) @ state.to(q.dtype))
            kept = along[:, :, -1:, :]
            state = state * (1 if ways.get("kept") else kept.mT.exp()) + (keys * (kept - along).exp()).to(q.dtype).mT @ values
        return torch.cat(made, 2)


entered("gated sums", "in chunks", Gated, Chunked, {
    "a token that does not see itself": ({"strict": True}, ""), "a state one step early": ({"early": True}, ""),
    "no decay of the state": ({"kept": True}, ""), "decays halved": ({"steep": True}, ""),
})  # fmt: skip


class Delta(Gated):
    """Each token replaces what the state holds for its key."""

    def scan(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
        k, beta, made = F.normalize(k, dim=-1), decay.mean(-1, keepdim=True).sigmoid(), []
        state = torch.zeros(*q.shape[:2], SIZE, SIZE, dtype=v.dtype)
        for place in range(q.shape[2]):
            key = k[:, :, place, None].to(v.dtype)
            state = state + key.mT @ (beta[:, :, place, None] * (v[:, :, place, None] - key @ state)).to(v.dtype)
            made.append((q[:, :, place, None].to(v.dtype) @ state)[:, :, 0])
        return torch.stack(made, 2)


class DeltaPort(Gated):
    """The whole row by one triangular system."""

    def scan(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
        ways, beta = self.ways, decay.mean(-1, keepdim=True).sigmoid()
        beta = 2 * beta if ways.get("twice") else beta
        if not ways.get("plain"):
            k = k / (k.square().sum(-1, keepdim=True) + 1e-24).sqrt()
        k = k.to(v.dtype)
        inner = (beta * (k @ k.mT)).tril(-1)
        wide = torch.promote_types(inner.dtype, torch.float32)
        made = torch.linalg.solve_triangular(torch.eye(k.shape[2], dtype=wide) + inner, (beta * v).to(wide), upper=False)
        scores = (q.to(v.dtype) @ k.mT).tril(-1 if ways.get("strict") else 0)
        return scores @ made.to(scores.dtype)


entered("replaced values", "by a triangular system", Delta, DeltaPort, {
    "keys of any length": ({"plain": True}, ""), "twice as much replaced": ({"twice": True}, ""),
    "a token does not see itself": ({"strict": True}, ""),
})  # fmt: skip


class Weighed(Gated):
    """Values weighed by exp of keys, which fade, and the token itself by another weight; the token before is mixed in first."""

    def __init__(self, **ways: Any) -> None:
        super().__init__(**ways)
        self.mix, self.fade, self.own = nn.Parameter(torch.full((W,), 0.5)), nn.Parameter(torch.zeros(W)), nn.Parameter(torch.zeros(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = F.pad(x, (0, 0, 1, -1))
        if self.ways.get("rows"):
            before = x.flatten(0, 1).roll(1, 0).view_as(x)
        mixed = x * self.mix + before * (1 - self.mix)
        return self.out((torch.sigmoid(self.q(mixed)) * self.weighed(self.k(mixed), self.v(mixed))).to(x.dtype))

    def weighed(self, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        fade, made = -self.fade.exp(), []
        above, below = torch.zeros_like(v[:, 0]), torch.zeros_like(v[:, 0])
        for place in range(k.shape[1]):
            now = (self.own + k[:, place]).exp()
            made.append((above + now * v[:, place]) / (below + now))
            above = above * fade.exp() + k[:, place].exp() * v[:, place]
            below = below * fade.exp() + k[:, place].exp()
        return torch.stack(made, 1)


class WeighedPort(Weighed):
    """With the largest exponent so far, so that no exp overflows."""

    def weighed(self, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        ways, made = self.ways, []
        fade, own = self.fade if ways.get("rising") else -self.fade.exp(), torch.zeros_like(self.own) if ways.get("own") else self.own
        above, below, top = torch.zeros_like(v[:, 0]), torch.zeros_like(v[:, 0]), torch.full_like(v[:, 0], -1e4)
        for place in range(k.shape[1]):
            here, value = k[:, place], v[:, place]
            most = torch.maximum(top, own + here)
            old, new = (top - most).exp(), (own + here - most).exp()
            made.append((above * old + new * value) / (below * old + new))
            most = torch.maximum(top + fade, here)
            old, new = ((top if ways.get("frozen") else top + fade) - most).exp(), (here - most).exp()
            above, below, top = above * old + new * value, below * old + new, most
        return torch.stack(made, 1)


entered("fading weights", "with the largest exponent", Weighed, WeighedPort, {
    "the token itself weighs as others": ({"own": True}, ""), "the row before": ({"rows": True}, ""), "nothing fades": ({"frozen": True}, ""),
    "another rate": ({"rising": True}, ""),
})  # fmt: skip


class Cells(nn.Module):
    """Rows of 12, 9 and 5 steps, forwards and backwards."""

    lengths = (12, 9, 5)

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.cells, self.out = ways, nn.GRU(W, SIZE, batch_first=True, bidirectional=True), nn.Linear(2 * SIZE, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, list(self.lengths), batch_first=True)
        made, _ = nn.utils.rnn.pad_packed_sequence(self.cells(packed)[0], batch_first=True)
        return self.out(made)


class CellsPort(Cells):
    """Step by step, with a mask."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways, made = self.ways, []
        kept = torch.arange(x.shape[1]) < torch.tensor(self.lengths)[:, None]
        for end, order in (("", range(x.shape[1])), ("_reverse", range(x.shape[1] - 1, -1, -1))):
            state, found = x.new_zeros(len(x), SIZE), {}
            weights = [getattr(self.cells, f"{name}_l0{end}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            for place in order:
                given, held = F.linear(x[:, place], weights[0], weights[2]).chunk(3, -1), F.linear(state, weights[1], weights[3]).chunk(3, -1)
                reset, keep = torch.sigmoid(given[0] + held[0]), torch.sigmoid(given[1] + held[1])
                new = torch.tanh(given[2] + reset * held[2])
                if ways.get("before"):
                    new = torch.tanh(given[2] + F.linear(reset * state, weights[1][2 * SIZE :], weights[3][2 * SIZE :]))
                after = keep * new + (1 - keep) * state if ways.get("keep") else (1 - keep) * new + keep * state
                here = kept[:, place, None] | bool(ways.get("padding"))
                state = torch.where(here, after.to(state.dtype), state)
                found[place] = state * kept[:, place, None]
            made.append(torch.stack([found[place] for place in range(x.shape[1])], 1))
        return self.out(torch.cat(made, -1).to(x.dtype))


entered("cells with lengths", "step by step", Cells, CellsPort, {
    "reset before the product": ({"before": True}, "cells"), "kept and new exchanged": ({"keep": True}, "cells"),
    "padding runs through": ({"padding": True}, "cells"),
}, inputs=numbers(3, LENGTH, W))  # fmt: skip


class Filter(nn.Module):
    """A filter as long as the row, and a share that passes by."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.gate, self.taps, self.past = nn.Linear(W, W), nn.Parameter(torch.zeros(W, LENGTH)), nn.Parameter(torch.zeros(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        far = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        matrix = torch.where(far >= 0, self.taps[:, far.clamp(min=0)], 0)
        return (torch.einsum("cts,bsc->btc", matrix, x).to(x.dtype) + self.past * x) * self.gate(x)


class Spectrum(Filter):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways, length = self.ways, x.shape[1]
        wide = length if ways.get("round") else 2 * length
        taps, given = (each if each.dtype == torch.float64 else each.float() for each in (self.taps.flip(1) if ways.get("flipped") else self.taps, x))
        made = torch.fft.irfft(torch.fft.rfft(given, wide, dim=1) * torch.fft.rfft(taps, wide).mT, wide, dim=1)[:, :length].to(x.dtype)
        return (made if ways.get("past") else made + self.past * x) * self.gate(x)


entered("a filter by its spectrum", "twice the length", Filter, Spectrum, {
    "round the end": ({"round": True}, ""), "taps flipped": ({"flipped": True}, ""), "nothing passes by": ({"past": True}, ""),
})  # fmt: skip


class Clamped(nn.Module):
    """A gated branch whose gate and linear part are limited. Rows of the weight are in turn gate and linear part."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways, self.both, self.down = ways, nn.Linear(W, 2 * WIDE), nn.Linear(WIDE, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = self.both(x)
        gate, up = both[..., ::2].clamp(max=2), both[..., 1::2].clamp(-2, 2)
        return self.down(gate * torch.sigmoid(1.702 * gate) * (up + 1))


class ClampedPort(Clamped):
    """Rows of the weight are all gates, then all linear parts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        gate, up = self.both(x).chunk(2, -1)
        gate, up = gate.clamp(max=2), up if ways.get("open") else up.clamp(-2, 2)
        gate = F.silu(gate) if ways.get("silu") else gate * torch.sigmoid(1.702 * gate)
        return self.down(gate * (up if ways.get("one") else up + 1))


def halved(state: State, wrong: Any) -> State:
    """Rows in turn become halves. `wrong`: not in the second layer."""
    return {
        name: torch.cat([value[::2], value[1::2]]) if ".both." in name and not (wrong and ".1." in name) else value for name, value in state.items()
    }


entered("limited gates", "rows in halves", Clamped, ClampedPort, {
    "rows still in turn": ({"weights": True}, "both"), "the linear part not limited": ({"open": True}, ""), "silu": ({"silu": True}, ""),
    "one not added": ({"one": True}, ""),
}, convert=halved)  # fmt: skip
