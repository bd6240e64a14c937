"""An interatomic potential: messages between atoms of a periodic box, energies above those of free atoms, and forces as their gradient."""

from __future__ import annotations

import math

import torch
from torch import nn

PRECISIONS = ("bf16-mixed", "16-mixed")  # places in a box are inputs, which a conversion of everything would round
STEPS = 1
ATOMS, SPECIES, WIDTH, WAVES, CUTOFF, BOX = 40, 4, 24, 16, 5.0, 96.0
FREE = (-13.6, -1029.9, -1485.3, -2042.6)


def displacements(places: torch.Tensor, box: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """From each atom to the nearest image of each other."""
    apart = places.unsqueeze(1) - places.unsqueeze(2)
    apart = apart - box * torch.round(apart / box)
    return apart.float()


def waves(distance: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Spherical Bessel functions that end at the cutoff."""
    number = torch.arange(1, WAVES + 1, device=distance.device, dtype=distance.dtype)
    return math.sqrt(2 / CUTOFF) * torch.sin(number * math.pi / CUTOFF * distance.unsqueeze(-1)).float() / distance.unsqueeze(-1)


def envelope(distance: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """A polynomial that falls from one to zero at the cutoff, with its first and second derivative."""
    x = (distance / CUTOFF).clamp(max=1.0)
    return (1 - 28 * x**6 + 48 * x**7 - 21 * x**8).float()


def repulsion(distance: torch.Tensor, bonded: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """Of atoms that are not bonded, by the twelfth power."""
    power = (2.8 / distance) ** 12
    return torch.where(bonded, 0.0, 1e-3 * power).float()


def surplus(energy: torch.Tensor, species: torch.Tensor, known: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How far the energy of each box is from what is known of it, free atoms included."""
    free = torch.tensor(FREE, device=energy.device)[species].sum(-1)
    return energy.float() - (known - free)


class Message(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(WAVES, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.take, self.give = nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, atoms: torch.Tensor, basis: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
        weights = self.filter(basis) * near.unsqueeze(-1).to(basis.dtype)
        return atoms + self.give((weights * self.take(atoms).unsqueeze(1)).sum(2) / 4)


class Potential(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.species = nn.Embedding(SPECIES, WIDTH)
        self.messages = nn.ModuleList(Message() for _ in range(2))
        self.energy = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1))

    def forward(self, places: torch.Tensor, species: torch.Tensor, bonded: torch.Tensor, known: torch.Tensor) -> dict[str, torch.Tensor]:
        atoms = self.species(species)
        low = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else atoms.dtype
        places = places.detach().requires_grad_()
        with torch.enable_grad():
            with torch.autocast(places.device.type, enabled=False):
                apart = displacements(places, torch.tensor(BOX), low)
                itself = torch.eye(ATOMS, device=places.device, dtype=torch.bool)
                distance = apart.square().sum(-1).masked_fill(itself, CUTOFF**2).sqrt()
                near = envelope(distance, low).masked_fill(itself, 0.0)
                basis = waves(distance, low)
                pushed = (repulsion(distance, bonded, low) * near).sum((-1, -2)) / 2
            for message in self.messages:
                atoms = message(atoms, basis.to(self.species.weight.dtype), near)
            energy = self.energy(atoms).float().sum((-1, -2)) + pushed
            with torch.autocast(places.device.type, enabled=False):
                forces = -torch.autograd.grad(energy.sum(), places, create_graph=True)[0]
        with torch.autocast(places.device.type, enabled=False):
            off = surplus(energy, species, known, low)
        return {"energy": energy, "forces": forces, "loss": off.square().mean() / ATOMS + forces.float().square().mean()}


def make() -> nn.Module:
    torch.manual_seed(0)
    return Potential()


def batch() -> dict[str, torch.Tensor]:
    """Atoms on a grid, each shaken; the last four sit close to another one, to which they are bonded."""
    generator = torch.Generator().manual_seed(1)
    grid = torch.stack(torch.meshgrid(*[torch.arange(3.0)] * 2, torch.arange(4.0), indexing="ij"), -1).flatten(0, 2)
    places = 91.3 + 2.9 * grid.expand(2, -1, -1) + 0.1 * torch.randn(2, 36, 3, generator=generator)
    close = places[:, :4] + torch.tensor([0.55, 0.4, 0.3])
    places = torch.cat([places, close], 1) % BOX
    bonded = torch.zeros(ATOMS, ATOMS, dtype=torch.bool)
    bonded[range(4), range(36, 40)] = bonded[range(36, 40), range(4)] = True
    species = torch.randint(SPECIES, (2, ATOMS), generator=generator)
    known = torch.tensor(FREE)[species].sum(-1) + torch.tensor([-3.1, 4.6])
    return {"places": places, "species": species, "bonded": bonded.expand(2, -1, -1), "known": known}


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
