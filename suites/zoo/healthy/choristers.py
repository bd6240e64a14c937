"""Beside the rehearsals: features with spread in all bands, calm spikes, norms of calm numbers, small windows, a loss that takes its scale."""

from __future__ import annotations

from typing import Any

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF = torch.float16


def bands_with_speech() -> torch.Tensor:
    """Mean and spread of bands in float32, by sums of squares less squared means; speech is in every band."""
    total, squares, frames = torch.zeros(10), torch.zeros(10), 0
    corpus = [12 + torch.linspace(3, 6, 10) * normal(120, 10, seed=7601 + index) for index in range(16)]
    for features in corpus:
        total += features.sum(0)
        squares += features.square().sum(0)
        frames += len(features)
    mean = total / frames
    return (corpus[3] - mean) / (squares / frames - mean.square()).sqrt()


class Calm(torch.autograd.Function):
    """A spike whose derivative is written with an exponential; the slope is low."""

    @staticmethod
    def forward(ctx: Any, membrane: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(membrane)
        return (membrane > 0).float()

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> torch.Tensor:
        (membrane,) = ctx.saved_tensors
        decay = torch.exp(-2 * membrane)
        return upstream * 2 * decay / (decay + 1) ** 2


def spikes_now_and_then() -> torch.Tensor:
    """Weights of leaky neurons after three steps in float32, whose membranes stay within a few thresholds."""
    torch.manual_seed(7621)
    first, second = nn.Linear(16, 24), nn.Linear(24, 5)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.05)
    x, label = normal(12, 16, seed=7622), (5 * uniform(12, seed=7623)).long()
    for _ in range(3):
        hidden, out = torch.zeros(12, 24), torch.zeros(12, 5)
        for _ in range(6):
            hidden = 0.9 * hidden + first(x)
            spikes = Calm.apply(hidden - 1)
            hidden, out = hidden - spikes.detach(), 0.9 * out + second(spikes)
        optimizer.zero_grad()
        functional.cross_entropy(out, label).backward()
        optimizer.step()
    return first.weight.detach()


def norm_over_calm_numbers() -> torch.Tensor:
    """A norm in plain ops in half, with squares; no number is beyond a hundred."""
    torch.manual_seed(7631)
    mlp = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)).to(HALF)
    x = normal(6, 16, 32, seed=7632)
    x[..., 5] = 50 + 5 * x[..., 5]
    x = x.to(HALF)
    with torch.no_grad():
        for _ in range(2):
            c = x - x.mean((1, 2), keepdim=True)
            x = x + mlp(c / torch.sqrt(c.pow(2).mean((1, 2), keepdim=True) + 1e-5))
        return x.float()


def windows_by_small_sums() -> torch.Tensor:
    """Means and variances of windows by running sums in float32, of pictures of 24 by 24 that are centred and rich in contrast."""
    x = normal(2, 3, 24, 24, seed=7642)

    def average(values: torch.Tensor) -> torch.Tensor:
        sums = functional.pad(values.cumsum(-1).cumsum(-2), (1, 0, 1, 0))
        return (sums[..., 5:, 5:] + sums[..., :-5, :-5] - sums[..., :-5, 5:] - sums[..., 5:, :-5]) / 25

    mean = average(x)
    return (x[..., 2:-2, 2:-2] - mean) / (average(x.square()) - mean.square() + 1e-6).sqrt()


def words_that_may_go_together() -> torch.Tensor:
    """Negative sampling in float32 by logarithms of sigmoids; scores are a few units."""
    torch.manual_seed(7651)
    weight = nn.Parameter(0.3 * torch.randn(8, 8, 15))
    optimizer = torch.optim.SGD([weight], lr=1e-2)
    for step in range(4):
        shapes = enumerate(((10, 15), (10, 8), (10, 8), (10, 5, 8)))
        context, left, right, others = (normal(*shape, seed=7652 + 10 * step + index) for index, shape in shapes)
        row = torch.einsum("bi,ijk,bk->bj", left, weight, context) / 8
        chance, chances = torch.sigmoid((row * right).sum(-1)), torch.sigmoid(-torch.einsum("bj,bnj->bn", row, others))
        optimizer.zero_grad()
        (-(chance.log() + chances.log().sum(1)).mean()).backward()
        optimizer.step()
    return weight.detach()


class Together(torch.autograd.Function):
    """A loss that computes its gradient in the same call, and scales it by what comes from above."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            inputs = logits.detach().float().requires_grad_()
            loss = functional.cross_entropy(inputs, labels)
            (gradient,) = torch.autograd.grad(loss, inputs)
        ctx.save_for_backward(gradient)
        return loss.detach()

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream, None


def loss_that_takes_its_scale() -> torch.Tensor:
    """A classifier under autocast in half with a loss scale of thousands, whose loss is a function of its own."""
    torch.manual_seed(7661)
    model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 6))
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-2), torch.amp.GradScaler("cpu", init_scale=4096.0)
    for step in range(5):
        with torch.autocast("cpu", torch.float16):
            logits = model(normal(24, 20, seed=7663 + step))
        loss = Together.apply(logits, (6 * uniform(24, seed=7673 + step)).long())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return model[0].weight.detach()


def voice_by_a_calm_vocoder() -> torch.Tensor:
    """Sound of features, all in half, by upsamplers whose weights are as large as they were at first."""
    torch.manual_seed(7671)
    ups, out = [nn.ConvTranspose1d(16, 16, 4, 2, 1).to(HALF) for _ in range(3)], nn.Conv1d(16, 1, 7, padding=3).to(HALF)
    x = (8 * normal(2, 16, 30, seed=7672)).to(HALF)
    with torch.no_grad():
        for up in ups:
            x = up(functional.leaky_relu(x, 0.1))
        return torch.tanh(out(x)).float()


IDIOMS = (
    bands_with_speech,
    spikes_now_and_then,
    norm_over_calm_numbers,
    windows_by_small_sums,
    words_that_may_go_together,
    loss_that_takes_its_scale,
    voice_by_a_calm_vocoder,
)
EXACT = ("bands_with_speech", "spikes_now_and_then", "windows_by_small_sums", "words_that_may_go_together")
