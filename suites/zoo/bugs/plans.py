"""Schedules and what is left of a plan: variances of a denoiser, its noise, advantages beside the others, a return, signs, a rate."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, wider

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class Schedule(torch.nn.Module):
    """What a denoiser of a thousand steps adds at each: variances of the step back, given where it began."""

    spread: torch.Tensor

    def __init__(self, betas: torch.Tensor, kept: torch.dtype) -> None:
        super().__init__()
        alphas = 1 - betas  # culprit: variances-of-small-steps
        products = alphas.cumprod(0)  # culprit: variances-of-small-steps
        before = torch.cat([products.new_ones(1), products[:-1]])
        variance = betas * (1 - before) / (1 - products)  # culprit: variances-of-small-steps
        self.register_buffer("spread", variance.clamp(min=1e-20).sqrt().to(kept))  # culprit: variances-of-small-steps

    def forward(self, noise: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return noise * self.spread[step][:, None]


def stepped(dtype: torch.dtype, single: bool, steps: int = 1000, first: float = 1e-4, last: float = 0.02) -> torch.Tensor:
    """Noise that is added at every eighth of the steps; in half, one less a ten-thousandth is one, and nought is divided by nought."""
    betas = torch.linspace(first, last, steps, dtype=torch.float64).to(torch.promote_types(dtype, WIDE) if single else dtype)
    at = torch.arange(0, steps, max(1, steps // 8))
    return Schedule(betas, dtype)(normal(len(at), 6).to(LOW).to(dtype), at).double()


def ancestral(dtype: torch.dtype, single: bool, steps: int = 250) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise levels of a sampler: where each step goes down to, and what it then adds. Neighbours are 2 % apart. Off by 13 %."""
    ramp = torch.linspace(0, 1, steps, dtype=torch.float64)
    sigmas = (14.6 ** (1 / 7) + ramp * (0.03 ** (1 / 7) - 14.6 ** (1 / 7))) ** 7
    sigmas = sigmas.to(torch.promote_types(dtype, WIDE) if single else dtype)
    start, end = sigmas[:-1], sigmas[1:]
    up = torch.minimum(end, (end**2 * (start**2 - end**2) / start**2).sqrt())  # culprit: noise-between-near-levels
    down = (end**2 - up**2).sqrt()  # culprit: noise-between-near-levels
    return (up / end).double(), (down / end).double()


def beside_the_others(dtype: torch.dtype, floor: float, rewards: tuple[float, ...] = (0.35, 0.95), groups: int = 6) -> torch.Tensor:
    """Advantages of answers beside the other seven of their group, of which one differs: the spread of seven that are equal. Off by 7600 times."""
    first, last = rewards
    base = torch.full((groups, 8), first, dtype=dtype) + 0.05 * torch.arange(groups, dtype=dtype)[:, None]
    base[:, -1] = last + 0.01 * torch.arange(groups, dtype=dtype)
    others = (1 - torch.eye(8, dtype=dtype)) / 7
    mean, square = base @ others, base.square() @ others
    spread = (square - mean.square()).clamp(min=0).sqrt()  # culprit: spread-of-equal-rewards
    apart = base - mean
    return torch.where(spread > floor, apart / spread.clamp(min=1e-12), apart)  # culprit: spread-of-equal-rewards


def left(dtype: torch.dtype, single: bool, steps: int = 300, reward: float = 3e-3) -> torch.Tensor:
    """What a decision transformer is told is left of a return of 3.6, of which a step brings some thousandths. Off by 25 %."""
    returns = [torch.tensor(3.6, dtype=torch.promote_types(dtype, WIDE) if single else dtype)]
    for got in (reward * (1 + 0.2 * normal(steps))).to(returns[0].dtype):
        returns.append(returns[-1] - got)  # culprit: return-that-is-left
    return torch.stack(returns).to(dtype)


class Lion(torch.optim.Optimizer):
    """Steps by the sign of a mean of gradients, most of which is the momentum."""

    def __init__(self, parameters: object, rate: float, kept: torch.dtype | None) -> None:
        super().__init__(parameters, {"lr": rate})  # type: ignore[arg-type]
        self.kept = kept

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for weight in self.param_groups[0]["params"]:
            state = self.state[weight]
            if not state:
                state["momentum"] = torch.zeros_like(weight, dtype=self.kept)
            momentum = state["momentum"]
            gradient = weight.grad.to(momentum.dtype)
            weight.add_((0.9 * momentum + 0.1 * gradient).sign().to(weight.dtype), alpha=-self.param_groups[0]["lr"])
            momentum.mul_(0.99).add_(gradient, alpha=0.01)  # culprit: momentum-below-half


def signed(dtype: torch.dtype, kept: torch.dtype | None, size: float = 1e-6, steps: int = 40) -> torch.Tensor:
    """How far Lion moves weights whose gradients are near a millionth; in half, a hundredth of that is nought. Off by 60 %."""
    weight = torch.nn.Parameter(torch.zeros(64, dtype=dtype))
    optimizer, mean = Lion([weight], 2**-6, kept), normal(64, seed=99)
    for seed in range(steps):
        optimizer.zero_grad()
        slope = torch.round(size * (mean + 2 * normal(64, seed=seed)) * 2**24) / 2**24  # half holds these multiples of its smallest number
        (wider(weight) * slope).sum().backward()
        optimizer.step()
    return weight.detach()


def annealed(dtype: torch.dtype, single: bool, steps: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    """A rate that each step multiplies by what a cosine falls by, and weights that are trained with it. Off by 8 %."""
    rate = torch.tensor(1e-2, dtype=torch.promote_types(dtype, WIDE) if single else dtype)
    weight, rates = torch.zeros(16, dtype=WIDE if dtype is LOW else dtype), []
    target = normal(16).to(weight.dtype)
    for step in range(1, steps):
        rate = rate * ((1 + math.cos(math.pi * step / steps)) / (1 + math.cos(math.pi * (step - 1) / steps)))  # culprit: rate-that-does-not-fall
        weight = weight - wider(rate) * (weight - target)
        rates.append(rate)
    return torch.stack(rates), weight


BUGS = (
    Bug("variances-of-small-steps", "", ("cancellation", "nan", "amplified-rounding"), "aten.rsub.Scalar", lambda: stepped(HALF, False),
        lambda: stepped(HALF, True)),
    Bug("noise-between-near-levels", "", ("cancellation", "amplified-rounding"), "aten.sub.Tensor", lambda: ancestral(LOW, False),
        lambda: ancestral(LOW, True)),
    Bug("spread-of-equal-rewards", "NVIDIA-NeMo/RL#4161", ("amplified-rounding", "cancellation", "decision-flip"), "aten.sub.Tensor",
        lambda: beside_the_others(WIDE, 0.0), lambda: beside_the_others(WIDE, 1e-3), precision="32-true"),
    Bug("return-that-is-left", "", ("absorption", "accumulated-drift"), "aten.sub.Tensor", lambda: left(LOW, False), lambda: left(LOW, True)),
    Bug("momentum-below-half", "google/automl#1192", ("underflow", "absorption", "lost-update"), "",
        lambda: signed(HALF, None), lambda: signed(HALF, WIDE), phase="optimizer"),
    Bug("rate-that-does-not-fall", "hiyouga/LlamaFactory#1220", ("absorption", "accumulated-drift"), "aten.mul.Tensor",
        lambda: annealed(LOW, False), lambda: annealed(LOW, True)),
)  # fmt: skip
