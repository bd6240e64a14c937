"""The twenty-eighth batch, second part: a recurrence of words, a network like a U, blocks of keys that are chosen."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from pair_fourteenth_scans import numbers
from pair_twentyeighth import family
from pair_twentyfifth import WORDS
from pair_twentyfourth import TOP, W, ported
from pair_twentyseventh import Block
from torch import nn


class Mixer(nn.Module):
    """Each word is mixed with the one before; sums of values decay, and the present one has a share of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.share, self.decay, self.now = nn.Parameter(torch.full((3, W), 0.5)), nn.Parameter(torch.zeros(W)), nn.Parameter(torch.zeros(W))
        self.r, self.k, self.v, self.out = (nn.Linear(W, W, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = F.pad(x, (0, 0, 1, -1))
        r, k, v = (one(x * share + before * (1 - share)) for one, share in zip((self.r, self.k, self.v), self.share, strict=True))
        far = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1]) - 1
        logs = (-self.decay.exp() * far[..., None]).masked_fill((far < 0)[..., None], -math.inf)
        logs = torch.where((far == -1)[..., None], self.now, logs) + k[:, None]
        return self.out(r.sigmoid() * (logs.softmax(2) * v[:, None]).sum(2))


class Kept:
    """What goes from word to word: the last word, the sums of values and of weights."""

    def __init__(self) -> None:
        self.word: torch.Tensor | None = None
        self.sums: tuple[torch.Tensor, torch.Tensor] | None = None


class Stepped(Mixer):
    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, x: torch.Tensor, kept: Kept) -> torch.Tensor:
        made, wrong = [], self.wrong
        word = torch.zeros_like(x[:, 0]) if kept.word is None or wrong == "word" else kept.word
        top, below = kept.sums or (x.new_zeros(len(x), W), x.new_zeros(len(x), W))
        for n in range(x.shape[1]):
            mixed = [torch.lerp(x[:, n], word, each if wrong == "turned" else 1 - each) for each in self.share]
            r, k, v = self.r(mixed[0]), self.k(mixed[2] if wrong == "share" else mixed[1]), self.v(mixed[2])
            now = k.exp() if wrong == "now" else (self.now + k).exp()
            y = (top + now * v) / (below + now)
            made.append((r if wrong == "open" else r.sigmoid()) * y)
            decay = self.decay.exp().neg() if wrong == "rate" else (-self.decay.exp()).exp()
            top = decay * top + (now if wrong == "keeps" else k.exp()) * v
            below = (below if wrong == "below" else decay * below) + (now if wrong == "keeps" else k.exp())
            word = x[:, n]
        kept.word, kept.sums = word, (top, below)
        return self.out(torch.stack(made, 1))


class Stream(nn.Module):
    def __init__(self, piece: int = 0, top: str = "", wrong: str = "") -> None:
        super().__init__()
        self.piece, self.top, self.words, self.head = piece, top, nn.Embedding(20, W), nn.Linear(W, 20)
        self.layers = nn.ModuleList([Block(Stepped(wrong if n == 1 else "") if piece else Mixer()) for n in range(3)])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        kept, made = [Kept() for _ in self.layers], []
        for number, part in enumerate(tokens.split(self.piece or tokens.shape[1], 1)):
            x = self.words(part)
            if number == 1 and self.top == "turned":
                kept = kept[::-1]
            if number == 1 and self.top == "cut":
                for each in kept:
                    each.sums = tuple(one.detach() for one in each.sums)  # type: ignore[assignment, union-attr]
            for layer, each in zip(self.layers, kept, strict=True):
                x = layer(x, each) if self.piece else layer(x)
            made.append(x)
        return self.head(torch.cat(made, 1))


MIX = ("layers.1.attend",)
family("a recurrence of words", "word by word", lambda **bad: ported(Stream(), Stream(**{"piece": 9, **bad}), WORDS), {
    "the word before forgotten": ({"wrong": "word", "piece": 4}, MIX, ""), "shares turned round": ({"wrong": "turned"}, MIX, ""),
    "the share of values for keys": ({"wrong": "share"}, MIX, ""), "no share of the present": ({"wrong": "now"}, MIX, ""),
    "a gate that is open": ({"wrong": "open"}, MIX, ""), "rates for decays": ({"wrong": "rate"}, MIX, ""),
    "the present's share is kept": ({"wrong": "keeps"}, MIX, ""), "weights that do not decay": ({"wrong": "below"}, MIX, ""),
    "states of another layer": ({"top": "turned", "piece": 4}, TOP, ""), "states cut off": ({"top": "cut", "piece": 4}, TOP, ""),
}, pieces_of_four={"piece": 4})  # fmt: skip


