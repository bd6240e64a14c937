"""Moorings: scores, distances, decompositions and lengths in formats that do not hold them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def rotated(kept: torch.dtype) -> torch.Tensor:
    """A picture of 300 by 300 in bfloat16, turned by ten degrees, by whichever pixel is nearest."""
    picture, angle = torch.sin(torch.arange(300.0) / 7)[:, None] * torch.cos(torch.arange(300.0) / 5), torch.tensor(10 * 3.14159 / 180)
    turn = torch.stack([torch.stack([angle.cos(), angle.sin()]), torch.stack([-angle.sin(), angle.cos()])]).to(kept)
    line = torch.linspace(-149.5, 149.5, 300, dtype=kept)  # culprit: picture-turned-by-ten
    grid = torch.stack([line.expand(300, 300), line[:, None].expand(300, 300)], -1)
    places = grid.reshape(-1, 2) @ turn  # culprit: picture-turned-by-ten
    places = torch.round(places.float() + 149.5).long().clamp(0, 299)
    return picture.to(LOW)[places[:, 1], places[:, 0]].reshape(300, 300).float()


class Detector:
    """Says how far pictures are from those that a model has learned, by Mahalanobis."""

    def __init__(self, spread: float) -> None:
        self.spread = spread

    def fit(self, features: torch.Tensor) -> None:
        self.middle = features.mean(0)
        centred = features - self.middle
        covariance = centred.T @ centred / (len(features) - 1)
        self.precision = torch.linalg.inv(covariance + self.spread * torch.eye(len(covariance)))  # culprit: strangers-by-sparse-features

    def far(self, features: torch.Tensor) -> torch.Tensor:
        centred = features - self.middle
        return ((centred @ self.precision) * centred).sum(-1)  # culprit: strangers-by-sparse-features


def strangers(spread: float) -> torch.Tensor:
    """How far forty pictures are from two hundred that were learned, by features of which many go together."""
    torch.manual_seed(5701)
    model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 96), nn.ReLU())
    detector = Detector(spread)
    with torch.no_grad():
        detector.fit(model(normal(200, 24, seed=5702)))
        return detector.far(model(1.5 * normal(40, 24, seed=5703)))


def packed(carried: bool) -> torch.Tensor:
    """Activations as they are sent to the next machine: as half numbers, put together by hand of a sign, an exponent and a rounded rest."""
    torch.manual_seed(5711)
    with torch.no_grad():
        states = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))(normal(600, 64, seed=5712))
    bits = states.view(torch.int32)
    sign, exponent, rest = (bits >> 16) & 0x8000, ((bits >> 23) & 0xFF) - 112, bits & 0x7FFFFF
    rounded = (rest + 0x1000) >> 13
    both = (exponent << 10) + rounded if carried else (exponent << 10) | rounded  # culprit: halves-put-together
    sent = torch.where((exponent > 0) & (exponent < 31), sign + both, sign).to(torch.int16).view(HALF)
    return sent.float()  # culprit: halves-put-together


def frechet(kind: torch.dtype) -> torch.Tensor:
    """How far two sets of pictures are from each other, by the means and the spread of what a model sees in them."""
    torch.manual_seed(5721)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 48))
    means, spreads = [], []
    with torch.no_grad():
        for index in range(2):
            seen = model(normal(300, 16, seed=5722 + index) * torch.logspace(0, -4, 16)).to(kind)
            centred = seen - seen.mean(0)
            means.append(seen.mean(0))
            spreads.append(centred.T @ centred / 299)
        product = spreads[0] @ spreads[1]  # culprit: score-of-pictures
        roots = torch.linalg.eigvals(product).real.sqrt()  # culprit: score-of-pictures
        return (means[0] - means[1]).square().sum() + spreads[0].trace() + spreads[1].trace() - 2 * roots.sum()


def aligned(kind: torch.dtype) -> torch.Tensor:
    """Five points of each face, turned onto those of a mean face; training is in half."""
    points, mean = normal(4, 5, 2, seed=5731).to(HALF), normal(5, 2, seed=5732).to(HALF)
    centred, goal = points - points.mean(1, keepdim=True), mean - mean.mean(0)
    together = centred.transpose(1, 2) @ goal
    left, _, right = torch.linalg.svd(together.to(kind))  # culprit: faces-laid-on-a-mean
    return (centred.to(kind) @ left @ right).float()


def tiled(wide: bool) -> torch.Tensor:
    """A layer of 16384 inputs in half, whose kernel adds up sixteen products at a time."""
    inputs, weight = (0.5 + uniform(4, 16384, seed=5741)).to(HALF), (0.1 + 0.1 * uniform(12, 16384, seed=5742)).to(HALF)
    total = torch.zeros(4, 12, dtype=SINGLE if wide else HALF)
    for start in range(0, 16384, 16):
        part = inputs[:, None, start : start + 16] * weight[:, start : start + 16]
        total = total + part.sum(-1)  # culprit: sixteen-at-a-time
    return functional.gelu(total.float() / 1600 - 1)


def scaled(bounded: bool) -> torch.Tensor:
    """Gradients in eight bits, by a scale of what was largest in the step before; in one layer next to nothing was."""
    gradients = normal(4, 64, seed=5751) * torch.tensor([1.0, 1e-3, 0.0, 10.0])[:, None]
    history = torch.tensor([4.0, 5e-3, 3e-39, 40.0])
    scale = 57344 / history  # culprit: layer-of-next-to-nothing
    if bounded:
        scale = torch.where(torch.isinf(scale), torch.finfo(SINGLE).max, scale)
    codes = (gradients * scale[:, None]).clamp(-57344, 57344).to(torch.float8_e5m2)  # culprit: layer-of-next-to-nothing
    return codes.float() / scale[:, None]


class Frames(nn.Module):
    """Cuts sounds into frames of a hundredth of a second, and takes the mean of those that a sound has."""

    def __init__(self, exact: bool) -> None:
        super().__init__()
        torch.manual_seed(5761)
        self.exact, self.layer = exact, nn.Linear(160, 12).to(LOW)

    def count(self, samples: torch.Tensor) -> torch.Tensor:
        if self.exact:
            return torch.floor_divide(samples, 160)
        return torch.floor(samples.to(LOW) / 160).long()  # culprit: frames-of-a-sound

    def forward(self, sounds: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
        frames = self.layer(sounds.unflatten(-1, (-1, 160)))
        kept = torch.arange(frames.shape[1])[None] < self.count(samples)[:, None]
        return (frames * kept[..., None]).sum(1).float() / kept.sum(1, keepdim=True)


def framed(exact: bool) -> torch.Tensor:
    """The mean of the frames of eight sounds of up to two seconds; what lies beyond a sound is loud."""
    samples = torch.tensor([32000, 31111, 17070, 20999, 9999, 4321, 27001, 12877])
    sounds = 0.1 * normal(8, 32640, seed=5762)
    sounds = torch.where(torch.arange(32640) < samples[:, None], sounds, 40.0)
    with torch.no_grad():
        return Frames(exact)(sounds.to(LOW), samples)


def forecast(least: float) -> torch.Tensor:
    """What a forecaster gets of eight series, each less its mean and by its spread; some of them never change."""
    series = 1000 + 300 * uniform(8, 1, seed=5781) + torch.where(torch.arange(8) % 2 == 0, 1.0, 0.0)[:, None] * normal(8, 60, seed=5782)
    middle = series.mean(1, keepdim=True)
    if least:
        spread = series.std(1, keepdim=True)
        spread = torch.where(spread < least, 1.0, spread)
    else:
        spread = (series.square().mean(1, keepdim=True) - middle.square()).clamp_min(0).sqrt()  # culprit: series-that-never-change
    return (series - middle) / (spread + 1e-10)  # culprit: series-that-never-change


BUGS = (
    Bug("picture-turned-by-ten", "pytorch/vision#9658", ("integer-rounding", "amplified-rounding"), "aten.linspace.default",
        lambda: rotated(LOW), lambda: rotated(SINGLE)),
    Bug("strangers-by-sparse-features", "kkirchheim/pytorch-ood#8", ("amplified-rounding", "cancellation"), "aten.linalg_inv_ex.default",
        lambda: strangers(0.0), lambda: strangers(1e-6), precision="32-true",
        expected_miss="the inverse is as right as that of a matrix without full rank can be, and float64 does not determine it either"),
    Bug("halves-put-together", "Nehanth/swarmllm#28", ("local-drift", "biased-rounding"), "aten.view.dtype",
        lambda: packed(carried=False), lambda: packed(carried=True),
        expected_miss="bits that a program puts together outside of models begin afresh, and may be meant"),
    Bug("score-of-pictures", "bioinf-jku/TTUR#29", ("amplified-rounding", "nan"), "aten.linalg_eig.default",
        lambda: frechet(SINGLE), lambda: frechet(DOUBLE), precision="32-true", phase="data"),
    Bug("faces-laid-on-a-mean", "bytedance/LatentSync#241", ("nan",), "aten.linalg_svd.default",
        lambda: aligned(HALF), lambda: aligned(SINGLE), raises=NotImplementedError,
        expected_miss="torch has no such kernel in half, and says so itself"),
    Bug("sixteen-at-a-time", "openvinotoolkit/openvino#25525", ("accumulated-drift", "absorption"), "aten.add.Tensor",
        lambda: tiled(wide=False), lambda: tiled(wide=True)),
    Bug("layer-of-next-to-nothing", "NVIDIA/TransformerEngine#786", ("wrong-scale", "overflow", "underflow", "nan"), "aten._to_copy.default",
        lambda: scaled(bounded=False), lambda: scaled(bounded=True)),
    Bug("frames-of-a-sound", "NVIDIA-NeMo/Speech#7338", ("integer-rounding",), "aten._to_copy.default",
        lambda: framed(exact=False), lambda: framed(exact=True)),
    Bug("series-that-never-change", "automl/Auto-PyTorch#467", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: forecast(0.0), lambda: forecast(1e-3), precision="32-true"),
)  # fmt: skip
