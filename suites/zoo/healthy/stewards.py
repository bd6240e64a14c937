"""Beside the inns, dairies, cellars and beacons: whole places, wide turns, bounded scores, remainders that are kept, chances in logarithms."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW = torch.float16, torch.bfloat16


def places_below_two_thousand() -> torch.Tensor:
    """Places of a text of two thousand words are half, which holds them, and bar what comes later."""
    places = torch.arange(2000, dtype=HALF).view(-1, 100)
    barred = places[:, :, None] < places[:, None, :]
    scores = normal(20, 100, 100, seed=3401)
    return torch.softmax(scores.masked_fill(barred, -torch.inf), -1)


def turns_that_stay_wide() -> torch.Tensor:
    """Angles of a rotation in float32, whose sines and cosines become bfloat16, of bfloat16 queries."""
    speeds = 10_000.0 ** (-torch.arange(0, 32, 2).float() / 32)
    angles = torch.arange(900)[:, None] * speeds
    words, cosine, sine = normal(900, 32, seed=3411).to(LOW), angles.cos().to(LOW), angles.sin().to(LOW)
    even, odd = words[..., 0::2], words[..., 1::2]
    return torch.cat([even * cosine - odd * sine, even * sine + odd * cosine], -1).float()


def cool_token_in_half() -> torch.Tensor:
    """Scores in half are divided by a half, and fit."""
    logits = (3 * normal(4, 200, seed=3421)).to(HALF)
    return torch.softmax((logits / torch.full((4, 1), 0.5, dtype=HALF)).float(), -1)


def codes_times_their_scale_first() -> torch.Tensor:
    """Eight-bit codes become half and are multiplied by their scales before they meet the words."""
    weight = 0.05 * normal(48, 320, seed=3431)
    scale = weight.abs().amax(-1, keepdim=True) / 127
    codes = torch.round(weight / scale).to(torch.int8)
    return ((8 * normal(24, 320, seed=3432)).to(HALF) @ (codes.to(HALF) * scale.to(HALF)).T).float()


def narrow_rows_with_a_least_step() -> torch.Tensor:
    """Rows are rounded to four bits in half; the step of a row of zeros is the least one."""
    weight = (0.1 * normal(8, 64, seed=3441)).to(HALF)
    weight[3] = 0
    low, high = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
    step = ((high - low) / 15).clamp(min=1e-4)
    zero = -torch.round(low / step)
    return ((torch.clamp(torch.round(weight / step) + zero, 0, 15) - zero) * step).float()


def scale_into_small_queries() -> torch.Tensor:
    """Attention by powers of two, whose scale is multiplied into queries in half; scores are a few."""
    query, key, value = (normal(64, 64, seed=3451 + each).to(HALF) for each in range(3))
    scores = (query * (math.log2(math.e) / 8)).float() @ key.float().T
    shares = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return (shares / shares.sum(-1, keepdim=True)) @ value.float()


def limit_after_unscaling() -> torch.Tensor:
    """A step under a loss scale whose gradients are unscaled, looked at, and then cut."""
    torch.manual_seed(3461)
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer, scaler, lengths = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=4096.0), []
    for turn in range(4):
        with torch.autocast("cpu", HALF):
            scores = model(normal(16, 10, seed=3462 + turn))
        scaler.scale(functional.cross_entropy(scores.float(), (4 * uniform(16, seed=3472 + turn)).long())).backward()
        scaler.unscale_(optimizer)
        lengths.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return torch.stack(lengths)


def steps_with_a_remainder() -> torch.Tensor:
    """Weights in bfloat16 take small steps; what rounding leaves over is kept and added the next time."""
    weight, rest = (1 + 0.2 * normal(64, seed=3481)).to(LOW), torch.zeros(64, dtype=LOW)
    for turn in range(30):
        rest = rest + (-2e-4 * (1 + 0.1 * normal(64, seed=3482 + turn))).to(LOW)
        before = weight.clone()
        weight = weight + rest
        rest = rest + (before - weight)
    return weight.float() + rest.float()


def loss_of_a_task_in_float32() -> torch.Tensor:
    """A loss in half is float32 before it is weighted by a ten-millionth."""
    scores = normal(32, 6, seed=3491).to(HALF).requires_grad_()
    loss = functional.cross_entropy(scores, (6 * uniform(32, seed=3492)).long()).float() * 1e-8
    (loss * 2.0**24).backward()
    return scores.grad.float()


def decoder_within_its_bounds() -> torch.Tensor:
    """Under autocast, sums of queries are cut at the largest number of half, which none of them reaches."""
    torch.manual_seed(3501)
    first, second, norm = nn.Linear(24, 96), nn.Linear(96, 24), nn.LayerNorm(24)
    with torch.no_grad(), torch.autocast("cpu", HALF):
        target = (50 * normal(12, 24, seed=3502)).to(HALF)
        return norm((target + second(functional.relu(first(target)))).clamp(min=-65504, max=65504)).float()


def squares_of_small_gradients() -> torch.Tensor:
    """A factored optimizer's step in float32, of gradients of 10^-12, whose squares float32 holds."""
    slope = 1e-12 * normal(12, 16, seed=3511)
    square = slope.square() + 1e-30
    rows, columns = square.mean(-1), square.mean(-2)
    return slope * (rows / rows.mean()).rsqrt()[:, None] * columns.rsqrt()[None, :]


