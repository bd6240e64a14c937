"""A learned simulator of a fluid in a tank: particles, cells to find neighbours, the density and pressure of each, a graph network, small steps."""

import torch
from torch import nn

COUNT, FRAMES, DIM, NEAR = 96, 6, 32, 8
RADIUS, REACH = 0.02, 0.06
DENSITY, SOUND, GAMMA = 1000.0, 20.0, 7
TIME_STEP, SMALL = 0.005, 24
TANK = (0.96, 0.6)
STEPS = 1


def velocities(history):
    """From one frame to the next, in metres per second; places are whole micrometres."""
    place = history.float() / 1e6
    return (place[:, 1:] - place[:, :-1]) / TIME_STEP


def accelerations(velocity):
    return (velocity[:, 1:] - velocity[:, :-1]) / TIME_STEP


def cells(place):
    """The cell of a grid that a particle is in, and where in it."""
    scaled = place / REACH
    cell = scaled.floor()
    return cell.long(), scaled - cell


def neighbours(place):
    """The nearest particles of each, and how far they are."""
    apart = (place[:, None] - place[None]).norm(dim=-1)
    distance, index = apart.fill_diagonal_(10.0).topk(NEAR, largest=False)
    return index, distance


def offsets(place, index):
    """From a particle to its neighbours, in radii."""
    return (place[index] - place[:, None]) / RADIUS


def compression(distance, mass):
    """Density over that at rest."""
    share = (1 - (distance / REACH).square()).clamp_min(0) ** 3
    return 0.97 + 0.06 * (mass * share.sum(-1)) / NEAR


def pressure(dense):
    """By Tait's equation, in units of the square of the speed of sound."""
    return (dense ** GAMMA - 1) / GAMMA


def sound_pressure(relative):
    """In kilopascals."""
    return relative * DENSITY * SOUND * SOUND / 1000


def to_walls(place):
    """How near each wall of the tank is: one at the wall, nothing from four radii on."""
    tank = torch.tensor(TANK)
    return (1 - torch.cat([place, tank - place], -1) / (4 * RADIUS)).clamp_min(0)


def normalised(speed):
    """By the mean and the spread of all speeds."""
    mean = speed.mean()
    spread = (speed - mean).square().mean().sqrt()
    return (speed - mean) / spread


def energy_lost(before, after, height):
    """Of each particle, from one frame to the next, in joules per kilogram: motion and height together."""
    earlier = before.square().sum(-1) / 2 + 9.81 * height[:, 0]
    later = after.square().sum(-1) / 2 + 9.81 * height[:, 1]
    return later - earlier


def moved(place, velocity, force):
    """Where a frame of many small steps takes the particles, from where they are."""
    now, step = place, TIME_STEP / SMALL
    for _ in range(SMALL):
        velocity = velocity + step * force
        now = now + step * velocity
    return (now - place) / RADIUS


class Interaction(nn.Module):
    def __init__(self):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * DIM + 3, DIM), nn.ReLU(), nn.Linear(DIM, DIM))
        self.node = nn.Sequential(nn.Linear(2 * DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM))
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x, index, edge):
        message = self.edge(torch.cat([x[:, None].expand(-1, NEAR, -1), x[index], edge], -1)).mean(1)
        return self.norm(x + self.node(torch.cat([x, message], -1)))


class FluidNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(2 * (FRAMES - 1) + 2 * (FRAMES - 2) + 10, DIM)
        self.layers = nn.ModuleList(Interaction() for _ in range(2))
        self.leave = nn.Linear(DIM, 2)

    def forward(self, history, mass):
        with torch.autocast("cpu", enabled=False):
            velocity = velocities(history)
            force = accelerations(velocity)
            place = history[:, -1].float() / 1e6
            cell, inner = cells(place)
            index, distance = neighbours(place)
            edge = torch.cat([offsets(place, index), distance[..., None] / REACH], -1)
            dense = compression(distance, mass.float() / 1000)
            push = pressure(dense)
            pascal = sound_pressure(push)
            wall = to_walls(place)
            speed = normalised(velocity[:, -1].norm(dim=-1))
            lost = energy_lost(velocity[:, -2], velocity[:, -1], history[:, -2:, 1].float() / 1e6)
            single = torch.stack([20 * push, pascal / 10, speed, lost], -1)
            facts = torch.cat([velocity.flatten(1), force.flatten(1) / 20, inner, wall, single], -1)
        x = self.enter(facts.to(self.enter.weight.dtype))
        for layer in self.layers:
            x = layer(x, index, edge.to(x.dtype))
        pushed = self.leave(x).float()
        with torch.autocast("cpu", enabled=False):
            step = moved(place, velocity[:, -1], pushed)
        return {"step": step, "pushed": pushed, "pressure": push, "lost": lost, "cell": cell.float()}


def make():
    torch.manual_seed(0)
    return FluidNet()


def batch():
    generator = torch.Generator().manual_seed(72)
    grid = torch.cartesian_prod(torch.arange(12), torch.arange(8)).double() * 0.038 + torch.tensor([0.52, 0.05]).double()
    grid = grid + 0.006 * torch.randn(COUNT, 2, generator=generator).double()
    velocity = torch.tensor([0.9, -0.25]) + 0.05 * torch.randn(COUNT, 2, generator=generator)
    force = torch.tensor([0.0, -9.81]) + 4 * torch.randn(COUNT, FRAMES, 2, generator=generator)
    time = TIME_STEP * (torch.arange(FRAMES) - FRAMES + 1)
    history = grid[:, None] + velocity[:, None] * time[:, None] + force * time[:, None].square() / 2
    return {"history": (1e6 * history).round().long(), "mass": 950 + torch.randint(0, 100, (COUNT,), generator=generator)}


def loss(output):
    return output["step"].square().mean() + output["pushed"].square().mean()


def optimizer(params):
    return torch.optim.RMSprop(params, lr=1e-2)
