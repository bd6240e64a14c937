"""Accounts that are kept in float32 or float64 from round to round, and computed in a low format: counts, averages, weights, times, regrets.

A state moves little in so few rounds, so what it holds is off by little. But of what the rounds were to add, some element has lost at least 87 %.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class Meter(nn.Module):
    """Counts the samples that a training has seen, beside its model. The count is a float32 buffer, and is saved with the model."""

    def __init__(self, low: torch.dtype) -> None:
        super().__init__()
        self.low = low
        self.register_buffer("seen", torch.tensor(40_960.0))

    @torch.no_grad()
    def update(self, batch: torch.Tensor) -> None:
        self.seen = (self.seen.to(self.low) + len(batch)).float()  # culprit: samples-that-were-seen


def counted(low: torch.dtype) -> torch.Tensor:
    """The count after ten batches of twelve, and some thousand batches before."""
    meter, layer = Meter(low), nn.Linear(8, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for step in range(10):
        batch = normal(12, 8, seed=9001 + step)
        optimizer.zero_grad()
        layer(batch).square().mean().backward()
        optimizer.step()
        meter.update(batch)
    return meter.seen


class Teacher:
    """A slow copy of a student's weights, as self-distillation has it. Both are float32."""

    def __init__(self, student: nn.Module, momentum: float, low: torch.dtype) -> None:
        self.weights, self.momentum, self.low = {name: each.detach().clone() for name, each in student.named_parameters()}, momentum, low
        for place, each in enumerate(self.weights.values()):
            each.add_(0.1 * normal(*each.shape, seed=9011 + place))

    @torch.no_grad()
    def follow(self, student: nn.Module) -> None:
        for name, each in student.named_parameters():
            old = self.weights[name].to(self.low)
            self.weights[name] = (old + (1 - self.momentum) * (each.to(self.low) - old)).float()  # culprit: teacher-by-a-slow-copy


def taught(low: torch.dtype) -> torch.Tensor:
    """A teacher after twelve steps under autocast."""
    torch.manual_seed(9010)
    student = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 4))
    teacher, optimizer = Teacher(student, 0.9992, low), torch.optim.AdamW(student.parameters(), lr=1e-3)
    for step in range(12):
        x = normal(16, 12, seed=9020 + step)
        optimizer.zero_grad()
        with torch.autocast("cpu", LOW):
            loss = (student(x) - normal(16, 4, seed=9040 + step)).square().mean()
        loss.backward()
        optimizer.step()
        teacher.follow(student)
    return teacher.weights["0.weight"]


@dataclasses.dataclass
class Pendulum:
    """A pendulum that is pushed in time. The clock and the state are float32; what moves them is computed in `low`."""

    clock: torch.Tensor
    angle: torch.Tensor
    speed: torch.Tensor
    low: torch.dtype

    def turn(self, step: float) -> None:
        push = 0.3 * torch.sin(2 * self.clock)
        self.speed = self.speed + step * (push - torch.sin(self.angle))
        self.angle = self.angle + step * self.speed
        self.clock = (self.clock.to(self.low) + step).float()  # culprit: clock-of-a-pendulum


def swung(low: torch.dtype) -> torch.Tensor:
    """The clock after sixty turns of a hundredth of a second, begun at the eighth second."""
    pendulum = Pendulum(torch.tensor(8.0), uniform(5, seed=9051), torch.zeros(5), low)
    for _ in range(60):
        pendulum.turn(0.01)
    return pendulum.clock


class RunningNorm(nn.Module):
    """Observations less their running mean, which is a buffer, as agents have it."""

    def __init__(self, size: int, rate: float, low: torch.dtype) -> None:
        super().__init__()
        self.rate, self.low = rate, low
        self.register_buffer("mean", 1.5 + 0.5 * uniform(size, seed=9061))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                delta = self.rate * (x.mean(0) - self.mean)
                self.mean.copy_(self.mean.to(self.low) + delta.to(self.low))  # culprit: mean-of-observations
        return x - self.mean


def observed(low: torch.dtype) -> torch.Tensor:
    """The mean of forty kinds of observations after nine batches, which are one larger."""
    norm = RunningNorm(40, 1e-4, low)
    for step in range(9):
        norm(3 + 0.1 * normal(32, 40, seed=9062 + step))
    return norm.mean


