"""The verb `compare_kernels`: runs a kernel and its reference on many generated inputs, and says whether they compute the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch

from precheck import arguments, interpreter, interrupts
from precheck.findings import Report
from precheck.judge import allowances
from precheck.kernels import dimensions, examples, reporting
from precheck.kernels.bench import Bench
from precheck.kernels.clock import budgeted
from precheck.kernels.drawing import drawn
from precheck.kernels.outcome import completed
from precheck.kernels.reduced_example import run_trials, smaller_alone
from precheck.kernels.reference_check import checked_reference
from precheck.kernels.running import Wishes, on_cpu
from precheck.kernels.states import State
from precheck.observe.job import InputError
from precheck.observe.listeners import doing
from precheck.precisions import Precision, resolve


@arguments.explained
@interrupts.held()
@interpreter.spared
def compare_kernels(
    candidate: Callable[..., Any],
    reference: Callable[..., Any],
    inputs: Any,
    *,
    precision: str | Precision | None = None,
    gradients: bool | Literal["double"] = True,
    sizes: Any = None,
    budget: float | None = None,
    trials: int | None = None,
    speed: bool | None = None,
    allow: Mapping[str, str] | None = None,
) -> Report:
    """Says whether `candidate` computes what `reference` does, up to rounding, and if not, which class of fault it has.

    Outputs are compared, and gradients of the inputs that require one (of all floating inputs if none does). From the given inputs
    others are made: sizes, layouts, magnitudes, NaN and Inf. Whole numbers stay in the range of the given ones.

    Args:
        candidate: A function of tensors: a plain one, a module, `autograd.Function.apply`, an operator of torch.library, or what torch.compile made.
        reference: What it should compute: the same kinds.
        inputs: The arguments of one call: a tensor, a tuple, or a dict of keywords; a list of such; or strategies of hypothesis in their
            places (`precheck.strategies`).
        precision: None takes inputs as they are, *-true casts them, *-mixed runs both under autocast.
        gradients: Whether gradients are compared; "double" compares those of gradients too.
        sizes: Names of the dimensions of each tensor, as in ("rows columns", "columns"). Without it sizes that are equal vary together.
        budget: Seconds that the trials of one example may take, of the processor; waiting for a device counts half, and for a processor that other
            programs use not at all. An example of more than 65 536 elements is tried in smaller shapes, and at the end as it is, if as many
            seconds again are enough for that. None: 20 seconds, or no limit where `trials` has one.
        trials: The most trials of one example. With no `budget` beside it the same trials are made on each machine, however fast that is. None: no
            limit.
        speed: Whether both sides are timed on the example, by the clocks of `benchmark`. None times them on a device alone.
        allow: Rules whose errors become notes, each with your reason.

    Returns:
        A report. An error's rule is its class: kernel-rounding, -accumulation, -edge, -stride, -mask, -stale, -mutation, -gradient,
        -nondeterminism, -constant, -contract; kernel-fallback is a warning. `verdict` is "rounding", "different", or
        "not judged" of a kernel that this machine cannot run as it is meant, with the reason as a warning; `facts["code"]` rebuilds the
        smallest inputs that fail, `facts["speed"]` has milliseconds and peak bytes of both beside the error, and `facts["not_looked_at"]` what
        was not looked at here, with the reason.

    Raises:
        InputError: Inputs cannot be used, or the reference raises on them or draws random numbers.
        PrecisionError: There is no such precision.
    """
    allowed = allowances.checked(allow)
    chosen = None if precision is None else resolve(precision)
    _check(candidate, reference, gradients, budget, trials, speed)
    wishes, state = Wishes(chosen, bool(gradients), gradients == "double", default=str(torch.get_default_device())), State(candidate)
    found, benches = [], []
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), doing("judging the kernel"), on_cpu():
        warnings.simplefilter("ignore")
        for example in examples.read(drawn(inputs), chosen, bool(gradients)):
            whole = Bench(candidate, reference, example, dimensions.of(example, sizes), wishes)
            checked_reference(whole, smaller_alone(whole, sizes))
            one, bench = run_trials(whole, state, budgeted(budget, trials), sizes)
            found.append(one)
            benches.append(bench)
            if found[-1].cause is not None:
                break
        report = reporting.report(found, benches, chosen.name if chosen else "")
        if not found[-1].unjudged:
            completed(report, found[-1], benches[-1], whole, speed)
    allowances.apply(report, allowed)
    return report


def _check(candidate: Any, reference: Any, gradients: Any, budget: Any, trials: Any, speed: Any) -> None:
    for name, given in (("candidate", candidate), ("reference", reference)):
        if not callable(given):
            raise InputError(f"{name}={given!r:.80} cannot be called; pass a function of tensors or a module")
    if gradients not in (True, False, "double"):
        raise InputError(f"gradients={gradients!r}; pass True, False or 'double'")
    if speed not in (None, True, False):
        raise InputError(f"speed={speed!r}; pass True, False or None")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, (int, float)) or not budget > 0):
        raise InputError(f"budget={budget!r}; pass seconds, as in budget=20")
    if trials is not None and (isinstance(trials, bool) or not isinstance(trials, int) or trials < 1):
        raise InputError(f"trials={trials!r}; pass how many trials to make at most, as in trials=100")
