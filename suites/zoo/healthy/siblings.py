"""Code that looks like the bugs of `reductions`, `places`, `columns` and `partials`, and is right."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def narrow_lattice() -> torch.Tensor:
    """Log weights in half that are added up as exponentials in half, of which there are 200: their sum is small."""
    arcs = (3 * normal(6, 200)).to(HALF)
    largest = arcs.amax(-1, keepdim=True)
    return (arcs - largest).exp().sum(-1).log() + largest[:, 0]


def losses_by_rows() -> torch.Tensor:
    """A mean loss of log probabilities in half: rows of 64 are added up in half, and the rows' means in float32."""
    predicted = torch.log_softmax(4 * normal(2048, 40), -1).to(HALF)
    terms = -predicted[torch.arange(2048), (40 * uniform(2048, seed=1)).long()]
    return terms.view(32, 64).mean(-1).float().mean()


def squeezed_by_mean() -> torch.Tensor:
    """Squeeze and excitation in half of 128 by 128 pixels, by torch's own mean, which adds up in float32."""
    x = functional.silu(5 + 2 * normal(1, 8, 128, 128, seed=2)).to(HALF)
    gate = (normal(8, 8) / 6).to(HALF)
    return x * torch.sigmoid(functional.silu(x.mean((2, 3))) @ gate)[..., None, None]


def windows_pooled() -> torch.Tensor:
    """Local means and variances in half, by windows of deviations from the mean, which average pooling adds up."""
    x = (1 + 0.3 * normal(2, 3, 48, 48)).to(HALF)
    means = functional.avg_pool2d(x, 9, stride=1, padding=4, count_include_pad=False)
    spread = functional.avg_pool2d((x - means) ** 2, 9, stride=1, padding=4, count_include_pad=False)
    return (x - means) * torch.rsqrt(spread + 1e-3)


def curve_of_a_batch() -> torch.Tensor:
    """The area under a curve of true over false positives among 1500 examples: counts in half are whole numbers below 2048."""
    truth = (uniform(1500) < 0.3).to(HALF)
    order = (normal(1500, seed=1) + 2 * truth.float()).argsort(descending=True)
    hits, misses = truth[order].cumsum(0), (1 - truth[order]).cumsum(0)
    return torch.trapezoid((hits / hits[-1]).float(), (misses / misses[-1]).float())


def points_about_their_middle() -> torch.Tensor:
    """A cloud 300 m off, sent in half from its middle, which is sent in float32."""
    cloud = torch.tensor([300.0, 210.0, 1.0]) + torch.tensor([2.2, 0.9, 0.7]) * (2 * uniform(400, 3) - 1)
    middle = cloud.mean(0)
    sent = (cloud - middle).to(HALF)
    seen = sent.float() + (middle - torch.tensor([300.0, 203.0, 1.5]))
    return seen[:, [0, 2]] / seen[:, 1:2]


def points_of_one_room() -> torch.Tensor:
    """Distances of neighbouring points in float32 that are centimetres apart, within ten metres of the origin."""
    wall = torch.stack([0.02 * torch.arange(400.0), 0.001 * normal(400), 0.01 * normal(400, seed=1)], 1)
    moved = 1.02 * wall @ torch.tensor([[0.8, -0.6, 0], [0.6, 0.8, 0], [0, 0, 1]]).T + torch.tensor([2.4, 9.9, 1.2])
    return (moved[1:] - moved[:-1]).norm(dim=-1)


def leaning_craft() -> torch.Tensor:
    """Tilts of some degrees in float32, by the arc cosine of a clamped number."""
    attitude = functional.normalize(
        torch.tensor([1.0, 0, 0, 0.5]) + torch.cat([torch.zeros(1, 200), 0.2 * normal(2, 200), torch.zeros(1, 200)]).T, dim=-1
    )
    w, x, y, z = attitude.unbind(-1)
    return torch.acos((w * w - x * x - y * y + z * z).clamp(-1, 1))


