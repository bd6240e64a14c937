"""The self-test of `compare_kernels`: plants faults into what a candidate that passed returns, and reports which of them the judge catches.

A planted fault changes values and leaves the gradients of the outputs as they are, except for "gradient", which changes these alone. So each
fault is caught by one thing that the judge compares.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch

from precheck import interpreter, interrupts
from precheck.analysis.noise_floor.kernel_floor import Floor
from precheck.kernels import dimensions, examples, plan, reduced_example
from precheck.kernels.bench import Bench
from precheck.kernels.causes import Search
from precheck.kernels.drawing import drawn
from precheck.kernels.reference_check import checked_reference
from precheck.kernels.running import Wishes, on_cpu
from precheck.kernels.states import State
from precheck.kernels.trial_result import Judged
from precheck.kernels.triton_interpreter import unjudged
from precheck.observe.containers import call, mapped, tensors
from precheck.observe.listeners import doing
from precheck.observe.models import faults
from precheck.precisions import Precision, resolve
from precheck.selftests.checks import Outcome, Status, first_of, percent, scaled

FAULTS = ("zeroed", "shuffled", "scaled", "stale", "gradient")
_ORDER: tuple[Status, ...] = ("caught", "allowed", "unnoticed", "same", "inapplicable")
"""Of several examples: a fault is caught if one of them shows it."""

Change = Callable[[Any, Any], Any]
"""Takes a call's arguments, as one value, and its result. Returns another result, or a text that says why the fault cannot be planted there."""


@interrupts.held()
@interpreter.spared
def kernel_selftested(
    candidate: Callable[..., Any], reference: Callable[..., Any], inputs: Any, *, precision: str | Precision | None = None,
    gradients: Any = True, sizes: Any = None, budget: Any = None, trials: Any = None, speed: Any = None,
    allow: Mapping[str, str] | None = None, tolerated: Collection[str] = (),
) -> list[Outcome]:  # fmt: skip
    """Plants each fault of FAULTS into what `candidate` returns, where `compare_kernels` has passed so. Returns their outcomes.

    The faults meet the trials in the shapes of the example (of a large one in smaller shapes), which are the first that the judge makes. Of a list
    of examples a fault has to be caught on one. `tolerated` are rules whose errors do not fail the test, as those of `allow`; `budget`,
    `trials` and `speed` change nothing here. Random states and the candidate's own state come back. Raises what `compare_kernels` raises.
    """
    chosen = None if precision is None else resolve(precision)
    wishes, state = Wishes(chosen, bool(gradients), gradients == "double", default=str(torch.get_default_device())), State(candidate)
    left, found = {*tolerated, *(allow or {})}, []
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), state.restored(), on_cpu():
        warnings.simplefilter("ignore")
        for example in examples.read(drawn(inputs), chosen, bool(gradients)):
            whole = Bench(candidate, reference, example, dimensions.of(example, sizes), wishes)
            checked_reference(whole, reduced_example.smaller_alone(whole, sizes))
            found.append(_SelfTest(reduced_example.smaller(whole, sizes) or whole, state, left).outcomes())
    return [first_of(_ORDER, each) for each in zip(*found, strict=True)]


class _SelfTest:
    """The faults of one example."""

    def __init__(self, bench: Bench, state: State, tolerated: Collection[str]) -> None:
        self.bench, self.state, self.tolerated, self.candidate = bench, state, tolerated, bench.candidate
        self.limit, self.attached = 0.0, True

    def outcomes(self) -> list[Outcome]:
        reason = unjudged(self.bench)
        if reason:
            return [Outcome(fault, "inapplicable", f"nothing could be judged: {reason}") for fault in FAULTS]
        self.limit = _limit(self._floors())
        found = []
        for number, fault in enumerate(FAULTS, 1):
            with doing(f"self-test, fault {number} of {len(FAULTS)}, {fault}"):
                found.append(self._tried(fault))
        return found

    def _floors(self) -> Collection[Floor]:
        judged = self.bench.judge(next(plan.near(self.bench)))
        if judged.reference is None:
            return ()
        self.attached = bool(judged.reference.native.attached)
        return judged.reference.floors.values()

    def _tried(self, fault: str) -> Outcome:
        if fault == "gradient" and not (self.bench.wishes.gradients and self.attached):
            return Outcome(fault, "inapplicable", "gradients are not compared, since they are not asked for or the reference has none")
        if fault != "scaled":
            return self._planted(fault, _CHANGES[fault](self.candidate))
        return scaled(self.limit, lambda share: self._planted(fault, _scaled(share)))

    def _planted(self, fault: str, change: Change) -> Outcome:
        effect, refused = faults.Effect(), list[str]()

        def planted(*args: Any, **kwargs: Any) -> Any:
            result = call(self.candidate, kwargs or args)
            made = change(kwargs or args, result)
            if isinstance(made, str):
                refused.append(made)
                return result
            if fault != "gradient":
                effect.note_all(_numbers(result), _numbers(made))
            return made

        planted.stands_for = self.candidate  # type: ignore[attr-defined]
        with self._candidate(planted):
            judged = next((each for trial in plan.near(self.bench) if (each := self.bench.judge(trial)).fault is not None), None)
            if judged is not None:
                return self._caught(fault, judged, effect.size)
        if refused and not effect.size:
            return Outcome(fault, "same" if refused[0] == _ALIKE else "inapplicable", refused[0])
        told = _TOLD[fault] + ("" if effect.size is None else f", which changes it by {percent(effect.size)}")
        if fault == "shuffled" and not effect.size:
            return Outcome(fault, "same", "the inputs cannot show it: the rows of what the candidate returns are equal; pass rows that differ")
        return Outcome(fault, "unnoticed", told, _ADVICE[fault], effect.size)

    def _caught(self, fault: str, judged: Judged, size: float | None) -> Outcome:
        """The outcome of a fault that the judge has found. Its class is searched for, since markers allow classes."""
        told = _TOLD[fault] + ("" if size is None else f", which changes it by {percent(size)}")
        rule = Search(self.bench, self.state).cause(judged).rule
        return Outcome(fault, "allowed" if rule in self.tolerated else "caught", told, size=size, limit=self.limit or None, rule=rule)

    @contextlib.contextmanager
    def _candidate(self, planted: Callable[..., Any]) -> Iterator[None]:
        self.bench.candidate = planted
        try:
            yield
        finally:
            self.bench.candidate = self.candidate


