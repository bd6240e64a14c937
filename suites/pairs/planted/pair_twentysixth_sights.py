"""The twenty-sixth batch, third part: a tower of pictures before words, masks from points.

The issues: a class token that is put last, and a layer too few (llama.cpp 25844), pictures' words dealt out wrongly over rows (transformers
33976), a class token that is kept (transformers 34447); points without the one that pads them (segment-anything 509), coordinates by another size
(segment-anything 296), places that each layer adds (segment-anything 673).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made
from pair_fourteenth_scans import numbers
from pair_twentyfourth import TOP, B, W, ported
from pair_twentysixth import Layer, Whole, family
from torch import nn


class Open(nn.Module):
    """Attention of two heads without a mask. `kernel`: by torch's function."""

    def __init__(self, wrong: str = "", kernel: bool = False) -> None:
        super().__init__()
        self.kernel, self.wrong, self.q, self.k, self.v, self.out = kernel, wrong, *(nn.Linear(W, W) for _ in range(4))

    def forward(self, q: torch.Tensor, k: torch.Tensor | None = None, v: torch.Tensor | None = None) -> torch.Tensor:
        given = (self.q(q), self.k(q if k is None else k), self.v(q if v is None else v))
        a, b, c = (each.unflatten(-1, (2, W // 2)).transpose(1, 2) for each in given)
        if self.kernel:
            return self.out(F.scaled_dot_product_attention(a, b, c).transpose(1, 2).flatten(2))
        scores = a @ b.mT / (math.sqrt(W) if self.wrong == "scale" else math.sqrt(W // 2))
        return self.out((scores.softmax(-1) @ c).transpose(1, 2).flatten(2))


class Tower(nn.Module):
    """Patches with a class token before them, and four layers, of which the last is not read. `product`: patches by a product."""

    def __init__(self, product: bool = False, attend: str = "", wrong: str = "", kernel: bool = False) -> None:
        super().__init__()
        self.product, self.wrong, self.patch, self.first = product, wrong, nn.Conv2d(3, W, 2, stride=2, bias=False), nn.Parameter(torch.zeros(W))
        self.places, self.before = nn.Embedding(17, W), nn.LayerNorm(W)
        self.layers = nn.ModuleList([Layer(Open(attend if n == 1 else "", kernel)) for n in range(4)])

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        if self.product:
            patches = (
                pictures.unfold(2, 2, 2)
                .unfold(3, 2, 2)
                .permute(0, 2, 3, *((4, 5, 1) if self.wrong == "patch" else (1, 4, 5)))
                .flatten(3)
                .flatten(1, 2)
            )
            x = F.linear(patches, self.patch.weight.flatten(1))
        else:
            x = self.patch(pictures).flatten(2).mT
        first = self.first.to(x.dtype).expand(len(x), 1, W)
        x = torch.cat([x, first] if self.wrong == "last" else [first, x], 1)
        x = self.before(x + self.places(torch.arange(17)).to(x.dtype))
        for layer in self.layers if self.wrong == "all" else self.layers[:2] if self.wrong == "few" else self.layers[:3]:
            x = layer(x)
        return x[:, :-1] if self.wrong == "kept" else x[:, 1:]


class Seeing(nn.Module):
    """Four neighbouring patches give one word of a picture, which takes the place of a word 19. `scattered`: by a mask of truth values."""

    def __init__(self, scattered: bool = False, top: str = "", **tower: Any) -> None:
        super().__init__()
        self.scattered, self.top, self.tower, self.words = scattered, top, Tower(**tower), nn.Embedding(20, W)
        self.project, self.second = nn.Linear(4 * W, W), nn.Linear(W, W)
        self.layers, self.head = nn.ModuleList([Layer(Whole()) for _ in range(2)]), nn.Linear(W, 20)

    def forward(self, tokens: torch.Tensor, pictures: torch.Tensor) -> torch.Tensor:
        top, seen = self.top, self.tower(pictures)
        square = seen.unflatten(1, (2, 2, 2, 2)).permute(0, 1, 3, *((4, 2) if top == "merge" else (2, 4)), 5).flatten(3)
        seen = self.second(F.gelu(self.project(square), approximate="tanh" if top == "tanh" else "none"))
        seen = seen.flatten(1, 2)
        x = self.words(tokens) * (1 if top == "scale" else 4)
        seen = seen * 4 if top == "scaled too" else seen
        if self.scattered:
            seen = seen.flip(0) if top == "pictures" else seen
            x = x.masked_scatter((tokens == 19)[..., None], seen.to(x.dtype))
        else:
            row, at = (tokens == 19).nonzero().unbind(1)
            seen = seen.transpose(0, 1) if top == "turns" else seen
            x = x.index_put((row, at), seen.flatten(0, 1).to(x.dtype), accumulate=top == "added")
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


ASKED = torch.randint(19, (3, 10), generator=torch.Generator().manual_seed(5))
for _row, _at in enumerate((1, 4, 2)):
    ASKED[_row, _at : _at + 4] = 19
TOWER, PICTURES = ("tower",), numbers(3, 3, 8, 8)
family("a tower before words", "patches by a product", lambda **bad: ported(Seeing(), Seeing(**{"product": True, **bad}), (ASKED, PICTURES)), {
    "a class token at the end": ({"wrong": "last"}, TOWER, ""), "all layers": ({"wrong": "all"}, TOWER, ""),
    "a layer too few": ({"wrong": "few"}, TOWER, ""),
    "the class token is seen": ({"wrong": "kept"}, TOWER, ""), "patches with channels last": ({"wrong": "patch"}, TOWER, ""),
    "the scale of all heads": ({"attend": "scale"}, ("tower.layers.1.attend",), ""), "neighbours in another order": ({"top": "merge"}, TOP, ""),
    "words that are not scaled": ({"top": "scale"}, TOP, ""), "pictures that are scaled": ({"top": "scaled too"}, TOP, ""),
    "another GELU": ({"top": "tanh"}, TOP, ""), "rows in turn": ({"top": "turns"}, TOP, ""), "added to the word": ({"top": "added"}, TOP, ""),
    "pictures of other rows": ({"top": "pictures", "scattered": True}, TOP, ""),
}, torchs_attention={"kernel": True}, scattered={"scattered": True}, scattered_with_filters={"scattered": True, "product": False})  # fmt: skip


class Points(nn.Module):
    """Points by waves of their coordinates, with a vector for each label and one for padding."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.labels, self.none = wrong, nn.Embedding(2, W), nn.Parameter(torch.zeros(W))
        self.register_buffer("waves", torch.zeros(2, W // 2))

    def placed(self, at: torch.Tensor) -> torch.Tensor:
        angles = 2 * math.pi * ((2 * at - 1) @ self.waves.to(at.dtype))
        return torch.cat([angles.cos(), angles.sin()] if self.wrong == "cosines" else [angles.sin(), angles.cos()], -1)

    def dense(self) -> torch.Tensor:
        at = (torch.arange(4, dtype=self.waves.dtype) + (0 if self.wrong == "half" else 0.5)) / 4
        rows, columns = at[:, None].expand(4, 4), at.expand(4, 4)
        return self.placed(torch.stack([rows, columns] if self.wrong == "rows" else [columns, rows], -1)).flatten(0, 1)

    def forward(self, points: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        at = (points + (0 if self.wrong == "middle" else 0.5)) / (15 if self.wrong == "size" else 16)
        found = self.placed(at) + self.labels(1 - labels if self.wrong == "labels" else labels)
        none = self.none.to(found.dtype).expand(len(found), 1, W)
        return torch.cat([found, torch.zeros_like(none) if self.wrong == "none" else none], 1)


class Both(nn.Module):
    """Tokens read tokens, then the picture, and the picture reads tokens. The first layer adds no places to tokens that read tokens."""

    def __init__(self, first: bool = False, wrong: str = "", kernel: bool = False) -> None:
        super().__init__()
        self.first, self.wrong, self.own, self.down, self.up = first, wrong, *(Open("", kernel) for _ in range(3))
        self.norms, self.feed = nn.ModuleList([nn.LayerNorm(W) for _ in range(4)]), nn.Linear(W, W)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, places: torch.Tensor, dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q = x if self.first else x + places
        made = self.own(q, q, q if self.wrong == "values" else x)
        x = self.norms[0](made if self.first else x + made)
        k = keys if self.wrong == "dense" else keys + dense
        x = self.norms[1](x + self.down(x + places, k, keys))
        x = self.norms[2](x + F.relu(self.feed(x)))
        back = self.up(keys + dense, x + places, x)
        return x, self.norms[2 if self.wrong == "norm" else 3](keys + back)


class Masks(nn.Module):
    """Three masks and their quality. `shuffled`: the picture is enlarged by a product and a new order of numbers."""

    def __init__(self, shuffled: bool = False, top: str = "", points: str = "", kernel: bool = False, **second: str) -> None:
        super().__init__()
        self.shuffled, self.top, self.points, self.inside = shuffled, top, Points(points), nn.Conv2d(3, W, 2, stride=2)
        self.tokens, self.layers = (
            nn.Parameter(torch.zeros(4, W)),
            nn.ModuleList([Both(n == 0, **(second if n == 1 else {}), kernel=kernel) for n in range(3)]),
        )
        self.larger, self.hyper, self.quality = (
            nn.ConvTranspose2d(W, 6, 2, stride=2),
            nn.ModuleList([nn.Linear(W, 6) for _ in range(3)]),
            nn.Linear(W, 3),
        )

    def forward(self, picture: torch.Tensor, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        top, dense = self.top, self.points.dense()
        labels = (torch.arange(points.shape[1]) % 2).expand(len(points), -1)
        keys, asked = self.inside(picture).flatten(2).mT, self.points(points.flip(-1) if top == "exchanged" else points, labels)
        own = self.tokens.to(asked.dtype).expand(len(asked), -1, -1)
        places = torch.cat([own, asked], 1)
        x, dense = places, dense.to(keys.dtype)
        for number, layer in enumerate(self.layers):
            x, keys = layer(x, keys, torch.zeros_like(places) if top == "once" and number else places, dense)
        square = (keys + dense if top == "places" else keys).mT.unflatten(2, (4, 4))
        if self.shuffled:
            weight = self.larger.weight.flatten(2)
            large = torch.einsum("nchw,cok->nokhw", square.to(weight.dtype), weight).unflatten(2, (2, 2))
            large = large.permute(0, 1, 4, 2, 5, 3).flatten(4).flatten(2, 3) + self.larger.bias[:, None, None]
        else:
            large = self.larger(square)
        begin = 0 if top == "first" else 1
        by = torch.stack([each(x[:, begin + number]) for number, each in enumerate(self.hyper)], 1)
        return torch.einsum("nmo,nohw->nmhw", by, F.gelu(large).to(by.dtype)), self.quality(x[:, 3 if top == "quality" else 0])


def masked(**bad: Any) -> Made:
    model, other = Masks(), Masks(**{"shuffled": True, **bad})
    model.points.waves.copy_(numbers(2, W // 2) / 2)
    points = torch.rand(3, 4, 2, generator=torch.Generator().manual_seed(3)) * 15
    return ported(model, other, (numbers(3, 3, 8, 8), points), loss=lambda out: out[0].float().square().mean() + out[1].float().square().mean())


POINTS = ("points",)
family("masks from points", "enlarged by a product", masked, {
    "no half pixel": ({"points": "middle"}, POINTS, ""), "another size": ({"points": "size"}, POINTS, ""),
    "labels turned round": ({"points": "labels"}, POINTS, ""),
    "no vector for padding": ({"points": "none"}, POINTS, ""), "rows for columns": ({"points": "rows"}, POINTS, ""),
    "cosines first": ({"points": "cosines"}, POINTS, ""), "coordinates exchanged": ({"top": "exchanged"}, TOP, ""),
    "places in the first layer alone": ({"top": "once"}, TOP, ""), "tokens one early": ({"top": "first"}, TOP, ""),
    "places in the picture": ({"top": "places"}, TOP, ""), "quality by another token": ({"top": "quality"}, TOP, ""),
    "values with places": ({"wrong": "values"}, B, ""), "keys without places": ({"wrong": "dense"}, B, ""),
    "one norm twice": ({"wrong": "norm"}, B, ""),
}, torchs_attention={"shuffled": False, "kernel": True}, both={"kernel": True})  # fmt: skip
