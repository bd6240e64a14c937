"""Runs the trials of a candidate one after another within the budget, until one finds a fault."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable

from precheck.kernels import beyond_example, contents, number_kinds, plan, poles, protocol, reference_error, registration, triton_interpreter
from precheck.kernels.bench import MOST, Bench, compiled
from precheck.kernels.causes import Cause, Search
from precheck.kernels.clock import Budget, Clock, Costs
from precheck.kernels.own_derivative import leaves_out
from precheck.kernels.states import State
from precheck.kernels.trial_result import Fault, Judged, distances, stored_as, vacuous
from precheck.kernels.trials import Trial
from precheck.observe.listeners import Progress, doing

_READINGS = 16
"""Readings of an example's sizes of 1: which are a batch of one, and which are one for all."""


@dataclasses.dataclass(slots=True, eq=False)
class SessionResult:
    """The results of a session."""

    judged: Judged | None = None  # the trial that failed
    cause: Cause | None = None
    warnings: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # rule and message
    worst: dict[str, Judged] = dataclasses.field(default_factory=dict)  # for each subject, the trial with the largest error
    formats: dict[str, str] = dataclasses.field(default_factory=dict)  # of each subject
    trials: int = 0
    refused: dict[str, list[Trial]] = dataclasses.field(default_factory=dict)  # the candidate's reasons for refusing inputs, and where
    unchecked: int = 0  # inputs that the reference refuses and the candidate takes
    skipped: int = 0  # trials left out for lack of time
    beyond: int = 0  # trials left out since as many as were asked for had been made
    untried: list[str] = dataclasses.field(default_factory=list)  # kinds of trials of which all were left out
    looked: set[str] = dataclasses.field(default_factory=set)  # the other surroundings in which it was called
    unconfirmed: list[str] = dataclasses.field(default_factory=list)
    unjudged: str = ""  # why no trial could be made
    whole_left_out: bool = False  # whether the example was tried in smaller shapes only
    told_by: set[str] = dataclasses.field(default_factory=set)  # subjects for which zeros would have failed
    known: set[str] = dataclasses.field(default_factory=set)  # subjects for which some trial has a known reference value
    blank: set[str] = dataclasses.field(default_factory=set)  # subjects for which some trial has no known reference value


