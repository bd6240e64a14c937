"""Searches, chances, memories and displays that look like the bugs of optima, survivals, memories and displays."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32
EIGHT = torch.float8_e4m3fn


def improvement_near_the_best() -> torch.Tensor:
    """Expected improvement in float32 of candidates that are about as good as the best, so that both terms have one sign or differ in size."""
    spread = 0.5 + uniform(64)
    z = 2 * uniform(64, seed=1)
    density, chance = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi), (1 + torch.erf(z / math.sqrt(2))) / 2
    found = spread * (density + z * chance)
    return found / found.sum()


def search_on_a_small_loss() -> torch.Tensor:
    """Backtracking in float32 on a loss that ends at zero, for the few turns in which each step lowers it by much."""
    inputs, goal = normal(256, 6), normal(6, seed=1)
    weight = torch.zeros(6)
    for _ in range(6):
        residual = inputs @ (goal - weight)
        gradient, step = -2 * inputs.T @ residual, 1 / 128
        while (inputs @ (goal - weight + step * gradient)).square().sum() > residual.square().sum() - 0.1 * step * gradient.square().sum():
            step /= 2
        weight = weight - step * gradient
    return weight


def three_directions_of_curvature() -> torch.Tensor:
    """The largest curvature of a loss by three turns of Lanczos in half: three vectors stay orthogonal to a rounding."""
    inputs, now, before = normal(200, 12) * torch.logspace(0, -1, 12), (normal(12, seed=1).sign() / 12**0.5).to(HALF), torch.zeros(12, dtype=HALF)
    alphas, betas, beta = [], [], torch.zeros((), dtype=HALF)
    gradient = torch.func.grad(lambda at: functional.softplus(inputs @ at).sum())
    for _ in range(3):
        product = torch.func.vjp(gradient, torch.zeros(12))[1](now.float())[0].to(HALF) - beta * before
        alpha = product @ now
        product = product - alpha * now
        beta = product.norm()
        before, now = now, product / beta
        alphas.append(alpha.float())
        betas.append(beta.float())
    rest = torch.stack(betas[:-1])
    return torch.linalg.eigvalsh(torch.diag(torch.stack(alphas)) + torch.diag(rest, 1) + torch.diag(rest, -1))[-1]


def weights_that_matter_in_bfloat16() -> torch.Tensor:
    """Squares in bfloat16 of gradients of 1e-4, which that format holds as well as it holds one."""

    def loss(weight: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(weight @ x) - y).float().square().mean() / 64

    weight, inputs, targets = (normal(8, 12) / 4).to(LOW), normal(64, 12, seed=1).to(LOW), (2 * normal(64, 8, seed=2)).to(LOW)
    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weight, inputs, targets)
    squares = gradients.square().float().mean(0)
    return squares / squares.sum()


def leaves_of_centred_targets() -> torch.Tensor:
    """Values of right leaves in float32 by subtraction from the sum of all, of bins that are alike."""
    bins, gradients = (16 * uniform(4000)).long(), normal(4000, seed=1) + torch.linspace(-1, 1, 4000)
    sums, rows = torch.zeros(16).index_add(0, bins, gradients), torch.bincount(bins, minlength=16).float()
    right = sums.sum() - sums.cumsum(0)
    return -right[:-1] / (rows.sum() - rows.cumsum(0) + 1)[:-1]


def density_of_few_data() -> torch.Tensor:
    """Chances of proposals in float32 by differences of log densities, each of which is a sum of forty numbers near one."""
    inputs, noise = normal(40, 4), normal(40, seed=2)
    return torch.stack(
        [((noise.square().sum() - (noise - inputs @ move).square().sum()) / 2).clamp(max=0).exp() for move in 0.2 * normal(24, 4, seed=3)]
    )


def patients_of_like_risk() -> torch.Tensor:
    """Cox's losses in half of forty patients whose hazards differ by a factor of a hundred at most, by exponentials and their sums."""
    log_hazard = (1.1 * normal(40)).clamp(-2.3, 2.3).to(HALF)
    largest = log_hazard.max()
    return ((log_hazard - largest).exp().cumsum(0).log() + largest - log_hazard).float()


def map_of_large_p() -> torch.Tensor:
    """Two-sided chances in float32 as one less the cumulative chance, of numbers up to two, where that is far from one."""
    z = (2 * normal(6, 64)).clamp(-2, 2)
    return -2 * (2 * (1 - (1 + torch.erf(z.abs() / math.sqrt(2))) / 2)).log().sum(0)


