"""A twenty-ninth batch, committed before the judge has seen any of it. Its faults are those of public issues of ports.

Retention in chunks, attention to contents and distances apart, attention over a graph, atoms that move, rows of related sequences. In the other parts
sounds (a vocoder, a separator, attention that knows its past, durations, places by a filter), sights (a flow by correlations, splats, levels that are
weighed, pixels after pixels, cells with filters) and the rest (a denoiser with levels of noise, forecasts, products of features, values of actions,
a squashed policy).

The issues of this part: chunks that do not agree (torchscale 77, Jamie-Stirling/RetNet 10 and 34), a norm over heads (yet-another-retnet 11), an
index of positions (nntrainer 3982, DeBERTa 47), the largest distance (TensorRT 3370), shares by the wrong end (pytorch_geometric 224), one vector for
both ends (pytorch_geometric 1642), a loop of a graph (gcnn_keras 80), one index for both ends (ED2Mol 5), distances and squares (MEAN 7), an outer
sum (alphafold2 86), a gate (alphafold2 84), a sum for a mean (alphafold2 102), a mask that is all ones (openfold-3 346).

Faults that no issue of these lists has are of the kinds that the earlier batches' issues have: a detached tensor, another activation, eps or order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, broken, healthy
from pair_fourteenth_scans import numbers
from pair_twentyfifth import WORDS
from pair_twentyfourth import TOP, W, ported
from pair_twentyseventh import Block
from pair_twentythird import Faults
from torch import nn

ATTEND, SECOND = ("layers.1.attend",), ("layers.1",)


def family(name: str, way: str, make: Callable[..., Made], faults: Faults, **more: dict[str, Any]) -> None:
    """As `pair_twentyfourth.family`, so that this batch can be chosen by its name."""
    for other, ways in {way: dict[str, Any](), **more}.items():
        healthy(name, other.replace("_", " "), lambda ways=ways: make(**ways))  # type: ignore[misc]
    for fault, (bad, names, said) in faults.items():
        broken(name, fault, lambda bad=bad: make(**bad), *names, said=said)  # type: ignore[misc]


class Retains(nn.Module):
    """Two heads, whose products fade with the distance; each head has a norm of its own."""

    def __init__(self, wrong: str = "", piece: int = 0) -> None:
        super().__init__()
        self.wrong, self.piece = wrong, piece
        self.q, self.k, self.v, self.gate, self.out = (nn.Linear(W, W, bias=False) for _ in range(5))
        self.register_buffer("fade", torch.tensor([0.9, 0.6]), persistent=False)

    def faded(self, count: int) -> torch.Tensor:
        far = torch.arange(count)[:, None] - torch.arange(count)
        return torch.where(far >= 0, self.fade[:, None, None] ** far.clamp(min=0), 0.0)

    def whole(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.mT * self.faded(q.shape[2]).to(q.dtype)) @ v

    def pieces(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        made, wrong, state = [], self.wrong, torch.zeros_like(k[:, :, :1].mT @ v[:, :, :1])
        for a, b, c in zip(q.split(self.piece, 2), k.split(self.piece, 2), v.split(self.piece, 2), strict=True):
            count = a.shape[2]
            places, fade = torch.arange(count), self.fade[:, None, None]
            since = (fade ** (places[:, None] + (0 if wrong == "from" else 1))).to(a.dtype)
            inner = self.whole(a, b, c)
            made.append(inner + (a if wrong == "cross" else a * since) @ state)
            till = (fade ** (count - 1 - places[:, None])).to(b.dtype)
            fresh = (b if wrong == "inner" else b * till).mT @ c
            state = (fade if wrong == "chunk" else fade**count).to(b.dtype) * state + fresh
        return torch.cat(made, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (each(x).unflatten(-1, (2, 8)).transpose(1, 2) for each in (self.q, self.k, self.v))
        y = (self.pieces if self.piece else self.whole)(q, k * 8**-0.5, v).transpose(1, 2)
        y = F.rms_norm(y.flatten(2), (W,), eps=1e-5) if self.wrong == "norm" else F.rms_norm(y, (8,), eps=1e-5).flatten(2)
        return self.out(y if self.wrong == "open" else F.silu(self.gate(x)) * y)


class Reader(nn.Module):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.words, self.norm, self.head = nn.Embedding(20, W), nn.RMSNorm(W, eps=1e-5), nn.Linear(W, 20)
        self.layers = nn.ModuleList(map(Block, layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def retained(wrong: str = "", piece: int = 3) -> Made:
    return ported(Reader([Retains() for _ in range(3)]), Reader([Retains(wrong if n == 1 else "", piece) for n in range(3)]), WORDS)


family("products that fade", "pieces of three", retained, {
    "what is kept is not faded": ({"wrong": "inner"}, ATTEND, ""), "queries of a piece not faded": ({"wrong": "cross"}, ATTEND, ""),
    "a piece that fades once": ({"wrong": "chunk"}, ATTEND, ""), "queries faded from zero": ({"wrong": "from"}, ATTEND, ""),
    "one norm for all heads": ({"wrong": "norm"}, ATTEND, ""), "no gate on heads": ({"wrong": "open"}, ATTEND, ""),
}, word_by_word={"piece": 1})  # fmt: skip


SPAN, FARTHEST = 6, 24


def bucket(far: torch.Tensor, farthest: int) -> torch.Tensor:
    """Distances up to three are told apart, larger ones by their logarithms."""
    wide = (far.abs().clamp(min=1) / 3).log() / math.log((farthest - 1) / 3) * (SPAN - 4)
    return torch.where(far.abs() <= 3, far, far.sign() * (wide.ceil().long() + 3)).clamp(-SPAN, SPAN - 1)


class Apart(nn.Module):
    """Scores of contents with contents, contents with distances and distances with contents."""

    def __init__(self, wrong: str = "", picked: str = "") -> None:
        super().__init__()
        self.wrong, self.picked, self.q, self.k, self.v, self.out = wrong, picked, *(nn.Linear(W, W) for _ in range(4))

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        q, k, v, wrong = self.q(x), self.k(x), self.v(x), self.wrong
        far = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        farthest = x.shape[1] if wrong == "span" else FARTHEST
        at, back = bucket(far, farthest) + SPAN, bucket(-far, farthest) + SPAN
        scale = 1 / math.sqrt(W if wrong == "scale" else 3 * W)
        keys, queries = self.k(table), (self.k if wrong == "keys" else self.q)(table)
        if self.picked:
            one = torch.gather(q @ keys.mT, -1, at.expand(len(x), -1, -1))
            two = torch.gather(k @ queries.mT, -1, (at if wrong == "sign" else back).expand(len(x), -1, -1)).mT
        else:
            one = torch.einsum("btw,btsw->bts", q, keys[at].expand(len(x), -1, -1, -1))
            two = torch.einsum("bsw,btsw->bts", k, queries[back.mT].expand(len(x), -1, -1, -1))
        if self.picked == "kernel":
            return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=((one + two) * scale).to(q.dtype), scale=scale))
        scores = q @ k.mT + one + (0 if wrong == "half" else two)
        return self.out((scores * scale).softmax(-1) @ v)


class Distances(nn.Module):
    def __init__(self, layers: list[nn.Module], top: str = "") -> None:
        super().__init__()
        self.top, self.words, self.table, self.norm = top, nn.Embedding(20, W), nn.Parameter(torch.zeros(2 * SPAN, W)), nn.LayerNorm(W)
        self.layers, self.head = nn.ModuleList(map(Block, layers)), nn.Linear(W, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, table = self.words(tokens), self.table if self.top == "norm" else self.norm(self.table)
        for number, layer in enumerate(self.layers):
            x = layer(x, table.detach() if self.top == "cut" and number == 1 else table)
        return self.head(x)


family("contents and distances apart", "scores that are picked", lambda wrong="", top="", picked="by number": ported(
    Distances([Apart() for _ in range(3)]), Distances([Apart(wrong if n == 1 else "", picked) for n in range(3)], top), WORDS), {
    "distances of the other sign": ({"wrong": "sign"}, ATTEND, ""), "a scale of one kind": ({"wrong": "scale"}, ATTEND, ""),
    "the length for the largest distance": ({"wrong": "span"}, ATTEND, ""), "keys for queries of distances": ({"wrong": "keys"}, ATTEND, ""),
    "distances do not ask": ({"wrong": "half"}, ATTEND, ""), "a table without its norm": ({"top": "norm"}, TOP, ""),
}, the_kernel_of_torch={"picked": "kernel"})  # fmt: skip


FROM = torch.tensor([0, 1, 2, 3, 3, 5, 6, 0, 4, 2, 0, 1, 2, 3, 4, 5, 6])
INTO = torch.tensor([1, 0, 1, 0, 2, 6, 5, 3, 0, 6, 0, 1, 2, 3, 4, 5, 6])
EDGES = torch.zeros(7, 7, dtype=torch.bool).index_put((INTO, FROM), torch.tensor(True))


class Nodes(nn.Module):
    """Shares of the nodes that point to a node: two heads."""

    def __init__(self, wrong: str = "", by: str = "dense") -> None:
        super().__init__()
        self.wrong, self.by, self.into = wrong, by, nn.Linear(W, W, bias=False)
        self.near, self.far, self.bias = nn.Parameter(torch.zeros(2, 8)), nn.Parameter(torch.zeros(2, 8)), nn.Parameter(torch.zeros(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, wrong = self.into(x).unflatten(-1, (2, 8)), self.wrong
        here, there = (y * self.near).sum(-1), (y * (self.near if wrong == "one" else self.far)).sum(-1)
        slope = 0.01 if wrong == "slope" else 0.2
        if self.by == "dense":
            scores = F.leaky_relu(here[:, :, None] + there[:, None], slope).masked_fill(~EDGES[..., None], -math.inf)
            return torch.einsum("bijh,bjhd->bihd", scores.softmax(2).to(y.dtype), y).flatten(2) + self.bias
        source, target = (INTO, FROM) if wrong == "turned" else (FROM, INTO)
        source, target = (source[:10], target[:10]) if wrong == "loops" else (source, target)
        scores = F.leaky_relu(here[:, target] + there[:, source], slope)
        weights = (scores - scores.detach().amax(1, keepdim=True)).exp()
        ends = source if wrong == "ends" else target
        sums = weights.new_zeros(len(x), 7, 2).index_add(1, ends, weights)[:, ends]
        shares = (weights / sums).to(y.dtype)
        made = torch.zeros_like(y).index_add(1, target, shares[..., None] * y[:, source])
        return made.flatten(2) + self.bias


class Network(nn.Module):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.first, self.layers, self.head = nn.Linear(6, W), nn.ModuleList(layers), nn.Linear(W, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = F.elu(layer(x))
        return self.head(x)


family("shares of nodes", "lists of edges", lambda wrong="", by="list": ported(
    Network([Nodes() for _ in range(3)]), Network([Nodes(wrong if n == 1 else "", by) for n in range(3)]), numbers(2, 7, 6)), {
    "shares by the other end": ({"wrong": "ends"}, SECOND, ""), "one vector for both ends": ({"wrong": "one"}, SECOND, ""),
    "edges turned round": ({"wrong": "turned"}, SECOND, ""), "no node sees itself": ({"wrong": "loops"}, SECOND, ""),
    "the slope of torch": ({"wrong": "slope"}, SECOND, ""),
})  # fmt: skip
