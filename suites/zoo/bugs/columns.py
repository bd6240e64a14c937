"""Statistics: of the columns of a table, of counts, of a filter's state, of what is carried where, of a spectrogram's bands."""

from __future__ import annotations

import math

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

HALF, WIDE, DOUBLE = torch.float16, torch.float32, torch.float64


class StandardScaler:
    """Mean and variance of each column, brought up to date by one part of a table after another."""

    def __init__(self, accumulator: torch.dtype | None) -> None:
        self.accumulator, self.count = accumulator, 0
        self.mean = self.variance = torch.zeros(())

    def partial_fit(self, rows: torch.Tensor) -> None:
        dtype = self.accumulator or rows.dtype
        last_sum = self.mean.to(dtype) * self.count
        new_sum = rows.sum(0, dtype=dtype)  # culprit: scaled-table
        new_variance = rows.to(dtype).var(0, correction=0) * len(rows)
        total = self.count + len(rows)
        mean = (last_sum + new_sum) / total  # culprit: scaled-table
        between = 0 if self.count == 0 else (last_sum / self.count - new_sum / len(rows)) ** 2 * self.count * len(rows) / total
        self.variance = (self.variance * self.count + new_variance + between) / total  # culprit: scaled-table
        self.mean, self.count = mean, total

    def transform(self, rows: torch.Tensor) -> torch.Tensor:
        return (rows - self.mean) / (self.variance + 1e-8).sqrt()


def scaled(accumulator: torch.dtype | None) -> torch.Tensor:
    """A table in half, of ages, weights and the like, fitted in two parts."""
    rows = (torch.tensor([42.0, 71.0, 170.0, 24.0]) + torch.tensor([12.0, 14.0, 9.0, 4.0]) * normal(3000, 4)).to(HALF)
    scaler = StandardScaler(accumulator)
    for part in rows.split(1500):
        scaler.partial_fit(part)
    return scaler.transform(rows[:200]).float()


class Normalizer:
    """Of a model of dynamics: columns that do not vary are left as they are, which their spread tells."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.eps = dtype, 1e-12

    def update_stats(self, data: torch.Tensor) -> None:
        data = data.to(self.dtype)
        self.mean = data.mean(0)
        self.std = ((data - self.mean) ** 2).mean(0).sqrt()  # culprit: constant-columns
        self.std[self.std < self.eps] = 1.0  # culprit: constant-columns

    def normalize(self, value: torch.Tensor) -> torch.Tensor:
        return ((value.to(self.dtype) - self.mean) / self.std).float()  # culprit: constant-columns


def normalised(dtype: torch.dtype) -> torch.Tensor:
    """States of an arm, of which two numbers, a goal's place, are the same in all episodes so far; then the goal is moved."""
    states = torch.cat([normal(1200, 4), torch.tensor([0.1, 0.7]).expand(1200, 2)], 1)
    normalizer = Normalizer(dtype)
    normalizer.update_stats(states)
    new = torch.cat([normal(50, 4, seed=1), torch.tensor([0.1, 0.7]) + 0.05 * normal(50, 2, seed=2)], 1)
    return torch.tanh(normalizer.normalize(new) @ (normal(6, 8, seed=3) / 3))


def gamma_poisson(value: torch.Tensor, concentration: torch.Tensor, rate: torch.Tensor) -> torch.Tensor:
    """The log probability of counts whose rate is gamma-distributed."""
    more = value + 1
    log_beta = torch.lgamma(concentration) + torch.lgamma(more) - torch.lgamma(concentration + more)  # culprit: large-counts
    log_odds = torch.log(rate / (1 + rate))
    return -log_beta - torch.log(concentration + value) + concentration * log_odds - value * torch.log1p(rate)  # culprit: large-counts


def counted(dtype: torch.dtype) -> torch.Tensor:
    """Hosts of a network with three million visits or so, whose rates vary by a twentieth."""
    concentration = torch.full((60,), 400.0, dtype=dtype)
    rate = concentration / 3e6
    counts = (3e6 * (1 + 0.08 * normal(60))).round().to(dtype)
    return gamma_poisson(counts, concentration, rate)


class RobotLocator:
    """An extended Kalman filter's state, position and heading, which a precise receiver corrects."""

    def __init__(self, joseph: bool) -> None:
        self.joseph = joseph
        self.state, self.covariance = torch.zeros(3), torch.diag(torch.tensor([1e4, 1e4, 10.0]))
        self.noise = 1e-4 * torch.eye(2)
        self.observed = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])

    def predict(self, speed: float) -> None:
        heading = self.state[2]
        self.state = self.state + speed * torch.stack([heading.cos(), heading.sin(), torch.zeros(())])
        jacobian = torch.eye(3)
        jacobian[0, 2], jacobian[1, 2] = -speed * heading.sin(), speed * heading.cos()
        self.covariance = jacobian @ self.covariance @ jacobian.T + torch.diag(torch.tensor([1e-8, 1e-8, 1e-7]))

    def update(self, measured: torch.Tensor) -> None:
        innovation = self.observed @ self.covariance @ self.observed.T + self.noise
        gain = self.covariance @ self.observed.T @ torch.linalg.inv(innovation)
        self.state = self.state + gain @ (measured - self.observed @ self.state)
        left = torch.eye(3) - gain @ self.observed  # culprit: filter-covariance
        if self.joseph:
            self.covariance = left @ self.covariance @ left.T + gain @ self.noise @ gain.T
        else:
            self.covariance = left @ self.covariance  # culprit: filter-covariance


