"""Makes the report of a comparison: findings, rows, and one verdict."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from precheck.findings import RULES, Finding, Phase, Report, Row
from precheck.pairs import fused
from precheck.pairs.accuracy_loss import first_loss
from precheck.pairs.callables import users_name
from precheck.pairs.comparison import Comparison
from precheck.pairs.first_difference import first_difference
from precheck.pairs.place import Place
from precheck.pairs.recorded_side import Against
from precheck.pairs.transformations import explanation
from precheck.pairs.verdicts import GRAVEST, Judged
from precheck.precisions import Precision
from precheck.words import counted, digits, module_words, of_norm, percents

_PHASES: dict[str, Phase] = {
    "result": "forward", "loss": "forward", "buffer": "forward",
    "input-gradient": "backward", "parameter-gradient": "backward", "update": "optimizer",
}  # fmt: skip
_KINDS = {
    "result": "output", "loss": "loss", "buffer": "buffer", "input-gradient": "gradient",
    "parameter-gradient": "parameter-gradient", "update": "update",
}  # fmt: skip


DECIDES = "32-true"
"""The precision that tells functions apart which a lower one makes equal."""


class Names(NamedTuple):
    """What messages call the two sides."""

    model: str = "model"
    other: str = "other"
    reference: str = "the reference (model)"


def report(comparison: Comparison | Against, rows: Sequence[Judged], names: Names = Names()) -> Report:  # noqa: B008
    """The report with findings, rows and facts of a comparison whose subjects are judged."""
    made = Report(precision=comparison.precision.name)
    made.boundaries = [_row(row) for row in rows if row.shape or row.dtype]
    facts = {name: [users_name(each) for each in told] if isinstance(told, list) else told for name, told in comparison.facts().items()}
    made.facts = {"verdict": verdict(rows), "exact": "", **facts}
    if not made.facts["exact"]:
        del made.facts["exact"]
    if _hiding(rows, comparison.precision, names):
        made.facts["decided_under"] = DECIDES
    found = findings(rows, comparison.precision, names)
    made.add(_named(each) for each in (placed(found, comparison, names) if isinstance(comparison, Comparison) else recorded(found, comparison)))
    return made


def _named(finding: Finding) -> Finding:
    """The finding with names as in the user's code, where parts are compiled."""
    texts = {name: users_name(getattr(finding, name) or "") for name in ("module", "tensor", "message")}
    return dataclasses.replace(finding, **{name: text for name, text in texts.items() if text != (getattr(finding, name) or "")})  # type: ignore[arg-type]


def placed(found: Sequence[Finding], comparison: Comparison, names: Names) -> list[Finding]:
    """Adds to errors the module and line where the two differ first, or where `other` loses accuracy."""
    return [_at(each, comparison, names) if each.severity == "error" else each for each in found]


def recorded(found: Sequence[Finding], against: Against) -> list[Finding]:
    """Adds to errors the first module of the recorded run that differs. A gradient's own module stays where no result differs."""
    errors = any(each.severity == "error" for each in found)
    module = against.first_module() if errors else None
    if module is None:
        return list(found)
    said = f"; they first differ {_whose(module)}"
    return [dataclasses.replace(each, message=each.message + said, module=module) if each.severity == "error" else each for each in found]


def _whose(module: str) -> str:
    return f"in {module_words(users_name(module))}" if module else "in the model's own code"


def _at(finding: Finding, comparison: Comparison, names: Names) -> Finding:
    place = first_difference(comparison) if finding.rule == "different" else first_loss(comparison)
    if place is None and finding.module and finding.phase == "forward":  # a buffer, whose difference no module's result shows
        place = Place(finding.module, comparison.matching.modules.get(finding.module))
    if place is None:
        why = fused.explanation(comparison) if finding.rule == "less-accurate" and comparison.other.compiled else ""
        return dataclasses.replace(finding, message=f"{finding.message}; {why}") if why else finding
    line = f", at {place.source}" if place.source else ""
    verb = "they first differ" if finding.rule == "different" else f"{names.other} first loses accuracy"
    why = explanation(comparison, place) if finding.rule == "different" else ""
    said = f"{finding.message}; {verb} {_whose(place.module)}{line}{f': {why}' if why else ''}"
    return dataclasses.replace(finding, message=said, module=place.module, source=place.source, op=place.op)


def verdict(rows: Sequence[Judged]) -> str:
    """The most severe verdict. If only the reference is less accurate, the verdict is "rounding"."""
    found = next((each for each in GRAVEST if any(row.verdict == each for row in rows)), "bitwise")
    return "rounding" if found == "model less accurate" else found


def gravest(verdicts: Sequence[str]) -> str:
    """The most severe verdict of several comparisons."""
    return next((each for each in GRAVEST if each in verdicts), "bitwise")


