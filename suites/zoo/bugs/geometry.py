"""Cameras, boxes, meshes and images: coordinates, determinants and guards of small numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def heatmap(dtype: torch.dtype) -> torch.Tensor:
    """A Gaussian about one keypoint of a 640 x 480 image, on pixel coordinates of bfloat16."""
    along, down = torch.arange(640.0).to(dtype), torch.arange(480.0).to(dtype)  # culprit: keypoint-heatmap
    x = torch.exp(-0.5 * ((along - 401.0) / 1.5) ** 2)
    y = torch.exp(-0.5 * ((down - 305.0) / 1.5) ** 2)
    return (y / y.sum())[:, None] * (x / x.sum())


class ThinPlate(nn.Module):
    """r² log(r² + 1e-8) between control points, of which each is at no distance from itself."""

    def __init__(self, guarded: bool) -> None:
        super().__init__()
        self.guarded = guarded

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        square = (a[:, None] - b).pow(2).sum(-1)
        if self.guarded:
            return 0.5 * square * torch.where(square == 0, 1.0, square).log()
        return 0.5 * square * (square + 1e-8).log()  # culprit: thin-plate


def plates(guarded: bool) -> dict[str, Any]:
    points = torch.tensor([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0], [0.0, 0.0]])
    return {"model": ThinPlate(guarded), "inputs": (points, points), "precision": "16-true"}


def plate_kernel(guarded: bool) -> torch.Tensor:
    a, b = plates(guarded)["inputs"]
    return ThinPlate(guarded)(a.half(), b.half())


def rotation(turn: torch.Tensor, masked: bool) -> torch.Tensor:
    """Two rows of Rodrigues' formula, by Taylor where the angle is small; where() sends gradients through both."""
    square = (turn**2).sum(-1, keepdim=True)
    large = square > 1e-6
    safe = torch.where(large, square, 1.0) if masked else square.clamp(min=1e-12)  # culprit: axis-angle
    angle = safe.sqrt()
    formula = torch.cat([turn / angle * angle.sin(), (1 - angle.cos()) * (turn / angle) ** 2 + angle.cos()], -1)
    return torch.where(large, formula, torch.cat([turn, torch.ones_like(turn)], -1))


def pose_gradient(masked: bool) -> torch.Tensor:
    turn = torch.tensor([[0.0, 0.0, 0.0], [0.5, -0.25, 0.75]]).half().requires_grad_()
    (rotation(turn, masked) * torch.arange(1.0, 7.0).half()).sum().backward()
    assert turn.grad is not None
    return turn.grad


def mean_depth(wide: bool) -> torch.Tensor:
    """Depth from disparity; where there was no match the disparity is 0, and so is the confidence."""
    disparity = torch.tensor([4.0, 2.5, 0.0, 8.0, 0.0, 5.0]).half()
    disparity = disparity.float() if wide else disparity
    confidence = (disparity > 0).to(disparity.dtype)
    return (50.0 / (disparity + 1e-8) * confidence).sum() / confidence.sum()  # culprit: zero-disparity


def box_centres(dtype: torch.dtype) -> torch.Tensor:
    """Corners that bfloat16 holds, and sums of them that it does not: two pixels off, in boxes 28 wide."""
    left, top, right, bottom = torch.tensor([[692.0, 516.0, 720.0, 540.0], [904.0, 260.0, 932.0, 284.0]]).to(LOW).to(dtype).unbind(-1)
    return torch.stack([(left + right) / 2 - left, (top + bottom) / 2 - top], -1)  # culprit: box-centres


