"""A car's radar: chirps of many samples, range and speed by Fourier transforms, a threshold from the neighbourhood, and a network on what is left."""

import math

import torch
import torch.nn.functional as F
from torch import nn

FRAMES, CHIRPS, SAMPLES, DIM = 2, 32, 128, 16
RANGES = SAMPLES // 2
WAVE, NEAR, GUARD = 0.0039, 12, 2
HITS = 24
STEPS = 1


def moving(samples):
    """What does not stand still: each chirp less the mean of all."""
    volts = samples.float() / 4096
    return volts - volts.mean(1, keepdim=True)


def spectrum(volts):
    """Range and speed, as power. Speed zero is in the middle."""
    ranges = torch.fft.rfft(volts * torch.hann_window(SAMPLES), dim=-1)[..., :RANGES]
    speeds = torch.fft.fft(ranges * torch.hann_window(CHIRPS)[:, None], dim=1)
    return speeds.abs().square().roll(CHIRPS // 2, 1) / (SAMPLES * CHIRPS)


def decibels(power):
    return 10 * (power + 1e-9).log10()


def noise_level(power):
    """The mean of the cells on both sides, by a running sum, without those next to the cell. In decibels."""
    running = F.pad(power.cumsum(-1), (1, 0))
    place = torch.arange(RANGES)
    first, last = (place - NEAR).clamp_min(0), (place + NEAR + 1).clamp_max(RANGES)
    inner, outer = (place - GUARD).clamp_min(0), (place + GUARD + 1).clamp_max(RANGES)
    around = running[..., last] - running[..., first] - (running[..., outer] - running[..., inner])
    return decibels((around / (last - first - outer + inner)).clamp_min(0))


def strongest(contrast):
    """The cells that stand out most: their numbers in the picture of a frame, and by how much they do."""
    value, index = contrast.flatten(1).topk(HITS)
    return index, value


def peak_offset(level, index):
    """How far a peak is from the middle of its cell, from the levels of its neighbours."""
    row, column = index // RANGES, (index % RANGES).clamp(1, RANGES - 2)
    batch = torch.arange(len(level))[:, None]
    left, middle, right = (level[batch, row, column + step] for step in (-1, 0, 1))
    return 0.5 * (left - right) / (left - 2 * middle + right).clamp_max(-0.1)


def phases(millimetres):
    """Of an echo, there and back: cosine and sine."""
    turns = 2 * millimetres.float() / 1000 / WAVE
    angle = 2 * math.pi * (turns - turns.floor())
    return torch.stack([angle.cos(), angle.sin()], -1)


def bearings(left, right):
    """By amplitude: difference over sum of two antennas that look a little aside."""
    left, right = left.float(), right.float()
    return (left - right) / (left + right)


def own_motion(speed, car, bearing):
    """Metres per second that an echo has besides those of the car."""
    return speed.float() / 100 + car.float()[:, None] / 100 * torch.cos(bearing)


def ages(stamp, now):
    """Seconds since an echo was last seen; stamps are milliseconds since the start."""
    return (now[:, None] - stamp).float() / 1000


def turned(heading, before):
    """Degrees, from hundredths: how far the car has turned since."""
    return heading.float() / 100 - before.float() / 100


def cell_numbers(row, column):
    """One number for the cell of a map."""
    return row * 97 + column


class Radar(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(2, DIM, 3, padding=1), nn.ReLU(), nn.Conv2d(DIM, DIM, 3, padding=1), nn.ReLU())
        self.cell, self.hit = nn.Embedding(97 * 97, DIM), nn.Linear(7, DIM)
        self.mix = nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, dropout=0.0, batch_first=True)
        self.head = nn.Linear(DIM + 2, 3)

    def forward(self, samples, echo, left, right, speed, car, stamp, now, heading, before, row, column):
        with torch.autocast("cpu", enabled=False):
            power = spectrum(moving(samples))
            level = decibels(power)
            contrast = level - noise_level(power)
            index, value = strongest(contrast)
            offset = peak_offset(level, index)
            bearing = bearings(left, right)
            motion = own_motion(speed, car, bearing)
            age, turn = ages(stamp, now), turned(heading, before)
            facts = torch.stack([value / 20, offset, 20 * bearing, 2 * motion, age], -1)
            facts = torch.cat([facts, phases(echo)], -1)
        picture = self.image(torch.stack([level / 20, contrast / 20], 1).to(self.head.weight.dtype))
        picked = picture.flatten(2).mT.gather(1, index[..., None].expand(-1, -1, DIM))
        hidden = self.mix(picked + self.hit(facts.to(picked.dtype)) + self.cell(cell_numbers(row, column)))
        hidden = torch.cat([hidden.mean(1), turn[:, None].expand(-1, 2).to(hidden.dtype)], -1)
        out = self.head(hidden)
        return {"out": out, "offset": offset, "motion": motion, "contrast": value, "turn": turn}


def make():
    torch.manual_seed(0)
    return Radar()


def batch():
    generator = torch.Generator().manual_seed(74)
    time, chirp = torch.arange(SAMPLES).double() / SAMPLES, torch.arange(CHIRPS).double()[:, None] / CHIRPS
    still = sum(9000 / (n + 1) * torch.cos(2 * math.pi * ((7.3 + 5 * n) * time + 0.1 * n)) for n in range(4))
    frames = []
    for frame in range(FRAMES):
        echoes = still.expand(CHIRPS, -1)
        for n in range(8):
            echoes = echoes + 50 * torch.cos(2 * math.pi * ((6.4 + 6.7 * n + frame) * time + (3.3 + 2.9 * n) * chirp))
        frames.append(echoes + 6 * torch.randn(CHIRPS, SAMPLES, generator=generator))

    def whole(low, high, shape=(FRAMES, HITS)):
        return torch.randint(low, high, shape, generator=generator)

    car, left, now, heading = whole(800, 1500, (FRAMES,)), whole(900, 3000), whole(700_000, 800_000, (FRAMES,)), whole(9_000, 30_000, (FRAMES,))
    return {
        "samples": torch.stack(frames).round().long(),
        "echo": whole(4_000, 60_000),
        "left": left,
        "right": left + (left * whole(-30, 30) / 1000).round().long(),
        "speed": -car[:, None] + whole(-60, 60),
        "car": car,
        "stamp": now[:, None] - whole(30, 900),
        "now": now,
        "heading": heading,
        "before": heading + whole(-90, 90, (FRAMES,)),
        "row": whole(0, 97),
        "column": whole(0, 97),
    }


def loss(output):
    return F.cross_entropy(output["out"].float(), torch.tensor([0, 2])) + output["out"].float().square().mean()


def optimizer(params):
    return torch.optim.RMSprop(params, lr=1e-2)