def _limit(floors: Collection[Floor]) -> float:
    """The smallest share of its norm by which an output or a gradient may differ and pass."""
    shares = [float(each.bound().norm() / norm) for each in floors if each.exact.is_floating_point() and (norm := each.exact.norm())]
    return min((each for each in shares if 0 < each < 1), default=0.0)


def _numbers(result: Any) -> list[torch.Tensor]:
    return [each.abs() if each.is_complex() else each for _, each in tensors(result)]


def _valued(value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The values of `other`, with the gradient of `value`."""
    return _Valued.apply(value, other.detach()) if value.requires_grad else other.detach()  # type: ignore[no-untyped-call]


class _Valued(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return other.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


class _Without(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return torch.zeros_like(gradient)


def _zeroed(inputs: Any, result: Any) -> Any:
    return mapped(result, lambda value: _valued(value, torch.zeros_like(value)))


def _shuffled(inputs: Any, result: Any) -> Any:
    if all(value.numel() < 2 for value in _numbers(result)):
        return "what is returned has one element, which has no other place"
    return mapped(result, lambda value: _valued(value, faults.rolled(value.detach())))


def _scaled(share: float) -> Change:
    def change(inputs: Any, result: Any) -> Any:
        if not any(value.is_floating_point() for value in _numbers(result)):
            return "what is returned has no floating-point number"
        real = [value for value in _numbers(result) if value.is_floating_point()]
        return mapped(result, lambda value: _valued(value, value.detach() * (1 + share)) if value.dtype in {each.dtype for each in real} else value)

    return change


def _stale(candidate: Callable[..., Any]) -> Change:
    def change(inputs: Any, result: Any) -> Any:
        changed = faults.other(inputs)
        if changed is None:
            return _ALIKE
        try:
            with torch.no_grad():
                made = call(candidate, changed)
        except Exception as error:  # the candidate's own error on inputs that are not the user's
            return f"the candidate does not run on its inputs back to front ({type(error).__name__}: {error})".splitlines()[0]
        others = [each for _, each in tensors(made)]
        if [each.shape for each in others] != [each.shape for _, each in tensors(result)]:
            return "the output for other inputs has another shape"
        left = iter(others)
        return mapped(result, lambda value: _valued(value, next(left)))

    return change


def _without_gradient(inputs: Any, result: Any) -> Any:
    return mapped(result, lambda value: _Without.apply(value) if value.requires_grad else value)  # type: ignore[no-untyped-call]


_ALIKE = "the inputs cannot show it: they are the same back to front (all zeros?); pass some whose values differ"
_CHANGES: dict[str, Callable[[Any], Change]] = {
    "zeroed": lambda candidate: _zeroed, "shuffled": lambda candidate: _shuffled, "stale": _stale, "gradient": lambda candidate: _without_gradient,
}  # fmt: skip
_TOLD = {
    "zeroed": "what the candidate returns is zero", "shuffled": "the rows of what the candidate returns are shifted by one",
    "scaled": "what the candidate returns is scaled",
    "stale": "what the candidate returns is the result for other inputs (each tensor back to front)",
    "gradient": "the gradients of what the candidate returns are zero",
}  # fmt: skip
_ADVICE = {
    "zeroed": "the result is zero, or nothing but rounding, already: pass an example whose result shows",
    "shuffled": "pass an example whose rows differ by more than rounding explains",
    "scaled": "rounding drowns the result, or it is zero: pass an example whose result is determined",
    "stale": "the result hardly depends on the inputs: pass inputs that matter to it, or look whether the kernel reads them at all",
    "gradient": "no input has a gradient that shows: let those require one whose gradient matters",
}
