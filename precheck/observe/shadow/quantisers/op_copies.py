"""What an op makes of the copies of codes that it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.observe.shadow.memory.storages import plain
from precheck.observe.shadow.replaying.replay import OpCall, tensors_in
from precheck.ops.registry import REGISTRY
from precheck.ops.spec import Kind

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes


def copied(codes: Codes, op: OpCall, place: int, *only: torch.Tensor, without: int | None = None) -> torch.Tensor:
    """The op's result on the plain copies number `place`, or on the exact ones if it is -1. Only tensors in `only` are replaced, if given.
    `without`: what was multiplied by scales and not rounded is taken without so many of them and one, and scales are taken for ones."""
    seen: list[int] = []
    data = only or tuple(tensors_in(*op.args))
    start = _start(codes, op) if op.plan.written and codes.tracks.get(op.args[0]) is None else None

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if start is not None and tensor is op.args[0]:
            return start
        track = codes.tracks.get(tensor) if plain(tensor) else None
        if without is not None and track is None and (scaled := codes.scaled.get(tensor)) is not None:
            return tensor.float() / scaled.by(min(without, len(scaled.bys) - 1), tensor)
        if without is not None and track is None and codes.scales.made.get(tensor) == "scale":
            return (tensor != 0).float()
        if track is None or all(tensor is not each for each in data):
            wide = tensor.is_floating_point() or op.base in ops.PRODUCTS
            return tensor.float() if wide else tensor
        many = len(track.plains)
        nth = (place // (seen[0] if seen else 1)) % many
        seen.append(many)
        return (track.exact if place < 0 else track.plains[nth]).seen(tensor)

    if op.base == "constant_pad_nd" and place >= 0:
        return torch.nn.functional.pad(change(op.args[0]), op.args[1])  # whatever its code is, what is padded with stands for zero
    return change(op.args[0]) @ change(op.args[1]) if op.base == "_int_mm" else codes.mode.replay.on_others(op, change)


def _start(codes: Codes, op: OpCall) -> torch.Tensor:
    """What was in the tensor that the op has written into. Elements that are joined to it, as sums by index are, are taken away again."""
    written: torch.Tensor = op.args[0]
    if op.base not in REGISTRY or REGISTRY[op.base].kind is not Kind.JOIN:
        return written.float()
    return written.float() - codes.mode.replay.on_others(op, lambda each: torch.zeros_like(each) if each is written else each).float()
