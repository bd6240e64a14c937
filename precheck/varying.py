"""The verb `vary`: runs one model in several ways that should give the same result, and says whether the differences are rounding or a bug."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from precheck import collector, interrupts
from precheck.findings import Finding, Report
from precheck.judge import allowances
from precheck.measurement import job_of
from precheck.observe.job import InputError, Job
from precheck.observe.listeners import doing
from precheck.pairs import reporting, tokens
from precheck.pairs.altered_calls import Asked, Step, chosen, plainly, rows
from precheck.pairs.callables import as_module
from precheck.pairs.comparison import Comparison
from precheck.pairs.first_difference import unequal
from precheck.pairs.matching import matched
from precheck.pairs.sides import Side
from precheck.pairs.variations import Asking, Variation, made
from precheck.precisions import Precision, resolve

Reduction = str | Callable[[Any], float]


@interrupts.holding
@collector.spared
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
        inputs: As in `measure`; the first dimension is the batch. Padding, positions and caches go by the names that models of transformers take.
        over: Names of ways, or a dict of them with amounts, as in {"padding": 8}: "repeat" (again), "order" (rows reversed), "batch" (so many
            rows at a time, 1), "microbatches" (losses of so many parts added up, 2), "padding" (so many tokens to the left and to the right,
            3), "cache" (so many tokens at a time, 1), "prefill" (the prompt in chunks), "position" (all positions later by so many, 17),
            "threads", "checkpointing" (blocks recomputed), "dropout" (a probability of 0 beside eval()), "packing" (all rows in one, told apart
            by their positions), "ranks" (rows dealt out to so many, gradients averaged, 2). Without it: repeat, order, batch, threads.
        precision: What all of them run in.
        loss: Takes the output, gives a scalar. Of microbatches it is taken of each.
        reduction: How losses of microbatches are added: "mean" weighs them by rows, "sum" adds them, a function gives a weight for the
            inputs of each, such as its number of tokens.
        step: `step(model, tokens, state)` returns the output and the new state (None at first), for models without past_key_values.
        seed: Of torch's random numbers, set before each run.
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
    allowed, chosen_precision = allowances.checked(allow), resolve(precision)
    weigh = _weights(reduction)
    job = job_of(as_module(model, "model"), inputs, loss=loss, seed=seed)
    if step is not None and not callable(step):
        raise InputError(f"step is a {type(step).__name__}; pass a function of model, tokens and state that returns the output and the new state")
    variations = made(over, Asking(job.model, job.inputs, step, weigh, loss is not None))
    report = Report(precision=chosen_precision.name, facts={"verdict": "bitwise", "variations": {}})
    references: dict[str, Side] = {}
    for variation in variations:
        with doing(variation.name):
            _compared(report, job, variation, chosen_precision, references, reduction, weigh)
    allowances.apply(report, allowed)
    return report


def _compared(
    report: Report, job: Job, variation: Variation, precision: Precision, references: dict[str, Side], reduction: Reduction,
    weigh: Callable[[Any], float] | None,
) -> None:  # fmt: skip
    plain = dataclasses.replace(job, model=Asked(job.model, plainly))
    base = variation.base
    key = "" if base is None else variation.name if "dropout" in variation.name else "without dropout"
    if key not in references:
        references[key] = Side(plain, precision, keeps=True, **({} if base is None else {"around": base}))
    reference = references[key]
    apart = variation.pieces or variation.ranks
    asked = _accumulating(job, variation, reduction, weigh) if apart else dataclasses.replace(job, model=Asked(job.model, variation.ask))
    other = Side(asked, precision, around=variation.around)
    comparison = Comparison(reference, other, matched(plain.model, asked.model, {}), precision, aligned=variation.aligned)
    judged = comparison.judged()
    found = reporting.report(comparison, judged)
    spread = tokens.spread(reference.low().captured, other.low().captured, job.inputs)
    pinned = unequal(comparison) if found.verdict == "rounding" and not found.errors else None
    where = f"; bits part first in {pinned.module or 'the model itself'}" + (f" ({pinned.op})" if pinned.op else "") if pinned else ""
    nats = f"; {spread}" if spread else ""
    report.add(_said(each, variation.name, where + nats, pinned) for each in found.findings)
    report.boundaries += [dataclasses.replace(row, tensor=f"{variation.name}: {row.tensor}") for row in found.boundaries]
    report.facts["variations"][variation.name] = found.verdict
    report.facts["verdict"] = reporting.gravest([report.facts["verdict"], found.verdict])
    report.facts |= {each: value for each, value in found.facts.items() if each in ("exact", "noise_runs")}
    if spread is not None:
        report.facts.setdefault("tokens", {})[variation.name] = dataclasses.asdict(spread)


def _said(finding: Finding, variation: str, more: str, pinned: Any) -> Finding:
    place = {} if pinned is None or finding.rule != "rounding" else {"module": pinned.module, "source": pinned.source, "op": pinned.op}
    return dataclasses.replace(finding, message=f"{variation}: {finding.message}{more}", **place)


def _accumulating(job: Job, variation: Variation, reduction: Reduction, weigh: Callable[[Any], float] | None) -> Job:
    """The job that runs the model on each part of the batch and adds up the losses, as a training loop with accumulation does."""
    count, size = rows(job.inputs), variation.pieces
    shares: list[float] = []

    def parts(model: torch.nn.Module, inputs: Any) -> list[Any]:
        ranks = [slice(rank, None, variation.ranks) for rank in range(variation.ranks)]
        cuts = ranks or [slice(start, start + size) for start in range(0, count, size)]
        pieces = [chosen(inputs, cut, count) for cut in cuts]
        weights = [float(weigh(each)) if weigh is not None else float(rows(each)) for each in pieces]
        shares[:] = [1.0] * len(pieces) if reduction == "sum" else [each / sum(weights) for each in weights]
        return [plainly(model, each) for each in pieces]

    def total(outputs: list[Any]) -> torch.Tensor:
        assert job.loss is not None
        return torch.stack([job.loss(each) * share for each, share in zip(outputs, shares, strict=True)]).sum()

    return dataclasses.replace(job, model=Asked(job.model, lambda model, inputs: _Parts(parts(model, inputs))), loss=lambda out: total(out.parts))


class _Parts:
    """Hides the outputs of the parts from the comparison, which is only about the loss and its gradients."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts


def _weights(reduction: Reduction) -> Callable[[Any], float] | None:
    if reduction in ("mean", "sum"):
        return None
    if not callable(reduction):
        raise InputError(f'reduction={reduction!r}; pass "mean", "sum", or a function that gives the weight of a microbatch from its inputs')
    return reduction
