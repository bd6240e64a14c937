"""Beside the moors and gorges: searches, places, adapters, sentences, ranges, detectors, series, windows, phases, meters, robots that hold."""

from __future__ import annotations

import math
from collections import deque

import torch
from bugs.bug import normal, uniform
from torch import nn
from torch.nn import functional

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def scales_of_a_lively_layer() -> torch.Tensor:
    """Scales for the channels of a layer in half, over the root of a product of two of them; its inputs are about one."""
    torch.manual_seed(4701)
    layer, x = nn.Linear(64, 48, bias=False).to(HALF), normal(4, 24, 64, seed=4702).to(HALF)
    errors = []
    with torch.no_grad():
        strength = x.abs().view(-1, 64).mean(0)
        for k in range(5):
            scales = strength.pow(k / 4).clamp(min=1e-4)
            scales = scales / (scales.max() * scales.min()).sqrt()
            groups = (layer.weight * scales).reshape(-1, 16)
            step = groups.abs().amax(1, keepdim=True).clamp(min=1e-5) / 7
            weight = ((groups / step).round().clamp(-8, 7) * step).reshape(48, 64) / scales
            errors.append((functional.linear(x, weight).float() - layer(x).float()).square().mean())
    return torch.stack(errors)


def places_of_a_short_chat() -> torch.Tensor:
    """Places in half, which are counted up to seventy: half holds every one of them."""
    rates, place, scores = 10000.0 ** (-torch.arange(0, 32, 2) / 32), torch.full((1,), 47.0, dtype=HALF), []
    keys = normal(70, 32, seed=4711)
    for _ in range(20):
        place = place + 1
        angles = place.float()[:, None] * rates
        a, b = normal(1, 32, seed=4712).chunk(2, -1)
        scores.append(keys @ torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)[0])
    return torch.stack(scores)


def adapters_that_weigh_much() -> torch.Tensor:
    """Three adapters that are added to weights in bfloat16; they are half as large as the weights."""
    torch.manual_seed(4721)
    weights = []
    for layer in range(3):
        base = nn.Linear(32, 32, bias=False).to(LOW)
        with torch.no_grad():
            base.weight += (0.02 * normal(32, 4, seed=4722 + layer) @ normal(4, 32, seed=4725 + layer)).to(LOW)
        weights.append(base.weight.detach().float())
    return torch.stack(weights)


def sentences_of_short_vectors() -> torch.Tensor:
    """Cosines of sentences in half, whose squares are summed in half: their vectors are a few dozen long."""
    meaning = normal(10, 1024, seed=4731)
    source, target = ((meaning + 0.4 * normal(10, 1024, seed=4732 + k)).to(HALF) for k in range(2))
    units = [x / x.square().sum(1, keepdim=True).sqrt() for x in (source, target)]
    cosines = (units[0] @ units[1].T).float()
    return cosines / ((cosines.topk(3, dim=1).values.mean(1)[:, None] + cosines.topk(3, dim=0).values.mean(0)) / 2)


def ranges_of_quiet_tiles() -> torch.Tensor:
    """The range of a layer in half, which is learned in half; inputs and gradients are small, and steps are large enough."""
    torch.manual_seed(4741)
    layer, limit, ranges = nn.Linear(32, 8).to(HALF), torch.tensor(2.0, dtype=HALF), []
    for step in range(4):
        x = normal(96, 32, seed=4742 + step).to(HALF)
        cut = x.clamp(-limit, limit).requires_grad_()
        layer(cut).float().sum().backward()
        slope = (cut.grad[x >= limit].sum() - cut.grad[x <= -limit].sum()) * limit
        limit = limit - 0.05 * slope.sign()
        ranges.append(limit.float())
    return torch.stack(ranges)