def distances_of_continents() -> torch.Tensor:
    """Distances of thousands of kilometres on a globe, by the law of cosines in float32."""
    begin, end = (
        torch.stack([-77 + 8 * normal(64), 38 + 6 * normal(64, seed=1)]).deg2rad(),
        torch.stack([8 + 6 * normal(64, seed=2), 50 + 4 * normal(64, seed=3)]).deg2rad(),
    )
    inner = begin[1].sin() * end[1].sin() + begin[1].cos() * end[1].cos() * (end[0] - begin[0]).cos()
    return 6371 * inner.acos()


def turns_by_angle() -> torch.Tensor:
    """Where an axis points after 600 small turns: their angles add up in float32, and what is shown goes to half."""
    angle = torch.zeros(16)
    for turn in 0.03 * normal(600, 16):
        angle = angle + turn
    return torch.stack([angle.cos(), angle.sin()], -1).to(HALF)


def table_centred_first() -> torch.Tensor:
    """A table in half whose columns are scaled by means and spreads of float32, and goes back to half."""
    rows = (torch.tensor([42.0, 71.0, 170.0, 24.0]) + torch.tensor([12.0, 14.0, 9.0, 4.0]) * normal(3000, 4)).to(HALF)
    wide = rows.float()
    return ((wide - wide.mean(0)) / wide.std(0)).to(HALF)


def columns_that_vary() -> torch.Tensor:
    """A model of dynamics in float32 whose inputs are scaled by hand; a column that does not vary is zero throughout."""
    states = torch.cat([2 + normal(1200, 4), torch.zeros(1200, 1)], 1)
    mean = states.mean(0)
    std = ((states - mean) ** 2).mean(0).sqrt()
    std[std < 1e-6] = 1.0
    return torch.tanh((states[:50] - mean) / std @ (normal(5, 8, seed=3) / 3))


def small_counts() -> torch.Tensor:
    """Log probabilities of counts of a few dozen in float32, by logarithms of the gamma function."""
    counts, concentration, rate = (30 + 8 * normal(60)).round().clamp_min(0), torch.full((60,), 4.0), 4.0 / 30
    log_beta = torch.lgamma(concentration) + torch.lgamma(counts + 1) - torch.lgamma(concentration + counts + 1)
    return -log_beta - torch.log(concentration + counts) + concentration * math.log(rate / (1 + rate)) - counts * math.log1p(rate)


def filter_of_like_noises() -> torch.Tensor:
    """Twenty corrections of a filter in float32 whose prior is about as sure as its sensor; its covariance is made even each time."""
    covariance, state, noise = torch.diag(torch.tensor([0.5, 0.5])), torch.zeros(2), 0.2 * torch.eye(2)
    for step in range(20):
        covariance = covariance + 0.05 * torch.eye(2)
        gain = covariance @ torch.linalg.inv(covariance + noise)
        state = state + gain @ (0.3 * normal(2, seed=step) - state)
        covariance = (torch.eye(2) - gain) @ covariance
        covariance = (covariance + covariance.T) / 2
    return torch.cat([state, covariance.diagonal()])


def transport_in_logs() -> torch.Tensor:
    """The cost of a transport plan in float32, most of whose entries are zero: the plan's logarithm is not taken."""
    x, y, epsilon = uniform(24, 2), uniform(24, 2, seed=1) + 0.1, 0.004
    costs, f, g = (x[:, None] - y[None]).square().sum(-1), torch.zeros(24), torch.zeros(24)
    for _ in range(60):
        f = epsilon * (-math.log(24) - torch.logsumexp((g - costs) / epsilon, 1))
        g = epsilon * (-math.log(24) - torch.logsumexp((f[:, None] - costs) / epsilon, 0))
    plan = torch.exp((f[:, None] + g - costs) / epsilon)
    return (plan * costs).sum() + epsilon * (torch.xlogy(plan, plan) - plan).sum()


def bands_of_floor_and_all() -> torch.Tensor:
    """Decibels of bands under autocast to half, which are made in float32 with a floor of 1e-10, and go to half when they are logarithms."""
    waveforms = uniform(2, 4096) - 0.5
    waveforms[1, 1500:2800] = 1e-6 * normal(1300, seed=1)
    layer = nn.Linear(16, 8)
    with torch.no_grad(), torch.autocast("cpu", dtype=HALF):
        layer.weight.copy_(normal(8, 16) / 4)
        layer.bias.zero_()
        with torch.autocast("cpu", enabled=False):
            power = torch.stft(waveforms, 128, 64, window=torch.hann_window(128), return_complex=True).abs() ** 2
            decibels = 10 * torch.log10((power.transpose(1, 2) @ (uniform(65, 16) / 8)).clamp(min=1e-10))
        return layer((decibels + 40) / 20)


