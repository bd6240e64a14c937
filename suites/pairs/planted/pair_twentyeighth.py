"""A twenty-eighth batch, committed before the judge has seen any of it, after the mends of the twenty-seventh. Its faults are those of public issues.

Two towers of pictures and words, a picture in codes, a recurrence that mixes with the word before, a network in the shape of a U, blocks of keys that
are chosen.

The issues: words pooled at the largest token (transformers 21029), at a row without an end (open_clip 1151), a cost of the wrong term
(taming-transformers 46), codes that are patched too early (jax-vqvae-gpt 2), detached terms exchanged (vqvae 20), a state that is not carried
(llama.cpp 11445), skips that are added (opentryon 24), skips of another level (pytorch-semseg 1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, broken, healthy
from pair_fourteenth_scans import numbers
from pair_twentyfourth import TOP, W, ported
from pair_twentyseventh import Block
from pair_twentythird import Faults
from torch import nn


def family(name: str, way: str, make: Callable[..., Made], faults: Faults, **more: dict[str, Any]) -> None:
    """As `pair_twentyfourth.family`, so that this batch can be chosen by its name."""
    for other, ways in {way: dict[str, Any](), **more}.items():
        healthy(name, other.replace("_", " "), lambda ways=ways: make(**ways))  # type: ignore[misc]
    for fault, (bad, names, said) in faults.items():
        broken(name, fault, lambda bad=bad: make(**bad), *names, said=said)  # type: ignore[misc]


END = 18
TEXTS = torch.tensor([[3, 7, 19, 2, END, 0, 0], [5, END, 0, 0, 0, 0, 0], [1, 19, 4, 6, 8, 2, END]])


class Words(nn.Module):
    """Words, of which the first end stands for all."""

    def __init__(self, wrong: str = "", layer: str = "") -> None:
        super().__init__()
        self.wrong, self.words, self.places, self.norm = wrong, nn.Embedding(20, W), nn.Parameter(torch.zeros(7, W)), nn.LayerNorm(W)
        self.layers, self.out = nn.ModuleList([Block(Looking(True, layer if n == 1 else "")) for n in range(2)]), nn.Linear(W, W, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, wrong = self.words(tokens) + (self.places.flip(0) if self.wrong == "places" else self.places), self.wrong
        for layer in self.layers:
            x = layer(x)
        at = tokens.argmax(-1) if wrong == "largest" else (tokens == END).int().argmax(-1)
        at = torch.full_like(at, -1) if wrong == "last" else at
        x = x[torch.arange(len(x)), at]
        return self.out(x if wrong == "norm" else self.norm(x))


class Looking(nn.Module):
    def __init__(self, causal: bool = False, wrong: str = "") -> None:
        super().__init__()
        self.causal, self.wrong, self.qkv, self.out = causal, wrong, nn.Linear(W, 3 * W), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        causal = self.causal and self.wrong != "open"
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=1 / W if self.wrong == "scale" else None)
        return self.out((y if self.wrong == "heads" else y.transpose(1, 2)).reshape(x.shape))


class Picture(nn.Module):
    def __init__(self, wrong: str = "", layer: str = "") -> None:
        super().__init__()
        self.wrong, self.patch, self.first, self.places = wrong, nn.Conv2d(3, W, 2, 2), nn.Parameter(torch.zeros(W)), nn.Parameter(torch.zeros(7, W))
        self.before, self.norm, self.out = nn.LayerNorm(W), nn.LayerNorm(W), nn.Linear(W, W, bias=False)
        self.layers = nn.ModuleList([Block(Looking(False, layer if n == 1 else "")) for n in range(2)])

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        x, wrong = self.patch(picture).flatten(2).mT, self.wrong
        x = torch.cat([self.first.expand(len(x), 1, -1), x], 1)
        x = self.before(x) + self.places if wrong == "early" else self.before(x + self.places)
        for layer in self.layers:
            x = layer(x)
        x = x.mean(1) if wrong == "mean" else x[:, 0]
        return self.out(self.norm(x))


class Towers(nn.Module):
    """The loss of pictures and words that belong together, both ways."""

    def __init__(self, words: str = "", picture: str = "", top: str = "", words_layer: str = "", picture_layer: str = "") -> None:
        super().__init__()
        self.top, self.words, self.picture = top, Words(words, words_layer), Picture(picture, picture_layer)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, picture: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        a, b = F.normalize(self.picture(picture), dim=-1), F.normalize(self.words(tokens), dim=-1)
        logits = self.scale.exp() * a @ b.mT
        own = torch.arange(len(a))
        return (F.cross_entropy(logits.float(), own) + F.cross_entropy(logits.mT.float(), own)) / 2


class Sided(Towers):
    """The same by shares: those of each row and of each column."""

    def forward(self, picture: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        top, a, b = self.top, self.picture(picture), self.words(tokens)
        a, b = (a, b) if top == "plain" else (a / a.norm(dim=-1, keepdim=True), b / b.norm(dim=-1, keepdim=True))
        b = b.detach() if top == "one tower" else b
        scale = self.scale if top == "log" else self.scale.exp()
        logits = (torch.einsum("iw,jw->ij", a, b) * (scale.detach() if top == "scale" else scale)).float()
        rows, columns = logits.diag() - logits.logsumexp(1), logits.diag() - logits.logsumexp(1 if top == "one way" else 0)
        return -(rows + columns).sum() / (len(a) if top == "sum" else 2 * len(a))


SEEN = numbers(3, 3, 4, 6)
TEXT, SIGHT = ("words",), ("picture",)
family("two towers", "shares of rows and columns", lambda **bad: ported(Towers(), Sided(**bad), (SEEN, TEXTS), loss=lambda out: out), {
    "the largest word": ({"words": "largest"}, TEXT, ""), "the last word": ({"words": "last"}, TEXT, ""),
    "no last norm": ({"words": "norm"}, TEXT, ""),
    "places turned round": ({"words": "places"}, TEXT, ""), "later words are seen": ({"words_layer": "open"}, ("words.layers.1.attend",), ""),
    "another scale": ({"picture_layer": "scale"}, ("picture.layers.1.attend",), ""),
    "heads before places": ({"picture_layer": "heads"}, ("picture.layers.1.attend",), ""),
    "a norm before places": ({"picture": "early"}, SIGHT, ""), "a mean of patches": ({"picture": "mean"}, SIGHT, ""),
    "no lengths of one": ({"top": "plain"}, TOP, ""), "a scale without exp": ({"top": "log"}, TOP, ""),
    "one way alone": ({"top": "one way"}, TOP, ""),
    "one tower learns": ({"top": "one tower"}, TOP, ""), "a scale that does not learn": ({"top": "scale"}, TOP, ""),
    "a sum": ({"top": "sum"}, TOP, ""),
})  # fmt: skip


class Codes(nn.Module):
    """The nearest of twelve codes for each place, whose gradient is passed on, and the cost of the distance."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.zeros(12, 8))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        place = torch.cdist(x.float(), self.codes.float().expand(len(x), -1, -1)).argmin(-1)
        found = self.codes[place]
        cost = (found - x.detach()).square().mean() + 0.25 * (found.detach() - x).square().mean()
        return x + (found - x).detach(), cost