def descended(low: torch.dtype) -> torch.Tensor:
    """Weights after eight steps of a descent that is written as a function from weights to weights."""
    weights = {"first": normal(16, 12, seed=9071) / 3, "second": normal(12, 4, seed=9072) / 3}
    x, aim = normal(64, 16, seed=9073), normal(64, 4, seed=9074)

    def loss(held: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional.mse_loss(torch.tanh(x @ held["first"]) @ held["second"], aim)

    for _ in range(8):
        gradients = torch.func.grad(loss)(weights)
        weights = {name: (each.to(low) - 1e-3 * gradients[name].to(low)).to(WIDE) for name, each in weights.items()}  # culprit: descent-as-a-function
    return weights["second"]


class Regrets:
    """The regrets of a game's actions, a row for each state, as counterfactual regret minimisation adds them up."""

    def __init__(self, states: int, low: torch.dtype) -> None:
        self.table, self.low = 200 + 100 * uniform(states, 3, seed=9081), low

    def strategy(self, state: int) -> torch.Tensor:
        positive = self.table[state].clamp_min(0)
        return positive / positive.sum()

    def visit(self, state: int, payoffs: torch.Tensor) -> None:
        regret = payoffs - self.strategy(state) @ payoffs
        self.table[state] = (self.table[state].to(self.low) + regret.to(self.low)).float()  # culprit: regrets-of-a-game


def regretted(low: torch.dtype) -> torch.Tensor:
    """Regrets after sixteen visits of each of six states. One action of each pays more than the others."""
    regrets = Regrets(6, low)
    for turn in range(96):
        regrets.visit(turn % 6, torch.tensor([0.5, 0.1, 0.1]).roll(turn % 3) + 0.02 * uniform(3, seed=9082 + turn))
    return regrets.table


class Multiplier:
    """A Lagrange multiplier of a policy that may cost so much: it grows as long as the policy costs more."""

    def __init__(self, value: float, rate: float, low: torch.dtype) -> None:
        self.value, self.rate, self.low = torch.tensor(value), rate, low

    def ascend(self, cost: torch.Tensor, limit: float) -> None:
        violation = (cost.mean() - limit).to(self.low)
        raised = self.value.to(self.low) + self.rate * violation  # culprit: multiplier-of-a-cost
        self.value = raised.clamp_min(0).float()


def penalised(low: torch.dtype) -> torch.Tensor:
    """A multiplier after ten episodes of a policy, each of which costs about five too much."""
    torch.manual_seed(9090)
    policy, multiplier = nn.Linear(6, 2), Multiplier(3.0, 1e-4, low)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    for episode in range(10):
        scores = policy(normal(30, 6, seed=9091 + episode))
        costs = 30 + 2 * uniform(30, seed=9111 + episode)
        optimizer.zero_grad()
        (scores.softmax(-1)[:, 0] * (1 - multiplier.value * costs / 100)).mean().neg().backward()
        optimizer.step()
        multiplier.ascend(costs, 26.0)
    return multiplier.value


def driven(low: torch.dtype) -> torch.Tensor:
    """Where a robot is by its odometer, which is float64, after fourteen steps of a centimetre, at some forty metres."""
    place, heading = torch.tensor([41.25, -37.5], dtype=torch.float64), torch.tensor(0.9, dtype=torch.float64)
    for step in range(14):
        way = 0.01 * torch.stack([heading.cos(), heading.sin()])
        place = (place.to(low) + way.to(low)).double()  # culprit: odometer-of-a-robot
        heading = heading + 0.001 * step
    return place


@torch.no_grad()
def outer_steps(low: torch.dtype) -> torch.Tensor:
    """Weights of a server after the outer steps of six rounds, each with what four workers agree on, as DiLoCo has it."""
    server, aim = normal(24, 16, seed=9121), normal(24, 16, seed=9122)
    for turn in range(6):
        moves = torch.stack([2e-3 * (aim - server) + 1e-4 * normal(24, 16, seed=9123 + 4 * turn + worker) for worker in range(4)])
        server.copy_(server.to(low).add(moves.mean(0).to(low), alpha=0.7))  # culprit: outer-steps-of-a-server
    return server


DRIFTS = ("accumulated-drift", "amplified-rounding", "local-drift")
BUGS = (
    Bug("samples-that-were-seen", "ai-safety-foundation/sparse_autoencoder#42", ("absorption", "integer-rounding"), "aten.add.Tensor",
        lambda: counted(HALF), lambda: counted(WIDE), phase="data", step=6, harm=0.002),
    Bug("teacher-by-a-slow-copy", "facebookresearch/dinov2#583", ("absorption", *DRIFTS), "aten.add.Tensor",
        lambda: taught(LOW), lambda: taught(WIDE), phase="data", step=4, harm=0.003),
    Bug("clock-of-a-pendulum", "", ("absorption", *DRIFTS), "aten._to_copy.default", lambda: swung(LOW), lambda: swung(WIDE)),
    Bug("mean-of-observations", "", ("absorption", *DRIFTS), "aten.add.Tensor", lambda: observed(HALF), lambda: observed(WIDE),
        module="RunningNorm", harm=0.0005),
    Bug("descent-as-a-function", "meta-pytorch/torchtune#2254", ("absorption", "lost-update", *DRIFTS), "aten.sub.Tensor",
        lambda: descended(LOW), lambda: descended(WIDE), harm=0.001),
    Bug("regrets-of-a-game", "", ("absorption", *DRIFTS), "aten.add.Tensor", lambda: regretted(LOW), lambda: regretted(WIDE), harm=0.01,
        expected_miss="each round writes one row, and what is followed is a whole tensor"),
    Bug("multiplier-of-a-cost", "", ("absorption", *DRIFTS), "aten.add.Tensor", lambda: penalised(HALF), lambda: penalised(WIDE), step=6,
        harm=0.001),
    Bug("odometer-of-a-robot", "", ("accumulated-drift", "absorption"), "aten.add.Tensor",
        lambda: driven(HALF), lambda: driven(torch.float64), harm=0.002),
    Bug("outer-steps-of-a-server", "pytorch/xla#2425", ("absorption", *DRIFTS), "aten.add.Tensor",
        lambda: outer_steps(LOW), lambda: outer_steps(WIDE), harm=0.005,
        expected_miss="64 % of the steps arrive, since most weights are small enough; one that is lost counts from a half on"),
)  # fmt: skip
