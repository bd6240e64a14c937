"""Trees and graphs: how likely a tree of species is, and attention among the neighbours of an atom."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def changes(length: torch.Tensor) -> torch.Tensor:
    """How likely each of four letters becomes each other along branches of that length, where all changes are alike (Jukes and Cantor)."""
    same = torch.exp(-4 * length / 3)[..., None, None]
    return same * torch.eye(4, dtype=length.dtype) + (1 - same) / 4


def tree_likelihood(leaves: torch.Tensor, length: torch.Tensor, rescaled: bool) -> torch.Tensor:
    """The log-likelihood of each site of an alignment, by pruning: leaves are [species, site, letter], joined two by two."""
    likely, logarithm, first = leaves, leaves.new_zeros(leaves.shape[1]), 0
    while likely.shape[0] > 1:
        step = changes(length[first : first + likely.shape[0]])
        below = torch.einsum("nab,nsb->nsa", step, likely)
        first += likely.shape[0]
        likely = below[0::2] * below[1::2]  # culprit: tree-of-many-species
        if rescaled:
            largest = likely.amax(-1, keepdim=True)
            likely = likely / largest
            logarithm = logarithm + largest.log().sum((0, 2))
    return torch.log(likely[0].mean(-1)) + logarithm  # culprit: tree-of-many-species


def species(dtype: torch.dtype, rescaled: bool, count: int = 128) -> torch.Tensor:
    """Five sites of an alignment of 128 species in float32; the likelihood is below what it holds. Minus infinity."""
    letters = (4 * uniform(count, 5)).long().clamp_max(3)
    leaves = torch.nn.functional.one_hot(letters, 4).to(dtype)
    return tree_likelihood(leaves, (0.05 + 0.2 * uniform(2 * count, seed=1)).to(dtype), rescaled)


class NeighbourAttention(nn.Module):
    """Each atom reads its neighbours; scores are made shares over the edges that end in it."""

    def __init__(self, width: int, dtype: torch.dtype, shifted: bool) -> None:
        super().__init__()
        self.query, self.key, self.shifted = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False), shifted
        with torch.no_grad():
            self.query.weight.copy_((normal(width, width, seed=5) / width**0.5).to(LOW))
            self.key.weight.copy_((normal(width, width, seed=5) / width**0.5 + 0.1 * normal(width, width, seed=6)).to(LOW))
        self.to(dtype)

    def shares(self, scores: torch.Tensor, end: torch.Tensor, count: int) -> torch.Tensor:
        if self.shifted:
            highest = scores.new_full((count,), -torch.inf).scatter_reduce(0, end, scores, "amax")
            scores = scores - highest[end]
        powers = scores.exp()  # culprit: shares-of-neighbours
        return powers / scores.new_zeros(count).index_add(0, end, powers)[end]

    def forward(self, x: torch.Tensor, start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        scores = (self.query(x)[end] * self.key(x)[start]).sum(-1) / x.shape[1] ** 0.5
        return torch.zeros_like(x).index_add(0, end, self.shares(scores, end, len(x))[:, None] * x[start])


def molecule(dtype: torch.dtype, shifted: bool, size: float = 2.2) -> torch.Tensor:
    """Thirty atoms in half, each with itself and seven neighbours; a score beyond eleven has no power of e. NaN."""
    x = (size * normal(30, 16)).to(LOW).to(dtype)
    end = torch.arange(30).repeat_interleave(8)
    start = (end + torch.tensor([0, 1, 2, 3, 5, 8, 13, 21]).repeat(30)) % 30
    return wider(NeighbourAttention(16, dtype, shifted)(x, start, end))


BUGS = (
    Bug("tree-of-many-species", "CshlSiepelLab/phast#110", ("underflow", "nan"), "aten.mul.Tensor", lambda: species(WIDE, False),
        lambda: species(WIDE, True), precision="32-true"),
    Bug("shares-of-neighbours", "prescient-design/e3tools#3", ("overflow", "nan"), "aten.exp.default", lambda: molecule(HALF, False),
        lambda: molecule(HALF, True)),
)  # fmt: skip
