"""Tests a kernel's behaviour over several calls: what it keeps, where it writes, whether it gives the same again, on another CUDA stream too."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from precheck.kernels import memory, running
from precheck.kernels.bench import Bench
from precheck.kernels.call_profiling import bodies, profiled, runs
from precheck.kernels.clock import threads
from precheck.kernels.trial_result import Fault, Judged
from precheck.kernels.trials import Made, Trial, buffers
from precheck.observe.containers import call

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}
_NEW = 11
"""A size that no earlier trial has, unless the example has it."""


def in_place(bench: Bench) -> Iterator[Judged]:
    """Calls with new values in the tensors of the last call. A cache by address, identity or version is stale then. It may be used only where no
    input requires a gradient."""
    held = None
    for seed in range(70, 76):
        trial = Trial(seed=seed, only=None if seed < 73 else -2)
        made = bench.make(trial)
        if held is None:
            held = buffers(bench.example, made.values, trial)
        else:
            for buffer, values in zip(held, made.values, strict=True):
                buffer.write(values)
        yield bench.judge(trial, buffers=held)


def one_storage(bench: Bench) -> Iterator[Judged]:
    """Calls with two sizes in turn, in the same memory."""
    names = [name for name in bench.dimensions.sizes if bench.takes(Trial(sizes=((name, 2),))) is not None]
    if not names:
        return
    small, storages = bench.takes(Trial(seed=80, sizes=((names[-1], 2),))), []
    for leaf in bench.example.leaves:
        storages.append(torch.zeros(2 * leaf.tensor.numel() + 4096, dtype=leaf.tensor.dtype, device=leaf.tensor.device))
    for turn in range(4):
        trial = Trial(seed=81 + turn) if turn % 2 == 0 or small is None else small.but(seed=81 + turn)
        values = bench.make(trial).values
        if any(each.numel() > len(storage) for each, storage in zip(values, storages, strict=True)):
            return
        held = []
        for each, storage in zip(values, storages, strict=True):
            tensor = storage[: each.numel()].view(each.shape)
            tensor.copy_(each)
            held.append(memory.Buffer(tensor, storage, storage.clone()))
        yield bench.judge(trial, buffers=held)


def interposed(bench: Bench) -> Iterator[Judged]:
    """Runs the backward pass of one call after the forward pass of another. State outside the graph belongs to the other call then."""
    other = bench.make(Trial(seed=91))

    def both(*args: Any, **kwargs: Any) -> Any:
        first = candidate(*args, **kwargs)
        leaves = [each.clone().requires_grad_(leaf.wanted) for leaf, each in zip(bench.example.leaves, other.values, strict=True)]
        call(candidate, bench.example.filled(leaves, other.numbers))
        return first

    candidate = bench.candidate
    both.stands_for = candidate  # type: ignore[attr-defined]
    bench.candidate = both
    try:
        judged = bench.judge(Trial(seed=90))
    finally:
        bench.candidate = candidate
    yield judged


def renumbered(bench: Bench) -> Iterator[Judged]:
    """Calls in a new size, before which the same was called with a smaller whole number, as another place or length. Its result is not looked at. A
    cache whose key lacks that number is stale then."""
    for place, leaf in enumerate(bench.example.leaves):
        if leaf.tensor.dim() or leaf.tensor.dtype not in (torch.int32, torch.int64) or int(leaf.tensor) < 1:
            continue
        trial = _resized(bench, place, 98)
        made = bench.make(trial)
        less = Made([each - 1 if at == place else each for at, each in enumerate(made.values)], made.numbers)
        if bench.exact_of(trial, less).error is None:
            bench.call(trial, less)
            yield bench.judge(trial)


def _resized(bench: Bench, place: int, seed: int) -> Trial:
    """A trial in a size that no earlier one has, so that nothing is kept for it yet."""
    asked = (bench.takes(Trial(seed=seed, sizes=((name, _NEW + place),))) for name in bench.dimensions.sizes)
    return next((each for each in asked if each is not None), Trial(seed=seed))


def widened(bench: Bench) -> Iterator[Judged]:
    """A call in a new size, before which the same numbers came in a wider format, in which the result is not looked at. A cache whose key lacks the
    format is stale then. What reads a wider format as the narrower one stays inside its memory."""
    trial = _resized(bench, 8, 99)
    made = bench.make(trial)
    wide = Made([each.to(_WIDER.get(each.dtype, each.dtype)) for each in made.values], made.numbers)
    if running.run(bench.reference, bench.example, wide.values, wide.numbers, bench.wishes_of(trial)).error is None:
        bench.call(trial, wide)
        yield bench.judge(trial)


def twins(bench: Bench) -> Iterator[Judged]:
    """A call in a new size, before which one tensor was passed for two inputs of that shape, as in x + x. Its result is not looked at. A cache that
    keeps which tensors are the same reads one of them twice then."""
    leaves = bench.example.leaves
    pairs = [(first, second) for second in range(len(leaves)) for first in range(second) if _alike(leaves[first].tensor, leaves[second].tensor)]
    for first, second in pairs[:1]:
        trial = _resized(bench, 10, 89)
        made = bench.make(trial)
        held = buffers(bench.example, made.values, trial)
        held[second] = held[first]
        both = Made([made.values[first] if at == second else each for at, each in enumerate(made.values)], made.numbers)
        if bench.exact_of(trial, both).error is None:
            bench.call(trial, both, buffers=held)
            yield bench.judge(trial)


def _alike(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.dim() > 0 and first.shape == second.shape and first.dtype == second.dtype and first.is_floating_point()


def repeated(bench: Bench) -> str:
    """What is wrong with a second backward pass through one graph, in words. It has the same incoming gradients, so that it should give the same."""
    trial = Trial(seed=92)
    made = bench.make(trial)
    held = buffers(bench.example, made.values, trial)
    twice = dataclasses.replace(bench.wishes_of(trial), again=True)
    outcome = running.run(bench.candidate, bench.example, [each.tensor for each in held], made.numbers, twice, keep=True)
    right = running.run(bench.reference, bench.example, made.values, made.numbers, twice)
    if right.error is not None or right.again or (outcome.error is None and not outcome.again):
        return ""
    if outcome.error is not None:
        return f"the second one raises {type(outcome.error).__name__}" if outcome.where == "second backward" else ""
    return f"the second one gives another {', '.join(outcome.again)}"


def noticed(bench: Bench) -> list[tuple[str, str]]:
    """What is no fault and worth a warning, with its rule."""
    found = []
    if calls_reference(bench):
        found.append(("kernel-fallback", "the candidate calls the reference, so that nothing of it is judged but that call"))
    again = repeated(bench)
    if again:
        found.append(("kernel-mutation", f"of two backward passes through one graph {again}: what was kept for it is written over"))
    return found


def overwritten(bench: Bench) -> Fault | None:
    """A fault if a result changes when the candidate is called again, or if its backward pass writes into the incoming gradient."""
    trial = Trial(seed=92)
    outcome, _ = bench.call(trial, bench.make(trial))
    if outcome.error is not None:
        return None
    for given, held in outcome.upstream:
        if not memory.same(given, held):
            return Fault("touched", "gradient", "the candidate's backward pass writes into the gradient that it was given")
    before = [each.detach().clone() for each in outcome.outputs]
    for seed in (93, 94):
        bench.call(Trial(seed=seed), bench.make(Trial(seed=seed)))
    for name, now, was in zip(outcome.values, outcome.outputs, before, strict=False):
        if not memory.same(now, was):
            return Fault("overwritten", name, f"{name} of one call changes when the candidate is called again: both are in one memory")
    return None


def nondeterministic(bench: Bench) -> Fault | None:
    """A fault if calls on the same tensors give different bits, and the reference's do not."""
    trial = Trial(seed=95, fill="")
    made = bench.make(trial)
    held = buffers(bench.example, made.values, trial)
    with threads(bench.threads):
        results = [bench.call(trial, made, buffers=held)[0] for _ in range(3)]
        unlike = any(each.error is not None for each in results) or not _repeats(bench, trial)
    if unlike:
        return None
    for name, first in results[0].values.items():
        others = [each.values.get(name) for each in results[1:]]
        far = [other for other in others if first is not None and other is not None and not memory.same(first, other)]
        if first is not None and far:
            moved = max(float((other.double() - first.double()).abs().nan_to_num(nan=float("inf")).max()) for other in far)
            return Fault("unlike", name, f"{name} differs between calls on the same tensors, by up to {moved:.3g}; the reference's does not")
    return None


