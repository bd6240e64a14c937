"""The verb `watch`: a context manager that runs each op of its block in float32 too, and reports where low precision causes errors."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from precheck import arguments, interpreter, interrupts
from precheck.analysis.training import displacements, scaling
from precheck.findings import Finding, Report
from precheck.judge import allowances, watched_runs
from precheck.judge.watched_runs import merged
from precheck.observe.job import InputError
from precheck.observe.listeners import doing
from precheck.observe.models.uncompiled import uncompiled
from precheck.observe.shadow.distributed.ranks import Ranks, distributed, meet
from precheck.observe.shadow.mode import Shadow
from precheck.observe.shadow.operations import Observation
from precheck.observe.shadow.places.module_tracker import ModuleTracker
from precheck.observe.shadow.replaying.replay import LOW
from precheck.precisions import Precision, resolve
from precheck.shared_runs.evidence import shown, undecided
from precheck.torch_internals import without_modes
from precheck.torch_support import cuda_blocks
from precheck.words import described

WRITTEN = "with precheck.watch() as report:"


@arguments.entered(WRITTEN)
def watch(
    model: torch.nn.Module | None = None, *, precision: str | Precision | None = None, allow: Mapping[str, str] | None = None
) -> contextlib.AbstractContextManager[Report]:
    """Watches the block: each op that reads a low-precision tensor, directly or through other ops, runs once more in float32 and is compared.

    The code computes the same bits as without it, and about a float32 run is made in addition. In a distributed run in which every rank enters its
    block, tensors are sent together with their float32 copies. Each rank's report then has the findings of all ranks.

    Args:
        model: Names modules in findings; "" is the model itself. Without it the first module with children that runs is the model.
        precision: A policy to apply to the block: autocast for *-mixed, emulated rounding for tf32 and fp8. Without it the block runs as
            it is. Precisions that store weights low cannot be applied: cast the model, and watch it.
        allow: Rules whose errors become notes, each with your reason: `{"lost-update": "one step only"}`.

    Returns:
        A block to enter by `with`, which gives a report. It is filled when the block ends, and not to be read before. If the block raises, it is
        filled too, and from Python 3.11 on the exception carries a note of the first error that was found, with its cure. It holds numbers only, no
        tensor.

    Raises:
        PrecisionError: There is no such precision.
        InputError: `model` is no module, or `precision` cannot be applied to a block.
    """
    chosen = None if precision is None else resolve(precision)
    allowed = allowances.checked(allow)
    check_arguments(model, chosen)
    return arguments.NewBlock(WRITTEN, lambda: _watched(model, chosen, allowed))


@contextlib.contextmanager
def _watched(model: torch.nn.Module | None, chosen: Precision | None, allowed: Mapping[str, str]) -> Iterator[Report]:
    report = Report(precision=chosen.name if chosen else "")
    where = ModuleTracker(model)
    exact = chosen is not None and chosen.compute_dtype is torch.float32
    reference, low = (torch.float64, frozenset({torch.float32})) if exact else (torch.float32, LOW)
    verdict = watched_runs.RunJudge()
    shadow = Shadow(where, reference=reference, low=low, judge=verdict)
    report.facts["reference"] = "float64" if exact else "float32"
    report.facts["open"] = True
    ended, gradients = False, torch.is_grad_enabled()
    with interpreter.sparing(), interrupts.held():
        with without_modes():
            shadow.collectives.ranks, apart = meet(shadow.replay.reference)
        try:
            with doing("running the block beside its reference"), _policy(chosen, where), uncompiled(), where.followed(), shadow.watched(), shadow:
                yield report
            ended = True
        except Exception as error:
            shadow.observation.raised, shadow.observation.complaint = type(error).__name__, str(error)
            _finish(report, shadow, verdict, apart, ended, allowed)
            _add_note(error, report)
            raise
        except BaseException:
            torch.set_grad_enabled(gradients)  # an interrupt may cut short the `finally` in which torch's optimizers restore it
            _finish(report, shadow, verdict, apart, ended, allowed)
            raise
        _finish(report, shadow, verdict, apart, ended, allowed)


@interrupts.interruptible
@interpreter.roomy
def _finish(report: Report, shadow: Shadow, verdict: watched_runs.RunJudge, apart: str, ended: bool, allowed: Mapping[str, str]) -> None:
    """Judges the block after watching has ended. It may take some time, so it can be interrupted."""
    ranks = shadow.collectives.ranks
    del report.facts["open"]
    with doing("judging the block"), without_modes(), torch.no_grad():
        filled(report, shadow.finish(), shadow.tracker, verdict)
        if ranks is None and not apart and distributed():
            apart = "the block began before torch.distributed did: what other ranks send is taken as it comes"
        if apart:
            report.facts["ranks"] = apart
        if ranks is not None:
            _merge_ranks(report, ranks, ended)
        allowances.apply(report, allowed)


def _add_note(raised: Exception, report: Report) -> None:
    """Adds the first error that was found, and its cure, as a note to the exception that ended the block."""
    if report.errors and hasattr(raised, "add_note"):  # since Python 3.11
        first = report.errors[0]
        note = f"precheck.watch() found {first.rule} before this: {first.message}; cure: {first.remedy}"
        if note not in getattr(raised, "__notes__", ()):  # an inner watch may have added it
            raised.add_note(note)


def filled(report: Report, observation: Observation, where: ModuleTracker, verdict: watched_runs.RunJudge) -> None:
    """Writes the verdict on `observation` into `report`."""
    report.add(verdict.found(observation))
    report.updates = displacements.table(observation)
    report.scaler = scaling.table(observation)
    report.losses = observation.losses
    shown(report, observation)
    undecided(report, verdict)
    if where.compiled:
        report.facts["compiled"] = "compiled code ran in eager mode, so that it could be watched"


def _merge_ranks(report: Report, ranks: Ranks, ended: bool) -> None:
    """Merges the reports of all ranks that have ended their blocks into one."""
    said = json.dumps({"ended": ended, "findings": [dataclasses.asdict(finding) for finding in report.findings]})
    heard = {rank: json.loads(text) for rank, text in ranks.part(said, wait=ended).items()}
    findings = {rank: [Finding(**{**each, "ranks": ()}) for each in one["findings"]] for rank, one in heard.items()}
    report.findings = []
    report.add(merged(findings, ranks.size))
    raised = [rank for rank, one in heard.items() if not one["ended"]]
    silent = [rank for rank in range(ranks.size) if rank not in heard]
    report.facts["ranks"] = f"{len(heard)} of {ranks.size} ranks in this report"
    for which, why in ((raised, "ended by an exception"), (silent if ended else [], "not heard of")):
        report.facts["ranks"] += f"; {why}: {', '.join(map(str, which))}" if which else ""
    if ranks.lost:
        report.facts["ranks"] += f"; what other ranks sent was not followed to the end: {ranks.lost}"


def check_arguments(model: Any, precision: Precision | None) -> None:
    """Raises InputError where `watch` cannot take the model, or cannot apply the precision to a block."""
    if model is not None and not isinstance(model, torch.nn.Module):
        raise InputError(f"model is {described(model)}; pass a torch.nn.Module, or nothing: watch() names modules by itself")
    if precision is not None and not (precision.autocasts or precision.gemm or precision.name == "32-true"):
        raise InputError(
            f"watch(precision={precision.name!r}) cannot store what the block makes in {precision.param.name}; cast it there "
            f"(model.to(torch.{precision.param.dtype_name})) and watch() it as it is, or let precheck.measure do both"
        )


@contextlib.contextmanager
def _policy(precision: Precision | None, where: ModuleTracker) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(cuda_blocks.noticed())
        if precision is not None and precision.autocasts:
            _clear_cache_at_calls(where)
        if precision is not None:
            stack.enter_context(precision.autocast())
        if precision is not None and precision.autocasts and torch.cuda.is_available():  # a block may use both devices
            stack.enter_context(torch.autocast("cuda", dtype=precision.compute_dtype))
        yield


def _clear_cache_at_calls(where: ModuleTracker) -> None:
    """Clears autocast's cache of cast weights at each model call and at each write under no_grad.

    Autocast keeps the cache until it ends. A training loop ends it after each forward pass, but a block only once. So the passes after a step would
    see the old weights. On torch 2.9 those after a pass under no_grad would have no gradient.
    """
    called = where.on_call

    def forgotten() -> None:
        torch.clear_autocast_cache()
        called()

    where.on_call = forgotten
    where.on_write = lambda: None if torch.is_grad_enabled() else torch.clear_autocast_cache()  # with gradients enabled, no weight can be written
