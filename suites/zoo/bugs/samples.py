"""Statistics of samples: spreads of a beam, correlations, advantages of a group, draws by noise."""

from __future__ import annotations

import torch

from bugs.bug import Bug, normal, uniform

LOW, WIDE, DOUBLE = torch.bfloat16, torch.float32, torch.float64


def emittances(dtype: torch.dtype) -> torch.Tensor:
    """What a beam fills of phase space in each plane; after a drift its slopes and places go together."""
    slopes = 1e-3 * normal(3, 4000)
    places = (30.0 * slopes + 2e-7 * normal(3, 4000, seed=1)).to(dtype)
    slopes = slopes.to(dtype)
    squares, mixed = (places**2).mean(-1) * (slopes**2).mean(-1), (places * slopes).mean(-1)
    return torch.sqrt(squares - mixed**2).float()  # culprit: beam-emittance


def correlated(dtype: torch.dtype) -> torch.Tensor:
    """How far two axes of an accelerometer that lies still go together, by sums of products."""
    shared = 0.002 * normal(8, 3000)
    x, y = 9.81 + shared, 9.79 + shared + 0.001 * normal(8, 3000, seed=1)
    x, y = x.to(dtype), y.to(dtype)
    covariance = (x * y).mean(-1) - x.mean(-1) * y.mean(-1)  # culprit: axis-correlation
    spread = ((x * x).mean(-1) - x.mean(-1) ** 2) * ((y * y).mean(-1) - y.mean(-1) ** 2)  # culprit: axis-correlation
    return (covariance / spread.abs().sqrt()).float()


def advantages(robust: bool) -> torch.Tensor:
    """Advantages in groups of seven answers, of which the first group was given one reward."""
    rewards = torch.stack([torch.full((7,), 0.1), 0.1 + 0.4 * uniform(7), uniform(7, seed=1)])
    mean = rewards.mean(-1, keepdim=True)  # culprit: equal-rewards
    centred = rewards - mean  # culprit: equal-rewards
    spread = centred.square().mean(-1, keepdim=True).sqrt()
    if robust:
        return torch.where(spread < 1e-4 * mean.abs(), torch.zeros(()), centred / (spread + 1e-8))
    return centred / (spread + 1e-8)  # culprit: equal-rewards


def drawn(dtype: torch.dtype) -> torch.Tensor:
    """How often each of 64 tokens is drawn in 6000 steps, by the largest of logits and Gumbel's noise."""
    logits = (1.5 * normal(64)).to(LOW).expand(6000, 64)
    generator = torch.Generator().manual_seed(2)
    noise = torch.rand(6000, 64, dtype=dtype, generator=generator)  # culprit: gumbel-max
    choice = (logits + -torch.log(-torch.log(noise))).nan_to_num(-1e30).argmax(-1)  # culprit: gumbel-max
    return torch.bincount(choice, minlength=64) / 6000


BUGS = (
    Bug("beam-emittance", "BLAST-ImpactX/impactx#1481", ("cancellation", "nan"), "aten.sub.Tensor", lambda: emittances(WIDE),
        lambda: emittances(DOUBLE), precision="32-true"),
    Bug("axis-correlation", "OxWearables/biobankAccelerometerAnalysis#69", ("cancellation",), "aten.sub.Tensor", lambda: correlated(WIDE),
        lambda: correlated(DOUBLE), precision="32-true"),
    Bug("equal-rewards", "NousResearch/atropos#465", ("amplified-rounding", "cancellation"), "aten.mean.dim", lambda: advantages(False),
        lambda: advantages(True), precision="32-true"),
    Bug("gumbel-max", "flashinfer-ai/flashinfer#1035", ("underflow", "amplified-rounding", "overflow", "nan"), "aten.rand.generator",
        lambda: drawn(LOW), lambda: drawn(WIDE)),
)  # fmt: skip
