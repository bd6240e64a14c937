"""Cryo-electron microscopy: a volume in Fourier space, learnt from pictures of particles in all poses, after CryoDRGN and RELION."""

import math

import torch
import torch.nn.functional as F
from torch import nn

SIDE, ROWS, FRAMES, HIDDEN, WAVES, PIXEL, STEPS = 24, 6, 5, 64, 6, 1.31, 2
POSES = 40


def frequencies():
    """Of each pixel of a picture's transform, in pixels: from minus a half of the side."""
    line = torch.arange(SIDE, dtype=torch.float32) - SIDE // 2
    down, along = torch.meshgrid(line, line, indexing="ij")
    return torch.stack((along, down, torch.zeros_like(along)), -1).flatten(0, 1)


def wavelength(volts):
    """Of an electron, in ångströms."""
    volts = volts.float()
    return 12.2643247 / (volts + 0.978466e-6 * volts.square()).sqrt()


def transfer(plane, defocus, astigmatism, volts, spherical):
    """What the microscope does to each frequency. Defocus is in ångströms, and as many thousands; the spherical aberration is in millimetres."""
    wave = wavelength(volts)[:, None]
    squared = (plane[:, :2] / (SIDE * PIXEL)).square().sum(-1)
    way = torch.atan2(plane[:, 1], plane[:, 0])
    along = defocus[:, None].float() + astigmatism[:, None].float() * torch.cos(2 * way)
    bent = 1e7 * spherical[:, None] * wave**3 * squared.square()
    phase = math.pi * (along * wave * squared - bent / 2)
    return -torch.sin(phase + 0.1)


def rotations(quaternion):
    """Matrices of turns. Quaternions need not be one long."""
    q = quaternion / quaternion.square().sum(-1, keepdim=True).clamp_min(1e-12).sqrt()
    w, x, y, z = q.unbind(-1)
    rows = (
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    )  # fmt: skip
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


def between(one, other):
    """The angle between two turns, for each pair."""
    near = (one[..., None, :] * other[..., None, :, :]).sum(-1)
    sign = torch.where(near < 0, -1.0, 1.0)
    apart = (one[..., None, :] - sign[..., None] * other[..., None, :, :]).square().sum(-1).sqrt()
    return 4 * torch.asin((apart / 2).clamp_max(1))


def placed(plane, turn):
    """Where each frequency of a picture lies in the volume."""
    return (plane[:, None, :] * turn[:, None]).sum(-1) if turn.dim() == 2 else (plane[None, :, None, :] * turn[:, None]).sum(-1)


def waves(place):
    """Sines and cosines of a place, doubled each time."""
    angle = math.pi / SIDE * place.float()[..., None] * 2.0 ** torch.arange(WAVES)
    return torch.cat((angle.sin(), angle.cos()), -1).flatten(-2)


def shifted(real, imaginary, plane, shift):
    """A picture whose particle is moved by some pixels. `shift`: in thousandths of a pixel."""
    angle = -2 * math.pi / SIDE * (plane[:, :2] * (shift[:, None].float() / 1000)).sum(-1)
    return real * angle.cos() - imaginary * angle.sin(), real * angle.sin() + imaginary * angle.cos()


def whitened(frames):
    """The sum of a movie's frames, less what lies around the particle, in its units. Frames are counts of electrons."""
    picture = frames.sum(1).float()
    line = torch.arange(SIDE) - (SIDE - 1) / 2
    around = (line[:, None].square() + line.square()) > (0.42 * SIDE) ** 2
    ground = picture[:, around]
    return (picture - ground.mean(1)[:, None, None]) / ground.std(1)[:, None, None]


def faded(plane, dose):
    """How much of each frequency is left after a dose, after Grant and Grigorieff. `dose`: tenths of electrons per square ångström."""
    far = (plane[:, :2] / (SIDE * PIXEL)).square().sum(-1).clamp_min(1e-4).sqrt()
    critical = 0.245 * far.pow(-1.665) + 2.81
    return torch.exp(-(dose.float() / 10)[:, None] / (2 * critical))


def likely(cost):
    """How likely each of many poses is."""
    return (-(cost - cost.amin(1, keepdim=True)) / 2).softmax(1)


def correlation(one, other, plane):
    """Of two halves of the data, shell by shell, and how many pixels each shell has."""
    shell = plane[:, :2].square().sum(-1).sqrt().round().long()
    number = torch.bincount(shell)

    def summed(value):
        return torch.zeros(len(number)).index_add(0, shell, value.float())

    alike = summed((one * other).mean(0))
    return alike / (summed(one.square().mean(0)) * summed(other.square().mean(0))).clamp_min(1e-9).sqrt(), number


class Volume(nn.Module):
    """The transform of the volume at a place."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6 * WAVES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2))

    def forward(self, place):
        real, imaginary = self.layers(waves(place).to(self.layers[0].weight.dtype)).float().unbind(-1)
        return real, imaginary


class Microscope(nn.Module):
    def __init__(self):
        super().__init__()
        self.volume = Volume()
        self.pose = nn.Parameter(F.normalize(torch.randn(ROWS, 4), dim=1))

    def forward(self, frames, defocus, astigmatism, volts, spherical, shift, dose, turns):
        plane = frequencies()
        picture = torch.fft.fftshift(torch.fft.fft2(torch.fft.ifftshift(whitened(frames), dim=(-2, -1))), dim=(-2, -1)).flatten(1) / SIDE
        seen = shifted(picture.real, picture.imag, plane, shift)
        lens = transfer(plane, defocus, astigmatism, volts, spherical.float() / 100) * faded(plane, dose)
        pose = self.pose.float()
        real, imaginary = self.volume(placed(plane, rotations(pose)))
        error = (lens * real - seen[0]).square() + (lens * imaginary - seen[1]).square()
        near = pose.detach()[:, None] + turns.float() / 2**14
        near = near / near.square().sum(-1, keepdim=True).sqrt()
        apart = between(near, pose.detach()[:, None]).squeeze(-1)
        cost = 700 + 0.05 * error.detach().sum(1, keepdim=True) + 4e3 * apart.square()
        rings, number = correlation(lens * real, seen[0], plane)
        return {"error": error, "likely": likely(cost), "apart": apart, "rings": rings, "share": number / number.sum()}


def loss(output):
    return output["error"].mean() - 0.1 * output["rings"].mean()


def make():
    torch.manual_seed(0)
    return Microscope()


def batch():
    generator = torch.Generator().manual_seed(9)
    line = torch.arange(SIDE) - SIDE / 2
    blob = 1.5 * torch.exp(-(line[:, None].square() + line.square()) / 20)
    return {
        "frames": torch.poisson((61 + blob).expand(ROWS, FRAMES, SIDE, SIDE), generator=generator).long(),
        "defocus": torch.randint(9_000, 24_000, (ROWS,), generator=generator),
        "astigmatism": torch.randint(60, 400, (ROWS,), generator=generator),
        "volts": torch.tensor([300_000, 300_000, 200_000, 200_000, 300_000, 120_000]),
        "spherical": torch.tensor([270, 270, 270, 140, 140, 200]),
        "shift": torch.randint(-9_000, 9_000, (ROWS, 2), generator=generator),
        "dose": torch.randint(100, 500, (ROWS,), generator=generator),
        "turns": torch.randint(-260, 260, (ROWS, POSES, 4), generator=generator),
    }


def optimizer(params):
    return torch.optim.Adam(params, lr=1e-2)
