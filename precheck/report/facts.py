"""Words `Report.facts` for all forms of reports: how the report was made, and what it could not judge."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from precheck.findings import Report
from precheck.words import LONGEST, cut, digits, one_line, portion, tensor_name

Key = tuple[str, str, int]
"""A tensor's kind, name and step."""
UNLOOKED = "single ops, and what functions return"
"""What only a run that is watched op by op shows."""
LISTED = 5
"""The most tensors that a sentence names, worst first. It gives the number of the others."""
COARSE = 0.25
"""Share of a tensor's norm from which its drift is told although rounding explains it: fewer than two of its binary digits are correct."""
SHOWN = 24
"""The most lines of code that a report shows."""
UNCHANGED = "unchanged_since"
"""The fact of a report that was not made again: the day on which it was made."""
_ROUNDING = "correct rounding explains their error if it is counted op by op, and not only at the results of modules"
_REFERENCE = "float64 disagrees with float32 there by about as much, so float32 is no reference for them"
_EITHER = f"{_ROUNDING}, or {_REFERENCE}"  # for a report that does not say which


def excused(report: Report, shown: Collection[Key] = ()) -> list[str]:
    """A sentence for each reason why tensors beyond their limits are no error, with the names of the tensors. `shown`: those that a table has
    given with their reasons."""
    keys = excused_keys(report.facts).difference(shown)
    unstable = unstable_keys(report.facts) & keys
    why = _ROUNDING if "unstable" in report.facts else _EITHER
    return [_sentence(report, some, reason) for some, reason in ((keys - unstable, why), (unstable, _REFERENCE)) if some]


def failing_inputs(report: Report) -> list[str]:
    """Code that rebuilds the smallest inputs that fail, or where it is."""
    lines = str(report.facts.get("code", "")).splitlines()
    if len(lines) > SHOWN:
        return [f'report.facts["code"] rebuilds the smallest inputs that fail, in {len(lines)} lines']
    return ["the smallest inputs that fail:", *(f"    {line}".rstrip() for line in lines)] if lines else []


def excused_keys(facts: Mapping[str, Any]) -> set[Key]:
    """The keys of the tensors that a closer look found healthy."""
    return _keys(facts.get("excused"))


def unstable_keys(facts: Mapping[str, Any]) -> set[Key]:
    """The keys of those for which float32 is no valid reference."""
    return _keys(facts.get("unstable"))


def allowances(report: Report, name: str) -> dict[str, str]:
    """Rules with the user's reasons. `name` is "allowed" or "not_needed"."""
    found = report.facts.get(name)
    return {str(rule): str(why) for rule, why in found.items()} if isinstance(found, dict) else {}


def not_needed(report: Report) -> list[str]:
    """A sentence for each allowance that was not needed."""
    return [idle(rule, why, report.precision and f"under {report.precision}") for rule, why in allowances(report, "not_needed").items()]


def idle(rule: str, why: str, where: str) -> str:
    """The sentence on an allowance that was not needed in a report or a check. One run cannot say that of other precisions."""
    place, others = (f" {where}", ", unless another precision needs it") if where else ("", "")
    return f"{rule} is allowed ({why}), and was not found{place}: leave it out of allow={others}"


def given_nan(report: Report) -> str:
    """A sentence on inputs and weights that hold NaN, of which nothing can be said where it goes. "" if none does."""
    found = report.facts.get("given_nan")
    if not isinstance(found, dict) or not found:
        return ""
    named = ", ".join(f"{count} elements of {name}" for name, count in list(found.items())[:LISTED])
    more = f" and some of {_counted(len(found) - LISTED, 'more tensor')}" if len(found) > LISTED else ""
    return one_line(f"{named}{more} are NaN, so what they reach is not judged")


