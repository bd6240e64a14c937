"""The public result types: `Finding`, the `Report` that holds findings, and the catalogue of rules `RULES`.

Imports neither torch nor numpy.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from precheck.words import writable

Severity = Literal["error", "warning", "note"]
Phase = Literal["forward", "backward", "optimizer", "scaler", "data"]
SCHEMA = 3
"""Version of the JSON forms: 2 added `ops`, `cure` and a finding's `cause`; 3 `losses` and `exponents`."""
_GRAVITY: dict[str, int] = {"error": 0, "warning": 1, "note": 2}


@dataclasses.dataclass(frozen=True, slots=True)
class RuleInfo:
    """A kind of fault that precheck knows: one sentence, its limits, its remedy."""

    name: str
    meaning: str  # "it fires when …"
    remedy: str
    rank: int = 1000  # order in lists, and of rules on one op; rules that explain other findings have low ranks

    def meant(self, severity: str) -> str:
        """When the rule fires with this severity, if its meaning says so of one alone: "…; as a warning: …"."""
        usual, _, other = self.meaning.partition("; as a ")
        which, _, rest = other.partition(": ")
        return rest if which == severity else usual

    def finding(self, severity: Severity, message: str, **place: Any) -> Finding:
        """A finding of this rule. `place`: fields of the finding."""
        return Finding(self.name, severity, message, **place)


Rule = RuleInfo
"""The former name."""


class _Catalogue(Mapping[str, RuleInfo]):
    """All rules by name. They are read from their folders at the first access."""

    def __getitem__(self, name: str) -> RuleInfo:
        return self._rules()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules())

    def __len__(self) -> int:
        return len(self._rules())

    @staticmethod
    def _rules() -> dict[str, RuleInfo]:
        from precheck.rules import catalogue

        return catalogue()


RULES: Mapping[str, RuleInfo] = _Catalogue()


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One fault: its rule, its severity, the place in the code, and the numbers that show it.

    Attributes:
        rule: A name of `precheck.RULES`.
        severity: "error" fails a check, "warning" is counted, "note" is for information.
        message: What failed, where and by how much. Its first line stands alone.
        phase: "forward", "backward", "optimizer", "scaler" or "data".
        op: As torch's dispatcher names it: "aten.mul.Tensor". Empty if no op is to blame.
        module: As `model.get_submodule` takes it: "layers.0.attn"; "" is the model itself.
        source: Your line: "models/gpt.py:88", relative to the working directory where it lies in it.
        step: The step of the run, from 1.
        tensor: The tensor or parameter that it is about.
        measured: In the unit of the rule's limit; of `accumulated-drift`, r.
        limit: What `measured` may reach at most, or at least where a share has to arrive.
        cause: The op that caused the error of a module or gradient: "aten.pow.Tensor_Scalar at models/norm.py:8: …".
        cause_rule: The rule by which that op caused it.
        via: The line of an installed package that `source` led to: "keras/src/backend/torch/numpy.py:156".
        ranks: The ranks of a distributed run on which it was found. Empty in a run of one process.
        advice: What to change on this line. Empty where the rule's remedy is all that is known.
    """

    rule: str
    severity: Severity
    message: str
    phase: Phase = "forward"
    op: str = ""
    module: str = ""
    source: str = ""
    step: int = 1
    tensor: str = ""
    measured: float | None = None
    limit: float | None = None
    cause: str = ""
    cause_rule: str = ""
    via: str = ""
    ranks: tuple[int, ...] = ()
    advice: str = ""

    @property
    def remedy(self) -> str:
        """What to change: the advice for this place, or else the remedy of the rule."""
        return self.advice or RULES[self.cause_rule or self.rule].remedy

    def __str__(self) -> str:
        return writable(f"{self.severity}: {self.rule}: {self.message}")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One tensor of the run beside its reference, as reports show it. Norms are Euclidean."""

    tensor: str
    kind: str
    step: int
    shape: tuple[int, ...]
    dtype: str
    r: float  # drift in noise floors
    allowed: float
    drift: float
    floor: float
    relative: float  # drift over the reference's norm
    nonfinite: int  # NaN and Inf beyond the reference's

    @property
    def failed(self) -> bool:
        return self.r > self.allowed

    @property
    def determined(self) -> bool:
        """Whether the tensor is more than rounding error. False for tensors that are zero in theory, such as the gradient of a key's bias."""
        return self.nonfinite > 0 or self.relative <= 0.5 * self.r or self.relative == 0


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """The loss of a step, or of one of its backward passes, beside that of the reference. A loss scale is divided out."""

    step: int
    low: float
    reference: float
    floor: float | None = None  # difference that correct rounding explains; None where not measured
    source: str = ""  # of a watched run, the line that called backward()


