"""Checks a reference: it must run on the example and draw no random numbers. Also finds the outputs that gradients flow through."""

from __future__ import annotations

import dataclasses

import torch

from precheck.kernels import memory, running
from precheck.kernels.bench import Bench
from precheck.kernels.trials import Trial
from precheck.observe.job import InputError


def checked_reference(bench: Bench, smaller: Bench | None = None) -> None:
    """Raises InputError for a reference that does not run on the example, or that draws random numbers.

    `smaller`: the same reference on an example in smaller shapes, where that alone is tried. What is the same in all shapes is looked for there,
    since it takes several times the memory of one run: whether it has a derivative, which outputs have one, and whether it draws random numbers.
    """
    first = _run(bench)
    if first.error is not None:
        said = f"{type(first.error).__name__} on the example: {first.error}"
        raise InputError(f"the reference raises {said}; pass inputs that it takes") from first.error
    asked = smaller or bench
    first = _run(asked) if asked is not bench else first
    if bench.wishes.gradients:
        whole = _run(asked, gradients=True)
        if whole.error is not None:
            bench.wishes = dataclasses.replace(bench.wishes, gradients=False, double=False)  # the reference has no derivative to compare with
        elif whole.attached:
            detached = frozenset(name for name in whole.values if name.startswith("output")) - whole.attached
            bench.wishes = dataclasses.replace(bench.wishes, detached=detached)
    state = torch.get_rng_state()
    again = _run(asked)
    drew = not torch.equal(state, torch.get_rng_state())
    pairs = zip(first.values.values(), again.values.values(), strict=True)
    if drew or any(a is not None and b is not None and not memory.same(a, b) for a, b in pairs):
        raise InputError("the reference draws random numbers, so that no result of it is right; pass one without, such as with dropout p=0")


def _run(bench: Bench, *, gradients: bool = False) -> running.Outcome:
    """One call of the reference on the example, whose inputs are copied once: it may write into them, and no one else reads that copy."""
    given = Trial(given=True)
    made, wishes = bench.make(given), bench.wishes_of(given)
    wishes = dataclasses.replace(wishes, gradients=wishes.gradients and gradients)
    return running.run(bench.reference, bench.example, made.values, made.numbers, wishes, keep=not gradients)
