"""Samplers, filters, bins and weights that look like the bugs of samplers, filters, bins and merges."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def tokens_by_wide_noise() -> torch.Tensor:
    """Tokens by exponential noise in float32, of probabilities in half."""
    probabilities = torch.softmax(normal(40, 3000).to(HALF), -1)
    noise = torch.empty(40, 3000).exponential_(1, generator=torch.Generator().manual_seed(20))
    choice = (probabilities.float() / noise).argmax(-1, keepdim=True)
    return probabilities.gather(-1, choice).float()


def temperature_of_small_logits() -> torch.Tensor:
    """A softmax in bfloat16 of logits of size one that are divided by a temperature of a half."""
    return torch.softmax(normal(16, 400).to(LOW) / 0.5, -1).float()


def sum_of_few_paths() -> torch.Tensor:
    """The logarithm of a sum of 3000 exponentials in half."""
    weights = (0.5 * normal(3, 3000)).to(HALF)
    largest = weights.amax(-1, keepdim=True)
    return ((weights - largest).exp().sum(-1).log() + largest[:, 0]).float()


def doubtful_alignment() -> torch.Tensor:
    """The loss of an alignment in float32 of a network that is not sure of any frame."""
    scores, states = torch.log_softmax(normal(24, 9), -1), [0, 3, 0, 5, 0]
    alpha = torch.full((5,), -1e30)
    alpha[:2] = scores[0, states[:2]]
    for row in scores[1:]:
        one, two = alpha.roll(1), alpha.roll(2)
        one[0], two[[0, 1, 2, 4]] = -1e30, -1e30
        alpha = torch.logaddexp(torch.logaddexp(alpha, one), two) + row[states]
    return -torch.logaddexp(alpha[-1], alpha[-2])


def picture_under_guidance() -> torch.Tensor:
    """The picture that guided noise would leave, in bfloat16, which is wanted for itself."""
    latents, text, free = ((1 + seed) * normal(4, 24, 24, seed=seed).to(LOW) for seed in range(3))
    return ((latents - 0.0625 * free) + 1.5 * ((latents - 0.0625 * text) - (latents - 0.0625 * free))).float()


def recursion_of_one_pole() -> torch.Tensor:
    """A recursive filter in float32 whose pole is far inside the unit circle."""
    signal, state, made = normal(4, 200), torch.zeros(4), []
    for now in signal.T:
        state = 0.1 * now + 0.9 * state
        made.append(state)
    return torch.stack(made, -1)


def spectrum_of_dark_pictures() -> torch.Tensor:
    """Spectra of centred pictures that are stored in half before they are divided by the number of pixels."""
    parts = torch.view_as_real(torch.fft.fft2(normal(2, 48, 48)))
    return (parts.to(HALF) / 48).float()


def power_of_a_soft_note() -> torch.Tensor:
    """The power of a short Fourier transform in half, of a wave of size one tenth."""
    wave = (0.1 * torch.sin(0.15 * torch.arange(1600)) + 0.1 * normal(2, 1600)).to(HALF)
    angles = 2 * torch.pi / 200 * torch.outer(torch.arange(101), torch.arange(200))
    real, imaginary = (functional.conv1d(wave[:, None], kernel.to(HALF)[:, None], stride=100) for kernel in (angles.cos(), -angles.sin()))
    return (real.square() + imaginary.square()).mean(-1).float()


def whitening_of_even_data() -> torch.Tensor:
    """A whitening matrix by a covariance in float32, of data whose spread falls off by a factor of three."""
    data = normal(400, 12, seed=1) * torch.linspace(1, 3, 12) @ torch.linalg.qr(normal(12, 12))[0]
    centred = data - data.mean(0)
    values, basis = torch.linalg.eigh(centred.T @ centred / len(data))
    return basis @ torch.diag(1 / torch.sqrt(values + 1e-6)) @ basis.T


def spline_forward() -> torch.Tensor:
    """A quotient of quadratics between two knots in bfloat16, in the direction that has no root."""
    place, slope, after, delta = uniform(800).to(LOW), (0.5 + uniform(3, 800, seed=1)).to(LOW)[0], *(0.5 + uniform(2, 800, seed=2)).to(LOW)
    bent = place * (1 - place)
    return ((delta * place.square() + slope * bent) / (delta + (slope + after - 2 * delta) * bent)).float()


def counts_that_fit() -> torch.Tensor:
    """False negatives at each threshold of 250 scores, with counts in bfloat16, which holds all of them."""
    labels = (uniform(250) < 0.4).long()
    positives = labels[(normal(250, seed=1) + labels).argsort(descending=True)].cumsum(0).to(LOW)
    return (positives[-1] - positives).float()


def patches_by_integers() -> torch.Tensor:
    """Positions of patches by whole numbers, and a table of bfloat16."""
    row, column = torch.arange(61) * 70 // 61, torch.arange(47) * 70 // 47
    return (normal(70 * 70, 8).to(LOW)[(row[:, None] * 70 + column).flatten()] + normal(61 * 47, 8, seed=1).to(LOW)).float()


def few_bins_of_a_picture() -> torch.Tensor:
    """A histogram by cubic splines with ten bins, in half: nothing is far from a bin."""
    apart = (torch.arange(10).to(HALF) - 6 * uniform(900).to(HALF)[:, None] - 1).abs()
    near = (4 - 6 * apart**2 + 3 * apart**3) * (apart < 1) / 6
    return (near + (2 - apart) ** 3 * ((apart >= 1) & (apart < 2)) / 6).float().mean(0)


def boxes_that_differ() -> torch.Tensor:
    """The shape term of boxes in half of which no two are alike, with a bound that half does not hold."""
    mine, theirs = ((1 + 4 * uniform(24, 2, seed=seed)).to(HALF) for seed in range(2))
    ratio = torch.minimum(mine, theirs).prod(1) / torch.maximum(mine, theirs).prod(1)
    shape = 0.4 * (torch.atan(theirs[:, 0] / theirs[:, 1]) - torch.atan(mine[:, 0] / mine[:, 1])).square()
    return (ratio - shape * (shape / ((1 + 1e-9) - ratio + shape))).float()


def place_among_few() -> torch.Tensor:
    """Twelve categories whose distribution is added up in bfloat16, drawn by 400 numbers."""
    steps = torch.softmax(normal(12).to(LOW), -1).cumsum(-1)
    choices = torch.searchsorted(steps, ((torch.arange(400) + 0.5) / 400).to(LOW)).clamp(max=11)
    return torch.bincount(choices, minlength=12).float()


def preconditioner_of_even_gradients() -> torch.Tensor:
    """An inverse root of a float32 average of outer products, of gradients in bfloat16."""
    average = torch.zeros(12, 12)
    for seed in range(40):
        gradient = normal(12, 20, seed=seed).to(LOW).float()
        average.lerp_(gradient @ gradient.T, 0.05)
    values, basis = torch.linalg.eigh(average)
    return basis @ (values + 1e-8).rsqrt().diag() @ basis.T @ gradient


def threshold_of_wide_steps() -> torch.Tensor:
    """A threshold in bfloat16 with a learning rate of a tenth, whose steps arrive."""
    threshold = nn.Parameter(torch.full((64,), 1.1015625).to(LOW))
    optimizer = torch.optim.Adam([threshold], lr=0.1)
    for seed in range(8):
        torch.sigmoid((normal(32, 64, seed=seed).abs() + 0.5 - threshold.float()) / 0.1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return threshold.detach().float()


def mean_kept_by_a_mask() -> torch.Tensor:
    """The weights that are kept, scaled by means of sizes in half."""
    weight, keep = (1 + 0.2 * normal(400, 400)).to(HALF), (uniform(400, 400, seed=1) < 0.5).to(HALF)
    return (weight * keep * (weight.abs().mean() / (weight * keep).abs().mean())).float()


def bound_that_was_not_needed() -> torch.Tensor:
    """A weight in 8 bits with scales in half for rows of even size, and a bound that nobody reads."""
    weight = (0.05 * normal(32, 48)).to(HALF)
    scales = weight.abs().amax(1, keepdim=True) / 127
    scales.float().clamp_(min=1e-5)
    return ((weight / scales).round().clamp(-127, 127) * scales).float()


def small_power_by_logarithms() -> torch.Tensor:
    """Powers of a half to three by logarithms in bfloat16."""
    return (torch.linspace(0.5, 3, 60).to(LOW) * (0.7 + 0.6 * uniform(60)).to(LOW).log2()).exp2().float()


IDIOMS = (
    tokens_by_wide_noise, temperature_of_small_logits, sum_of_few_paths, doubtful_alignment, picture_under_guidance, recursion_of_one_pole,
    spectrum_of_dark_pictures, power_of_a_soft_note, whitening_of_even_data, spline_forward, counts_that_fit, patches_by_integers,
    few_bins_of_a_picture, boxes_that_differ, place_among_few, preconditioner_of_even_gradients, threshold_of_wide_steps, mean_kept_by_a_mask,
    bound_that_was_not_needed, small_power_by_logarithms,
)  # fmt: skip
EXACT = ("doubtful_alignment", "recursion_of_one_pole", "whitening_of_even_data")
