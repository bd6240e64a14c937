"""The twenty-first batch, fifth part: parts that are given something else than `model`'s, of which only some is right.

In each port a part is given what its caller has made of the inputs: keys for what they are made of, a padded row for a row. The first and the third
caller are right. The second is not, and that caller alone counts as right, or the port's part where the fault is in it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made
from pair_nineteenth import ROWS, W, filled, seeded
from pair_nineteenth_shapes import B, Two
from pair_twentyfirst import causal, family
from torch import nn


class Caller(nn.Module):
    """Calls a part on a norm of what it gets. `ready`: the caller makes ready what the part reads."""

    kind: Any

    def __init__(self, ready: bool = False, **ways: Any) -> None:
        super().__init__()
        self.ready, self.ways, self.norm, self.part = ready, ways, nn.LayerNorm(W), self.kind(ready)


def ported(kind: Any, inputs: torch.Tensor = ROWS) -> Any:
    def made(**bad: Any) -> Made:
        return filled(seeded(Two, kind=kind), Two(kind, bad, ready=True), inputs)

    return made


class Attend(nn.Module):
    def __init__(self, ready: bool) -> None:
        super().__init__()
        self.ready, self.q, self.kv, self.out = ready, nn.Linear(W, W), nn.Linear(W, 2 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        k, v = (memory if self.ready else self.kv(memory)).chunk(2, -1)
        return self.out(causal(self.q(x)[:, None], k[:, None], v[:, None])[:, 0])


class Keyed(Caller):
    kind = Attend

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, ways = self.norm(x), self.ways
        if not self.ready:
            return self.part(y, y)
        read = x if ways.get("bare") else y.roll(1, 1) if ways.get("late") else y.detach() if ways.get("cut") else y
        ready = self.part.kv(read)
        return self.part(y, torch.cat(ready.chunk(2, -1)[::-1], -1) if ways.get("order") else ready)


family("keys for their source", "made by the caller", ported(Keyed), {
    "without the norm": ({"bare": True}, B, ""), "one token late": ({"late": True}, B, "shifted"), "values first": ({"order": True}, B, ""),
    "keys that teach nothing": ({"cut": True}, B, ""),
})  # fmt: skip


class Angles(nn.Module):
    """Rotary places by angles, or by cosines and sines."""

    def __init__(self, ready: bool) -> None:
        super().__init__()
        self.ready, self.qkv = ready, nn.Linear(W, 3 * W)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        cosine, sine = angles.unbind(0) if self.ready else (angles.cos(), angles.sin())
        cosine, sine = cosine.to(x.dtype), sine.to(x.dtype)
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)

        def turned(y: torch.Tensor) -> torch.Tensor:
            a, b = y.chunk(2, -1)
            return torch.cat([a * cosine - b * sine, a * sine + b * cosine], -1)

        return causal(turned(q), turned(k), v)[:, 0]


class Rotary(Caller):
    kind = Angles

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        angles = torch.arange(x.shape[1])[:, None] * (50.0 if ways.get("base") else 100.0) ** -(torch.arange(8) / 8)
        if not self.ready:
            return self.part(self.norm(x), angles)
        angles = angles * (2 if ways.get("double") else 1)
        return self.part(self.norm(x), torch.stack([angles.cos(), angles.sin()]))


family("cosines for angles", "made by the caller", ported(Rotary), {
    "another base": ({"base": True}, B, ""), "angles doubled": ({"double": True}, B, ""),
})  # fmt: skip


class Bias(nn.Module):
    """Shares with a bias by distance: a table, or the bias of all pairs."""

    def __init__(self, ready: bool) -> None:
        super().__init__()
        self.ready, self.qkv = ready, nn.Linear(W, 3 * W)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if not self.ready:
            far = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
            bias = bias[:, far.clamp(min=0)]
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return causal(q, k, v, bias).transpose(1, 2).flatten(2)


class Tabled(Caller):
    kind = Bias

    def __init__(self, ready: bool = False, **ways: Any) -> None:
        super().__init__(ready, **ways)
        self.table = nn.Parameter(torch.zeros(2, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.ready:
            return self.part(self.norm(x), self.table)
        far = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        bias = self.table[:, (far.clamp(min=0) + (1 if self.ways.get("next") else 0)).clamp(max=9)]
        return self.part(self.norm(x), bias.flip(0) if self.ways.get("heads") else bias)


family("a bias for its table", "made by the caller", ported(Tabled), {
    "one step further": ({"next": True}, B, ""), "heads exchanged": ({"heads": True}, B, ""),
})  # fmt: skip


class Modulated(nn.Module):
    """A norm with a scale and a shift, made of a condition."""

    def __init__(self, ready: bool) -> None:
        super().__init__()
        self.ready, self.line, self.out = ready, nn.Linear(4, 2 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        scale, shift = (given if self.ready else self.line(F.silu(given))).chunk(2, -1)
        return self.out(F.layer_norm(x, (W,)) * (1 + scale) + shift)


class Conditioned(Caller):
    kind = Modulated

    def __init__(self, ready: bool = False, **ways: Any) -> None:
        super().__init__(ready, **ways)
        self.code = nn.Parameter(torch.zeros(1, 1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.ready:
            return self.part(x, self.code)
        made = self.part.line(self.code if self.ways.get("bare") else F.silu(self.code))
        return self.part(x, torch.cat(made.chunk(2, -1)[::-1], -1) if self.ways.get("order") else made)


family("a scale for its condition", "made by the caller", ported(Conditioned), {
    "no slope": ({"bare": True}, B, ""), "shift and scale exchanged": ({"order": True}, B, ""),
})  # fmt: skip


class Filtered(Caller):
    """A causal filter, whose caller pads."""

    kind = staticmethod(lambda ready: nn.Conv1d(W, W, 3, padding=0 if ready else 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, ways = self.norm(x).mT, self.ways
        if not self.ready:
            return torch.tanh(self.part(y)[..., : x.shape[1]]).mT
        sides = (1, 1) if ways.get("middle") else (2, 0)
        return torch.tanh(self.part(F.pad(y, sides, mode="replicate" if ways.get("edge") else "constant"))).mT


family("a padded row for a row", "padded by the caller", ported(Filtered), {
    "both sides": ({"middle": True}, B, ""), "the edge repeated": ({"edge": True}, B, ""),
})  # fmt: skip


class Stated(nn.Module):
    """A step of a cell with memory. `ready`: both states in one tensor."""

    def __init__(self, ready: bool) -> None:
        super().__init__()
        self.ready, self.given, self.held = ready, nn.Linear(W, 4 * W), nn.Linear(W, 4 * W)

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> torch.Tensor:
        h, c = states[0].unbind(1) if self.ready else states
        i, f, g, o = (self.given(x) + self.held(h)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return torch.stack([o.sigmoid() * c.tanh(), c], 1)


class Stepped(Caller):
    kind = Stated

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, made = x.new_zeros(len(x), 2, W), []
        for row in self.norm(x).unbind(1):
            given = (states.flip(1) if self.ways.get("order") else states,) if self.ready else states.unbind(1)
            states = self.part(row, *given)
            made.append(states[:, 0])
            states = states * 0.9 if self.ways.get("weak") else states
        return torch.stack(made, 1)


family("both states in one", "made by the caller", ported(Stepped), {
    "memory for state": ({"order": True}, B, ""), "states that fade": ({"weak": True}, B, "times"),
})  # fmt: skip


class Beside(nn.Module):
    """A gated network on a norm, which is added to what was normed. `ready`: both side by side."""

    def __init__(self, ready: bool) -> None:
        super().__init__()
        self.ready, self.norm, self.up, self.down = ready, nn.LayerNorm(W), nn.Linear(W, 24), nn.Linear(24, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, y = x.chunk(2, -1) if self.ready else (x, self.norm(x))
        return x + self.down(F.silu(self.up(y)))


class Doubled(Caller):
    kind = Beside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        if not self.ready:
            return self.part(x)
        y = self.norm(x) if self.ways.get("own") else self.part.norm(x)
        return self.part(torch.cat([y if self.ways.get("normed") else x, y], -1))


family("a norm beside its input", "made by the caller", ported(Doubled), {
    "the other norm": ({"own": True}, B, ""), "the norm is added": ({"normed": True}, B, ""),
})  # fmt: skip


class Windowed(nn.Module):
    """Attention over all of its tokens. `ready`: each window of five is a row."""

    def __init__(self, ready: bool) -> None:
        super().__init__()
        self.ready, self.qkv = ready, nn.Linear(W, 3 * W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(1, (-1, 5)) if not self.ready else part for part in self.qkv(x).chunk(3, -1))
        made = F.scaled_dot_product_attention(q, k, v)
        return made if self.ready else made.flatten(1, 2)


class Windows(Caller):
    kind = Windowed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, ways = self.norm(x), self.ways
        if not self.ready:
            return self.part(y)
        y = y.roll(1, 1) if ways.get("shifted") else y
        if ways.get("strided"):
            return self.part(y.unflatten(1, (5, 2)).transpose(1, 2).flatten(0, 1)).unflatten(0, (-1, 2)).transpose(1, 2).flatten(1, 2)
        made = self.part(y.unflatten(1, (2, 5)).flatten(0, 1)).unflatten(0, (-1, 2)).flatten(1, 2)
        return made.roll(-1, 1) if ways.get("shifted") else made


family("a window for a row", "cut by the caller", ported(Windows), {
    "one token late": ({"shifted": True}, B, ""), "each second token": ({"strided": True}, B, ""),
})  # fmt: skip


class Weighed(nn.Module):
    """A mixture of its rows by shares. `ready`: logits have become shares for each head."""

    def __init__(self, ready: bool) -> None:
        super().__init__()
        self.ready, self.v = ready, nn.Linear(W, W)

    def forward(self, x: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        shares = shares if self.ready else (shares / math.sqrt(W)).softmax(-1)[:, None].expand(-1, 2, -1, -1)
        return (shares.to(x.dtype) @ self.v(x).unflatten(-1, (2, 8)).transpose(1, 2)).transpose(1, 2).flatten(2)


class Logits(Caller):
    kind = Weighed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        scores = (y @ y.mT).float()
        if not self.ready:
            return self.part(y, scores)
        shares = (scores / (1 if self.ways.get("sharp") else math.sqrt(W))).softmax(1 if self.ways.get("axis") else -1)
        return self.part(y, torch.stack([shares, shares], 1))


family("shares for logits", "made by the caller", ported(Logits), {
    "not scaled": ({"sharp": True}, B, ""), "shares of queries": ({"axis": True}, B, ""),
})  # fmt: skip
