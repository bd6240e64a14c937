"""Optimal power flow: a graph network guesses voltages, Kirchhoff's laws say what flows, and the loss is the cost with penalties."""

import math

import torch
from torch import nn

GRIDS, BUSES, LINES, UNITS, DIM = 3, 30, 46, 6, 40
BASE = 100.0
STEPS = 1


def admittance(resistance, reactance, low):
    """Conductance and susceptance of each line from millionths of the base."""
    r, x = resistance.float() / 1e6, reactance.float() / 1e6
    size = r.square() + x.square()
    return r / size, -x / size


def per_unit(kilowatts, low):
    return kilowatts.float() / (1000 * BASE)


def flows(here, there, turn, g, b, low):
    """Power into each line at one of its ends: a large term less another that is nearly as large."""
    return here.square() * g - here * there * (g * turn.cos() + b * turn.sin())


def losses(begin, end, low):
    """What goes in at one end and does not come out at the other."""
    return begin + end


def mismatch(made, used, first, second, begin, end, low):
    """At each bus, what is made less what is used and what flows off."""
    off = torch.zeros_like(used).index_add(1, first, begin).index_add(1, second, end)
    return made - used - off


def costs(megawatts, low):
    """Dollars an hour, by a parabola for each plant."""
    a, b = torch.linspace(0.012, 0.045, UNITS), torch.linspace(12.0, 40.0, UNITS)
    return (a * megawatts.square() + b * megawatts).sum(-1)


def headroom(flow, limit, low):
    """A barrier that grows as a line comes to its limit."""
    left = 1.0 - (flow / limit).square()
    return -left.clamp_min(1e-4).log()


def swing(millihertz, low):
    """How far the frequency is from 50 hertz, in its own spread."""
    hertz = millihertz.float() / 1000
    return (hertz - 50.0) / 0.02


def phasor(microseconds, low):
    """Where the clock of a measuring unit finds the wave: turns of 50 hertz."""
    turns = microseconds.float() * 50e-6
    return torch.stack([(2 * math.pi * turns).cos(), (2 * math.pi * turns).sin()], -1)


def degrees(first, second, low):
    ones = torch.ones(LINES)
    return torch.zeros(BUSES).index_add(0, first, ones).index_add(0, second, ones)


class Round(nn.Module):
    def __init__(self):
        super().__init__()
        self.message, self.update, self.norm = nn.Linear(2 * DIM + 2, DIM), nn.Linear(2 * DIM, DIM), nn.LayerNorm(DIM)

    def forward(self, x, first, second, edges, degree):
        sent = torch.tanh(self.message(torch.cat([x[:, first], x[:, second], edges], -1)))
        got = torch.zeros_like(sent[:, :1]).expand(-1, BUSES, -1).index_add(1, first, sent).index_add(1, second, sent)
        return self.norm(x + self.update(torch.cat([x, got / degree.to(got.dtype)[:, None]], -1)))


class PowerGrid(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(7, DIM)
        self.rounds = nn.ModuleList(Round() for _ in range(3))
        self.voltage, self.plants = nn.Linear(DIM, 2), nn.Linear(DIM, 1)

    def forward(self, first, second, resistance, reactance, active, reactive, limit, millihertz, microseconds, unit):
        low = self.enter.weight.dtype if not torch.is_autocast_enabled("cpu") else torch.get_autocast_dtype("cpu")
        with torch.autocast("cpu", enabled=False):
            g, b = admittance(resistance, reactance, low)
            load, pull = per_unit(active, low), per_unit(reactive, low)
            pace, clock = swing(millihertz, low), phasor(microseconds, low)
            degree = degrees(first, second, low)
        facts = torch.stack([load, pull, pace[:, None].expand_as(load), torch.ones_like(load)], -1)
        facts = torch.cat([facts, clock, degree.log()[None, :, None].expand(GRIDS, -1, 1)], -1)
        x, edges = self.enter(facts.to(low)), torch.stack([g / 50, b / 50], -1).to(low).expand(GRIDS, -1, -1)
        for each in self.rounds:
            x = each(x, first, second, edges, degree)
        size, angle = self.voltage(x).float().unbind(-1)
        share = self.plants(x[:, unit]).float()[..., 0].sigmoid()
        with torch.autocast("cpu", enabled=False):
            size, angle = 1 + 0.02 * size.tanh(), 0.05 * angle.tanh()
            turn = angle[:, first] - angle[:, second]
            begin = flows(size[:, first], size[:, second], turn, g, b, low)
            end = flows(size[:, second], size[:, first], -turn, g, b, low)
            lost = losses(begin, end, low)
            made = torch.zeros_like(load).index_add(1, unit, 6 * share)
            wrong = mismatch(made, load, first, second, begin, end, low)
            tight = headroom(begin, limit.float() / BASE, low)
            price = costs(600 * share, low)
            total = price.mean() / 50_000 + wrong.square().mean() + 0.1 * lost.mean() + 0.01 * tight.mean()
        return {"size": size, "angle": angle, "wrong": wrong, "loss": total}


def make():
    torch.manual_seed(0)
    return PowerGrid()


def batch():
    generator = torch.Generator().manual_seed(30)
    first = torch.cat([torch.arange(BUSES - 1), torch.randint(BUSES - 8, (LINES - BUSES + 1,), generator=generator)])
    second = torch.cat([torch.arange(1, BUSES), first[BUSES - 1 :] + torch.randint(2, 8, (LINES - BUSES + 1,), generator=generator)])
    return {
        "first": first,
        "second": second,
        "resistance": torch.randint(900, 9_000, (LINES,), generator=generator),
        "reactance": torch.randint(8_000, 60_000, (LINES,), generator=generator),
        "active": torch.randint(2_000, 90_000, (GRIDS, BUSES), generator=generator),
        "reactive": torch.randint(500, 30_000, (GRIDS, BUSES), generator=generator),
        "limit": torch.randint(600, 900, (LINES,), generator=generator),
        "millihertz": torch.randint(49_930, 50_070, (GRIDS,), generator=generator),
        "microseconds": torch.randint(4_000_000, (GRIDS, BUSES), generator=generator),
        "unit": torch.tensor([0, 4, 9, 15, 22, 27]),
    }


def loss(output):
    return output["loss"]


def optimizer(params):
    return torch.optim.Adam(params, lr=1e-2)
