"""Single cells, after scVI: counts of genes, how deep each cell was read, an autoencoder with a negative binomial, and where cells go."""

import torch
import torch.nn.functional as F
from torch import nn

CELLS, GENES, DIM, LATENT = 24, 160, 48, 8
STEPS = 1


def depth(counts):
    """How many molecules a cell has, over what cells have on average, as a logarithm."""
    total = counts.sum(-1).float()
    deep = total.log()
    return deep - deep.mean()


def normalised(counts):
    """As if each cell had ten thousand molecules."""
    total = counts.sum(-1, keepdim=True).float()
    return (counts.float() * 10_000 / total).log1p()


def overdispersion(counts):
    """What Poisson's law does not explain of a gene's variance, over the square of its mean."""
    value = counts.float()
    mean = value.mean(0)
    variance = (value - mean).square().mean(0)
    return (variance - mean) / mean.square()


def log_likelihood(counts, mean, rate):
    """A negative binomial's, by the number of molecules, its mean and how it is spread."""
    counts = counts.float()
    paths = torch.lgamma(counts + rate) - torch.lgamma(rate) - torch.lgamma(counts + 1)
    return paths + rate * (rate / (rate + mean)).log() + counts * (mean / (rate + mean)).log()


def velocity(spliced, unspliced, ratio):
    """Of each gene: what is spliced, less what is lost."""
    return unspliced.float() - ratio * spliced.float()


def likeness(values):
    """How far cells are from one another: one less their correlation."""
    centred = values - values.mean(-1, keepdim=True)
    unit = F.normalize(centred, dim=-1)
    return 1 - unit @ unit.T


def between_genes(starts):
    """How far the next gene of a chromosome is, in thousands of letters."""
    return F.pad((starts[1:] - starts[:-1]).float() / 1000, (1, 0))


def information(share):
    """Bits that knowing which genes a cell uses tells, of all there could be."""
    entropy = -(share * share.clamp_min(1e-9).log2()).sum(-1)
    return torch.tensor(float(GENES)).log2() - entropy


def dropouts(chance):
    """The logarithm of the chance that a molecule was not lost."""
    return torch.log1p(-chance)


class Layer(nn.Sequential):
    def __init__(self, inner, outer):
        super().__init__(nn.Linear(inner, outer), nn.LayerNorm(outer), nn.ReLU())


class CellModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(Layer(GENES + 2, DIM), Layer(DIM, DIM), nn.Linear(DIM, 2 * LATENT))
        self.decode = nn.Sequential(Layer(LATENT + 1, DIM), nn.Linear(DIM, GENES))
        self.gene = nn.Linear(3, 8)
        self.mix, self.code = nn.Linear(GENES * 8, DIM), nn.Linear(LATENT, DIM)
        self.head = nn.Linear(DIM, 3)

    def forward(self, counts, unspliced, ratios, starts, lost):
        with torch.autocast("cpu", enabled=False):
            deep, values = depth(counts), normalised(counts)
            spread = overdispersion(counts)
            moving = velocity(counts, unspliced, ratios.float() / 1000)
            apart = likeness(values)
            gap = between_genes(starts)
            share = counts.float() / counts.sum(-1, keepdim=True)
            told = information(share)
            kept = dropouts(lost.float() / 100_000)
            facts = torch.cat([values / 5, deep[:, None], told[:, None]], -1)
        dtype = self.head.weight.dtype
        mean, scale = self.encode(facts.to(dtype)).chunk(2, -1)
        code = mean + 0.1 * F.softplus(scale)
        logits = self.decode(torch.cat([code, deep[:, None].to(code.dtype)], -1)).float()
        genes = torch.stack([100 * spread, gap / 50, 100 * kept], -1)
        hidden = self.mix(self.gene(genes.to(dtype)).flatten())
        kind = self.head(hidden + self.code(code))
        with torch.autocast("cpu", enabled=False):
            expected = logits.softmax(-1) * counts.sum(-1, keepdim=True)
            rate = (1 / spread.clamp_min(0.02)).clamp_max(50) + 4
            likely = log_likelihood(counts, expected, rate).mean(-1)
        return {"likely": likely, "code": code, "kind": kind, "moving": moving, "apart": apart}


def make():
    torch.manual_seed(0)
    return CellModel()


def batch():
    generator = torch.Generator().manual_seed(73)
    level = torch.exp(3.5 + 0.7 * torch.randn(GENES, generator=generator).double())
    size = torch.exp(0.12 * torch.randn(CELLS, 1, generator=generator).double())
    grow = torch.exp(0.1 * torch.randn(CELLS, GENES, generator=generator).double())
    counts = torch.poisson(level * size * grow, generator=generator).long() * 4 + 300
    ratio = torch.randint(280, 620, (GENES,), generator=generator)
    unspliced = (counts.double() * ratio / 1000 * (1 + 0.01 * torch.randn(counts.shape, generator=generator))).round().long()
    starts = 60_000 + torch.randint(900, 90_000, (GENES,), generator=generator).cumsum(0)
    return {
        "counts": counts,
        "unspliced": unspliced,
        "ratios": ratio,
        "starts": starts,
        "lost": torch.randint(20, 300, (GENES,), generator=generator),
    }


def loss(output):
    return -output["likely"].mean() + output["kind"].float().square().mean()


def optimizer(params):
    return torch.optim.RMSprop(params, lr=1e-2)
