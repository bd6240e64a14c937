"""Follows codes that are copied into a storage that exists already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from precheck.observe.shadow.storages import whole

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes


def copied(codes: Codes, inputs: list[torch.Tensor], result: torch.Tensor) -> None:
    """Codes are copied into an existing storage, whole or in part."""
    track = codes.tracks.get(inputs[1]) if len(inputs) > 1 else None
    held = codes.tracks.get(result)
    if track is None and held is not None and not whole(result):
        for each in (held.exact, *held.plains):
            each.seen(result).copy_(result)
    elif track is None:
        codes.tracks.drop(result)
    elif held is None or whole(result):
        codes.passed(track, inputs[1], result)
    else:
        held.exact.seen(result).copy_(track.exact.seen(inputs[1]))
        for mine, theirs in (*zip(held.plains, track.plains, strict=False), *zip(held.units, track.units, strict=False)):
            mine.seen(result).copy_(theirs.seen(inputs[1]))
        held.read, track.read = False, True
