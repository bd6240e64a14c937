"""Likelihoods and chances: counts of genes, tails of a forecast, a flow that is run back, wealth, calibration, agreement, a tomogram."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class CountDecoder(nn.Module):
    """Logarithms of the chances of counts, of which a network says the mean and a gene its inverse dispersion."""

    def __init__(self, width: int, genes: int, single: bool) -> None:
        super().__init__()
        self.mean, self.dispersion, self.single = nn.Linear(width, genes), nn.Parameter(torch.zeros(genes)), single

    def forward(self, hidden: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        log_mean = self.mean(hidden)
        mean = (log_mean.float() if self.single else log_mean).exp()
        theta, counts = self.dispersion.exp().to(mean.dtype), counts.to(mean.dtype)
        log_both = torch.log(theta + mean)
        chances = theta * (torch.log(theta) - log_both) + counts * (torch.log(mean) - log_both)  # culprit: counts-of-a-steady-gene
        ways = torch.lgamma(counts + theta) - torch.lgamma(theta) - torch.lgamma(counts + 1)  # culprit: counts-of-a-steady-gene
        return chances + ways


def counted(single: bool) -> torch.Tensor:
    """The loss of each of 24 cells by a decoder under autocast, for genes whose spread is near that of Poisson."""
    decoder = CountDecoder(8, 30, single)
    with torch.no_grad():
        decoder.mean.weight.copy_(0.2 * normal(30, 8))
        decoder.mean.bias.copy_(1 + uniform(30, seed=1))
        decoder.dispersion.copy_(4 + 2.5 * uniform(30, seed=2))
        counts = (3 + 5 * uniform(24, 30, seed=3)).round()
        with torch.autocast("cpu", HALF):
            return -decoder(normal(24, 8, seed=4), counts).float().sum(-1)


class StudentForecast(nn.Module):
    """The loss of a forecast with heavy tails: a place and a width for each hour, and degrees of freedom that are given."""

    def __init__(self, width: int, freedom: float, single: bool) -> None:
        super().__init__()
        self.head, self.freedom, self.single = nn.Linear(width, 2), freedom, single

    def forward(self, hidden: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        place, width = self.head(hidden).unbind(-1)
        if self.single:
            place, width = place.float(), width.float()
        scale, seen = functional.softplus(width), seen.to(place.dtype)
        tail = torch.log(1 + ((seen - place) / scale).square() / self.freedom)  # culprit: tails-that-are-nearly-normal
        constant = math.lgamma(self.freedom / 2) - math.lgamma((self.freedom + 1) / 2) + 0.5 * math.log(math.pi * self.freedom)
        return constant + torch.log(scale) + (self.freedom + 1) / 2 * tail


def forecast(single: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The losses of 96 hours, and the gradient of the head for their sum, under autocast."""
    model = StudentForecast(12, 600.0, single)
    with torch.no_grad():
        model.head.weight.copy_(normal(2, 12) / 8)
        model.head.bias.copy_(torch.tensor([0.2, 0.4]))
    with torch.autocast("cpu", LOW):
        losses = model(normal(96, 12, seed=1), 0.8 * normal(96, seed=2))
    losses.float().sum().backward()
    assert model.head.weight.grad is not None
    return losses.detach().float(), model.head.weight.grad


