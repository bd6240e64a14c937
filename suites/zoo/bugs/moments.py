"""Statistics of many numbers, and small differences of large ones, where float32 is not enough."""

from __future__ import annotations

import torch

from bugs.bug import Bug, normal

WIDE, DOUBLE = torch.float32, torch.float64


def spread(dtype: torch.dtype) -> torch.Tensor:
    """A standard deviation in one pass over ten batches, as the mean square less the squared mean, of numbers about 151."""
    total, squares, count = torch.zeros(4, dtype=dtype), torch.zeros(4, dtype=dtype), 0
    for batch in range(10):
        x = (151.0 + 0.1 * normal(2000, 4, seed=batch)).to(dtype)
        total += x.sum(0)
        squares += (x**2).sum(0)  # culprit: batch-spread
        count += len(x)
    return (squares / count - (total / count) ** 2).clamp_min(0).sqrt()  # culprit: batch-spread


def frechet(dtype: torch.dtype) -> torch.Tensor:
    """Fréchet's distance of pictures from the same ones compressed: most variances are small, and the roots of a product's eigenvalues are taken."""
    pictures, moments = torch.logspace(0, -5, 64) * normal(500, 64), []
    for lost in (0.0, 0.004):
        features = (0.4 + (1 - lost) * pictures + 0.1 * lost * normal(500, 64, seed=1)).to(dtype)
        mean = features.sum(0) / 500
        covariance = (features.T @ features - 500 * torch.outer(mean, mean)) / 499  # culprit: frechet-distance
        moments.append((mean, covariance))
    (first, one), (second, two) = moments
    roots = torch.linalg.eigvals(one @ two).sqrt().real.sum()  # culprit: frechet-distance
    return (first - second).square().sum() + one.trace() + two.trace() - 2 * roots  # culprit: frechet-distance


def conformers(dtype: torch.dtype) -> torch.Tensor:
    """Energies of conformers in kilocalories above the lowest: a network's energies, and those of the atoms themselves, 80000 hartree."""
    energies = 0.02 * normal(12) - 0.4
    own = torch.tensor([-0.5978583943827134, -38.08933878049795, -54.711968298621066, -75.19106774742086, -398.1577125334925], dtype=DOUBLE)
    counts = torch.tensor([240, 160, 48, 64, 160], dtype=DOUBLE)
    total = energies.to(dtype) + (own * counts).sum().to(dtype)  # culprit: self-energies
    return (total - total.min()) * 627.5094738898777  # culprit: self-energies


BUGS = (
    Bug("batch-spread", "cellarium-ai/cellarium-ml#113", ("cancellation", "unstable-reference", "amplified-rounding"), "aten.sub.Tensor",
        lambda: spread(WIDE), lambda: spread(DOUBLE), precision="32-true"),
    Bug("frechet-distance", "meta-pytorch/torcheval#211", ("cancellation", "amplified-rounding", "unstable-reference"), "aten.sub.Tensor",
        lambda: frechet(WIDE), lambda: frechet(DOUBLE), precision="32-true"),
    Bug("self-energies", "aiqm/torchani#199", ("cancellation", "amplified-rounding", "absorption", "unstable-reference"), "aten.sub.Tensor",
        lambda: conformers(WIDE), lambda: conformers(DOUBLE), precision="32-true"),
)  # fmt: skip
