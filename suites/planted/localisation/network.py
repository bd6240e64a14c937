"""Super-resolution by single molecules, after DECODE and deepSTORM: a network finds them in frames; then drift, linking, and Fourier rings."""

import math

import torch
import torch.nn.functional as F
from torch import nn

FRAMES, SIZE, FOUND, KNOTS, STEPS = 3, 40, 12, 140, 2
OFFSET, GAIN, PIXEL, EVERY, SPREAD, WINDOW, BINS = 1600, 2.2, 100.0, 450, 9.0, 3, 24


def electrons(counts):
    """What the camera has counted, without its offset."""
    return (counts - OFFSET).float() / GAIN


def background(image):
    """The mean of each row's neighbours, by a running sum."""
    run = F.pad(image.cumsum(-1), (1, 0))
    return (run[..., WINDOW:] - run[..., :-WINDOW]) / WINDOW


def profile(place):
    """How much of a molecule's light each pixel gets: a normal that is integrated over it."""
    edge = torch.erf((torch.arange(SIZE + 1) - place[:, None]) / (SPREAD * math.sqrt(2)))
    return (edge[:, 1:] - edge[:, :-1]) / 2


def log_likelihood(counts, rate):
    """Of photons, by Poisson."""
    return torch.xlogy(counts, rate) - rate - torch.lgamma(counts + 1.0)


def misplaced(pixel, offset, origin, truth):
    """In nanometres, from where the simulation has put it. `origin`: of the tile on the stage."""
    found = (pixel + 0.5 + offset.float()) * PIXEL + origin.float()
    return found - truth


def drifted(knots, frame):
    """The stage's drift at a frame, between knots."""
    whole = frame // EVERY
    share = (frame % EVERY).float() / EVERY
    knots = knots.float()
    return torch.lerp(knots[whole], knots[whole + 1], share[:, None])


def subpixel(first, second):
    """How far one image is from the other, by a parabola through their correlation."""
    shifts = [(first * torch.roll(second, by, -1)).sum((-2, -1)) for by in (-4, 0, 4)]
    left, centre, right = (each / shifts[1] for each in shifts)
    return 2 * (left - right) / (left - 2 * centre + right)


def bounds(light, photons, ground):
    """Of the variance of a count, by the Fisher information."""
    rate = photons[:, None, None] * light + ground
    return 1 / (light.square() / rate).sum((1, 2))


def gyration(places):
    """How wide a cluster is. Places are in nanometres."""
    apart = (places - places.float().mean(0)).float()
    return apart.square().sum(-1).mean().sqrt()


def counted(bins):
    """How many molecules are in each bin."""
    image = torch.zeros(BINS)
    return image.index_add_(0, bins, torch.ones(len(bins)))


def rings(first, second):
    """How alike two halves of the data are, by frequency."""
    one, other = torch.fft.fft2(first - first.mean()), torch.fft.fft2(second - second.mean())
    grid = torch.fft.fftfreq(SIZE)
    ring = ((grid[:, None].square() + grid[None].square()).sqrt() * SIZE).round().long().flatten()
    common = torch.zeros(ring.max() + 1).index_add_(0, ring, (one * other.conj()).real.flatten())
    power = [torch.zeros(ring.max() + 1).index_add_(0, ring, each.abs().square().flatten()) for each in (one, other)]
    return common[1:] / (power[0][1:] * power[1][1:]).sqrt()


def presence(logits, there):
    """The cost of saying whether a molecule is there."""
    return F.binary_cross_entropy_with_logits(logits.float(), there, reduction="none")


class Finder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.SiLU(), nn.Conv2d(12, 12, 3, padding=1), nn.SiLU())
        self.there, self.offset = nn.Conv2d(12, 1, 1), nn.Conv2d(12, 2, 1)

    def forward(self, image):
        hidden = self.body(image.to(self.there.weight.dtype))
        return self.there(hidden)[:, 0] + 7, 0.5 * torch.tanh(self.offset(hidden))


class Microscope(nn.Module):
    def __init__(self):
        super().__init__()
        self.finder = Finder()
        self.register_buffer("knots", 8 * torch.randn(KNOTS, 2).cumsum(0), persistent=False)

    def forward(self, counts, there, pixel, origin, truth, frame, photons, bins, halves, places):
        image = electrons(counts)
        logits, offset = self.finder((image / 32)[:, None])
        moved = offset[0, :, pixel[:, 0], pixel[:, 1]].T
        light = profile(pixel[:, 0] + 0.5 + moved[:, 0].float())
        light = light[:, :, None] * profile(pixel[:, 1] + 0.5 + moved[:, 1].float())[:, None]
        rate = photons[:, None, None] * light + 800
        return {
            "presence": presence(logits, there.float()),
            "ground": background(image),
            "likelihood": log_likelihood(rate.detach().round(), rate + 3),
            "misplaced": misplaced(pixel, moved, origin, truth),
            "drift": drifted(self.knots, frame),
            "shift": subpixel(1000 * light[:4], 1000 * light[4:8]),
            "bounds": bounds(light, photons.float(), 40.0),
            "width": gyration(places),
            "counts": counted(bins),
            "alike": rings(*(each.float() for each in halves)),
        }


def loss(output):
    return output["presence"].mean() - 1e-4 * output["likelihood"].mean() + 1e-3 * (output["misplaced"] / PIXEL).square().mean()


def make():
    torch.manual_seed(0)
    return Microscope()


def batch():
    generator = torch.Generator().manual_seed(41)
    pixel = torch.randint(6, SIZE - 6, (FOUND, 2), generator=generator)
    origin = torch.randint(20_000, 61_000, (FOUND, 2), generator=generator)
    halves = 60 + torch.randint(0, 400, (SIZE, SIZE), generator=generator)
    bins = torch.cat((torch.randint(0, BINS, (700,), generator=generator), torch.randint(3, 6, (1_600,), generator=generator)))
    return {
        "counts": OFFSET + torch.randint(20, 160, (FRAMES, SIZE, SIZE), generator=generator),
        "there": torch.rand(FRAMES, SIZE, SIZE, generator=generator) < 0.3,
        "pixel": pixel,
        "origin": origin,
        "truth": origin + 100 * pixel + torch.randint(0, 100, (FOUND, 2), generator=generator),
        "frame": torch.randint(20_000, 61_000, (32,), generator=generator),
        "photons": torch.randint(600, 4_000, (FOUND,), generator=generator),
        "bins": bins[torch.randperm(len(bins), generator=generator)],
        "halves": torch.stack([halves + torch.randint(0, 160, (SIZE, SIZE), generator=generator) for _ in range(2)]),
        "places": torch.randint(20_000, 60_000, (50, 2), generator=generator),
    }


def optimizer(params):
    return torch.optim.AdamW(params, lr=3e-3)
