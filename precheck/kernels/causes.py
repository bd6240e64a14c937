"""Finds the class of a fault: the change to a trial after which the candidate is right."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from precheck.analysis.chance import SPARED
from precheck.analysis.noise_floor.cut_off import CUT_OFF
from precheck.kernels import contents, hidden_elements, lower_constants, lower_intermediates, masks, number_kinds, other_constants, thresholds
from precheck.kernels.bench import QUICK, Bench
from precheck.kernels.errors import blunt, constant, differ, error_of, explained, inputs_of, sums
from precheck.kernels.replay import AGAIN, Replay
from precheck.kernels.rounding_errors import PLENTY, RoundingErrors
from precheck.kernels.running import SCALED
from precheck.kernels.states import State
from precheck.kernels.trial_result import AT_ONCE, Judged
from precheck.kernels.trials import Made, Trial
from precheck.kernels.unmasked import masking
from precheck.kernels.wrong_rows import WrongRows

ROUND = (64, 128, 32, 16, 256)
"""Sizes that are multiples of common tiles."""
_SEEDS = range(17, 23)
"""Draws in which a size has to be right. A fault that few numbers show is missed in one of them: a key that is left out, where others weigh more."""
PATIENCE = 2**29
"""The work of the search for a class, in elements that the reference computes (see `work`): some fifteen seconds."""
LARGE = 2**26
"""The most work of one verdict in larger sizes than the failing ones: some two seconds."""
_SAME_NUMBERS = {"expanded": "equal", "transposed": "random", "columns of a wider tensor": "random"}
"""Incoming gradients with other strides, and those with the same numbers that are contiguous."""
_LEFT = "an intermediate leaves the range of its format"
_FULL = 0.5
"""The error, as a share of the result, from which it has no room to grow."""
_LONGER = 16.0
"""Times the example's size from which an error of rounding that shows there alone is one that grows."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """The rule that a fault belongs to, and the reason in words."""

    rule: str
    why: str = ""
    beyond: bool = False  # whether an intermediate leaves the range of its format, which need not be a low one