def _repeats(bench: Bench, trial: Trial) -> bool:
    made = bench.make(trial)
    runs = [running.run(bench.reference, bench.example, made.values, made.numbers, bench.wishes_of(trial)) for _ in range(2)]
    return all(a is None or b is None or memory.same(a, b) for a, b in zip(runs[0].values.values(), runs[1].values.values(), strict=False))


def threaded(bench: Bench) -> Judged:
    """Judges a trial with another number of threads. The reference needs no more than it has, and on a busy machine each of its ops would wait."""
    bench.called_with = 1 if torch.get_num_threads() > 1 else max(bench.threads, 2)
    try:
        return bench.judge(Trial(seed=96))
    finally:
        bench.called_with = 0


def streamed(bench: Bench) -> Judged | None:
    """Judges a trial on another CUDA stream. Its inputs are written there, after a while: a kernel that runs on the default stream reads NaN.

    Whole numbers are 0 until then, since they may be indices. None if no input lies on a CUDA device.
    """
    device = cuda_device([leaf.tensor for leaf in bench.example.leaves])
    if device is None:
        return None
    trial = Trial(seed=98)
    values = bench.example.placed(bench.make(trial).values)
    held = buffers(bench.example, [torch.full_like(each, math.nan if each.is_floating_point() or each.is_complex() else 0) for each in values], trial)
    with another_stream(device):
        for buffer, each in zip(held, values, strict=True):
            buffer.write(each)
        return bench.judge(trial, buffers=held)


