"""Compresses images: an encoder, a quantised code, and a second code that tells how widely the first one is spread."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

B, PIXELS, N, M = 2, 32, 24, 16
STEPS = 1


def lowest(model):
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else next(model.parameters()).dtype


class Divisive(nn.Module):
    """Generalised divisive normalisation: each channel by the power of all."""

    def __init__(self, channels):
        super().__init__()
        self.beta = nn.Parameter(torch.ones(channels))
        self.gamma = nn.Parameter(0.1 * torch.eye(channels) + 0.001)

    def forward(self, x):
        wide = x.float()
        power = F.conv2d(wide.square(), self.gamma.float()[..., None, None], self.beta.float())
        return (wide * power.rsqrt()).to(x.dtype)


def phi(x):
    return 0.5 * torch.erfc(-x / math.sqrt(2))


def chances(code, scale, low):
    """How likely each whole number is under a normal distribution around nought."""
    size = code.abs()
    return phi((0.5 - size) / scale) - phi((-0.5 - size) / scale)


def bits(chance, low):
    return -torch.log2(chance.clamp_min(1e-9))


def logistic_chances(code, location, scale, low):
    """The same under a logistic distribution, for the second code."""
    upper, lower = (code + 0.5 - location) / scale, (code - 0.5 - location) / scale
    sign = -(upper + lower).sign()
    return (torch.sigmoid(sign * upper) - torch.sigmoid(sign * lower)).abs()


def scale_table(low, count=64, least=6.0, most=64.0):
    return torch.exp(torch.linspace(math.log(least), math.log(most), count))


def frequencies(scales, low, total=65536, reach=24):
    """Whole frequencies of an arithmetic coder for each scale: [S, 2 * reach + 1]."""
    numbers = torch.arange(-reach, reach + 1)
    share = chances(numbers.float(), scales[:, None], torch.float32)
    share = share / share.sum(-1, keepdim=True)
    return (share * (total - 2 * reach - 1)).round() + 1


def intervals(table, low):
    """How wide the coder's interval of each number is, between the starts of two: what a decoder looks up."""
    starts = table.cumsum(-1)
    return starts[:, 1:] - starts[:, :-1]


def squared_error(image, made, low):
    """Of pixels from 0 to 255, a mean for each image."""
    return (image - made).square().mean((1, 2, 3))


def decibels(error, low):
    return 10 * (255**2 / error).log10()


def total_bits(spent, low):
    """All bits of each image, row by row as a coder counts them: [B]."""
    rows = spent.flatten(1).unflatten(1, (-1, 4)).sum(-1)
    total = torch.zeros(len(rows))
    for k in range(rows.shape[1]):
        total = total + rows[:, k]
    return total


class Compressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(3, N, 5, 2, 2), Divisive(N), nn.Conv2d(N, M, 5, 2, 2))
        self.spread = nn.Sequential(nn.Conv2d(M, N, 3, 1, 1), nn.ReLU(), nn.Conv2d(N, N, 5, 2, 2))
        self.unspread = nn.Sequential(nn.ConvTranspose2d(N, N, 4, 2, 1), nn.ReLU(), nn.Conv2d(N, M, 3, 1, 1))
        self.decode = nn.Sequential(nn.ConvTranspose2d(M, N, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(N, 3, 4, 2, 1))
        self.location = nn.Parameter(0.2 * torch.randn(N))
        self.width = nn.Parameter(torch.zeros(N))

    def forward(self, image, noise, more):
        low = lowest(self)
        y = 6 * self.encode((image / 255).to(low))
        z = 4 * self.spread(y)
        with torch.autocast("cpu", enabled=False):
            y, z = y.float() + noise.float(), z.float() + more.float()  # instead of rounding, while it learns
            width = 6 * F.softplus(self.width.float())[:, None, None]
            second = logistic_chances(z, self.location.float()[:, None, None], width, low)
        raw = self.unspread(z.to(low))
        picture = self.decode(y.to(low))
        with torch.autocast("cpu", enabled=False):
            scale = 24 * F.softplus(raw.float()) + 0.11
            first = chances(y, scale, low)
            spent = total_bits(bits(first, low), low) + total_bits(bits(second, low), low)
            made = image.float() + 8 * torch.tanh(picture.float())
            error = squared_error(image.float(), made, low)
            table = intervals(frequencies(scale_table(low), low), low)
            loss = spent.mean() / PIXELS**2 + 0.01 * error.mean()
        return {"loss": loss, "bits": spent, "error": error, "decibels": decibels(error, low), "table": table, "first": first}


def make():
    torch.manual_seed(0)
    return Compressor()


def batch():
    generator = torch.Generator().manual_seed(9)
    smooth = F.interpolate(torch.rand(B, 3, 6, 6, generator=generator), PIXELS, mode="bilinear")
    image = (20 + 215 * smooth).round()
    noise = torch.randint(-8, 9, (B, M, PIXELS // 4, PIXELS // 4), generator=generator) / 17
    more = torch.randint(-8, 9, (B, N, PIXELS // 8, PIXELS // 8), generator=generator) / 17
    return {"image": image, "noise": noise, "more": more}


def loss(output):
    return output["loss"]


optimizer = None
