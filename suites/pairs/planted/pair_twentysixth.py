"""A twenty-sixth batch, committed before the judge has seen any of it. Its faults were drawn from public issues of engines, loaders and ports.

An engine that keeps keys in pages, drafts from features. In the other parts a checkpoint in shards, scales that are folded into norms, a tower of
pictures before words, masks from points, a port of a network with other conventions, a sampler, codes with delays, triangles, words of a question
against words of a text, returns and actions.

The issues of this part: slots by the size of another page (vllm-gaudi 1323), slots and keys of later chunks (vllm 36580, 52909, 9231), a norm
that forgets the residual (vllm 14464), a first word that is not removed (vllm 9565).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, broken, healthy
from pair_twentyfifth import WORDS
from pair_twentyfourth import LENGTH, TOP, W, ported
from pair_twentythird import Faults
from torch import nn

ATTEND = ("layers.1.attend",)


def family(name: str, way: str, make: Callable[..., Made], faults: Faults, **more: dict[str, Any]) -> None:
    """As `pair_twentyfourth.family`, so that this batch can be chosen by its name."""
    for other, ways in {way: dict[str, Any](), **more}.items():
        healthy(name, other.replace("_", " "), lambda ways=ways: make(**ways))  # type: ignore[misc]
    for fault, (bad, names, said) in faults.items():
        broken(name, fault, lambda bad=bad: make(**bad), *names, said=said)  # type: ignore[misc]


def turned(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Rotated halves of the last axis, for places of the axis before."""
    half = x.shape[-1] // 2
    angles = places[:, None] * 20.0 ** (-torch.arange(half) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Whole(nn.Module):
    """Attention of whole rows."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        places = torch.arange(x.shape[1])
        scores = turned(q, places) @ turned(k, places).mT / math.sqrt(W)
        return self.out(scores.masked_fill(places > places[:, None], -math.inf).softmax(-1) @ v)


@dataclasses.dataclass
class Planned:
    """What an engine runs at once: the place and the request of each token, and the pages of each request."""

    places: torch.Tensor
    owner: torch.Tensor
    pages: torch.Tensor
    size: int


class Paged(nn.Module):
    """Attention of tokens in a row, whose keys and values lie in pages."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.qkv, self.out = wrong, nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, plan: Planned, kept: dict[str, torch.Tensor]) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, turned_k = turned(q, plan.places), turned(k, plan.places)
        size, before = plan.size, dict(kept)
        page = plan.places // (2 * size if self.wrong == "size" and len(plan.places) > 3 else size)
        slots = plan.pages[plan.owner, page] * size + plan.places % size
        for name, new in (("k", k if self.wrong == "plain" else turned_k), ("v", v)):
            kept[name] = kept[name].index_put((slots,), new.to(kept[name].dtype))
        seen, found = before if self.wrong == "stale" else kept, []
        for number in range(len(x)):
            known = torch.arange(1 if self.wrong == "first" and plan.places[number] > 4 else 0, int(plan.places[number]) + 1)
            at = plan.pages[plan.owner[number], known // size] * size + known % size
            scores = seen["k"][at] @ q[number].to(seen["k"].dtype) / math.sqrt(W)
            found.append(scores.softmax(-1).to(seen["v"].dtype) @ seen["v"][at])
        return self.out(torch.stack(found))


class Layer(nn.Module):
    def __init__(self, attend: nn.Module) -> None:
        super().__init__()
        self.norm, self.attend, self.last, self.feed = nn.LayerNorm(W), attend, nn.LayerNorm(W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, *more: Any) -> torch.Tensor:
        x = x + self.attend(self.norm(x), *more)
        return x + torch.tanh(self.feed(self.last(x)))


LONG = (9, 6, 4)
"""How many tokens the requests have."""


class Rows(nn.Module):
    """What follows the last word of each row, of rows that are padded."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(20, W), nn.ModuleList([Layer(Whole()) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(W), nn.Linear(W, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x[torch.arange(3), torch.tensor(LONG) - 1]))


class Engine(nn.Module):
    """The same, in steps: each request is given so many tokens a step, of which the last step has one."""

    def __init__(self, size: int = 4, chunk: int = 5, attend: str = "", top: str = "") -> None:
        super().__init__()
        self.size, self.chunk, self.top = size, chunk, top
        self.words, self.layers = nn.Embedding(20, W), nn.ModuleList([Layer(Paged(attend if n == 1 else "")) for n in range(3)])
        self.norm, self.head = nn.LayerNorm(W), nn.Linear(W, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        top, size, last = self.top, self.size, {}
        pages = torch.arange(30).view(3, 10).flip(1)
        if top == "shared":
            pages[1, 0] = pages[2, 0]
        kept = [{name: torch.zeros(30 * size, W, dtype=self.words.weight.dtype) for name in "kv"} for _ in self.layers]
        done = [0, 0, 0]
        while any(begun < end for begun, end in zip(done, LONG, strict=True)):
            places, owner = [], []
            for request, end in enumerate(LONG):
                more = min(self.chunk, end - 1 - done[request]) if done[request] < end - 1 else end - done[request]
                fresh = list(range(done[request], done[request] + more))
                fresh = fresh[1:] if top == "left" and done[request] and len(fresh) > 1 else fresh
                places, owner, done[request] = places + fresh, owner + [request] * len(fresh), done[request] + more
            where, of = torch.tensor(places), torch.tensor(owner)
            given = where - where.min() if top == "anew" else where
            plan = Planned(given, of, pages.roll(1, 0) if top == "rolled" and max(places) > 4 else pages, size)
            x = self.words(tokens[of, where])
            for number, layer in enumerate(self.layers):
                x = layer(x, plan, kept[0 if top == "kept" and number == 1 and max(places) > 4 else number])
            for request in set(owner):
                at = max(n for n, each in enumerate(owner) if each == request)
                last[request] = x[at - 1 if top == "at" and request == 1 and at else at]
        return self.head(self.norm(torch.stack([last[request] for request in range(3)])))


family("an engine with pages", "pages of four", lambda **bad: ported(Rows(), Engine(**bad), WORDS), {
    "slots of a larger page": ({"attend": "size"}, ATTEND, ""), "keys kept before they are turned": ({"attend": "plain"}, ATTEND, ""),
    "pages read before they are written": ({"attend": "stale"}, ATTEND, ""), "the first key not seen": ({"attend": "first"}, ATTEND, ""),
    "places anew in each chunk": ({"top": "anew"}, TOP, ""), "pages of another request": ({"top": "rolled"}, TOP, ""),
    "one page for two requests": ({"top": "shared"}, TOP, ""), "a word left out": ({"top": "left"}, TOP, ""),
    "pages of another layer": ({"top": "kept"}, TOP, ""), "what follows the word before": ({"top": "at"}, TOP, ""),
}, pages_of_two_and_single_words={"size": 2, "chunk": 1}, chunks_of_three={"size": 3, "chunk": 3}, one_chunk={"chunk": 9})  # fmt: skip


class Draft(nn.Module):
    """Features of the words so far, joined with the next word, give the next features. `halves`: two products in place of one."""

    def __init__(self, halves: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.halves, self.wrong, self.join, self.layer, self.norm = halves, wrong, nn.Linear(2 * W, W), Layer(Whole()), nn.LayerNorm(W)

    def forward(self, words: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        if self.halves:
            a, b = self.join.weight.chunk(2, 1)
            a, b = (b, a) if self.wrong == "halves" else (a, b)
            x = F.linear(words, a, self.join.bias) + F.linear(features, b)
        else:
            x = self.join(torch.cat([words, features], -1))
        made = self.layer(x)
        return made if self.wrong == "norm" else self.norm(made - x if self.wrong == "residual" else made)


class Drafted(nn.Module):
    """A model, and three drafts, each from the features of the one before. The model is not taught by them. `kept`: the draft's losses one by one."""

    def __init__(self, top: str = "", **draft: Any) -> None:
        super().__init__()
        self.top, self.words, self.layers, self.head = top, nn.Embedding(20, W), nn.ModuleList([Layer(Whole()) for _ in range(2)]), nn.Linear(W, 20)
        self.draft = Draft(**draft)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, top = self.words(tokens), self.top
        words = x if top == "words" else x.detach()
        for layer in self.layers:
            x = layer(x)
        features, made = x if top == "taught" else x.detach(), [self.head(x)[:, :-3]]
        for step in range(3):
            given = words[:, (0 if top == "late" else 1) + step : LENGTH - (1 if top == "late" else 0)]
            new = self.draft(given, features[:, : given.shape[1]])
            made.append(self.head(new)[:, : LENGTH - 3])
            features = (features if top == "old" else new.detach() if top == "cut" else new)[:, (1 if top == "moved" else 0) :]
            features = F.pad(features, (0, 0, 0, 1)) if top == "moved" else features
        return torch.stack(made, 1)


family("drafts from features", "two products", lambda **bad: ported(Drafted(), Drafted(**{"halves": True, **bad}), WORDS), {
    "halves exchanged": ({"wrong": "halves"}, ("draft",), ""), "a norm without the residual": ({"wrong": "residual"}, ("draft",), ""),
    "no norm": ({"wrong": "norm"}, ("draft",), ""), "words one late": ({"top": "late"}, TOP, ""), "the model is taught": ({"top": "taught"}, TOP, ""),
    "words are taught": ({"top": "words"}, TOP, ""), "the model's features in each step": ({"top": "old"}, TOP, ""),
    "a draft that does not teach the one before": ({"top": "cut"}, TOP, ""), "features moved": ({"top": "moved"}, TOP, ""),
})  # fmt: skip