def peak_shift(hessian: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """Cramer's rule on symmetric 2 x 2 systems. The backward pass divides by the determinant's square."""
    a, b, c = hessian.unbind(-1)
    return (slope[:, 0] * c - slope[:, 1] * b) / (a * c - b * b)  # culprit: cramers-rule


def peak_gradient(wide: bool) -> torch.Tensor:
    hessian = torch.stack([0.004 + 0.02 * uniform(400), 0.001 * normal(400), 0.004 + 0.02 * uniform(400, seed=1)], -1).half().requires_grad_()
    given, slope = (hessian.float(), 0.03 * normal(400, 2).half().float()) if wide else (hessian, 0.03 * normal(400, 2).half())
    peak_shift(given, slope).clamp(-0.5, 0.5).float().sum().backward()
    assert hessian.grad is not None
    return hessian.grad


def grey_levels(wide: bool) -> torch.Tensor:
    """Pictures to bytes: times 255.999, and down. White is 256 in float16, one past the last level."""
    picture = torch.tensor([0.0, 0.25, 0.5, 1.0]).half()
    return ((picture.float() if wide else picture) * 255.999).to(torch.int32) % 256  # culprit: grey-levels


def distances(dtype: torch.dtype) -> torch.Tensor:
    """A distance transform by blurring with exp(-d / 0.35): taps from the sixth on are zero in half."""
    taps = torch.exp(-(torch.arange(15.0) - 7).abs() / 0.35).to(dtype)[None, None]  # culprit: distant-taps
    seen = torch.zeros(1, 1, 16).to(dtype)
    seen[..., 1] = 1
    found = torch.zeros(1, 1, 16).to(dtype)
    for step in range(3):
        blurred = functional.conv1d(seen, taps, padding=7)
        near = torch.where(blurred > 0, -0.35 * blurred.clamp(min=6e-8 if dtype is HALF else 1e-30).log(), 0.0)
        reached = (near > 1e-3) & (found == 0) & (seen == 0)
        found = torch.where(reached, near + 7 * step, found)
        seen = torch.where(reached, 1.0, seen)
    return found


class Elastic(nn.Module):
    """Elements of 5 mm in a body of 100: the deformation gradient is a product of corners, which autocast rounds by 0.25 mm."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide, self.moved = wide, nn.Linear(3, 3)
        with torch.no_grad():
            self.moved.weight.copy_(0.1 * normal(3, 3))
            self.moved.bias.zero_()

    def forward(self, corners: torch.Tensor, shape: torch.Tensor) -> torch.Tensor:
        nodes = corners + 0.5 * torch.tanh(self.moved(corners / 100)).float()
        with torch.autocast("cpu", dtype=LOW, enabled=torch.is_autocast_enabled("cpu") and not self.wide):
            deformed = nodes.transpose(-1, -2) @ shape  # culprit: deformed-elements
        return (torch.linalg.det(deformed.float()) - 1).square().mean()


def elements(wide: bool) -> torch.Tensor:
    corners = 20 + 80 * uniform(40, 1, 3) + 3 * normal(40, 4, 3)
    corners = corners[torch.linalg.det(corners[:, 1:] - corners[:, :1]).abs() > 20]
    inverse = torch.linalg.inv((corners[:, 1:] - corners[:, :1]).transpose(-1, -2))
    with torch.autocast("cpu", dtype=LOW):
        return Elastic(wide)(corners, torch.cat([-inverse.sum(1, keepdim=True), inverse], 1))


BUGS = (
    Bug("keypoint-heatmap", "kornia/kornia#4361", ("integer-rounding",), "aten._to_copy.default", lambda: heatmap(LOW), lambda: heatmap(WIDE)),
    Bug("thin-plate", "kornia/kornia#4557", ("vanished-constant",), "aten.add.Tensor", lambda: plate_kernel(False), lambda: plate_kernel(True),
        module="ThinPlate", measured=plates),
    Bug("axis-angle", "kornia/kornia#4613", ("vanished-constant",), "aten.clamp.default", lambda: pose_gradient(False),
        lambda: pose_gradient(True)),
    Bug("zero-disparity", "kornia/kornia#4317", ("vanished-constant",), "aten.add.Tensor", lambda: mean_depth(False), lambda: mean_depth(True)),
    Bug("box-centres", "pytorch/pytorch#137035", ("integer-rounding",), "aten.add.Tensor", lambda: box_centres(LOW), lambda: box_centres(WIDE)),
    Bug("cramers-rule", "kornia/kornia#4305", ("underflow", "overflow"), "aten.div.Tensor", lambda: peak_gradient(False),
        lambda: peak_gradient(True), phase="backward"),
    Bug("grey-levels", "pytorch/vision#6799", ("integer-rounding",), "aten.mul.Tensor", lambda: grey_levels(False), lambda: grey_levels(True)),
    Bug("distant-taps", "kornia/kornia#4152", ("underflow",), "aten._to_copy.default", lambda: distances(HALF), lambda: distances(WIDE),
        expected_miss="the taps that are flushed weigh nothing in the kernel's norm; what they do is decide `blurred > 0`, which the shadow follows"),
    Bug("deformed-elements", "Project-MONAI/monai-physio#126", ("cancellation",), "aten.bmm.default", lambda: elements(False),
        lambda: elements(True)),
)  # fmt: skip