class Twice(nn.Module):
    def __init__(self, width: int, out: int, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.norm = wrong, nn.GroupNorm(4, out)
        self.first, self.second = nn.Conv2d(width, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = F.group_norm(x, 2, self.norm.weight, self.norm.bias) if self.wrong == "groups" else self.norm(x)
        return F.leaky_relu(self.second(F.leaky_relu(x, 0.1)), 0.01 if self.wrong == "slope" else 0.1)


class Shaped(nn.Module):
    """Three levels down and two up, with skips. Losses of two levels."""

    def __init__(self, written: bool = False, top: str = "", down: str = "", up: str = "", wide: str = "") -> None:
        super().__init__()
        self.written, self.top, self.wide = written, top, wide
        self.down = nn.ModuleList([Twice(3, 8), Twice(8, 8, down), Twice(8, 8)])
        self.up, self.heads = nn.ModuleList([Twice(16, 8), Twice(16, 8, up)]), nn.ModuleList([nn.Conv2d(8, 2, 1) for _ in range(2)])

    def widened(self, x: torch.Tensor) -> torch.Tensor:
        if self.wide == "near":
            return F.interpolate(x, scale_factor=2)
        if self.written and not self.wide:
            for axis in (2, 3):
                before, after = (x.movedim(axis, -1)[..., [0, *range(x.shape[axis] - 1)]], x.movedim(axis, -1)[..., [*range(1, x.shape[axis]), -1]])
                here = x.movedim(axis, -1)
                x = torch.stack([0.75 * here + 0.25 * before, 0.75 * here + 0.25 * after], -1).flatten(-2).movedim(-1, axis)
            return x
        return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=self.wide == "corners")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        skips, top = [], self.top
        for number, layer in enumerate(self.down):
            x = layer(x)
            if number < 2:
                pooled = F.avg_pool2d(x, 2) if top == "mean" and number == 1 else F.max_pool2d(x, 2)
                skips.append(self.widened(pooled) if top == "pooled" and number == 1 else x)
                x = pooled
        made = []
        for number, (layer, head) in enumerate(zip(self.up, self.heads, strict=True)):
            skip = skips[-1 - number]
            skip = skip.detach() if top == "cut" and number == 1 else skip
            x = self.widened(x)
            x = layer(torch.cat([skip, x] if top == "order" and number == 1 else [x, x] if top == "no skip" and number == 1 else [x, skip], 1))
            made.append(head(x.detach() if top == "apart" and number == 0 else x))
        return tuple(made[::-1] if top == "turned" else made)


def levels(out: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return sum(share * each.float().square().mean() for share, each in zip((0.5, 1.0), out, strict=True))  # type: ignore[return-value]


MAP = numbers(2, 3, 8, 12)
family("a network like a U", "weights of neighbours", lambda **bad: ported(Shaped(), Shaped(**{"written": True, **bad}), MAP, loss=levels), {
    "groups of another size": ({"down": "groups"}, ("down.1",), ""), "another slope": ({"up": "slope"}, ("up.1",), ""),
    "corners for cells": ({"wide": "corners"}, TOP, ""), "the nearest": ({"wide": "near"}, TOP, ""),
    "a mean for the largest": ({"top": "mean"}, TOP, ""),
    "a skip after it was pooled": ({"top": "pooled"}, TOP, ""), "a skip before the rest": ({"top": "order"}, TOP, ""),
    "no skip": ({"top": "no skip"}, TOP, ""), "a skip that does not teach": ({"top": "cut"}, TOP, ""),
    "a level that does not teach": ({"top": "apart"}, TOP, ""),
})  # fmt: skip


class Chosen(nn.Module):
    """Each query sees its own block of three keys, and of the earlier ones that whose mean fits best."""

    def __init__(self, wrong: str = "", written: bool = False) -> None:
        super().__init__()
        self.wrong, self.written, self.qkv, self.gate, self.out = wrong, written, nn.Linear(W, 3 * W), nn.Linear(W, 2), nn.Linear(W, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wrong, (q, k, v) = self.wrong, self.qkv(x).chunk(3, -1)
        places = torch.arange(x.shape[1])
        own, blocks = places // 3, k.unflatten(1, (-1, 3))
        means = blocks[:, :, -1] if wrong == "last" else blocks.amax(2) if wrong == "largest" else blocks.mean(2)
        fits = (q @ means.mT).masked_fill(torch.arange(x.shape[1] // 3) >= own[:, None] + (1 if wrong == "itself" else 0), -math.inf)
        best = (fits.argmin(-1) if wrong == "worst" else fits.argmax(-1))[..., None]
        chosen = (own == best) & (own < own[:, None])
        near = (own == own[:, None]) & (places <= places[:, None] if wrong != "later" else True)
        mask = near | (chosen & (own[:, None] > 0)) if wrong != "near" else near.expand_as(chosen)
        if self.written:
            scores = torch.einsum("btw,bsw->bts", q, k) / (1 if wrong == "scale" else 4)
            mixed = torch.where(mask, scores, -1e30).softmax(-1).to(v.dtype) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        a, b = self.gate(x).sigmoid().unsqueeze(-2).unbind(-1)
        return self.out(mixed * (b if wrong == "gate" else a) + v * (0 if wrong == "values" else b))


class Sparse(nn.Module):
    def __init__(self, wrong: str = "", written: bool = False) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(20, W), nn.Linear(W, 20)
        self.layers = nn.ModuleList([Block(Chosen(wrong if n == 1 else "", written)) for n in range(3)])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


family("blocks that are chosen", "formulas", lambda **bad: ported(Sparse(), Sparse(**{"written": True, **bad}), WORDS), {
    "the last key of a block": ({"wrong": "last"}, MIX, ""), "the largest": ({"wrong": "largest"}, MIX, ""),
    "the block itself": ({"wrong": "itself"}, MIX, ""),
    "the worst": ({"wrong": "worst"}, MIX, ""), "later keys of the block": ({"wrong": "later"}, MIX, ""),
    "no chosen block": ({"wrong": "near"}, MIX, ""),
    "no scale": ({"wrong": "scale"}, MIX, ""), "the other gate": ({"wrong": "gate"}, MIX, ""), "no values": ({"wrong": "values"}, MIX, ""),
})  # fmt: skip