class Coupling(nn.Module):
    """Half of the channels move and stretch the other half; the way back is exact on paper."""

    def __init__(self, seed: int, single: bool) -> None:
        super().__init__()
        self.net, self.single = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 12)), single
        with torch.no_grad():
            for index, each in enumerate(self.net.parameters()):
                each.copy_(normal(*each.shape, seed=seed + index) / each.shape[-1] ** 0.5)

    def shift_and_scale(self, held: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shift, logit = self.net(held).chunk(2, -1)
        if self.single:
            shift, logit = shift.float(), logit.float()
        return 2 * shift, torch.sigmoid(logit) + 0.05

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held, other = x.chunk(2, -1)
        shift, scale = self.shift_and_scale(held)
        return torch.cat([(other.to(shift.dtype) + shift) * scale, held.to(shift.dtype)], -1)  # culprit: flow-that-is-run-back

    def back(self, z: torch.Tensor) -> torch.Tensor:
        other, held = z.chunk(2, -1)
        shift, scale = self.shift_and_scale(held)
        return torch.cat([held.to(shift.dtype), other / scale - shift], -1)  # culprit: flow-that-is-run-back


def run_back(single: bool) -> torch.Tensor:
    """What eight couplings make of 32 latents on the way there and back, under autocast."""
    layers = [Coupling(10 * layer, single) for layer in range(8)]
    with torch.no_grad(), torch.autocast("cpu", LOW):
        found = normal(32, 12, seed=3)
        for layer in layers:
            found = layer(found)
        for layer in reversed(layers):
            found = layer.back(found)
    return found.float()


def wealth(returns: torch.Tensor, by_logarithms: bool) -> torch.Tensor:
    """What one invested at first is worth after each day."""
    if by_logarithms:
        return torch.log1p(returns.float()).cumsum(0).exp()
    return (1 + returns).cumprod(0)  # culprit: wealth-of-a-strategy


def back_test(by_logarithms: bool) -> torch.Tensor:
    """Three years of a strategy by four seeds, as a model's positions in bfloat16 earned it."""
    positions = torch.tanh(normal(750, 4)).to(LOW)
    market = (0.0006 * positions.float().sign() + 0.004 * normal(750, 4, seed=1)).to(LOW)
    return wealth(positions * market, by_logarithms).float()


class Calibration(nn.Module):
    """How far confidence is from accuracy, by bins of confidence, whose sums are added to batch by batch."""

    count: torch.Tensor
    hits: torch.Tensor
    sure: torch.Tensor

    def __init__(self, bins: int) -> None:
        super().__init__()
        self.bins = bins
        for name in ("count", "hits", "sure"):
            self.register_buffer(name, torch.zeros(bins))

    def update(self, confidence: torch.Tensor, right: torch.Tensor) -> None:
        held = functional.one_hot((confidence * self.bins).long().clamp(max=self.bins - 1), self.bins).to(confidence.dtype)
        self.count += held.sum(0)  # culprit: confidence-by-bins
        self.sure += (held * confidence[:, None]).sum(0)  # culprit: confidence-by-bins
        self.hits += (held * right[:, None]).sum(0)  # culprit: confidence-by-bins

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        gap = (self.hits - self.sure) / self.count.clamp(min=1)  # culprit: confidence-by-bins
        return gap, (gap.abs() * self.count).sum() / self.count.sum()


def calibrated(single: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Gaps of 8000 answers of a classifier that is too sure, and their mean; the metric is cast with the model, and what it is given."""
    metric = Calibration(5).to(WIDE if single else LOW)
    for step in range(50):
        logits = 2.4 * normal(160, 8, seed=step)
        confidence, answer = torch.softmax(logits, -1).max(-1)
        right = uniform(160, seed=200 + step) < torch.softmax(0.7 * logits, -1).gather(1, answer[:, None])[:, 0]
        metric.update(confidence.to(metric.count.dtype), right.to(metric.count.dtype))
    gap, mean = metric()
    return gap.float(), mean.float()


class Agreement(nn.Module):
    """Kappa of predicted and true classes of pixels, whose table is a buffer."""

    table: torch.Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.register_buffer("table", torch.zeros(classes, classes))

    def update(self, predicted: torch.Tensor, truth: torch.Tensor) -> None:
        pairs = torch.bincount((truth * self.classes + predicted).flatten(), minlength=self.classes**2)
        self.table += pairs.view(self.classes, self.classes).to(self.table.dtype)  # culprit: agreement-beyond-chance

    def forward(self) -> torch.Tensor:
        total = self.table.sum()
        observed = self.table.diagonal().sum() / total
        expected = (self.table.sum(0) * self.table.sum(1)).sum() / total**2  # culprit: agreement-beyond-chance
        return (observed - expected) / (1 - expected)


def agreed(half: bool) -> torch.Tensor:
    """Kappa over ten batches of masks, by a metric that is a part of the model and is cast with it."""
    metric = Agreement(4)
    if half:
        metric.half()
    for step in range(10):
        truth = (4 * uniform(4, 32, 32, seed=step)).long()
        wrong = uniform(4, 32, 32, seed=50 + step) < 0.3
        metric.update(torch.where(wrong, (4 * uniform(4, 32, 32, seed=70 + step)).long(), truth), truth)
    return metric().float()


def standardised(volume: torch.Tensor, crop: int) -> torch.Tensor:
    """A volume less its mean and divided by its spread, both of a part in the middle."""
    middle = len(volume) // 2
    part = volume[middle - crop : middle + crop]
    mean = part.mean()
    spread = (part - mean).square().mean().sqrt()  # culprit: tomogram-in-half
    return (volume - mean) / spread


def tomogram(single: bool) -> torch.Tensor:
    """Four slices of a tomogram that a file holds in half, with grey levels up to two thousand."""
    volume = (600 * normal(12, 24, 24) + 150).to(HALF)
    return standardised(volume.float() if single else volume, 3)[:4].float()


BUGS = (
    Bug("counts-of-a-steady-gene", "scverse/scvi-tools#2965", ("cancellation", "amplified-rounding"), "aten.sub.Tensor", lambda: counted(False),
        lambda: counted(True)),
    Bug("tails-that-are-nearly-normal", "JuliaStats/StatsFuns.jl#165", ("amplified-rounding", "cancellation"), "aten.add.Tensor",
        lambda: forecast(False), lambda: forecast(True)),
    Bug("flow-that-is-run-back", "facebookresearch/SlowFast#641", ("amplified-rounding", "cancellation"), "aten.sub.Tensor", lambda: run_back(False),
        lambda: run_back(True), module="Coupling",
        expected_miss="each of sixteen layers makes the error at most twice as large, as the layers of a network do: no op and no loop loses it"),
    Bug("wealth-of-a-strategy", "quantopian/alphalens#257", ("absorption", "amplified-rounding", "local-drift"), "aten.add.Tensor",
        lambda: back_test(False), lambda: back_test(True)),
    Bug("confidence-by-bins", "Lightning-AI/torchmetrics#3510", ("integer-rounding", "absorption", "cancellation"), "aten.add_.Tensor",
        lambda: calibrated(False), lambda: calibrated(True)),
    Bug("agreement-beyond-chance", "PaddlePaddle/PaddleSeg#1788", ("overflow", "integer-rounding"), "aten.add_.Tensor", lambda: agreed(True),
        lambda: agreed(False)),
    Bug("tomogram-in-half", "IsoNet-cryoET/IsoNet2#34", ("overflow",), "aten.pow.Tensor_Scalar", lambda: tomogram(False), lambda: tomogram(True)),
)  # fmt: skip
