"""Sound, geometry, statistics and physics as careful people write them: low data, and float32 for places, phases, sums and matrices."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch.nn import functional

from .practice_training import HALF, LOW, perceptron


def loudness_with_a_gain_for_each_channel() -> torch.Tensor:
    """PCEN: a half recording, a spectrum and mel bands in float32, an average over time, and powers of positive numbers."""
    wave = (0.2 * torch.sin(0.11 * torch.arange(2048)) + 0.02 * normal(2048)).to(HALF)
    frames = wave.float().unfold(0, 256, 128) * torch.hann_window(256)
    power = torch.fft.rfft(frames).abs().square()
    centres = torch.linspace(0, 128, 14)
    bank = (1 - (torch.arange(129)[:, None] - centres[1:-1]).abs() / centres[1]).clamp_min(0)
    mel = power @ bank
    average = [mel[0]]
    for frame in mel[1:]:
        average.append(0.975 * average[-1] + 0.025 * frame)
    smooth = torch.stack(average)
    return (mel / (1e-6 + smooth).pow(0.98) + 2).pow(0.5) - 2**0.5


def phases_found_again() -> torch.Tensor:
    """Griffin-Lim: loudness from a low network's output, phases and both transforms in float32, over a few rounds."""
    wave, window = torch.sin(0.07 * torch.arange(1024)) + 0.5 * torch.sin(0.19 * torch.arange(1024)), torch.hann_window(128)
    loud = torch.stft(wave, 128, 32, window=window, return_complex=True).abs().to(LOW).float()
    phase = 2 * math.pi * uniform(*loud.shape)
    for _ in range(4):
        made = torch.istft(torch.polar(loud, phase), 128, 32, window=window, length=1024)
        phase = torch.stft(made, 128, 32, window=window, return_complex=True).angle()
    return torch.stft(made, 128, 32, window=window, return_complex=True).abs()


def poses_by_a_series_near_nought() -> torch.Tensor:
    """Twists of a low network as poses: sines over angles by a series where angles are small, all of it in float32."""
    twists = perceptron(8, 16, 6).to(LOW)(normal(20, 8).to(LOW)).float()
    turn, shift = twists[:, :3], twists[:, 3:]
    squared = turn.square().sum(-1)[:, None, None]
    near = squared < 1e-4
    angle = squared.where(~near, 1.0).sqrt()
    a = torch.where(near, 1 - squared / 6, angle.sin() / angle)
    b = torch.where(near, 0.5 - squared / 24, (1 - angle.cos()) / angle.square())
    c = torch.where(near, 1 / 6 - squared / 120, (angle - angle.sin()) / angle.pow(3))
    x, y, z = turn.unbind(-1)
    nought = torch.zeros_like(x)
    skew = torch.stack([nought, -z, y, z, nought, -x, -y, x, nought], -1).view(-1, 3, 3)
    rotation = torch.eye(3) + a * skew + b * skew @ skew
    return torch.cat([rotation, (torch.eye(3) + b * skew + c * skew @ skew) @ shift[..., None]], -1)


def picture_seen_from_the_side() -> torch.Tensor:
    """A homography of four corners that a low network moves: its equations and the grid in float32, pixels in bfloat16."""
    corners = torch.tensor([[-1.0, -1], [1, -1], [1, 1], [-1, 1]])
    moved = corners + 0.2 * torch.tanh(perceptron(6, 8).to(LOW)(normal(1, 6).to(LOW)).float()).view(4, 2)
    rows, right = [], []
    for (x, y), (u, v) in zip(corners.tolist(), moved, strict=True):
        one, nought = torch.tensor([x, y, 1.0]), torch.zeros(3)
        rows += [torch.cat([one, nought, -u * one[:2]]), torch.cat([nought, one, -v * one[:2]])]
        right += [u, v]
    found = torch.linalg.solve(torch.stack(rows), torch.stack(right))
    matrix = torch.cat([found.detach(), torch.ones(1)]).view(3, 3)
    line = torch.linspace(-0.9, 0.9, 16)
    grid = torch.stack([*torch.meshgrid(line, line, indexing="xy"), torch.ones(16, 16)], -1) @ matrix.mT
    places = (grid[..., :2] / grid[..., 2:])[None]
    picture = torch.sin(0.4 * torch.arange(24))[:, None] * torch.cos(0.3 * torch.arange(24))
    return functional.grid_sample(picture.to(LOW).float()[None, None], places, align_corners=False).to(LOW).float()


