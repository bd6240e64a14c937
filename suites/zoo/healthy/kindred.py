"""Statistics, times and checkpoints that look like the bugs of moments, clocks and checkpoints."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch.nn import functional

HALF, LOW, WIDE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def spread_about_a_first_guess() -> torch.Tensor:
    """A standard deviation in one pass, in float32, of numbers about 151 from which the first one has been taken away."""
    total, squares, count, guess = torch.zeros(4), torch.zeros(4), 0, None
    for batch in range(10):
        x = 151.0 + 0.1 * normal(2000, 4, seed=batch)
        guess = x[0].clone() if guess is None else guess
        total += (x - guess).sum(0)
        squares += ((x - guess) ** 2).sum(0)
        count += len(x)
    return (squares / count - (total / count) ** 2).sqrt()


def distance_of_other_pictures() -> torch.Tensor:
    """Fréchet's distance in float32 of features that differ: the traces do not cancel to the last digits."""
    moments = []
    for seed in (0, 1):
        features = 0.4 * seed + (1 + seed) * torch.logspace(0, -1, 24) * normal(500, 24, seed=seed)
        moments.append((features.mean(0), torch.cov(features.T)))
    (first, one), (second, two) = moments
    roots = torch.linalg.eigvals(one @ two).sqrt().real.sum()
    return (first - second).square().sum() + one.trace() + two.trace() - 2 * roots


def conformers_without_their_atoms() -> torch.Tensor:
    """Energies of conformers above the lowest, in float32: what is the same of all of them has been left out."""
    energies = 0.02 * normal(12) - 0.4
    own = torch.tensor([-0.5978583943827134, -38.08933878049795], dtype=DOUBLE)
    total = (own * torch.tensor([240, 160], dtype=DOUBLE)).sum()
    relative = (energies - energies.min()) * 627.5094738898777
    return torch.cat([relative.double(), (total + energies.double())])


def frames_by_a_wide_sum() -> torch.Tensor:
    """Integrate-and-fire over weights in half, whose running sum is float32."""
    hidden, weights = normal(400, 8), (0.1 + 0.25 * uniform(400, seed=1)).to(HALF)
    reached = weights.float().cumsum(0)
    token = reached.floor()
    after = (reached - token).clamp(max=weights.float())
    tokens = torch.zeros(100, 8)
    tokens.index_add_(0, token.long(), after[:, None] * hidden)
    return tokens.index_add_(0, (token.long() - 1).clamp(min=0), (weights.float() - after)[:, None] * hidden)


def clock_from_the_start() -> torch.Tensor:
    """Time between readings of a clock that starts with the run, in float32."""
    clock = torch.tensor([step / 100 + 7e-7 * step for step in range(200)])
    return clock[1:] - clock[:-1]


def tables_cast_at_last() -> torch.Tensor:
    """Rotary embeddings of positions up to 4096: angles in float32, sines and cosines in bfloat16, as models have them."""
    queries, keys = normal(48, 32).to(LOW), normal(48, 32, seed=1).to(LOW)
    angles = torch.arange(0, 48 * 85, 85, dtype=WIDE)[:, None] * (10_000.0 ** (-torch.arange(16) / 16))
    cos, sin = angles.cos().to(LOW), angles.sin().to(LOW)
    turned = [torch.cat([x[:, :16] * cos - x[:, 16:] * sin, x[:, 16:] * cos + x[:, :16] * sin], -1) for x in (queries, keys)]
    return (turned[0] @ turned[1].T).float()


def decays_as_logarithms() -> torch.Tensor:
    """Retention with decays between 31/32 and 511/512, as exponentials in float32; the mask is bfloat16, and zero for what is to come."""
    rates = torch.log1p(-torch.exp(torch.linspace(math.log(1 / 32), math.log(1 / 512), 8)))
    places = torch.arange(64.0)
    mask = torch.exp(rates[:, None, None] * (places[:, None] - places).abs()).tril().to(LOW)
    queries, keys, values = ((0.4 * normal(8, 64, 16, seed=seed)).to(LOW) for seed in range(3))
    return ((queries @ keys.transpose(1, 2) / 4 * mask) @ values).float()


def masters_in_the_checkpoint() -> torch.Tensor:
    """Descent on float32 copies of bfloat16 weights, which are saved and loaded with them."""
    weight, target = normal(16, 16).to(LOW).float(), normal(16, 16, seed=1)
    live, master = weight.to(LOW), weight.clone()
    for step in range(20):
        master -= 1e-4 * (live.float() - target)
        live.copy_(master)
        if step % 5 == 4:
            saved = {"weight": live.clone(), "master": master.clone()}
            live, master = saved["weight"], saved["master"]
    return master - weight


