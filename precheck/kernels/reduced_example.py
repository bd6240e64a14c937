"""Reduces a large example to fewer elements, so that the budget suffices for all trials."""

from __future__ import annotations

from precheck.kernels import dimensions, running
from precheck.kernels.bench import Bench, compiled
from precheck.kernels.clock import Budget, threads
from precheck.kernels.examples import Example, Leaf
from precheck.kernels.session import Session, SessionResult
from precheck.kernels.states import State
from precheck.kernels.trials import Trial

ENOUGH = 2**16
"""Elements of the largest tensor above which a smaller example is used. So many take some hundredths of a second, and 2^23 some twenty seconds."""
WHOLE = 2**24
"""Elements of the largest tensor above which an example is tried in smaller shapes alone. Inputs, results, gradients and their bounds take some 200
bytes of memory for each element: three GiB."""
_LEAST = 32
"""The least size: no size is halved below it."""


def run_trials(bench: Bench, state: State, budget: Budget, named: object) -> tuple[SessionResult, Bench]:
    """Runs all trials of one example, and returns the bench of the last one too. A large example is also tried as given at the end, if the budget
    allows."""
    small = smaller(bench, named)
    session = Session(small or bench, state, budget)
    with threads(bench.threads if compiled(bench.candidate) or compiled(bench.reference) else 1):  # what is compiled would be compiled anew
        told = session.run()
    if small is None or told.cause is not None or told.unjudged:
        return told, session.bench
    if bench.dimensions.elements({}) > WHOLE or session.first * _seconds(bench) / max(_seconds(small), 1e-6) > budget.seconds / 2:
        told.whole_left_out = True
        return told, small
    last = Session(bench, state, Budget(budget.seconds))
    last.told = told
    last.as_given()
    return told, small if told.cause is None else bench


def smaller(bench: Bench, named: object) -> Bench | None:
    """A bench with numbers like the example's in smaller shapes. None if the shapes are small already, or the reference accepts no smaller ones."""
    halved = _halved(bench.dimensions)
    for kept in ("", *halved):  # if the reference refuses them, one size may have to stay
        sizes = tuple(sorted((name, size) for name, size in halved.items() if name != kept))
        taken = bench.takes(Trial(seed=5, sizes=sizes)) if sizes else None
        if taken is not None:
            made = bench.make(taken)
            leaves = tuple(Leaf(leaf.path, value, leaf.wanted) for leaf, value in zip(bench.example.leaves, made.values, strict=True))
            example = Example(bench.example.filled(made.values, made.numbers), leaves)
            return Bench(bench.candidate, bench.reference, example, dimensions.of(example, named), bench.wishes)
    return None


def smaller_alone(bench: Bench, named: object) -> Bench | None:
    """The smaller bench of an example so large that it is tried in smaller shapes alone. None of any other example."""
    return smaller(bench, named) if bench.dimensions.elements({}) > WHOLE else None


def _halved(known: dimensions.Dimensions) -> dict[str, int]:
    """Sizes under which no tensor is large. The largest size is halved repeatedly. No size becomes equal to another, since they would vary together
    then."""
    sizes, changed = dict(known.sizes), set()
    while known.elements(sizes) > ENOUGH:
        large = [name for name in sizes if sizes[name] >= 2 * _LEAST]
        if not large:
            break
        name = max(large, key=lambda each: sizes[each])
        sizes[name] //= 2
        changed.add(name)
        while any(sizes[name] == size for other, size in sizes.items() if other != name):
            sizes[name] -= sizes[name] // 4
    return {name: sizes[name] for name in changed}


def _seconds(bench: Bench) -> float:
    """Seconds of one run of the reference on the example, with its gradients."""
    trial = Trial(given=True, fill="")
    made = bench.make(trial)
    return min(running.run(bench.reference, bench.example, made.values, made.numbers, bench.wishes_of(trial)).seconds for _ in range(2))