def shares_of_the_source() -> torch.Tensor:
    """Shares in half are added to scores in half, two to a place."""
    places = torch.arange(20) % 10
    scores, shares = normal(6, 10, seed=3521).to(HALF), torch.softmax(normal(6, 20, seed=3522), -1).to(HALF)
    return scores.scatter_add(1, places.expand(6, -1), shares).float()


def spread_with_a_floor() -> torch.Tensor:
    """Spreads are softened and have a floor added, so that one which is zero does no harm."""
    raw = 4 * normal(20, 6, seed=3531)
    raw[:, 2] = -130
    spread = functional.softplus(raw) + 1e-3
    error = normal(20, 6, seed=3532) / spread
    return (0.5 * error.square() + torch.log(spread)).mean(0)


def shares_of_wide_groups() -> torch.Tensor:
    """The shares of groups in points, by exponentials of logarithms that are small."""
    centres, points = normal(3, 6, seed=3541), normal(24, 6, seed=3542)
    chance = -0.5 * (points[:, None] - centres).square().sum(-1) - 6 * math.log(math.sqrt(2 * math.pi))
    return torch.exp(chance - torch.log(torch.exp(chance).sum(-1, keepdim=True)))


def tail_by_log1p() -> torch.Tensor:
    """Quantiles of chances that are well below one, by log1p of their exponential."""
    logs = -torch.logspace(-0.5, 1.2, 40)
    return torch.expm1(-0.3 * torch.log1p(-torch.exp(logs))) / 0.3


def attention_of_old_with_small_energies() -> torch.Tensor:
    """A softmax by hand without the largest taken off, of energies of up to ten."""
    energies = 3 * normal(20, 8, seed=3551)
    raised = torch.exp(energies)
    return (raised / raised.sum(0, keepdim=True)).T @ normal(20, 5, seed=3552)


def chances_made_whole_in_float64() -> torch.Tensor:
    """Chances in float32 are float64 and divided by their sum before a sampler checks them."""
    chances = torch.softmax(3 * normal(500, seed=3561), -1).double()
    chances = chances / chances.sum()
    if abs(float(chances.sum()) - 1) > 1e-8:
        raise ValueError("probabilities do not sum to 1")
    return torch.searchsorted(chances.cumsum(0), uniform(100, seed=3562).double()).float() + 1


def ratios_near_one() -> torch.Tensor:
    """Ratios of a policy's chances which has moved a little, by exponentials of differences."""
    mean, spread = normal(48, 4, seed=3571), torch.full((4,), 0.3)
    actions, before = mean + 0.3 * normal(48, 4, seed=3572), mean + 0.05 * normal(48, 4, seed=3573)
    now = torch.distributions.Normal(mean, spread).log_prob(actions).sum(-1)
    then = torch.distributions.Normal(before, spread).log_prob(actions).sum(-1)
    return torch.exp(now - then).clamp(0.8, 1.2)


