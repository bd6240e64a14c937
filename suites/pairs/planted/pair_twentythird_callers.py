"""The twenty-third batch, fourth part: weights that are made and run by a call on other weights, layers with numbers.

Where a part with right code is given something wrong, the code that calls it counts as wrong: the block, or the model itself, whose name is "".
Where the fault is in the second of three layers, that layer alone counts.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, spread
from pair_fourteenth_scans import numbers
from pair_twentysecond_sequences import LENGTH, ROWS, B, Net, W, ported
from pair_twentythird import family
from pair_twentythird_ways import attended, heads
from torch import nn
from torch.func import functional_call

ONE: dict[str, Any] = {"loss": lambda out: out.float().square().mean()}
TOP = ("",)


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(W), nn.Linear(W, 24), nn.Linear(24, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = x + self.down(torch.tanh(self.up(self.norm(x))))
        return made


def filled(model: nn.Module, other: nn.Module, inputs: Any = ROWS) -> Made:
    torch.manual_seed(0)
    spread(model)
    other.load_state_dict(model.state_dict())
    return model, other, inputs, dict(ONE)


class Soup(nn.Module):
    """The mean of three nets' weights, by a sum or by a stack. `wrong`: what is mixed wrongly."""

    def __init__(self, stacked: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.stacked, self.wrong, self.nets = stacked, wrong, nn.ModuleList([Net(Branch) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = [dict(net.named_parameters()) for net in self.nets]
        if self.wrong == "two":
            held = held[:2]
        if self.stacked:
            mixed = {name: torch.stack([each[name] for each in held]).mean(0) for name in held[0]}
        else:
            mixed = {name: sum(each[name] for each in held) / len(held) for name in held[0]}
        for name in mixed:
            norm, middle = ".norm." in name, "layers.1." in name
            if (self.wrong == "norms" and norm) or (self.wrong == "layer" and middle):
                mixed[name] = held[0][name]
            if self.wrong == "bias" and name.endswith("bias") and middle:
                mixed[name] = mixed[name] * len(held)
        made: torch.Tensor = functional_call(self.nets[0], mixed, (x,))
        return made


def soup(**bad: Any) -> Made:
    return filled(Soup(), Soup(True, **bad))


family("a mean of three nets", "stacked", soup, {
    "of two": ({"wrong": "two"}, TOP, ""), "norms of the first": ({"wrong": "norms"}, TOP, ""), "a layer of the first": ({"wrong": "layer"}, TOP, ""),
    "biases that are summed": ({"wrong": "bias"}, TOP, ""),
})  # fmt: skip


class Learner(nn.Module):
    """A step on some rows, then the result for others. The gradient by torch.autograd or, in ports, by torch.func."""

    def __init__(self, func: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.func, self.wrong, self.net = func, wrong, Net(Branch)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, known = (x[1:], x[:1]) if self.wrong == "rows" else (x[:1], x[1:])
        held = dict(self.net.named_parameters())

        def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
            made: torch.Tensor = functional_call(self.net, weights, (x,))
            return made.float().square().mean()

        if self.func:
            found = torch.func.grad(loss)(held)
        else:
            found = dict(zip(held, torch.autograd.grad(loss(held), list(held.values()), create_graph=True), strict=True))
        found = {name: value.detach() for name, value in found.items()} if self.wrong == "cut" else found
        rate = {"sign": -0.3, "rate": 0.1}.get(self.wrong, 0.3)
        quick = {name: value - rate * found[name] for name, value in held.items() if self.wrong != "head" or "head" not in name}
        result: torch.Tensor = functional_call(self.net, quick, (known,))
        return result


def learner(func: bool = False, **bad: Any) -> Made:
    return filled(Learner(), Learner(func, **bad))


family("a step inside", "by autograd", learner, {
    "the other sign": ({"wrong": "sign"}, TOP, ""), "another rate": ({"wrong": "rate"}, TOP, ""),
    "a gradient that is cut off": ({"wrong": "cut"}, TOP, ""),
    "a head that does not step": ({"wrong": "head"}, TOP, ""),
}, by_functions={"func": True})  # fmt: skip


class Hyper(nn.Module):
    """A network that makes another's weights of a condition."""

    def __init__(self, product: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.product, self.wrong = product, wrong
        self.inside, self.head, self.line, self.made = nn.Linear(6, W), nn.Linear(W, 5), nn.Linear(W, W), nn.Linear(4, W * W + W)
        self.register_buffer("conditions", numbers(2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        for number in range(2):
            flat = self.made(self.conditions[0 if self.wrong == "condition" else number]) / (1 if self.wrong == "scale" and number else 4)
            weight = flat[: W * W].view(W, W)
            weight = weight.mT if self.wrong == "turned" and number else weight
            weight = weight + self.line.weight if self.wrong == "base" and number else weight
            if self.product:
                made = F.linear(x, weight, flat[W * W :])
            else:
                made = functional_call(self.line, {"weight": weight, "bias": flat[W * W :]}, (x,))
            x = x + torch.tanh(made)
        return self.head(x)


def hyper(product: bool = False, **bad: Any) -> Made:
    return filled(Hyper(), Hyper(product, **bad))


family("weights by a condition", "a call on weights", hyper, {
    "the first condition twice": ({"wrong": "condition"}, TOP, ""), "not scaled": ({"wrong": "scale"}, TOP, ""),
    "a square weight turned": ({"wrong": "turned"}, TOP, ""), "its own weight added": ({"wrong": "base"}, TOP, ""),
}, a_product={"product": True})  # fmt: skip


class Slotted(nn.Module):
    """Attention over three tokens at a time, whose keys are kept in a list under its number, and whose branch is scaled by it."""

    def __init__(self, number: int = 0, depth: int | None = None) -> None:
        super().__init__()
        self.number, self.depth = number, number if depth is None else depth
        self.norm, self.qkv, self.out = nn.LayerNorm(W), nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, kept: dict[int, torch.Tensor], start: int = 0) -> torch.Tensor:
        q, k, v = (heads(part) for part in self.qkv(self.norm(x)).chunk(3, -1))
        both = torch.stack([k, v])
        both = kept[self.number] = torch.cat([kept[self.number], both], 3) if self.number in kept else both
        size = both.shape[3]
        seen = torch.ones(x.shape[1], size, dtype=torch.bool).tril(size - x.shape[1])
        made: torch.Tensor = x + self.out(attended(q, both[0].to(q.dtype), both[1].to(q.dtype), seen)) / (1 + self.depth)
        return made


class Slots(nn.Module):
    def __init__(self, numbers: tuple[int, ...] = (0, 1, 2), depths: tuple[int, ...] = (0, 1, 2), size: int = 3) -> None:
        super().__init__()
        self.size, self.inside, self.head = size, nn.Linear(6, W), nn.Linear(W, 5)
        self.layers = nn.ModuleList([Slotted(number, depth) for number, depth in zip(numbers, depths, strict=True)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept: dict[int, torch.Tensor] = {}
        made = []
        for piece in self.inside(x).split(self.size, 1):
            for layer in self.layers:
                piece = layer(piece, kept)
            made.append(piece)
        return self.head(torch.cat(made, 1))


def slots(**bad: Any) -> Made:
    return ported(Slots, Slots(**bad))


family("numbers of layers", "other numbers", lambda **bad: slots(**{"numbers": (5, 3, 4), **bad}), {
    "two with one number": ({"numbers": (0, 0, 2)}, B, ""), "a depth from zero": ({"depths": (0, 0, 2)}, B, "depth|times"),
    "the depth of the next": ({"depths": (0, 2, 2)}, B, "depth|times"),
}, as_they_are={"numbers": (0, 1, 2)})  # fmt: skip


class Own(nn.Module):
    """A layer that adds its part of a table that all layers share."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.number, self.norm, self.gate, self.out = number, nn.LayerNorm(W), nn.Linear(W, W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, parts: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = x + self.out(F.gelu(self.gate(self.norm(x))) * parts[:, :, self.number])
        return made


class Tabled(nn.Module):
    """One table with a row of all layers' parts for each word. `wrong`: how the rows are taken apart."""

    def __init__(self, numbers: tuple[int, ...] = (0, 1, 2), wrong: str = "", direct: bool = False) -> None:
        super().__init__()
        self.wrong, self.direct = wrong, direct
        self.words, self.table, self.head = nn.Embedding(19, W), nn.Embedding(19, 3 * W), nn.Linear(W, 5)
        self.layers = nn.ModuleList([Own(number) for number in numbers])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = F.embedding(ids, self.table.weight) if self.direct else self.table(ids)
        parts = rows.unflatten(-1, (W, 3)).mT if self.wrong == "order" else rows.unflatten(-1, (3, W))
        parts = parts * W**0.5 if self.wrong == "scale" else parts
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x, parts)
        return self.head(x)


def tabled(**bad: Any) -> Made:
    return filled(Tabled(), Tabled(direct=True, **bad), torch.randint(19, (3, LENGTH), generator=torch.Generator().manual_seed(2)))


family("a table for all layers", "rows looked up", tabled, {
    "the part of the next layer": ({"numbers": (0, 2, 2)}, B, ""), "the part of the first layer": ({"numbers": (0, 0, 2)}, B, ""),
    "parts beside one another": ({"wrong": "order"}, TOP, ""), "parts that are scaled": ({"wrong": "scale"}, TOP, ""),
})  # fmt: skip
