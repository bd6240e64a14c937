"""Denoises path-traced frames: a few samples of light for each pixel, shading by a microfacet model, and a small network that blends neighbours."""

import math

import torch
import torch.nn.functional as F
from torch import nn

SIDE, SAMPLES, DIM, STRIDES = 20, 256, 24, 40
THRESHOLD = 4.0
STEPS = 1


def lobe(normal, half, rough):
    """How strongly a rough surface mirrors a lamp (GGX). normal, half: unit vectors, [B, 3, H, W]; rough: [B, H, W]."""
    away = torch.linalg.cross(normal, half, dim=1).square().sum(1)
    square = rough.float().pow(4)
    near = away + square * (1 - away)
    return square / (math.pi * near * near)


def spread(depth):
    """How much the depths around a pixel differ: their variance, in square metres. depth: whole millimetres, [B, H, W]."""
    around = F.unfold(depth.float()[:, None] / 1000, 3, padding=0)
    return (around - around.mean(1, keepdim=True)).square().mean(1)


def glow(light):
    """What bright places spill over their neighbours, in stops. light: [B, H, W]"""
    blurred = F.avg_pool2d(F.relu(light.float() - THRESHOLD)[:, None], 5, stride=1, padding=2)
    return torch.log2(1 + blurred.squeeze(1))


def averaged(samples):
    """The mean of the samples so far, as they come. samples: [SAMPLES, B, H, W]"""
    mean = torch.zeros_like(samples[0])
    for number, sample in enumerate(samples, 1):
        mean = mean + (sample - mean) / number
    return mean


def phase(frame, turns):
    """Where a lamp that turns is in its turn: frames of a sixtieth of a second since the start, and turns in ten minutes; both whole numbers, [B]."""
    return torch.remainder(frame * turns, 36_000).float() / 36_000


def facing(depth):
    """Normals of the surface that a camera sees. depth: whole millimetres, [B, H, W]."""
    metres = depth.float() / 1000
    places = torch.arange(SIDE) / SIDE - 0.5
    seen = torch.stack([metres * places, metres * places[:, None], metres], 1)
    right, down = seen[..., :-1, 1:] - seen[..., :-1, :-1], seen[..., 1:, :-1] - seen[..., :-1, :-1]
    return F.normalize(torch.linalg.cross(down, right, dim=1), dim=1)


def marched(start, strides):
    """How far a ray has come after some strides. start: [B]; strides: [STRIDES, B], metres."""
    far = start
    for stride in strides:
        far = far + stride
    return far - start


def shown(light):
    """What a screen shows of the light, by the curve of films (ACES). light: [B, H, W]"""
    light = light.float()
    return light * (2.51 * light + 0.03) / (light * (2.43 * light + 0.59) + 0.14)


def weight(distance, reach):
    """How much a neighbour counts that is so far away in depth. Both: metres."""
    return torch.exp(-distance.float().square() / (2 * reach * reach))


class Shading(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.inner = nn.Conv2d(7, DIM, 3, padding=1), nn.Conv2d(DIM, DIM, 3, padding=1)
        self.blend = nn.Conv2d(DIM, 9, 1)

    def forward(self, depth, normal, half, rough, photons, frame, turns, start, strides):
        kind = self.enter.weight.dtype
        with torch.autocast("cpu", enabled=False):
            samples = photons.float() / 100
            light, lamp = averaged(samples[:, :, 0]), averaged(samples[:, :, 1])
            mirror = lobe(F.normalize(normal.float(), dim=1), F.normalize(half.float(), dim=1), rough / 100)
            flat, face = spread(depth), facing(depth)
            spilled, turn = glow(light * 200), phase(frame, turns)
            steps = weight(depth[:, :, 1:] - depth[:, :, :-1], 400.0)
            told = [light.log1p() / 4, mirror.log1p(), F.pad(flat.unflatten(1, (SIDE - 2, SIDE - 2)), (1, 1, 1, 1)) * 10, spilled / 10]
            told += [F.pad(face[:, 2], (0, 1, 0, 1)), F.pad(steps, (0, 1)), torch.cos(2 * math.pi * turn)[:, None, None].expand_as(light)]
        x = F.gelu(self.enter(torch.stack(told, 1).to(kind)))
        x = x + F.gelu(self.inner(x))
        share = self.blend(x).float().softmax(1)
        with torch.autocast("cpu", enabled=False):
            around = F.unfold(light[:, None], 3, padding=1).unflatten(2, (SIDE, SIDE))
            clean = (around * share).sum(1)
            fog = torch.exp(-marched(start.float() / 10, strides.float() / 1000) / 10)
            screen = shown(clean * fog[:, None, None] + lamp * mirror)
        return {"screen": screen, "clean": clean, "face": face, "spread": flat, "turn": turn, "fog": fog, "spilled": spilled}


def make():
    torch.manual_seed(0)
    return Shading()


def batch():
    generator = torch.Generator().manual_seed(240)

    def whole(least, most, *size):
        return torch.randint(least, most, size, generator=generator)

    size = (2, SIDE, SIDE)
    slope = torch.arange(SIDE) * 45
    normal = torch.tensor([100, 50, 900])[:, None, None] + whole(-30, 30, 2, 3, SIDE, SIDE)
    photons = whole(100, 250, SAMPLES, 2, 2, SIDE, SIDE) * whole(2, 20, 2, 2, SIDE, SIDE) // 10
    photons[:, :, 0, 5:9, 5:9] *= 400
    photons[:, :, 1] *= 2
    return {
        "depth": 21_000 + slope + 2 * slope[:, None] + whole(-40, 40, *size),
        "normal": normal,
        "half": normal + whole(-60, 60, 2, 3, SIDE, SIDE),
        "rough": whole(3, 40, *size),
        "photons": photons,
        "frame": whole(90_000, 180_000, 2),
        "turns": whole(300, 900, 2),
        "start": whole(1000, 1300, 2),
        "strides": whole(30, 320, STRIDES, 2),
    }


def loss(output):
    smooth = (output["clean"][:, 1:] - output["clean"][:, :-1]).abs().mean() / 100
    told = output["face"][:, 2].mean() + output["spread"].mean() + output["turn"].mean() + output["fog"].mean() + output["spilled"].mean() / 10
    return smooth + (output["screen"] - 0.5).square().mean() + 0.1 * told


def optimizer(params):
    return torch.optim.Adam(params, lr=1e-2)
