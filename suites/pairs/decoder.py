"""A small decoder written in many ways that are equal on paper, and with the faults that ports of decoders have."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, LAYERS, VOCABULARY, LENGTH = 32, 4, 2, 50, 12


class Norm(nn.Module):
    """Root mean square, in one of several forms; `outside` adds eps after the root."""

    def __init__(self, form: str = "rsqrt", eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.form, self.eps = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH)), form, eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.form == "torch":
            return F.rms_norm(x, (WIDTH,), self.weight, self.eps)
        wide = x.float()
        if self.form == "norm":
            return (wide / (wide.norm(dim=-1, keepdim=True).square() / WIDTH + self.eps).sqrt()).type_as(x) * self.weight
        if self.form == "outside":
            return (wide / (wide.square().mean(-1, keepdim=True).sqrt() + 1e-2)).type_as(x) * self.weight
        if self.form == "low":  # the statistics in the format of the data, one element after the other
            total = torch.zeros_like(x[..., :1], dtype=torch.float16)
            for column in x.half().square().split(1, -1):
                total = total + column
            return x * (total.to(x.dtype) / WIDTH + self.eps).rsqrt() * self.weight
        return (wide * (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()).type_as(x) * self.weight


def rotated(x: torch.Tensor, offset: int = 0, form: str = "half") -> torch.Tensor:
    """x: (batch, heads, length, size)."""
    size = x.shape[-1]
    frequencies = 100.0 ** (-torch.arange(0, size, 2, device=x.device).float() / size)
    angles = (torch.arange(x.shape[-2]).float() + offset)[:, None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    if form == "interleaved":
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    a, b = x.chunk(2, -1)
    if form == "joined":
        return x * torch.cat([cos, cos], -1) + torch.cat([-b, a], -1) * torch.cat([sin, sin], -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def rotated_at(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The half-split form at given positions, (rows or 1, length)."""
    frequencies = 100.0 ** (-torch.arange(0, x.shape[-1], 2).float() / x.shape[-1])
    angles = positions[:, None, :, None].float() * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        if ways.get("fused"):
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        else:
            self.q, self.k, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.o = nn.Linear(WIDTH, WIDTH, bias=not ways.get("unbiased"))

    def projected(self, x: torch.Tensor) -> list[torch.Tensor]:
        parts = self.qkv(x).chunk(3, -1) if self.ways.get("fused") else (self.q(x), self.k(x), self.v(x))
        if self.ways.get("viewed"):  # the wrong layout: heads out of neighbouring tokens
            return [each.view(len(x), HEADS, -1, WIDTH // HEADS) for each in parts]
        return [each.view(len(x), -1, HEADS, WIDTH // HEADS).transpose(1, 2) for each in parts]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ways, length = self.ways, x.shape[1]
        q, k, v = self.projected(x)
        form = ways.get("rope", "half")
        q, k = rotated(q, ways.get("offset", 0), form), rotated(k, 0, form)
        scale = ways.get("scale", (WIDTH // HEADS) ** -0.5)
        if ways.get("attention", "sdpa") == "sdpa":
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        elif ways["attention"] == "einsum":
            scores = torch.einsum("bhqd,bhkd->bhqk", q * scale, k)
            hidden = torch.triu(torch.full((length, length), -1e9), 1).to(scores.dtype)
            mixed = torch.einsum("bhqk,bhkd->bhqd", (scores + hidden).softmax(-1), v)
        else:
            scores = q @ k.transpose(-1, -2) * scale
            seen = torch.ones(length, length, dtype=torch.bool).tril(ways.get("shift", 0))
            scores = scores.masked_fill(~seen, float("-inf"))
            weights = scores.softmax(-1) if not ways.get("twice") else scores.softmax(-1).softmax(-1)
            mixed = weights @ v
        if ways.get("dead"):  # one head gives a little less than it should
            mixed = torch.cat([mixed[:, :1] * 0.999, mixed[:, 1:]], 1)
        return self.o(mixed.transpose(1, 2).reshape(x.shape))


class Feeding(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        if ways.get("joined"):
            self.gate_up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        else:
            self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, -1) if self.ways.get("joined") else (self.gate(x), self.up(x))
        if self.ways.get("swapped"):
            gate, up = up, gate
        act = self.ways.get("act", "silu")
        if act == "written":
            return self.down(gate * torch.sigmoid(gate) * up)
        opened = {"silu": F.silu, "gelu": F.gelu, "tanh": lambda g: F.gelu(g, approximate="tanh"), "relu": F.relu}[act](gate)
        return self.down(opened * up)


class Block(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        norm = {name: ways[name] for name in ("form", "eps") if name in ways}
        self.ways, self.n1, self.attention, self.n2, self.feeding = ways, Norm(**norm), Attention(**ways), Norm(**norm), Feeding(**ways)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.n1(x))
        if self.ways.get("detached"):
            return x.detach() + self.feeding(self.n2(x))
        return x + self.feeding(self.n2(x)) if not self.ways.get("unresidual") else self.feeding(self.n2(x))


class Decoder(nn.Module):
    """`broken` are the ways of the second layer alone, all others those of both."""

    def __init__(
        self, broken: dict[str, Any] | None = None, *, tied: bool = True, dropout: float = 0.0, embedded: str = "lookup", **ways: Any
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block(**{**ways, **((broken or {}) if place == 1 else {})}) for place in range(LAYERS))
        self.norm = Norm(ways.get("form", "rsqrt"), ways.get("eps", 1e-6))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.dropout, self.ways = dropout, {**ways, "embedded": embedded}
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.ways["embedded"] == "product":
            x = F.one_hot(tokens, VOCABULARY).to(self.embedding.weight.dtype) @ self.embedding.weight
        else:
            x = self.embedding(tokens)
        if self.ways["embedded"] == "scaled":
            x = x * math.sqrt(WIDTH)
        x = F.dropout(x, self.dropout, self.training)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


RENAMED = {"q": "wq", "k": "wk", "v": "wv", "o": "wo", "gate": "w1", "up": "w3", "down": "w2"}


def decoder(seed: int = 0, **ways: Any) -> Decoder:
    """With weights that depend on the seed alone, whatever the ways are."""
    torch.manual_seed(seed)
    plain = Decoder(tied=ways.get("tied", True))
    for name, value in plain.named_parameters():
        if "norm" not in name and ".n" not in name:
            nn.init.normal_(value, std=0.3 if value.dim() > 1 else 0.1)
    made = Decoder(**ways)
    weights = plain.state_dict()
    for place in range(LAYERS):
        for parts, whole in ((("q", "k", "v"), "attention.qkv"), (("gate", "up"), "feeding.gate_up")):
            prefix = f"layers.{place}.{whole.split('.')[0]}"
            for kind in ("weight", "bias"):
                found = [weights[f"{prefix}.{part}.{kind}"] for part in parts if f"{prefix}.{part}.{kind}" in weights]
                if found:
                    weights[f"layers.{place}.{whole}.{kind}"] = torch.cat(found)
    made.load_state_dict({name: weights[name] for name in made.state_dict()})
    return made


def tokens(batch: int = 2, length: int = LENGTH, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def language_loss(given: torch.Tensor) -> Any:
    """Next-token cross-entropy of logits for these tokens."""
    return lambda logits: F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), given[:, 1:].flatten())
