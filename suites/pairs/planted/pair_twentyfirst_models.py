"""The twenty-first batch, fourth part: models of words, a translator with caches, losses joined with the head, parts of a batch, layers that share.

Faults as such ports have them: a cap without its slope, a mean over padding, keys of the wrong layer, a cache that is one token short.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, spread
from pair_nineteenth import W, filled, seeded
from pair_twentyfirst import causal, family
from torch import nn

WORDS, LENGTH = 23, 9
TOKENS = torch.randint(1, WORDS, (3, LENGTH), generator=torch.Generator().manual_seed(2))
KEPT = torch.arange(LENGTH) < torch.tensor([9, 4, 6])[:, None]
"""Tokens that are no padding."""


class Mixing(nn.Module):
    """Causal attention and a network for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(W), nn.Linear(W, 3 * W), nn.Linear(W, W)
        self.up, self.down = nn.Linear(W, 24), nn.Linear(24, W)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(causal(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(x)))


class Factored(nn.Module):
    """Words of six numbers that become sixteen, and back by the same two weights. `kind`: one table for both, or products of one word each."""

    def __init__(self, port: bool = False, **ways: Any) -> None:
        super().__init__()
        self.ways = {"port": port, **ways}
        self.words, self.wide, self.block, self.bias = nn.Embedding(WORDS, 6), nn.Linear(6, W, bias=False), Mixing(), nn.Parameter(torch.zeros(WORDS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        if not ways["port"]:
            x = self.block(self.wide(self.words(tokens)) * math.sqrt(W))
            return (x @ self.wide.weight) @ self.words.weight.mT + self.bias
        table = self.wide(self.words.weight)
        x = self.block(F.embedding(tokens, table) * (math.sqrt(6) if ways.get("small") else math.sqrt(W)))
        table = table * math.sqrt(W) if ways.get("twice") else table
        table = table.detach() if ways.get("cut") else table
        return x @ table.mT.to(x.dtype) + (0 if ways.get("bare") else self.bias)


def factored(**bad: Any) -> Made:
    return filled(seeded(Factored), Factored(True, **bad), TOKENS)


family("a factored table", "one table for both", factored, {
    "a root of six": ({"small": True}, ("",), "times"), "scaled at the head too": ({"twice": True}, ("",), "times"),
    "a head that teaches nothing": ({"cut": True}, ("",), ""), "no bias": ({"bare": True}, ("",), "bias"),
})  # fmt: skip


class Head(nn.Module):
    """A loss of capped logits over all that is no padding, with smoothed labels and a penalty on the logarithm of the sum. `port`: in parts of four
    rows, whose gradients are made in the forward pass."""

    def __init__(self, port: bool = False, **ways: Any) -> None:
        super().__init__()
        self.port, self.ways, self.table = port, ways, nn.Parameter(torch.zeros(WORDS, W))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        rows, labels = x.flatten(0, 1), labels.flatten()
        if self.port:
            return Fused.apply(rows, self.table, labels, self.ways)
        logits = 5 * torch.tanh((rows @ self.table.mT.to(rows.dtype)).float() / 5)
        made = F.cross_entropy(logits, labels, ignore_index=-100, label_smoothing=0.1)
        kept = labels != -100
        return made + 0.01 * (logits.logsumexp(-1).square() * kept).sum() / kept.sum()


class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, table: torch.Tensor, labels: torch.Tensor, ways: dict[str, Any]) -> torch.Tensor:
        kept = labels != -100
        count = len(labels) if ways.get("padding") else int(kept.sum())
        total, by_rows, by_table = rows.new_zeros((), dtype=torch.float32), torch.zeros_like(rows), torch.zeros_like(table)
        wide = table.to(rows.dtype)
        for start in range(0, len(rows), 4):
            part, some, mask = rows[start : start + 4], labels[start : start + 4].clamp(min=0), kept[start : start + 4, None]
            bent = torch.tanh((part @ wide.mT).float() / 5)
            logits = 5 * bent
            sums = logits.logsumexp(-1, keepdim=True)
            spread_ = 0.1 / (WORDS - 1 if ways.get("others") else WORDS)
            wanted = F.one_hot(some, WORDS) * 0.9 + spread_
            total = total + ((sums - logits) * wanted * mask).sum() + (0 if ways.get("calm") else 0.01) * (sums.square() * mask).sum()
            shares = (logits - sums).exp()
            slope = (shares * (wanted.sum(-1, keepdim=True) + 0.02 * sums * (not ways.get("calm"))) - wanted) * mask
            slope = slope if ways.get("flat") else slope * (1 - bent.square())
            slope = (slope / count).to(rows.dtype)
            by_rows[start : start + 4] = slope @ wide
            by_table += (slope.mT @ part).to(by_table.dtype)
        ctx.save_for_backward(by_rows, by_table)
        return total / count

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        by_rows, by_table = ctx.saved_tensors
        return by_rows * grads[0].to(by_rows.dtype), by_table * grads[0].to(by_table.dtype), None, None


class Speaking(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.words, self.block, self.head = nn.Embedding(WORDS, W), Mixing(), Head(**ways)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.words(tokens)), labels)


