"""Makes the report of a session: a finding, a row for each subject, and the counts of trials."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from precheck.findings import RULES, Finding, Phase, Report, Row
from precheck.kernels import number_kinds, running
from precheck.kernels.bench import Bench
from precheck.kernels.causes import Cause
from precheck.kernels.session import SessionResult
from precheck.kernels.trial_result import Fault, Judged
from precheck.kernels.trials import Trial


def report(told: Sequence[SessionResult], benches: Sequence[Bench], precision: str) -> Report:
    """One report of all examples."""
    made = Report(precision=precision)
    for one, bench in zip(told, benches, strict=True):
        made.add(_findings(one, bench))
        made.boundaries += _rows(one)
    wrong = any(one.cause is not None for one in told)
    judged = any(not one.unjudged for one in told)
    made.facts = {"verdict": "different" if wrong else "rounding" if judged else "not judged", "exact": benches[0].exact_in, **_counts(told)}
    return made


def _counts(told: Sequence[SessionResult]) -> dict[str, Any]:
    """The trials in numbers. `untold`: subjects for which zeros would have passed in every trial."""
    worst = {name for one in told for name in one.worst}
    counts: dict[str, Any] = {"trials": sum(one.trials for one in told), "left_out_for_time": sum(one.skipped for one in told)}
    refused = {why: len(trials) for one in told for why, trials in one.refused.items()}
    optional = {
        "left_out_beyond_trials": sum(one.beyond for one in told),
        "refused_by_candidate": refused, "refused_by_reference_alone": sum(one.unchecked for one in told),
        "not_tried": sorted({words for one in told for words in one.untried}),
        "example_in_smaller_shapes_alone": any(one.whole_left_out for one in told),
        "unconfirmed": [text for one in told for text in one.unconfirmed], "untold": sorted(worst - {name for one in told for name in one.told_by}),
    }  # fmt: skip
    return counts | {name: value for name, value in optional.items() if value}


_TAKE = "take these inputs too; or keep the refusal, and let nobody call the kernel with them"
"""The cure for inputs that the candidate refuses."""


_IN_RANGE = (
    "keep the intermediate in range: subtract the largest number before exp, and divide before a square, a product or a sum; or compute it in a "
    "format with a wider range"
)
"""The cure for an intermediate that leaves the range of its format. In float32 it may be as far out as in a low format."""


_CONTRACT = {
    "form": "return what the reference returns: as many tensors, under the same names, in the same shapes and formats",
    "crash": "mend what raises: the reference takes these inputs",
    "refusal": "take the example's inputs, as the reference does",
}
"""The cures for candidates that give no result to compare, by the kind of the fault."""


_INFERENCE = "write its backward pass; or, if it is for inference only, pass gradients=False"
"""The cure for a candidate without a derivative."""


def _findings(told: SessionResult, bench: Bench) -> list[Finding]:
    found = [Finding(rule, "warning", text) for rule, text in told.warnings]
    if told.unjudged:
        found.append(RULES["kernel-contract"].finding("warning", f"not judged: {told.unjudged} (inputs: {described(Trial(given=True), bench)})"))
    blank = sorted(told.blank - told.known)
    if blank:
        why = "in every trial the reference's own is NaN or Inf, or correct implementations differ in all of its elements"
        text = f"not judged: {', '.join(blank)}: {why}; pass an example in which it is finite (inputs: {described(Trial(given=True), bench)})"
        found.append(RULES["kernel-contract"].finding("warning", text))
    if told.cause is not None and told.judged is not None:
        found.append(_error(told.judged, told.cause, bench))
    elif told.refused:
        why, trials = max(told.refused.items(), key=lambda item: len(item[1]))
        text = f"the candidate refuses {len(trials)} of the inputs that the reference takes: {why} (the first: {described(trials[0], bench)})"
        found.append(RULES["kernel-contract"].finding("warning", text, advice=_TAKE))
    if told.unchecked and told.cause is None:
        text = f"the candidate gives a result for {told.unchecked} of the inputs that the reference refuses, which nothing says is right"
        found.append(RULES["kernel-contract"].finding("warning", text))
    return found


def _error(judged: Judged, cause: Cause, bench: Bench) -> Finding:
    fault = judged.fault
    assert fault is not None
    why = f"; {cause.why}" if cause.why else ""
    phase: Phase = "backward" if fault.backward else "forward"
    measured = fault.distance.ratio if fault.distance is not None else None
    text = f"{fault.text}{why} (inputs: {described(judged.trial, bench)})"
    advice = _IN_RANGE if cause.beyond else _CONTRACT.get(fault.kind, "") if cause.rule == "kernel-contract" else ""
    if _has_no_derivative(judged, fault, bench):
        advice = _INFERENCE
    return Finding(cause.rule, "error", text, phase=phase, tensor=fault.subject, measured=measured, limit=1.0, advice=advice)


def _has_no_derivative(judged: Judged, fault: Fault, bench: Bench) -> bool:
    """Whether a gradient is missing, the backward pass raises, or the forward pass does and only where a gradient is asked for."""
    if fault.kind != "crash" or fault.backward or not bench.wishes.gradients:
        return fault.backward and (fault.kind == "crash" or (fault.kind == "missing" and fault.distance is not None))
    made, wishes = bench.make(judged.trial), dataclasses.replace(bench.wishes_of(judged.trial), gradients=False)
    return running.run(bench.candidate, bench.example, made.values, made.numbers, wishes).error is None


def described(trial: Trial, bench: Bench) -> str:
    """The inputs of a trial in words: shapes, and how they differ from the example."""
    shapes = [str(tuple(leaf.tensor.shape) if trial.given else bench.dimensions.shape(place, dict(trial.sizes)))
              for place, leaf in enumerate(bench.example.leaves)]  # fmt: skip
    dtypes = sorted({str(leaf.tensor.dtype).removeprefix("torch.") for leaf in bench.example.leaves})
    words = [", ".join(shapes), "/".join(dtypes), *["the example's own numbers"] * trial.given,
             *[number_kinds.WORDS[trial.family]] * (not trial.given or trial.leaf >= 0)]  # fmt: skip
    if trial.layout != "contiguous":
        words.append(trial.layout if trial.laid < 0 else f"inputs{bench.example.leaves[trial.laid].path} {trial.layout}")
    if trial.upstream != "random":
        words.append(f"an incoming gradient that is {trial.upstream}")
    return ", ".join(words)


def _rows(told: SessionResult) -> list[Row]:
    """For each subject, the trial with the largest error."""
    rows = []
    for name, judged in told.worst.items():
        found = judged.distances[name]
        kind, tensor = ("gradient" if "gradient" in name else "output"), name.removeprefix("gradient of ")
        r = found.ratio if math.isfinite(found.ratio) else math.inf
        failed = told.cause is not None and told.judged is not None and told.judged.fault is not None and told.judged.fault.subject == name
        shown = r if failed else min(r, 1.0)
        dtype = told.formats.get(name, "")
        rows.append(Row(tensor, kind, 1, (), dtype, shown, 1.0, found.relative, found.relative / r if r else 0.0, found.relative, found.lost))
    return rows
