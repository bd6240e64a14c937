"""Turns the flags among an example's arguments, one at a time: a candidate that ignores one is right in the example's setting alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from precheck.kernels.bench import Bench
from precheck.kernels.reference_check import checked_reference
from precheck.kernels.trials import Trial
from precheck.observe.job import InputError

if TYPE_CHECKING:
    from precheck.kernels.examples import Example
    from precheck.kernels.states import State
    from precheck.kernels.trial_result import Fault

_MOST = 4
"""The most flags that are turned. Each takes some five trials in the example's shapes."""
_DRAWS = (67, 68)
"""Draws of the example's shapes in which a candidate has to be wrong, as any fault is told only if it comes again."""


def noticed(bench: Bench, state: State) -> list[tuple[str, str]]:
    """Warnings with their rule: what is wrong where a flag is not as in the example, and the reference takes it.

    It is no fault: the example says what the candidate is for, and a kernel may be made for one setting. It should refuse the other one then.
    """
    found = []
    for path, flag, example in bench.example.turned()[:_MOST]:
        with state.restored():
            fault = _fault(bench, example)
        if fault is not None:
            where = f"where inputs{path} is {not flag}, which the reference takes, and not {flag} as in the example"
            found.append(("kernel-contract", f"{fault.text}; {where}: if it is always {flag}, refuse {not flag}"))
    return found


def _fault(bench: Bench, example: Example) -> Fault | None:
    """What is wrong with that example's flags in each draw. None if the reference refuses them, draws random numbers, or has the same fault."""
    other, itself = (Bench(side, bench.reference, example, bench.dimensions, bench.wishes) for side in (bench.candidate, bench.reference))
    try:
        checked_reference(other)
    except InputError:
        return None
    itself.wishes = other.wishes
    judged = None
    for seed in _DRAWS:
        judged = other.judge(Trial(seed=seed))
        if judged.fault is None or itself.judge(judged.trial).fault is not None:
            return None
    return judged.fault if judged is not None else None