class Session:
    """The trials of one candidate on one example."""

    def __init__(self, bench: Bench, state: State, budget: Budget) -> None:
        self.bench, self.state, self.told = bench, state, SessionResult()
        self.most, self.clock, self.costs = budget.trials, Clock(budget.seconds), Costs()
        self.itself = Bench(bench.reference, bench.reference, bench.example, bench.dimensions, bench.wishes)
        self.itself.with_numbers = bench.with_numbers
        self.search = Search(bench, state)
        self.first = 0.0  # seconds of the first trial

    def late(self) -> bool:
        """Whether the budget is used up."""
        return self.told.trials >= self.most or self.clock.left() < 0

    def _left_out(self, count: int = 1, *, least: int = 0) -> bool:
        """Whether planned trials, that many, are left out since the budget is used up. `least`: so many are made whatever the time."""
        if not self.late() or self.told.trials < min(least, self.most):
            return False
        if self.told.trials >= self.most:
            self.told.beyond += count
        else:
            self.told.skipped += count
        return True

    def run(self) -> SessionResult:
        """Runs all stages, until one finds a fault."""
        stages: tuple[tuple[str, Callable[[], bool]], ...] = (
            ("in the example's shapes", lambda: self._trials(plan.near(self.bench))),
            ("from call to call", self._protocol),
            ("other layouts", lambda: self._trials(plan.laid(self.bench))),
            ("flags turned", self._turned),
            ("Inf and NaN", lambda: self._trials(plan.special(self.bench))),
            ("other sizes", lambda: self._trials(plan.sized(self.bench))),
            ("long sums", lambda: self._trials(plan.long(self.bench))),
            ("how it is registered", self._registered),
            ("sizes of 0", lambda: self._trials(plan.empty(self.bench))),
        )
        self.told.unjudged = triton_interpreter.unjudged(self.bench)
        for words, stage in stages:
            trials, skipped = self.told.trials, self.told.skipped + self.told.beyond
            with doing(words):
                if self.told.unjudged or stage():
                    break
            if self.told.trials == trials and self.told.skipped + self.told.beyond > skipped:
                self.told.untried.append(words)
        return self.told

    def _registered(self) -> bool:
        fault, warning = registration.checked(self.bench)
        if warning:
            self.told.warnings.append(("kernel-contract", warning))
        return self._failed(fault, "kernel-contract")

    def _turned(self) -> bool:
        if not self._left_out(bool(self.bench.example.turned())):
            self.told.warnings += beyond_example.turned_flags(self.bench, self.state)
            self.told.warnings += beyond_example.equal_sizes(self.bench, self.state)
        return False

    def as_given(self) -> None:
        """Runs the example with its own numbers only."""
        with doing("the example as it is"):
            self._trials([Trial(given=True, fill="")])

    def _trials(self, planned: Iterable[Trial]) -> bool:
        progress = Progress("trial")
        for trial in planned:
            judged = None  # a large trial's results are let go before those of the next one are made
            progress.op()
            if self._left_out(least=3):
                continue
            taken = self.bench.takes(trial) if self._affordable(trial) else None
            if taken is None:
                continue
            begun = self.clock.spent()
            judged = self.bench.judge(taken)
            if judged.refused and self._strange_signs(taken, least=2):  # it says so itself, however few they are
                judged = self.bench.judge(taken)
            self.costs.note(trial.sizes, self.clock.spent() - begun)
            self.first = self.first or self.clock.spent() - begun
            if self._noted(judged) and self._confirmed(judged):
                return True
        return False

    def _affordable(self, trial: Trial) -> bool:
        large = not trial.given and self.bench.dimensions.elements(dict(trial.sizes)) > MOST
        fits = not large and self.costs.fits(trial.sizes, self.clock.left())
        self.told.skipped += not fits
        return fits

    def _noted(self, judged: Judged) -> bool:
        """Records a trial, and returns whether it has a fault."""
        told = self.told
        told.trials += 1
        if judged.refused and not self._inner(judged.trial):
            told.refused.setdefault(judged.refused, []).append(judged.trial)
            if judged.trial.given and judged.trial.leaf < 0:
                judged.fault = Fault("refusal", "output", f"the candidate refuses the example: {judged.refused}")
        if (fault := judged.fault) and vacuous(judged, self.bench.dimensions.shapes) and not self.search.replay.unwritten(judged.trial, fault):
            told.refused.setdefault(fault.text, []).append(judged.trial)
            judged.fault = None
        if judged.noticed and judged.fault is None and judged.noticed[0] not in dict(told.warnings):
            told.warnings.append(judged.noticed)
        told.unchecked += judged.skipped == "unchecked"
        for name, found in judged.distances.items():
            before = told.worst.get(name)
            if before is None or found.ratio > before.distances[name].ratio:
                told.worst[name] = dataclasses.replace(judged, outcome=None, reference=None)
                told.formats[name] = stored_as(judged, name)
        self._power(judged)
        return judged.fault is not None

    def _power(self, judged: Judged) -> None:
        if judged.reference is None:
            return
        for name, floored in judged.reference.floors.items():
            if floored.unknown is not None and floored.unknown.numel():
                (self.told.blank if bool(floored.unknown.all()) else self.told.known).add(name)
            if name in self.told.told_by or floored.exact.is_complex() or floored.unknown is None:
                continue
            shows = floored.exact.abs() > floored.bound() if floored.exact.is_floating_point() else floored.exact != 0
            if bool((shows & ~floored.unknown).any()):
                self.told.told_by.add(name)

    def _confirmed(self, judged: Judged) -> bool:
        """Whether a fault is confirmed. A wrong value must be wrong in one of two other draws too, or depend on earlier calls. Otherwise it was
        chance.

        A fault that the reference itself has on the same inputs in the same memory is not counted.
        """
        assert judged.fault is not None
        if self.itself.judge(judged.trial).fault is not None:
            self.told.unconfirmed.append(f"{judged.fault.text}; of the reference the same is found")
            return False
        if self._unsure(judged):
            self.told.unconfirmed.append(f"{judged.fault.text}; float64 does not know it better")
            return False
        trial = judged.trial
        if self._inner(trial):
            always = judged.fault.kind in ("values", "lost") and self.bench.judge(trial.but(seed=trial.seed + 1000)).fault is not None
            if always and "kernel-edge" not in dict(self.told.warnings):
                where = f"{trial.sizes[0][0]} is 1 in the example, and {trial.sizes[0][1]} here, which the reference takes"
                self.told.warnings.append(("kernel-edge", f"{judged.fault.text}; {where}: if it is always 1, refuse other sizes"))
            return False
        if self._one_for_all(trial):
            self.told.unconfirmed.append(f"{judged.fault.text}; where some of the sizes of 1 stay it is right")
            return False
        if judged.fault.kind in ("values", "lost") and self._strange_signs(trial):
            self.told.warnings.append(("kernel-contract", f"{judged.fault.text}; only where inputs have signs that the example's have not"))
            return False
        if rare := number_kinds.rare(trial.family, trial.number):
            self.told.warnings.append(("kernel-contract", f"{judged.fault.text}; only where {rare}"))
            return False
        if judged.fault.backward and leaves_out(self.bench, judged):
            reason = "it is the derivative of the reference's values, and the reference's own gradient is not"
            if "kernel-gradient" not in dict(self.told.warnings):
                self.told.warnings.append(("kernel-gradient", f"{judged.fault.text}; {reason}"))
            return False
        if judged.fault.kind in ("values", "lost") and not trial.given:
            others = (trial.but(seed=trial.seed + 1000), trial.but(seed=trial.seed + 2000))
            if all(self.bench.judge(each).fault is None for each in others):
                with self.state.restored():
                    fresh = self.bench.judge(trial)
                if fresh.fault is not None:
                    self.told.unconfirmed.append(judged.fault.text)
                    return False
        self.told.judged, self.told.cause = judged, self.search.cause(judged)
        return True

    def _inner(self, trial: Trial) -> bool:
        """Whether a size of 1 that may be one for all is larger."""
        return any(name in self.bench.dimensions.inner for name, _ in trial.sizes)

    def _one_for_all(self, trial: Trial) -> bool:
        """Whether a fault of larger sizes of 1 is gone where only some of them are larger, the first among them. The others may be one for all."""
        large = [size for size in trial.sizes if size[0] in self.bench.dimensions.ones]
        fewer = [(large[0], *some) for count in range(len(large) - 1) for some in itertools.combinations(large[1:], count)]
        taken = (self.bench.takes(trial.but(sizes=sizes)) for sizes in fewer[:_READINGS])
        return any(each is not None and self.bench.judge(each).fault is None for each in taken)

    def _strange_signs(self, trial: Trial, least: int = contents.FEW) -> bool:
        """Whether inputs have signs that the example's have not, and the candidate is right without them, and takes the inputs. Few numbers of one
        sign may have it by chance or because they must, as widths and scales. From then on all trials keep it."""
        few = [leaf.tensor for leaf in self.bench.example.leaves if contents.one_sign(leaf.tensor, least)]
        if trial.given or self.bench.signs or not few:
            return False
        self.bench.keep_signs(True)
        judged = (self.bench.judge(trial.but(seed=trial.seed + more)) for more in (0, 1000, 2000))
        right = all(each.fault is None and not each.refused for each in judged)
        self.bench.keep_signs(right)
        return right

    def _unsure(self, judged: Judged) -> bool:
        """Whether the exact result is itself only accurate to a rounding of float64 there, or lies next to a pole, or at a jump."""
        if judged.fault is None or judged.outcome is None or judged.reference is None:
            return False
        with self.state.restored():
            doubted = False
            if judged.fault.kind == "values":
                doubted = not compiled(self.bench.candidate) and reference_error.doubted(self.bench, judged.trial, judged.reference)
                doubted |= reference_error.jumps_at_lost(self.bench, judged.trial, judged.reference)
            if not doubted and not poles.near(self.bench, judged):
                return False
        return all(each.ratio <= 1 for each in distances(judged.outcome, judged.reference).values())

    def _failed(self, fault: Fault | None, rule: str = "") -> bool:
        if fault is None:
            return False
        judged = Judged(Trial(seed=92), fault=fault)
        self.told.judged, self.told.cause = judged, Cause(rule) if rule else self.search.cause(judged)
        return True

    def _protocol(self) -> bool:
        self.told.warnings += protocol.noticed(self.bench)
        for sequence in (protocol.in_place, protocol.one_storage, protocol.interposed, protocol.renumbered, protocol.widened, protocol.twins):
            for judged in sequence(self.bench):
                if self._left_out():
                    return False
                self._noted(judged)
                if judged.fault is not None and self._stale(judged, sequence):
                    return True
        if self._failed(protocol.overwritten(self.bench)) or self._failed(protocol.nondeterministic(self.bench)):
            return True
        return self._elsewhere("with another number of threads", protocol.threaded) or self._elsewhere("on another stream", protocol.streamed)

    def _elsewhere(self, where: str, judge: Callable[[Bench], Judged | None]) -> bool:
        """Whether the candidate is wrong only there, where the reference is right."""
        judged = judge(self.bench)
        if judged is None:
            return False
        self.told.looked.add(where)
        if not self._noted(judged) or self.bench.judge(judged.trial).fault is not None:
            return False
        other = judge(self.itself)
        if other is not None and other.fault is not None:
            return False
        self.told.judged, self.told.cause = judged, Cause("kernel-nondeterminism", f"it is wrong {where} alone")
        return True

    def _stale(self, judged: Judged, sequence: Callable[[Bench], Iterable[Judged]]) -> bool:
        assert judged.fault is not None
        if judged.fault.kind in ("touched", "beyond") or self.bench.judge(judged.trial).fault is not None:
            return self._confirmed(judged)
        self.told.judged = judged
        if self.search.replay.by_chance(judged.trial):
            self.told.cause = Cause("kernel-nondeterminism", "repeated in memory of its own, the call is right at some times and wrong at others")
        elif not self.search.replay.sequence_again(sequence):
            self.told.cause = Cause("kernel-nondeterminism", "repeated in the same order, the same calls are right: what fails is left to chance")
        else:
            self.told.cause = Cause("kernel-stale", "in memory of its own the same call is right")
        return True
