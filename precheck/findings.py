"""What judgement says: findings, the report that holds them, and the catalogue of rules.

Imports neither torch nor numpy.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any, Literal

from precheck.words import writable

Severity = Literal["error", "warning", "note"]
Phase = Literal["forward", "backward", "optimizer", "scaler", "data"]
SCHEMA = 3
"""Version of the JSON forms: 2 added `ops`, `cure` and a finding's `cause`; 3 `losses` and `exponents`."""
_GRAVITY: dict[str, int] = {"error": 0, "warning": 1, "note": 2}


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A fault that precheck knows: one sentence, what limits it, what cures it."""

    name: str
    meaning: str
    remedy: str


RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule("overflow", "finite inputs gave Inf or NaN where the reference is finite",
             "compute this module in float32 (a nested torch.autocast(..., enabled=False) and .float()), or scale its input down"),
        Rule("nan", "more NaN than the reference, with no overflow before it; as a warning: a loss or gradient that is not finite in float32 either",
             "look for Inf - Inf, 0/0 or a row that is masked whole, and compute it in float32"),
        Rule("underflow", "a share of a tensor that matters is zero or subnormal here and not in the reference",
             "compute it in float32, or scale it up before it is rounded"),
        Rule("vanished-constant", "an eps, clamp bound, mask fill or decay given as a Python number is zero or a no-op in this format",
             "give a constant that the format holds (float16: at least 6e-8, next to 1 at least 1e-3), or guard in float32"),
        Rule("integer-rounding", "whole numbers (positions, indices, counts, labels, timesteps) are stored in a format that cannot hold them",
             "keep them as integers, or in float32 until they have been turned into what the model reads"),
        Rule("amplified-rounding", "one rounding of an input or intermediate is amplified until the result has lost its digits",
             "round after the op that amplifies, not before it: keep this value in float32 until then"),
        Rule("cancellation", "a subtraction of near-equals, stored low, leaves their rounding errors and little else",
             "subtract in float32 and before rounding, or use a form without the subtraction (log1p, expm1, a direct difference)"),
        Rule("local-drift", "an op erred by more than one rounding of its result allows, as a sum kept in the low format does",
             "ask for a float32 accumulator (dtype=torch.float32), or cast the input up"),
        Rule("absorption", "additions left the accumulator unchanged while the reference moved: sums, averages, counters, merged weights",
             "keep the accumulator in float32"),
        Rule("accumulated-drift", "drift beyond what rounding explains at a module boundary, an output or a gradient",
             "keep this module in float32, or make the values that it amplifies (positions, tables, sums) in float32"),
        Rule("gradient-underflow", "float16 gradients became zero for want of a loss scale",
             "use a GradScaler (16-mixed), or bfloat16"),
        Rule("missing-gradient", "a parameter has a gradient in the reference and none here",
             "look for a cast through integers, .data or .item() that only this precision takes"),
        Rule("lost-update", "the optimizer's intended update of a parameter did not arrive",
             "keep float32 master weights (bf16-master, bf16-mixed), or use stochastic rounding or Kahan summation"),
        Rule("scaler-skip", "GradScaler skipped steps for what no loss scale mends, or more often than calibration and growth explain",
             "compute the op named in float32, or scale its input down; where only the scale is too high, lower init_scale or grow it less often"),
        Rule("scaler-collapse", "no loss scale down to 1 gave finite gradients",
             "the overflow is in the model, not in the scale: compute the module named in float32"),
        Rule("scaler-order", "quantities under different loss scales are added, compared or applied, or a scaler and its steps go apart",
             "scale every loss, unscale_ once before gradients are read or changed, scaler.step each optimizer, then scaler.update() once"),
        Rule("headroom", "values come close to the largest that float16 holds",
             "a few times larger and they overflow: keep this module in float32, or scale it down"),
        Rule("decision-flip", "top-k, argmax or comparisons chose otherwise than the reference, more often than rounding explains",
             "compute what is compared (router logits, distances) in float32"),
        Rule("dtype-leak", "the float32 run itself stores low-precision results",
             "remove the cast, or pass the precision from outside, so that float32 means float32"),
        Rule("unstable-reference", "float32 and float64 disagree as much as the low precision does",
             "the computation is ill-conditioned in any format; reformulate it before judging precisions"),
        Rule("golden-mismatch", "off the golden, which has float32's own decisions, and within the floor along the run's own",
             "nothing, unless the decisions matter: compute what is compared in float32"),
        Rule("golden-stale", "the golden was recorded with other inputs, weights or code", "pytest --golden-refresh=changed"),
    )
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One fault, with the place it is blamed on and the numbers that prove it."""

    rule: str
    severity: Severity
    message: str  # first line stands alone
    phase: Phase = "forward"
    op: str = ""  # "aten.mul.Tensor"
    module: str = ""  # "layers.0.attn"; "" for the model itself
    source: str = ""  # "models/gpt.py:88"
    step: int = 1
    tensor: str = ""
    measured: float | None = None
    limit: float | None = None
    cause: str = ""  # the op behind what a boundary shows: "aten.pow.Tensor_Scalar at models/norm.py:8: …"

    cause_rule: str = ""  # the mechanism by which that op did it, where one is known
    via: str = ""  # the line of an installed package that `source` led to: "keras/src/backend/torch/numpy.py:156"
    ranks: tuple[int, ...] = ()  # of a distributed run, those that it was found on; empty in a run of one process

    @property
    def remedy(self) -> str:
        return RULES[self.cause_rule or self.rule].remedy

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
        """Whether rounding leaves anything of it: no for what is zero in theory, such as the gradient of a key's bias."""
        return self.nonfinite > 0 or self.relative <= 0.5 * self.r or self.relative == 0


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """The loss that a step, or one of its backward passes, was taken from, beside the reference's; any loss scale is divided out."""

    step: int
    low: float
    reference: float
    floor: float | None = None  # difference that correct rounding explains; None where that was not measured
    source: str = ""  # of a watched run, the line that called backward()


