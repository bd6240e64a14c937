"""A language model without attention: each channel remembers an average of values, weighted by exponentials of keys that fade with time."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

STEPS = 1
VOCABULARY, WIDTH, LENGTH, LAYERS, SCALE, PENALTY = 101, 64, 56, 2, 16.0, 5e-3


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def log_decay(raw: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """By how much a channel fades from a token to the next, as a logarithm, which is negative."""
    return -torch.exp(raw.float())


def remembered(key: torch.Tensor, value: torch.Tensor, fade: torch.Tensor, bonus: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The weighted average of all values so far, for each token. The largest exponent is taken off all of them."""
    key, value, fade, bonus = key.float(), value.float(), fade.float(), bonus.float()
    above, below = torch.zeros_like(key[:, 0]), torch.zeros_like(key[:, 0])
    largest, found = torch.full_like(key[:, 0], -1e4), []
    for k, v in zip(key.unbind(1), value.unbind(1), strict=True):
        top = torch.maximum(largest, bonus + k)
        old, new = torch.exp(largest - top), torch.exp(bonus + k - top)
        found.append((old * above + new * v) / (old * below + new))
        kept = largest + fade
        top = torch.maximum(kept, k)
        old, new = torch.exp(kept - top), torch.exp(k - top)
        above, below, largest = old * above + new * v, old * below + new, top
    return torch.stack(found, 1).float()


def shifted(x: torch.Tensor) -> torch.Tensor:
    """Each token's predecessor."""
    return functional.pad(x, (0, 0, 1, -1))


class Penalised(torch.autograd.Function):
    """Hands the loss through, and adds to the gradient of each token's largest logit, so that logits stay small."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(logits)
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (logits,) = ctx.saved_tensors
        largest, at = logits.max(-1, keepdim=True)
        factor = PENALTY / (logits.shape[0] * logits.shape[1])
        return gradient, torch.zeros_like(logits).scatter(-1, at, largest * factor) * gradient


class TimeMix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.rand(3, WIDTH))
        self.decay, self.bonus = nn.Parameter(torch.linspace(-6.0, -3.0, WIDTH)), nn.Parameter(0.3 * torch.randn(WIDTH))
        self.gate, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low, before = low_dtype(self.mix), shifted(x)
        g, k, v = (x * m + before * (1 - m) for m in self.mix)
        g, k, v = torch.sigmoid(self.gate(g)), self.key(k), self.value(v)
        with torch.autocast(x.device.type, enabled=False):
            y = remembered(k, v, log_decay(self.decay, low), self.bonus, low)
        return self.out(g * y.to(g.dtype))


class ChannelMix(nn.Module):
    """The square of a rectifier; its hidden numbers are large, so they are divided before and multiplied after."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.rand(2, WIDTH))
        self.gate, self.key = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.value = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = shifted(x)
        g, k = (x * m + before * (1 - m) for m in self.mix)
        hidden = torch.relu(self.key(k) / SCALE).square()
        return torch.sigmoid(self.gate(g)) * self.value(hidden) * SCALE


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.first = nn.Embedding(VOCABULARY, WIDTH), nn.LayerNorm(WIDTH)
        self.times, self.channels = (nn.ModuleList(kind() for _ in range(LAYERS)) for kind in (TimeMix, ChannelMix))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.first(self.words(words))
        for at, (time, channel) in enumerate(zip(self.times, self.channels, strict=True)):
            x = x + time(self.norms[2 * at](x))
            x = x + channel(self.norms[2 * at + 1](x))
        logits = self.head(self.norm(x))
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), words[:, 1:].flatten())
        return Penalised.apply(loss, logits.float())


def make() -> nn.Module:
    """The channels' keys are large, as they are after training."""
    torch.manual_seed(0)
    model = Model()
    with torch.no_grad():
        for time, channel in zip(model.times, model.channels, strict=True):
            time.key.weight.mul_(7)
            channel.key.weight.mul_(150)
            channel.value.weight.mul_(0.002)
    return model


def batch() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (3, LENGTH), generator=torch.Generator().manual_seed(1))


def loss(output: torch.Tensor) -> torch.Tensor:
    return output


optimizer = None
