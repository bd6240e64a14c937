"""Finds which tracks of a jet come from one vertex: a transformer with biases of pairs of particles, and a head that scores every pair."""

import math

import torch
import torch.nn.functional as F
from torch import nn

JETS, TRACKS, SIZE, HEADS = 4, 20, 32, 4
STEPS = 1


def lower():
    """The format that products have here."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32


def four_momenta(pt, eta, phi, mass):
    """px, py, pz and the energy, in GeV. Each [J, N]."""
    px, py, pz = pt * phi.cos(), pt * phi.sin(), pt * eta.sinh()
    return torch.stack([px, py, pz, (px.square() + py.square() + pz.square() + mass.square()).sqrt()], -1)


def delta_phi(phi, low):
    """The angle about the beam between every two tracks, from minus pi to pi."""
    apart = phi[:, :, None] - phi[:, None, :]
    return (apart + math.pi).remainder(2 * math.pi) - math.pi


def pair_masses(pt, eta, dphi, p, low):
    """The logarithm of the squared mass of every two tracks, as if they had none of their own."""
    deta = eta[:, :, None] - eta[:, None, :]
    spread = (deta / 2).sinh().square() + (dphi / 2).sin().square()
    return (4 * pt[:, :, None] * pt[:, None, :] * spread).clamp_min(1e-4).log()


def rapidities(p, low):
    """How far along the beam each particle goes."""
    pz, energy = p[..., 2], p[..., 3]
    across = (energy - pz) * (energy + pz)
    return (pz / across.sqrt()).asinh()


def jet_mass(p, low):
    """The mass of all tracks together."""
    total = p.sum(1)
    momentum, energy = total[:, :3].norm(dim=-1), total[:, 3]
    return ((energy - momentum) * (energy + momentum)).sqrt()


def significance(d0, sigma, low):
    """How many errors of measurement a track misses the beam by. d0, sigma: metres."""
    return d0 * d0 / (sigma * sigma + 1e-14)


def leading(pt, low):
    """The place of each track when they are sorted by their momentum."""
    return pt.argsort(1, descending=True).argsort(1)


def shares(pt, low):
    """The part of the jet's momentum that each track has."""
    return pt / pt.sum(1, keepdim=True)


def pair_weights(same, low):
    """Weights that make pairs of one vertex count as much as others."""
    return torch.where(same, 0.5 / same.float().mean(), 0.5 / (~same).float().mean())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(SIZE), nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE)
        self.ffn = nn.Sequential(nn.LayerNorm(SIZE), nn.Linear(SIZE, 2 * SIZE), nn.GELU(), nn.Linear(2 * SIZE, SIZE))

    def forward(self, x, bias):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3 * HEADS, -1)).transpose(1, 2).chunk(3, 1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype)).transpose(1, 2).flatten(2))
        return x + self.ffn(x)


class Vertexing(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rank, self.pair = nn.Linear(6, SIZE), nn.Embedding(TRACKS, SIZE), nn.Linear(2, HEADS)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.left, self.right, self.mass = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 1)

    def forward(self, pt, eta, phi, mass, d0, sigma, vertex):
        low = lower()
        with torch.autocast("cpu", enabled=False):
            p = four_momenta(pt, eta, phi, mass)
            dphi = delta_phi(phi, low)
            lnm2 = pair_masses(pt, eta, dphi, p, low)
            y, weighed = rapidities(p, low), jet_mass(p, low)
            signal = significance(d0, sigma, low)
            facts = torch.stack([pt.log(), eta, y, shares(pt, low), signal.float().log1p(), mass], -1)
            pairs = torch.stack([lnm2, 10 * dphi], -1)
        x = self.embed(facts.float()) + self.rank(leading(pt, low))
        bias = self.pair(pairs.float()).permute(0, 3, 1, 2)
        for block in self.blocks:
            x = block(x, bias)
        logits = (self.left(x) @ self.right(x).transpose(1, 2)).float() / SIZE**0.5
        logits = (logits + logits.transpose(1, 2)) / 2
        same = vertex[:, :, None] == vertex[:, None, :]
        with torch.autocast("cpu", enabled=False):
            edges = F.binary_cross_entropy_with_logits(logits, same.float(), pair_weights(same, low).float())
        of_mass = F.smooth_l1_loss(self.mass(x.mean(1)).squeeze(-1).float(), weighed.float().log())
        return {"logits": logits, "mass": weighed, "loss": edges + 0.1 * of_mass}


PRECISIONS = ("bf16-mixed", "16-mixed")  # momenta are inputs


def make():
    torch.manual_seed(0)
    return Vertexing()


def batch():
    generator = torch.Generator().manual_seed(21)
    pt = 0.8 + 40 * torch.rand(JETS, TRACKS, generator=generator).pow(3)
    axis = torch.stack([torch.tensor([1.9, -2.1, 1.4, 2.3]), torch.tensor([0.3, 3.1, -1.7, 2.6])])
    around = 0.06 * torch.randn(2, JETS, TRACKS, generator=generator)
    eta, phi = axis[0][:, None] + around[0], axis[1][:, None] + around[1]
    return {
        "pt": pt, "eta": eta, "phi": (phi + math.pi).remainder(2 * math.pi) - math.pi, "mass": torch.full((JETS, TRACKS), 0.1396),
        "d0": 2e-5 * torch.randn(JETS, TRACKS, generator=generator) * (1 + 4 * torch.rand(JETS, TRACKS, generator=generator)),
        "sigma": 1e-5 + 2e-5 * torch.rand(JETS, TRACKS, generator=generator),
        "vertex": torch.randint(4, (JETS, TRACKS), generator=generator),
    }  # fmt: skip


def loss(output):
    return output["loss"]


optimizer = None