def calls_reference(bench: Bench) -> bool:
    """Whether the candidate calls the reference."""
    if bench.candidate is bench.reference:
        return True
    wanted, seen = bodies(bench.reference), []

    def watch(frame: Any, event: str, argument: Any) -> None:
        if (event == "call" and runs(frame, wanted)) or (event == "c_call" and argument is bench.reference):
            seen.append(event)

    trial = Trial(given=True, fill="")
    with profiled(watch):
        made = bench.make(trial)
        running.run(bench.candidate, bench.example, made.values, made.numbers, dataclasses.replace(bench.wishes_of(trial), gradients=False))
    return bool(seen)


_SIZE, _PRODUCTS = 4096, 16
"""The new stream multiplies matrices of this size at first: 2 · 10¹² operations, some 40 milliseconds. What does not wait for it reads too early."""


def cuda_device(tensors: Sequence[torch.Tensor]) -> torch.device | None:
    """The CUDA device that a tensor lies on. None if there is none."""
    return next((each.device for each in tensors if each.device.type == "cuda"), None)


@contextlib.contextmanager
def another_stream(device: torch.device) -> Iterator[None]:
    """Inside, the device's work goes to a new stream, which waits for the present one. Afterwards the present one waits for the new one."""
    present, new = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    new.wait_stream(present)
    try:
        with torch.cuda.stream(new):
            keep_busy(device)
            yield
    finally:
        present.wait_stream(new)


def keep_busy(device: torch.device) -> None:
    """Gives the current stream work. The caller does not wait for it."""
    square = torch.zeros(_SIZE, _SIZE, device=device)
    for _ in range(_PRODUCTS):
        square = square @ square
