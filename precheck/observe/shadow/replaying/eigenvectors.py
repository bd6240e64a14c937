"""Makes eigenvectors and singular vectors of the reference comparable with those of the run: signs, bases of spaces with equal values, and the order
of eigenvalues that have none."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import torch

from precheck import ops

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call


def as_in_run(call: Call, outputs: list[torch.Tensor], shadows: list[torch.Tensor]) -> None:
    """Eigenvectors and singular vectors have no sign of their own, and those of equal values may be any basis of their space. Their shadows take the
    run's, which a later choice may rest on.

    A left and a right singular vector are rotated together, as their product is the matrix's.
    """
    if call.plan.base in ops.UNORDERED:
        if outputs[0].numel():
            _ordered_as(outputs, shadows)
        return
    lying = {place: ops.VECTORS[call.plan.base, place] for place in range(len(outputs)) if (call.plan.base, place) in ops.VECTORS}
    if not lying or any(outputs[place].is_complex() or not outputs[place].numel() for place in lying):
        return
    columns = {place: (outputs[place].to(shadows[place].dtype), shadows[place]) for place in lying}
    columns = {place: both if lying[place] == -2 else (both[0].mT, both[1].mT) for place, both in columns.items()}
    values = shadows[next(place for place in range(len(outputs)) if place not in lying)]
    same = _equal(values, values.shape[-1] * torch.finfo(outputs[0].dtype).eps)
    pairs, alike = values.shape[-1], {place: theirs.mT @ mine for place, (mine, theirs) in columns.items()}
    together = functools.reduce(torch.add, (each[..., :pairs, :pairs] for each in alike.values()))
    if not bool(together.isfinite().all()):
        return
    rotation = _nearest_rotation(together, same)
    for place, (_, theirs) in columns.items():
        rest = alike[place][..., pairs:, pairs:]  # without values, as of a matrix that is not square: they span what is left
        beyond = _nearest_rotation(rest, torch.ones_like(rest, dtype=torch.bool)) if rest.numel() else rest
        rotated = torch.cat([theirs[..., :pairs] @ rotation, theirs[..., pairs:] @ beyond], -1)
        shadows[place] = rotated if lying[place] == -2 else rotated.mT


def _ordered_as(outputs: list[torch.Tensor], shadows: list[torch.Tensor]) -> None:
    """Puts the eigenvalues of the reference, and vectors beside them, into the order of the run: each of the run's takes the nearest that is left,
    the largest first. A vector of length one has a phase of its own, which is turned to that of the run. Vectors of values that rounding may have
    parted are the run's: an eigenvalue that a matrix has twice is split by up to the root of a rounding."""
    values, theirs = outputs[0].to(shadows[0].dtype).reshape(-1, outputs[0].shape[-1]), shadows[0].reshape(-1, outputs[0].shape[-1])
    if not bool((values.isfinite() & theirs.isfinite()).all()):
        return
    apart = (values[:, :, None] - theirs[:, None, :]).abs()
    order = torch.zeros_like(values, dtype=torch.int64)
    for row in values.abs().argsort(-1, descending=True).unbind(-1):
        taken = apart.gather(1, row[:, None, None].expand(-1, 1, apart.shape[-1])).squeeze(1).argmin(-1, keepdim=True)
        order.scatter_(1, row[:, None], taken)
        apart.scatter_(2, taken[:, None].expand(-1, apart.shape[1], 1), torch.inf)
    order = order.reshape(outputs[0].shape)
    shadows[0] = shadows[0].gather(-1, order)
    gaps = (outputs[0][..., :, None] - outputs[0][..., None, :]).abs()
    near = gaps <= math.sqrt(torch.finfo(outputs[0].dtype).eps) * outputs[0].abs().amax(-1)[..., None, None]
    shared = near.sum(-1, keepdim=True).mT > 1
    for place in range(1, len(shadows)):
        vectors = shadows[place].gather(-1, order[..., None, :].expand_as(shadows[place]))
        phase = (vectors.conj_physical() * outputs[place]).sum(-2, keepdim=True)
        turned = vectors * torch.where(phase.abs() > 0, phase / phase.abs(), 1.0)
        shadows[place] = torch.where(shared, outputs[place].to(turned.dtype), turned)


def _equal(values: torch.Tensor, within: float) -> torch.Tensor:
    """Which pairs of sorted values are linked by gaps of at most `within` of the largest value: those of an op's own rounding.

    Values as small as that are linked to none. Their vectors are rounding alone, and what is computed from them keeps that cause.
    """
    rounding = within * values.abs().amax(-1, keepdim=True)
    small = values.abs() <= rounding
    gaps = (values.diff(dim=-1).abs() > rounding) | small[..., 1:] | small[..., :-1]
    groups = torch.cat([torch.zeros_like(gaps[..., :1], dtype=torch.int64), gaps.cumsum(-1)], -1) if gaps.shape[-1] else values.long() * 0
    return groups[..., :, None] == groups[..., None, :]


def _nearest_rotation(alike: torch.Tensor, among: torch.Tensor) -> torch.Tensor:
    """The rotation of columns that comes nearest to `alike` and mixes only the columns `among` each other (orthogonal Procrustes). Signs, if none."""
    signs = torch.diag_embed(torch.where(alike.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(alike.dtype))
    if int(among.sum()) == alike.shape[-1] * alike[..., 0, 0].numel():
        return signs
    left, _, right = torch.linalg.svd(torch.where(among, alike, 0.0))
    rotation: torch.Tensor = left @ right
    return rotation
