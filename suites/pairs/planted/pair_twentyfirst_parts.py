"""The twenty-first batch, second part: filters as products, cells, adapters, codes of weights.

Faults as such ports have them: a reset before the product, a norm of columns for rows, zeros that are one too large.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made
from pair_fourteenth_scans import numbers
from pair_nineteenth import ROWS, State, W, filled, seeded
from pair_nineteenth_shapes import B
from pair_twentyfirst import causal, family, port
from torch import nn

PICTURE = numbers(2, 36, 6)
"""Two pictures of six by six, a token for each place."""


class Strided(nn.Module):
    """A dilated filter in four groups over a picture, every second place, and its result for all four places."""

    def __init__(self) -> None:
        super().__init__()
        self.taps = nn.Conv2d(W, W, 3, stride=2, padding=2, dilation=2, groups=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.taps(x.mT.unflatten(-1, (6, 6)))
        return F.interpolate(torch.tanh(y), scale_factor=2).flatten(2).mT


class Product(nn.Module):
    """The same as a product of windows and a matrix."""

    def __init__(self, turned: bool = False, near: bool = False, mixed: bool = False, edge: bool = False) -> None:
        super().__init__()
        self.turned, self.near, self.mixed, self.edge = turned, near, mixed, edge
        self.weight, self.bias = nn.Parameter(torch.zeros(W, 4, 3, 3)), nn.Parameter(torch.zeros(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.mT.unflatten(-1, (6, 6))
        wide = F.pad(wide, (2, 2, 2, 2), mode="replicate") if self.edge else F.pad(wide, (2, 2, 2, 2))
        taps = self.weight.to(x.dtype)
        taps = taps.mT if self.turned else taps
        step = 1 if self.near else 2
        wide = wide[..., 1:-1, 1:-1] if self.near else wide
        windows = F.unfold(wide, 3, dilation=step, stride=2).unflatten(1, (4, 36))
        rows = taps.reshape(4, 4, 36)
        rows = rows.transpose(0, 1) if self.mixed else rows
        made = torch.tanh((rows @ windows).flatten(1, 2) + self.bias.to(x.dtype)[:, None]).unflatten(-1, (3, 3))
        return made.repeat_interleave(2, 2).repeat_interleave(2, 3).flatten(2).mT.to(x.dtype)


def bare(state: State) -> State:
    return {name.replace(".taps.", "."): value for name, value in state.items()}


family("a filter as a product", "windows in groups", port(Strided, Product, bare, PICTURE), {
    "rows for columns": ({"turned": True}, B, ""), "no dilation": ({"near": True}, B, ""), "groups mixed": ({"mixed": True}, B, ""),
    "edges repeated": ({"edge": True}, B, ""),
})  # fmt: skip


class Fused(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        more = {"proj_size": 6} if kind is nn.LSTM else {}
        self.cells, self.out = kind(W, 12, batch_first=True, **more), nn.Linear(6 if more else 12, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cells(x)[0])


class Cell(nn.Module):
    """A gated unit by hand, whose update gate is first and keeps what is new, as another library has it."""

    def __init__(self, before: bool = False, kept: bool = False, one_bias: bool = False, late: bool = False) -> None:
        super().__init__()
        self.before, self.kept, self.one, self.late = before, kept, one_bias, late
        self.given, self.held, self.out = nn.Linear(W, 36), nn.Linear(12, 36), nn.Linear(12, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given, state, made = self.given(x), x.new_zeros(len(x), 12), []
        for row in given.unbind(1):
            update, reset, new = row.chunk(3, -1)
            a, b, c = F.linear(state, self.held.weight, None if self.one else self.held.bias).chunk(3, -1)
            update, reset = torch.sigmoid(update + a), torch.sigmoid(reset + b)
            if self.before:
                c = F.linear(reset * state, self.held.weight[24:], self.held.bias[24:])
            candidate = torch.tanh(new + (c if self.before else reset * c))
            if self.late:
                made.append(state)
            state = update * state + (1 - update) * candidate if self.kept else update * candidate + (1 - update) * state
            if not self.late:
                made.append(state)
        return self.out(torch.stack(made, 1))


def update_first(state: State) -> State:
    found = {}
    for name, value in state.items():
        if ".cells." in name:
            reset, update, new = value.chunk(3)
            part, kind = ("given" if "_ih" in name else "held"), name.rpartition(".")[2].partition("_")[0]
            found[name.rpartition("cells.")[0] + f"{part}.{kind}"] = (reset, update, new)
        else:
            found[name] = value
    # what is kept is a sigmoid's complement, so that the gate has the other sign
    return {name: torch.cat([-value[1], value[0], value[2]]) if isinstance(value, tuple) else value for name, value in found.items()}


family("a gated unit", "update first, of the other sign", port(lambda: Fused(nn.GRU), Cell, update_first), {
    "reset before the product": ({"before": True}, B, ""), "the gate's sign": ({"kept": True}, B, ""),
    "no bias of the state": ({"one_bias": True}, (*B, "body.b.held"), ""), "a state too early": ({"late": True}, B, "shifted"),
})  # fmt: skip


class Projected(nn.Module):
    """A cell with memory whose state is a projection, by hand."""

    def __init__(self, memory: bool = False, loose: bool = False, order: bool = False) -> None:
        super().__init__()
        self.memory, self.loose, self.order = memory, loose, order
        self.given, self.held, self.small, self.out = nn.Linear(W, 48), nn.Linear(6, 48), nn.Linear(12, 6, bias=False), nn.Linear(6, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given, state, memory, made = self.given(x), x.new_zeros(len(x), 6), x.new_zeros(len(x), 12), []
        for row in given.unbind(1):
            i, f, g, o = (row + self.held(state)).chunk(4, -1)
            i, f = (f, i) if self.order else (i, f)
            memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
            inner = memory if self.memory else o.sigmoid() * (memory if self.loose else memory.tanh())
            state = self.small(inner)
            made.append(state)
        return self.out(torch.stack(made, 1))


def apart(state: State) -> State:
    names = (("cells.weight_ih_l0", "given.weight"), ("cells.bias_ih_l0", "given.bias"), ("cells.weight_hh_l0", "held.weight"),
             ("cells.bias_hh_l0", "held.bias"), ("cells.weight_hr_l0", "small.weight"))  # fmt: skip
    for name in list(state):
        for old, new in names:
            if old in name:
                state[name.replace(old, new)] = state.pop(name)
    return state


family("a projected state", "by hand", port(lambda: Fused(nn.LSTM), Projected, apart), {
    "the memory itself": ({"memory": True}, B, ""), "no tanh of the memory": ({"loose": True}, B, ""),
    "two gates exchanged": ({"order": True}, B, ""),
})  # fmt: skip


class Directed(nn.Module):
    """A weight with an adapter, of which each row has a learned length. `kind`: merged, or both products apart as in training."""

    def __init__(self, kind: str = "merged", columns: bool = False, base: bool = False, root: bool = False, turned: bool = False) -> None:
        super().__init__()
        self.kind, self.columns, self.base, self.root, self.turned = kind, columns, base, root, turned
        self.line, self.length = nn.Linear(W, W), nn.Parameter(torch.ones(W) * 1.5)
        self.a, self.b = nn.Parameter(torch.zeros(4, W)), nn.Parameter(torch.zeros(W, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = 8 / 2 if self.root else 8 / 4
        merged = self.line.weight + scale * self.b @ self.a.to(self.b.dtype)
        size = (self.line.weight if self.base else merged).float().norm(dim=0 if self.columns else 1)
        by = (self.length / size).to(x.dtype)
        if self.kind == "merged":
            return torch.tanh(F.linear(x, merged * by[:, None], self.line.bias))
        b = self.b.to(x.dtype)
        low = F.linear(F.linear(x, self.a), b.flip(1) if self.turned else b)
        return torch.tanh((F.linear(x, self.line.weight) + scale * low) * by + self.line.bias).to(x.dtype)


family("rows with a length", "both products apart", port(Directed, Directed, kind="apart"), {
    "lengths of columns": ({"columns": True}, B, ""), "a length of the base": ({"base": True}, B, ""),
    "a root in the scale": ({"root": True}, B, ""), "ranks turned round": ({"turned": True}, B, "turned"),
})  # fmt: skip


class Coded(nn.Module):
    """A weight of four bits with zeros of its own, whose columns are in groups by their importance. `kind`: the weight first, or sums of codes."""

    def __init__(self, kind: str = "weight", more: int = 0, plain: bool = False, swapped: bool = False) -> None:
        super().__init__()
        self.kind, self.more, self.plain, self.swapped = kind, more, plain, swapped
        draw = torch.Generator().manual_seed(5)
        self.register_buffer("codes", torch.randint(0, 16, (W, W), generator=draw))
        self.register_buffer("zeros", torch.randint(6, 10, (W, 4), generator=draw))
        self.register_buffer("group", torch.randperm(W, generator=draw) % 4)
        self.scale, self.bias = nn.Parameter(torch.zeros(W, 4)), nn.Parameter(torch.zeros(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        group = torch.arange(W) // 4 if self.plain else self.group
        codes = self.codes
        if self.swapped:  # of two codes in a byte
            codes = codes.unflatten(1, (-1, 2)).flip(-1).flatten(1)
        scale, zeros = self.scale.to(x.dtype), self.zeros + self.more
        if self.kind == "weight":
            return torch.tanh(F.linear(x, (codes - zeros[:, group]).to(x.dtype) * scale[:, group] / 4, self.bias.to(x.dtype)))
        made = self.bias.to(x.dtype)
        for number in range(4):
            mine = group == number
            part = F.linear(x[..., mine], codes[:, mine].to(x.dtype)) - x[..., mine].sum(-1, keepdim=True) * zeros[:, number].to(x.dtype)
            made = made + part * scale[:, number] / 4
        return torch.tanh(made.to(x.dtype))


family("codes with zeros", "sums of codes", port(Coded, Coded, kind="sums"), {
    "zeros one too large": ({"more": 1}, B, ""), "groups in a row": ({"plain": True}, B, ""),
    "halves of a byte exchanged": ({"swapped": True}, B, ""),
})  # fmt: skip


class Exported(nn.Module):
    def __init__(self, slope: str = "none", dim: int = -1) -> None:
        super().__init__()
        self.slope, self.dim = slope, dim
        self.up, self.norm, self.down = nn.Linear(6, W), nn.LayerNorm(W), nn.Linear(W, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(F.gelu(self.up(x), approximate=self.slope)) * self.up(x).softmax(self.dim))


def exported(**bad: Any) -> Made:
    model, other, inputs, given = filled(seeded(Exported), Exported(**bad), numbers(4, 5, 6))
    return model, torch.export.export(other, (inputs,)), inputs, given


family("a product with shares", "exported", exported, {
    "gelu by tanh": ({"slope": "tanh"}, ("",), ""), "shares along time": ({"dim": 1}, ("",), ""),
})  # fmt: skip


class Sharing(nn.Module):
    """Four layers, of which two each share keys. The first layer's values are mixed into those of the others. `port`: all keys and values first."""

    def __init__(self, port: bool = False, **ways: Any) -> None:
        super().__init__()
        self.port, self.ways = port, ways
        self.inside, self.q, self.k = (
            nn.Linear(6, W),
            nn.ModuleList(nn.Linear(W, W) for _ in range(4)),
            nn.ModuleList(nn.Linear(W, W) for _ in range(2)),
        )
        self.v, self.mix, self.head = nn.ModuleList(nn.Linear(W, W) for _ in range(4)), nn.Parameter(torch.zeros(4)), nn.Linear(W, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways, x = self.ways, self.inside(x)
        first, k = None, None
        for number in range(4):
            q, v = self.q[number](x)[:, None], self.v[number](x)
            fresh = number % 2 == 0 if not (ways.get("late") and number == 2) else False
            if fresh or k is None:
                k = self.k[number // 2](x.detach() if ways.get("cut") and number == 2 else x)[:, None]
            first = v if first is None else first
            share = self.mix[number].sigmoid().to(v.dtype)
            if self.port:
                v = torch.lerp(first, v, (1 - share) if ways.get("other") and number == 2 else share) if number else v
                made = causal(q, k, v[:, None])[:, 0]
            else:
                v = share * v + (1 - share) * first if number else v
                made = F.scaled_dot_product_attention(q, k, v[:, None], is_causal=True)[:, 0]
            x = torch.tanh(x + made)
            first = v if ways.get("running") else first
        return self.head(x)


family("layers that share keys", "a step between values", lambda **bad: filled(seeded(Sharing), Sharing(True, **bad), ROWS), {
    "keys of the first two for all": ({"late": True}, ("",), ""), "the share of the first": ({"other": True}, ("",), ""),
    "mixed with the layer before": ({"running": True}, ("",), ""), "keys that teach nothing below": ({"cut": True}, ("",), ""),
})  # fmt: skip
