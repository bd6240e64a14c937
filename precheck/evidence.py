"""The result of one run of a job, and the verdict on it: its boundaries, its decisions and, at depth `ops`, every op beside float32.

The story: the run goes through the shadow once. It gives the records that boundaries are judged by, and the operations that the rules of `watch`
read. So a check and a watch conclude the same from the same run. Both sets of findings go into one report.
"""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

from precheck.findings import Report
from precheck.judge import conclusion, ops
from precheck.observe.decisions import DecisionLog
from precheck.observe.job import Depth, InputError, Job
from precheck.observe.listeners import doing
from precheck.observe.records import Trace
from precheck.observe.run import low, observed, run
from precheck.observe.shadow.operations import Observation
from precheck.precisions import Precision


@dataclasses.dataclass(slots=True)
class Evidence:
    """One run under a precision. `observation` is None where no op was looked at, and `unseen` says why, if that was not asked for."""

    trace: Trace
    log: DecisionLog
    observation: Observation | None = None
    verdict: ops.Verdict | None = None
    unseen: str = ""
    functions: bool = False  # whether the trace has what functions return
    reference: Trace | None = None  # the float32 run on the same decisions, where the run's shadow was that


def gathered(job: Job, precision: Precision, depth: Depth = "boundaries", *, functions: bool = True, refers: bool = False) -> Evidence:
    """Runs `job` under `precision` once, and at depth `ops` every op of it beside float32; with what `functions` return, if they are asked for.
    `refers`: what is recorded is to be compared with float32 afterwards, not with a golden.

    Raises what the model raises. A model that runs, but not with a dispatch mode around it, is judged by its boundaries alone.
    """
    log = DecisionLog()
    setting = dataclasses.replace(low(precision, records=log), functions=functions and depth == "ops" and precision.is_low)
    if depth == "boundaries" or not precision.is_low:
        return Evidence(run(job, setting), log)
    verdict = ops.Verdict()
    try:
        with doing("looking at every op"):
            seen = observed(job, setting, judge=verdict, refers=refers)
    except Exception as error:
        log = DecisionLog()
        trace = run(job, dataclasses.replace(setting, records=log))  # raises again what is the model's own
        return Evidence(trace, log, unseen=f"{type(error).__name__}: {error}", functions=setting.functions)
    # casts there and back, which the float32 run rounds, its shadow need not
    reference = None if log.meant else seen.reference
    return Evidence(seen.trace, log, seen.observation, verdict, functions=setting.functions, reference=reference)


def added_up(job: Job, seen: Evidence) -> dict[str, tuple[str, str]]:
    """Keys of gradients that autograd alone makes as sums, and the keys that their terms are told by: of what torch's own modules hold these are the
    gradient of the module's output, and that output.

    None where the user has written a backward pass, or where no op was looked at: then nobody knows whose errors add up. Nor of modules that are
    called more than once.
    """
    if seen.observation is None or any(operation.phase == "backward" and not operation.derived for operation in seen.observation.operations):
        return {}
    own = [(name, module) for name, module in job.model.named_modules() if type(module).__module__.startswith("torch.nn.modules.")]
    once = [(name, module) for name, module in own if f"output:{name}#2@1" not in seen.trace.records]
    held = ((name, inner) for name, module in once for inner, _ in module.named_parameters(recurse=False))
    return {f"parameter-gradient:{name}.{inner}@1": (f"gradient:{name}@1", f"output:{name}@1") for name, inner in held}


def concluded(report: Report, evidence: Evidence) -> None:
    """Adds to `report`, on the boundaries of a run, what its ops show: findings, the ops behind errors at boundaries, the tables."""
    if evidence.unseen:
        report.facts["diagnosis"] = f"none: {evidence.unseen}"
    if evidence.observation is None or evidence.verdict is None:
        return
    found = conclusion.concluded(report.findings, evidence.observation, evidence.verdict, evidence.trace, report.boundaries)
    report.findings = []
    report.add(found)
    shown(report, evidence.observation)
    undecided(report, evidence.verdict)


def shown(report: Report, observation: Observation) -> None:
    """Puts the tables of a run that was watched op by op into its report."""
    report.ops = sorted(observation.rows.values(), key=lambda row: row.first)
    report.exponents = observation.exponents
    report.facts |= facts(observation)


def undecided(report: Report, verdict: ops.Verdict) -> None:
    """Says of which rules the run had too few steps, and how many would tell."""
    if verdict.waiting:
        report.facts["too_few_steps"] = verdict.waiting


def facts(observation: Observation) -> dict[str, Any]:
    """How much of a run the shadow followed."""
    opaque = sum(observation.opaque.values())
    found: dict[str, Any] = {
        "ops": observation.seen,
        "shadowed": observation.shadowed,
        "covered": 1 - opaque / max(1, observation.shadowed),
        "opaque": dict(observation.opaque),
    }
    if observation.forgotten:
        found["forgotten"] = f"the lineage of the first {observation.forgotten} ops was let go"
    if observation.unjudged:
        found["forgotten"] = f"{observation.forgotten} ops were let go unjudged: {observation.unjudged}"
    if observation.each_loss > 1:
        found["losses"] = f"of each {observation.each_loss} backward passes the loss that is furthest from its reference, and the last"
    return found


def told_of(report: Report, depth: Depth, precision: Precision) -> None:
    """Says where no op was looked at since that was asked for."""
    if depth == "boundaries" and precision.is_low:
        report.facts["depth"] = depth


def depth_of(depth: Any) -> Depth:
    """The argument `depth`, validated."""
    if depth not in get_args(Depth):
        raise InputError(f"depth={depth!r}; pass 'ops' (every op beside float32) or 'boundaries' (modules, gradients and weights alone)")
    return depth  # type: ignore[no-any-return]
