"""The verb `measure`: runs a model under a precision, compares it with float32 in the same process, and returns a report.

1. Run the model under the precision, and record its decisions (choices, random draws).
2. Run it in float32 with the same decisions: the reference.
3. Run float32 again with random errors of the size of correct rounding: a noise run. Its distance from the reference is the noise floor.

A tensor within a few noise floors of the reference is healthy. Most models end here; other tensors get a closer look (`shared_runs/closer_look.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from precheck import arguments, interpreter, interrupts
from precheck.analysis.decisions import flips
from precheck.analysis.noise_floor import boundaries, drift
from precheck.analysis.noise_floor.noise_sites import noise_for
from precheck.findings import Finding, Report
from precheck.formats import FP32
from precheck.judge import allowances
from precheck.judge.compared_runs import located, report_on
from precheck.judge.conclusion import fails_early
from precheck.observe.decisions.log import DecisionLog
from precheck.observe.decisions.op_sequence import alike
from precheck.observe.decisions.selections import Selection
from precheck.observe.job import EXAMPLE, Depth, InputError, Job, check_arguments, check_inputs
from precheck.observe.listeners import doing, failed
from precheck.observe.models.adapters import received
from precheck.observe.models.functions import Called
from precheck.observe.recording.surveys import found, run_beside
from precheck.observe.records import Trace
from precheck.observe.run import run
from precheck.observe.setting import Setting, low, reference
from precheck.precisions import Precision, resolve
from precheck.recipes.survey import Survey, by_layer
from precheck.rules.coarse_recipe.rule import coarse
from precheck.rules.decision_flip.rule import flipped
from precheck.rules.local_drift.rule import by_selections
from precheck.shared_runs.closer_look import FIRST_LOOK, SECOND_LOOK, THIRD_LOOK, CloserLook, is_early, settled, suspicious
from precheck.shared_runs.evidence import Evidence, added_up, concluded, depth_of, diagnose, gathered, record_depth, record_nan
from precheck.shared_runs.other_references import OtherReferences
from precheck.torch_internals import no_class_code
from precheck.words import described


@arguments.explained
@interrupts.held()
@interpreter.spared
def measure(
    model: torch.nn.Module | Callable[..., Any],
    inputs: Any,
    *,
    precision: str | Precision = "bf16-mixed",
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = None,
    steps: int = 1,
    seed: int = 0,
    depth: Depth = "ops",
    allow: Mapping[str, str] | None = None,
) -> Report:
    """Runs `model` under `precision` and judges it against a float32 run of the same process.

    Args:
        model: A module, or a function of tensors, with the modules that its code names. A LightningModule without a `loss` is measured by its
            training_step. What DDP or FSDP2 wrap is measured as a copy, for which every rank has to call `measure`.
        inputs: What the model is called with. A tensor is one argument, a tuple positional arguments, a dict keyword arguments. Any shapes.
        precision: A name such as "bf16-mixed", "bf16-true" or "16-mixed", one of its aliases, or a `precheck.Precision`.
        loss: Takes what the model returns, gives a scalar tensor. Without it only the forward pass runs.
        optimizer: Takes a list of parameters and makes an optimizer, as in `lambda params: torch.optim.AdamW(params, lr=1e-3)`. Needs `loss`.
        steps: How many training steps are taken, from 1. More than 1 needs `optimizer`.
        seed: The seed of torch's random numbers, which is set before each run.
        depth: "ops" compares every op with float32, and what your functions return. "boundaries" compares modules, gradients and
            weights, and ops only where these are wrong: it costs less, and misses what a network dilutes.
        allow: Rules whose errors become notes, each with your reason: `{"lost-update": "one step only"}`.

    Returns:
        Findings, the worst first, and every tensor that was compared. Errors are relative to a tensor's Euclidean norm; r is the error
        divided by the error that correct rounding explains. The model, its gradients, its mode, modules that the loss uses, the random state
        and torch's global settings are bit for bit as they were.

    Raises:
        PrecisionError: There is no such precision, or the name means two.
        InputError: An argument cannot be measured; the message says what is accepted.
        Exception: Whatever the model itself raises.
    """
    job, chosen = job_of(model, inputs, loss=loss, optimizer=optimizer, steps=steps, seed=seed), resolve(precision)
    allowed = allowances.checked(allow)
    report = Measurement(job, chosen, depth=depth_of(depth)).report()
    record_depth(report, depth, chosen)
    allowances.apply(report, allowed)
    if report.errors and depth == "boundaries":
        diagnose(job, chosen, report)
    return report


def job_of(model: Any, inputs: Any, *, loss: Any = None, optimizer: Any = None, steps: int = 1, seed: int = 0) -> Job:
    """Validates the arguments of `measure`, and returns them as a Job."""
    check_arguments(model, inputs, loss, steps, seed)
    model = model if isinstance(model, torch.nn.Module) else Called(model)
    lazy = next((name for name, parameter in model.named_parameters() if torch.nn.parameter.is_lazy(parameter)), None)
    if lazy is not None:
        raise InputError(f"{lazy} has no shape yet; call the model once on its inputs, which gives its lazy modules their weights")
    with no_class_code():  # a parameter's class may refuse questions, as hypll's does
        inferred = next((name for name, parameter in model.named_parameters() if parameter.is_inference()), None)
    if inferred is not None:
        why = "which nothing can be put under; make the model outside of it, or in torch.no_grad()"
        raise InputError(f"{inferred} is a tensor of torch.inference_mode(), {why}")
    model, inputs, loss = received(model, inputs, loss)
    if optimizer is not None and loss is None:
        raise InputError("an optimizer needs a loss; pass loss=lambda out: ... too, or loss=lambda out: out if the model returns its loss")
    if optimizer is not None and not callable(optimizer):
        found = f"is made already ({type(optimizer).__name__})" if isinstance(optimizer, torch.optim.Optimizer) else f"is {described(optimizer)}"
        raise InputError(f"optimizer {found}; pass a function that makes one, as in optimizer={EXAMPLE}")
    if steps > 1 and optimizer is None:
        raise InputError(f"steps={steps} without an optimizer; pass optimizer={EXAMPLE}, or steps=1")
    check_inputs(model, inputs)
    return Job(model, inputs, loss, optimizer, steps, seed)


class Measurement:
    """The runs of one measurement. Each is made when it is first needed.

    `brief`: finds only errors that further runs cannot remove. No more noise runs are made if an output fails by two of them, whose limits allow for
    chance. If an output has failed for good, gradients count as explained. Flips are not counted, and errors are not located.
    """

    def __init__(self, job: Job, precision: Precision, *, seen: Evidence | None = None, brief: bool = False, depth: Depth = "boundaries") -> None:
        self.job, self.precision, self.brief = job, precision, brief
        self.seen = gathered(job, precision, depth, refers=True) if seen is None else seen
        self.low, self.log = self.seen.trace, self.seen.log
        self.functions = self.seen.functions  # whether what functions return is compared
        self.dtype = torch.float32 if precision.is_low else torch.float64
        self.survey: Survey | None = None  # what has watched the products of the reference run, under a recipe
        self.noises: list[Trace] = []
        self.early: list[Trace] = []  # further noise runs, which end after the first step's loss
        self.closer: dict[tuple[bool, bool], list[Trace]] = {}  # closer runs, by (rounds at every op, ends after the loss)
        self.own = self.seen.own or DecisionLog()  # the decisions that float32 would make by itself
        self.others = OtherReferences(job, precision, self.log, functions=self.functions)
        self.borrowed = self.seen.reference is not None  # whether the shadow of the low run serves as the reference

    def report(self) -> Report:
        report = self._report()
        concluded(report, self.seen)
        if report.errors:
            failed(self)
        return report

    def _report(self) -> Report:
        if self.precision.name == "64-true":
            return Report(precision=self.precision.name, facts={"reference": "none: nothing is more exact than float64 here"})
        try:
            self._make_reference()
        except Exception as error:
            if self.precision.is_low:
                if hasattr(error, "add_note"):  # from Python 3.11
                    error.add_note(f"raised by the float32 run that {self.precision} is compared with; precheck.watch() needs none")
                raise
            return Report(precision=self.precision.name, facts={"reference": f"none: the model does not run in float64 ({error})"})
        rows, halting = self._look(1), self.precision.is_low and self.job.loss is not None
        fails = halting and fails_early(self.seen.candidates())
        closer = CloserLook(self, rows, settled=False, halting=halting, fails=fails)
        if not (self._decided_alike() and (settled(rows) or (not self.brief and closer.at_once()))):
            rows = self._look(FIRST_LOOK)
            narrow = fails or (self.brief and any(row.failed and row.record.kind == "output" for row in suspicious(rows).values()))
            flipping = not narrow and any(place.unsettled(self.precision) for place in flips.places(self.reference, self.noises))
            if flipping:
                rows = self._look(SECOND_LOOK)
            closer = CloserLook(self, rows, settled=narrow or flipping, halting=halting, fails=fails)
        closer.taken({row.record.key: row for row in boundaries.starved(self.low, closer.rows, self.precision)})
        rows = closer.rows
        unasked, excused = closer.unasked if fails else (), {"explained": closer.explained, "unstable": closer.unstable}
        report = report_on(self.low, self.reference, rows, self.precision, unasked=unasked, **excused)
        report.facts |= {"unasked": sorted(closer.unasked)} if closer.unasked else {}  # beyond their limits after an error: no closer look
        record_nan(report, self.job, self.reference)
        if self.brief:
            return report
        report.add(flipped(self._flips(), self.precision))
        if self.survey is not None:
            places, name = found(self.job, self.survey), str(self.precision.gemm)
            report.add(coarse(places, name))
            report.facts["layers"] = by_layer(places, name)
        if not report.errors and self.precision.gemm and self.precision.compute is FP32:
            report.add(self._moved_results(rows))
        differing, total = map(sum, zip((0, 0), *self.reference.flips.values(), strict=True))
        report.facts |= {"noise_runs": len(self.noises) + len(self.early), "decisions": total, "flips": differing}
        self._located(report)
        return report

    def _decided_alike(self) -> bool:
        """Whether every place has so few flips that a second noise run without flips would not make it doubtful."""
        found = flips.places(self.reference, self.noises)
        return not any(dataclasses.replace(place, samples=FIRST_LOOK).doubtful(self.precision) for place in found)

    def looks(self) -> list[list[drift.ComparedTensor]]:
        """Two comparisons of every tensor with the reference: by the noise floors of the first look, and by those of the closer look."""
        return [self.first_look(), self.chained(THIRD_LOOK)]

    def first_look(self) -> list[drift.ComparedTensor]:
        """Compares every tensor with the reference by two noise runs. Makes the runs that are missing."""
        if not self.noises:
            self._make_reference()
        return self._look(FIRST_LOOK)

    def _moved_results(self, rows: list[drift.ComparedTensor]) -> list[Finding]:
        """Findings on results that float32 only passes through, and that matrix products of a lower precision change."""
        made: list[Selection] = []
        job = dataclasses.replace(self.job, loss=None, optimizer=None, steps=1)
        exact = run(job, dataclasses.replace(low(self.precision), selections=made))
        return by_selections(rows, exact, made, self.precision)

    def _make_reference(self) -> None:
        if self.borrowed and self.seen.reference is not None:
            self.reference = self.seen.reference
            return
        if self.seen.beside is not None and not self.precision.gemm:  # else products are surveyed
            self.reference = self.seen.beside
            return
        setting = reference(self.dtype, self.precision, follows=self.log, decides=self.own, functions=self.functions)
        self.reference, self.survey = run_beside(self.job, setting, None if self.brief else self.precision.gemm)

    def _located(self, report: Report) -> None:
        """Compares what modules pass to each other. Drift in a module's input is blamed on the code that made the input."""
        first = report.errors[0] if report.errors else None
        if first is not None and f"returned:{first.tensor}@{first.step}" in self.low.records:
            return  # the error is at a function, which names its own code
        if first is None or first.phase != "forward" or first.step > 1 or first.rule not in ("accumulated-drift", "overflow", "nan"):
            return
        log, job = DecisionLog(), dataclasses.replace(self.job, loss=None, optimizer=None, steps=1)
        seen = run(job, dataclasses.replace(low(self.precision, records=log), module_inputs=True))
        plain = run(job, dataclasses.replace(reference(self.dtype, self.precision, follows=log), module_inputs=True))
        noises = [run(job, dataclasses.replace(self._noise_setting(number, log), module_inputs=True)) for number in range(FIRST_LOOK)]
        rows = drift.compare(seen, plain, drift.Spreads(drift.spreads(plain, noises), FIRST_LOOK), self.precision)
        report.findings = [located(first, rows, seen.makers) if finding is first else finding for finding in report.findings]

    def _noise_setting(self, number: int, log: DecisionLog) -> Setting:
        disturbance = noise_for(self.job.model, self.low, self.log, self.precision, seed=number + 1)
        return reference(self.dtype, self.precision, follows=log, disturbance=disturbance)

    def _look(self, samples: int) -> list[drift.ComparedTensor]:
        for number in range(len(self.noises), samples):
            with doing(f"noise run {number + 1} of {max(samples, FIRST_LOOK)}"):
                self.noises.append(self._noise_run(number))
            if self.borrowed and not alike(self.low.steps, self.noises[0].steps):
                self.borrowed = False  # float32 takes another path through the program than the low run and its shadow
                self._make_reference()
        return self._compared_with(self.noises)

    def narrowed(self, rows: list[drift.ComparedTensor], *, early: bool) -> list[drift.ComparedTensor]:
        """Returns `rows` with floors from the largest number of noise runs. `early`: only rows up to the first step's loss get new floors."""
        if not early:
            return self._look(SECOND_LOOK)
        for number in range(len(self.noises) + len(self.early), SECOND_LOOK):
            with doing(f"noise run {number + 1} of {SECOND_LOOK}"):
                self.early.append(self._noise_run(number, early=True))
        closer = self._compared_with([*self.noises, *self.early])
        return [new if is_early(new.record) else old for old, new in zip(rows, closer, strict=True)]

    def chained(self, count: int, *, everywhere: bool = False, early: bool = False) -> list[drift.ComparedTensor]:
        """Compares the low run with `count` closer runs. Their roundings are inside modules, or at every op if `everywhere`."""
        made = self.closer.setdefault((everywhere, early), [])
        for number in range(len(made), count):
            with doing(f"closer look, noise run {number + 1} of {THIRD_LOOK}"):
                made.append(self._noise_run((200 if everywhere else 100) + number, chained=True, everywhere=everywhere, early=early))
        return self._compared_with(made[:count])

    def _compared_with(self, noises: list[Trace]) -> list[drift.ComparedTensor]:
        return drift.compare(self.low, self.reference, drift.Spreads.seen(self.reference, noises), self.precision)

    def _noise_run(self, number: int, *, chained: bool = False, everywhere: bool = False, early: bool = False) -> Trace:
        disturbance = noise_for(self.job.model, self.low, self.log, self.precision, seed=number + 1)
        if chained:
            shown, bottom = drift.roundings_shown(self.low, self.reference, self.precision), self.precision.compute
            disturbance = dataclasses.replace(disturbance, chained=True, everywhere=everywhere, shown=shown, bottom=bottom, scale=self.low.scale)
        job = dataclasses.replace(self.job, optimizer=None, steps=1) if everywhere or early else self.job
        setting = reference(self.dtype, self.precision, follows=self.log, disturbance=disturbance, compared_with=self.own, functions=self.functions)
        return run(job, dataclasses.replace(setting, early=early, steps=self.borrowed and not self.noises))

    def _flips(self) -> list[flips.Place]:
        """The places with more flips than rounding at boundaries explains, if the flips change a result."""
        suspects = [place for place in flips.places(self.reference, self.noises) if place.too_many(self.precision)]
        return suspects if suspects and self._flips_matter(suspects) else []

    def _flips_matter(self, suspects: list[flips.Place]) -> bool:
        """Whether float32 gives another result, beyond noise, if it takes the run's decisions at these places, and all others by itself."""
        spread, flipped = drift.spreads(self.reference, self.noises), self.others.without_flips({place.name for place in suspects})
        rows = drift.compare(flipped, self.others.deciding, drift.Spreads(spread, len(self.noises)), self.precision)
        return any(row.failed and (row.record.is_result or row.record.kind in ("loss", "parameter-gradient")) for row in rows)

    def added_up(self) -> dict[str, tuple[str, str]]:
        """Keys of gradients that autograd makes as sums, each with the two keys of the records that show its terms."""
        return added_up(self.job, self.seen)

    def contradicted(self, rows: dict[str, drift.ComparedTensor], *, early: bool) -> set[str]:
        """Keys of the rows for which the reference is none, since another exact run contradicts it."""
        return self.others.contradicting(self.low, self.reference, rows, early=early) if rows and self.dtype is torch.float32 else set()