def splats_on_a_screen() -> torch.Tensor:
    """Gaussians that a camera sees: covariances, their inverses and exponents in float32, colours of bfloat16, shares from front to back."""
    means = torch.cat([0.8 * normal(12, 2), 3 + 2 * uniform(12, 1)], -1)
    factor = 0.2 * normal(12, 3, 3, seed=1) + 0.2 * torch.eye(3)
    space, nought = factor @ factor.mT, torch.zeros(12)
    x, y, z = means.unbind(-1)
    slope = 20 * torch.stack([torch.stack([1 / z, nought, -x / z**2], -1), torch.stack([nought, 1 / z, -y / z**2], -1)], 1)
    flat = slope @ space @ slope.mT + 0.3 * torch.eye(2)
    determinant = flat[:, 0, 0] * flat[:, 1, 1] - flat[:, 0, 1].square()
    conic = torch.stack([flat[:, 1, 1], -flat[:, 0, 1], flat[:, 0, 0]], -1) / determinant[:, None]
    row, column = torch.meshgrid(torch.arange(16) + 0.5, torch.arange(16) + 0.5, indexing="ij")
    across, down = column.flatten()[:, None] - (20 * x / z + 8), row.flatten()[:, None] - (20 * y / z + 8)
    power = -0.5 * (conic[:, 0] * across**2 + conic[:, 2] * down**2) - conic[:, 1] * across * down
    order = z.argsort()
    alpha = (0.8 * power.clamp(max=0).exp()).clamp(max=0.99)[:, order]
    through = torch.cat([torch.ones(256, 1), (1 - alpha).cumprod(-1)[:, :-1]], -1)
    return (alpha * through).to(LOW) @ uniform(12, 3, seed=3).to(LOW)[order]


def harmonics_of_second_order() -> torch.Tensor:
    """Messages between atoms: unit vectors and harmonics in float32, weights of the radial part from a low network, sums in float32."""
    places = 2 * normal(16, 3)
    first, second = (torch.cdist(places, places) < 3).fill_diagonal_(fill_value=False).nonzero(as_tuple=True)
    apart = places[second] - places[first]
    length = apart.norm(dim=-1, keepdim=True)
    x, y, z = (apart / length).unbind(-1)
    harmonics = torch.stack([x, y, z, 3**0.5 * x * z, 3**0.5 * x * y, y**2 - 0.5 * (x**2 + z**2), 3**0.5 * y * z, 3**0.5 / 2 * (z**2 - x**2)], -1)
    bumps = (-(length - torch.linspace(0, 3, 8)).square() * 4).exp()
    weights = perceptron(8, 16, 8).to(LOW)(bumps.to(LOW)).float()
    cut = 0.5 * (1 + torch.cos(math.pi * length / 3))
    return torch.zeros(16, 8).index_add(0, first, weights * cut * harmonics)


def process_through_a_low_encoder() -> torch.Tensor:
    """A Gaussian process on features of bfloat16: distances, a kernel with noise, its factor and both solves in float32."""
    encoder = perceptron(4, 16, 3).to(LOW)
    with torch.no_grad():
        known, asked = (encoder((2 * normal(count, 4, seed=count)).to(LOW)).float() for count in (30, 12))
    values = known.sin().sum(-1) + 0.1 * normal(30)

    def kernel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (-0.5 * (a[:, None] - b[None]).square().sum(-1) / 0.25).exp()

    factor = torch.linalg.cholesky(kernel(known, known) + 0.05 * torch.eye(30))
    across = kernel(known, asked)
    mean = across.mT @ torch.cholesky_solve(values[:, None], factor)[:, 0]
    left = torch.linalg.solve_triangular(factor, across, upper=False)
    return torch.cat([mean, 1 - left.square().sum(0)])


