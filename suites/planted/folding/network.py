"""Protein folding: a track of aligned sequences, a track of pairs with triangles, frames of the backbone, and errors in each frame."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

PRECISIONS = ("bf16-mixed", "16-mixed")  # places of atoms are inputs, which a conversion of everything would round
STEPS = 1
RESIDUES, SEQUENCES, WIDTH, PAIR, HEADS, FARTHEST = 40, 6, 32, 24, 4, 24


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def relative(index: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How far residues are apart in the sequence, as one of some classes."""
    apart = index.unsqueeze(-1) - index.unsqueeze(-2)
    return functional.one_hot(apart.clamp(-FARTHEST, FARTHEST).long() + FARTHEST, 2 * FARTHEST + 1)


def triangle(a: torch.Tensor, b: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """For each pair, the sum over the third residue. A norm follows, so the scale does not matter."""
    a, b = a.float(), b.float()
    return torch.einsum("bikc,bjkc->bijc", a, b).float()


def normalised(directions: torch.Tensor, known: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Sines and cosines of torsion angles; those that are not known are zero."""
    directions = directions.float() * known.unsqueeze(-1).float()
    return directions * torch.rsqrt(directions.square().sum(-1, keepdim=True) + 1e-8)


def frames(backbone: torch.Tensor, low: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A rotation and a place for each residue, from its atoms N, CA and C."""
    n, ca, c = backbone.unbind(-2)
    along, other = c - ca, n - ca
    first = functional.normalize(along.float(), dim=-1)
    second = other.float() - (first * other.float()).sum(-1, keepdim=True) * first
    second = functional.normalize(second, dim=-1)
    third = torch.linalg.cross(first, second)
    return torch.stack([first, second, third], -1), ca.float()


def seen_from(rotations: torch.Tensor, places: torch.Tensor, points: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Each point in each residue's frame."""
    apart = points.unsqueeze(1) - places.unsqueeze(2)
    return (apart @ rotations).float()


def distance_errors(found: torch.Tensor, true: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """By how much each distance is off."""
    ours, theirs = (torch.linalg.vector_norm(each.unsqueeze(1) - each.unsqueeze(2), dim=-1) for each in (found, true))
    return (ours - theirs).abs().float()


class Triangle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.after = nn.LayerNorm(PAIR), nn.LayerNorm(PAIR)
        self.ab, self.gates, self.out = nn.Linear(PAIR, 2 * PAIR), nn.Linear(PAIR, 3 * PAIR), nn.Linear(PAIR, PAIR)

    def forward(self, pair: torch.Tensor) -> torch.Tensor:
        x = self.norm(pair)
        gate_a, gate_b, gate = torch.sigmoid(self.gates(x)).chunk(3, -1)
        a, b = self.ab(x).chunk(2, -1)
        with torch.autocast(pair.device.type, enabled=False):
            summed = triangle(a * gate_a, b * gate_b, low_dtype(a))
        return pair + gate * self.out(self.after(summed.to(self.after.weight.dtype)))


class TriangleAttention(nn.Module):
    """Each pair reads the pairs that begin with the same residue."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(PAIR), nn.Linear(PAIR, 3 * PAIR, bias=False)
        self.bias, self.gate, self.out = nn.Linear(PAIR, HEADS, bias=False), nn.Linear(PAIR, PAIR), nn.Linear(PAIR, PAIR)

    def forward(self, pair: torch.Tensor) -> torch.Tensor:
        x = self.norm(pair)
        b, n, _, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, n, 3, HEADS, -1).permute(3, 0, 1, 4, 2, 5)
        bias = self.bias(x).permute(0, 3, 1, 2).unsqueeze(1)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype)).transpose(2, 3).reshape(b, n, n, PAIR)
        return pair + self.out(torch.sigmoid(self.gate(x)) * y)


class OuterMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.ab, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16), nn.Linear(64, PAIR)

    def forward(self, aligned: torch.Tensor) -> torch.Tensor:
        a, b = self.ab(self.norm(aligned)).chunk(2, -1)
        outer = torch.einsum("bsic,bsjd->bijcd", a, b) / aligned.shape[1]
        return self.out(outer.flatten(-2))


class Folding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters, self.left, self.right = nn.Embedding(22, WIDTH), nn.Embedding(22, PAIR), nn.Embedding(22, PAIR)
        self.apart, self.outer = nn.Linear(2 * FARTHEST + 1, PAIR), OuterMean()
        self.triangles = nn.ModuleList(nn.Sequential(Triangle(), TriangleAttention()) for _ in range(2))
        self.read = nn.Sequential(nn.LayerNorm(PAIR + WIDTH), nn.Linear(PAIR + WIDTH, WIDTH), nn.SiLU())
        self.shift, self.torsions = nn.Linear(WIDTH, 9), nn.Linear(WIDTH, 14)

    def forward(
        self, aligned: torch.Tensor, index: torch.Tensor, start: torch.Tensor, true: torch.Tensor, known: torch.Tensor, angles: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        low = low_dtype(self.shift.weight)
        x, first = self.letters(aligned), aligned[:, 0]
        near = relative(index, low)
        pair = self.left(first).unsqueeze(1) + self.right(first).unsqueeze(2) + self.apart(near.to(self.apart.weight.dtype)) + self.outer(x)
        for each in self.triangles:
            pair = each(pair)
        single = self.read(torch.cat([x.mean(1), pair.mean(2)], -1))
        shift, torsions = self.shift(single).unflatten(-1, (3, 3)), self.torsions(single).unflatten(-1, (7, 2))
        with torch.autocast(x.device.type, enabled=False):
            backbone = start + 0.3 * shift.float()
            rotations, places = frames(backbone, low)
            true_rotations, true_places = frames(true, low)
            ours = seen_from(rotations, places, places, low)
            theirs = seen_from(true_rotations, true_places, true_places, low)
            off = ((ours - theirs).square().sum(-1) + 1e-4).sqrt().clamp(max=10.0)
            turned = normalised(torsions, known, low)
            distances = distance_errors(places, true_places, low)
            angle_loss = ((turned - angles).square().sum(-1) * known.float()).sum() / known.float().sum()
        return {"places": places, "distances": distances, "torsions": turned, "loss": off.mean() / 10 + angle_loss + 0.05 * distances.mean()}


def make() -> nn.Module:
    torch.manual_seed(0)
    model = Folding()
    with torch.no_grad():
        for each in model.triangles:
            each[0].ab.weight.mul_(150)
    return model


def batch() -> dict[str, torch.Tensor]:
    """A chain whose first residues are not in the structure, far from the origin as in a deposited file."""
    generator = torch.Generator().manual_seed(1)
    aligned = torch.randint(22, (1, SEQUENCES, RESIDUES), generator=generator)
    index = 411 + torch.cat([torch.arange(25), 9 + torch.arange(25, RESIDUES)]).unsqueeze(0)
    walk = torch.tensor([118.0, -86.0, 143.0]) + torch.randn(1, RESIDUES, 3, generator=generator).mul(2.2).cumsum(1)
    atoms = torch.tensor([[-1.2, 0.8, 0.1], [0.0, 0.0, 0.0], [1.3, 0.7, -0.2]])
    true = walk.unsqueeze(2) + atoms + 0.1 * torch.randn(1, RESIDUES, 3, 3, generator=generator)
    start = true + 0.2 * torch.randn(1, RESIDUES, 3, 3, generator=generator)
    known = torch.rand(1, RESIDUES, 7, generator=generator) > 0.3
    angles = functional.normalize(torch.randn(1, RESIDUES, 7, 2, generator=generator), dim=-1)
    return {"aligned": aligned, "index": index, "start": start, "true": true, "known": known, "angles": angles}


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