def findings(rows: Sequence[Judged], precision: Precision, names: Names) -> list[Finding]:
    """One finding for each kind of verdict, about its first subject. Notes only without errors, `rounding` and `bitwise` only if there is nothing
    else."""
    found: list[Finding] = []
    for each in GRAVEST:
        some = [row for row in rows if row.verdict == each]
        if some and (each in ("different", "less accurate") or not any(finding.severity == "error" for finding in found)):
            if each in ("rounding", "bitwise") and found:
                continue
            found.append(_finding(some, rows, precision, names))
    return found or [RULES["bitwise"].finding("note", "nothing to compare: no output, loss or gradient is on both sides")]


def _finding(some: Sequence[Judged], rows: Sequence[Judged], precision: Precision, names: Names) -> Finding:
    first = some[0]
    worst = max(some, key=lambda row: row.r / row.allowed)
    title, more = first.subject.title, f"; {counted(len(some) - 1, 'more tensor')} too" if len(some) > 1 else ""
    common: dict[str, Any] = {
        "phase": _PHASES[first.subject.kind], "module": first.subject.module, "step": first.subject.step, "tensor": first.subject.name,
        "measured": first.r, "limit": first.allowed,
    }  # fmt: skip
    if first.verdict == "bitwise":
        all_of = "the 1 tensor is" if len(rows) == 1 else f"all {len(rows)} tensors are"
        hidden = f"; what rounding hides was not looked at: compare under {DECIDES} too" if _hiding(rows, precision, names) else ""
        return RULES["bitwise"].finding("note", f"{all_of} equal bit for bit under {precision}{hidden}", measured=0.0, limit=worst.allowed)
    if first.verdict == "rounding":
        same = sum(row.verdict == "bitwise" for row in rows)
        return RULES["rounding"].finding(
            "note",
            f"correct rounding explains all that differs under {precision}: {len(some)} of {counted(len(rows), 'tensor')} "
            f"(at most r = {digits(worst.r, 3)}, {digits(worst.allowed, 3)} allowed: {worst.subject.title}); equal bit for bit: {same}",
            measured=worst.r, limit=worst.allowed,
        )  # fmt: skip
    if first.why:
        why = f"{title}: {first.why}{more}"
        if first.verdict == "different":
            return RULES["different"].finding("error", why, **common)
        return RULES["undecidable"].finding("note", why, **common)
    if first.verdict == "different":
        return RULES["different"].finding("error", f"{title}: {names.other} computes something else: {_apart(first, names)}{more}", **common)
    if first.verdict == "less accurate":
        return RULES["less-accurate"].finding("error", f"{title}: under {precision} {_off(first, names.other, names.model)}{more}", **common)
    if first.verdict == "model less accurate":
        return RULES["less-accurate"].finding("note", f"{title}: under {precision} {_off(first, names.reference, names.other)}{more}", **common)
    below = f"without rounding the two differ, by less than rounding under {precision} explains"
    return RULES["undecidable"].finding("note", f"{title}: {below}; to decide, compare under {DECIDES}{more}", **common)


def _hiding(rows: Sequence[Judged], precision: Precision, names: Names) -> bool:
    """Whether the two models may differ by less than a rounding of this precision, without being told apart: their exact runs do, or none were
    made, since all bits are equal. A model that is run in another way is the same function, where there is nothing to hide."""
    return precision.is_low and names == Names() and verdict(rows) in ("bitwise", "undecidable")


def _apart(row: Judged, names: Names) -> str:
    """How far two exact results are apart, in words."""
    if row.nonfinite:
        return f"{_nonfinite(row)} on one side alone, {'there' if row.recorded else 'even without rounding'}"
    differing = "it differs from model's exact result" if row.recorded else f"even without rounding it differs from {names.model}"
    return f"{differing} {_by(row)}"


def _off(row: Judged, who: str, rival: str) -> str:
    """How far one side's result is from its own exact result, in words."""
    return f"{_nonfinite(row)} in {who} alone" if row.nonfinite else f"{who} is off {_by(row)}; {rival} is not"


def _nonfinite(row: Judged) -> str:
    return f"{counted(row.nonfinite, 'element')} {'is' if row.nonfinite == 1 else 'are'} Inf or NaN"


def _by(row: Judged) -> str:
    """How far a tensor is off, in words."""
    if not math.isfinite(row.r):
        return f"by {of_norm(row.relative)}, more than any rounding explains"
    if row.where:
        return f"in {row.where} by {digits(row.r, 3)} times what rounding explains ({digits(row.allowed, 3)} allowed)"
    return f"by {of_norm(row.relative)}, where rounding explains {percents(_share(row))} (r = {digits(row.r, 3)}, {digits(row.allowed, 3)} allowed)"


def _share(row: Judged) -> float:
    return row.floor / row.norm if row.norm else 0.0


def _row(row: Judged) -> Row:
    """A row of the report. If it is no error, its number is kept within the limit."""
    r = row.r if row.verdict in ("different", "less accurate") else min(row.r, row.allowed)
    kind = _KINDS[row.subject.kind]
    name = f"inputs{row.subject.name}" if row.subject.kind == "input-gradient" else users_name(row.subject.name) or "output"
    return Row(name, kind, row.subject.step, row.shape, row.dtype, r, row.allowed, row.drift, row.floor, row.relative, row.nonfinite)