def products_split_wide() -> torch.Tensor:
    """A product in six parts, each written in float32, of numbers in bfloat16 that do not cancel."""
    x, weight = (uniform(16, 1536) * 2 - 1).to(LOW), ((uniform(1536, 64, seed=1) * 2 - 1) / 20).to(LOW)
    parts = [a.float() @ b.float() for a, b in zip(x.chunk(6, 1), weight.chunk(6, 0), strict=True)]
    return torch.stack(parts).sum(0).to(LOW)


def ring_of_four() -> torch.Tensor:
    """Attention over keys in four blocks, whose merged output is stored in bfloat16 after each."""
    q, k, v = (0.3 * normal(16, 32)).to(LOW), normal(512, 32, seed=1).to(LOW), (1 + 0.2 * normal(512, 32, seed=2)).to(LOW)
    out, lse = torch.zeros(16, 32, dtype=LOW), torch.full((16, 1), -torch.inf)
    for keys, values in zip(k.chunk(4), v.chunk(4), strict=True):
        scores = (q @ keys.T).float() / 32**0.5
        block_lse = torch.logsumexp(scores, -1, keepdim=True)
        merged = torch.logaddexp(lse, block_lse)
        out = ((lse - merged).exp() * out + (block_lse - merged).exp() * (torch.softmax(scores, -1) @ values.float())).to(LOW)
        lse = merged
    return out


def pyramid_of_normed_features() -> torch.Tensor:
    """Features of four scales under autocast to half, added from the coarsest down; all are of unit size."""
    features = [normal(1, 8, 32 // 2**level, 32 // 2**level, seed=level).relu() for level in range(4)]
    laterals, output = [nn.Conv2d(8, 8, 1) for _ in range(4)], nn.Conv2d(8, 8, 3, padding=1)
    with torch.no_grad(), torch.autocast("cpu", dtype=HALF):
        for number, each in enumerate((*laterals, output)):
            each.weight.copy_(normal(*each.weight.shape, seed=10 + number) / 4)
            each.bias.zero_()
        sides = [each(x) for each, x in zip(laterals, features, strict=True)]
        for level in range(3, 0, -1):
            sides[level - 1] = sides[level - 1] + functional.interpolate(sides[level], scale_factor=2)
        return torch.cat([output(x).flatten(1) for x in sides], 1)


def adapter_in_float32() -> torch.Tensor:
    """An adapter in float32 of a layer in bfloat16, which Adam moves by 5e-5 a step."""
    kernel = (normal(32, 32) / 6).to(LOW)
    down, up = (normal(32, 4, seed=1) / 4).requires_grad_(), (0.05 * normal(4, 32, seed=2)).requires_grad_()
    optimizer = torch.optim.Adam([down, up], lr=5e-5)
    for step in range(12):
        x, wanted = normal(16, 32, seed=10 + step).to(LOW), normal(16, 32, seed=10 + step).roll(1, 1)
        answer = x @ kernel + (x @ down.to(LOW)) @ up.to(LOW)
        (answer.float() - wanted).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([down.detach().flatten(), up.detach().flatten()])


IDIOMS = (narrow_lattice, losses_by_rows, squeezed_by_mean, windows_pooled, curve_of_a_batch, points_about_their_middle, points_of_one_room,
          leaning_craft, distances_of_continents, turns_by_angle, table_centred_first, columns_that_vary, small_counts, filter_of_like_noises,
          transport_in_logs, bands_of_floor_and_all, products_split_wide, ring_of_four, pyramid_of_normed_features, adapter_in_float32)  # fmt: skip
EXACT = ("points_of_one_room", "leaning_craft", "distances_of_continents", "columns_that_vary", "small_counts", "filter_of_like_noises",
         "transport_in_logs")  # fmt: skip
