"""Bellows: voices, quiet recordings, features in a stream, points of a cloud, colours of fields, poses on a sphere."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, SINGLE = torch.float16, torch.float32


class XiVectorPooling(nn.Module):
    """The mean of a recording's frames, each of which says by itself how much it is to be trusted."""

    def __init__(self, width: int, most: float | None) -> None:
        super().__init__()
        self.frames, self.log_precision = nn.Linear(width, width), nn.Linear(width, width)
        self.prior_mean, self.prior_log_precision = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        self.most = most

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z, log_precision = self.frames(x), self.log_precision(x)
        if self.most is not None:
            log_precision = log_precision.clamp(-self.most, self.most)
        precision = torch.exp(log_precision)  # culprit: voice-that-is-trusted
        prior = torch.exp(self.prior_log_precision)
        total = precision.sum(1) + prior  # culprit: voice-that-is-trusted
        return ((precision * z).sum(1) + prior * self.prior_mean) / total


class SpeakerNet(nn.Module):
    """Frames to an embedding by two layers, pooling and a projection."""

    def __init__(self, most: float | None) -> None:
        super().__init__()
        torch.manual_seed(9301)
        self.encoder = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.LayerNorm(32))
        self.pooling, self.project = XiVectorPooling(32, most), nn.Linear(32, 12)
        with torch.no_grad():
            self.pooling.log_precision.weight *= 6  # as it is after training

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.normalize(self.project(self.pooling(self.encoder(x))), dim=-1)


def verified(most: float | None) -> torch.Tensor:
    """The scores of three pairs of recordings, by a network in half."""
    net, scores = SpeakerNet(most).to(HALF), []
    with torch.no_grad():
        for pair in range(3):
            voice = normal(1, 1, 20, seed=9302 + pair)
            enrolled, tested = (net((voice + normal(2, 80, 20, seed=9312 + 2 * pair + each)).to(HALF)) for each in range(2))
            scores.append((enrolled * tested).sum(-1).float())
    return torch.stack(scores)


