"""Properties of crystals: fractional places in a periodic cell, distances to the nearest image, diffraction, and a lattice sum of charges."""

import math

import torch
import torch.nn.functional as F
from torch import nn

CRYSTALS, ATOMS, SPECIES, SIZE, CENTRES, WAVES = 4, 24, 5, 32, 24, 40
STEPS = 1


class Geometry(nn.Module):
    """What follows from the places alone. Nothing of it is learned."""

    def forward(self, millionths, lengths, low):
        places = self.places(millionths, low)
        away = self.nearest_images(places, lengths, low)
        return places, self.distances(away, low)

    def places(self, millionths, low):
        return millionths.float() / 1e6

    def nearest_images(self, places, lengths, low):
        """From each atom to the nearest image of each other, in ångströms: [B, N, N, 3]. lengths: whole thousandths of an ångström."""
        apart = places[:, :, None] - places[:, None]
        return (apart - apart.round()) * (lengths.float() / 1000)[:, None, None]

    def distances(self, away, low):
        return (away.square().sum(-1) + torch.eye(ATOMS)).sqrt()


class RadialBasis(nn.Module):
    """Narrow bells around distances, as SchNet has them."""

    def __init__(self, cutoff=9.6, width=0.08):
        super().__init__()
        self.cutoff, self.width = cutoff, width

    def forward(self, distance, low):
        centres = torch.arange(CENTRES) * (self.cutoff / CENTRES)
        return (-0.5 * ((distance[..., None] - centres) / self.width).square()).exp()


class Diffraction(nn.Module):
    """How strongly planes of the lattice reflect: squares of sums of waves over the atoms."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.planes = torch.randint(-14, 15, (WAVES, 3), generator=generator)

    def forward(self, places, electrons, low):
        phase = self.phases(places, low)
        real, imaginary = (electrons[..., None] * phase.cos()).sum(1), (electrons[..., None] * phase.sin()).sum(1)
        return self.intensity(real, imaginary, low)

    def phases(self, places, low):
        return 2 * math.pi * (places @ self.planes.float().T)

    def intensity(self, real, imaginary, low):
        return (real.square() + imaginary.square()) / (18 * ATOMS)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter, self.inner, self.outer = nn.Linear(CENTRES, SIZE), nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, atoms, basis, near):
        weights = self.filter(basis) * near.to(basis.dtype)
        return atoms + self.outer(F.silu(torch.einsum("bijc,bjc->bic", weights, self.inner(atoms)) / 4))


class Crystals(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(SPECIES, SIZE)
        self.geometry, self.basis, self.diffraction = Geometry(), RadialBasis(), Diffraction()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.mix = nn.Linear(SIZE, SIZE)
        self.head = nn.Linear(SIZE + WAVES + 2, 1)

    def lattice_energy(self, distance, charges, low):
        """Energies of the charges in each other's field, an atom: [B]. Opposite terms nearly cancel."""
        pairs = charges[:, :, None] * charges[:, None] / distance
        screened = pairs * torch.erfc(distance / 2) * (1 - torch.eye(ATOMS))
        return screened.flatten(1).sum(1) / ATOMS

    def density(self, lengths, masses, low):
        """Grams a cubic centimetre: [B]."""
        sides = lengths.float() / 1000
        volume = sides[:, 0] * sides[:, 1] * sides[:, 2]
        return 1.66054 * masses.float().sum(1) / volume

    def forward(self, millionths, lengths, species, charges, masses, energy):
        low = self.mix(self.embedding(species)).dtype
        with torch.autocast("cpu", enabled=False):
            places, distance = self.geometry(millionths, lengths, low)
            basis, near = self.basis(distance, low), ((distance < 9.6) & (distance > 1.0001))[..., None]
            pattern = self.diffraction(places, (masses // 2).float(), low)
            lattice, density = self.lattice_energy(distance, charges.float(), low), self.density(lengths, masses, low)
        atoms = self.mix(self.embedding(species))
        for block in self.blocks:
            atoms = block(atoms, basis.to(atoms.dtype), near)
        rows = torch.cat([atoms.mean(1).float(), pattern.float().log1p(), lattice[:, None].float(), density[:, None].float()], -1)
        predicted = self.head(rows.to(atoms.dtype)).float()[:, 0]
        return {"energy": predicted, "loss": F.smooth_l1_loss(predicted, energy.float() / 1000)}


def make():
    torch.manual_seed(0)
    return Crystals()


def batch():
    generator = torch.Generator().manual_seed(15)
    side = torch.stack(torch.meshgrid(*[torch.arange(3)] * 3, indexing="ij"), -1).reshape(-1, 3)[:ATOMS]
    jitter = torch.rand(CRYSTALS, ATOMS, 3, generator=generator)
    species = torch.randint(SPECIES, (CRYSTALS, ATOMS), generator=generator)
    signs = torch.where(side.sum(-1) % 2 == 0, 1, -1).expand(CRYSTALS, ATOMS)
    return {
        "millionths": ((0.72 + (side + jitter) * 0.045) * 1e6).long(),
        "lengths": torch.randint(42_000, 48_000, (CRYSTALS, 3), generator=generator) // 4 + torch.tensor([32_000, 31_000, 33_000]),
        "species": species,
        "charges": signs * (1 + species % 2),
        "masses": torch.tensor([16, 28, 40, 56, 208])[species],
        "energy": torch.randint(-4000, 1000, (CRYSTALS,), generator=generator),
    }


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.AdamW(params, lr=1e-3)
