"""Finds the class of a fault: the change to a trial after which the candidate is right."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator

import torch

from precheck.kernels import contents, lower_intermediates, masks, number_kinds, running
from precheck.kernels.bench import QUICK, Bench
from precheck.kernels.errors import adds, blunt, carriers, constant, differ, error_of, errors_of, explained, has_mask, inputs_of
from precheck.kernels.examples import Example, Leaf
from precheck.kernels.replay import AGAIN, Replay
from precheck.kernels.states import State
from precheck.kernels.trial_result import AT_ONCE, Judged
from precheck.kernels.trials import Made, Trial

ROUND = (64, 128, 32, 16, 256)
"""Sizes that are multiples of common tiles."""
PATIENCE = 15.0
"""Seconds of processor time for the search for a class."""
_PLENTY = 2**18
"""The most elements of a tensor in trials that search for a class."""
_RUNS = 40
"""The cost of a verdict, in runs of the reference in its own format and in float64: six noise runs, each ten times as long, and samples at nearby
inputs."""
_GAIN = 8.0
"""The least factor by which a rounding error is smaller in the next wider format. Formats differ by 2^3 and more."""
_CARRIERS = 8  # elements that must carry an error, before it is asked whether it varies like rounding
_GROWS = 4.0
"""Growth of a sum's relative error when the sum is 64 times as long, if its accumulator rounds: between 8, as for a random walk, and 64."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """The rule that a fault belongs to, and the reason in words."""

    rule: str
    why: str = ""