def speaking(**bad: Any) -> Made:
    labels = TOKENS.roll(-1, 1).masked_fill(~KEPT, -100)
    return filled(seeded(Speaking), Speaking(port=True, **bad), (TOKENS, labels), given={"loss": lambda out: out})


family("a loss in the head", "four rows at a time", speaking, {
    "a cap without its slope": ({"flat": True}, ("head",), ""), "a mean with padding": ({"padding": True}, ("head",), ""),
    "no penalty": ({"calm": True}, ("head",), ""), "shares of the other words": ({"others": True}, ("head",), ""),
})  # fmt: skip


class Reading(nn.Module):
    """Attention to the source, or to itself, with keys that may be kept."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(W, W) for _ in range(4))

    def keys(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.k(x), self.v(x)

    def forward(self, x: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        scores = (self.q(x) @ k.mT).float() / 4
        return self.out(scores.masked_fill(hidden, -1e4).softmax(-1).to(v.dtype) @ v)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own, self.across, self.norms = Reading(), Reading(), nn.ModuleList([nn.LayerNorm(W), nn.LayerNorm(W)])
        self.net = nn.Sequential(nn.LayerNorm(W), nn.Linear(W, 24), nn.GELU(), nn.Linear(24, W))


class Translator(nn.Module):
    """An encoder that sees its words alone, and a decoder of two layers. `port`: one target word at a time, with all keys kept."""

    def __init__(self, port: bool = False, **ways: Any) -> None:
        super().__init__()
        self.port, self.ways, self.words, self.places = port, ways, nn.Embedding(WORDS, W), nn.Parameter(torch.zeros(LENGTH, W))
        self.encoder, self.layers, self.head = (
            nn.Sequential(nn.LayerNorm(W), nn.Linear(W, W), nn.Tanh()),
            nn.ModuleList([Layer(), Layer()]),
            nn.Linear(W, 7),
        )

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        ways, read, hidden = self.ways, self.encoder(self.words(source)), ~KEPT[:, None]
        length, made = target.shape[1], []
        pieces = list(range(0, length)) if self.port else [0]
        across = [layer.across.keys(read) for layer in self.layers]
        across = across[::-1] if ways.get("exchanged") else across
        kept: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[], []]
        for start in pieces:
            end = start + 1 if self.port else length
            place = 0 if ways.get("still") else start
            x = self.words(target[:, start:end]) + self.places[place : place + end - start]
            for number, layer in enumerate(self.layers):
                y = layer.norms[0](x)
                kept[number].append(layer.own.keys(x if ways.get("bare") and number else y))
                k, v = (torch.cat(parts, 1) for parts in zip(*kept[number], strict=True))
                ahead = torch.arange(k.shape[1]) > torch.arange(start, end)[:, None]
                if ways.get("last") and number:
                    ahead = ahead | (torch.arange(k.shape[1]) == torch.arange(start, end)[:, None] - 1)
                x = x + layer.own(y, k, v, ahead)
                off = torch.zeros_like(hidden) if ways.get("open") and number else hidden
                x = x + layer.across(layer.norms[1](x), *across[number], off)
                x = x + layer.net(x)
            made.append(self.head(x))
        return torch.cat(made, 1)


def translated(**bad: Any) -> Made:
    return filled(seeded(Translator), Translator(True, **bad), (TOKENS, TOKENS.flip(0)[:, :6]))


family("a translator's caches", "a word at a time", translated, {
    "the other layer's source": ({"exchanged": True}, ("",), ""), "a place that stays": ({"still": True}, ("",), ""),
    "keys without the norm": ({"bare": True}, ("", "layers.1.own.k"), ""), "the word before is hidden": ({"last": True}, ("",), ""),
    "padding is seen": ({"open": True}, ("",), ""),
})  # fmt: skip


class Further(nn.Module):
    """Words, and by a second head the word after the next: from a state and the next word. `port`: both heads in one product."""

    def __init__(self, port: bool = False, **ways: Any) -> None:
        super().__init__()
        self.port, self.ways, self.words, self.block, self.more = port, ways, nn.Embedding(WORDS, W), Mixing(), Mixing()
        self.norms, self.join, self.head = nn.ModuleList([nn.LayerNorm(W), nn.LayerNorm(W)]), nn.Linear(2 * W, W), nn.Linear(W, WORDS)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ways, words = self.ways, self.words(tokens)
        x = self.block(words)
        following = words[:, :-1] if ways.get("same") else words[:, 1:]
        parts = [self.norms[0](x[:, :-1]), self.norms[1](following)]
        joined = torch.cat(parts[::-1] if ways.get("order") else parts, -1)
        y = self.more(self.join(joined.detach() if ways.get("cut") else joined))
        if not self.port:
            return self.head(x), self.head(y)
        made = self.head(torch.cat([x, y], 1))
        return made[:, :LENGTH], made[:, LENGTH:]


def further(**bad: Any) -> Made:
    def loss(out: Any) -> torch.Tensor:
        return sum(each.float().square().mean() for each in out)  # type: ignore[return-value]

    return filled(seeded(Further), Further(True, **bad), TOKENS, given={"loss": loss})


family("the word after the next", "one product for both heads", further, {
    "the state's own word": ({"same": True}, ("",), "shifted"), "halves exchanged": ({"order": True}, ("",), ""),
    "no gradient of the state": ({"cut": True}, ("",), ""),
})  # fmt: skip


class Parts:
    """A loss over all words that are no padding. `port`: the sum of parts of the batch, each with its share."""

    def __init__(self, net: nn.Module, port: bool = False, **ways: Any) -> None:
        self.net, self.port, self.ways = net, port, ways

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        labels = tokens.roll(-1, 1).masked_fill(~KEPT, -100)
        if not self.port:
            return F.cross_entropy(self.net(tokens).flatten(0, 1).float(), labels.flatten())
        total, ways = 0.0, self.ways
        for some, wanted in zip(tokens.split(1), labels.split(1), strict=True):
            made = F.cross_entropy(self.net(some).flatten(0, 1).float(), wanted.flatten(), reduction="sum")
            count = (wanted != -100).sum()
            share = 1 / (3 * count) if ways.get("means") else 1 / labels.numel() if ways.get("all") else 1 / (labels != -100).sum()
            total = total + made * (share / 3 if ways.get("twice") else share)
        return total  # type: ignore[return-value]


def parts(**bad: Any) -> Made:
    torch.manual_seed(0)
    net = spread(nn.Sequential(nn.Embedding(WORDS, W), Mixing(), nn.Linear(W, WORDS)))
    return Parts(net), Parts(net, True, **bad), TOKENS, {"loss": lambda out: out}


family("parts by their words", "sums and one count", parts, {
    "means of means": ({"means": True}, ("",), ""), "padding counts": ({"all": True}, ("",), ""),
    "divided twice": ({"twice": True}, ("",), "times"),
})  # fmt: skip
