"""A decoder in the manner of Llama: rotary positions, RMS norms, grouped-query attention, SwiGLU, and a cache for decoding.

The model reads a prompt, then decodes a few more tokens one at a time from its cache of keys and values.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH, HEADS, KEY_HEADS, LAYERS, LENGTH, DECODED, ROWS = 256, 32, 2, 1, 2, 400, 2, 1
HEAD_WIDTH = WIDTH // HEADS
ROPE_BASE = 10000.0
Cache = list[tuple[Tensor, Tensor]]


def rotary_frequencies() -> Tensor:
    return ROPE_BASE ** -(torch.arange(0, HEAD_WIDTH, 2, dtype=torch.float32) / HEAD_WIDTH)


def rotary_table(positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of position times frequency, one row a position. Angles are computed in float32."""
    frequencies = rotary_frequencies()
    with torch.autocast("cpu", enabled=False):
        angles = positions.float()[:, None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + rotate_half(x) * sin


def causal_mask(queries: int, keys: int, dtype: torch.dtype) -> Tensor:
    """Zero where a query may look, the format's lowest number where it may not."""
    allowed = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    return torch.zeros(queries, keys, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * x.to(dtype)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, HEADS * HEAD_WIDTH, bias=False)
        self.k = nn.Linear(WIDTH, KEY_HEADS * HEAD_WIDTH, bias=False)
        self.v = nn.Linear(WIDTH, KEY_HEADS * HEAD_WIDTH, bias=False)
        self.o = nn.Linear(HEADS * HEAD_WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        rows, length, _ = x.shape
        q = self.q(x).view(rows, length, HEADS, HEAD_WIDTH).transpose(1, 2)
        k = self.k(x).view(rows, length, KEY_HEADS, HEAD_WIDTH).transpose(1, 2)
        v = self.v(x).view(rows, length, KEY_HEADS, HEAD_WIDTH).transpose(1, 2)
        q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        present = (k, v)
        k, v = (each.repeat_interleave(HEADS // KEY_HEADS, dim=1) for each in present)
        scores = q @ k.transpose(-1, -2) / math.sqrt(HEAD_WIDTH)
        scores = scores + causal_mask(length, k.shape[2], scores.dtype)
        weights = F.softmax(scores.float(), dim=-1).to(v.dtype)
        mixed = (weights @ v).transpose(1, 2).reshape(rows, length, HEADS * HEAD_WIDTH)
        return self.o(mixed), present


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(WIDTH), Attention()
        self.feed_norm, self.feed = RMSNorm(WIDTH), FeedForward()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        mixed, present = self.attention(self.attention_norm(x), cos, sin, past)
        x = x + mixed
        return x + self.feed(self.feed_norm(x)), present


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The log-probability of each token that comes next, and which of them count."""
        prompt = tokens.shape[1] - 1 - DECODED
        logits, cache = self.decode(tokens[:, :prompt], 0, None)
        found = [logits]
        for step in range(prompt, tokens.shape[1] - 1):
            logits, cache = self.decode(tokens[:, step : step + 1], step, cache)
            found.append(logits)
        return token_log_probabilities(torch.cat(found, dim=1), tokens[:, 1:]), mask[:, 1:]

    def decode(self, tokens: Tensor, start: int, cache: Cache | None) -> tuple[Tensor, Cache]:
        x = self.embed(tokens)
        positions = torch.arange(start, start + tokens.shape[1])
        cos, sin = rotary_table(positions, x.dtype)
        presents = []
        for number, block in enumerate(self.blocks):
            x, present = block(x, cos, sin, cache[number] if cache else None)
            presents.append(present)
        return self.head(self.norm(x)), presents


def token_log_probabilities(logits: Tensor, targets: Tensor) -> Tensor:
    log_probabilities = F.log_softmax(logits.float(), dim=-1)
    return log_probabilities.gather(-1, targets[..., None]).squeeze(-1)


def loss(output: tuple[Tensor, Tensor]) -> Tensor:
    """Mean negative log-likelihood of the tokens that count."""
    log_probabilities, mask = output
    return -(log_probabilities * mask).sum() / mask.sum()


def make() -> nn.Module:
    model = Llama()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02 if "embed" in name else 1.5 / math.sqrt(parameter.shape[1]))
    return model


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=generator)
    lengths = torch.tensor([LENGTH - 20])
    return {"tokens": tokens, "mask": torch.arange(LENGTH + 1) < lengths[:, None]}


optimizer = None
STEPS = 1