class Nearest(Codes):
    """The same by squares and a product with ones."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wrong, codes = self.wrong, self.codes
        far = codes.float().square().sum(-1) - (1 if wrong == "half" else 2) * x.float() @ codes.float().mT
        share = F.one_hot((far.argmax(-1) if wrong == "farthest" else far.argmin(-1)), 12).to(codes.dtype)
        found = share @ codes
        patched = found if wrong == "codes" else found.detach() if wrong == "cut" else x + (found - x).detach()
        beta = (0.25, 1) if wrong == "beta" else (1, 0.25)
        told = patched if wrong == "early" else found
        sides = (told.detach() - x, told - x.detach()) if wrong == "exchanged" else (told - x.detach(), told.detach() - x)
        cost = sum(b * side.square().mean() for b, side in zip(beta, sides, strict=True))
        return patched, 0.25 * sides[1].square().mean() if wrong == "one" else cost


class Auto(nn.Module):
    def __init__(self, codes: nn.Module, top: str = "", wrong: str = "") -> None:
        super().__init__()
        self.top, self.wrong, self.inside, self.codes = top, wrong, nn.Sequential(nn.Linear(6, W), nn.GELU(), nn.Linear(W, 8)), codes
        self.back, self.outside = nn.Linear(8, W), nn.Linear(W, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inside(x)
        made, cost = self.codes(y.detach() if self.top == "stopped" else y)
        out = self.outside(F.gelu(self.back(y if self.top == "around" else made)))
        return (out - x).square().mean() + (0 if self.top == "free" else cost)


COARSE = ("codes",)
family("a picture in codes", "squares and ones", lambda wrong="", top="": ported(
    Auto(Codes()), Auto(Nearest(wrong), top), numbers(3, 9, 6), loss=lambda out: out), {
    "the cost of the other term": ({"wrong": "beta"}, COARSE, ""), "terms exchanged": ({"wrong": "exchanged"}, COARSE, ""),
    "patched too early": ({"wrong": "early"}, COARSE, ""), "one term alone": ({"wrong": "one"}, COARSE, ""),
    "no gradient passed on": ({"wrong": "cut"}, COARSE, ""), "the codes' gradient": ({"wrong": "codes"}, COARSE, ""),
    "half of a square": ({"wrong": "half"}, COARSE, ""), "the farthest": ({"wrong": "farthest"}, COARSE, ""),
    "codes that do not teach": ({"top": "stopped"}, TOP, ""), "around the codes": ({"top": "around"}, TOP, ""), "no cost": ({"top": "free"}, TOP, ""),
})  # fmt: skip
