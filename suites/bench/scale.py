"""Whether there is a device that full sizes are for."""

from __future__ import annotations

import torch

ON_CUDA = torch.cuda.is_available()


def sized_for(small: int, full: int) -> int:
    """`full` on a CUDA device, `small` on a CPU."""
    return full if ON_CUDA else small
