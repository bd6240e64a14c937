"""An encoder and a decoder as T5's are: relative positions by buckets, no scale, cross attention, a shared table."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pair_cases import Made, broken, healthy, spread
from torch import nn

W, H, V = 24, 3, 30


def buckets(length: int, other: int, both: bool, most: int = 8, furthest: int = 16) -> torch.Tensor:
    distance = torch.arange(other)[None] - torch.arange(length)[:, None]
    found = torch.zeros_like(distance)
    if both:
        most //= 2
        found = found + (distance > 0) * most
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = most // 2
    far = exact + (torch.log(distance.clamp(min=1).float() / exact) / math.log(furthest / exact) * (most - exact)).long()
    return found + torch.where(distance < exact, distance, far.clamp(max=most - 1))


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(W))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


class Attention(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.q, self.k, self.v, self.o = (nn.Linear(W, W, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor, source: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        q, k, v = (part(each).unflatten(-1, (H, -1)).transpose(1, 2) for part, each in ((self.q, x), (self.k, source), (self.v, source)))
        if ways.get("sdpa"):
            scale = None if ways.get("scaled") else 1.0
            mixed = F.scaled_dot_product_attention(q, k, v, bias.to(q.dtype)[None].expand(len(x), -1, -1, -1), scale=scale)
        else:
            mixed = (q @ k.transpose(-1, -2) + bias).float().softmax(-1).to(v.dtype) @ v
        return self.o(mixed.transpose(1, 2).flatten(2))


class T5(nn.Module):
    def __init__(self, **ways: Any) -> None:
        super().__init__()
        self.ways = ways
        self.shared, self.near, self.far = nn.Embedding(V, W), nn.Embedding(8, H), nn.Embedding(8, H)
        self.enc, self.dec, self.cross = Attention(**ways), Attention(**ways), Attention(**ways.get("bad", ways))
        self.n1, self.n2, self.n3, self.n4, self.n5 = (Norm() for _ in range(5))
        self.wi, self.wo = nn.Linear(W, 2 * W, bias=False), nn.Linear(2 * W, W, bias=False)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        ways = self.ways
        x = self.shared(source)
        both = not ways.get("one_sided")
        bias = self.near(buckets(source.shape[1], source.shape[1], both)).permute(2, 0, 1)
        x = x + self.enc(self.n1(x), self.n1(x), bias)
        memory = self.n2(x) if not ways.get("raw") else x
        start = target if ways.get("unshifted") else torch.cat([torch.zeros_like(target[:, :1]), target[:, :-1]], 1)
        y, length = self.shared(start), target.shape[1]
        bias = self.far(buckets(length, length, False)).permute(2, 0, 1)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        y = y + self.dec(self.n3(y), self.n3(y), bias.masked_fill(later, -1e9 if bias.dtype is not torch.float16 else -6e4))
        memory = memory.detach() if ways.get("frozen") else memory
        y = y + self.cross(self.n4(y), y if ways.get("itself") else memory, torch.zeros(1, 1, 1))
        y = y + self.wo(F.relu(self.wi(self.n5(y))))
        return F.linear(y * (1.0 if ways.get("unscaled") else W**-0.5), self.shared.weight)


def pair(**ways: Any) -> Made:
    torch.manual_seed(0)
    model, other = spread(T5()), T5(sdpa=True, **ways)
    other.load_state_dict(model.state_dict())
    source, target = torch.randint(0, V, (2, 9)), torch.randint(0, V, (2, 6))
    return model, other, (source, target), {"loss": lambda out: F.cross_entropy(out.flatten(0, 1).float(), target.flatten())}


healthy("t5", "torch's attention with a bias", pair)
broken("t5", "cross attention scaled", lambda: pair(bad={"sdpa": True, "scaled": True}), "cross", said="0.353553 times")
broken("t5", "buckets of one side", lambda: pair(one_sided=True), "near", "", "enc")
broken("t5", "memory without its norm", lambda: pair(raw=True), "")
broken("t5", "targets not shifted", lambda: pair(unshifted=True), "", "shared", said="")
broken("t5", "the decoder attends to itself", lambda: pair(itself=True), "")
broken("t5", "the encoder without a gradient", lambda: pair(frozen=True), "")
broken("t5", "logits not scaled", lambda: pair(unscaled=True), "", said="4.89898 times")
