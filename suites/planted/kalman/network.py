"""A deep Kalman filter that follows vehicles: a network tells how far each reading is to be trusted, the filter is written out."""

import torch
from torch import nn

N, TICKS, SIZE = 12, 24, 32
STEPS = 1


class Trust(nn.Module):
    """Reads what the sensor says of itself, gives the variance of the reading."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(6, SIZE, batch_first=True), nn.Linear(SIZE, 2)

    def forward(self, features):
        hidden, _ = self.cell(features)
        return 0.5 + nn.functional.softplus(self.head(hidden).float())


def step_lengths(times, low):
    """Seconds between readings. times: seconds of the day, float64, [N, T]."""
    return (times[:, 1:] - times[:, :-1]).float()


def transition(dt):
    """Position, velocity along two axes: [N, 4, 4]."""
    f = torch.eye(4).repeat(len(dt), 1, 1)
    f[:, 0, 2] = f[:, 1, 3] = dt
    return f


def process_noise(dt, low, q=0.5):
    """What an acceleration that is not known adds to the covariance."""
    entries = [dt**4 / 4, dt**3 / 2, dt**2]
    noise = torch.zeros(len(dt), 4, 4)
    for axis in (0, 1):
        noise[:, axis, axis] = q * entries[0]
        noise[:, axis, axis + 2] = noise[:, axis + 2, axis] = q * entries[1]
        noise[:, axis + 2, axis + 2] = q * entries[2]
    return noise


def innovation(reading, state, low):
    """How far the reading is from what was expected, in metres. Both are absolute places of some ten kilometres."""
    return reading - state[:, :2]


def corrected(p, gain, low):
    """The covariance after a reading."""
    rest = torch.eye(4) - gain @ torch.eye(2, 4)
    return rest @ p


def log_likelihood(y, s, low):
    """The logarithm of the density of an innovation y with covariance s, without its constant."""
    det = s[:, 0, 0] * s[:, 1, 1] - s[:, 0, 1] * s[:, 1, 0]
    inverse = torch.stack([s[:, 1, 1], -s[:, 0, 1], -s[:, 1, 0], s[:, 0, 0]], -1).view(-1, 2, 2) / det[:, None, None]
    return -0.5 * (torch.einsum("ni,nij,nj->n", y, inverse, y) + det.log())


def gate(y, s, low):
    """The squared distance in units of the covariance's mean, by which outliers are told."""
    return y.square().sum(-1) / (s[:, 0, 0] + s[:, 1, 1])


def headings(rates, dt, low):
    """How far each vehicle has turned, in degrees, from a heading of 200."""
    heading = torch.full((len(rates),), 200.0)
    out = []
    for k in range(rates.shape[1]):
        heading = heading + rates[:, k] * dt[:, k]
        out.append(heading)
    return torch.stack(out, 1).float() - 200.0


def evidence(logs, low):
    """The density of the last readings together, as a mean of their logarithms."""
    return logs.mean(1)


class DeepKalman(nn.Module):
    def __init__(self):
        super().__init__()
        self.trust = Trust()

    def forward(self, features, readings, times, rates):
        low = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else features.dtype
        variances = self.trust(features)
        with torch.autocast("cpu", enabled=False):
            dt = step_lengths(times, low)
            readings = readings.float()
            state = torch.cat([readings[:, 0], torch.zeros(N, 2)], -1)
            p = torch.diag(torch.tensor([4.0, 4.0, 100.0, 100.0])).repeat(N, 1, 1)
            logs, gates = [], []
            for k in range(1, TICKS):
                f = transition(dt[:, k - 1])
                state, p = torch.einsum("nij,nj->ni", f, state), f @ p @ f.transpose(1, 2) + process_noise(dt[:, k - 1], low)
                y = innovation(readings[:, k], state, low)
                s = p[:, :2, :2] + torch.diag_embed(variances[:, k])
                gain = p[:, :, :2] @ torch.linalg.inv(s)
                state, p = state + torch.einsum("nij,nj->ni", gain, y), corrected(p, gain, low)
                logs.append(log_likelihood(y, s, low))
                gates.append(gate(y, s, low))
            track = evidence(torch.stack(logs, 1)[:, -8:].clamp_min(-9), low)
            turned = headings(rates, dt, low)
        return {"loss": -track.mean(), "state": state, "covariance": p, "gates": torch.stack(gates, 1), "headings": turned}


PRECISIONS = ("bf16-mixed", "16-mixed")  # places are inputs


def make():
    torch.manual_seed(0)
    return DeepKalman()


def batch():
    generator = torch.Generator().manual_seed(3)
    dt = 0.02 + 0.06 * torch.rand(N, TICKS, generator=generator, dtype=torch.float64)
    times = 41234.5 + dt.cumsum(1)
    speed = 15 * torch.randn(N, 1, 2, generator=generator)
    places = 20000 + 3000 * torch.randn(N, 1, 2, generator=generator) + speed * (times - times[:, :1]).float().unsqueeze(-1)
    readings = places + 1.2 * torch.randn(N, TICKS, 2, generator=generator)
    readings[3, 10] += 300  # an echo
    return {
        "features": torch.randn(N, TICKS, 6, generator=generator),
        "readings": readings,
        "times": times,
        "rates": 4 + 2 * torch.randn(N, TICKS - 1, generator=generator),
    }


def loss(output):
    return output["loss"]


optimizer = None
