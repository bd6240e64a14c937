"""A tree of species, dated by their genes: a network tells how fast each branch evolved, and the pruning algorithm the likelihood of the leaves."""

import torch
import torch.nn.functional as F
from torch import nn

LEAVES, SITES, DIM, TRAITS = 16, 96, 32, 5
BASES = 4
STEPS = 1


def lengths(born, died):
    """Millions of years between the ends of each branch. Both: whole thousands of years before today, [BRANCHES]."""
    return (born - died).float() / 1000


def other(length):
    """How likely a site has one given other base at the end of a branch. length: expected changes of a site."""
    return -torch.expm1(-4 * length.float() / 3) / 4


def apart(differing, compared):
    """Expected changes between two species, after Jukes and Cantor. Both: whole numbers of sites."""
    return -0.75 * torch.log1p(-4 * differing.float() / (3 * compared.float()))


def changes(chance):
    """The logarithms of a branch's matrix of changes. chance: [BRANCHES]"""
    same = torch.log1p(-3 * chance)[:, None, None]
    return torch.where(torch.eye(BASES, dtype=torch.bool), same, chance.log()[:, None, None])


def pruned(below, matrix):
    """What a node knows of its base, from its two children. below: logarithms, [NODES, 2, SITES, BASES]; matrix: [NODES, 2, BASES, BASES]."""
    up = torch.logsumexp(below[:, :, :, None] + matrix[:, :, None], -1)
    return up.sum(1)


def waits(ages):
    """Millions of years between one parting of lineages and the next. ages: thousands of years, ascending."""
    return (ages[1:] - ages[:-1]).float() / 1000


def rates(years, changed):
    """Changes of a site in a year, by substitutions that were counted in a number of years on SITES of a genome."""
    return changed.float() / years.float() / 30_000


def bases(sequences):
    """The share of each base. sequences: [LEAVES, GENOME]"""
    return F.one_hot(sequences, BASES).sum(1).float() / sequences.shape[1]


class Phylogeny(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.mix, self.rate = nn.Linear(TRAITS + BASES + 1, DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, 1)

    def forward(self, ages, traits, leaves, sequences, differing, compared, years, changed):
        kind = self.enter.weight.dtype
        parents = ages[torch.arange(2 * LEAVES - 2) // 2 + LEAVES]
        with torch.autocast("cpu", enabled=False):
            length, share = lengths(parents, ages[:-1]), bases(sequences)
            share = F.pad(share, (0, 0, 0, LEAVES - 2), value=1 / BASES)
            clock = rates(years, changed)
        told = torch.cat([traits.float() / 100, share, length[:, None] / 10], -1)
        x = F.gelu(self.enter(told.to(kind)))
        x = x + F.gelu(self.mix(x))
        speed = F.softplus(self.rate(x).squeeze(-1).float()) * clock.mean() * 3e4
        with torch.autocast("cpu", enabled=False):
            matrix = changes(other(speed * length)).unflatten(0, (-1, 2))
            level, used = torch.where(F.one_hot(leaves, BASES).bool(), 0.0, -12.0), 0
            while len(level) > 1:
                level, used = pruned(level.unflatten(0, (-1, 2)), matrix[used : used + len(level) // 2]), used + len(level) // 2
            seen = torch.logsumexp(level[0], -1)
            wait = waits(ages[LEAVES:])
        return {"seen": seen, "wait": wait, "far": apart(differing, compared), "length": length, "speed": speed, "clock": clock}


def make():
    torch.manual_seed(0)
    return Phylogeny()


def batch():
    generator = torch.Generator().manual_seed(231)

    def whole(least, most, *size):
        return torch.randint(least, most, size, generator=generator)

    inner = 20_000 + whole(30, 200, LEAVES - 1).cumsum(0)
    return {
        "ages": torch.cat([whole(19_900, 20_000, LEAVES), inner]),
        "traits": whole(-100, 100, 2 * LEAVES - 2, TRAITS),
        "leaves": whole(0, BASES, LEAVES, SITES),
        "sequences": whole(0, BASES, LEAVES, 900),
        "differing": whole(15, 90, LEAVES),
        "compared": whole(2_000, 3_000, LEAVES),
        "years": whole(2_000, 6_000, LEAVES),
        "changed": whole(40, 160, LEAVES),
    }


def loss(output):
    coalescent = (output["wait"] * 3).mean() - output["wait"].log().mean()
    return -output["seen"].mean() / 10 + coalescent + output["far"].mean() + output["length"].mean() / 100 + 1e3 * output["clock"].mean()


def optimizer(params):
    return torch.optim.Adam(params, lr=1e-2)
