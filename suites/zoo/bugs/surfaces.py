"""Points, rays, boxes and curved spaces: normals of laser points, edges that two triangles share, near points far out, small boxes."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, WIDE = torch.float16, torch.float32


def covariance_of(points: torch.Tensor, centred: bool) -> torch.Tensor:
    """The covariance of each neighbourhood's points."""
    mean = points.mean(1, keepdim=True)
    if centred:
        offsets = points - mean
        return offsets.transpose(1, 2) @ offsets / points.shape[1]
    products = (points[..., :, None] * points[..., None, :]).mean(1)
    return products - mean.transpose(1, 2) * mean  # culprit: laser-normals


def normals_of(points: torch.Tensor, centred: bool) -> torch.Tensor:
    """The direction in which a neighbourhood is thinnest, turned to the sensor."""
    _, directions = torch.linalg.eigh(covariance_of(points, centred))
    normals = directions[..., 0]
    away = (normals * points.mean(1)).sum(-1, keepdim=True) > 0
    return torch.where(away, -normals, normals)


def walls(centred: bool) -> torch.Tensor:
    """Normals of forty patches of a building, ten centimetres wide each, sixty metres from the sensor."""
    turn = torch.linalg.qr(normal(40, 3, 3)).Q
    flat = torch.stack([0.05 * normal(40, 25, seed=1), 0.05 * normal(40, 25, seed=2), 0.004 * normal(40, 25, seed=3)], -1)
    centres = 60 * functional.normalize(normal(40, 1, 3, seed=4), dim=-1)
    return normals_of(centres + flat @ turn.transpose(1, 2), centred)


def ray_triangle_hit(origin: torch.Tensor, direction: torch.Tensor, corners: torch.Tensor, margin: float) -> torch.Tensor:
    """How far along each ray a triangle is met; infinitely far where it is not."""
    edge1, edge2 = corners[1] - corners[0], corners[2] - corners[0]
    across = torch.linalg.cross(direction, edge2.expand_as(direction))
    determinant = across @ edge1
    offset = origin - corners[0]
    u = (across * offset).sum(-1) / determinant  # culprit: seam-of-a-quad
    upright = torch.linalg.cross(offset, edge1.expand_as(offset))
    v = (direction * upright).sum(-1) / determinant  # culprit: seam-of-a-quad
    met = (u >= -margin) & (v >= -margin) & (u + v <= 1 + margin)  # culprit: seam-of-a-quad
    return torch.where(met, upright @ edge2 / determinant, torch.inf)


def traced(margin: float) -> torch.Tensor:
    """The brightness of a floor of two triangles, seen from above along their seam; what is missed is the sky."""
    corners = torch.tensor([[-5.0, -5.0, 0.0], [5.0, -5.0, 0.0], [5.0, 5.0, 0.0], [-5.0, 5.0, 0.0]])
    along = 9.6 * uniform(400) - 4.8
    origin = torch.tensor([0.37, 0.37, 10.0]).expand(400, 3)
    direction = functional.normalize(torch.stack([along - 0.37, along - 0.37, torch.full((400,), -10.0)], -1), dim=-1)
    met = torch.minimum(ray_triangle_hit(origin, direction, corners[[0, 1, 2]], margin),
                        ray_triangle_hit(origin, direction, corners[[0, 2, 3]], margin))  # fmt: skip
    return torch.where(met.isfinite(), 8 / met, 2.0)


def hyperboloid(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, (1 + x.square().sum(-1, keepdim=True)).sqrt()], -1)


def minkowski(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p[..., :-1] * q[..., :-1]).sum(-1) - p[..., -1] * q[..., -1]  # culprit: near-in-the-hyperboloid


def distance(p: torch.Tensor, q: torch.Tensor, by_difference: bool) -> torch.Tensor:
    if by_difference:
        return 2 * torch.asinh(minkowski(q - p, q - p).clamp_min(0).sqrt() / 2)
    return torch.acosh(torch.clamp_min(-minkowski(p, q), 1.0))  # culprit: near-in-the-hyperboloid


def siblings(by_difference: bool) -> torch.Tensor:
    """How far fifty words of a hierarchy are from their next of kin, some thousandths, a few units out."""
    words = 1.5 * normal(50, 8)
    kin = words + 0.002 * normal(50, 8, seed=1)
    return distance(hyperboloid(words), hyperboloid(kin), by_difference)


def ious(boxes: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Overlaps of boxes given by centre and size."""
    near = torch.maximum(boxes[:, None, :2] - boxes[:, None, 2:] / 2, others[None, :, :2] - others[None, :, 2:] / 2)  # culprit: small-boxes
    far = torch.minimum(boxes[:, None, :2] + boxes[:, None, 2:] / 2, others[None, :, :2] + others[None, :, 2:] / 2)  # culprit: small-boxes
    apart = (near < far).all(-1)
    shared = (far - near).prod(-1) * apart  # culprit: small-boxes
    return shared / (boxes[:, None, 2:].prod(-1) + others[None, :, 2:].prod(-1) - shared)


def assigned(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Overlaps of small objects with what a detector in half proposes near a picture's far corner, and the loss that is weighted by them."""
    truth = torch.cat([torch.round(8 * (600 + 400 * uniform(12, 2))) / 8, torch.round(40 * (6 + 8 * uniform(12, 2, seed=1))) / 8], -1)
    centres = torch.round((truth[:, :2] + normal(12, 2, seed=2)).half().float() * 2) / 2
    proposed = torch.cat([centres, truth[:, 2:] * (1 + 0.05 * normal(12, 2, seed=3))], -1).half()
    overlap = ious(truth.half().to(dtype), proposed.to(dtype)).float()
    best = overlap.diagonal()
    return best, functional.binary_cross_entropy_with_logits(2 + normal(12, seed=4), best, reduction="sum") + math.log(2)


BUGS = (
    Bug("laser-normals", "PointCloudLibrary/pcl#2403", ("cancellation", "amplified-rounding"), "aten.sub.Tensor", lambda: walls(False),
        lambda: walls(True), precision="32-true"),
    Bug("seam-of-a-quad", "Oblikovati/Oblikovati#2146", ("decision-flip", "cancellation"), "aten.ge.Scalar", lambda: traced(0.0),
        lambda: traced(1e-5), precision="32-true",
        expected_miss="a ray on a seam meets either triangle; that it meets neither is a decision of two comparisons, which is followed"),
    Bug("near-in-the-hyperboloid", "JuliaManifolds/Manifolds.jl#631", ("amplified-rounding", "cancellation"), "aten.sub.Tensor",
        lambda: siblings(False), lambda: siblings(True), precision="32-true"),
    Bug("small-boxes", "Megvii-BaseDetection/YOLOX#1592", ("cancellation", "amplified-rounding"), "aten.sub.Tensor", lambda: assigned(HALF),
        lambda: assigned(WIDE),
        expected_miss="boxes far from each other, which are left out after it, make the differences of near ones a small part of the tensor"),
)  # fmt: skip
