"""A ninth batch, committed before the judge has seen any of it: ports whose weights were converted: split, permuted, folded, tied.

Faults as conversions have them: positions that begin late, a norm folded with another eps, rows that were not permuted, a head that is a copy.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import MEAN, Made, broken, healthy, language_loss, spread
from torch import nn

W, HEADS, SIZE, WORDS, LENGTH = 24, 3, 8, 21, 8


def _heads(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (HEADS, SIZE)).transpose(-3, -2)


class Block(nn.Module):
    """A block of a vision transformer with one projection for queries, keys and values, and scales of its branches."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(W, eps=1e-6), nn.LayerNorm(W, eps=1e-6)
        self.qkv, self.proj, self.fc1, self.fc2 = nn.Linear(W, 3 * W), nn.Linear(W, W), nn.Linear(W, 2 * W), nn.Linear(2 * W, W)
        self.ls1, self.ls2 = nn.Parameter(torch.ones(W)), nn.Parameter(torch.ones(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (_heads(part) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.ls1 * self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.ls2 * self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Seer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.cls, self.places = nn.Conv2d(3, W, 4, 4), nn.Parameter(torch.zeros(1, 1, W)), nn.Parameter(torch.zeros(1, 5, W))
        self.blocks, self.norm, self.head = nn.ModuleList([Block(), Block()]), nn.LayerNorm(W, eps=1e-6), nn.Linear(W, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class Layer(nn.Module):
    """The same block as another library has it: three projections, and attention written out. Tokens may come first."""

    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.before, self.after = nn.LayerNorm(W, eps=1e-6), nn.LayerNorm(W, eps=1e-6)
        self.query, self.key, self.value, self.output = (nn.Linear(W, W) for _ in range(4))
        self.up, self.down = nn.Linear(W, 2 * W), nn.Linear(2 * W, W)
        self.scale1, self.scale2 = nn.Parameter(torch.ones(W)), nn.Parameter(torch.ones(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.before(x)
        form = "tbhs" if self.ways.get("first") else "bths"
        q, k, v = (part(normed).unflatten(-1, (HEADS, SIZE)) for part in (self.query, self.key, self.value))
        scores = torch.einsum(f"{form},{form.replace('t', 'u')}->bhtu", q, k).float() / math.sqrt(SIZE)
        made = torch.einsum(f"bhtu,{form.replace('t', 'u')}->{form}", scores.softmax(-1).to(v.dtype), v).flatten(2)
        x = x + self.output(made) * (1 if self.ways.get("unscaled") else self.scale1)
        return x + self.scale2 * self.down(F.gelu(self.up(self.after(x))))


class Viewer(nn.Module):
    def __init__(self, late: bool = False, unscaled: bool = False, first: bool = False) -> None:
        super().__init__()
        self.late, self.first = late, first
        self.projection, self.token, self.position = nn.Linear(48, W), nn.Parameter(torch.zeros(W)), nn.Parameter(torch.zeros(5, W))
        self.layers = nn.ModuleList([Layer(first=first, unscaled=unscaled and place == 1) for place in range(2)])
        self.final, self.classifier = nn.LayerNorm(W, eps=1e-6), nn.Linear(W, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.projection(x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2))
        x = torch.cat([self.token.expand(len(x), 1, W), x], 1) + (self.position.roll(-1, 0) if self.late else self.position)
        x = x.transpose(0, 1) if self.first else x
        for layer in self.layers:
            x = layer(x)
        return self.classifier(self.final(x[0] if self.first else x[:, 0]))

    def load(self, model: Seer) -> Viewer:
        with torch.no_grad():
            self.projection.weight.copy_(model.patch.weight.flatten(1))
            self.projection.bias.copy_(model.patch.bias)
            self.token.copy_(model.cls[0, 0]), self.position.copy_(model.places[0])
            self.final.load_state_dict(model.norm.state_dict()), self.classifier.load_state_dict(model.head.state_dict())
            for mine, block in zip(self.layers, model.blocks, strict=True):
                for number, part in enumerate((mine.query, mine.key, mine.value)):
                    part.weight.copy_(block.qkv.weight[W * number : W * number + W])
                    part.bias.copy_(block.qkv.bias[W * number : W * number + W])
                for name, other in (("before", "norm1"), ("after", "norm2"), ("output", "proj"), ("up", "fc1"), ("down", "fc2")):
                    getattr(mine, name).load_state_dict(getattr(block, other).state_dict())
                mine.scale1.copy_(block.ls1), mine.scale2.copy_(block.ls2)
        return self


def seen(**ways: Any) -> Made:
    torch.manual_seed(0)
    model = spread(Seer(), 0.2)
    return model, Viewer(**ways).load(model), (torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(1)),), MEAN


def _filters() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=True), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU6(), nn.Conv2d(8, 5, 1),
    )  # fmt: skip


class Folded(nn.Module):
    """The filters with their norms folded in. `eps`: what is added to a variance. `biased`: whether the first filter's own bias is kept."""

    def __init__(self, model: nn.Sequential, eps: float = 1e-5, biased: bool = True, windows: bool = False) -> None:
        super().__init__()
        self.windows = windows
        self.stem, self.depth, self.point = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 5, 1)
        with torch.no_grad():
            for mine, conv, norm in ((self.stem, model[0], model[1]), (self.depth, model[3], model[4])):
                factor = norm.weight * torch.rsqrt(norm.running_var + eps)
                own = conv.bias if conv.bias is not None and biased else 0
                mine.weight.copy_(conv.weight * factor[:, None, None, None])
                mine.bias.copy_(norm.bias + (own - norm.running_mean) * factor)
        self.point.load_state_dict(model[6].state_dict())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).relu()
        if self.windows:
            taps = F.pad(x, (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1)
            x = torch.einsum("bchwij,cij->bchw", taps, self.depth.weight[:, 0]) + self.depth.bias[:, None, None]
        else:
            x = self.depth(x)
        return self.point(x.clamp(0, 6))


def folded(**ways: Any) -> Made:
    torch.manual_seed(0)
    model = spread(_filters()).eval()
    for norm in (model[1], model[4]):
        norm.running_mean.normal_(std=0.5), norm.running_var.uniform_(0.01, 1.5)
    return model, Folded(model, **ways).eval(), (torch.randn(2, 3, 7, 6, generator=torch.Generator().manual_seed(1)),), {}


def turned(x: torch.Tensor, neighbours: bool, first: int = 0) -> torch.Tensor:
    """Pairs turned by their places: neighbours, or elements of the two halves."""
    half = x.shape[-1] // 2
    angles = (torch.arange(x.shape[-2]) + first)[:, None] * 100.0 ** (-torch.arange(half) / half)
    one, two = (x[..., ::2], x[..., 1::2]) if neighbours else x.chunk(2, -1)
    made = one.float() * angles.cos() - two.float() * angles.sin(), two.float() * angles.cos() + one.float() * angles.sin()
    return (torch.stack(made, -1).flatten(-2) if neighbours else torch.cat(made, -1)).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(W, W, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (_heads(part(x)) for part in (self.wq, self.wk, self.wv))
        if not self.ways.get("cached"):
            q, k = (turned(each, not self.ways.get("halves")) for each in (q, k))
            return self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        rows, keys = [], q[:, :, :0]
        for place in range(x.shape[1]):
            now = slice(place, place + 1)
            keys = torch.cat([keys, turned(k[:, :, now], True, place)], 2)
            late = place + 1 if self.ways.get("late") else place
            rows.append(F.scaled_dot_product_attention(turned(q[:, :, now], True, late), keys, v[:, :, : place + 1]))
        return self.wo(torch.cat(rows, 2).transpose(1, 2).flatten(2))


class Speaker(nn.Module):
    """A small language model whose head is its embedding."""

    def __init__(self, tied: bool = True, at: int = -1, **ways: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, W)
        self.norms, self.layers = nn.ModuleList([nn.RMSNorm(W, eps=1e-6) for _ in range(3)]), nn.ModuleList([
            Attention(**{name: value for name, value in ways.items() if name != "late" or place == at}) for place in range(2)])  # fmt: skip
        self.head = nn.Linear(W, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for norm, layer in zip(self.norms, self.layers, strict=False):
            x = x + layer(norm(x))
        return self.head(self.norms[2](x))


def spoken(permuted: bool = True, **ways: Any) -> Made:
    torch.manual_seed(0)
    model = spread(Speaker())
    other = Speaker(**ways)
    other.load_state_dict(model.state_dict())
    if ways.get("halves") and permuted:
        for layer in other.layers:
            for part in (layer.wq, layer.wk):  # type: ignore[union-attr]
                part.weight.data = part.weight.unflatten(0, (HEADS, SIZE // 2, 2)).transpose(1, 2).flatten(0, 2).detach().clone()  # type: ignore[union-attr]
    ids = torch.randint(0, WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    return model, other, (ids,), {"loss": language_loss(ids)}


class Listener(nn.Module):
    """An encoder with masked padding, whose layers share a bias by distance. `form`: the form in which the mask is given."""

    def __init__(self, form: str = "bool", at: int = -1, **ways: Any) -> None:
        super().__init__()
        self.form, self.at, self.ways, self.inside = form, at, ways, nn.Linear(5, W)
        self.distances = nn.Embedding(2 * LENGTH - 1, HEADS)
        self.norms = nn.ModuleList([nn.LayerNorm(W) for _ in range(4)])
        self.qkv, self.out = nn.ModuleList([nn.Linear(W, 3 * W) for _ in range(2)]), nn.ModuleList([nn.Linear(W, W) for _ in range(2)])
        self.up, self.down = nn.ModuleList([nn.Linear(W, 4 * W) for _ in range(2)]), nn.ModuleList([nn.Linear(2 * W, W) for _ in range(2)])

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        x, place = self.inside(x), torch.arange(x.shape[1])
        bias = self.distances(place[:, None] - place + LENGTH - 1).permute(2, 0, 1)
        padding = (place >= lengths[:, None])[:, None, None]
        for number in range(2):
            q, k, v = (_heads(part) for part in self.qkv[number](self.norms[2 * number](x)).chunk(3, -1))
            if self.form == "added":
                hidden = padding * (-1.0 if self.ways.get("weak") and number == self.at else -1e9)
                scores = (q @ k.mT).float() / math.sqrt(SIZE) + bias.float() + hidden
            else:
                scores = ((q @ k.mT).float() / math.sqrt(SIZE) + bias.float()).masked_fill(padding, -math.inf)
            x = x + self.out[number]((scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2))
            gate, value = self.up[number](self.norms[2 * number + 1](x)).chunk(2, -1)
            kind = "tanh" if self.ways.get("tanh") and number == self.at else "none"
            x = x + self.down[number](F.gelu(gate, approximate=kind) * value)
        kept = ~padding[:, 0, 0, :, None]
        return (x * kept).sum(1) / kept.sum(1)


def heard(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(Listener(), 0.2), Listener(**ways)
    other.load_state_dict(model.state_dict())
    x = torch.randn(3, LENGTH, 5, generator=torch.Generator().manual_seed(1))
    return model, other, (x, torch.tensor([8, 5, 3])), MEAN


healthy("converted sight", "projections split, patches as a product", seen)
healthy("converted sight", "tokens first", lambda: seen(first=True))
broken("converted sight", "positions that begin one late", lambda: seen(late=True), "", "projection", "layers.0", "layers.0.before")
broken("converted sight", "a branch without its scale", lambda: seen(unscaled=True), "layers.1", "layers.1.after")
healthy("converted filters", "norms folded", folded)
healthy("converted filters", "norms folded, windows for filters", lambda: folded(windows=True))
broken("converted filters", "norms folded with another eps", lambda: folded(eps=1e-3), "stem", "")
broken("converted filters", "a bias lost as a norm was folded", lambda: folded(biased=False), "stem", "")
healthy("converted speech", "halves for neighbours, rows permuted", lambda: spoken(halves=True))
healthy("converted speech", "keys from a cache", lambda: spoken(cached=True))
broken("converted speech", "halves for neighbours, rows as they were", lambda: spoken(halves=True, permuted=False), "layers.0")
broken("converted speech", "a head that is a copy", lambda: spoken(tied=False), "", "words", "head")
healthy("converted sound", "a mask that is added", lambda: heard(form="added"))
healthy("converted sound", "the same once more", heard)
broken("converted sound", "a mask that adds little", lambda: heard(form="added", weak=True, at=1), "", "out.1")
broken("converted sound", "gelu by tanh", lambda: heard(tanh=True, at=1), "", "down.1")
