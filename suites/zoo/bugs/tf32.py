"""What tensor cores do to float32: ten bits of mantissa on the way into a product of matrices."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal


def rounded(x: torch.Tensor) -> torch.Tensor:
    """x as a tensor core takes it in: the low 13 bits rounded off, by arithmetic on integers."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)


class Pose(nn.Module):
    """Points a thousand units away, turned by nothing and moved back to the origin: tf32 is spaced 0.5 there."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("turn", torch.eye(3))
        self.register_buffer("move", torch.tensor([0.0, 0.0, -1000.0]))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        if self.how == "by hand":  # products of single elements never go through a tensor core
            return (points[:, None] * self.turn).sum(-1) + self.move
        if self.how == "emulated":
            return rounded(points) @ rounded(self.turn).T + self.move  # culprit: turned-points
        return points @ self.turn.T + self.move  # culprit: turned-points


def points() -> torch.Tensor:
    return normal(300, 3) + torch.tensor([0.0, 0.0, 1000.0])


BUGS = (
    Bug("turned-points", "pytorch/pytorch#53635", ("cancellation", "local-drift", "amplified-rounding"), "aten.add.Tensor",
        lambda: Pose("emulated")(points()), lambda: Pose("by hand")(points()), precision="32-true", module="Pose",
        measured=lambda fixed: {"model": Pose("by hand" if fixed else "matrix"), "inputs": (points(),), "precision": "tf32"}),
)  # fmt: skip