def unjudged(report: Report, *, beside_findings: bool = False) -> list[str]:
    """A line for each kind of thing that was not judged: for too few steps, or since ops were not watched. `beside_findings`: without those that a
    finding of the report tells."""
    lines, needed = [], report.facts.get("too_few_steps")
    told = {f"{finding.rule} at {finding.source}" for finding in report.findings} if beside_findings else set()
    lacking = [f"{where} ({steps} needed)" for where, steps in needed.items() if where not in told] if isinstance(needed, dict) else []
    if lacking:
        lines.append(f"too few steps to tell: {', '.join(lacking)}")
    lost = report.facts.get("without_numbers")
    if isinstance(lost, list) and lost and not report.errors:
        names = ", ".join(map(str, lost[:LISTED])) + (f" and {len(lost) - LISTED} more" if lost[LISTED:] else "")
        look = "" if given_nan(report) else "; look for Inf in the inputs and weights, Inf - Inf and 0/0"
        lines.append(f"not judged: {names}: Inf or NaN in float32 too, in all elements{look}")
    if report.facts.get("shadowed") == 0 and report.boundaries and not report.errors:  # of a measurement; a watched block says it in its first line
        lines.append(f"not judged: {report.precision} itself, since no op of this run read a number in its format (autocast leaves float64 as it is)")
    if report.facts.get("no_results"):
        lines.append("not looked at: what the model returns, since it holds no floating-point tensor (tuples, lists, dicts and dataclasses may)")
    if report.facts.get("depth") == "boundaries":
        lines.append(f"not looked at: {UNLOOKED}, since the depth is boundaries")
    elif str(report.facts.get("diagnosis", "")).startswith("none: "):
        why = one_line(str(report.facts["diagnosis"]).removeprefix("none: "))
        lines.append(f"not looked at: {UNLOOKED}, since the model does not run op by op ({why})")
    return lines


def hidden(report: Report) -> str:
    """A sentence on a difference of two models that this precision is too coarse to show. "" if there is none."""
    if not report.facts.get("decided_under") or report.errors:
        return ""
    finer, rounds = f"--precision={report.facts['decided_under']}", f"less than {report.precision} rounds"
    if report.verdict == "undecidable":
        return f"the two models differ, by {rounds} ({finer} judges that)"
    return f"not looked at: whether the two models differ by {rounds} ({finer} does)"


def coarse(report: Report) -> list[str]:
    """A sentence on the tensors of a passing run that its precision is too coarse for, however correctly it rounds. Empty if there are none.

    A tensor beyond its limit is none of them, unless a closer look explained it: the user has allowed its error, and rounding does not explain it."""
    far = [row for row in report.boundaries if row.relative >= COARSE and not row.nonfinite and (row.determined or row.kind == "loss")]
    why = excused_keys(report.facts)
    far = [row for row in far if not row.failed or (row.kind, row.tensor, row.step) in why]
    if report.errors or not far:
        return []
    far.sort(key=lambda row: row.relative, reverse=True)
    named = ", ".join(f"{tensor_name(row.kind, row.tensor, row.step)} ({portion(row.relative)})" for row in far[:LISTED])
    more = f" and {len(far) - LISTED} more" if far[LISTED:] else ""
    return [f"{report.precision or 'the format'} is too coarse for {named}{more}: off by so much of its norm, and correct rounding explains it"]


def followed(report: Report) -> str:
    """How much of a run the shadow followed, in words. "" where ops were not watched."""
    shadowed, ops, covered = (report.facts.get(name) for name in ("shadowed", "ops", "covered"))
    if not isinstance(shadowed, int) or not isinstance(ops, int):
        return ""
    end = f", {100 * covered:.1f}% of them to the end" if isinstance(covered, (int, float)) and covered != 1 else ""
    return f"{shadowed} of {ops} ops compared with {report.facts.get('reference', 'float32')}{end}"


def quantisers(report: Report) -> str:
    """On how many lines numbers were rounded under a scale that they were multiplied by later, in words. "" if on none."""
    lines = report.facts.get("quantisers")
    return f"quantisers followed on {_counted(lines, 'line')}" if isinstance(lines, int) and lines else ""


def in_words(report: Report) -> list[tuple[str, str]]:
    """All facts and the loss scale in words, each with a title."""
    return [(title, cut(one_line(words), 10 * LONGEST)) for title, words in _titled(report) if words]


