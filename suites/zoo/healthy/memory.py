"""What is kept from step to step: averages, counters, master weights and remainders."""

from __future__ import annotations

import torch
from bugs.bug import normal
from torch import nn

LOW = torch.bfloat16


def quick_average() -> torch.Tensor:
    """Half of the way each step, in bfloat16: it arrives, and then stands still."""
    weight, average = torch.full((16,), 1.5).to(LOW), torch.ones(16).to(LOW)
    for _ in range(40):
        average.lerp_(weight, 0.5)
    return average


def slow_average() -> torch.Tensor:
    """Decay 0.999 of bfloat16 weights, kept in float32."""
    weight, average = torch.full((16,), 1.5).to(LOW), torch.ones(16)
    for _ in range(40):
        average.lerp_(weight.float(), 0.001)
    return average


def master_copy() -> torch.Tensor:
    """The visible copy lags behind its float32 master by less than half a spacing."""
    master = nn.Parameter(torch.ones(8))
    visible, optimizer = master.detach().to(LOW), torch.optim.AdamW([master], lr=1e-4, weight_decay=0.0)
    for _ in range(30):
        master.grad = torch.ones(8)
        optimizer.step()
        visible.copy_(master.detach())
    return visible


class Kahan(torch.optim.Optimizer):
    """Descent in bfloat16: each addition loses bits, which a remainder gives back later."""

    def __init__(self, weights: list[nn.Parameter]) -> None:
        super().__init__(weights, {})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for weight in self.param_groups[0]["params"]:
            lost = self.state[weight].setdefault("lost", torch.zeros_like(weight))
            lost.add_(weight.grad, alpha=-1e-4)
            before = weight.clone()
            weight.add_(lost)
            lost.add_(before.sub_(weight))


def remainder() -> torch.Tensor:
    weight = nn.Parameter(torch.ones(32).to(LOW))
    optimizer = Kahan([weight])
    for _ in range(120):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    return weight


def stochastic_rounding() -> torch.Tensor:
    """Single updates vanish or double by design; the mean is right."""
    weight, generator = torch.ones(2048).to(LOW), torch.Generator().manual_seed(0)
    for _ in range(60):
        bits = (weight.float() - 1e-4).view(torch.int32)
        noise = torch.randint(0, 1 << 16, bits.shape, generator=generator, dtype=torch.int32)
        weight.copy_(((bits + noise) & -65536).view(torch.float32))
    return weight


def running_moments() -> torch.Tensor:
    """Welford: x - mean cancels at every step, in float32, on data that bfloat16 holds."""
    mean, square = torch.zeros(()), torch.zeros(())
    for count, x in enumerate((100 + 0.5 * normal(80)).to(LOW), 1):
        off = x.float() - mean
        mean = mean + off / count
        square = square + off * (x.float() - mean)
    return square / 80


def blockwise_momentum() -> torch.Tensor:
    """An 8-bit state drops the small entries of each block, by design."""
    weight, target = normal(8, 16).to(LOW).float(), normal(8, 16, seed=1)
    codes, scale = torch.zeros(8, 16, dtype=torch.int8), torch.zeros(8, 1)
    for _ in range(30):
        momentum = 0.9 * codes.float() * scale + weight - target
        scale = momentum.abs().amax(1, keepdim=True).clamp_min(1e-12) / 127
        codes = torch.round(momentum / scale).to(torch.int8)
        weight = weight - 0.05 * momentum
    return weight


def tiny_weights() -> torch.Tensor:
    """Weight decay of 1e-9 and of zero in a float32 master, whose bfloat16 copy does not move."""
    master = nn.Parameter(torch.tensor([1.0, 1e-3, 1e-9, 0.0]))
    visible, optimizer = master.detach().to(LOW), torch.optim.AdamW([master], lr=1e-4, weight_decay=0.1)
    for _ in range(20):
        master.grad = torch.zeros(4)
        optimizer.step()
        visible.copy_(master.detach())
    return visible


IDIOMS = (quick_average, slow_average, master_copy, remainder, stochastic_rounding, running_moments, blockwise_momentum, tiny_weights)