def located(joseph: bool) -> torch.Tensor:
    """What a robot is sure of after each of its first six corrections: the variances of its position."""
    locator, variances = RobotLocator(joseph), []
    for step in range(6):
        locator.predict(0.1)
        locator.update(torch.tensor([0.1 * step, 0.0]) + 0.01 * normal(2, seed=step))
        variances.append(locator.covariance.diagonal()[:2])
    return torch.stack(variances)


def transported(by_potentials: bool) -> torch.Tensor:
    """What it costs to carry 24 points to 24 others, at a small regularisation; Sinkhorn's iterations are in logarithms."""
    x, y, epsilon = uniform(24, 2), uniform(24, 2, seed=1) + 0.1, 0.004
    costs, log_mass = (x[:, None] - y[None]).square().sum(-1), -math.log(24)
    f, g = torch.zeros(24), torch.zeros(24)
    for _ in range(60):
        f = epsilon * (log_mass - torch.logsumexp((g - costs) / epsilon, 1))
        g = epsilon * (log_mass - torch.logsumexp((f[:, None] - costs) / epsilon, 0))
    plan = torch.exp((f[:, None] + g - costs) / epsilon)  # culprit: transport-cost
    if by_potentials:
        return (plan * (f[:, None] + g - epsilon)).sum()[None]
    return ((plan * costs).sum() + epsilon * (plan * (plan.log() - 1)).sum())[None]  # culprit: transport-cost


class LogmelBands(nn.Module):
    """A waveform's power in bands, in decibels: Fourier's transform is a convolution, as it has to be for export."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.apart = apart
        angles = 2 * math.pi * torch.outer(torch.arange(65.0), torch.arange(128.0)) / 128
        window = torch.hann_window(128)
        self.register_buffer("real", (angles.cos() * window)[:, None])
        self.register_buffer("imaginary", (angles.sin() * window)[:, None])
        self.register_buffer("bands", uniform(65, 16) / 8)
        self.norm = nn.BatchNorm1d(16)

    def logmel(self, waveform: torch.Tensor) -> torch.Tensor:
        real = nn.functional.conv1d(waveform[:, None], self.real, stride=64)
        imaginary = nn.functional.conv1d(waveform[:, None], self.imaginary, stride=64)
        power = real**2 + imaginary**2  # culprit: quiet-bands
        energy = power.transpose(1, 2) @ self.bands  # culprit: quiet-bands
        return 10 * torch.log10(torch.clamp(energy, min=1e-10))  # culprit: quiet-bands

    def forward(self, waveform: torch.Tensor) -> torch.Tensor:
        if self.apart:
            with torch.autocast("cpu", enabled=False):
                return self.norm(self.logmel(waveform).transpose(1, 2))
        return self.norm(self.logmel(waveform).transpose(1, 2))


def tagged(apart: bool) -> torch.Tensor:
    """Two recordings: one has a silent second, as they do between songs."""
    waveforms = uniform(2, 4096) - 0.5
    waveforms[1, 1500:2800] = 1e-6 * normal(1300, seed=1)
    with torch.no_grad(), torch.autocast("cpu", dtype=HALF):
        return LogmelBands(apart)(waveforms).float()


BUGS = (
    Bug("scaled-table", "scikit-learn/scikit-learn#13010", ("overflow",), "aten.sum.dim_IntList", lambda: scaled(None), lambda: scaled(DOUBLE)),
    Bug("constant-columns", "facebookresearch/mbrl-lib#111", ("decision-flip", "amplified-rounding", "cancellation"), "aten.lt.Scalar",
        lambda: normalised(WIDE), lambda: normalised(DOUBLE), precision="32-true"),
    Bug("large-counts", "pyro-ppl/numpyro#563", ("cancellation", "amplified-rounding"), "aten.sub.Tensor", lambda: counted(WIDE),
        lambda: counted(DOUBLE), precision="32-true"),
    Bug("filter-covariance", "zauberzeug/feldfreund_devkit#47", ("amplified-rounding", "cancellation"), "aten.mm.default", lambda: located(False),
        lambda: located(True), precision="32-true",
        expected_miss="a product that picks two elements makes their error ten times larger, and what follows is excused by that small difference"),
    Bug("transport-cost", "google-research/ott#5", ("underflow", "nan", "overflow"), "aten.exp.default", lambda: transported(False),
        lambda: transported(True), precision="32-true"),
    Bug("quiet-bands", "qiuqiangkong/audioset_tagging_cnn#17", ("vanished-constant", "underflow", "overflow", "nan"), "aten.clamp.default",
        lambda: tagged(False), lambda: tagged(True)),
)  # fmt: skip