def waves_kept_by_a_spectral_layer() -> torch.Tensor:
    """A Fourier layer: low channels before and after, the transform and its complex weights in float32, a skip in bfloat16."""
    field = normal(2, 8, 64)
    lift, weight = (normal(8, 8, seed=1) / 3).to(LOW), torch.complex(normal(8, 8, 12, seed=2), normal(8, 8, 12, seed=3)) / 4
    x = field.to(LOW)
    for _ in range(2):
        waves = torch.fft.rfft(x.float())
        kept = torch.zeros(2, 8, 33, dtype=torch.complex64)
        kept[..., :12] = torch.einsum("bix,iox->box", waves[..., :12], weight)
        x = functional.gelu(torch.fft.irfft(kept, n=64).to(LOW) + torch.einsum("io,bix->box", lift, x))
    return x.float()


def merged_along_an_arc() -> torch.Tensor:
    """Two checkpoints of bfloat16 merged along an arc: cosines, angles and the sum in float32, one cast at last."""
    common = normal(24, 32)
    first, second = ((common + 0.7 * normal(24, 32, seed=seed)).to(LOW) for seed in (1, 2))
    a, b = first.float().flatten(), second.float().flatten()
    cosine = (a / a.norm()) @ (b / b.norm())
    angle = cosine.clamp(-1, 1).acos()
    merged = ((0.6 * angle).sin() * a + (0.4 * angle).sin() * b) / angle.sin()
    return merged.view(24, 32).to(LOW).float()


def task_vectors_with_one_sign() -> torch.Tensor:
    """TIES: differences of three checkpoints in float32 of what bfloat16 stores, the largest fifth of each, and means of one sign."""
    base = (normal(16, 40) / 4).to(LOW)
    tuned = [(base.float() + 0.1 * normal(16, 40, seed=seed)).to(LOW) for seed in (1, 2, 3)]
    moves = torch.stack([(each.float() - base.float()).flatten() for each in tuned])
    least = moves.abs().kthvalue(512, dim=-1, keepdim=True).values
    moves = torch.where(moves.abs() > least, moves, 0.0)
    sign = torch.sign(moves.sum(0))
    agree = (torch.sign(moves) == sign) & (moves != 0)
    mean = (moves * agree).sum(0) / agree.sum(0).clamp_min(1)
    return (base.float() + mean.view(16, 40)).to(LOW).float()


def solved_by_conjugate_directions() -> torch.Tensor:
    """Implicit gradients: products with a curvature under bfloat16 features that are cast once, and conjugate directions in float32."""
    features, right = normal(80, 20).to(LOW).float(), normal(20, seed=1)

    def curved(x: torch.Tensor) -> torch.Tensor:
        return features.mT @ (features @ x) / 80 + 0.1 * x

    x, left = torch.zeros(20), right.clone()
    way, size = left.clone(), left @ left
    for _ in range(12):
        bent = curved(way)
        rate = size / (way @ bent)
        x, left = x + rate * way, left - rate * bent
        new = left @ left
        way, size = left + new / size * way, new
    return x


def likeness_by_windows() -> torch.Tensor:
    """SSIM of pictures in bfloat16: cast first, means and variances in float32 by windows, about a mean of each picture."""
    line = torch.arange(32)
    picture = 0.5 + 0.3 * torch.sin(0.5 * line)[:, None] * torch.cos(0.4 * line)
    first, second = picture.to(LOW).float()[None, None], (picture + 0.1 * normal(32, 32)).to(LOW).float()[None, None]
    weights = (-(torch.arange(-3, 4).float() / 1.5).square() / 2).exp()
    window = (weights[:, None] * weights / weights.sum().square())[None, None]
    middle = first.mean()
    a, b = first - middle, second - middle
    mean_a, mean_b = functional.conv2d(a, window), functional.conv2d(b, window)
    var_a = functional.conv2d(a * a, window) - mean_a**2
    var_b = functional.conv2d(b * b, window) - mean_b**2
    both = functional.conv2d(a * b, window) - mean_a * mean_b
    bright = (2 * (mean_a + middle) * (mean_b + middle) + 1e-4) / ((mean_a + middle) ** 2 + (mean_b + middle) ** 2 + 1e-4)
    return bright * (2 * both + 9e-4) / (var_a + var_b + 9e-4)


IDIOMS = (
    loudness_with_a_gain_for_each_channel, phases_found_again, poses_by_a_series_near_nought, picture_seen_from_the_side, splats_on_a_screen,
    harmonics_of_second_order, process_through_a_low_encoder, waves_kept_by_a_spectral_layer, merged_along_an_arc, task_vectors_with_one_sign,
    solved_by_conjugate_directions, likeness_by_windows,
)  # fmt: skip