def moments_of_bfloat16_weights() -> torch.Tensor:
    """Adam on bfloat16 weights whose moments are loaded in bfloat16: nothing is lost of them but their last bits, and steps are large."""
    weight = torch.nn.Parameter((0.5 * normal(8, 8)).to(LOW))
    optimizer = torch.optim.Adam([weight], lr=0.05, foreach=False)
    for step in range(10):
        weight.grad = (1e-4 * (1 + normal(8, 8, seed=step))).to(LOW)
        optimizer.step()
    again = torch.optim.Adam([weight], lr=0.05, foreach=False)
    again.load_state_dict(optimizer.state_dict())
    weight.grad = (1e-4 * (1 + normal(8, 8, seed=11))).to(LOW)
    again.step()
    return weight.detach().float()


def table_with_large_steps() -> torch.Tensor:
    """An embedding table in half, whose rows move by a twentieth in each step of row-wise Adagrad."""
    weight, momentum = (0.3 * normal(64, 32)).to(HALF), torch.zeros(64)
    for step in range(20):
        rows = (torch.arange(16) * 5 + step) % 64
        gradient = (0.5 * normal(16, 32, seed=step)).to(HALF)
        momentum[rows] += gradient.float().square().mean(-1)
        rate = 5e-2 / (momentum[rows].sqrt() + 1e-8)[:, None]
        weight[rows] = (weight[rows].float() - rate * gradient.float()).to(HALF)
    return weight.float()


def codes_near_their_vectors() -> torch.Tensor:
    """A straight-through estimator in bfloat16, z + (q - z), of vectors near their codes: the difference is small, and its rounding."""
    book = normal(64, 16)
    z = (book[(torch.arange(32) * 7) % 64] + 0.2 * normal(32, 16, seed=1)).to(LOW).requires_grad_()
    q = book.to(LOW)[torch.cdist(z.detach().float(), book).argmin(-1)]
    return ((z + (q - z).detach()) @ normal(16, 8, seed=2).to(LOW)).float()


def whole_levels() -> torch.Tensor:
    """Finite scalar quantisation in bfloat16, z + (round(z) - z): numbers of one grid, whose difference and sum are exact."""
    z = (3 * torch.tanh(normal(40, 6))).to(LOW).requires_grad_()
    codes = z + (z.round() - z).detach()
    return (codes @ normal(6, 4, seed=1).to(LOW)).float()


def decay_of_one_step() -> torch.Tensor:
    """Decays of bfloat16 weights, exp(-exp(w)), computed in bfloat16: exponents of one at most, so that a rounding stays one."""
    rates = (0.5 * normal(32) - 1.0).to(LOW)
    return (torch.exp(-torch.exp(rates)).float() * normal(4, 32, seed=1)).sum(0)


def perplexity_of_a_wide_loss() -> torch.Tensor:
    """Exp of a loss about nine, of bfloat16 logits, with the loss in float32."""
    hidden, head = normal(30, 32).to(LOW), (0.6 * normal(400, 32, seed=1)).to(LOW)
    return torch.exp(functional.cross_entropy((hidden @ head.T).float(), (torch.arange(30) * 17) % 400))


def dither_by_a_pattern() -> torch.Tensor:
    """Frames of a film in four levels, all dithered by one pattern, and their mean: the pattern is meant, since a new one in each frame flickers."""
    still, pattern, mean = uniform(32, 32), uniform(32, 32, seed=1), torch.zeros(32, 32)
    for frame in range(8):
        lit = still + 0.05 * frame
        scale = lit.amax() / 3
        mean = mean + torch.floor(lit / scale + pattern) * scale / 8
    return mean.to(torch.bfloat16)


def a_population_under_one_noise() -> torch.Tensor:
    """Evolution by common random numbers: eight changes of a weight are compared under the same rounding by chance."""
    weight, x, losses = normal(32, 32), normal(16, 32, seed=1), []
    for member in range(8):
        changed = weight + 0.05 * normal(32, 32, seed=member + 2)
        scale = changed.abs().amax(1, keepdim=True) / 7
        drawn = torch.rand(changed.shape, generator=torch.Generator().manual_seed(1000))
        losses.append((x @ (torch.floor(changed / scale + drawn) * scale).t()).square().mean())
    return torch.stack(losses).to(torch.bfloat16)


IDIOMS = (dither_by_a_pattern, a_population_under_one_noise, codes_near_their_vectors, whole_levels, decay_of_one_step,
          perplexity_of_a_wide_loss,
          spread_about_a_first_guess, distance_of_other_pictures, conformers_without_their_atoms, frames_by_a_wide_sum, clock_from_the_start,
          tables_cast_at_last, decays_as_logarithms, masters_in_the_checkpoint, moments_of_bfloat16_weights, table_with_large_steps)  # fmt: skip
EXACT = ("spread_about_a_first_guess", "distance_of_other_pictures", "conformers_without_their_atoms", "clock_from_the_start")
