"""A particle filter that is trained from end to end: a robot in a large hall, distances to beacons, learned noise. Research code with loops."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = 1
B, T, N, BEACONS, HID = 2, 12, 128, 6, 32
HALL, DT, SIGMA = 400.0, 0.1, 3.0
PRECISIONS = ("bf16-mixed", "16-mixed")  # places in metres are inputs, which a conversion of everything would round


def wrap(angle):
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi


def move(state, speed, turn, noise):
    """state: [batch, particles, 3] are x, y and heading. The heading is kept between -pi and pi."""
    heading = wrap(state[..., 2] + DT * turn + 0.02 * noise[..., 2])
    step = DT * (speed + noise[..., 0])
    x = state[..., 0] + step * torch.cos(heading)
    y = state[..., 1] + step * torch.sin(heading)
    return torch.stack([x, y, heading], -1)


def ranges(state, beacons):
    """Distances from every particle to every beacon."""
    apart = state[..., None, :2] - beacons
    return torch.sqrt((apart * apart).sum(-1) + 1e-6)


def log_likelihood(expected, seen, spread):
    z = (expected - seen[:, None]) / spread
    return (-0.5 * z * z - torch.log(spread)).sum(-1)


def reweight(logw, ll):
    """Weights that add up to one, as logarithms."""
    logw = logw + ll
    return logw - torch.logsumexp(logw, -1, keepdim=True)


def effective(logw):
    """How many particles count, as a share of all."""
    return torch.exp(-torch.logsumexp(2 * logw, -1)) / N


def resample(state, logw, u):
    """Systematic resampling. u: [batch], between 0 and 1."""
    cdf = torch.cumsum(torch.exp(logw.detach()), -1)
    cdf = cdf / cdf[:, -1:]
    marks = (torch.arange(N) + u[:, None]) / N
    idx = torch.searchsorted(cdf, marks).clamp(max=N - 1)
    picked = torch.gather(state, 1, idx[..., None].expand(-1, -1, 3))
    w = torch.gather(logw, 1, idx)
    return picked, w - w.detach() - math.log(N)


def centre(state, logw):
    w = torch.exp(logw)[..., None]
    return (w * state[..., :2]).sum(1)


def spread_of(state, logw):
    """The weighted variance of where particles are, in square metres."""
    w = torch.exp(logw)[..., None]
    mean = (w * state[..., :2]).sum(1, keepdim=True)
    return (w * (state[..., :2] - mean) ** 2).sum(1)


class Filter(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.GRU(BEACONS + 2, HID, batch_first=True)
        self.head = nn.Sequential(nn.Linear(HID, HID), nn.ReLU(), nn.Linear(HID, BEACONS + 2))

    def forward(self, start, beacons, odometry, seen, target, noise, u):
        h, _ = self.encoder(torch.cat([seen / HALL, odometry], -1))
        out = self.head(h)
        with torch.autocast("cpu", enabled=False):
            return self.track(out.float(), start, beacons, odometry, seen, target, noise, u)

    def track(self, out, start, beacons, odometry, seen, target, noise, u):
        spread, fix = SIGMA * (0.5 + F.softplus(out[..., :BEACONS])), out[..., BEACONS:]
        state = start[:, None].expand(-1, N, -1) + noise[:, 0] * torch.tensor([2.0, 2.0, 0.1])
        logw = torch.full((B, N), -math.log(N))
        means, shares, loss = [], [], 0.0
        for t in range(T):
            odo = odometry[:, t] + 0.1 * torch.tanh(fix[:, t])
            state = move(state, odo[:, None, 0], odo[:, None, 1], noise[:, t])
            logw = reweight(logw, log_likelihood(ranges(state, beacons), seen[:, t], spread[:, t, None]))
            mean = centre(state, logw)
            loss = loss + F.smooth_l1_loss(mean, target[:, t])
            means.append(mean - start[:, :2])
            shares.append(effective(logw))
            if t % 4 == 3:
                state, logw = resample(state, logw, u[:, t])
        area = spread_of(state, logw)
        loss = loss / T + 0.01 * area.mean()
        return {"loss": loss, "moved": torch.stack(means, 1), "shares": torch.stack(shares, 1), "area": area}


def make():
    torch.manual_seed(0)
    return Filter()


def batch():
    g = torch.Generator().manual_seed(12)
    beacons = HALL * torch.rand(BEACONS, 2, generator=g)
    state = torch.tensor([[310.0, 250.0, 0.3], [120.0, 340.0, -2.0]])
    start, seen, target, odometry = state, [], [], torch.stack([8 + torch.rand(B, T, generator=g), torch.randn(B, T, generator=g)], -1)
    for t in range(T):
        state = move(state[:, None], odometry[:, t, None, 0], odometry[:, t, None, 1], torch.zeros(B, 1, 3))[:, 0]
        seen.append(ranges(state[:, None], beacons)[:, 0] + SIGMA * torch.randn(B, BEACONS, generator=g))
        target.append(state[:, :2])
    return {
        "start": start,
        "beacons": beacons,
        "odometry": odometry,
        "seen": torch.stack(seen, 1),
        "target": torch.stack(target, 1),
        "noise": torch.randn(B, T, N, 3, generator=g),
        "u": torch.rand(B, T, generator=g),
    }


def loss(output):
    return output["loss"]


optimizer = None
