"""How much charge a battery has left, and how old it is: current is counted, a table gives the voltage at rest, a network the rest."""

import torch
import torch.nn.functional as F
from torch import nn

CELLS, TIMES, DIM = 4, 160, 24
CAPACITY, PERIOD = 2500.0, 10
GAS, ENERGY, REFERENCE = 8.314, 50_000.0, 298.15
OPEN = (2.75, 3.32, 3.45, 3.52, 3.57, 3.61, 3.66, 3.74, 3.85, 3.97, 4.18)
STEPS = 1


def coulombs(current, start):
    """State of charge at each time: what there was, less what has flown since."""
    flow = current.float() * PERIOD / 3600 / CAPACITY
    charge, charges = start.float() / 1000, []
    for each in flow.unbind(1):
        charge = charge - each
        charges.append(charge)
    return torch.stack(charges, 1)


def open_voltage(charge):
    """From the table of a cell at rest, between its entries."""
    table = torch.tensor(OPEN)
    place = charge.clamp(0, 1 - 1e-6) * (len(OPEN) - 1)
    below = place.floor()
    share = place - below
    below = below.long()
    return table[below] * (1 - share) + table[below + 1] * share


def overvoltage(voltage, charge):
    """What current and age take off the voltage at rest, in volts."""
    return open_voltage(charge) - voltage.float() / 1000


def resistance(voltage, current):
    """In milliohms, where the current steps."""
    fall = (voltage[:, 1:] - voltage[:, :-1]).float()
    step = (current[:, 1:] - current[:, :-1]).float()
    stepped = step.abs() > 200
    ohms = torch.where(stepped, -fall / torch.where(stepped, step, 1), 0) * 1000
    return F.pad(ohms, (1, 0))


def arrhenius(temperature):
    """How much faster a cell ages than at 25 degrees Celsius; tenths of Kelvin."""
    kelvin = temperature.float() / 10
    return torch.exp(ENERGY / GAS * (1 / REFERENCE - 1 / kelvin))


def fade(cycles, speed):
    """What is left of the capacity after so many cycles."""
    kept = 1 - 2e-4 * speed.mean(1)
    return kept ** cycles.float()


def incremental_capacity(charge, voltage):
    """Charge by voltage over windows of eight times."""
    flown = charge[:, :-8] - charge[:, 8:]
    fallen = (voltage[:, :-8] - voltage[:, 8:]).float() / 1000
    return flown / (fallen.abs() + 0.01)


class BatteryNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(6, DIM)
        self.body = nn.Sequential(nn.Conv1d(DIM, DIM, 5, padding=2), nn.GELU(), nn.Conv1d(DIM, DIM, 5, padding=2))
        self.norm = nn.LayerNorm(DIM)
        self.left, self.age = nn.Linear(DIM, 1), nn.Sequential(nn.Linear(2 * DIM, DIM), nn.GELU(), nn.Linear(DIM, 1))

    def forward(self, voltage, current, temperature, start, cycles):
        with torch.autocast("cpu", enabled=False):
            charge = coulombs(current, start)
            over = overvoltage(voltage, charge)
            ohms = resistance(voltage, current)
            speed = arrhenius(temperature)
            healthy = fade(cycles, speed)
            capacity = incremental_capacity(charge, voltage)
            facts = torch.stack([charge, 10 * over, ohms / 50, speed, current.float() / 2500, healthy[:, None].expand_as(charge)], -1)
        hidden = self.enter(facts.to(self.enter.weight.dtype))
        hidden = self.norm(hidden + self.body(hidden.mT).mT)
        left = self.left(hidden)[..., 0].float()
        age = self.age(torch.cat([hidden[:, -1], hidden.mean(1)], -1))[:, 0].float()
        return {"charge": charge, "left": left, "age": age, "over": over, "speed": speed, "health": healthy, "capacity": capacity}


def make():
    torch.manual_seed(0)
    return BatteryNet()


def batch():
    generator = torch.Generator().manual_seed(66)
    level = torch.randint(150, 2600, (CELLS, TIMES // 8), generator=generator).repeat_interleave(8, 1)
    current = level + torch.randint(-40, 40, level.shape, generator=generator)
    start = torch.tensor([960, 985, 930, 978])
    charge = start[:, None].double() / 1000 - (current.double() * PERIOD / 3600 / CAPACITY).cumsum(1)
    table, place = torch.tensor(OPEN).double(), charge.clamp(0, 0.99999) * (len(OPEN) - 1)
    rest = table[place.long()] * (1 - place % 1) + table[place.long() + 1] * (place % 1)
    return {
        "voltage": (1000 * rest - 0.03 * current + 3 * torch.randn(current.shape, generator=generator)).round().long(),
        "current": current,
        "temperature": 2982 + torch.randint(-6, 60, current.shape, generator=generator),
        "start": start,
        "cycles": torch.tensor([120, 340, 610, 905]),
    }


def loss(output):
    return F.mse_loss(output["left"], output["charge"] - output["over"]) + (output["age"] - output["health"]).square().mean()


def optimizer(params):
    return torch.optim.RMSprop(params, lr=1e-2)