class Search:
    """Searches for the class of one fault by trials that differ from the failing one in one respect."""

    def __init__(self, bench: Bench, state: State) -> None:
        self.bench, self.state, self.begun, self.replay = bench, state, 0.0, Replay(bench, state)

    def late(self) -> bool:
        """Whether the time for the search is over."""
        return time.process_time() - self.begun > PATIENCE

    def passes(self, trial: Trial) -> bool:
        """Whether the candidate is right in that trial, with its state as before its first call."""
        judged = self._fresh(trial)
        return judged is not None and judged.fault is None and not judged.refused and not judged.skipped

    def _fresh(self, trial: Trial) -> Judged | None:
        """That trial, judged with the candidate's state as before its first call. None if the reference refuses its sizes."""
        taken = self.bench.takes(trial)
        return None if taken is None else self.replay.fresh(taken)

    def cause(self, judged: Judged) -> Cause:
        """The class of a fault."""
        assert judged.fault is not None
        if judged.fault.kind in AT_ONCE:
            return Cause(AT_ONCE[judged.fault.kind])
        self.bench.ladder, before, self.begun = QUICK, self.bench.ladder, time.process_time()
        try:
            return self._found(judged)
        finally:
            self.bench.ladder = before

    def _found(self, judged: Judged) -> Cause:
        ways = (self._uncleared, self._remembered, self._laid, self._sized, self._cut, self._unwritten, self._valued)
        return next((cause for way in ways if (cause := way(judged)) is not None), None) or self._plain(judged)

    def _remembered(self, judged: Judged) -> Cause | None:
        trial = judged.trial.but(fill=judged.trial.fill or "NaN")  # so that unwritten memory is the same each time, and not random
        history = self.bench.history[: self.bench.history.index(judged.trial)] if judged.trial in self.bench.history else []
        fresh = self.replay.fresh(trial)
        if fresh.fault is None and not fresh.skipped:
            if self.replay.by_chance(trial):
                return Cause("kernel-nondeterminism", "on the same inputs, where nothing was run before, it is right at one time only")
            if history and not self.replay.comes_again(trial, history):
                return Cause("kernel-nondeterminism", "the same calls in the same order are right at another time")
            return Cause("kernel-stale", "on the same inputs it is right where nothing was run before")
        for _ in range(AGAIN):
            again = self.bench.judge(trial)
            if again.fault is None and fresh.fault is not None and not again.skipped:
                return Cause("kernel-nondeterminism", "on the same inputs it is right at another time")
            if differ(fresh, again) and not explained(fresh, again):
                return Cause("kernel-nondeterminism", "calls on the same inputs give different results")
            if self.late():
                break
        return None

    def _laid(self, judged: Judged) -> Cause | None:
        trial = judged.trial
        if trial.layout != "contiguous" and self._right_if_contiguous(trial):
            return Cause("kernel-stride", f"with contiguous inputs it is right; {inputs_of(self.bench, trial)} {trial.layout} in memory")
        if trial.upstream in ("expanded", "transposed") and self.passes(trial.but(upstream="random")):
            return Cause("kernel-stride", f"it is right where the incoming gradient is contiguous; here that is {trial.upstream}")
        if trial.upstream == "partial" and self.passes(trial.but(upstream="random")):
            return Cause("kernel-gradient", "it is right where all outputs have a gradient; here one alone has")
        if trial.only is not None and self.passes(trial.but(only=None)):
            asked = "no input" if trial.only < 0 else f"inputs{self.bench.example.leaves[trial.only].path} alone"
            return Cause("kernel-gradient", f"it is right where all inputs require a gradient; here {asked} does")
        return None

    def _right_if_contiguous(self, trial: Trial) -> bool:
        """Whether it is right with contiguous inputs of the same numbers. An expanded row changes the numbers too, which may be the real cause."""
        plain = trial.but(layout="contiguous", laid=-1)
        if trial.layout != "expanded":
            return self.passes(plain)
        with self.state.restored():
            return self.bench.passes_on(plain, self.bench.make(trial))

    def _sized(self, judged: Judged) -> Cause | None:
        trial = judged.trial
        if not trial.sizes or not self.passes(trial.but(sizes=())):
            return None
        words = ", ".join(f"{self._size(name)} {size}" for name, size in trial.sizes)
        longer = max((size / max(self.bench.dimensions.sizes[name], 1) for name, size in trial.sizes), default=1)
        if judged.fault is not None and judged.fault.kind in ("values", "lost") and longer > 1 and self._rounds(judged):
            return Cause("kernel-accumulation", f"the error grows with the size: with {words} it is beyond the floor")
        return Cause("kernel-edge", f"in the example's sizes it is right; here {words}")

    def _size(self, name: str) -> str:
        return f"the size {self.bench.dimensions.sizes[name]} became" if name.startswith("=") else f"{name} ="

    def _uncleared(self, judged: Judged) -> Cause | None:
        return self._unwritten(judged) if self.bench.fills and self.passes(judged.trial.but(fill="zero")) else None

    def _unwritten(self, judged: Judged) -> Cause | None:
        if judged.fault is None or not self.replay.unwritten(judged.trial, judged.fault):
            return None
        return Cause("kernel-stale", "the result depends on what is in memory that it allocates, before anything is written there")

    def _cut(self, judged: Judged) -> Cause | None:
        """Whether the positions of sequence ends matter: with the example's own offsets, the same call is right."""
        if judged.trial.given or judged.trial.sizes:
            return None
        made = self.bench.make(judged.trial)
        for place, leaf in enumerate(self.bench.example.leaves):
            if contents.offsets(leaf.tensor, self.bench.dimensions.sizes.values()) and not torch.equal(made.values[place], leaf.tensor):
                values = [leaf.tensor if other == place else each for other, each in enumerate(made.values)]
                if self.bench.passes_on(judged.trial, Made(values, made.numbers)):
                    return Cause("kernel-edge", f"with the example's offsets in inputs{leaf.path} it is right; here sequences end elsewhere")
        return None

    def _valued(self, judged: Judged) -> Cause | None:
        trial, fault = judged.trial, judged.fault
        assert fault is not None
        what = number_kinds.WORDS[trial.family]
        if trial.family in number_kinds.SPECIAL:
            masked = fault.kind == "leaked" or (trial.family != "NaN" and fault.kind == "lost" and has_mask(self.bench, trial))
            return Cause("kernel-mask" if masked else "kernel-contract", f"there is {what} among the inputs")
        if trial.family == "plain" or not self.passes(trial.but(family="plain")):
            return None
        if self._rounds(judged):
            rule = "kernel-accumulation" if self._grows(judged) else "kernel-rounding"
            return Cause(rule, f"with plain numbers it is right; here there are {what}")
        if trial.family in number_kinds.LARGE and self._grows(judged, "plain"):
            return Cause("kernel-accumulation", f"with plain numbers the error grows with the number of terms; here there are {what}")
        if fault.kind == "lost" and trial.family in number_kinds.LARGE:
            return Cause("kernel-rounding", f"an intermediate leaves the range of its format; with plain numbers it is right, here there are {what}")
        if fault.kind == "values" and not blunt(judged) and self._grows(judged):
            return Cause("kernel-accumulation", f"the error grows with the number of terms; with plain numbers it is right, here there are {what}")
        if masks.explains(self.bench, judged) or masks.trivial(self.bench, judged):
            return Cause("kernel-mask", f"with plain numbers it is right; here there are {what}")
        lowered = lower_intermediates.reason(self.bench, judged)
        if lowered:
            return Cause("kernel-rounding", f"{lowered}; with plain numbers it is right, here there are {what}")
        rule = "kernel-gradient" if fault.backward and judged.backward else "kernel-contract"
        return Cause(rule, f"with plain numbers it is right; here there are {what}")

    def _plain(self, judged: Judged) -> Cause:
        fault = judged.fault
        assert fault is not None
        if fault.kind == "form":
            return Cause("kernel-contract")
        if fault.kind == "missing":
            return Cause("kernel-gradient")
        if constant(self.bench, judged):
            return Cause("kernel-constant", "it gives the same whatever the inputs hold")
        if fault.kind in ("values", "lost") and self._rounds(judged):
            return Cause("kernel-accumulation" if self._grows(judged) else "kernel-rounding")
        lowered = lower_intermediates.reason(self.bench, judged)
        if lowered:
            return Cause("kernel-rounding", lowered)
        cut = "" if fault.backward else lower_intermediates.otherwise(self.bench, judged)
        if cut:
            return Cause("kernel-rounding", f"whole numbers that are {cut} explain it")
        masked = "" if fault.backward else masks.explains(self.bench, judged)
        if masked:
            return Cause("kernel-mask", f"{masked} explains it")
        if masks.trivial(self.bench, judged):
            return Cause("kernel-mask", "it is right where nothing is masked")
        if fault.kind == "values" and not blunt(judged) and self._grows(judged):
            return Cause("kernel-accumulation", "the error grows with the number of terms")
        for size in self._round():
            return Cause("kernel-edge", f"in sizes that fit tiles of {size} it is right")
        return Cause("kernel-gradient", "its forward pass is right") if fault.backward else Cause("kernel-contract")

    def _round(self) -> Iterator[int]:
        names = list(self.bench.dimensions.sizes)
        for size in ROUND:
            if all(self.bench.dimensions.sizes[name] % size == 0 for name in names):
                continue
            if self.bench.dimensions.elements(dict.fromkeys(names, size)) > _PLENTY:
                continue
            trial = Trial(seed=17, sizes=tuple((name, size) for name in names))
            if not names or self.late() or not self._cheap(trial):
                continue
            if self.passes(trial) and self.passes(trial.but(seed=18)) and self._fails_beside(names, size):
                yield size

    def _fails_beside(self, names: list[str], size: int) -> bool:
        """Whether it is wrong in other equal sizes, so that equal sizes are not what helps. Sizes that one of both refuses say nothing."""
        for less in (3, 2, 4, 6):
            judged = self._fresh(Trial(seed=17, sizes=tuple((name, size - less) for name in names)))
            if judged is not None and not judged.refused and not judged.skipped:
                return judged.fault is not None
        return False

    def _cheap(self, trial: Trial) -> bool:
        """Whether a verdict at such sizes fits into the time of the search, estimated from one run of the reference."""
        taken, begun = self.bench.takes(trial), time.process_time()
        if taken is None:
            return False
        self.bench.of(taken)
        return (time.process_time() - begun) * _RUNS < PATIENCE

    def _rounds(self, judged: Judged) -> bool:
        """Whether the error is a rounding error: a wider format removes it, or it is small and differs at every neighbouring input."""
        assert judged.fault is not None
        name = judged.fault.subject
        error = error_of(judged, name)
        if not error > 0:
            return False
        for dtype in (torch.float64, torch.float32):
            wide = self._wider(judged.trial, dtype)
            if wide is not None and math.isfinite(left := error_of(wide, name)) and left * _GAIN <= error:
                return True
        return error < 0.1 and self._erratic(judged, name)

    def _wider(self, trial: Trial, dtype: torch.dtype) -> Judged | None:
        """The same numbers in a wider format. None if the example has that format already, or the candidate does not accept it."""
        example = self.bench.example
        if all(leaf.tensor.dtype.itemsize >= dtype.itemsize for leaf in example.leaves if leaf.tensor.is_floating_point()):
            return None
        made = self.bench.make(trial)
        values = [each.to(dtype) if each.is_floating_point() else each for each in made.values]
        leaves = tuple(Leaf(leaf.path, each, leaf.wanted) for leaf, each in zip(example.leaves, values, strict=True))
        wider = Bench(self.bench.candidate, self.bench.reference, Example(example.inputs, leaves), self.bench.dimensions, self.bench.wishes)
        with self.state.restored():
            outcome = wider.call(trial.but(fill="NaN"), Made(values, made.numbers))[0]
        return None if outcome.error is not None else Judged(trial, outcome=outcome, reference=self.bench.of(trial))

    def _erratic(self, judged: Judged, name: str) -> bool:
        """Whether the error changes when each input changes by up to 2^-5 of itself. A wrong formula has a similar error there."""
        trial, made = judged.trial, self.bench.make(judged.trial)
        first = errors_of(judged, name)
        if first is None or not carriers(first) >= _CARRIERS or self.late():
            return False
        generator = torch.Generator().manual_seed(3)
        moved = [(each.double() * (1 + (torch.rand(each.shape, generator=generator).double() - 0.5) / 16)).to(each.dtype)
                 if each.is_floating_point() else each for each in made.values]  # fmt: skip
        with self.state.restored():
            outcome = running.run(self.bench.candidate, self.bench.example, moved, made.numbers, self.bench.wishes_of(trial))
        exact = self.bench.exact_of(trial, type(made)(moved, made.numbers))
        second = errors_of(Judged(trial, outcome=outcome, reference=dataclasses.replace(self.bench.of(trial), exact=exact)), name)
        if outcome.error is not None or exact.error is not None or second is None:
            return False
        norms = float(first.norm() * second.norm())
        return norms > 0 and float((first * second).sum()) / norms < 0.5

    def _grows(self, judged: Judged, family: str = "") -> bool:
        """Whether the relative error grows with the length of a dimension along which the result adds up. `family`: instead of the trial's."""
        name = judged.fault.subject if judged.fault else "output"
        trial = judged.trial.but(family=family or judged.trial.family, layout="contiguous", laid=-1)  # equal rows have few independent errors
        costs = {each: cost for each in self.bench.dimensions.sizes if (cost := self.bench.dimensions.elements({each: 1024})) <= _PLENTY}
        for dimension in sorted(costs, key=lambda each: costs[each]):
            errors, ratio = [], 0.0
            for size in (16, 1024):
                taken = None if self.late() else self.bench.takes(trial.but(given=False, seed=trial.seed + 1, sizes=((dimension, size),)))
                if taken is None:
                    break
                if size == 16 and not adds(self.bench, taken, dimension, name):
                    break
                found = self.replay.fresh(taken).distances.get(name)
                errors.append(found.relative if found is not None else 0.0)
                ratio = found.ratio if found is not None else 0.0
            if len(errors) == 2 and ratio > 1 and errors[1] > _GROWS * errors[0]:
                return True
        return False
