"""Scales that become zero when they are cast to a format of few exponents. What is quantised under them is lost, whatever the codes are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.quantisers.code_notes import Flushed
from precheck.observe.shadow.replaying.replay import OpCall

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes


@dataclasses.dataclass(slots=True)
class Cast:
    """A cast of scales to a narrower format: its place, the scales before and after it, and the smallest number of its format."""

    place: Operation
    before: torch.Tensor
    made: torch.Tensor
    smallest: float


def after_op(codes: Codes, op: OpCall, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
    """After an op: notes a cast of scales to a narrower format, and keeps the note with what is made of these scales. Whether the cast has made some
    of them zero is asked when they are used, since an accelerator would have to be waited for."""
    result, source = results[0], inputs[-1]
    if not codes.scales.made.get(result):
        return
    if op.base in ops.CASTS and source.is_floating_point() and result.is_floating_point() and source.element_size() > result.element_size():
        format_of = torch.finfo(result.dtype)
        smallest = format_of.tiny * format_of.eps  # its smallest subnormal number
        before, made = source.detach().to(torch.float32, copy=True), result.detach().to(torch.float32, copy=True)
        codes.flushed.put(result, Cast(codes.described(op.plan.name), before, made, smallest))
    elif codes.flushed:
        found = next(filter(None, map(codes.flushed.get, inputs)), None)
        if found is not None:
            codes.flushed.put(result, found)


def note_flushed(codes: Codes, scale: torch.Tensor) -> None:
    """Data is multiplied or divided by a scale: records the cast that made some of the scales zero, unless they have been put right since."""
    cast = codes.flushed.get(scale) if codes.flushed else None
    if cast is None:
        return
    codes.flushed.drop(scale)
    gone = (cast.made == 0) & (cast.before != 0)
    if scale.numel() != cast.made.numel() or not bool(gone.any()):
        return
    now, kept = scale.detach().float().reshape(cast.made.shape), (cast.made != 0)
    factor = float((now[kept] / cast.made[kept]).median()) if bool(kept.any()) else 1.0
    if bool((now[gone].abs() < cast.smallest * abs(factor)).all()):
        lost = float(cast.before[gone].norm() / cast.before.norm().clamp_min(1e-30))
        codes.note(cast.place, Flushed(float(gone.float().mean()), lost))