def volumes_of_few_live_points() -> torch.Tensor:
    """Shells of volume in float32 by differences of their cumulative logarithms, of a run of twenty live points, each of which takes a twentieth."""
    log_shares = torch.log1p(-(0.05 + 0.9 * uniform(200))) / 20
    log_volume = log_shares.cumsum(0)
    inner = log_volume[1:] - log_volume[:-1]
    found = log_volume[:-1] + torch.log(-torch.expm1(inner)) + torch.linspace(-8, 0, 199)
    return (found - found.max()).exp()


def direction_that_is_vague() -> torch.Tensor:
    """Losses of directions in half by a Bessel function, for concentrations below four."""
    sure, away = (1 + 3 * uniform(48)).to(HALF), (2 * normal(48, seed=1)).clamp(-3, 3).to(HALF)
    return (math.log(2 * math.pi) + torch.log(torch.special.i0(sure)) - sure * away.cos()).float()


def components_of_three_dimensions() -> torch.Tensor:
    """Chances of four components in half, whose determinants are products of three variances near one."""
    mean, variance = normal(4, 3).to(HALF), (0.5 + uniform(4, 3, seed=1)).to(HALF)
    point = (1.5 * normal(20, 3, seed=2)).to(HALF)
    squares = ((point[:, None] - mean).square() / variance).sum(-1)
    return torch.softmax(-(squares + variance.prod(-1).log()).float() / 2, -1)


def symbols_that_are_near() -> torch.Tensor:
    """Bits of symbols in half as differences of a logistic function, near the middle and of a width below one, where it differs by much."""
    place, scale = (0.4 * normal(60)).to(HALF), (0.5 + 0.25 * uniform(60, seed=1)).to(HALF)
    symbols = (0.8 * normal(60, seed=2)).round().clamp(-1, 1).to(HALF)
    chance = torch.sigmoid((symbols + 0.5 - place) / scale) - torch.sigmoid((symbols - 0.5 - place) / scale)
    return -torch.log2(chance.clamp_min(1e-4)).float()


def attention_by_halves_of_small_scores() -> torch.Tensor:
    """1.5-entmax in half by halving an interval, of scores that are small, so that the threshold has all digits that chances need."""
    halved = ((6 * normal(24, 12)).round() / 8).clamp(-1.5, 1.5).to(HALF)
    low, width = halved.amax(-1, keepdim=True) - 1, 1 - 12**-0.5
    for _ in range(12):
        width = width / 2
        middle = low + width
        low = torch.where((halved - middle).clamp(min=0).square().sum(-1, keepdim=True) >= 1, middle, low)
    chances = (halved - low).clamp(min=0).square().float()
    return chances / chances.sum(-1, keepdim=True)


def steps_of_a_fast_state() -> torch.Tensor:
    """A zero-order hold in bfloat16 of steps that are long beside the rates, so that one less what is left is near one; it is checkpointed."""

    def held(step: torch.Tensor) -> torch.Tensor:
        rate = -torch.arange(1.0, 5).to(LOW)
        kept = torch.exp(step[..., None] * rate)
        return ((kept - 1) / rate).float()

    step = (2 + uniform(16, 8)).to(LOW).requires_grad_()
    added: torch.Tensor = checkpoint(held, step, use_reentrant=False)
    return added.detach()


def focus_that_is_mild() -> torch.Tensor:
    """Sharpening in half by a power of three halves, over eight places: no power is small."""
    focus = torch.softmax(normal(6, 8), -1).to(HALF)
    sharp = focus**1.5
    return (sharp / sharp.sum(-1, keepdim=True)).float()


def scales_of_large_blocks() -> torch.Tensor:
    """Weights near one in blocks of four bits, with a scale of all of them in half; all scales are powers of two."""
    blocks = normal(48, 16)
    blocks = blocks / blocks.abs().amax(-1, keepdim=True) * 6 * 2.0 ** (4 * uniform(48, 1, seed=1)).floor()
    scale = torch.tensor(1 / 32).to(HALF).float()
    scales = (blocks.abs().amax(-1, keepdim=True) / 6 / scale).to(EIGHT).float()
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    steps = blocks / (scales * scale)
    return grid[(steps.abs()[..., None] - grid).abs().argmin(-1)] * steps.sign() * scales * scale


