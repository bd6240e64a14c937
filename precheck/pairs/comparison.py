"""Makes the runs of one comparison when they are first needed, and gives the verdict on every tensor."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from precheck.analysis.noise_floor import noise
from precheck.observe.listeners import doing
from precheck.pairs.altered_calls import Aligned
from precheck.pairs.capture import Captured
from precheck.pairs.compared_tensors import Subject, subjects
from precheck.pairs.distances import squared_distance
from precheck.pairs.floors import Yardstick, ratio
from precheck.pairs.matching import Matching
from precheck.pairs.sides import ObservedRun, Side, without_floats
from precheck.pairs.steps import handed_on
from precheck.pairs.verdicts import Judged, Sided, agreed, different_because, evident, judged, vanishing, without_floor
from precheck.precisions import Precision
from precheck.words import counted

REFUSALS = (RuntimeError, TypeError, ValueError, AssertionError)
"""Errors that a model may raise if it runs in another format than its own."""
AGREED = "none needed: both agree by what correct rounding of float32 explains"
"""The text of a report if no exact run was made."""
MORE = (2, noise.MOST)
"""Total numbers of noise runs if a tensor is beyond its limit with one."""


class Comparison:
    """Compares `other` with `model`, the reference, under a precision."""

    def __init__(
        self, model: Side, other: Side, matching: Matching, precision: Precision, *, aligned: Aligned | None = None, hidden: Aligned | None = None
    ) -> None:
        self.model, self.other, self.precision, self.aligned, self.hidden = model, other, precision, aligned, hidden  # to make tensors alike
        self.dtype = torch.float32 if precision.is_low else torch.float64
        self.refused, self.lost = "", ""  # why float64 is not the format of the exact runs, and why `other` has no exact run
        frozen = [name for side in (model, other) for name, each in side.job.model.named_parameters() if not each.requires_grad]
        with doing("running both models"):
            ours, theirs = model.low().captured, other.low().captured
        self.matching = matching.used({name for name, _ in theirs.of("parameter-gradient")})
        self.subjects, self.unshared = subjects(ours, theirs, self.matching, frozen)
        self.yardstick: Yardstick | None = None
        self.rival: Yardstick | None = None  # the floors of `other`, if it took other decisions
        self.freed: dict[Subject, torch.dtype] = {}  # subjects whose difference is confirmed by runs that take their own decisions
        self.bitwise = False
        self.closer: Yardstick | None = None  # with roundings at every op of the reference
        self.verdicts: dict[Subject, str] = {}  # of `judged`

    def judged(self) -> list[Judged]:
        """The verdict on every subject, in the order of the run."""
        found = {each: self._vanished(each, alone=True) or without_floor(each, self._sided(each)) or self._whole(each) for each in self.subjects}
        self.bitwise = all(verdict is not None and verdict.verdict == "bitwise" for verdict in found.values())
        for each in (self._by_steps, self._within_one_rounding, self._within_noise, self._by_exact_runs):
            open_ = [subject for subject, verdict in found.items() if verdict is None]
            if open_:
                found |= each(open_)
        self.verdicts = {subject: verdict.verdict for subject, verdict in found.items() if verdict is not None}
        return [verdict for verdict in found.values() if verdict is not None]

    def _vanished(self, subject: Subject, *, alone: bool = False) -> Judged | None:
        """`rounding` if a gradient is zero in exact arithmetic on each side that has it: of a bias before a norm, which `other` does not add, or of
        the shares of streams that are equal. `alone`: only if one side has it."""
        sided = self._sided(subject)
        if not subject.kind.endswith("gradient") or self.precision.name == "64-true" or (alone and sided.both):
            return None
        found: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        for side, given, of in ((self.model, sided.model, subject.of_model), (self.other, sided.other, subject.of_other)):
            exact = None
            if given is not None:
                with contextlib.suppress(*REFUSALS):
                    exact = of(side.exact(torch.float64).captured)
                found.append((given, exact))
        return vanishing(subject, found)

    def _whole(self, subject: Subject) -> Judged | None:
        """An error if integers differ although nothing is computed in floating point, or if a compiler changed their format."""
        sided = self._sided(subject)
        if sided.model is None or sided.other is None or any(each.is_floating_point() or each.is_complex() for each in (sided.model, sided.other)):
            return None
        formats = [str(each.dtype).removeprefix("torch.") for each in (sided.other, sided.model)]
        if self.other.compiled and formats[0] != formats[1]:
            return different_because(subject, sided.other, f"is of {formats[0]}, and model's is of {formats[1]}")
        apart_ = int((sided.model != sided.other).sum())
        if not apart_ or not without_floats(self.model):
            return None
        return different_because(subject, sided.other, f"{counted(apart_, 'whole number')} of it are others than model's, where nothing is rounded")

    def _by_steps(self, open_: Sequence[Subject]) -> dict[Subject, Judged | None]:
        """Verdicts on updates, from the steps of both optimizers with their own gradients, and of `other`'s with `model`'s gradients."""
        moved = [subject for subject in open_ if subject.kind == "update"]
        if not moved:
            return {}
        steps = self.model.steps, self.other.steps
        if len(steps[0].gradients) != len(steps[1].gradients):
            return {}
        made, alike = [each.exactly() for each in steps], self.other.steps.exactly(handed_on(*steps, self.matching.links))
        if made[0] is None or made[1] is None or alike is None:
            return {}
        yard = Yardstick(self.precision, ObservedRun(self.model.low().trace, made[0]), moved)
        found = {subject: self._by_step(subject, made[0], made[1], alike, yard) for subject in moved}
        off = [subject for subject, verdict in found.items() if verdict is not None and "less accurate" in verdict.verdict]
        if off and (own := self.model.steps.again()) is not None:
            yard.allow(own)
        return found | {subject: self._by_step(subject, made[0], made[1], alike, yard) for subject in off}

    def _by_step(self, subject: Subject, ours: Captured, theirs: Captured, alike: Captured, yard: Yardstick) -> Judged | None:
        sided, exact = self._sided(subject), subject.of_model(ours)
        if exact is None or sided.model is None or sided.model.shape != exact.shape or not exact.is_floating_point():
            return None
        sided = Sided(sided.model, sided.other, subject.of_other(theirs), exact, subject.of_other(alike))
        fine = yard.floor(subject, roundoff=noise.REASSOCIATED) if self.precision.is_low else None
        return judged(subject, sided, yard.floor(subject), samples=0, fine=fine)

    def _within_one_rounding(self, open_: Sequence[Subject]) -> dict[Subject, Judged | None]:
        """Verdicts on tensors that agree up to one rounding of float32, without further runs.

        The error of `other` is then at most that of `model` plus that rounding, which the floor contains. So it cannot be the less accurate one.
        Under a low precision a rounding could hide another function, so exact runs are needed.
        """
        if not self._float32:
            return {}
        alone = Yardstick(self.precision, self.model.low(), open_)
        return {subject: agreed(subject, self._sided(subject), alone.floor(subject)) for subject in open_ if subject in alone.exact}

    def _within_noise(self, open_: Sequence[Subject]) -> dict[Subject, Judged | None]:
        """Verdicts on tensors that agree up to the noise of correct rounding. That floor is sixteen times the rounding of float32, so no float64 run
        is needed, unless either side stores something in a lower format."""
        if not self._float32 or self.model.log.rounded or self.other.log.rounded:
            return {}
        near = Yardstick(self.precision, self.model.low(), open_)
        with doing("running the reference with noise"):
            near.add(self.model.noise(torch.float32, 0).captured)
        return {subject: agreed(subject, self._sided(subject), near.floor(subject)) for subject in open_ if subject in near.exact}

    def _by_exact_runs(self, open_: Sequence[Subject]) -> dict[Subject, Judged | None]:
        """Verdicts from exact runs. No noise runs are made if both sides have similar errors and the exact runs agree, otherwise as many as
        needed."""
        self.yardstick = self._reference(open_)
        found: dict[Subject, Judged | None] = {}
        if self.precision.is_low:
            self._exact_other()
            found = {subject: self._evident(subject) for subject in open_}
        rest = [subject for subject in open_ if found.get(subject) is None]
        if rest:
            self._more(1)
        return found | {subject: self._settled(subject) for subject in rest}

    def _evident(self, subject: Subject) -> Judged | None:
        if subject not in self._yard.exact:
            return None
        return evident(subject, self._sided(subject), self._yard.floor(subject), self._yard.floor(subject, roundoff=noise.REASSOCIATED))

    @property
    def _float32(self) -> bool:
        return self.precision.name == "32-true" and not self.other.compiled

    def _settled(self, subject: Subject) -> Judged:
        verdict = self._numbers(subject)
        if not self.precision.is_low and verdict.clear:
            return verdict
        self._exact_other()
        verdict = self._numbers(subject)
        if verdict.verdict in ("different", "undecidable") and not verdict.why:
            verdict = self._confirmed(subject, verdict)
        if verdict.verdict in ("different", "less accurate") and (zero := self._vanished(subject)) is not None:
            return zero
        if verdict.verdict == "different" and self._yard.samples and self._by_luck(subject, verdict):
            self._more(noise.MOST)
            verdict = self._numbers(subject)
        for count in MORE:
            if verdict.verdict not in ("less accurate", "model less accurate"):  # a verdict from exact runs does not depend on chance
                break
            self._more(count)
            verdict = self._numbers(subject)
        return self._closely(subject, verdict) if verdict.verdict == "less accurate" and not verdict.nonfinite else verdict

    def _by_luck(self, subject: Subject, verdict: Judged) -> bool:
        """Whether the floor may be too low by chance: noise runs are few, or the tensor is zero in exact arithmetic, and as large as its noise."""
        numel = torch.Size(verdict.shape).numel()
        return self._yard.floor(subject).drowned or verdict.r <= noise.allowed(numel, max(2, self._yard.samples))

    @property
    def _yard(self) -> Yardstick:
        assert self.yardstick is not None
        return self.yardstick

    def _reference(self, wanted: Sequence[Subject]) -> Yardstick:
        """The floors from the exact run of the reference. If either side cannot run in float64, float32 is the exact format."""
        with doing("running the reference exactly"):
            try:
                exact = self.model.exact(self.dtype)
                if not self.precision.is_low and (self.other.compiled or not any(True for _ in self.other.job.model.parameters())):
                    self.other.exact(self.dtype)
            except REFUSALS as error:
                if self.precision.is_low:
                    raise
                self.refused, self.dtype = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}", torch.float32
                exact = self.model.exact(self.dtype)
        return Yardstick(self.precision, exact, wanted)

    def _add(self, yardstick: Yardstick, count: int, *, everywhere: bool = False) -> None:
        for number in range(yardstick.samples, count):
            with doing(f"noise run {number + 1} of {count}"):
                yardstick.add(self.model.noise(self.dtype, number, everywhere=everywhere).captured)

    def _more(self, count: int) -> None:
        self._add(self._yard, count)

    def _exact_other(self) -> None:
        if self.lost:
            return
        with doing("running the other model exactly"):
            try:
                self.other.exact(self.dtype)
            except REFUSALS as error:
                said = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
                if self.dtype is torch.float64 and not self.precision.is_low:
                    self.refused, self.dtype = said, torch.float32
                    self.yardstick = self._reference(list(self._yard.subjects))
                    self._more(1)
                    self._exact_other()
                else:
                    self.lost = said

    def _numbers(self, subject: Subject, yardstick: Yardstick | None = None) -> Judged:
        yard = yardstick or self._yard
        if subject not in yard.exact or yard.exact[subject].shape != self._sided(subject).model.shape:  # type: ignore[union-attr]
            yard.exact.pop(subject, None)
            return Judged(subject, "undecidable", 0.0, noise.FAIL, why="the exact run of model has none")
        fine = yard.floor(subject, roundoff=noise.REASSOCIATED) if self.precision.is_low else None
        return judged(subject, self._sided(subject), yard.floor(subject), samples=yard.samples, fine=fine)

    def _sided(self, subject: Subject) -> Sided:
        """The tensors of a subject on both sides. If it is `freed`, the functions are compared by runs in that format which take their own
        decisions."""
        free = self.freed.get(subject)
        ours, theirs = subject.of_model(self.model.low().captured), subject.of_other(self.other.low().captured)
        if self.yardstick is None or self.lost or not self.other.ran(self.dtype):
            return Sided(ours, theirs)
        free_model, free_other = (side.exact(free or self.dtype, free=free is not None) for side in (self.model, self.other))
        return Sided(
            ours, theirs, subject.of_other(self.other.exact(self.dtype).captured),
            subject.of_model(free_model.captured), subject.of_other(free_other.captured),
        )  # fmt: skip

    def _closely(self, subject: Subject, verdict: Judged) -> Judged:
        """The verdict by a floor with the rounding of every op of the reference, not only of its modules' results."""
        if self.closer is None:
            self.closer = Yardstick(self.precision, self.model.exact(self.dtype), list(self._yard.subjects))
            self._add(self.closer, 2, everywhere=True)
        closer = self._numbers(subject, self.closer)
        if closer.verdict != "rounding" and self._apart(subject):
            closer = self._numbers(subject, self._rival())
        return closer if closer.verdict == "rounding" else verdict

    def _apart(self, subject: Subject) -> bool:
        """Whether the two took different decisions, so that their exact runs are not comparable."""
        sided, floor = self._sided(subject), self._yard.floor(subject)
        if sided.exact_other is None or sided.exact_other.shape != floor.exact.shape:
            return False
        return ratio(squared_distance(sided.exact_other, floor.exact).whole, floor.square.whole) > noise.FAIL

    def _rival(self) -> Yardstick:
        """The floors from noise runs of `other`, along its own decisions."""
        if self.rival is None:
            self.rival = Yardstick(self.precision, self.other.exact(self.dtype), list(self._yard.subjects), of=lambda subject: subject.of_other)
            for number in range(noise.MOST):
                self.rival.add(self.other.noise(self.dtype, number).captured)
        return self.rival

    def _confirmed(self, subject: Subject, verdict: Judged) -> Judged:
        """The verdict by exact runs that take their own decisions, in float64 if possible. If decisions differ, neither side is wrong, and float32
        rounds too."""
        for dtype in dict.fromkeys((torch.float64, self.dtype)):
            self.freed[subject] = dtype
            with contextlib.suppress(*REFUSALS):
                return self._numbers(subject)
        self.freed.pop(subject)
        return verdict

    def facts(self) -> dict[str, Any]:
        exact = str(self.dtype).removeprefix("torch.") + (f": float64 is refused ({self.refused})" if self.refused else "")
        found: dict[str, Any] = {"exact": exact} if self.yardstick is not None else {} if self.bitwise else {"exact": AGREED}
        if self.lost:
            found["other_exact"] = f"none: {self.lost}"
        if self.yardstick is not None:
            found["noise_runs"] = self.yardstick.samples
            found |= self._decisions()
        lonely = {"not_compared": self.unshared, "unmatched_in_other": self.matching.lonely, "unmatched_in_model": self.matching.missed}
        return found | {name: list(words) for name, words in lonely.items() if words}

    def _decisions(self) -> dict[str, int]:
        counted = [side.exact(self.dtype).trace.flips for side in (self.model, self.other) if side.ran(self.dtype)]
        flips, total = (sum(pair[place] for each in counted for pair in each.values()) for place in (0, 1))
        return {"decisions": total, "flips": flips} if total else {}
