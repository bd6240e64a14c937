"""Runs a candidate and its reference on the inputs of a trial, and judges the results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from precheck import formats
from precheck.analysis.noise_floor import kernel_floor as floor
from precheck.kernels import indices, memory, nonfinite, number_kinds, reference_error, running, tied_numbers, trials
from precheck.kernels.allocations import Allocated
from precheck.kernels.clock import threads
from precheck.kernels.dimensions import Dimensions
from precheck.kernels.examples import Example
from precheck.kernels.noise import base_roundoff
from precheck.kernels.running import Outcome, Wishes
from precheck.kernels.trial_result import Fault, Judged, Reference, aliased, distances, form, of_nothing, surplus, values_of
from precheck.kernels.trials import Made, Trial
from precheck.observe.exact import Named, widened

LADDER = (0, 2, 4, 18)
"""Noise runs that are added in steps, while the candidate's error is larger than in all runs so far."""
QUICK = (0, 2, 4)
"""The same while the class of a fault is searched. The verdict is known then."""
MOST, LARGE = 2**23, 2**20
"""The most elements of one tensor; from how many on no results of an earlier trial are kept."""
CLEAN = (ValueError, TypeError, NotImplementedError)
"""Errors with a text that a kernel may raise to refuse its inputs."""


class Bench:
    """A candidate, its reference and their example. Runs and judges trials."""

    def __init__(self, candidate: Callable[..., Any], reference: Callable[..., Any], example: Example, dimensions: Dimensions,
                 wishes: Wishes) -> None:  # fmt: skip
        self.candidate, self.reference, self.example, self.dimensions = candidate, reference, example, dimensions
        self.wishes = dataclasses.replace(wishes, indices=indices.asked(reference, example))
        self.linked: dict[tuple[tuple[str, int], ...], Trial | None] = {}
        self.with_numbers: set[tuple[tuple[str, int], ...]] = set()
        self.steps: dict[str, int] = {}
        self.references: dict[Trial, Reference] = {}
        self.history: list[Trial] = []  # what was judged, in order
        self.ladder: tuple[int, ...] = LADDER
        self.exact_in, self.signs = "float64", False
        self.fills, self.threads = not compiled(candidate), torch.get_num_threads()
        self.called_with = 0  # threads of a call of the candidate; 0: as many as there are

    def make(self, trial: Trial) -> Made:
        """The inputs of a trial."""
        return trials.trial_inputs(self.example, self.dimensions, trial, linked=trial.sizes in self.with_numbers, signs=self.signs)

    def keep_signs(self, keep: bool) -> None:
        """Whether numbers of one sign keep it in all trials from now on, however few the example has."""
        self.signs = keep
        self.references.clear()

    def wishes_of(self, trial: Trial) -> Wishes:
        """The settings for the runs of a trial."""
        special = trial.family in number_kinds.SPECIAL
        gradients = self.wishes.gradients and not special
        rows = tuple(place for place in range(len(self.example.leaves)) if self._expanded(trial, place))
        return dataclasses.replace(self.wishes, gradients=gradients, upstream=trial.upstream, only=trial.only, seed=trial.seed, expanded=rows)

    def _expanded(self, trial: Trial, place: int) -> bool:
        """Whether that input is one row expanded to all. Its gradient is then the sum over the rows, as in autograd."""
        shape = self.dimensions.shape(place, dict(trial.sizes))
        return trial.layout == "expanded" and trial.laid in (-1, place) and len(shape) >= 2 and shape[0] > 1

    def takes(self, trial: Trial) -> Trial | None:
        """The trial with sizes that the reference accepts, if need be together with other sizes. None if it accepts none."""
        if not trial.sizes or trial.given:
            return trial
        if self.dimensions.elements(dict(trial.sizes)) > MOST:
            return None
        if trial.sizes not in self.linked:
            self.linked[trial.sizes] = self._accepted(trial)
        found = self.linked[trial.sizes]
        return None if found is None else trial.but(sizes=found.sizes)

    def _accepted(self, trial: Trial) -> Trial | None:
        found = self._as_asked(trial)
        if found is not None or len(trial.sizes) != 1:
            return found
        name, size = trial.sizes[0]
        step = self._step(name)
        return self._as_asked(trial.but(sizes=((name, size + -size % step),))) if size and step > 1 and size % step else None

    def _step(self, name: str) -> int:
        """The number of which a dimension's sizes have to be multiples, as for groups or heads. It is the least divisor of the example's size that
        may be added to it."""
        if name not in self.steps:
            self.steps[name], old = 1, self.dimensions.old(name)
            taken = (each for each in range(2, old + 1)
                     if old % each == 0 and self._as_asked(Trial(seed=13, sizes=((name, old + each),))) is not None)  # fmt: skip
            self.steps[name] = next(taken, 1)
        return self.steps[name]

    def _as_asked(self, trial: Trial) -> Trial | None:
        """The trial as the reference accepts it: with these sizes, or with other sizes that are multiples of them."""
        probe = trial.but(family="plain", layout="contiguous", upstream="random", only=None, seed=trial.seed + 77)
        wishes = dataclasses.replace(self.wishes, gradients=False)
        wider = self.dimensions.multiples(*trial.sizes[0]) if len(trial.sizes) == 1 else None
        for sizes in (trial.sizes, tuple(wider.items()) if wider else None):
            if sizes is None or self.dimensions.elements(dict(sizes)) > MOST:
                continue
            for linked in (False, True):
                made = trials.trial_inputs(self.example, self.dimensions, probe.but(sizes=sizes), linked=linked)
                if linked and not made.numbers.keys() & self.example.numbers():
                    continue
                if running.run(self.reference, self.example, made.values, made.numbers, wishes).error is None:
                    if linked:
                        self.with_numbers.add(sizes)
                    return trial.but(sizes=sizes)
        return None

    def call(self, trial: Trial, made: Made, *, buffers: Sequence[memory.Buffer] | None = None) -> tuple[Outcome, list[memory.Buffer]]:
        """Runs the candidate on the inputs of a trial."""
        held = list(buffers) if buffers is not None else trials.buffers(self.example, made.values, trial)
        with threads(self.called_with or torch.get_num_threads()), Allocated(trial.fill) if self.fills else nullcontext() as made_in:
            outcome = running.run(self.candidate, self.example, [each.tensor for each in held], made.numbers, self.wishes_of(trial), keep=True)
        outcome.beyond = "" if made_in is None else made_in.beyond()
        return outcome, held

    def judge(self, trial: Trial, *, buffers: Sequence[memory.Buffer] | None = None) -> Judged:
        """Judges one trial. The candidate runs first, so that it cannot find a result of the reference in memory."""
        judged = Judged(trial)
        self.history.append(trial)
        made = self.make(trial)
        judged.outcome, held = self.call(trial, made, buffers=buffers)
        judged.reference = self.of(trial, made)
        self._decide(judged, held)
        return judged

    def of(self, trial: Trial, made: Made | None = None) -> Reference:
        """The results of the reference on a trial, in its own format and exact."""
        key = trial.but(layout="contiguous", laid=-1, fill="") if trial.layout != "expanded" else trial
        if key not in self.references:
            if len(self.references) > 8 or self.dimensions.elements(dict(trial.sizes)) > LARGE:
                self.references.clear()
            made = made or self.make(trial)
            native = running.run(self.reference, self.example, made.values, made.numbers, self.wishes_of(trial))
            self.references[key] = Reference(native, native if native.error else self.exact_or_wider(trial, made, native))
        return self.references[key]

    def exact_of(self, trial: Trial, made: Made) -> Outcome:
        """The result of the reference in float64 on other inputs."""
        return running.run(self.reference, self.example, made.values, made.numbers, self.wishes_of(trial), kind="exact")

    def under(self, mode: AbstractContextManager[Any], trial: Trial, *, gradients: bool = False, made: Made | None = None) -> Outcome:
        """The result of the reference in float64, under a mode that changes some of its ops. `made`: inputs that are not the trial's own."""
        made, wishes = made or self.make(trial), self.wishes_of(trial)
        wishes = dataclasses.replace(wishes, gradients=wishes.gradients and gradients)
        with mode:
            return running.run(self.reference, self.example, [widened(each) for each in made.values], made.numbers, wishes, kind="noise")

    def ops(self, trial: Trial) -> set[str]:
        """The names of the reference's ops."""
        self.under(mode := Named(), trial)
        return mode.names

    def passes_on(self, trial: Trial, made: Made, subject: str = "") -> bool:
        """Whether the candidate is right on other inputs of the same shapes, or that result of it is."""
        judged = Judged(trial)
        judged.outcome, held = self.call(trial, made)
        native = running.run(self.reference, self.example, made.values, made.numbers, self.wishes_of(trial))
        judged.reference = Reference(native, native if native.error else self.exact_or_wider(trial, made, native), made=made)
        self._decide(judged, held)
        alone = judged.distances.get(subject)
        return (judged.fault is None or (alone is not None and alone.ratio <= 1)) and not judged.refused and not judged.skipped

    def exact_or_wider(self, trial: Trial, made: Made, native: Outcome) -> Outcome:
        exact = running.run(self.reference, self.example, made.values, made.numbers, self.wishes_of(trial), kind="exact")
        if exact.error is None and exact.structure == native.structure:
            return exact
        wide = [each.float() if each.is_floating_point() else each for each in made.values]
        single = running.run(self.reference, self.example, wide, made.numbers, dataclasses.replace(self.wishes_of(trial), precision=None))
        self.exact_in = "float32" if single.error is None else "the reference's own format"
        return single if single.error is None else native

    def _decide(self, judged: Judged, held: Sequence[memory.Buffer]) -> None:
        assert judged.outcome is not None
        assert judged.reference is not None
        outcome, native = judged.outcome, judged.reference.native
        judged.fault = self._touched(outcome, native, held)
        if judged.fault is not None:
            return
        if native.error is not None:
            judged.skipped = "unchecked" if outcome.error is None else "refused by both"
        elif outcome.error is not None:
            self._raised(judged, outcome)
        elif judged.trial.family in number_kinds.SPECIAL:
            nonfinite.judge(self, judged, outcome, judged.reference)
            if judged.fault is None and judged.trial.family == "NaN" and nonfinite.leaves_out(self, judged.trial):
                self._measure(judged, outcome, judged.reference)
                nonfinite.notice(judged)
        else:
            judged.fault = form(outcome, native)
            if judged.fault is None:
                self._measure(judged, outcome, judged.reference)
            if judged.fault is None or judged.fault.backward:  # an output that is wrong says more than a gradient that should not be there
                judged.fault = surplus(outcome, native) or judged.fault or aliased(judged, outcome, native)

    def _touched(self, outcome: Outcome, native: Outcome, held: Sequence[memory.Buffer]) -> Fault | None:
        for leaf, buffer in zip(self.example.leaves, held, strict=True):
            what = buffer.touched()
            if what:
                return Fault("touched", f"inputs{leaf.path}", f"inputs{leaf.path}: the candidate writes into {what}")
        if outcome.beyond:
            return Fault("beyond", "output", f"the candidate writes behind the end of {outcome.beyond} that it made")
        for name in outcome.rewritten:
            return Fault("touched", name, f"{name}: the candidate's backward pass writes into it")
        for place in sorted(outcome.turned - native.turned):
            name = f"inputs{self.example.leaves[place].path}"
            return Fault("touched", name, f"{name}: behind the call it has another shape, or other strides")
        return None

    def _raised(self, judged: Judged, outcome: Outcome) -> None:
        error = outcome.error
        text = f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else '(no text)'}"
        if isinstance(error, CLEAN) and str(error) and outcome.where == "forward":
            judged.refused = text
            return
        if judged.trial.sizes and memory.ran_out(error):  # these sizes are not the user's
            judged.skipped = "the candidate ran out of memory"
            return
        subject = "output" if outcome.where == "forward" else "gradient"
        judged.fault = Fault("crash", subject, f"the candidate raises {text} in its {outcome.where} pass, where the reference gives a result")

    def _measure(self, judged: Judged, outcome: Outcome, reference: Reference) -> None:
        for more in self.ladder:
            self._noise(judged.trial, reference, more)
            if reference.ambiguous:
                judged.skipped = "which of two writes to one place comes last decides"
                return
            judged.distances = distances(outcome, reference)
            if judged.open and reference.runs >= sum(QUICK) and not reference.sampled and reference_error.may_tell(self, judged, reference):
                reference.sampled = True
                reference_error.sampled(self, judged.trial, reference)
                judged.distances = distances(outcome, reference)
            if not judged.open or (reference.runs >= sum(QUICK) and judged.everywhere):
                break
        found = values_of(judged, outcome, reference) or of_nothing(judged, outcome, reference)
        found = found or nonfinite.other_infinity(self, judged.trial, outcome, reference)
        found = found or tied_numbers.places(self, judged, outcome)
        judged.fault = found or tied_numbers.gradients(self, judged, outcome, reference)

    def _terms(self, trial: Trial, name: str, exact: Outcome, gradient: torch.Tensor) -> tuple[Any, Any]:
        """The size of the terms that a gradient is the sum of.

        A relative change of an input changes the loss by as much as the outputs weigh. So a term times the input is as large as an output times its
        incoming gradient. It is computed by row where rows of both correspond.
        """
        leaf = next((place for place, each in enumerate(self.example.leaves) if name == f"gradient of inputs{each.path}"), None)
        if leaf is None or not gradient.is_floating_point():
            return None, None
        value = self.make(trial).values[leaf].double()
        value = value[:1] if leaf in self.wishes_of(trial).expanded else value
        weights = [(value_of.double() * given.double()).abs().nan_to_num(posinf=0.0)
                   for output, given in exact.passed.items() if (value_of := exact.values[output]) is not None]  # fmt: skip
        return floor.terms(value, weights) if weights and value.shape == gradient.shape else (None, None)

    def noisy(self, trial: Trial, made: Made, seed: int) -> tuple[Outcome, bool]:
        """A noise run of the reference, and whether its result depends on the order of two writes."""
        dtypes = [each.dtype for each in made.values if each.is_floating_point()]
        fine = max((base_roundoff(each) for each in dtypes), default=2.0**-24)
        stored = max((formats.of_dtype(each).unit_roundoff for each in dtypes), default=fine)
        return running.noise(self.reference, self.example, made.values, made.numbers, self.wishes_of(trial), seed, fine, stored)

    def _noise(self, trial: Trial, reference: Reference, more: int) -> None:
        """Adds noise runs to the floors of a reference, which start with the reference's own result."""
        if not reference.floors:
            for name, native in reference.native.values.items():
                exact = reference.exact.values.get(name)
                if native is not None and exact is not None:
                    reference.floors[name] = floor.combined(exact, native.dtype, [native])
                    reference.floors[name].terms, reference.floors[name].sums = self._terms(trial, name, reference.exact, exact)
        if reference.runs and not more:
            return
        made = reference.made or self.make(trial)
        for _ in range(more if reference.runs < sum(LADDER) else 0):
            reference.runs += 1
            outcome, ambiguous = self.noisy(trial, made, reference.runs)
            reference.ambiguous |= ambiguous
            for name, floored in reference.floors.items():
                value = outcome.values.get(name)
                if outcome.error is None and value is not None and value.shape == floored.exact.shape:
                    floored.add(value)


def compiled(function: Any) -> bool:
    """Whether torch.compile made it. A dispatch mode would run the original function."""
    return hasattr(function, "_torchdynamo_orig_callable") or type(function).__name__ == "OptimizedModule"
