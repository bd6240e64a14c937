"""Matrix capsules with EM routing, in one file as nanoGPT is: a configuration, a block, a model; votes are gathered into Gaussians."""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F

STEPS = 1


@dataclass
class CapsConfig:
    n_in: int = 8
    n_out: int = 6
    n_pose: int = 16
    n_channel: int = 24
    n_iter: int = 3
    n_class: int = 5


def m_step(r, a, votes):
    """Means, variances and masses of the capsules above. r: [B, I, O], a: [B, I], votes: [B, I, O, P]."""
    ra = r * a[:, :, None]
    mass = ra.sum(1)
    share = ra / (mass[:, None] + 1e-8)
    mu = (share[..., None] * votes).sum(1)
    var = (share[..., None] * (votes - mu[:, None]) ** 2).sum(1) + 1e-4
    return mu, var, mass


def activation(var, mass, beta_u, beta_a, inv_temp):
    cost = (beta_u + 0.5 * torch.log(var)).mean(-1) * mass
    return torch.sigmoid(inv_temp * (beta_a - cost))


def e_step(mu, var, a_out, votes):
    """To which capsule above each vote belongs."""
    ln_p = -0.5 * ((votes - mu[:, None]) ** 2 / var[:, None] + torch.log(2 * math.pi * var[:, None])).sum(-1)
    return torch.softmax(ln_p + torch.log(a_out[:, None] + 1e-8), -1)


def spread_loss(a, y, margin=0.9):
    right = a.gather(1, y[:, None])
    wrong = F.relu(margin - (right - a)) ** 2
    return (wrong.sum(1) - margin**2).mean()


def grid_of(h, w, like):
    """Each cell's middle, between 0 and 1: [h * w, 2]."""
    y, x = torch.meshgrid(torch.arange(h) + 0.5, torch.arange(w) + 0.5, indexing="ij")
    return torch.stack([x / w, y / h], -1).view(-1, 2).to(like.device)


def seen_of(masses, votes):
    """How many votes were cast, and how much mass there is for each."""
    return masses.sum(-1) / votes


class EMRouting(nn.Module):
    def __init__(self, config, n_in, n_out):
        super().__init__()
        self.n_iter = config.n_iter
        self.weight = nn.Parameter(torch.randn(n_in, n_out, 4, 4) * 0.3 + torch.eye(4))
        self.beta_u, self.beta_a = nn.Parameter(torch.zeros(n_out, 1)), nn.Parameter(torch.zeros(n_out))

    def forward(self, pose, a, where=None):
        B, I, _ = pose.shape  # noqa: E741
        n_in, n_out = self.weight.shape[:2]
        w = self.weight.repeat(I // n_in, 1, 1, 1)
        votes = torch.einsum("bixy,ioyz->bioxz", pose.view(B, I, 4, 4), w).reshape(B, I, n_out, 16)
        with torch.autocast(device_type="cpu", enabled=False):
            votes, a = votes.float(), a.float()
            if where is not None:
                shift = where.new_zeros(I, 16)
                shift[:, [3, 7]] = where.repeat_interleave(n_in, 0)
                votes = votes + shift[None, :, None]
            r = torch.full((B, I, n_out), 1.0 / n_out)
            for it in range(self.n_iter):
                mu, var, mass = m_step(r, a, votes)
                a_out = activation(var, mass, self.beta_u.float(), self.beta_a.float(), 0.01 * (1 + it))
                if it < self.n_iter - 1:
                    r = e_step(mu, var, a_out, votes)
        return mu, a_out, mass


class CapsNet(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.conv = nn.Conv2d(1, config.n_channel, 5, stride=2)
        self.bn = nn.BatchNorm2d(config.n_channel)
        self.prim = nn.Conv2d(config.n_channel, config.n_in * (config.n_pose + 1), 3, stride=2)
        self.r1, self.r2 = EMRouting(config, config.n_in, config.n_out), EMRouting(config, config.n_out, config.n_class)

    def forward(self, x, y):
        c = self.config
        p = self.prim(F.relu(self.bn(self.conv(x))))
        B, _, h, w = p.shape
        p = p.view(B, c.n_in, c.n_pose + 1, h * w).permute(0, 3, 1, 2).reshape(B, h * w * c.n_in, c.n_pose + 1)
        pose, a = p[..., :-1], torch.sigmoid(p[..., -1])
        pose, a, mass = self.r1(pose, a, grid_of(h, w, p))
        per_vote = seen_of(mass, h * w * c.n_in)
        pose, a, _ = self.r2(pose.to(p.dtype), a)
        loss = spread_loss(a, y) + 0.01 * pose.square().mean()
        return {"loss": loss, "a": a, "pose": pose, "per_vote": per_vote}


def make():
    torch.manual_seed(0)
    return CapsNet(CapsConfig())


def batch():
    g = torch.Generator().manual_seed(2)
    return {"x": torch.rand(4, 1, 22, 22, generator=g), "y": torch.tensor([0, 1, 2, 4])}


def loss(output):
    return output["loss"]


optimizer = None
