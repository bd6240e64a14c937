"""Compares a model with a recording: the other model ran in another process, and has no exact run. Finds the first module that differs, from sketches
of the tensors that passed between modules.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from precheck.analysis.noise_floor import noise
from precheck.analysis.noise_floor.noise import STRANGE
from precheck.formats import ONE_ROUNDING
from precheck.observe.recording.sketch import distance, sketch
from precheck.pairs.capture import Captured
from precheck.pairs.compared_tensors import Subject
from precheck.pairs.comparison import REFUSALS
from precheck.pairs.distances import Squares, squared_distance
from precheck.pairs.floors import Floor, Yardstick, ratio, roundoff
from precheck.pairs.matching import mapped
from precheck.pairs.module_dataflow import Passage, Passages
from precheck.pairs.recording import Kept, Recording, digest
from precheck.pairs.sides import Side
from precheck.pairs.verdicts import Judged, Sided, bitwise, different_because, judged
from precheck.precisions import Precision


class Against:
    """Does for a model and a recording what `Comparison` does for two models."""

    def __init__(self, model: Side, recording: Recording, match: Mapping[str, str], precision: Precision) -> None:
        self.model, self.recording, self.match, self.precision = model, recording, match, precision
        self.refused = ""
        self.samples = 0
        self.subjects: dict[Subject, Kept] = {}
        self.unshared: list[str] = []
        given = model.low().captured
        for (kind, name, step), kept in recording.kept.items():
            wanted = name if kind not in ("parameter-gradient", "update") else mapped(name, match) or name
            key = kind, wanted, step
            if key not in given.tensors and kind == "result":  # a tensor may match a container of one tensor
                alone = [each for each in given.tensors if each[0] == "result" and each[2] == step]
                theirs = [each for each in recording.kept if each[0] == "result" and each[2] == step]
                key = alone[0] if len(alone) == len(theirs) == 1 else key
            if key in given.tensors:
                self.subjects[Subject(kind, name, step, lambda seen, key=key: seen.tensors.get(key), lambda seen: None, (wanted,))] = kept  # type: ignore[misc]
            else:
                self.unshared.append(f"{kind} {name}".strip() + ", which only the recording has")

    def judged(self) -> list[Judged]:
        given = self.model.low().captured
        found = {subject: self._plain(subject, kept, given) for subject, kept in self.subjects.items()}
        open_ = [subject for subject, verdict in found.items() if verdict is None]
        if open_:
            yard = self._reference(open_)
            for subject in open_:
                found[subject] = self._by_numbers(subject, self.subjects[subject], given, yard.floor(subject))
        return [verdict for verdict in found.values() if verdict is not None]

    def first_module(self) -> str | None:
        """The first module of the recorded run that differs, or None if the file does not tell."""
        for dtype in (torch.float32,) if self.precision.is_low or self.refused else (torch.float64, torch.float32):
            with contextlib.suppress(*REFUSALS):
                return first_module(self.model, self.recording.passages, self.match, dtype) if self.recording.passages else None
        return None

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = {"recording": ", ".join(f"{name} {value}" for name, value in self.recording.origin.items())}
        if self.samples:
            found |= {"exact": "float32" if self.precision.is_low or self.refused else "float64", "noise_runs": self.samples}
        if self.unshared:
            found["not_compared"] = self.unshared
        return found

    def _plain(self, subject: Subject, kept: Kept, given: Captured) -> Judged | None:
        ours = subject.of_model(given)
        assert ours is not None
        if tuple(ours.shape) != kept.shape:
            return different_because(subject, kept, f"has shape {kept.shape} in the recording, and model's has {tuple(ours.shape)}")
        return bitwise(subject, kept) if digest(ours) == kept.digest else None

    def _reference(self, wanted: list[Subject]) -> Yardstick:
        dtype = torch.float32 if self.precision.is_low else torch.float64
        try:
            exact = self.model.exact(dtype)
        except REFUSALS as error:
            if self.precision.is_low:
                raise
            self.refused, dtype = str(error), torch.float32
            exact = self.model.exact(dtype)
        yard = Yardstick(self.precision, exact, wanted)
        for number in range(noise.MOST):
            yard.add(self.model.noise(dtype, number).captured)
        self.samples = yard.samples
        return yard

    def _sided(self, subject: Subject, ours: torch.Tensor, theirs: torch.Tensor) -> Sided:
        """Adds the step that the optimizer makes from the recorded gradients, if it is an update. Only the first step's gradients are recorded."""
        if subject.kind != "update" or self.model.job.steps > 1 or not self.model.steps.gradients:
            return Sided(ours, theirs)
        given = {each.ours[0]: kept.whole for each, kept in self.subjects.items() if each.kind == "parameter-gradient" and kept.whole is not None}
        made = self.model.steps.again([{**self.model.steps.gradients[0], **given}])
        return Sided(ours, theirs, None if made is None or subject.ours[0] not in given else subject.of_model(made))

    def _by_numbers(self, subject: Subject, kept: Kept, given: Captured, floor: Floor) -> Judged:
        """The verdict by numbers. A tensor that lies beyond what the model's own run under the precision could give is different."""
        ours = subject.of_model(given)
        assert ours is not None
        if kept.whole is not None:
            if not kept.whole.is_floating_point():
                return different_because(subject, kept, "holds other whole numbers than model's")
            found = judged(subject, self._sided(subject, ours, kept.whole), floor, samples=self.samples)
            return dataclasses.replace(found, verdict="different" if found.verdict == "less accurate" else found.verdict, recorded=True)
        assert kept.sketch is not None
        own = Squares(distance(kept.sketch.numpy(), sketch(floor.exact, finite=False)) ** 2, [])
        rival, limit = squared_distance(ours, floor.exact), noise.allowed(ours.numel(), self.samples)
        r, beside = ratio(own.whole, floor.square.whole), ratio(own.whole, max(floor.square.whole, rival.whole))
        off = beside > limit * (STRANGE if floor.drowned else 1.0)
        more = max(0, kept.nonfinite - int((~floor.exact.isfinite()).sum()))
        return Judged(
            subject, "different" if off or more else "rounding", math.inf if more else r, limit, "", math.sqrt(own.whole),
            math.sqrt(floor.square.whole), math.sqrt(floor.norm.whole), more, kept.shape, kept.dtype, True,
        )  # fmt: skip


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
    holders = [".".join(names[:depth]) for depth in range(1, len(names) + (passage.kind != "out"))]
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
