"""Highlights, sheens, lamps, rims and probes: light that a shader computes in half."""

from __future__ import annotations

import math

import torch

from bugs.bug import Bug, normal, uniform

HALF, WIDE = torch.float16, torch.float32


def near(axis: tuple[float, float, float], spread: float, count: int, seed: int) -> torch.Tensor:
    """Unit vectors near an axis."""
    found = torch.tensor(axis) + spread * normal(count, 3, seed=seed)
    return found / found.norm(dim=-1, keepdim=True)


def highlight(normals: torch.Tensor, halfway: torch.Tensor, roughness: float) -> torch.Tensor:
    """How many facets of a rough surface look halfway between light and eye: the distribution of Trowbridge and Reitz."""
    squared = roughness**4
    cosine = (normals * halfway).sum(-1)  # culprit: highlight-of-a-smooth-floor
    below = cosine * cosine * (squared - 1) + 1  # culprit: highlight-of-a-smooth-floor
    return squared / (math.pi * below * below)


def highlights(dtype: torch.dtype) -> torch.Tensor:
    """Highlights on a smooth floor; what is below the line is a difference of numbers near one. Off by 17 %."""
    normals, halfway = near((0.3, 0.9, 0.2), 0.02, 300, 0), near((0.3, 0.9, 0.2), 0.02, 300, 1)
    return highlight(normals.to(dtype), halfway.to(dtype), 0.35).float()  # culprit: highlight-of-a-smooth-floor


def sheen(normals: torch.Tensor, halfway: torch.Tensor, shininess: float) -> torch.Tensor:
    """The sheen of Blinn and Phong."""
    return (normals * halfway).sum(-1).clamp(min=0) ** shininess  # culprit: sheen-of-a-fish


def sheens(dtype: torch.dtype) -> torch.Tensor:
    """Sheens of scales whose exponent is 400, by cosines in half. Off by 48 %."""
    normals, halfway = near((0.1, 0.5, 0.85), 0.03, 400, 2), near((0.1, 0.5, 0.85), 0.03, 400, 3)
    return sheen(normals.to(dtype), halfway.to(dtype), 400.0).float()  # culprit: sheen-of-a-fish


def lit_by_panel(points: torch.Tensor, side: torch.Tensor, by_ratio: bool) -> torch.Tensor:
    """Light of a square panel at points: it falls with the square of the distance, and grows with the panel's area."""
    distance = points.norm(dim=-1)
    if by_ratio:
        return (side / distance).square() / math.pi
    area = side * side  # culprit: light-of-a-large-panel
    return area / math.pi / distance / distance


def hall(by_ratio: bool) -> torch.Tensor:
    """A hall below a panel of three hundred metres, in half, which has no number for its area. Inf."""
    points = torch.cat([100 * (2 * uniform(64, 2) - 1), 40 + 20 * uniform(64, 1, seed=1)], -1).to(HALF)
    return lit_by_panel(points, torch.tensor(300.0, dtype=HALF), by_ratio).float()


def rim(normals: torch.Tensor, eye: torch.Tensor, strength: float, dtype: torch.dtype) -> torch.Tensor:
    """A light along the rim: the sine between the surface's normal and the way to the eye."""
    n = normals.to(dtype)
    n = n * torch.rsqrt((n * n).sum(-1, keepdim=True))
    e = eye.to(dtype)
    e = e * torch.rsqrt((e * e).sum(-1, keepdim=True))
    cosine = (n * e).sum(-1)  # culprit: light-along-a-rim
    if dtype == WIDE:
        cosine = cosine.clamp(max=1)
    return strength * torch.sqrt(1 - cosine * cosine)  # culprit: light-along-a-rim


def rims(dtype: torch.dtype) -> torch.Tensor:
    """Rims of surfaces that look at the eye, nearly; in half some cosines are more than one, and have no sine. NaN."""
    normals = 0.8 * near((0.4, 0.6, 0.7), 0.02, 4000, 4).to(HALF).float()
    return rim(normals.to(HALF), torch.tensor([0.55, 0.85, 0.95]).to(HALF), 1.5, dtype).float()


class Probe:
    """A probe of indirect light, which is updated by rays each frame and lights what the rays meet."""

    def __init__(self, sums: torch.dtype) -> None:
        self.sums, self.light = sums, torch.zeros(3, dtype=HALF)

    def update(self, rays: torch.Tensor, share: float) -> None:
        total = torch.zeros(3, dtype=self.sums)
        for ray in rays:
            total = total + ray + 0.3 * self.light  # culprit: probe-beside-a-lamp
        mean = (total / len(rays)).to(HALF)
        self.light = torch.lerp(self.light, mean, share)


def probed(sums: torch.dtype) -> torch.Tensor:
    """Light of a probe beside a lamp after six frames of 128 rays, whose sums are in half. Inf."""
    probe = Probe(sums)
    for frame in range(6):
        probe.update((900 * uniform(128, 3, seed=frame)).to(HALF), 0.5)
    return probe.light.float()


BUGS = (
    Bug("highlight-of-a-smooth-floor", "o3de/o3de#17822", ("cancellation", "amplified-rounding"), "aten.add.Tensor", lambda: highlights(HALF),
        lambda: highlights(WIDE)),
    Bug("sheen-of-a-fish", "WebGLSamples/WebGLSamples.github.io#4", ("amplified-rounding", "cancellation"), "aten.sum.dim_IntList",
        lambda: sheens(HALF), lambda: sheens(WIDE)),
    Bug("light-of-a-large-panel", "godotengine/godot#120884", ("overflow",), "aten.mul.Tensor", lambda: hall(False), lambda: hall(True)),
    Bug("light-along-a-rim", "Unity-Technologies/ScriptableRenderPipeline#4694", ("cancellation", "nan", "amplified-rounding"),
        "aten.rsub.Scalar", lambda: rims(HALF), lambda: rims(WIDE)),
    Bug("probe-beside-a-lamp", "turanszkij/WickedEngine#1667", ("overflow",), "aten.add.Tensor", lambda: probed(HALF), lambda: probed(WIDE)),
)  # fmt: skip
