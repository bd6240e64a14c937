"""Runs a job once under a precision and keeps the result as `Evidence`: records of boundaries, decisions and, at depth `ops`, every op.

At depth `ops` the run goes through the shadow. It gives the records by which boundaries are judged, and the operations that the rules of `watch`
read. So a check and a watch come to the same verdict on the same run. Both sets of findings go into one report. `diagnose` adds the ops to a report
on boundaries alone: the op that a rule suspects behind each error, or else the op that added most error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Set
from typing import Any, get_args

import torch

from precheck.findings import Report
from precheck.judge import conclusion, watched_runs
from precheck.observe.decisions.log import DecisionLog
from precheck.observe.job import Depth, InputError, Job, named
from precheck.observe.listeners import doing
from precheck.observe.records import Trace
from precheck.observe.run import observed, run
from precheck.observe.setting import low, reference
from precheck.observe.shadow.operations import Observation
from precheck.precisions import Precision
from precheck.rules.rule import Candidate


@dataclasses.dataclass(slots=True)
class Evidence:
    """One run under a precision. `observation` is None where ops were not watched. `unseen` says why, if they should have been."""

    trace: Trace
    log: DecisionLog
    observation: Observation | None = None
    verdict: watched_runs.RunJudge | None = None
    unseen: str = ""
    functions: bool = False  # whether the trace holds what functions return
    reference: Trace | None = None  # the float32 run on the same decisions, where the shadow of the run can serve as one
    beside: Trace | None = None  # the same as a run of its own, if one was made
    own: DecisionLog | None = None  # the decisions that float32 would make by itself, where there is a reference
    found: list[Candidate] | None = None  # what the rules on ops found, once it was asked for

    def candidates(self) -> list[Candidate]:
        if self.found is None:
            unwatched = self.observation is None or self.verdict is None
            self.found = [] if unwatched else self.verdict.candidates(self.observation)  # type: ignore[union-attr, arg-type]
        return self.found


def gathered(job: Job, precision: Precision, depth: Depth = "boundaries", *, functions: bool = True, refers: bool = False) -> Evidence:
    """Runs `job` once under `precision`. At depth `ops` every op also runs in float32.

    `functions`: also records what functions return. `refers`: the records will be compared with float32, not with a golden. Raises what the model
    raises. If the model fails only under a dispatch mode, the run is made again without one.
    """
    first = _gathered(job, precision, depth, DecisionLog(), functions=functions, refers=refers)
    lines = frozenset() if first.observation is None else imposed(job, precision, first, first.observation.meant)
    if not lines:
        return first
    again = _gathered(job, precision, depth, DecisionLog(imposed=lines, idle=first.log.idle), functions=functions, refers=refers)
    if first.beside is None:
        return again
    return dataclasses.replace(again, reference=None, beside=first.beside, own=first.own)  # watching changes no bit, so its decisions are the same


def imposed(job: Job, precision: Precision, seen: Evidence, meant: Set[str]) -> frozenset[str]:
    """The lines of `meant`, which cast to a low format and back, on which a float32 run does not round: `x.to(dtype).float()` with the dtype of the
    autocast or of a weight. What a program means, it does in any precision and to the same format. These roundings come with the low one. That run
    is kept as the reference."""
    if {line for line, *_ in seen.log.meant} & meant:
        own = DecisionLog()
        try:
            with doing("looking for roundings that are meant"):
                setting = reference(torch.float32, precision, follows=seen.log, decides=own, functions=seen.functions)
                seen.beside, seen.own = run(job, setting), own
        except Exception:  # nobody knows then, and the roundings count as meant
            return frozenset()
    return frozenset(meant - {line for line, *_ in seen.log.kept})


def _gathered(job: Job, precision: Precision, depth: Depth, log: DecisionLog, *, functions: bool, refers: bool) -> Evidence:
    setting = dataclasses.replace(low(precision, records=log), functions=functions and depth == "ops" and precision.is_low)
    if depth == "boundaries" or not precision.is_low:
        return Evidence(run(job, setting), log)
    verdict = watched_runs.RunJudge()
    try:
        with doing("looking at every op"):
            seen = observed(job, setting, judge=verdict, refers=refers)
    except Exception as error:
        log = DecisionLog(imposed=log.imposed)
        trace = run(job, dataclasses.replace(setting, records=log))  # if the error is the model's own, it is raised again here
        return Evidence(trace, log, unseen=f"{type(error).__name__}: {error}", functions=setting.functions)
    seen.observation.scaling = [*seen.observation.scaling, *seen.observation.mixed]  # no gradient of a measurement is discarded
    # the shadow may skip casts to a low format and back that a float32 run would make, so it cannot be the reference here
    beside = None if log.meant else seen.reference
    return Evidence(seen.trace, log, seen.observation, verdict, functions=setting.functions, reference=beside, own=seen.own)


def added_up(job: Job, seen: Evidence) -> dict[str, tuple[str, str]]:
    """Keys of gradients that autograd makes as sums, each with the two keys of the records that show its terms.

    These are the gradients of parameters of torch's own modules. Their terms are shown by the module's output and its gradient. Modules that are
    called more than once are left out. Empty if the user has written a backward pass or ops were not watched, since it is unknown then whose errors
    add up.
    """
    if seen.observation is None or any(operation.phase == "backward" and not operation.derived for operation in seen.observation.operations):
        return {}
    own = [(name, module) for name, module in job.model.named_modules() if type(module).__module__.startswith("torch.nn.modules.")]
    once = [(name, module) for name, module in own if f"output:{name}#2@1" not in seen.trace.records]
    held = ((name, inner) for name, module in once for inner, _ in module.named_parameters(recurse=False))
    return {f"parameter-gradient:{name}.{inner}@1": (f"gradient:{name}@1", f"output:{name}@1") for name, inner in held}


def concluded(report: Report, evidence: Evidence) -> None:
    """Adds to the report on a run's boundaries what its ops show: findings, the causes of errors at boundaries, and tables."""
    if evidence.unseen:
        report.facts["diagnosis"] = f"none: {evidence.unseen}"
    if evidence.observation is None or evidence.verdict is None:
        return
    found = conclusion.concluded(report.findings, evidence.observation, evidence.candidates(), evidence.trace, report.boundaries)
    report.findings = []
    report.add(found)
    shown(report, evidence.observation)
    undecided(report, evidence.verdict)


