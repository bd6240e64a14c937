"""Checks a reference: it must run on the example and draw no random numbers. Also finds the outputs that gradients flow through."""

from __future__ import annotations

import dataclasses

import torch

from precheck.kernels import memory, running
from precheck.kernels.bench import Bench
from precheck.kernels.trials import Trial
from precheck.observe.job import InputError


def checked_reference(bench: Bench) -> None:
    """Raises InputError for a reference that does not run on the example, or that draws random numbers."""
    given = Trial(given=True)
    made = bench.make(given)
    wishes = dataclasses.replace(bench.wishes_of(given), gradients=False)
    first = running.run(bench.reference, bench.example, made.values, made.numbers, wishes)
    if first.error is not None:
        said = f"{type(first.error).__name__} on the example: {first.error}"
        raise InputError(f"the reference raises {said}; pass inputs that it takes") from first.error
    if bench.wishes.gradients:
        whole = running.run(bench.reference, bench.example, made.values, made.numbers, bench.wishes_of(given))
        if whole.error is not None:
            bench.wishes = dataclasses.replace(bench.wishes, gradients=False, double=False)  # the reference has no derivative to compare with
        elif whole.attached:
            detached = frozenset(name for name in whole.values if name.startswith("output")) - whole.attached
            bench.wishes = dataclasses.replace(bench.wishes, detached=detached)
    state = torch.get_rng_state()
    again = running.run(bench.reference, bench.example, made.values, made.numbers, wishes)
    drew = not torch.equal(state, torch.get_rng_state())
    pairs = zip(first.values.values(), again.values.values(), strict=True)
    if drew or any(a is not None and b is not None and not memory.same(a, b) for a, b in pairs):
        raise InputError("the reference draws random numbers, so that no result of it is right; pass one without, such as with dropout p=0")