def power_of_a_noise() -> torch.Tensor:
    """The gradient of a quiet noise's power in each window, without a root."""
    noise = (1e-8 * normal(512, seed=3581)).requires_grad_()
    spectrum = torch.stft(noise, 64, 16, window=torch.hann_window(64), return_complex=True)
    (spectrum.real.square() + spectrum.imag.square()).sum().backward()
    return noise.grad


def angles_of_sentences_that_differ() -> torch.Tensor:
    """Angles of cosines that are far from one and from minus one."""
    cosine = functional.cosine_similarity(normal(64, 96, seed=3591), normal(64, 96, seed=3592), dim=-1)
    return 1 - torch.acos(cosine.clamp(-1, 1)) / torch.pi


def way_between_wide_directions() -> torch.Tensor:
    """Directions on a third of the way between two that are a radian apart."""
    first = functional.normalize(normal(40, 3, seed=3601), dim=-1)
    second = functional.normalize(first + normal(40, 3, seed=3602), dim=-1)
    angle = torch.acos((first * second).sum(-1, keepdim=True).clamp(-0.999, 0.999))
    return (torch.sin(angle * 2 / 3) * first + torch.sin(angle / 3) * second) / torch.sin(angle)


def ages_since_the_start() -> torch.Tensor:
    """Ages of messages by times since a robot's start, which are a few hundred seconds in float32."""
    now, sent = torch.tensor(312.25), 312.25 - 5 * uniform(40, seed=3611)
    return now - sent


def wave_with_a_fair_start() -> torch.Tensor:
    """A filter's variance by the short form, of a start that is as unsure as what it sees."""
    spread, sure = torch.diag(torch.tensor([1.0, 1.0, 0.1])), []
    turn, look = torch.tensor([[1.0, 0.1, -0.005], [0.0, 1.0, -0.1], [0.0, 0.0, 1.0]]), torch.tensor([[1.0, 0.0, 0.0]])
    for _ in range(6):
        spread = turn @ spread @ turn.T + 1e-3 * torch.eye(3)
        gain = spread @ look.T / (look @ spread @ look.T + 0.5)
        spread = (torch.eye(3) - gain @ look) @ spread
        sure.append(spread.diagonal()[0])
    return torch.stack(sure)


def light_in_kilojoules() -> torch.Tensor:
    """The light of a day in thousands of joules is half for a while, and is normalized in float32."""
    fallen = 40 * torch.arange(1, 25)[:, None, None] * (1 + 0.3 * uniform(24, 8, 8, seed=3621))
    return ((fallen.to(HALF).float() - 500) / 300).mean((1, 2))


IDIOMS = (
    places_below_two_thousand, turns_that_stay_wide, cool_token_in_half, codes_times_their_scale_first, narrow_rows_with_a_least_step,
    scale_into_small_queries, limit_after_unscaling, steps_with_a_remainder, loss_of_a_task_in_float32, decoder_within_its_bounds,
    squares_of_small_gradients, shares_of_the_source, spread_with_a_floor, shares_of_wide_groups, tail_by_log1p, attention_of_old_with_small_energies,
    chances_made_whole_in_float64, ratios_near_one, power_of_a_noise, angles_of_sentences_that_differ, way_between_wide_directions,
    ages_since_the_start, wave_with_a_fair_start, light_in_kilojoules,
)  # fmt: skip
EXACT = {
    "squares_of_small_gradients", "spread_with_a_floor", "shares_of_wide_groups", "tail_by_log1p", "attention_of_old_with_small_energies",
    "chances_made_whole_in_float64", "ratios_near_one", "power_of_a_noise", "angles_of_sentences_that_differ", "way_between_wide_directions",
    "ages_since_the_start", "wave_with_a_fair_start",
}  # fmt: skip
