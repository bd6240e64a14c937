"""Variational Monte Carlo, after FermiNet: a network makes orbitals of electrons, determinants make a wave function, and its energy is lowered."""

import torch
from torch import nn

WALKERS, ELECTRONS, NUCLEI, DETERMINANTS, DIM = 40, 6, 3, 4, 32
BOX = 30.0
STEPS = 1


def places(units, low):
    """Bohr from whole ten thousandths of one."""
    return units.float() / 10_000


def apart(one, other, low):
    """From each of the others: vectors [..., N, M, 3]."""
    return one[..., :, None, :] - other[..., None, :, :]


def lengths(vectors, low):
    """Of vectors, some of which are nought: an electron is where it is."""
    return (vectors.square().sum(-1) + 1e-12).sqrt()


def envelope(distance, sharp, low):
    """How an orbital fades away from each nucleus, for each determinant: [W, E, N, D]."""
    return (-distance[..., None] * sharp).exp()


def mixed(signs, logs, low):
    """The sign and the logarithm of a sum of determinants."""
    most = logs.amax(-1, keepdim=True)
    total = (signs * (logs - most).exp()).sum(-1)
    return total.sign(), total.abs().log() + most[..., 0]


def upper(distance, low):
    """What each pair of electrons counts once."""
    first, second = torch.triu_indices(ELECTRONS, ELECTRONS, 1)
    return distance[:, first, second]


def jastrow(pairs, low):
    """Keeps electrons from each other."""
    return -(0.5 / (1 + pairs)).sum(-1)


def potential(pairs, to_nuclei, charges, low):
    """Repulsion less attraction, in hartree."""
    return (1 / pairs).sum(-1) - (charges.float() / to_nuclei).sum((1, 2))


def beside(energy, reference, low):
    """What a walker's energy is beside that of a cheaper theory, which is known to a thousandth of a hartree."""
    return energy - reference.float() / 1000


def centred(energy, low):
    """Energies beside their middle, cut at five mean deviations."""
    off = energy - energy.median()
    wide = 5 * off.abs().mean()
    return off.clamp(-wide, wide)


def averaged(energy, low):
    """The mean of all walkers, one after another."""
    total = torch.zeros_like(energy[0])
    for each in energy.unbind():
        total = total + each
    return total / len(energy)


def acceptance(new, old, low):
    """The chance that a walker takes its step."""
    return (2 * (new - old)).clamp_max(0).exp()


class Wave(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(4 * NUCLEI + 4, DIM)
        self.layers = nn.ModuleList(nn.Linear(2 * DIM, DIM) for _ in range(2))
        self.orbitals = nn.Linear(DIM, DETERMINANTS * ELECTRONS)
        self.sharp = nn.Parameter(torch.rand(NUCLEI, DETERMINANTS) + 1.5)

    def described(self, position, nuclei, dtype):
        to_nuclei, others = apart(position, nuclei.expand(len(position), -1, -1), dtype), apart(position, position, dtype)
        facts = torch.cat([to_nuclei.flatten(2), lengths(to_nuclei, dtype), others.mean(2), lengths(others, dtype).mean(2, keepdim=True)], -1)
        return facts, lengths(to_nuclei, dtype), upper(lengths(others, dtype), dtype)

    def forward(self, units, stepped, nuclei, charges, reference):
        low = self.enter(torch.zeros(1, 4 * NUCLEI + 4, dtype=self.enter.weight.dtype)).dtype
        with torch.autocast("cpu", enabled=False):
            kernels = places(nuclei, low)
            position, other = places(units, low), places(stepped, low)
        _, log, pairs, to_nuclei = self.wave(position, kernels, low)
        _, after, _, _ = self.wave(other, kernels, low)
        with torch.autocast("cpu", enabled=False):
            above = beside(potential(pairs, to_nuclei, charges, low), reference, low)
            off, mean, taken = centred(above, low), averaged(above, low), acceptance(after, log, low)
        loss = (off.detach() * log).mean() + 0.1 * (1 - taken).square().mean()
        return {"log": log, "mean": mean, "taken": taken, "loss": loss}

    def wave(self, position, kernels, low):
        with torch.autocast("cpu", enabled=False):
            facts, to_nuclei, pairs = self.described(position, kernels, low)
        hidden = self.enter(facts.to(self.enter.weight.dtype)).tanh()
        for layer in self.layers:
            hidden = hidden + layer(torch.cat([hidden, hidden.mean(1, keepdim=True).expand_as(hidden)], -1)).tanh()
        raw = self.orbitals(hidden).float().unflatten(-1, (DETERMINANTS, ELECTRONS)).transpose(1, 2)
        with torch.autocast("cpu", enabled=False):
            fade = envelope(to_nuclei, self.sharp.float(), low).sum(2).transpose(1, 2)
            grown = raw + 3 * torch.eye(ELECTRONS)
            signs, logs = torch.linalg.slogdet(grown * fade[..., None] / BOX)
            sign, log = mixed(signs, logs, low)
        return sign, log + jastrow(pairs, low), pairs, to_nuclei


def make():
    torch.manual_seed(0)
    return Wave()


def batch():
    generator = torch.Generator().manual_seed(7)
    nuclei = torch.tensor([[0, 0, 0], [20_000, 3_000, 0], [-9_000, 18_000, 4_000]])
    charges = torch.tensor([26, 8, 8])
    home = torch.tensor([0, 0, 0, 1, 2, 0])
    near = torch.randn(WALKERS, ELECTRONS, 3, generator=generator) * 1_500 + nuclei[home].float()
    close = near[:, 0] + torch.randn(WALKERS, 3, generator=generator) * 60
    near = torch.cat([near[:, :-1], close[:, None]], 1) + torch.tensor([70_000.0, -50_000.0, 30_000.0])
    nuclei = nuclei + torch.tensor([70_000, -50_000, 30_000])
    units = near.round().long()
    pairs = upper(lengths(apart(near / 10_000, near / 10_000, None), None), None)
    energy = potential(pairs, lengths(apart(near / 10_000, nuclei.expand(WALKERS, -1, -1).float() / 10_000, None), None), charges, None)
    return {
        "units": units,
        "stepped": units + (torch.randn(WALKERS, ELECTRONS, 3, generator=generator) * 40).round().long(),
        "nuclei": nuclei,
        "charges": charges,
        "reference": (energy * 1000 + torch.randn(WALKERS, generator=generator) * 2_000).round().long(),
    }


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.Adam(params, lr=1e-2)