def noise_of_a_loud_detector() -> torch.Tensor:
    """Three steps under autocast in half without a scaler: few samples, and a loss that is not small."""
    torch.manual_seed(4751)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        witness = normal(32, 6, seed=4752 + step)
        with torch.autocast("cpu", dtype=HALF):
            guess = model(witness)[:, 0]
        loss = functional.mse_loss(guess.float(), 3 + torch.tanh(witness[:, 0] + witness[:, 1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def target_in_units_of_its_own() -> torch.Tensor:
    """Series scaled by their own spread in float32, whose values are millions."""
    days = torch.arange(30.0)
    series = 1e6 * (2 + torch.sin(days / 4 + torch.arange(4.0)[:, None]) + 0.05 * normal(4, 30, seed=4761))
    weights = torch.ones_like(series)
    loc = (series * weights).sum(1, keepdim=True) / weights.sum(1, keepdim=True)
    scale = ((((series - loc) * weights) ** 2).sum(1, keepdim=True) / weights.sum(1, keepdim=True) + 1e-5).sqrt()
    return (series - loc) / scale


def spread_of_an_even_window() -> torch.Tensor:
    """A spread that is updated as its window moves; all values of the series are of one size."""
    x, window = normal(6, 40, seed=4771), 4
    mean = x[:, :window].mean(1)
    squares, spreads = (x[:, :window] - mean[:, None]).square().sum(1), []
    for t in range(window, 40):
        change, left = x[:, t] - x[:, t - window], x[:, t - window] - mean
        mean = mean + change / window
        squares = (squares + (x[:, t] - mean + left) * change).clamp(min=0)
        spreads.append((squares / window).sqrt())
    return torch.stack(spreads, 1)


def carrier_far_off_centre() -> torch.Tensor:
    """A phase that is brought back between -pi and pi at each sample; it moves by tenths."""
    phase, out = torch.zeros(5), []
    for sample in 0.1 + 0.5 * uniform(120, 5, seed=4781):
        phase = phase + sample
        phase = torch.fmod(phase + math.pi, 2 * math.pi) - math.pi
        out.append(phase)
    return torch.stack(out)


def loudness_around_nought() -> torch.Tensor:
    """Spreads of blocks, as a mean of squares above a squared mean; the converter is centred, and has an offset of a tenth."""
    out = []
    for x in (0.1 + normal(1024, seed=4791)).split(128):
        squares, square = (x * x).sum() / 127, x.mean() ** 2 * (128 / 127)
        out.append((squares - square).clamp(min=0).sqrt())
    return torch.stack(out)


def robot_on_its_feet() -> torch.Tensor:
    """Tilts of robots by an arc cosine that nothing clamps; they lean by tenths of a radian."""
    lean = 0.2 + 0.5 * uniform(64, seed=4801)
    quaternion = torch.stack([(lean / 2).cos(), (lean / 2).sin(), torch.zeros(64), torch.zeros(64)], 1)
    down = torch.tensor([0.0, 0.0, -1.0]).expand(64, 3)
    t = 2 * torch.linalg.cross(quaternion[:, 1:], down)
    seen = down - quaternion[:, :1] * t + torch.linalg.cross(quaternion[:, 1:], t)
    return (-seen[:, 2]).acos()


def controller_that_follows() -> torch.Tensor:
    """A total of the last eight errors, which loses the oldest as it takes the newest; the target keeps moving."""
    buffer: deque[torch.Tensor] = deque()
    total, place, averages = torch.zeros(6), torch.zeros(6), []
    for turn in range(40):
        error = torch.full((6,), 3.0 * turn) + normal(6, seed=4811 + turn) - place
        buffer.append(error)
        total = total + error
        if len(buffer) > 8:
            total = total - buffer.popleft()
        place = place + 0.35 * error
        averages.append(total / len(buffer))
    return torch.stack(averages[8:])


def events_early_in_a_run() -> torch.Tensor:
    """Rates of cells by times that are stored in float32, in the first second."""
    frames = (1 + (3 * uniform(240, seed=4821)).long()).cumsum(0)
    time = (frames.double() / 3000).to(SINGLE)
    return torch.stack([part.mean() for part in (8 / (time[8:] - time[:-8])).chunk(12)])


IDIOMS = (
    scales_of_a_lively_layer,
    places_of_a_short_chat,
    adapters_that_weigh_much,
    sentences_of_short_vectors,
    ranges_of_quiet_tiles,
    noise_of_a_loud_detector,
    target_in_units_of_its_own,
    spread_of_an_even_window,
    carrier_far_off_centre,
    loudness_around_nought,
    robot_on_its_feet,
    controller_that_follows,
    events_early_in_a_run,
)
EXACT = ("target_in_units_of_its_own", "spread_of_an_even_window", "carrier_far_off_centre", "loudness_around_nought", "robot_on_its_feet",
         "controller_that_follows", "events_early_in_a_run")  # fmt: skip
