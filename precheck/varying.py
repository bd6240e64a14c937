"""The verb `vary`: runs one model in several ways that should give the same result, and says whether the differences are rounding or a bug."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from precheck import arguments, interpreter, interrupts
from precheck.findings import Finding, Report
from precheck.judge import allowances
from precheck.measurement import job_of
from precheck.observe.job import InputError, Job
from precheck.observe.listeners import doing
from precheck.pairs import reporting, tokens
from precheck.pairs.altered_calls import Asked, Step, batch_axis, chosen, plainly, rows
from precheck.pairs.callables import as_module, users_name
from precheck.pairs.comparison import REFUSALS, Comparison
from precheck.pairs.first_difference import unequal
from precheck.pairs.matching import matched
from precheck.pairs.sides import Planted, Side
from precheck.pairs.variations import Asking, Variation, variations_of
from precheck.precisions import Precision, resolve
from precheck.words import described

VARIED = reporting.Names("the plain run", "the run in this way", "the plain run")
"""What messages call the two runs of one model."""
Reduction = str | Callable[[Any], float]


@arguments.explained
@interrupts.held()
@interpreter.spared
def vary(
    model: torch.nn.Module | Callable[..., Any],
    inputs: Any,
    over: Iterable[str] | Mapping[str, int | None] | None = None,
    *,
    precision: str | Precision = "32-true",
    loss: Callable[[Any], torch.Tensor] | None = None,
    reduction: Reduction = "mean",
    step: Step | None = None,
    seed: int = 0,
    allow: Mapping[str, str] | None = None,
) -> Report:
    """Runs `model` on `inputs` in several ways that are mathematically equal, and judges each as `precheck.compare` judges a second model.

    Args:
        model: A module or a function of tensors.
        inputs: As in `measure`; the first dimension is the batch. Padding, positions and caches are passed under the names of transformers.
        over: Names of ways, or a dict of them with amounts, as in {"padding": 8}: "repeat" (again), "order" (rows reversed), "batch" (so many
            rows at a time, 1), "microbatches" (losses of so many parts added up, 2), "padding" (so many tokens to the left and to the right,
            3), "cache" (so many tokens at a time, 1), "prefill" (the prompt in chunks), "position" (all positions later by so many, 17),
            "threads", "checkpointing" (blocks recomputed), "dropout" (a probability of 0 beside eval()), "packing" (all rows in one without
            their padding, told apart by their positions), "ranks" (rows dealt out to so many, gradients averaged, 2). Without it: repeat, order,
            batch, threads.
        precision: The precision of all runs.
        loss: Takes the output, gives a scalar. Of microbatches it is taken of each.
        reduction: How losses of microbatches are added: "mean" weighs them by rows, "sum" adds them, a function gives a weight for the
            inputs of each, such as its number of tokens.
        step: `step(model, tokens, state)` returns the output and the new state (None at first), for models without past_key_values. For packing by a
            model without position_ids, `state` has the positions of all tokens in their own rows, and the new state is not used.
        seed: The seed of torch's random numbers, which is set before each run.
        allow: Rules whose errors become notes, each with your reason: `{"lost-update": "one step only"}`.

    Returns:
        A report. `facts["variations"]` has the verdict of each way, `verdict` the gravest. Where bits differ, the first module whose bits do is
        named. Of language models `facts["tokens"]` has the mean and the largest difference of log-probabilities, in nats, and the share of
        tokens whose ratio of probabilities leaves [0.9, 1.1]. Dropout is off in all but "dropout".

    Raises:
        InputError: The model cannot be asked in that way; the message says why.
        PrecisionError: There is no such precision.
        Exception: Whatever the model itself raises.
    """
    allowed = allowances.checked(allow)
    varied = Varied(model, inputs, over, precision, loss=loss, reduction=reduction, step=step, seed=seed)
    report = Report(precision=varied.precision.name, facts={"verdict": "bitwise", "variations": {}})
    for variation in varied.variations:
        with doing(variation.name):
            _add(report, varied, variation)
    allowances.apply(report, allowed)
    return report


class Varied:
    """What `vary` was asked: one model, and the ways in which it is run. Each can be compared several times."""

    def __init__(self, model: Any, inputs: Any, over: Iterable[str] | Mapping[str, int | None] | None, precision: str | Precision, *,
                 loss: Callable[[Any], torch.Tensor] | None = None, reduction: Reduction = "mean", step: Step | None = None,
                 seed: int = 0) -> None:  # fmt: skip
        self.precision, self.reduction, self.weigh = resolve(precision), reduction, _weights(reduction)
        self.job = job_of(as_module(model, "model"), inputs, loss=loss, seed=seed)
        if step is not None and not callable(step):
            raise InputError(f"step is {described(step)}; pass a function of model, tokens and state that returns the output and the new state")
        self.asking = Asking(self.job.model, self.job.inputs, step, self.weigh, loss is not None)
        self.variations = variations_of(over, self.asking)
        self.references: dict[str, Side] = {}

    def comparison(self, variation: Variation, planted: Planted | None = None) -> Comparison:
        """Compares the model with itself, run in another way. `planted` puts a fault into the model for each run in that way."""
        plain = dataclasses.replace(self.job, model=Asked(self.job.model, variation.plain))
        base, own = variation.base, "dropout" in variation.name or variation.plain is not plainly
        key = "" if base is None else variation.name if own else "without dropout"
        if key not in self.references:
            self.references[key] = Side(plain, self.precision, keeps=True, **({} if base is None else {"around": base}))
        apart = variation.pieces or variation.ranks
        asked = self._accumulating(variation) if apart else dataclasses.replace(self.job, model=Asked(self.job.model, variation.ask))
        around = variation.around if planted is None else lambda: _both(variation.around(), planted(asked.model))
        reference, other = self.references[key], Side(asked, self.precision, around=around)
        reference.low()  # raises whatever the model itself raises
        if not self.asking.axes:
            self.asking.axes[:] = self._axes(reference)
        try:
            other.low()
        except InputError:
            raise
        except Exception as error:
            told = f"{type(error).__name__}: {str(error).strip() or 'no message'}"
            raise InputError(f"{variation.name}: the model runs as it is, but not in this way ({told}); leave this way out of over=") from error
        matching = matched(reference.job.model, asked.model, {})
        return Comparison(reference, other, matching, self.precision, aligned=variation.aligned, hidden=variation.hidden)

    def _axes(self, reference: Side) -> list[int]:
        """The axis of each result along which rows lie. If several are as long as the batch, a run with one row fewer shows which."""
        shapes = _shapes(reference)
        with contextlib.suppress(InputError):
            count = rows(self.job.inputs)
            if any(shape.count(count) > 1 for shape in shapes):
                job = dataclasses.replace(reference.job, inputs=chosen(self.job.inputs, slice(count - 1), count), loss=None, optimizer=None)
                with contextlib.suppress(*REFUSALS, IndexError):
                    pairs = zip(shapes, _shapes(Side(job, self.precision, around=reference.around)), strict=True)
                    return [next((axis for axis, length in enumerate(shape) if length != less[axis]), 0) for shape, less in pairs]
            return [batch_axis(shape, count) for shape in shapes]
        return []

    def _accumulating(self, variation: Variation) -> Job:
        """The job that runs the model on each part of the batch and adds up the losses, as a training loop with accumulation does."""
        job, weigh = self.job, self.weigh
        count, size = rows(job.inputs), variation.pieces
        shares: list[float] = []

        def parts(model: torch.nn.Module, inputs: Any) -> list[Any]:
            ranks = [slice(rank, None, variation.ranks) for rank in range(variation.ranks)]
            cuts = ranks or [slice(start, start + size) for start in range(0, count, size)]
            pieces = [chosen(inputs, cut, count) for cut in cuts]
            weights = [float(weigh(each)) if weigh is not None else float(rows(each)) for each in pieces]
            shares[:] = [1.0] * len(pieces) if self.reduction == "sum" else [each / sum(weights) for each in weights]
            return [plainly(model, each) for each in pieces]

        def total(outputs: list[Any]) -> torch.Tensor:
            assert job.loss is not None
            return torch.stack([job.loss(each) * share for each, share in zip(outputs, shares, strict=True)]).sum()

        return dataclasses.replace(job, model=Asked(job.model, lambda model, inputs: Parts(parts(model, inputs))), loss=lambda out: total(out.parts))


@contextlib.contextmanager
def _both(*around: contextlib.AbstractContextManager[None]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for each in around:
            stack.enter_context(each)
        yield


def _add(report: Report, varied: Varied, variation: Variation) -> None:
    comparison = varied.comparison(variation)
    judged = comparison.judged()
    found = reporting.report(comparison, judged, VARIED)
    spread = tokens.spread(comparison.model.low().captured, comparison.other.low().captured, varied.job.inputs)
    alike = found.verdict == "rounding" and not found.errors and not variation.ranks  # ranks get rows in another order, so bits differ anywhere
    pinned = unequal(comparison) if alike else None
    where = f"; bits first differ in {users_name(pinned.module) or 'the model itself'}" + (f" ({pinned.op})" if pinned.op else "") if pinned else ""
    nats, why = f"; {spread}" if spread and found.verdict != "bitwise" else "", ""
    with contextlib.suppress(*REFUSALS):
        why = variation.reason() if found.errors else ""
    report.add(_said(each, variation.name, where + nats + (f"; {why}" if why else ""), pinned) for each in found.findings)
    report.boundaries += [dataclasses.replace(row, tensor=f"{variation.name}: {row.tensor}") for row in found.boundaries]
    report.facts["variations"][variation.name] = found.verdict
    report.facts["verdict"] = reporting.gravest([report.facts["verdict"], found.verdict])
    report.facts |= {each: value for each, value in found.facts.items() if each in ("exact", "noise_runs")}
    if spread is not None:
        report.facts.setdefault("tokens", {})[variation.name] = dataclasses.asdict(spread)


def _said(finding: Finding, variation: str, more: str, pinned: Any) -> Finding:
    place = {} if pinned is None or finding.rule != "rounding" else {"module": users_name(pinned.module), "source": pinned.source, "op": pinned.op}
    return dataclasses.replace(finding, message=f"{variation}: {finding.message}{more}", **place)


def _shapes(side: Side) -> list[tuple[int, ...]]:
    """The shapes of a model's results."""
    return [tuple(tensor.shape) for (_, step), tensor in side.low().captured.of("result").items() if step == 1]


class Parts:
    """Hides the outputs of the parts from the comparison, which is only about the loss and its gradients."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts


def _weights(reduction: Reduction) -> Callable[[Any], float] | None:
    if reduction in ("mean", "sum"):
        return None
    if not callable(reduction):
        raise InputError(f'reduction={reduction!r}; pass "mean", "sum", or a function that gives the weight of a microbatch from its inputs')
    return reduction
