"""Times, ids and energies in float32, which holds seven digits: what is large is stored, and what is small is asked for."""

from __future__ import annotations

import torch

from bugs.bug import Bug, normal, uniform

WIDE, DOUBLE = torch.float32, torch.float64


def sweeps(dtype: torch.dtype) -> torch.Tensor:
    """By how much the points of ten sweeps of a lidar lag behind the frame, in seconds, of times in microseconds since 1970."""
    stamps = 1550083467346370 + 100217 * torch.arange(10)
    table = torch.cat([normal(10, 3).to(dtype), stamps[:, None].to(dtype)], -1)  # culprit: sweep-times
    return ((table[-1, 3] - table[:, 3]) * 1e-6).float()  # culprit: sweep-times


def joined(whole: bool) -> torch.Tensor:
    """The expressions of cells, looked up by ids beyond 2^24 that a batch carries beside its other columns."""
    ids = 38_000_001 + torch.arange(48)
    columns = (torch.arange(48) % 4, torch.arange(48) % 7, ids)
    batch = torch.stack(columns, -1) if whole else torch.stack([column.float() for column in columns], -1)  # culprit: join-ids
    rows = batch[:, 2].to(torch.int32) - 38_000_001  # culprit: join-ids
    return normal(64, 8)[rows.long()]


def conformations(dtype: torch.dtype) -> torch.Tensor:
    """Energies of a molecule of 66 atoms along a path beside the lowest of them, of files that hold totals."""
    totals = -59455.731 + 0.001 * torch.arange(12, dtype=DOUBLE) ** 2 / 2 + 0.001 * uniform(12, seed=1).double()
    stored = totals.to(dtype)  # culprit: total-energies
    return (stored - stored.min()).float()  # culprit: total-energies


def sampled_energies(dtype: torch.dtype) -> torch.Tensor:
    """The energy of a box of water through 600 moves of Monte Carlo, of which only the differences are computed."""
    energy = torch.full((16,), -40000.0, dtype=dtype)
    for move in range(600):
        change = 0.0007 + 0.0004 * normal(16, seed=move)
        energy = energy + change.to(dtype)  # culprit: monte-carlo-total
    return (energy + 40000.0).float()  # culprit: monte-carlo-total


BUGS = (
    Bug("sweep-times", "open-mmlab/mmdetection3d#296", ("integer-rounding", "amplified-rounding", "cancellation"), "aten._to_copy.default",
        lambda: sweeps(WIDE), lambda: sweeps(DOUBLE), precision="32-true"),
    Bug("join-ids", "chanzuckerberg/cellxgene-census#554", ("integer-rounding",), "aten._to_copy.default", lambda: joined(False),
        lambda: joined(True), precision="32-true"),
    Bug("total-energies", "deepmodeling/deepmd-kit#2654", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: conformations(WIDE), lambda: conformations(DOUBLE), precision="32-true"),
    Bug("monte-carlo-total", "cusp-ai-oss/kUPS#229", ("cancellation", "absorption", "accumulated-drift"), "aten.add.Tensor",
        lambda: sampled_energies(WIDE), lambda: sampled_energies(DOUBLE), precision="32-true"),
)  # fmt: skip