@dataclasses.dataclass(frozen=True, slots=True)
class Binades:
    """How many elements of a tensor of the reference lie in each binade: `counts[i]` have 2**(least + i) <= |x| < 2**(least + i + 1)."""

    tensor: str  # as in `Row`; "" of an op's result
    kind: str  # as in `Row`, or "op"
    step: int
    dtype: str  # as stored by the run
    elements: int  # of the tensor; fewer were counted if the counts, zeros and nonfinite add up to less
    least: int = 0
    counts: tuple[int, ...] = ()
    zeros: int = 0
    nonfinite: int = 0
    scale: float = 1.0  # loss scale of the run's tensor, already divided out
    op: str = ""  # these four are for an op's result, as in `Finding`
    phase: str = ""
    module: str = ""
    source: str = ""


class PrecisionFailure(AssertionError):
    """A precision check failed; the text is the report's summary."""


@dataclasses.dataclass(slots=True)
class OpRow:
    """All calls of one op on one line, for the drift report. Drifts are those of the worst call."""

    op: str
    phase: str
    module: str
    source: str
    dtype: str
    calls: int = 0
    drift: float = 0.0
    inherited: float = 0.0  # greatest drift of its inputs, in the call with the worst drift
    nonfinite: int = 0
    zeros: int = 0
    flips: int = 0
    opaque: str = ""
    first: int = 0  # number of the first call

    @property
    def added(self) -> float:
        return max(0.0, self.drift - self.inherited)


OPEN = "nothing is judged yet: the block of watch() has not ended; use its report after the block, one level further left"
"""Said of a report that is read too early, since it has no findings then and would look like a pass."""


@dataclasses.dataclass(slots=True)
class Report:
    """What a run under a precision showed. It holds numbers only, no tensor.

    Attributes:
        precision: The precision's name; "" of a `watch()` without one.
        findings: The worst severity first; within one, in the order of the run.
        boundaries: What modules and functions return, gradients, weights and the loss, each beside float32.
        updates: For each low-precision parameter, the share of its intended update that arrived, and why.
        scaler: The scale of a GradScaler, its skipped steps, and the largest safe scale.
        ops: Every op's error, in the order of the run.
        losses: The loss of each step, beside float32's.
        exponents: How many elements of each tensor lie in each power of two.
        cure: Code that keeps a few modules in float32. It was tried: with it the check passes.
        facts: How the report was made: noise runs, decisions followed, what was left out.
    """

    precision: str = ""
    findings: list[Finding] = dataclasses.field(default_factory=list)
    boundaries: list[Row] = dataclasses.field(default_factory=list)
    updates: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    scaler: dict[str, Any] = dataclasses.field(default_factory=dict)
    ops: list[OpRow] = dataclasses.field(default_factory=list)
    losses: list[Loss] = dataclasses.field(default_factory=list)
    exponents: list[Binades] = dataclasses.field(default_factory=list)
    cure: str = ""
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def errors(self) -> list[Finding]:
        """The findings that fail a check. Raises RuntimeError within the block of a `watch()`, of which nothing is known yet."""
        if self.facts.get("open"):
            raise RuntimeError(OPEN)
        return [finding for finding in self.findings if finding.severity == "error"]

    @property
    def verdict(self) -> str:
        """Of two compared: "bitwise", "rounding", "less accurate", "different" or "undecidable", the gravest of any tensor;
        of a kernel that cannot be run here "not judged"; else ""."""
        return str(self.facts.get("verdict", ""))

    @property
    def worst(self) -> Row | None:
        """The boundary with the highest r in proportion to what it is allowed."""
        return max((row for row in self.boundaries if row.determined), key=lambda row: row.r / row.allowed, default=None)

    def add(self, findings: Iterable[Finding]) -> None:
        """Keeps findings most severe first; within a severity, the order in which they are added (earliest first)."""
        self.findings = sorted([*self.findings, *findings], key=lambda finding: _GRAVITY[finding.severity])

    def summary(self, top: int = 5) -> str:
        """The report as text: one line that stands alone, the findings, then the `top` worst rows."""
        from precheck.report.terminal import summary

        if self.facts.get("open"):
            return OPEN
        return writable(summary(self, top=top))

    def raise_for_errors(self) -> None:
        """Raises PrecisionFailure with the summary if there is any finding of severity error."""
        __tracebackhide__ = True
        if self.errors:
            raise PrecisionFailure(self.summary())

    def to_json(self) -> str:
        """The whole report as JSON, as docs/report.md describes it. Infinite and undefined numbers are strings there."""
        content = {"schema": SCHEMA, **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)}}
        return json.dumps(_plain(content), indent=1)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