@dataclasses.dataclass(frozen=True, slots=True)
class Binades:
    """How many elements of a tensor of the reference lie in each binade: `counts[i]` have 2**(least + i) <= |x| < 2**(least + i + 1)."""

    tensor: str  # as in `Row`; "" of an op's result
    kind: str  # as in `Row`, or "op"
    step: int
    dtype: str  # as stored by the run
    elements: int  # of the tensor; of fewer, where the counts and the next two come to less
    least: int = 0
    counts: tuple[int, ...] = ()
    zeros: int = 0
    nonfinite: int = 0
    scale: float = 1.0  # loss scale that the run's tensor was under, here divided out
    op: str = ""  # of an op's result, as in `Finding`, and the next three
    phase: str = ""
    module: str = ""
    source: str = ""


class PrecisionFailure(AssertionError):
    """A precision check failed; the text is the report's summary."""


@dataclasses.dataclass(slots=True)
class Report:
    """What a run under a precision showed. Holds numbers only, no tensor of the user's."""

    precision: str = ""
    findings: list[Finding] = dataclasses.field(default_factory=list)
    boundaries: list[Row] = dataclasses.field(default_factory=list)
    updates: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    scaler: dict[str, Any] = dataclasses.field(default_factory=dict)
    ops: list[Any] = dataclasses.field(default_factory=list)  # observe.operations.OpRow: every op's drift, in order of the run
    losses: list[Loss] = dataclasses.field(default_factory=list)  # in the order of the run
    exponents: list[Binades] = dataclasses.field(default_factory=list)  # of a run that was observed op by op
    cure: str = ""  # code that keeps a few modules in float32, tried: with it the check passes
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)  # decisions followed, noise runs, what was left out

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "error"]

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

        return writable(summary(self, top=top))

    def raise_for_errors(self) -> None:
        """Raises PrecisionFailure with the summary if there is any finding of severity error."""
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
