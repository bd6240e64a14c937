"""A twenty-fourth batch, committed before the judge has seen any of it: layers that hand on a state, a padded picture or a graph in an object.

Two or three layers, of which the second has the fault. Where a layer with right code is given something wrong, the code that calls it counts as
wrong: the block, or the model itself, whose name is "". Faults as ports have them: a window that is one too short, a padding mask the other way
round, edges towards their source, a rotation that is turned back twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, spread
from pair_fourteenth_scans import numbers
from pair_twentythird import Faults
from torch import nn

W, LENGTH = 16, 9
ROWS = numbers(3, LENGTH, 6)
TOP, B = ("",), ("layers.1",)
State = dict[str, torch.Tensor]


def family(name: str, way: str, make: Callable[..., Made], faults: Faults, **more: dict[str, Any]) -> None:
    """`more`: further healthy ways to write the port."""
    for other, ways in {way: dict[str, Any](), **more}.items():
        healthy(name, other.replace("_", " "), lambda ways=ways: make(**ways))  # type: ignore[misc]
    for fault, (bad, names, said) in faults.items():
        broken(name, fault, lambda bad=bad: make(**bad), *names, said=said)  # type: ignore[misc]


def ported(model: nn.Module, other: nn.Module, inputs: Any = ROWS, convert: Callable[[State], State] = dict, loss: Any = None) -> Made:
    torch.manual_seed(0)
    spread(model)
    other.load_state_dict(convert(dict(model.state_dict())))
    return model, other, inputs, dict(MEAN) if loss is None else {"loss": loss}


def renamed(names: dict[str, str]) -> Callable[[State], State]:
    def convert(state: State) -> State:
        found = {}
        for name, value in state.items():
            for before, now in names.items():
                name = name.replace(before, now)
            found[name] = value
        return found

    return convert


class Kept:
    """What a stream hands on from one piece of a sound to the next. In the port a `Store`, under other names."""

    def __init__(self, layers: int) -> None:
        self.tails: list[torch.Tensor | None] = [None] * layers
        self.keys: list[torch.Tensor | None] = [None] * layers
        self.seen = 0


class Hearing(nn.Module):
    """Taps over the last four samples, then attention over the last six, in pieces of three."""

    def __init__(self, number: int = 0) -> None:
        super().__init__()
        self.number, self.norm, self.taps = number, nn.LayerNorm(W), nn.Conv1d(W, W, 4, groups=W)
        self.qkv, self.out = nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, kept: Kept) -> torch.Tensor:
        y, n = self.norm(x), self.number
        before = kept.tails[n]
        y = torch.cat([y.new_zeros(len(y), 3, W) if before is None else before, y], 1)
        kept.tails[n] = y[:, -3:]
        q, k, v = self.qkv(self.taps(y.mT).mT).chunk(3, -1)
        both, known = torch.stack([k, v]), kept.keys[n]
        both = both if known is None else torch.cat([known, both], 2)
        kept.keys[n] = both[:, :, -6:]
        return x + self.out(seen(q, both[0], both[1], x.shape[1], kept.seen))


def seen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, count: int, before: int) -> torch.Tensor:
    """Attention of the last `count` places, with places that are told by a cosine of how many came `before`."""
    first = before + count - k.shape[1]
    places = torch.arange(first, first + k.shape[1])
    far = (places[-count:, None] - places[None]).to(q.dtype)
    scores = q @ k.mT / math.sqrt(q.shape[-1]) - far.abs() / 4 + torch.cos(places.to(q.dtype))
    return scores.masked_fill(far < 0, -math.inf).softmax(-1) @ v


class Stream(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.head, self.layers = nn.Linear(6, W), nn.Linear(W, 5), nn.ModuleList([Hearing(n) for n in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept, made = Kept(3), []
        for piece in self.inside(x).split(3, 1):
            for layer in self.layers:
                piece = layer(piece, kept)
            kept.seen += 3
            made.append(piece)
        return self.head(torch.cat(made, 1))


class Slot:
    def __init__(self) -> None:
        self.tail: torch.Tensor | None = None
        self.k: torch.Tensor | None = None
        self.v: torch.Tensor | None = None


class Store:
    """As `Kept`, with a slot for each layer."""

    def __init__(self, layers: int) -> None:
        self.slots, self.count = [Slot() for _ in range(layers)], 0


class HearingPort(nn.Module):
    def __init__(self, number: int = 0, wrong: str = "") -> None:
        super().__init__()
        self.number, self.wrong, self.norm, self.taps = number, wrong, nn.LayerNorm(W), nn.Conv1d(W, W, 4, groups=W)
        self.q, self.k, self.v, self.out = (nn.Linear(W, W) for _ in range(4))

    def forward(self, x: torch.Tensor, store: Store) -> torch.Tensor:
        slot, y = store.slots[self.number], self.norm(x)
        given = F.pad(y, (0, 0, 3, 0)) if slot.tail is None else torch.cat([slot.tail, y], 1)
        if self.wrong != "tail" or slot.tail is None:
            slot.tail = given[:, :3] if self.wrong == "head" else given[:, given.shape[1] - 3 :]
        mixed = F.conv1d(given.mT, self.taps.weight, self.taps.bias, groups=W).mT
        q, k, v = self.q(mixed), self.k(mixed), self.v(mixed)
        k, v = (k, v) if slot.k is None or slot.v is None else (torch.cat([slot.k, k], 1), torch.cat([slot.v, v], 1))
        long = 5 if self.wrong == "window" else 6
        slot.k, slot.v = k[:, -long:], v[:, -long:].detach() if self.wrong == "cut" else v[:, -long:]
        return x + self.out(seen(q, k, v, x.shape[1], store.count))


class StreamPort(nn.Module):
    def __init__(self, wrong: str = "", top: str = "", two: bool = False) -> None:
        super().__init__()
        self.top, self.two, self.inside, self.head = top, two, nn.Linear(6, W), nn.Linear(W, 5)
        self.layers = nn.ModuleList([HearingPort(n, wrong if n == 1 else "") for n in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        store, made = Store(3), []
        for number, piece in enumerate(self.inside(x).split(3, 1)):
            if self.top == "reset" and number == 2:
                store.slots[1] = Slot()
            if self.top == "shorter" and number == 1:
                store.slots[1].k = store.slots[1].k[:, 1:]
                store.slots[1].v = store.slots[1].v[:, 1:]
            for layer in self.layers:
                piece = layer(piece, store)
            store.count += 2 if self.top == "count" else 3
            made.append(piece)
        return self.head(torch.cat(made, 1))


def split(state: State) -> State:
    found: State = {}
    for name, value in state.items():
        if ".qkv." in name:
            found |= {name.replace(".qkv.", f".{part}."): each for part, each in zip("qkv", value.chunk(3), strict=True)}
        else:
            found[name] = value
    return found


family("a stream with its state", "a slot for each layer", lambda **bad: ported(Stream(), StreamPort(**bad), convert=split), {
    "a tail that stays": ({"wrong": "tail"}, B, ""), "the first samples as a tail": ({"wrong": "head"}, B, ""),
    "a window of five": ({"wrong": "window"}, B, ""), "values that teach nothing": ({"wrong": "cut"}, B, ""),
    "a slot that is emptied": ({"top": "reset"}, TOP, ""), "keys that the caller drops": ({"top": "shorter"}, TOP, ""),
    "a count of two": ({"top": "count"}, TOP, ""),
})  # fmt: skip


class Padded:
    """Pictures of several sizes in one tensor, and where the padding is."""

    def __init__(self, tensors: torch.Tensor, mask: torch.Tensor) -> None:
        self.tensors, self.mask = tensors, mask

    def parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.tensors, self.mask


PICTURES = numbers(2, 3, 8, 8)
SIZES = ((8, 8), (5, 6))


def padding() -> torch.Tensor:
    mask = torch.ones(2, 8, 8, dtype=torch.bool)
    for row, (high, wide) in enumerate(SIZES):
        mask[row, :high, :wide] = False
    return mask


class Body(nn.Module):
    """Features at half the size, as a `Padded`."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.first, self.second = wrong, nn.Conv2d(3, W, 3, 2, 1), nn.Conv2d(W, W, 3, 1, 1)

    def forward(self, pictures: Padded) -> Padded:
        x, mask = pictures.parts()
        x = self.second(F.relu(self.first(x)))
        if self.wrong == "size":
            return Padded(x, mask[:, :4, :4])
        return Padded(x, F.interpolate(mask[None].float(), size=x.shape[-2:])[0].bool())