def shown(report: Report, observation: Observation) -> None:
    """Writes the tables of a watched run into its report."""
    report.ops = sorted(observation.rows.values(), key=lambda row: row.first)
    report.exponents = observation.exponents
    report.facts |= facts(observation)


def undecided(report: Report, verdict: watched_runs.RunJudge) -> None:
    """Writes into the report which rules need more steps for a verdict, and how many."""
    if verdict.waiting:
        report.facts["too_few_steps"] = verdict.waiting


def facts(observation: Observation) -> dict[str, Any]:
    """Facts for the report: how many ops ran, and how many of them the shadow followed."""
    opaque = sum(observation.opaque.values())
    found: dict[str, Any] = {
        "ops": observation.seen,
        "shadowed": observation.shadowed,
        "covered": 1 - opaque / max(1, observation.shadowed),
        "opaque": dict(observation.opaque),
    }
    if observation.quantisers:
        found["quantisers"] = observation.quantisers
    if observation.forgotten:
        found["forgotten"] = f"the lineage of the first {observation.forgotten} ops was let go"
    if observation.unjudged:
        found["forgotten"] = f"{observation.forgotten} ops were let go unjudged: {observation.unjudged}"
    if observation.each_loss > 1:
        found["losses"] = f"of each {observation.each_loss} backward passes the loss that is furthest from its reference, and the last"
    return found


def record_nan(report: Report, job: Job, reference: Trace) -> None:
    """Writes into the report which inputs, weights and buffers hold NaN, if NaN is in the reference too. A warning of such NaN gets a cure for that.

    A model may be made for NaN, as one that fills in missing values is. Then its results hold none, and nothing is said.
    """
    if not any(record.nan for record in reference.records.values()) or not (found := given_nan(job)):
        return
    report.facts["given_nan"] = found
    first = next(iter(found))
    how = "by torch.nan_to_num, or by leaving out those rows" if first.startswith("inputs") else "by loading or initialising it anew"
    cure = f"take the NaN out of {first} first, {how}"
    told = [dataclasses.replace(each, advice=cure) if (each.rule, each.severity) == ("nan", "warning") else each for each in report.findings]
    report.findings = told


def given_nan(job: Job) -> dict[str, str]:
    """Each input, weight and buffer that holds NaN, with how many of its elements are: "1 of 32"."""
    return {name: f"{count} of {each.numel()}" for name, each in named(job.model, job.inputs) if (count := _nan(each))}


def _nan(value: Any) -> int:
    """How many elements of a dense tensor of torch's own are NaN. 0 for other values."""
    own = type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and value.layout == torch.strided
    return int(torch.isnan(value.detach()).sum()) if own and (value.is_floating_point() or value.is_complex()) and value.element_size() > 1 else 0


def record_depth(report: Report, depth: Depth, precision: Precision) -> None:
    """Writes the depth into the report if ops were not watched because the user asked for that."""
    if depth == "boundaries" and precision.is_low:
        report.facts["depth"] = depth


def depth_of(depth: Any) -> Depth:
    """The argument `depth`, validated."""
    if depth not in get_args(Depth):
        raise InputError(f"depth={depth!r}; pass 'ops' (every op beside float32) or 'boundaries' (modules, gradients and weights alone)")
    return depth  # type: ignore[no-any-return]


def diagnose(job: Job, precision: Precision, report: Report) -> None:
    """Writes op, line and cause into the errors of `report`, every op's drift into `report.ops`, and what was covered into `report.facts`.

    Costs one run of the job beside float32. The model is restored as after `measure`. If a model cannot be run this way, the report stays as it is,
    with the reason in `report.facts["diagnosis"]`.
    """
    if not precision.is_low:
        return
    first = [finding.step for finding in report.errors if finding.rule in conclusion.EFFECTS]
    steps = max(first, default=1) if job.optimizer else 1
    try:
        with doing("looking at every op"):
            observation = observed(dataclasses.replace(job, steps=max(1, min(steps, job.steps))), low(precision)).observation
    except Exception as error:  # the measurement is valid without a diagnosis; some models do not run under a dispatch mode
        report.facts["diagnosis"] = f"none: {type(error).__name__}: {error}"
        return
    suspects = watched_runs.RunJudge().candidates(observation)
    report.findings = [conclusion.with_cause(finding, observation, suspects)[0] for finding in report.findings]
    shown(report, observation)
