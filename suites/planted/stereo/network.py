"""Depth from two cameras: a cost volume, an expected disparity, and losses that warp, smooth and compare, after the self-supervised papers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 1


@dataclass
class Rig:
    height: int = 6
    width: int = 300
    most: int = 24  # disparities
    focal: float = 721.5  # pixels
    base: float = 540.0  # millimetres
    middle: tuple[float, float] = (148.3, 2.5)


class Geometry:
    """What the two cameras see of a place. `low` is the format of the features."""

    def __init__(self, rig: Rig, low: torch.dtype):
        self.rig, self.low = rig, low

    def coarse(self, ground):
        """The disparity beside which the network looks: the road's, by rows. ground: whole 256ths of a pixel, [B, H]."""
        return (ground.float() / 256)[:, :, None].expand(-1, -1, self.rig.width)

    def sources(self, disparity):
        """The pixel of the right image for each of the left, as a whole one and a part of the next."""
        places = torch.arange(self.rig.width) - disparity
        places = places.clamp(0, self.rig.width - 1.001)
        left = places.floor()
        return left.long(), places - left

    def depth(self, disparity):
        """Millimetres."""
        return self.rig.focal * self.rig.base / (disparity + 1e-3)

    def closeness(self, disparity, plane):
        """How much nearer a pixel is than a plane at so many millimetres, in inverse metres. plane: whole, [B]."""
        own = 1000 * disparity / (self.rig.focal * self.rig.base)
        return own - 1000 / plane.float()[:, None, None]

    def rays(self):
        """The direction of each pixel, [H, W, 3]."""
        u = (torch.arange(self.rig.width) + 0.5 - self.rig.middle[0]) / self.rig.focal
        v = (torch.arange(self.rig.height) + 0.5 - self.rig.middle[1]) / self.rig.focal
        return torch.stack([u.expand(self.rig.height, -1), v[:, None].expand(-1, self.rig.width), torch.ones(self.rig.height, self.rig.width)], -1)

    def normals(self, points):
        """Unit normals of the surface through neighbouring points."""
        right = points[:, :-1, 1:] - points[:, :-1, :-1]
        down = points[:, 1:, :-1] - points[:, :-1, :-1]
        return F.normalize(torch.linalg.cross(right, down), dim=-1)


def expected(scores, steps, low):
    """The mean disparity of the chances."""
    return (scores.float().softmax(1) * steps[:, None, None]).sum(1)


def spread(scores, steps, low):
    """The variance of the disparity under the chances."""
    chances = scores.float().softmax(1)
    mean = (chances * steps[:, None, None]).sum(1, keepdim=True)
    return (chances * (steps[:, None, None] - mean).square()).sum(1)


def doubt(scores, low):
    """The entropy of the chances, over that of chances that are all alike."""
    chances = scores.float().mul(4).softmax(1)
    return -(chances * (chances + 1e-9).log()).sum(1) / torch.tensor(float(scores.shape[1])).log()


def pooled(x):
    return F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)


def likeness(a, b, low):
    """One less the structural similarity, over two."""
    a_mean, b_mean = pooled(a), pooled(b)
    a_spread, b_spread = pooled(a.square()) - a_mean.square(), pooled(b.square()) - b_mean.square()
    both = pooled(a * b) - a_mean * b_mean
    top = (2 * a_mean * b_mean + 1e-4) * (2 * both + 9e-4)
    return (1 - top / ((a_mean.square() + b_mean.square() + 1e-4) * (a_spread + b_spread + 9e-4))) / 2


def roughness(disparity, image, low):
    """How much the disparity changes along a row where the image does not."""
    change = (disparity[:, :, 1:] - disparity[:, :, :-1]).abs()
    edge = (image[..., 1:] - image[..., :-1]).abs().mean(1)
    return (change * (-edge).exp()).mean((1, 2))


def scale_free(depth, truth, low):
    """The variance of the logarithms' difference, and some of the square of its mean."""
    gap = depth.log() - truth.log()
    return gap.square().mean((1, 2)) - 0.85 * gap.mean((1, 2)).square()


class Stereo(nn.Module):
    def __init__(self, rig: Rig):
        super().__init__()
        self.rig = rig
        self.features = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1))
        self.refine = nn.Sequential(nn.Conv2d(rig.most, rig.most, 3, padding=1), nn.ReLU(), nn.Conv2d(rig.most, rig.most, 1))

    def volume(self, left, right):
        rows = [F.pad(right, (d, 0))[..., : right.shape[-1]] for d in range(self.rig.most)]
        return torch.stack([(left * row).mean(1) for row in rows], 1)

    def forward(self, left, right, ground, plane, truth):
        scores = self.refine(self.volume(self.features(left), self.features(right)))
        low = scores.dtype
        geometry = Geometry(self.rig, low)
        with torch.autocast("cpu", enabled=False):
            left, right = left.float(), right.float()
            steps = 0.25 * (torch.arange(self.rig.most) - self.rig.most / 2)
            disparity = (geometry.coarse(ground) + expected(scores, steps, low)).float().clamp_min(1)
            whole, part = geometry.sources(disparity)
            index = whole[:, None].expand(-1, 3, -1, -1)
            beside = (index + 1).clamp_max(self.rig.width - 1)
            warped = right.gather(3, index) * (1 - part[:, None]) + right.gather(3, beside) * part[:, None]
            depth = geometry.depth(disparity)
            normals = geometry.normals(geometry.rays() * depth[..., None].float() / 1000)
            true_depth = self.rig.focal * self.rig.base / (truth.float() / 256)
            terms = [
                likeness(left, warped.float(), low).float().mean(),
                0.1 * roughness(disparity, left, low).float().mean(),
                0.1 * scale_free(depth.float(), true_depth, low).float().mean(),
                0.01 * spread(scores, steps, low).float().mean(),
                0.01 * doubt(scores, low).float().mean(),
                0.01 * geometry.closeness(disparity, plane).float().abs().mean(),
                0.01 * (1 - normals[..., 2].float().abs()).mean(),
            ]
        return {"disparity": disparity, "loss": torch.stack(terms).sum()}


def make():
    torch.manual_seed(0)
    return Stereo(Rig())


def batch():
    generator = torch.Generator().manual_seed(15)
    rig = Rig()
    ground = 256 * 39 + (64 * torch.arange(rig.height)) + torch.randint(512, (3, 1), generator=generator)
    texture = 0.7 + 0.05 * torch.randn(3, 3, rig.height, rig.width + 60, generator=generator)
    truth = ground[:, :, None] + torch.randint(-200, 200, (3, rig.height, rig.width), generator=generator)
    right = texture[..., 60:]
    left = torch.stack([torch.roll(texture, 40, -1)[..., 60:], texture[..., 20:320], texture[..., 25:325]])[:, 0]
    plane = torch.tensor([9700, 10100, 9900])
    return {"left": left, "right": right, "ground": ground, "plane": plane, "truth": truth}


def loss(output):
    return output["loss"]


optimizer = None
