"""When the next event comes, and which: a transformer over irregular events (a Hawkes process), in seconds since the log began."""

import math

import torch
import torch.nn.functional as F
from torch import nn

SEQUENCES, EVENTS, TYPES = 4, 96, 6
DIM, HEADS, LAYERS = 32, 4, 2
SAMPLES = 12
HOUR = 3600
STEPS = 1


class TemporalEncoding(nn.Module):
    """Sines and cosines of the time of day and of longer periods."""

    def __init__(self, dim):
        super().__init__()
        self.periods = [2.0**power for power in range(1, dim // 2 + 1)]

    def forward(self, time, like):
        rate = 2 * math.pi / torch.tensor(self.periods) / 60
        phase = time.float()[..., None] * rate
        return torch.cat([phase.sin(), phase.cos()], -1).to(like.dtype)


def elapsed(time):
    """Hours since the event before."""
    return F.pad(time[:, 1:] - time[:, :-1], (1, 0)).float() / HOUR


def excitation(time, decay):
    """What is left of all earlier events at each event, where each adds one."""
    ago = (time[:, :, None] - time[:, None, :]).float() / HOUR
    kernel = torch.exp(-decay * ago).tril(-1)
    return kernel.sum(-1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(out.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


def compensator(rate, gap):
    """The integral of the intensity from one event to the next, by the trapezoid rule: [B, T-1]."""
    mean = (rate[:, :, 1:] + rate[:, :, :-1]).sum(-1) / 2 / (rate.shape[-1] - 1)
    return mean * gap[:, 1:]


def event_chance(area):
    """That anything happens until the next event."""
    return -torch.expm1(-area)


def rescaled(area):
    """Times of a unit Poisson process, if the model is right."""
    return area.cumsum(-1)


def waits(unit):
    """From one event to the next in those times: what a test of the model looks at."""
    return unit[:, 1:] - unit[:, :-1]


def log_likelihood(intensity, kind, area):
    chosen = intensity.gather(-1, kind[..., None])[..., 0]
    return chosen[:, 1:].clamp_min(1e-8).log().sum(1) - area.sum(1)


class EventModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.kinds = nn.Embedding(TYPES, DIM)
        self.encode = TemporalEncoding(DIM)
        self.gap = nn.Linear(2, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.base, self.slope = nn.Linear(DIM, TYPES), nn.Linear(DIM, TYPES)

    def forward(self, time, kind):
        with torch.autocast("cpu", enabled=False):
            gap = elapsed(time)
            excited = excitation(time, 8.0)
            facts = torch.stack([torch.log1p(gap), excited / 4], -1)
        x = self.gap(facts.to(self.gap.weight.dtype))
        x = x + self.kinds(kind).to(x.dtype) + self.encode(time, x)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        base, slope = self.base(x).float(), self.slope(x).float()
        with torch.autocast("cpu", enabled=False):
            steps = torch.linspace(0, 1, SAMPLES)
            later = base[:, :-1, None] + slope[:, :-1, None] * (steps * gap[:, 1:, None])[..., None]
            rate = F.softplus(later - 3).sum(-1)
            area = compensator(rate, gap)
            intensity = F.softplus(base - 3)
            chance, unit = event_chance(area), rescaled(area)
            told = log_likelihood(intensity, kind, area)
        return {"intensity": intensity, "chance": chance, "waits": waits(unit), "loglik": told}


def make():
    torch.manual_seed(0)
    return EventModel()


def batch():
    generator = torch.Generator().manual_seed(62)
    busy = torch.rand(SEQUENCES, EVENTS, generator=generator) < 0.6
    gap = torch.where(busy, torch.randint(2, 90, busy.shape, generator=generator), torch.randint(300, 900, busy.shape, generator=generator))
    start = torch.randint(900_000, 3_000_000, (SEQUENCES, 1), generator=generator)
    return {"time": start + gap.cumsum(1), "kind": torch.randint(0, TYPES, busy.shape, generator=generator)}


def loss(output):
    return -output["loglik"].mean() / EVENTS


def optimizer(params):
    return torch.optim.RMSprop(params, lr=1e-2)
