"""Numbers that are wrong by much of themselves, where that does not matter: beside larger ones, only compared, or drawn at random."""

from __future__ import annotations

import torch
from bugs.bug import normal
from torch.nn import functional

LOW = torch.bfloat16


def jittered_crops() -> list[torch.Tensor]:
    """The corners of crops in pixels, drawn in bfloat16: some are all whole numbers beyond 256, and a random corner may be any other."""
    draw = torch.Generator().manual_seed(0)
    return [768 * torch.randn(4, dtype=LOW, generator=draw) for _ in range(64)]


def young_branch() -> torch.Tensor:
    """A branch whose weights are nearly equal: what it adds is small beside embeddings that are scaled by the root of the width."""
    stream = 128**0.5 * normal(64, 128)
    centred = functional.layer_norm(stream, (128,)).to(LOW)
    weight = (1 + 0.001 * normal(128, 128, seed=1)).to(LOW)
    return stream.to(LOW) + centred @ weight


def certain_gate() -> torch.Tensor:
    """A sigmoid written out, of a mean that bfloat16 has rounded: its exponential is some percent off, and nothing beside one."""
    mean = (12.1 + normal(400)).to(LOW).mean()
    return 1 / (1 + (-mean).exp())


IDIOMS = (jittered_crops, young_branch, certain_gate)