class Search:
    """Searches for the class of one fault by trials that differ from the failing one in one respect."""

    def __init__(self, bench: Bench, state: State) -> None:
        self.bench, self.state, self.begun, self.replay = bench, state, 0, Replay(bench, state)
        self.rounding, self.rows = RoundingErrors(self.replay, self.late), WrongRows(bench, self.fresh)
        self.perhaps: Cause | None = None  # the class if no other change explains the fault

    def late(self) -> bool:
        """Whether the work of the search is done."""
        return self.replay.work.done - self.begun > PATIENCE

    def passes(self, trial: Trial) -> bool:
        """Whether the candidate is right in that trial, with its state as before its first call."""
        judged = self.fresh(trial)
        return judged is not None and judged.fault is None and not judged.refused and not judged.skipped

    def fresh(self, trial: Trial) -> Judged | None:
        """That trial, judged with the candidate's state as before its first call. None if the reference refuses its sizes."""
        taken = self.bench.takes(trial)
        return None if taken is None else self.replay.fresh(taken)

    def cause(self, judged: Judged) -> Cause:
        """The class of a fault."""
        judged = self._filled(judged)
        assert judged.fault is not None
        if judged.fault.kind in AT_ONCE:
            return (self._unwritten(judged) if judged.fault.kind == "unlike" else None) or Cause(AT_ONCE[judged.fault.kind])
        if judged.fault.distance is not None and judged.fault.distance.block == CUT_OFF:
            return Cause("kernel-rounding", "each number is the one below in size, and not the nearest")
        if wrapped := lower_intermediates.wraps(judged):
            return Cause("kernel-accumulation" if sums(self.bench, judged.trial) else "kernel-rounding", wrapped)
        self.bench.ladder, before, self.begun, self.perhaps = QUICK, self.bench.ladder, self.replay.work.done, None
        try:
            return self._found(judged)
        finally:
            self.bench.ladder = before

    def _filled(self, judged: Judged) -> Judged:
        """The trial with NaN in new memory, if an output is wrong there: an output that nobody wrote may have been right by chance."""
        if judged.fault is None or not judged.fault.backward or judged.trial.fill or not self.bench.fills:
            return judged
        other = self.replay.fresh(judged.trial.but(fill="NaN"))
        return other if other.fault is not None and not other.fault.backward else judged

    def _found(self, judged: Judged) -> Cause:
        ways = (self._uncleared, self._remembered, self._laid, self._sized, self._cut, self._unwritten, self._asked, self._valued)
        return next((cause for way in ways if (cause := way(judged)) is not None), None) or self._plain(judged)

    def _remembered(self, judged: Judged) -> Cause | None:
        trial = judged.trial.but(fill=judged.trial.fill or "NaN")  # so that unwritten memory is the same each time, and not random
        history = self.bench.history[: self.bench.history.index(judged.trial)] if judged.trial in self.bench.history else []
        fresh = self.replay.fresh(trial)
        if fresh.fault is None and not fresh.skipped:
            if self.replay.by_chance(trial):
                return Cause("kernel-nondeterminism", "repeated from the same state, the same call is right at some times and wrong at others")
            if history and not self.replay.comes_again(trial, history):
                return Cause("kernel-nondeterminism", "repeated in the same order, the same calls are right: what fails is left to chance")
            return Cause("kernel-stale", "on the same inputs it is right where nothing was run before")
        for _ in range(AGAIN):
            self.replay.work.note(trial)
            again = self.bench.judge(trial)
            if again.fault is None and fresh.fault is not None and not again.skipped:
                return Cause("kernel-nondeterminism", "the same call is right when it is repeated")
            if differ(fresh, again) and not explained(fresh, again):
                return Cause("kernel-nondeterminism", "calls on the same inputs give different results")
            if self.late():
                break
        return None

    def _laid(self, judged: Judged) -> Cause | None:
        trial = judged.trial
        if trial.layout != "contiguous" and self._right_if_contiguous(trial):
            return Cause("kernel-stride", f"with contiguous inputs it is right; {inputs_of(self.bench, trial)} {trial.layout} in memory")
        if trial.upstream in _SAME_NUMBERS and self.passes(trial.but(upstream=_SAME_NUMBERS[trial.upstream])):
            return Cause("kernel-stride", f"it is right where the incoming gradient is contiguous; here that is {trial.upstream}")
        return None

    def _asked(self, judged: Judged) -> Cause | None:
        """Whether it matters which gradients are asked for, or given."""
        trial = judged.trial
        if trial.upstream == "partial" and self.passes(trial.but(upstream="random")):
            return Cause("kernel-gradient", "it is right where all outputs have a gradient; here one alone has")
        if trial.upstream in SCALED and self.passes(trial.but(upstream="random")):
            return Cause("kernel-rounding", f"{_LEFT}; here the incoming gradient is {trial.upstream}", beyond=True)
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
        longer = max((size / max(self.bench.dimensions.old(name), 1) for name, size in trial.sizes), default=1)
        if judged.fault is not None and judged.fault.kind in ("values", "lost") and self.rounding.explains(judged):
            cancels = longer >= _LONGER and self.rounding.cancels(trial, judged.fault.subject)
            if (judged.fault.kind == "lost" and longer > 1) or (longer >= _LONGER and not cancels):
                return Cause("kernel-accumulation", f"the error grows with the size, and is too large where {words}")
            if self.rounding.grows(judged):
                return Cause("kernel-accumulation", f"the error grows with the number of terms, and is too large where {words}")
            return Cause("kernel-rounding", f"an error of rounding shows where {words}")
        if judged.fault is not None and judged.fault.kind == "values" and self._cheap(trial) and lower_intermediates.explains(self.bench, judged):
            return Cause("kernel-rounding", f"intermediates in a lower format explain it; it shows where {words}")
        if judged.fault is not None and judged.fault.kind == "values" and not blunt(judged) and self.rounding.grows(judged, steady=True):
            return Cause("kernel-accumulation", f"the error grows with the number of terms, and is too large where {words}")
        if judged.fault is not None and judged.fault.kind == "values" and (other := other_constants.explains(self.bench, judged)):
            return Cause("kernel-contract", f"{other} gives the same; it shows where {words}")
        edge, chance = Cause("kernel-edge", f"in the example's sizes it is right; here {words}"), self.rows.chance(judged)
        if not self._right_in_other_draws(trial, chance):
            return None
        if chance ** (1 + len(_SEEDS)) <= SPARED or self.rows.same(judged) or (not self._draws_whole() and self.rows.right_in_more(judged)):
            return edge
        self.perhaps = edge if self._draws_whole() else None  # lengths that are drawn anew move the rows
        return None

    def _right_in_other_draws(self, trial: Trial, chance: float) -> bool:
        """Whether it is right in the example's sizes with any numbers: those of one draw may be what helps, most of all whole numbers and masks."""
        return not (self._draws_whole() or chance > SPARED) or all(self.passes(trial.but(sizes=(), seed=seed)) for seed in _SEEDS)

    def _draws_whole(self) -> bool:
        """Whether whole numbers or flags are drawn anew in each trial."""
        return any(leaf.tensor.dim() and not leaf.tensor.is_floating_point() for leaf in self.bench.example.leaves)

    def _size(self, name: str) -> str:
        return f"the size {self.bench.dimensions.old(name)} became" if name.startswith("=") else f"{name} is"

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
            own = leaf.tensor.cpu()
            if contents.offsets(own, self.bench.dimensions.sizes.values()) and not torch.equal(made.values[place], own):
                values = [own if other == place else each for other, each in enumerate(made.values)]
                if self.bench.passes_on(judged.trial, Made(values, made.numbers)):
                    return Cause("kernel-edge", f"with the example's offsets in inputs{leaf.path} it is right; here sequences end elsewhere")
        return None

    def _valued(self, judged: Judged) -> Cause | None:
        trial, fault = judged.trial, judged.fault
        assert fault is not None
        what = number_kinds.WORDS[trial.family]
        at = thresholds.explains(self.bench, judged)
        if at and self.passes(trial.but(family="plain")):
            return Cause("kernel-contract", f"it is on the other side {at}")
        if trial.family in number_kinds.SPECIAL:
            masked = fault.kind == "leaked" or (trial.family != "NaN" and fault.kind == "lost" and masks.asks(self.bench, judged, *masks.HIDING))
            return Cause("kernel-mask" if masked else "kernel-contract")
        if trial.family == "plain" or not self.passes(trial.but(family="plain")):
            return None
        if self.rounding.explains(judged):
            full = fault.kind == "lost" or (trial.family in number_kinds.LARGE and error_of(judged, fault.subject) > _FULL)
            grows = self.rounding.grows(judged, "plain" if full else "")  # what is not finite, or as large as the result, cannot grow
            text, beyond = f"with plain numbers it is right; here there are {what}", fault.kind == "lost" and not grows
            return Cause("kernel-accumulation" if grows else "kernel-rounding", f"{_LEFT}; {text}" if beyond else text, beyond)
        if trial.family in number_kinds.LARGE and self.rounding.grows(judged, "plain"):
            return Cause("kernel-accumulation", f"with plain numbers the error grows with the number of terms; here there are {what}")
        if fault.kind == "lost" and trial.family in number_kinds.LARGE:
            return Cause("kernel-rounding", f"{_LEFT}; with plain numbers it is right, here there are {what}", beyond=True)
        if fault.kind == "values" and not blunt(judged) and self.rounding.grows(judged):
            return Cause("kernel-accumulation", f"the error grows with the number of terms; with plain numbers it is right, here there are {what}")
        lowered = "" if trial.family == "scaled" else lower_intermediates.reason(self.bench, judged)  # a lower range tells nothing of a constant
        if lowered:
            return Cause("kernel-rounding", f"{lowered}; with plain numbers it is right, here there are {what}")
        if masks.explains(self.bench, judged) or masking(self.bench, judged):
            return Cause("kernel-mask", f"with plain numbers it is right; here there are {what}")
        for size in self._round(trial.family):
            return Cause("kernel-edge", f"in sizes that fit tiles of {size} it is right; here there are {what}")
        rule = "kernel-gradient" if fault.backward and judged.backward else "kernel-contract"
        other = other_constants.explains(self.bench, judged) if fault.kind == "values" and rule == "kernel-contract" else ""
        return Cause(rule, f"{other + ' gives the same; ' * bool(other)}with plain numbers it is right; here there are {what}")

    def _plain(self, judged: Judged) -> Cause:
        fault = judged.fault
        assert fault is not None
        if fault.kind == "form":
            return Cause("kernel-contract")
        if fault.kind == "missing":
            return Cause("kernel-gradient")
        if constant(self.bench, judged):
            return Cause("kernel-constant", "it gives the same whatever the inputs hold")
        if fault.kind in ("values", "lost") and self.rounding.explains(judged):
            return Cause("kernel-accumulation" if self.rounding.grows(judged) else "kernel-rounding")
        if lowered := lower_intermediates.reason(self.bench, judged):
            return Cause("kernel-rounding", lowered)
        ways = () if fault.backward else (masks, hidden_elements)
        if masked := next((words for each in ways if (words := each.explains(self.bench, judged))), ""):
            return Cause("kernel-mask", f"{masked} explains it")
        if mask := masking(self.bench, judged):
            return Cause("kernel-mask", f"it is right {mask}")
        if fault.kind == "values" and not blunt(judged) and self.rounding.grows(judged):
            return Cause("kernel-accumulation", "the error grows with the number of terms")
        for size in self._round():
            return Cause("kernel-edge", f"in sizes that fit tiles of {size} it is right")
        if fault.kind == "values" and lower_constants.explain(self.bench, judged):
            return Cause("kernel-rounding", "its error is as large as that of tables in a lower format, which are made of no input")
        if self.perhaps is not None:
            return self.perhaps
        if fault.backward:
            return Cause("kernel-gradient", "its forward pass is right")
        return Cause("kernel-contract", "" if self.late() else "no size, stride, mask, format or earlier call was found that explains it")

    def _round(self, family: str = "plain") -> Iterator[int]:
        """Sizes of tiles in which it is right with that kind of numbers, and wrong beside them.

        A tile that is filled up with zeros shows that way: its filling is the largest number of a row where all others are below zero, and nothing is
        filled up where the row fits.
        """
        names = list(self.bench.dimensions.sizes)
        for size in ROUND:
            if all(self.bench.dimensions.sizes[name] % size == 0 for name in names):
                continue
            if self.bench.dimensions.elements(dict.fromkeys(names, size)) > PLENTY:
                continue
            trial = Trial(seed=17, family=family, sizes=tuple((name, size) for name in names))
            if not names or self.late() or not self._cheap(trial):
                continue
            if all(self.passes(trial.but(seed=seed)) for seed in _SEEDS) and self._fails_beside(trial):
                yield size

    def _fails_beside(self, trial: Trial) -> bool:
        """Whether it is wrong in other equal sizes, so that equal sizes are not what helps. Sizes that one of both refuses say nothing."""
        for less in (3, 2, 4, 6):
            judged = self.fresh(trial.but(sizes=tuple((name, size - less) for name, size in trial.sizes)))
            if judged is not None and not judged.refused and not judged.skipped:
                return judged.fault is not None
        return False

    def _cheap(self, trial: Trial) -> bool:
        """Whether the reference takes such sizes, and a verdict at them is no more work than one trial of the search may be."""
        taken = self.bench.takes(trial)
        return taken is not None and self.replay.work.of(taken) <= LARGE
