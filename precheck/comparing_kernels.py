"""`compare_kernels`: a kernel beside the function that it should compute, on inputs that nobody chose."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch

from precheck import interrupts
from precheck.findings import Report
from precheck.judge import allowances
from precheck.kernels import dimensions, examples, told
from precheck.kernels.bench import Bench, checked_reference
from precheck.kernels.drawing import drawn
from precheck.kernels.outcome import completed
from precheck.kernels.running import Wishes
from precheck.kernels.session import Session
from precheck.kernels.states import State
from precheck.observe.job import InputError
from precheck.observe.listeners import doing
from precheck.precisions import Precision, resolve


@interrupts.holding
def compare_kernels(
    candidate: Callable[..., Any],
    reference: Callable[..., Any],
    inputs: Any,
    *,
    precision: str | Precision | None = None,
    gradients: bool | Literal["double"] = True,
    sizes: Any = None,
    budget: float = 20.0,
    allow: Mapping[str, str] | None = None,
) -> Report:
    """Says whether `candidate` computes what `reference` does, up to rounding, and which class of fault it has where it does not.

    Both are functions of tensors: plain ones, modules, `autograd.Function.apply`, operators of torch.library, what torch.compile made.
    `inputs` are the arguments of one call: a tensor, a tuple, or a dict of keywords; a list of such; or hypothesis strategies in their places
    (`precheck.strategies`). Other inputs are made from them: sizes, layouts, magnitudes, NaN and Inf. Sizes that are equal vary together,
    unless `sizes` names the dimensions of each tensor: sizes=("rows columns", "columns"). Whole numbers stay in the range of the example.
    Compared are outputs, and the gradients of inputs that require one (of all floating inputs if none does); `gradients="double"`
    compares those of gradients too. `precision`: None takes inputs as they are, *-true casts them, *-mixed runs both under autocast.
    `budget`: seconds that the trials of an example may take.

    An error's rule is its class: kernel-rounding, -accumulation, -edge, -stride, -mask, -stale, -mutation, -gradient, -nondeterminism,
    -constant, -contract; kernel-fallback is a warning. `report.verdict` is "rounding" or "different"; `report.facts["code"]` rebuilds the
    smallest inputs that fail, and `facts["speed"]` is the candidate's beside the reference's.

    Raises InputError for inputs that cannot be used and for a reference that raises on them or draws random numbers.
    """
    allowed = allowances.checked(allow)
    chosen = None if precision is None else resolve(precision)
    for name, given in (("candidate", candidate), ("reference", reference)):
        if not callable(given):
            raise InputError(f"{name}={given!r:.80} cannot be called; pass a function of tensors or a module")
    if gradients not in (True, False, "double"):
        raise InputError(f"gradients={gradients!r}; pass True, False or 'double'")
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not budget > 0:
        raise InputError(f"budget={budget!r}; pass seconds, as in budget=20")
    wishes = Wishes(chosen, bool(gradients), gradients == "double")
    found, benches = [], []
    state = State(candidate)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), doing("judging the kernel"):
        warnings.simplefilter("ignore")
        for example in examples.read(drawn(inputs), chosen, bool(gradients)):
            bench = Bench(candidate, reference, example, dimensions.of(example, sizes), wishes)
            checked_reference(bench)
            benches.append(bench)
            found.append(Session(bench, state, time.monotonic() + budget).run())
            if found[-1].cause is not None:
                break
        report = told.report(found, benches, chosen.name if chosen else "")
        completed(report, found[-1], benches[-1])
    allowances.apply(report, allowed)
    return report
