"""An encoder and decoder in the manner of T5: relative positions in buckets, norms without a bias, and gated feed-forward layers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH, HEADS, LAYERS, SOURCE, TARGET, ROWS = 256, 32, 4, 2, 300, 24, 2
HEAD_WIDTH = WIDTH // HEADS
BUCKETS, FARTHEST = 32, 128
LARGE_UP, LARGE_OUT = 1000.0, 30.0  # feed-forward activations of trained T5 reach tens of thousands


def relative_bucket(queries: int, keys: int, dtype: torch.dtype, both_ways: bool) -> Tensor:
    """The bucket of each pair's distance: one each for near ones, then wider and wider, up to FARTHEST."""
    relative = torch.arange(keys)[None, :] - torch.arange(queries)[:, None]
    buckets, offset = BUCKETS, torch.zeros_like(relative)
    if both_ways:
        buckets //= 2
        offset, distance = (relative > 0).long() * buckets, relative.abs()
    else:
        distance = (-relative).clamp(min=0)
    near = buckets // 2
    steps = torch.log(distance.float().clamp(min=1) / near) / math.log(FARTHEST / near) * (buckets - near)
    far = (near + steps.long()).clamp(max=buckets - 1)
    return offset + torch.where(distance < near, distance.long(), far)


def masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Scores of where one may look; elsewhere the lowest number, so that where one may look nowhere all are alike."""
    return scores.float().masked_fill(~mask, torch.finfo(torch.float32).min)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(self.weight.dtype)


class Attention(nn.Module):
    def __init__(self, relative: bool = False, both_ways: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.bias = nn.Embedding(BUCKETS, HEADS) if relative else None
        self.both_ways = both_ways

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (f(each).unflatten(-1, (HEADS, HEAD_WIDTH)).transpose(1, 2) for f, each in ((self.q, x), (self.k, memory), (self.v, memory)))
        scores = q @ k.transpose(-1, -2)
        if self.bias is not None:
            buckets = relative_bucket(x.shape[1], memory.shape[1], self.bias.weight.dtype, self.both_ways)
            scores = scores + self.bias(buckets).permute(2, 0, 1)
        weights = masked(scores, mask).softmax(-1).to(v.dtype)
        return self.o((weights @ v).transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.out = (nn.Linear(*shape, bias=False) for shape in ((WIDTH, 64), (WIDTH, 64), (64, WIDTH)))

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.gate(x)) * self.up(x)
        with torch.autocast("cpu", enabled=False):
            return F.linear(hidden.float(), self.out.weight.float())


class EncoderBlock(nn.Module):
    def __init__(self, relative: bool) -> None:
        super().__init__()
        self.norm, self.attention = Norm(), Attention(relative, both_ways=True)
        self.feed_norm, self.feed = Norm(), FeedForward()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        normed = self.norm(x)
        x = x + self.attention(normed, normed, mask)
        return x + self.feed(self.feed_norm(x))


class DecoderBlock(EncoderBlock):
    def __init__(self, relative: bool) -> None:
        super().__init__(relative)
        self.attention.both_ways = False
        self.cross_norm, self.cross = Norm(), Attention()

    def forward(self, x: Tensor, mask: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
        normed = self.norm(x)
        x = x + self.attention(normed, normed, mask)
        x = x + self.cross(self.cross_norm(x), memory, memory_mask)
        return x + self.feed(self.feed_norm(x))


class T5(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder = nn.ModuleList(EncoderBlock(number == 0) for number in range(LAYERS))
        self.decoder = nn.ModuleList(DecoderBlock(number == 0) for number in range(LAYERS))
        self.encoder_norm, self.decoder_norm = Norm(), Norm()

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        """The logits of each next token. A source without a token stands for 'no condition', as in classifier-free guidance."""
        mask = source_mask[:, None, None, :]
        x = self.embed(source)
        for block in self.encoder:
            x = block(x, mask)
        memory, y = self.encoder_norm(x), self.embed(target)
        causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()
        for block in self.decoder:
            y = block(y, causal, memory, mask)
        return F.linear(self.decoder_norm(y) * WIDTH**-0.5, self.embed.weight)


def loss(logits: Tensor) -> Tensor:
    """Cross-entropy of copying the tokens that were read, which is enough to have gradients."""
    targets = torch.arange(logits.shape[0] * logits.shape[1]) % VOCABULARY
    return F.cross_entropy(logits.float().flatten(0, 1), targets)


def make() -> nn.Module:
    model = T5()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=1.0 if "embed" in name or "bias" in name else 1 / math.sqrt(parameter.shape[1]))
    with torch.no_grad():
        for block in (*model.encoder, *model.decoder):
            block.feed.up.weight.mul_(LARGE_UP)
            block.feed.out.weight.mul_(LARGE_OUT)
            block.attention.q.weight.mul_(HEAD_WIDTH**-0.5)
    return model


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(11)
    lengths = torch.tensor([SOURCE - 10, 0])
    return {
        "source": torch.randint(VOCABULARY, (ROWS, SOURCE), generator=generator),
        "source_mask": torch.arange(SOURCE) < lengths[:, None],
        "target": torch.randint(VOCABULARY, (ROWS, TARGET), generator=generator),
    }


optimizer = None
STEPS = 1