def _titled(report: Report) -> Iterator[tuple[str, str]]:
    facts, known = report.facts, {"excused", "unstable", "unasked", "allowed", "not_needed", "layers", "too_few_steps", "depth", "diagnosis"}
    known.add("given_nan")
    yield "not judged", "; ".join([*filter(None, [given_nan(report)]), *unjudged(report)])
    yield "passed on a closer look", " ".join(excused(report))
    yield "too coarse", " ".join(coarse(report))
    yield "allowed", "; ".join(f"{rule}: {why}" for rule, why in allowances(report, "allowed").items())
    yield "not needed", "; ".join(not_needed(report))
    yield "loss scale", _loss_scale(report.scaler)
    if isinstance(facts.get(UNCHANGED), str):
        known.add(UNCHANGED)
        yield "not judged again", f"it passed on {facts[UNCHANGED]} with the same code, numbers and settings; the figures are of that day"
    if isinstance(facts.get("noise_runs"), int):
        known.add("noise_runs")
        yield "noise floor", f"estimated from {_counted(facts['noise_runs'], 'run')} with random rounding"
    if isinstance(facts.get("decisions"), int):
        known |= {"decisions", "flips"}
        yield "decisions", _decisions(facts["decisions"], facts.get("flips", 0))
    if followed(report):
        known |= {"ops", "shadowed", "covered", "reference"}
        yield "ops", f"{followed(report)}; the others have no low-precision input"
    if quantisers(report):
        known.add("quantisers")
        yield "quantisers", quantisers(report).removeprefix("quantisers ")
    if isinstance(facts.get("opaque"), dict):
        known.add("opaque")
        yield "ops not followed", ", ".join(f"{name} ({times} times)" for name, times in facts["opaque"].items())
    for name, value in facts.items():
        if name not in known:
            yield name.replace("_", " "), value if isinstance(value, str) else json.dumps(value)


def _loss_scale(scaler: dict[str, Any]) -> str:
    """The loss scale of a measurement. That of a watched run is drawn instead."""
    if "history" in scaler or not isinstance(scaler.get("scale"), (int, float)):
        return ""
    collapsed = "; it fell below 1" if scaler.get("collapsed") else ""
    return f"{scaler['scale']:,.10g}, {_counted(scaler.get('skipped', 0), 'step')} skipped{collapsed}"


def _decisions(total: int, flips: Any) -> str:
    """How many elements comparisons, top-k, arg-max and casts to integers chose, and how many float32 would choose otherwise."""
    if not total:
        return "none: the run has no comparison, top-k, arg-max or cast to integers"
    return f"{_counted(total, 'element')} chosen by comparisons, top-k, arg-max or casts to integers, as in the run; {flips} would differ in float32"


def _sentence(report: Report, keys: Collection[Key], why: str) -> str:
    rows = sorted((row for row in report.boundaries if (row.kind, row.tensor, row.step) in keys), key=lambda row: row.r / row.allowed, reverse=True)
    named = [f"{tensor_name(row.kind, row.tensor, row.step)} (r {digits(row.r, 3)} of {digits(row.allowed, 3)} allowed)" for row in rows[:LISTED]]
    left = len(keys) - len(named)
    which = f": {', '.join(named)}" + (f" and {left} more" if left else "") if named else ""
    alone = why.replace("their error", "its error").replace("for them", "for it")
    if len(keys) == 1:
        return f"1 tensor is beyond or near its limit without fault: {alone}{which}."
    return f"{len(keys)} tensors are beyond or near their limits without fault: {why}{which}."


def _keys(value: Any) -> set[Key]:
    """Parses a list of texts such as "gradient:layers.0@1"."""
    found = (re.fullmatch(r"([^:]*):(.*)@(\d+)", each, re.DOTALL) for each in (value if isinstance(value, list) else ()) if isinstance(each, str))
    return {(match[1], match[2], int(match[3])) for match in found if match}


def _counted(number: Any, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}" if isinstance(number, int) else f"{number} {noun}s"