def clock_of_a_short_run() -> torch.Tensor:
    """Thirty-two steps of Heun's method with a clock in half that counts in 32nds, all of which it holds exactly."""
    t, step, y = torch.zeros((), dtype=HALF), torch.tensor(1 / 32, dtype=HALF), torch.stack([torch.linspace(0.5, 1, 4), torch.zeros(4)], -1)

    def slope(t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.stack([y[:, 1], torch.cos(t.float()) - y[:, 0]], -1)

    for _ in range(32):
        first = slope(t, y)
        second = slope(t + step, y + step * first)
        t, y = t + step, y + step * (first + second) / 2
    return y


def lengths_that_begin_large() -> torch.Tensor:
    """The inverse of softplus in bfloat16 of lengths from two to six, whose exponentials are large beside the one that is taken off."""
    length = (2 + 4 * uniform(24)).to(LOW)
    return functional.softplus(torch.log(torch.exp(length) - 1)).float()


def light_by_a_power() -> torch.Tensor:
    """Codes of a screen in half to light by a power of 2.2, which makes a relative error 2.2 times as large."""
    return (((torch.arange(40, 1000, 20) / 1024).to(HALF)) ** 2.2).float()


def ground_of_a_small_ball() -> torch.Tensor:
    """Distances in float32 to a ball of radius one from a place three away, by the usual formula: no term outweighs another."""
    along = -3.0 * torch.linspace(0.96, 1, 40)
    return -along - torch.sqrt(along.square() - (9.0 - 1.0))


def distance_to_a_line_by_a_small_kernel() -> torch.Tensor:
    """Distances of pixels beside a line in half by a kernel of three by three, the smallest of whose values is 0.02."""
    image = torch.zeros(12, 12)
    image[5, 2:9] = 1
    kernel = torch.exp(-torch.tensor([[2**0.5, 1, 2**0.5], [1, 0, 1], [2**0.5, 1, 2**0.5]]) / 0.35).to(HALF)
    near = functional.conv2d(image.to(HALF)[None, None], kernel[None, None], padding=1)[0, 0]
    return torch.nan_to_num(-0.35 * torch.log(near), posinf=0.0).clamp(min=0).float()


def depth_within_a_ball() -> torch.Tensor:
    """Distances from the middle of the ball of Poincaré in bfloat16, of words that are well within its rim."""
    point = normal(40, 4)
    point = (point / point.norm(dim=-1, keepdim=True) * (0.1 + 0.6 * uniform(40, 1, seed=1))).to(LOW)
    length = point.norm(dim=-1, keepdim=True)
    within = torch.where(length > 0.9, point / length * 0.9, point)
    return 2 * torch.atanh(within.norm(dim=-1)).float()


def likeness_of_centred_layers() -> torch.Tensor:
    """How alike layers are in bfloat16 by kernels of centred activations, whose criterion is a sum of squares and cancels nothing."""
    hidden = normal(24, 6)
    layers = [hidden @ normal(6, 16, seed=layer) + 0.1 * normal(24, 16, seed=9 + layer) for layer in range(3)]
    low = [(each - each.mean(0)).to(LOW) for each in layers]

    def both(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return (one.T @ other).square().sum()

    return torch.stack([both(low[0], each) / (both(low[0], low[0]) * both(each, each)).sqrt() for each in low[1:]]).float()


def errors_of_a_near_forecast() -> torch.Tensor:
    """The mean of the logarithm of the hyperbolic cosine in half of errors between one and four: exponentials are below fifty-five."""
    away = ((1 + 3 * uniform(32, 3)) * normal(32, 3, seed=1).sign()).to(HALF)
    return torch.log((torch.exp(away) + torch.exp(-away)) / 2).mean(0).float()


IDIOMS = (
    improvement_near_the_best, search_on_a_small_loss, three_directions_of_curvature, weights_that_matter_in_bfloat16, leaves_of_centred_targets,
    density_of_few_data, patients_of_like_risk, map_of_large_p, volumes_of_few_live_points, direction_that_is_vague,
    components_of_three_dimensions, symbols_that_are_near, attention_by_halves_of_small_scores, steps_of_a_fast_state, focus_that_is_mild,
    scales_of_large_blocks, clock_of_a_short_run, lengths_that_begin_large, light_by_a_power, ground_of_a_small_ball,
    distance_to_a_line_by_a_small_kernel, depth_within_a_ball, likeness_of_centred_layers, errors_of_a_near_forecast,
)  # fmt: skip
EXACT = (
    "improvement_near_the_best", "search_on_a_small_loss", "leaves_of_centred_targets", "density_of_few_data", "map_of_large_p",
    "volumes_of_few_live_points", "ground_of_a_small_ball",
)  # fmt: skip