class Sines(nn.Module):
    """Places of rows and columns, counted over what is no padding."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, features: Padded) -> torch.Tensor:
        kept = (features.mask if self.wrong == "padding" else ~features.mask).to(features.tensors.dtype)
        down, right = kept.cumsum(1), kept.cumsum(2)
        down, right = (each / (each[:, -1:, :] if axis == 1 else each[:, :, -1:]).clamp(min=1) * 2 * math.pi
                       for axis, each in ((1, down), (2, right)))  # fmt: skip
        rates = 20.0 ** (-torch.arange(W // 4, dtype=down.dtype) / 4)
        down, right = (torch.cat([(each[..., None] * rates).sin(), (each[..., None] * rates).cos()], -1) for each in (down, right))
        return torch.cat([right, down] if self.wrong == "turned" else [down, right], -1)


class Looking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend, self.norm = nn.MultiheadAttention(W, 2, batch_first=True), nn.LayerNorm(W)
        self.up, self.down, self.last = nn.Linear(W, 24), nn.Linear(24, W), nn.LayerNorm(W)

    def forward(self, x: torch.Tensor, places: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q = x + places
        x = self.norm(x + self.attend(q, q, x, key_padding_mask=mask, need_weights=False)[0])
        return self.last(x + self.down(F.relu(self.up(x))))


class LookingPort(nn.Module):
    """Scores written out."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.qkv, self.out, self.norm = wrong, nn.Linear(W, 3 * W), nn.Linear(W, W), nn.LayerNorm(W)
        self.up, self.down, self.last = nn.Linear(W, 24), nn.Linear(24, W), nn.LayerNorm(W)

    def forward(self, x: torch.Tensor, places: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (F.linear(given, weight, bias) for given, weight, bias in zip(
            (x if self.wrong == "query" else x + places, x + places, x + places if self.wrong == "value" else x),
            self.qkv.weight.chunk(3), self.qkv.bias.chunk(3), strict=True))  # fmt: skip
        q, k, v = (each.unflatten(-1, (2, 8)).transpose(1, 2) for each in (q, k, v))
        scores = q @ k.mT / math.sqrt(W if self.wrong == "scale" else 8)
        mixed = (scores.masked_fill(mask[:, None, None], -math.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = self.norm(x + self.out(mixed))
        return self.last(x + self.down(F.relu(self.up(x))))


class Boxes(nn.Module):
    def __init__(self, kind: Any = Looking, body: str = "", places: str = "", top: str = "", second: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.top, self.body, self.places, self.head = top, Body(body), Sines(places), nn.Linear(W, 4)
        self.layers = nn.ModuleList([kind(), kind(**(second or {})), kind()])

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        features = self.body(Padded(pictures, ~padding() if self.top == "other" else padding()))
        places, (x, mask) = self.places(features).flatten(1, 2), features.parts()
        x, mask = x.flatten(2).mT, mask.flatten(1)
        for number, layer in enumerate(self.layers):
            odd = number == 1
            unseen = torch.zeros_like(mask) if self.top == "all" and odd else mask
            x = layer(x, places.flip(1) if self.top == "flipped" and odd else places, unseen)
        return self.head(x).sigmoid() * (~mask)[..., None]


def boxes(**bad: Any) -> Made:
    names = {".attend.in_proj_": ".qkv.", ".attend.out_proj.": ".out."}
    return ported(Boxes(), Boxes(LookingPort, **bad), PICTURES, renamed(names))


family("boxes from padded pictures", "scores written out", boxes, {
    "a mask that is cut off": ({"body": "size"}, ("body",), ""), "places of the padding": ({"places": "padding"}, ("places",), ""),
    "columns before rows": ({"places": "turned"}, ("places",), ""), "queries without places": ({"second": {"wrong": "query"}}, B, ""),
    "places in values": ({"second": {"wrong": "value"}}, B, ""), "scaled by all heads": ({"second": {"wrong": "scale"}}, B, "times"),
    "padding seen once": ({"top": "all"}, TOP, ""), "places in another order": ({"top": "flipped"}, TOP, ""),
})  # fmt: skip


class Graph:
    """Nodes, edges from and to, and what is known of each edge."""

    def __init__(self, x: torch.Tensor, edges: torch.Tensor, known: torch.Tensor) -> None:
        self.x, self.edges, self.known = x, edges, known

    def with_nodes(self, x: torch.Tensor) -> Graph:
        return Graph(x, self.edges, self.known)


EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 6, 2, 0, 5], [1, 2, 3, 0, 5, 6, 4, 2, 6, 4, 1]])
NODES = numbers(7, 6)


class Edges(nn.Module):
    """Messages over edges and their mean at each node. `dense`: by a matrix of all pairs."""

    def __init__(self, dense: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.dense, self.wrong, self.message, self.edge, self.own = dense, wrong, nn.Linear(W, W), nn.Linear(4, W), nn.Linear(W, W)

    def forward(self, graph: Graph) -> Graph:
        x, (start, end) = graph.x, graph.edges
        start, end = (end, start) if self.wrong == "back" else (start, end)
        size = len(x)
        known = self.edge(graph.known)
        if self.dense:
            made = F.relu(self.message(x)[None] + self._spread(known, end, start, size))
            there = torch.zeros(size, size, dtype=x.dtype).index_put((end, start), torch.ones(len(end), dtype=x.dtype))
            summed = (made * there[..., None]).sum(1)
            counts = there.sum(0 if self.wrong == "degree" else 1)[:, None]
        else:
            made = F.relu(self.message(x)[start] + known)
            summed = torch.zeros_like(x).index_add(0, end, made.to(x.dtype))
            counts = torch.zeros(size, dtype=x.dtype).index_add(0, end, torch.ones(len(end), dtype=x.dtype))[:, None]
        mean = summed if self.wrong == "sum" else summed / counts.clamp(min=1)
        return graph.with_nodes(x + torch.tanh(self.own(mean)))

    def _spread(self, known: torch.Tensor, end: torch.Tensor, start: torch.Tensor, size: int) -> torch.Tensor:
        return torch.zeros(size, size, W, dtype=known.dtype).index_put((end, start), known)


class Molecule(nn.Module):
    def __init__(self, second: dict[str, Any] | None = None, top: str = "", **ways: Any) -> None:
        super().__init__()
        self.top, self.inside, self.table, self.head = top, nn.Linear(6, W), nn.Embedding(5, 4), nn.Linear(W, 3)
        self.layers = nn.ModuleList([Edges(**ways), Edges(**ways, **(second or {})), Edges(**ways)])

    def forward(self, nodes: torch.Tensor) -> torch.Tensor:
        kinds = (EDGES[0] * 3 + EDGES[1]) % 5
        graph = Graph(self.inside(nodes), EDGES, self.table(kinds.flip(0) if self.top == "kinds" else kinds))
        for number, layer in enumerate(self.layers):
            if number == 1 and self.top == "lost":
                graph = Graph(graph.x, graph.edges[:, :-1], graph.known[:-1])
            if number == 1 and self.top == "scaled":
                graph.x = graph.x * 0.5
            graph = layer(graph)
        return self.head(graph.x.sum(0) if self.top == "sum" else graph.x.mean(0))


family("a graph in an object", "all pairs", lambda **bad: ported(Molecule(), Molecule(**{"dense": True, **bad}), NODES), {
    "edges towards their source": ({"second": {"wrong": "back"}}, B, ""), "divided by edges that leave": ({"second": {"wrong": "degree"}}, B, ""),
    "a sum for a mean": ({"second": {"wrong": "sum"}}, B, ""), "kinds of other edges": ({"top": "kinds"}, TOP, ""),
    "the last edge lost": ({"top": "lost"}, TOP, ""), "nodes that the caller scales": ({"top": "scaled"}, TOP, ""),
    "a sum of nodes": ({"top": "sum"}, TOP, ""),
}, by_edges={"dense": False})  # fmt: skip
