"""Which crop grows on a field: a satellite's bands through the years, weather, and attention over the days that were clear."""

import math

import torch
import torch.nn.functional as F
from torch import nn

FIELDS, IMAGES, PIXELS, BANDS = 4, 40, 24, 6
DIM, HEADS, CROPS = 32, 4, 7
RED, NEAR, SHORT = 2, 3, 4
BASE = 90
STEPS = 1


def reflectance(bands):
    """Of 16-bit numbers: what part of the light comes back."""
    return bands.float() / 10_000


def vegetation_index(bands):
    near, red = bands[..., NEAR], bands[..., RED]
    return (near - red) / (near + red)


def pixel_statistics(x):
    """Mean and spread over the pixels of a field."""
    mean = x.mean(2)
    spread = (x - mean[:, :, None]).square().mean(2).sqrt()
    return torch.cat([mean, spread], -1)


def day_encoding(day, dim):
    """Sines and cosines of the day in its year, in octaves from a year down to weeks."""
    turn = 2 * math.pi * day.float() / 365.25
    octave = 2.0 ** torch.arange(dim // 8)
    phase = turn[..., None] * octave
    return torch.cat([phase.sin(), phase.cos()], -1)


def degree_days(temperature, day):
    """Warmth since the first day, in hundreds of degrees: tenths of a degree above nine, a day at a time, and of these the days with images."""
    warm = (temperature - BASE).clamp_min(0).float() / 10
    total, totals = torch.zeros(len(warm)), []
    for each in warm.unbind(1):
        total = total + each
        totals.append(total)
    since = day - day[:, :1]
    return torch.stack(totals, 1).gather(1, since) / 100


def stress(surface, air):
    """How much warmer leaves are than the air, from hundredths of Kelvin."""
    surface, air = surface.float() / 100, air.float() / 100
    return surface - air


def growth(index, day):
    """Change of the index each ten days."""
    step = (day[:, 1:] - day[:, :-1]).float() / 10
    return F.pad((index[:, 1:] - index[:, :-1]) / step, (1, 0))


def moisture_gap(bands):
    """How far short-wave light is from the line between its neighbours."""
    between = (bands[..., NEAR] + bands[..., SHORT + 1]) / 2
    return bands[..., SHORT] - between


class TemporalAttention(nn.Module):
    """One query a head, over the images of a field (L-TAE)."""

    def __init__(self):
        super().__init__()
        self.query = nn.Parameter(torch.randn(HEADS, DIM // HEADS))
        self.key, self.norm = nn.Linear(DIM, DIM), nn.LayerNorm(DIM)

    def forward(self, x, clear):
        b, t, _ = x.shape
        key = self.key(x).view(b, t, HEADS, DIM // HEADS)
        score = torch.einsum("bthd,hd->bht", key, self.query) / (DIM // HEADS) ** 0.5
        weight = (score.float() + clear.clamp_min(1e-4).log()[:, None]).softmax(-1)
        out = torch.einsum("bht,bthd->bhd", weight.to(x.dtype), x.view(b, t, HEADS, DIM // HEADS))
        return self.norm(out.flatten(1))


class CropNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.pixel = nn.Sequential(nn.Linear(BANDS + 1, DIM), nn.ReLU(), nn.Linear(DIM, DIM // 2))
        self.day = nn.Linear(2 * (DIM // 8) + 4, DIM)
        self.attention = TemporalAttention()
        self.head = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, CROPS))

    def forward(self, bands, day, temperature, surface, air, cloud):
        with torch.autocast("cpu", enabled=False):
            light = reflectance(bands)
            index = vegetation_index(light)
            field_index = index.mean(2)
            dry = moisture_gap(light).mean(2)
            warmth, hot = degree_days(temperature, day), stress(surface, air)
            rising = growth(field_index, day)
            facts = torch.cat([day_encoding(day, DIM), torch.stack([warmth / 10, hot / 2, 20 * rising, 20 * dry], -1)], -1)
            clear = 1 - cloud.float() / 100
        x = self.pixel(torch.cat([light, index[..., None]], -1).to(self.pixel[0].weight.dtype))
        x = pixel_statistics(x.float())
        x = x.to(self.day.weight.dtype) + self.day(facts.to(self.day.weight.dtype))
        out = self.head(self.attention(x, clear))
        return {"logits": out, "index": field_index, "warmth": warmth, "stress": hot, "growth": rising, "moisture": dry}


def make():
    torch.manual_seed(0)
    return CropNet()


def batch():
    generator = torch.Generator().manual_seed(64)
    day = 2900 + torch.randint(3, 9, (FIELDS, IMAGES), generator=generator).cumsum(1)
    season = torch.sin(2 * math.pi * (torch.arange(400) - 100) / 365.25)
    temperature = (120 + 40 * season + 20 * torch.randn(FIELDS, 400, generator=generator)).round().long()
    soil = torch.tensor([900, 1100, 1500, 1750, 1820, 1860])
    bands = soil + torch.randint(-60, 60, (FIELDS, IMAGES, PIXELS, BANDS), generator=generator)
    air = 29_200 + torch.randint(-900, 900, (FIELDS, IMAGES), generator=generator)
    return {
        "bands": bands,
        "day": day,
        "temperature": temperature,
        "surface": air + torch.randint(-150, 400, air.shape, generator=generator),
        "air": air,
        "cloud": torch.randint(0, 90, (FIELDS, IMAGES), generator=generator),
    }


def loss(output):
    return F.cross_entropy(output["logits"].float(), torch.tensor([0, 3, 5, 6]))


def optimizer(params):
    return torch.optim.RMSprop(params, lr=1e-2)
