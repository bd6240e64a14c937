"""`selftested`: makes a passed check again with faults planted into the user's own model, and reports which faults it catches.

First the limits of the check are computed, and the output where they are widest (`Sensitivity`). Then faults of a size just beyond that are planted
one at a time, and the check is repeated. Under a low precision the fault is in the run that is judged, not in its reference. Under float32 it is in
the run that is compared with the golden.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import torch

from precheck import interpreter, interrupts
from precheck.analysis.training.displacements import LOST_UPDATE
from precheck.checking import Checking
from precheck.findings import Report
from precheck.goldens.file import read
from precheck.goldens.lifecycle import record
from precheck.measurement import job_of
from precheck.observe.job import Job
from precheck.observe.listeners import doing
from precheck.observe.models import faults
from precheck.observe.models.faults import Change, Effect
from precheck.observe.run import run
from precheck.observe.setting import low, reference
from precheck.precisions import Precision, resolve
from precheck.selftests.sensitivity import Place, Sensitivity
from precheck.words import counted

Status = Literal["caught", "unnoticed", "allowed", "same", "inapplicable"]
FAULTS = ("lost update", "skipped step", "overflow", "drift", "zeroed", "shuffled", "stale")

MARGIN = 4.0
"""The size of a planted drift, in limits. Twice the limit is an error even where later layers heal it (`TOO_LARGE_TO_HEAL`). A sketch gives a
distance to within a third at worst (5 standard deviations of 6 %), and noise floors differ from run to run by less."""


STEP = 8.0
"""The factor between the sizes at which "scaled" is tried, until it is noticed or the output is twice as large. Formats differ by 2^3 and more."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one planted fault.

    `unnoticed`: the check passes with it. `allowed`: only rules that the test's markers tolerate notice it. `same`: it changes nothing on
    this input, so that it cannot be noticed. `inapplicable`: there is nothing to plant it into.
    """

    fault: str
    status: Status
    text: str  # what was planted, or why nothing was
    advice: str = ""  # what to do about it, where it went unnoticed
    size: float | None = None  # share of the tensor's norm
    limit: float | None = None  # share of the tensor's norm up to which the check passes there
    rule: str = ""  # the rule that caught it


@interrupts.held()
@interpreter.spared
def selftested(
    model: Any,
    inputs: Any,
    *,
    golden: str | Path | None,
    precision: str | Precision,
    tolerated: Collection[str] = (),
    **settings: Any,
) -> list[Outcome]:
    """Plants each fault of FAULTS into a check that has passed with these arguments. Returns one outcome for each, in that order.

    `golden` is None where float32 in the same process is the reference; a golden is then recorded in memory.
    `tolerated` are rules whose errors do not fail the test; `settings` are loss, optimizer, steps and seed, as in `check`. The
    model, the optimizer's class, the random state and torch's globals come back bit for bit as they were. Costs about ten
    runs of the model for each fault, three under float32. Raises what `check` raises.
    """
    job, chosen = job_of(model, inputs, **settings), resolve(precision)
    held = read(Path(golden)) if golden is not None else record(job)
    return _SelfTest(Checking(job, chosen, held), tolerated).outcomes()


def expected(rule: str, planted: Sequence[str] = FAULTS) -> list[Outcome]:
    """The outcomes for a test that expects `rule`: its model has a fault already, and it fails where the fault is not found."""
    text = f"the test demands {rule} (expect_finding), and so has failed without a fault"
    return [Outcome(fault, "inapplicable", text) for fault in planted]


def scaled(limit: float, planted: Callable[[float], Outcome]) -> Outcome:
    """The outcome of an output that is scaled by a share, at the smallest share beyond `limit` that is noticed. `planted` tries one."""
    share = min(MARGIN * limit, 1.0) or STEP**-6
    while (outcome := planted(share)).status == "unnoticed" and share < 1:
        share = min(STEP * share, 1.0)
    return outcome


def first_of(order: Sequence[Status], outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome of a fault that was planted several times: the one whose status comes first in `order`."""
    return min(outcomes, key=lambda each: order.index(each.status))


def watched(*, compared: bool, precision: Precision) -> list[Outcome]:
    """The outcomes for a watched block. `compared`: whether any of its ops ran in a low format, so that the block could have failed."""
    if compared:
        text = "faults are planted into models that precheck runs itself, and this loop is the test's own"
        return [Outcome(fault, "inapplicable", text) for fault in FAULTS]
    text = f"no op of the block computes in what {precision} rounds to, so that nothing is compared, and no fault is noticed"
    advice = "make the block compute under this precision (matrix products under autocast), or leave the precision out by its marker"
    return [Outcome(fault, "unnoticed", text, advice) for fault in FAULTS]


