"""Short trainings of small models, each as its documentation says that it is done."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from bugs.bug import normal
from torch import nn
from torch.nn import functional

LOW = torch.bfloat16
Make = Callable[[], nn.Module]


def seeded(make: Make) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


class Layer(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.before, self.between = size, nn.LayerNorm(size), nn.LayerNorm(size)
        self.mix, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.wide = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mix(self.before(x)).unflatten(-1, (3, 2, self.size // 2)).permute(2, 0, 3, 1, 4)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.wide(self.between(x))


class Language(nn.Module):
    """A decoder of two layers."""

    def __init__(self, words: int = 50, size: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, size), nn.Embedding(16, size)
        self.layers, self.norm, self.head = nn.Sequential(Layer(size), Layer(size)), nn.LayerNorm(size), nn.Linear(size, words, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(self.words(ids) + self.places(torch.arange(ids.shape[1])))))


class Experts(nn.Module):
    """The best two of four experts by a float32 router, with a loss for balance."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.router, self.head = nn.Linear(size, 4, bias=False), nn.Linear(size, 8)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(size, 32), nn.SiLU(), nn.Linear(32, size)) for _ in range(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", enabled=False):
            shares = torch.softmax(functional.linear(x.float(), self.router.weight), -1)
        weights, chosen = shares.topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        mixed = sum((weights * (chosen == place)).sum(-1, keepdim=True) * expert(x) for place, expert in enumerate(self.experts))
        load = functional.one_hot(chosen, 4).float().mean((0, 1))
        return self.head(mixed), 4 * (load * shares.mean(0)).sum()


class Adapter(nn.Module):
    """A frozen linear layer with a low-rank update, whose second half starts at zero."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, 4, bias=False), nn.Linear(4, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + 2 * self.up(self.down(x))


def ids() -> torch.Tensor:
    return torch.arange(64).reshape(4, 16) * 7 % 50


def next_word(logits: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids()[:, 1:].flatten())


def language() -> list[float]:
    """AdamW under bfloat16 autocast, clipped, with warm-up."""
    model, losses = seeded(Language), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    for _ in range(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=LOW):
            logits = model(ids())
        loss = next_word(logits)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warmup.step()
        losses.append(float(loss.detach()))
    return losses


def scaled(start: float = 2.0**16) -> list[float]:
    """200 steps of float16 autocast under a GradScaler that grows on its way, on targets that are mostly noise."""
    model, losses = seeded(lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler, x, y = torch.amp.GradScaler("cpu", init_scale=start, growth_interval=40), normal(64, 8, seed=1), normal(64, 2, seed=2)
    for _ in range(200):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x)
        loss = functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
    return losses


def autocast_steps(model: nn.Module, loss: Callable[[], torch.Tensor], steps: int = 5, rate: float = 0.05) -> list[float]:
    optimizer, losses = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=rate, momentum=0.9), []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=LOW):
            value = loss()
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    return losses


def convolutions() -> list[float]:
    """Batch norm in training, then one batch in evaluation."""
    stem = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(*stem, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    for convolution in (model[0], model[4]):
        nn.init.kaiming_normal_(convolution.weight, generator=torch.Generator().manual_seed(0))
    images = normal(8, 3, 12, 12, seed=1)
    losses = autocast_steps(model, lambda: functional.cross_entropy(model(images).float(), torch.arange(8) % 5))
    model.eval()
    with torch.no_grad():
        assert math.isfinite(float(model(images).sum()))
    return losses


def recurrent() -> list[float]:
    model = seeded(lambda: nn.ModuleDict({"cells": nn.LSTM(6, 12, batch_first=True), "head": nn.Linear(12, 3)}))
    x = normal(4, 10, 6, seed=1)
    return autocast_steps(model, lambda: functional.cross_entropy(model["head"](model["cells"](x)[0][:, -1]).float(), torch.arange(4) % 3))


def experts() -> list[float]:
    model, x = seeded(Experts), normal(48, 16, seed=1)

    def loss() -> torch.Tensor:
        logits, balance = model(x)
        return functional.cross_entropy(logits.float(), torch.arange(48) % 8) + 0.01 * balance

    return autocast_steps(model, loss)


def adapted() -> list[float]:
    model = seeded(lambda: nn.Sequential(Adapter(nn.Linear(12, 24)), nn.GELU(), Adapter(nn.Linear(24, 6))))
    x = normal(16, 12, seed=1)
    return autocast_steps(model, lambda: functional.cross_entropy(model(x).float(), torch.arange(16) % 6))


TRAININGS = (language, scaled, convolutions, recurrent, experts, adapted)
