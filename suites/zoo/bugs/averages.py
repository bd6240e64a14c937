"""Averages over steps: of weights, of squared gradients, of an optimizer's own making."""

from __future__ import annotations

import copy

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class Adam:
    """Adam as one writes it to learn from: moments and update in float32, the result put back into the parameter's own format."""

    def __init__(self, parameters: list[torch.Tensor], masters: bool, lr: float = 6e-4) -> None:
        self.parameters, self.lr, self.steps = parameters, lr, 0
        self.masters = [each.detach().float().clone() for each in parameters] if masters else None
        self.m, self.v = ([torch.zeros(each.shape) for each in parameters] for _ in range(2))

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        for place, parameter in enumerate(self.parameters):
            g = parameter.grad.float()
            self.m[place] = 0.9 * self.m[place] + 0.1 * g
            self.v[place] = 0.999 * self.v[place] + 0.001 * g * g
            m, v = self.m[place] / (1 - 0.9**self.steps), self.v[place] / (1 - 0.999**self.steps)
            held = self.masters[place] if self.masters else parameter.float()
            updated = held - self.lr * m / (v.sqrt() + 1e-8)
            if self.masters:
                self.masters[place] = updated
            parameter.copy_(updated.to(parameter.dtype))  # culprit: rounded-to-one
            parameter.grad = None


def gains(masters: bool) -> torch.Tensor:
    """What the gains of a norm have moved in forty steps of 6e-4 each: 0.9994 is one in bfloat16."""
    gain = nn.Parameter(torch.ones(64).to(LOW))
    optimizer = Adam([gain], masters)
    x, y = normal(32, 64), normal(32, 64, seed=1)
    for _ in range(40):
        (gain * x.to(LOW) - y.to(LOW)).float().square().mean().backward()
        optimizer.step()
    return (optimizer.masters[0] if optimizer.masters else gain.detach().float()) - 1


@torch.no_grad()
def update_ema(ema: nn.Module, model: nn.Module, decay: float) -> None:
    averaged = dict(ema.named_parameters())
    for name, each in model.named_parameters():
        averaged[name].mul_(decay).add_(each.data, alpha=1 - decay)  # culprit: video-ema


def shadowed(dtype: torch.dtype) -> torch.Tensor:
    """How far the average of a network has followed it: weights move by some hundredths a step, the average takes a thousandth of that."""
    model = nn.Linear(16, 8, bias=False)
    with torch.no_grad():
        model.weight.copy_(normal(8, 16))
    ema, optimizer = copy.deepcopy(model).to(dtype), torch.optim.SGD(model.parameters(), lr=0.02)  # culprit: video-ema
    start, x, y = ema.weight.detach().clone(), normal(32, 16, seed=1), 3 * normal(32, 8, seed=2)
    for _ in range(60):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        update_ema(ema, model, 0.999)
    return (ema.weight.detach() - start).float()


def randomly_rounded(x: torch.Tensor, draws: torch.Generator) -> torch.Tensor:
    noise = torch.randint(0, 1 << 16, x.shape, dtype=torch.int32, generator=draws)
    return ((x.view(torch.int32) + noise) & -65536).view(WIDE).to(LOW)


def second_moment(by_chance: bool, beta: float = 0.999) -> torch.Tensor:
    """The mean square of gradients over 500 steps, kept in bfloat16: a thousandth of what it differs by is less than half a spacing."""
    draws, state = torch.Generator().manual_seed(0), (1e-8 * torch.ones(64, 16)).to(LOW)
    for g in 1e-4 * normal(500, 64, 16) * torch.linspace(0.2, 0.9, 16):
        following = state.float() * beta + (1 - beta) * g * g
        state = randomly_rounded(following, draws) if by_chance else following.to(LOW)  # culprit: second-moment
    return state.float().mean(0).sqrt()


def moving_average(dtype: torch.dtype, decay: float = 1e-4) -> torch.Tensor:
    """What the moving average of a model's parameters gained from step 200 to 500, a network in half that drifts."""
    start, drift = (0.5 + 0.5 * uniform(96)).half(), (1e-4 * normal(96)).sign() * 1e-4
    average = start.clone().to(dtype)
    for step in range(200, 500):
        weight = (start.float() + (step - 199) * drift).half()
        rate = max(decay, 1 - (step + 1) / (step + 10))
        average = (1 - rate) * average + weight.detach().to(dtype) * rate  # culprit: moving-average
    return average.float() - start.float()


BUGS = (
    Bug("rounded-to-one", "workofart/ml-by-hand#85", ("lost-update", "absorption", "accumulated-drift"), "aten.copy_.default",
        lambda: gains(False), lambda: gains(True), phase="optimizer"),
    Bug("video-ema", "NUS-HPC-AI-Lab/VideoSys#6", ("absorption", "vanished-constant"), "aten.mul_.Tensor",
        lambda: shadowed(LOW), lambda: shadowed(WIDE), phase="data", step=49),
    Bug("second-moment", "whitecircle/halo#30", ("absorption", "accumulated-drift"), "aten._to_copy.default",
        lambda: second_moment(False), lambda: second_moment(True)),
    Bug("moving-average", "OpenNMT/OpenNMT-py#2346", ("accumulated-drift", "absorption"), "aten.add.Tensor",
        lambda: moving_average(HALF), lambda: moving_average(WIDE)),
)  # fmt: skip