Planted = Callable[[Effect], AbstractContextManager[Job]]


class _SelfTest:
    def __init__(self, checking: Checking, tolerated: Collection[str]) -> None:
        self.checking, self.tolerated = checking, frozenset(tolerated)
        self.job, self.precision = checking.job, checking.precision
        with doing("self-test, what the check allows"):
            self.sensitivity = Sensitivity(checking)

    def outcomes(self) -> list[Outcome]:
        tries = (self._lost_update, self._skipped, self._overflow, self._drift, self._zeroed, self._shuffled, self._stale)
        found = []
        for number, (fault, tried) in enumerate(zip(FAULTS, tries, strict=True), 1):
            with doing(f"self-test, fault {number} of {len(FAULTS)}, {fault}"):
                found.append(tried())
        return found

    def _verdict(self, planted: Planted, effect: Effect) -> Report | str:
        """The report of the check with the fault planted, or the exception that the user's code raised."""
        try:
            with planted(effect) as job:
                checking = Checking(job, self.precision, self.checking.golden)
                if not self.precision.is_low:
                    return checking.report("")
                seen = checking.seen()
            return self.checking.verdict(seen, brief=True)
        except Exception as error:
            if not effect.size:
                raise  # the fault did not cause it
            return f"{type(error).__name__}: {error}".splitlines()[0]

    def _tried(self, fault: str, planted: Planted, told: str, *, limit: float | None, advice: str, same: str = "") -> Outcome:
        """Plants a fault and returns the outcome. `same`: the text if the fault changes no more than rounding does on this input; "" if such a fault
        counts as unnoticed."""
        effect = Effect()
        report = self._verdict(planted, effect)
        text = told if effect.size is None else told.format(size=percent(effect.size))
        made: dict[str, Any] = {"fault": fault, "text": text, "size": effect.size, "limit": limit}
        if isinstance(report, str):
            return Outcome(status="caught", rule=report, **made)
        rules = list(dict.fromkeys(finding.rule for finding in report.errors))
        left = [rule for rule in rules if rule not in self.tolerated]
        if left:
            return Outcome(status="caught", rule=left[0], **made)
        if rules:
            return Outcome(status="allowed", rule=rules[0], **made)
        if effect.size is None:
            return Outcome(status="inapplicable", **made | {"text": "what the fault would change is never computed"})
        if same and effect.size <= (limit or 0.0):
            return Outcome(status="same", **made | {"text": same})
        return Outcome(status="unnoticed", advice=advice, **made)

    def _spoiled(self, place: Place, change: Change) -> Planted:
        return lambda effect: faults.spoiled(self.job, place.key, change, effect)

    def _lost_update(self) -> Outcome:
        fault, rows = "lost update", self.sensitivity.updates
        if not rows:
            return Outcome(fault, "inapplicable", "no step is taken: pass optimizer= (and a loss) to have updates checked")
        steps = counted(rows[0].record.step, "step")
        if not any(row.reference.norm for row in rows):
            text = f"no parameter moves in {steps}, so that one that does not arrive changes nothing"
            return Outcome(fault, "unnoticed", text, "raise the learning rate above 0, or leave the optimizer out", 0.0, LOST_UPDATE)
        judged = self.sensitivity.judged_updates
        if not judged and self.precision.is_low and not any(row.record.low for row in rows):
            text = f"no rule judges steps taken in float32, where rounding loses none, so one that is lost otherwise passes under {self.precision}"
            return Outcome(fault, "inapplicable", f"{text}; the golden tells (--precision=32-true), and so does bf16-true")
        if not judged:
            text = f"rounding drowns what {steps} mean to do to every parameter, so that none is judged"
            return Outcome(fault, "unnoticed", text, "raise the learning rate, or steps=", 0.0, LOST_UPDATE)
        told = f"no step of {judged[0]} arrives (it moves by {{size}} of its norm in the first); limit: half of the update lost"
        advice = "raise the learning rate, or steps=: what is lost is no more than rounding may lose"
        return self._tried(fault, lambda effect: faults.update_lost(self.job, judged[0], effect), told, limit=LOST_UPDATE, advice=advice)

    def _skipped(self) -> Outcome:
        fault = "skipped step"
        if not self.precision.scaler:
            return Outcome(fault, "inapplicable", f"{self.precision} has no loss scaler")
        if self.job.optimizer is None:
            return Outcome(fault, "inapplicable", "no step is taken: pass optimizer= (and a loss) to have skipped steps checked")
        names = self.sensitivity.gradients
        if not names:
            return Outcome(fault, "inapplicable", "no gradient passes a module's output")
        return self._tried(
            fault, lambda effect: faults.gradient_spoiled(self.job, f"output:{names[0]}@1", faults.infinite, effect),
            f"one element of the gradient of {names[0]} is Inf at every loss scale, so that each step is skipped; limit: none, down to scale 1",
            limit=None, advice="let the loss depend on this output: its gradient reaches no parameter",
        )  # fmt: skip

    def _overflow(self) -> Outcome:
        if not self.precision.is_low:
            return Outcome("overflow", "inapplicable", f"nothing overflows in {self.precision} that does not in the golden")
        place = self.sensitivity.weakest
        if place is None:
            return _unseen("overflow")
        told = f"one of {place.numel} elements of {place.label} is Inf; limit: none that float32 has not"
        advice = "look at this output: it is not finite in float32 either"
        return self._tried("overflow", self._spoiled(place, faults.infinite), told, limit=0.0, advice=advice)

    def _drift(self) -> Outcome:
        place = self.sensitivity.weakest
        if place is None:
            return _unseen("drift")
        limit = place.limit if place.limit is not None else 1.0
        told = f"{place.label} is off by {{size}} of its norm, where the check sees least; limit: {percent(limit)}"
        if place.limit is None:
            told += " (rounding drowns every output, so none is judged)"
        advice = "scale the model's weights or inputs so that its outputs are determined, or pass a loss"
        return self._tried("drift", self._spoiled(place, faults.drifted(MARGIN * limit)), told, limit=place.limit, advice=advice)

    def _zeroed(self) -> Outcome:
        place = self.sensitivity.result
        if place is None:
            return _unseen("zeroed")
        told = f"{place.label} is zero, which changes it by {{size}}; limit: {_share(place.limit)}"
        advice = "the output is zero, or nothing but rounding, already (a head that starts at zero?): give it weights that show"
        return self._tried("zeroed", self._spoiled(place, faults.zeroed), told, limit=place.limit, advice=advice)

    def _shuffled(self) -> Outcome:
        place = self.sensitivity.result
        if place is None:
            return _unseen("shuffled")
        if not place.rows:
            return Outcome("shuffled", "inapplicable", f"{place.label} has one element")
        told = f"the rows of {place.label} are shifted by one, which changes it by {{size}}; limit: {_share(place.limit)}"
        same = f"the input cannot show it: the rows of {place.label} are equal but for rounding; pass a batch whose rows differ"
        advice = "pass a batch whose rows differ by more than rounding explains"
        return self._tried("shuffled", self._spoiled(place, faults.shuffled), told, limit=place.limit, advice=advice, same=same)

    def _stale(self) -> Outcome:
        place = self.sensitivity.result
        if place is None:
            return _unseen("stale")
        found = self._elsewhere(place)
        if isinstance(found, Outcome):
            return found
        told = f"{place.label} is the one for another input (each tensor back to front), {{size}} away; limit: {_share(place.limit)}"
        advice = "the output hardly depends on the input: pass an input that matters to it, or look whether the model reads it at all"
        return self._tried("stale", self._spoiled(place, faults.replaced(found)), told, limit=place.limit, advice=advice)

    def _elsewhere(self, place: Place) -> torch.Tensor | Outcome:
        """The output for another input under the same precision, or the outcome that says why there is none."""
        inputs, met = faults.other(self.job.inputs), list[torch.Tensor]()
        if inputs is None:
            return Outcome("stale", "same", "the input cannot show it: it is the same back to front (all zeros?); pass one whose values differ")
        job = dataclasses.replace(self.job, inputs=inputs, loss=None, optimizer=None, steps=1)
        setting = low(self.precision) if self.precision.is_low else reference(torch.float32)
        try:
            with faults.spoiled(job, place.key, lambda values: met.append(values.clone()), Effect()):
                run(job, setting)
        except Exception as error:  # the model's own error on an input that is not the user's
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            return Outcome("stale", "inapplicable", f"the model does not run on its input back to front ({said})")
        if not met or met[0].numel() != place.numel:
            return Outcome("stale", "inapplicable", "the output for another input has another shape")
        return met[0]


def percent(share: float) -> str:
    """A share as text: "0.00095%", "12%", "30 times"."""
    return f"{share:.3g} times" if share > 10 else f"{100 * share:.2g}%" if share < 0.1 else f"{100 * share:.0f}%"


def _share(limit: float | None) -> str:
    return "none, since rounding drowns it" if limit is None else f"{percent(limit)} of its norm"


def _unseen(fault: str) -> Outcome:
    return Outcome(fault, "unnoticed", "the check compares no floating-point output of this model, so it cannot notice any fault in one",
                   "let the model return what it computes as floating-point tensors")  # fmt: skip
