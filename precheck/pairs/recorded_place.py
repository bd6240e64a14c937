"""Finds the first module of a recorded run that differs, from sketches of the tensors that passed between its modules."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch

from precheck.analysis.noise_floor import noise
from precheck.formats import ONE_ROUNDING
from precheck.observe.recording.sketch import distance
from precheck.pairs.floors import ratio, roundoff
from precheck.pairs.matching import mapped
from precheck.pairs.module_dataflow import Passage, Passages
from precheck.pairs.sides import Side

SAMPLES = 2
"""Noise runs for the floors. The verdict has been given before; these only choose among modules."""


def first_module(model: Side, recorded: Sequence[Passage], match: Mapping[str, str], dtype: torch.dtype) -> str | None:
    """The first module of the recorded run that returns something else, or "" for the model's own code. None if the file does not tell."""
    exact, *noisy = [_passed(model, ran) for ran in (
        lambda: model.once(dtype, following=True), *(lambda number=number: model.noise(dtype, number) for number in range(SAMPLES)))]  # fmt: skip
    wanted = {each.module: mapped(each.module, match) or each.module for each in recorded}
    calls = [Counter((each.kind, wanted.get(each.module, each.module) if found is recorded else each.module) for each in found)
             for found in (recorded, exact)]  # fmt: skip
    known = [{each.key: each for each in found} for found in (exact, *noisy)]
    unit = roundoff(model.precision)

    def off(each: Passage) -> bool | None:
        """Whether a recorded tensor is beyond the floor. None if `model` has no such tensor."""
        key = each.kind, wanted[each.module], each.call, each.place
        ours = [found[key] for found in known if key in found]
        if len(ours) < len(known) or ours[0].shape != each.shape or calls[0][key[:2]] != calls[1][key[:2]]:
            return None
        size = torch.Size(each.shape).numel()
        spread = sum(_apart(one, ours[0]) ** 2 for one in ours[1:]) / SAMPLES
        floor = spread + (ONE_ROUNDING * unit) ** 2 * float(ours[0].tensor.square().sum())
        return ratio(_apart(each, ours[0]) ** 2, floor) > noise.allowed(size, SAMPLES)

    judged = [off(each) for each in recorded]
    for place, each in enumerate(recorded):
        if judged[place] and not _made_up(each, recorded[place + 1 :], judged[place + 1 :]):
            return _blamed(each, recorded[:place], judged[:place])
    return None


def _blamed(first: Passage, before: Sequence[Passage], judged: Sequence[bool | None]) -> str:
    if first.kind == "out":
        return first.module
    compared = any(verdict is False for each, verdict in zip(before, judged, strict=True) if each.kind == "out" and each.module == first.maker)
    return first.caller if first.given and compared else first.maker


def _made_up(passage: Passage, after: Sequence[Passage], judged: Sequence[bool | None]) -> bool:
    """Whether a module around the tensor, or the one that reads it, returns the same as model's."""
    names = passage.module.split(".") if passage.module else []
    holders = [".".join(names[:depth]) for depth in range(1, len(names) + (passage.kind == "in"))]
    for holder in holders:
        verdict = next((found for each, found in zip(after, judged, strict=True) if (each.kind, each.module) == ("out", holder)), None)
        if verdict is False:
            return True
    return False


def _passed(model: Side, ran: Callable[[], object]) -> list[Passage]:
    with Passages(model.job.model, sketches=True).followed() as found:
        ran()
    return found


def _apart(one: Passage, other: Passage) -> float:
    return distance(one.tensor.numpy(), other.tensor.numpy()) if one.shape == other.shape else math.inf
