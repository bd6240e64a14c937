"""Predicts reads along a genome from its letters: convolutions, attention with a basis of distances, counts with Poisson's likelihood."""

import math

import torch
import torch.nn.functional as F
from torch import nn

B, LETTERS, POOL, SIZE, TRACKS, BASES = 2, 1536, 16, 32, 3, 8
BINS = LETTERS // POOL
STEPS = 1


def low_of(model):
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else next(model.parameters()).dtype


def gene_offsets(starts, genes, low):
    """How far the next gene is from the start of the window, in thousands of letters. Both are places on a chromosome."""
    return (genes - starts).float() / 1000


def gc_content(letters, low, window=32):
    """The share of the letters C and G in the window before each bin: [B, BINS]."""
    strong = ((letters == 1) | (letters == 2)).long()
    running = strong.cumsum(-1)
    before = F.pad(running, (window, 0))[:, :LETTERS]
    return ((running - before).float() / window)[:, ::POOL]


def decays(distances, low):
    """Exponentials of the distance with half-lives of some bins up to thousands."""
    half_lives = torch.tensor([4.0, 32.0, 256.0, 2048.0])
    kept = torch.exp(-math.log(2) / half_lives)
    return kept ** distances[..., None]


def gamma_densities(distances, low):
    """Bumps at certain distances: densities of gamma distributions, each divided by its largest value."""
    means, deviation = torch.tensor([24.0, 48.0, 64.0, 88.0]), 12.0
    concentration, rate = (means / deviation) ** 2, means / deviation**2
    x = distances[..., None] + 0.5
    density = (concentration - 1) * x.log() - rate * x
    peak = (concentration - 1) * ((concentration - 1) / rate).log() - (concentration - 1)
    return (density - peak).exp()


def distance_basis(low):
    places = torch.arange(BINS)
    distances = (places[:, None] - places).abs().float()
    return torch.cat([decays(distances, low), gamma_densities(distances, low)], -1)


def rates(logs, low):
    """The reads that are expected in each bin."""
    return logs.float().exp()


def poisson(rate, counts, low):
    """What a count costs, less what it costs at least."""
    least = counts - torch.xlogy(counts, counts)
    return (rate - counts * rate.log()) - least


def per_million(counts, low):
    """Counts of a bin, of a million reads of its track."""
    return counts * (1e6 / counts.sum(1, keepdim=True))


def correlation(a, b, low):
    """Pearson's, for each track."""
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    return (a * b).sum(1) / (a.square().sum(1) * b.square().sum(1)).sqrt()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(SIZE), nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE)
        self.bias = nn.Linear(BASES, 1)

    def forward(self, x, basis):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / math.sqrt(SIZE) + self.bias(basis).squeeze(-1)
        return x + self.out(scores.softmax(-1).to(v.dtype) @ v)


class Genome(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(4, SIZE, 9, padding=4)
        self.site = nn.Linear(2, SIZE)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(SIZE, TRACKS)

    def forward(self, letters, starts, genes, counts):
        low = low_of(self)
        with torch.autocast("cpu", enabled=False):
            offsets = gene_offsets(starts, genes, low)
            share = gc_content(letters, low)
            basis = distance_basis(low).to(low)
            site = torch.stack([offsets.tanh()[:, None].expand(-1, BINS), share], -1).to(low)
        x = F.one_hot(letters, 4).transpose(1, 2).to(low)
        x = F.max_pool1d(F.gelu(self.stem(x)), POOL).transpose(1, 2) + self.site(site)
        for block in self.blocks:
            x = block(x, basis)
        logs = self.head(x)
        with torch.autocast("cpu", enabled=False):
            rate = rates(6.9 + 0.3 * logs.float(), low)
            reads = counts.float()
            cost = poisson(rate, reads, low).mean()
            alike = correlation(rate, reads, low)
            share = per_million(reads, low)
        return {"loss": cost / 100, "rate": rate, "alike": alike, "share": share}


def make():
    torch.manual_seed(0)
    return Genome()


def batch():
    generator = torch.Generator().manual_seed(6)
    starts = torch.tensor([121_534_112, 48_220_736])
    bump = torch.linspace(0, 12, BINS).sin()[None, :, None].square()
    expected = 900 * bump * torch.rand(B, BINS, TRACKS, generator=generator) + 700
    return {
        "letters": torch.randint(4, (B, LETTERS), generator=generator),
        "starts": starts,
        "genes": starts + torch.tensor([731, -412]),
        "counts": torch.poisson(expected, generator=generator).long(),
    }


def loss(output):
    return output["loss"]


optimizer = None