class STFTLoss(nn.Module):
    """The logarithm of magnitudes is compared, at one resolution."""

    def __init__(self, size: int, hop: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.size, self.hop, self.dtype, self.eps = size, hop, dtype, 1e-8
        self.register_buffer("window", torch.hann_window(size))

    def magnitude(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.stft(x, self.size, self.hop, window=self.window, return_complex=True)
        real, imaginary = spectrum.real.to(self.dtype), spectrum.imag.to(self.dtype)
        power = real**2 + imaginary**2  # culprit: quiet-recording
        return torch.sqrt(torch.clamp(power, min=self.eps))  # culprit: quiet-recording

    def forward(self, guess: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        first, second = self.magnitude(guess), self.magnitude(target)
        return (torch.log(first) - torch.log(second)).abs().float().mean()  # culprit: quiet-recording


def resolutions(dtype: torch.dtype) -> torch.Tensor:
    """The loss of an enhanced recording which fades out, at three resolutions, and in four parts of it."""
    losses = []
    for part in range(4):
        fade = 10 ** (-1.2 * part) * torch.linspace(1, 0.1, 2048)
        target = 0.1 * fade * torch.sin(0.05 * torch.arange(2048)) + 0.01 * fade * normal(2048, seed=9321 + part)
        guess = 0.9 * target + 0.005 * fade * normal(2048, seed=9331 + part)
        for size in (128, 256, 512):
            losses.append(STFTLoss(size, size // 4, dtype)(guess[None], target[None]))
    return torch.stack(losses)


class ExponentialVariance:
    """The variance of a stream, in which what is old is forgotten."""

    def __init__(self, features: int, fading: float, centred: bool) -> None:
        self.fading, self.centred, self.seen = fading, centred, False
        self.mean, self.square, self.spread = (torch.zeros(features) for _ in range(3))

    def update(self, x: torch.Tensor) -> None:
        if not self.seen:
            self.mean, self.square, self.seen = x.clone(), x**2, True
            return
        apart = x - self.mean
        self.mean = self.mean + self.fading * apart
        self.square = self.fading * x**2 + (1 - self.fading) * self.square
        self.spread = (1 - self.fading) * (self.spread + self.fading * apart**2)

    def get(self) -> torch.Tensor:
        return self.spread if self.centred else self.square - self.mean**2  # culprit: features-in-a-stream


def scaled(centred: bool) -> torch.Tensor:
    """Sixty readings of six gauges, each scaled by what was seen of the gauge until then."""
    levels, variance, given = 800 + 700 * uniform(6, seed=9341), ExponentialVariance(6, 0.3, centred), []
    for turn in range(60):
        reading = levels + 0.02 * normal(6, seed=9342 + turn)
        variance.update(reading)
        if turn >= 5:
            given.append((reading - variance.mean) / variance.get().sqrt())
    return torch.stack(given)


def pairwise_dists(x: torch.Tensor, y: torch.Tensor, expanded: bool) -> torch.Tensor:
    """Euclidean distances of the rows of `x` and of `y`."""
    if not expanded:
        return (x[:, None] - y).norm(dim=-1)
    dists = -2 * (x @ y.T)
    dists += (x**2).sum(1)[:, None]
    dists += (y**2).sum(1)  # culprit: points-of-a-cloud
    return torch.sqrt(dists)  # culprit: points-of-a-cloud


def grouped(expanded: bool) -> torch.Tensor:
    """How far the five nearest of eighty points of a scan are from each, and the mean of what each group of them says."""
    points = torch.tensor([12.0, -7.0, 3.0]) + 0.5 * normal(80, 3, seed=9401)
    features, found = normal(80, 4, seed=9402), []
    for _ in range(2):
        distances = pairwise_dists(points, points, expanded)
        near, which = distances.topk(5, dim=1, largest=False)
        found += [near.mean(1), features[which].mean(1).norm(dim=1)]
        points = points + 0.1 * (points[which].mean(1) - points)
    return torch.stack(found)


class SpectralAngle(nn.Module):
    """The mean angle between what a field reflects and what is predicted of it, in degrees."""

    def __init__(self, by_cosine: bool) -> None:
        super().__init__()
        self.by_cosine = by_cosine

    def forward(self, guess: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        one, two = (each.flatten(2).transpose(1, 2).flatten(0, 1) for each in (guess, target))
        if self.by_cosine:
            lengths = torch.sqrt((one**2).sum(1)) * torch.sqrt((two**2).sum(1))
            cosine = (one * two).sum(1) / lengths  # culprit: colours-of-fields
            return (torch.acos(cosine) * 180 / torch.pi).mean()  # culprit: colours-of-fields
        one, two = functional.normalize(one, dim=1), functional.normalize(two, dim=1)
        return (2 * torch.atan2((one - two).norm(dim=1), (one + two).norm(dim=1)) * 180 / torch.pi).mean()


def cleared(by_cosine: bool) -> torch.Tensor:
    """Losses of three pictures whose clouds are taken away; where there were none, nothing is changed."""
    measure, losses = SpectralAngle(by_cosine), []
    for picture in range(3):
        target = 0.05 + 0.6 * uniform(1, 12, 10, 10, seed=9411 + picture)
        cloudy = uniform(1, 1, 10, 10, seed=9421 + picture) > 0.6
        guess = torch.where(cloudy, target + 0.05 * normal(1, 12, 10, 10, seed=9431 + picture), 1.0000001 * target)
        losses.append(measure(guess, target) + (guess - target).abs().mean())
    return torch.stack(losses)


class Sphere:
    """Unit vectors, with distances along great circles."""

    def __init__(self, chord: bool) -> None:
        self.chord = chord

    def dist(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.chord:
            return 2 * torch.asin(((x - y).norm(dim=-1) / 2).clamp(max=1))
        inner = (x * y).sum(-1).clamp(-1, 1)
        return torch.acos(inner)  # culprit: pose-on-a-sphere

    def step(self, x: torch.Tensor, slope: torch.Tensor, rate: float) -> torch.Tensor:
        along = slope - (slope * x).sum(-1, keepdim=True) * x
        return functional.normalize(x - rate * along, dim=-1)


def averaged(chord: bool) -> torch.Tensor:
    """Where the mean of some directions is, found in six steps from ones near by; some are almost there already."""
    sphere = Sphere(chord)
    goals = functional.normalize(normal(16, 3, seed=9441), dim=-1)
    apart = torch.cat([torch.full((8, 1), 2e-4), torch.full((8, 1), 0.3)])
    x = functional.normalize(goals + apart * normal(16, 3, seed=9442), dim=-1)
    for _ in range(6):
        x.requires_grad_()
        loss = sphere.dist(x, goals).pow(2).sum()
        slope = torch.autograd.grad(loss, x)[0]
        x = sphere.step(x.detach(), slope, 0.1)
    return x.detach() - goals


BUGS = (
    Bug("voice-that-is-trusted", "wenet-e2e/wespeaker#456", ("overflow",), "aten.sum.dim_IntList",
        lambda: verified(None), lambda: verified(4.0), module="pooling"),
    Bug("quiet-recording", "csteinmetz1/auraloss#63", ("vanished-constant", "underflow"), "aten.clamp.default",
        lambda: resolutions(HALF), lambda: resolutions(SINGLE), module="STFTLoss"),
    Bug("features-in-a-stream", "online-ml/river#981", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: scaled(centred=False), lambda: scaled(centred=True), precision="32-true",
        wrong_line="the difference from the mean is told first, since it comes first: a hundredth of it is the rounding of the reading",
        twin_accused="readings of a thousand that vary by a fiftieth are rounded by a hundredth of that, and so it is in the twin"),
    Bug("points-of-a-cloud", "rsokl/Learning_Python#164", ("cancellation", "amplified-rounding", "nan"), "aten.add_.Tensor",
        lambda: grouped(expanded=True), lambda: grouped(expanded=False), precision="32-true"),
    Bug("colours-of-fields", "G-pz/HPN-CR#4", ("amplified-rounding", "nan"), "aten.acos.default",
        lambda: cleared(by_cosine=True), lambda: cleared(by_cosine=False), module="SpectralAngle", precision="32-true"),
    Bug("pose-on-a-sphere", "geoopt/geoopt#79", ("cancellation", "overflow", "nan", "amplified-rounding"), "aten.add.Scalar",
        lambda: averaged(chord=False), lambda: averaged(chord=True), phase="backward", precision="32-true", kernel=True),
)  # fmt: skip
