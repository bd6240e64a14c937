"""Learning by oneself from two views: a student, a teacher that follows it, whitened covariances, a warm-up and AdamW over three steps."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F

STEPS = 3
PRECISIONS = ("bf16-mixed", "16-mixed")  # a conversion of everything loses the teacher's and the optimizer's small steps


def mlp(dim, hidden, out):
    return nn.Sequential(nn.Linear(dim, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True), nn.Linear(hidden, out))


def augment(x, shift, gain):
    """Circular shifts and gains, as tensors so that both runs see the same."""
    index = (torch.arange(x.shape[-1]) + shift[:, None]) % x.shape[-1]
    return torch.gather(x, -1, index[:, None].expand_as(x)) * gain[:, None, None]


class Encoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(2, 16, 5, padding=2, padding_mode="circular"), nn.GroupNorm(4, 16), nn.GELU(), nn.MaxPool1d(2),
            nn.Conv1d(16, dim, 5, padding=2, padding_mode="circular"), nn.GroupNorm(4, dim), nn.GELU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
        )  # fmt: skip

    def forward(self, x):
        return self.net(x)


class BYOL(nn.Module):
    def __init__(self, dim=32, tau=0.99):
        super().__init__()
        self.student = nn.Sequential(Encoder(dim), mlp(dim, 64, 24))
        self.predictor = mlp(24, 48, 24)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.tau, self.total = tau, 100
        self.register_buffer("tick", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def follow(self):
        tau = 1 - (1 - self.tau) * (math.cos(math.pi * int(self.tick) / self.total) + 1) / 2
        for slow, fast in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            slow.lerp_(fast.detach(), 1 - tau)
        self.tick += 1

    @staticmethod
    def regression(p, z):
        return 2 - 2 * F.cosine_similarity(p.float(), z.float(), dim=-1)

    @staticmethod
    def covariance(z):
        """How much features depend on each other, off the diagonal."""
        z = z.float() - z.float().mean(0)
        cov = z.T @ z / (len(z) - 1)
        off = cov - torch.diag_embed(torch.diagonal(cov))
        std = torch.sqrt(torch.diagonal(cov) + 1e-4)
        return off.square().sum() / z.shape[1] + F.relu(1 - std).mean()

    def forward(self, x, shifts, gains):
        one, two = (augment(x, shift, gain) for shift, gain in zip(shifts, gains, strict=True))
        if self.training:
            self.follow()
        z1, z2 = self.student(one), self.student(two)
        p1, p2 = self.predictor(z1), self.predictor(z2)
        with torch.no_grad():
            t1, t2 = self.teacher(one), self.teacher(two)
        with torch.autocast("cpu", enabled=False):
            loss = (self.regression(p1, t2) + self.regression(p2, t1)).mean() + 0.04 * (self.covariance(z1) + self.covariance(z2))
        return loss


def make():
    torch.manual_seed(0)
    return BYOL()


def batch():
    g = torch.Generator().manual_seed(30)
    x = torch.sin(torch.arange(48) * torch.rand(16, 2, 1, generator=g)) + 0.1 * torch.randn(16, 2, 48, generator=g)
    return {"x": x, "shifts": torch.randint(0, 48, (2, 16), generator=g), "gains": 0.8 + 0.4 * torch.rand(2, 16, generator=g)}


def loss(output):
    return output


def optimizer(params):
    return torch.optim.AdamW([each for each in params if each.requires_grad], lr=3e-3, weight_decay=0.05)
