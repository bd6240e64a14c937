"""The twenty-second batch, fifth part: how parts are called. Masks of truth values, numbered layers, records between layers, one layer that is called
again and again, functions outside of modules, tables, modes, traced and compiled code.

Where a layer with right code is given something wrong, the code that calls it counts as wrong: the model itself, whose name is "".
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_twentysecond import family
from pair_twentysecond_sequences import LENGTH, ROWS, B, Net, W, attend, ported
from torch import nn


class Numbered(nn.Module):
    """Attention that knows its number. `seen`: which tokens it may read, as truth values."""

    def __init__(self, number: int, kernel: bool = False) -> None:
        super().__init__()
        self.number, self.kernel, self.name = number, kernel, f"layer {number}"
        self.norm, self.qkv, self.out = nn.LayerNorm(W), nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, seen: torch.Tensor, whole: bool = False) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        seen = seen | whole
        made = F.scaled_dot_product_attention(q, k, v, seen) if self.kernel else attend(q, k, v, seen)
        return x + self.out(made.transpose(1, 2).flatten(2))


class Masked(nn.Module):
    """Windows and all tokens by turns. `wrong`: what the second layer is given wrongly."""

    def __init__(self, kernel: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong
        self.inside, self.head = nn.Linear(6, W), nn.Linear(W, 5)
        self.layers = nn.ModuleList([Numbered(number, kernel) for number in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(LENGTH)
        past, near = places[:, None] >= places, (places[:, None] - places).abs() < 4
        x = self.inside(x)
        for number, layer in enumerate(self.layers):
            seen = past & near if number % 2 == 0 else past
            if number == 1:
                wrong = {"window": past & near, "later": near, "self": past & (places[:, None] != places) | (places == 0)}
                seen = wrong.get(self.wrong, seen)
            x = layer(x, seen, number == 1 and self.wrong == "whole")
        return self.head(x)


def masked(kernel: bool = True, **bad: Any) -> Made:
    return ported(Masked, Masked(kernel=kernel, **bad))


family("masks of truth values", "torch's kernel", masked, {
    "the window of the first layer": ({"wrong": "window"}, ("",), "mask|"), "later tokens": ({"wrong": "later"}, ("",), "mask|"),
    "not itself": ({"wrong": "self"}, ("",), "mask|"), "an option of another layer": ({"wrong": "whole"}, ("",), ""),
}, written={"kernel": False})  # fmt: skip


@dataclasses.dataclass
class Record:
    stream: torch.Tensor
    memory: torch.Tensor


class Pair(NamedTuple):
    stream: torch.Tensor
    memory: torch.Tensor


class Keeping(nn.Module):
    """A layer that hands on a memory beside its stream, in a record."""

    def __init__(self, stale: bool = False, plain: bool = False, bare: bool = False) -> None:
        super().__init__()
        self.stale, self.plain, self.bare = stale, plain, bare
        self.line, self.keep = nn.Linear(W, W), nn.Linear(W, W)

    def forward(self, given: Any) -> Any:
        stream = given.stream + torch.tanh(self.line(given.stream if self.plain else given.stream + given.memory))
        memory = given.memory if self.stale else 0.5 * given.memory + self.keep(given.stream if self.bare else stream)
        return type(given)(stream, memory)


class Kept(nn.Module):
    def __init__(self, record: Any, second: dict[str, Any] | None = None, swapped: bool = False, forgets: bool = False) -> None:
        super().__init__()
        self.record, self.swapped, self.forgets = record, swapped, forgets
        self.inside, self.head = nn.Linear(6, W), nn.Linear(W, 5)
        self.layers = nn.ModuleList([Keeping(), Keeping(**(second or {})), Keeping()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        held = self.record(x, torch.zeros_like(x))
        for number, layer in enumerate(self.layers):
            if number == 1:
                held = self.record(held.memory, held.stream) if self.swapped else held
                held = self.record(held.stream, torch.zeros_like(x)) if self.forgets else held
            held = layer(held)
        return self.head(held.stream + held.memory)


def kept(swapped: bool = False, forgets: bool = False, **second: Any) -> Made:
    return ported(lambda: Kept(Record), Kept(Pair, second, swapped=swapped, forgets=forgets))


family("records", "a named tuple for a dataclass", kept, {
    "an old memory": ({"stale": True}, B, ""), "a memory that is not read": ({"plain": True}, B, ""),
    "a memory of what was given": ({"bare": True}, B, ""), "memory and stream exchanged": ({"swapped": True}, ("",), ""),
    "a memory that is emptied": ({"forgets": True}, ("",), ""),
})  # fmt: skip


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(W), nn.Linear(W, 24), nn.Linear(24, W)

    def forward(self, x: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x + code))))


class Repeated(nn.Module):
    """One layer, four times, told which time it is."""

    def __init__(self, table: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.table, self.wrong = table, wrong
        self.inside, self.step, self.head, self.codes = nn.Linear(6, W), Step(), nn.Linear(W, 5), nn.Embedding(5, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = first = self.inside(x)
        for time in range(4):
            number = 1 if self.wrong == "code" and time == 2 else time
            x = first if self.wrong == "first" and time == 2 else x
            made = self.step(x, self.codes.weight[number] if self.table else self.codes(torch.tensor(number)))
            x = made + x if self.wrong == "twice" and time == 2 else made * (0.5 if self.wrong == "half" and time == 2 else 1)
        return self.head(x)


def repeated(**bad: Any) -> Made:
    return ported(Repeated, Repeated(table=True, **bad))


family("one layer four times", "rows of the table", repeated, {
    "the code of the time before": ({"wrong": "code"}, ("",), ""), "what came first": ({"wrong": "first"}, ("",), ""),
    "a residual twice": ({"wrong": "twice"}, ("",), ""), "a result that is halved": ({"wrong": "half"}, ("",), "times|"),
})  # fmt: skip


def rooted(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    return (x.float() * (x.float().square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype) * weight


def mixed(layer: Any, x: torch.Tensor, wrong: str) -> torch.Tensor:
    """A layer of `Plain` as a function of its weights."""
    y = rooted(x, layer.gain, 1e-2 if wrong == "eps" else 1e-5)
    a, b = F.linear(y, layer.up.weight, layer.up.bias).chunk(2, -1)
    y = a * F.silu(b) if wrong == "gate" else F.silu(a) * b
    return (y if wrong == "residual" else x) + F.linear(F.pad(y[:, :-1], (0, 0, 1, 0)) if wrong == "late" else y, layer.down.weight)


class Plain(nn.Module):
    """`outside`: computed by a function outside of the module; its parts are not called."""

    def __init__(self, outside: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.outside, self.wrong = outside, wrong
        self.gain, self.up, self.down = nn.Parameter(torch.ones(W)), nn.Linear(W, 2 * W), nn.Linear(W, W, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.outside:
            return mixed(self, x, self.wrong)
        a, b = self.up(rooted(x, self.gain)).chunk(2, -1)
        return x + self.down(F.silu(a) * b)


class Listed(Net):
    """Layers that are held, and never called: one function computes all."""

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        for layer in self.layers:
            x = mixed(layer, x, layer.wrong)
        return self.head(x)


def outside(listed: bool = False, **second: Any) -> Made:
    return ported(lambda: Net(Plain), (Listed if listed else Net)(Plain, second, outside=True))


family("functions", "of a layer", outside, {
    "another eps": ({"wrong": "eps"}, B, "eps|"), "the other gate": ({"wrong": "gate"}, B, ""), "one token late": ({"wrong": "late"}, B, "shift|"),
}, of_all_layers={"listed": True})  # fmt: skip
broken("functions", "of all layers, the other gate", lambda: outside(listed=True, wrong="gate"), "", "layers.1")
broken("functions", "of all layers, one token late", lambda: outside(listed=True, wrong="late"), "", "layers.1")


class Tabled(nn.Module):
    """Places from a table that is no weight, and a norm over the batch. `fixed`: the norm does not count."""

    def __init__(self, base: float = 100.0, fixed: bool = False, late: int = 0, gathered: bool = False) -> None:
        super().__init__()
        self.gathered = gathered
        angles = (torch.arange(LENGTH)[:, None] + late) * base ** -(torch.arange(8) / 8)
        self.register_buffer("table", torch.cat([angles.sin(), angles.cos()], 1), persistent=False)
        self.norm, self.line = nn.BatchNorm1d(W), nn.Linear(W, W)
        self.fixed = fixed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + (F.embedding(torch.arange(LENGTH), self.table) if self.gathered else self.table).to(x.dtype)
        if self.fixed:
            self.norm.eval()
        return x + torch.tanh(self.line(self.norm(y.mT).mT))


def tabled(**second: Any) -> Made:
    return ported(lambda: Net(Tabled), Net(Tabled, second, gathered=True))


family("tables and modes", "rows that are looked up", tabled, {
    "a table by another base": ({"base": 50.0}, B, "table"), "a table from one": ({"late": 1}, B, "table"),
    "a norm in another mode": ({"fixed": True}, ("layers.1.norm", *B), "train|"),
})  # fmt: skip


def whole(bad: dict[str, Any], make: Any, net: Any = Net) -> Made:
    """A net of functions beside itself as one program."""
    torch.manual_seed(0)
    model = spread(Net(Plain))
    other = net(Plain, bad, outside=True)
    other.load_state_dict(model.state_dict())
    return model, make(other), ROWS, dict(MEAN)


class Single(Net):
    """The same with one argument alone: torch.fx cannot trace a call with `*more`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        x = self.inside(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def traced(**bad: Any) -> Made:
    return whole(bad, torch.fx.symbolic_trace, Single)


def compiled(**bad: Any) -> Made:
    return whole(bad, lambda net: torch.compile(net, backend="aot_eager"))


ANY = ("", "layers.1", "layers.1.up", "layers.1.down")
family("layers traced", "a graph", traced, {"the other gate": ({"wrong": "gate"}, ANY, ""), "no residual": ({"wrong": "residual"}, ANY, "")})
family("layers compiled", "by another backend", compiled, {
    "the other gate": ({"wrong": "gate"}, B, ""), "one token late": ({"wrong": "late"}, B, ""),
})  # fmt: skip
healthy("layers compiled", "by one function", lambda: whole({}, lambda net: torch.compile(net, backend="aot_eager"), Listed))
