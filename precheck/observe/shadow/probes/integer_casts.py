"""Compares the integers that a run makes of floats with those of its shadow: casts, bins, `round` and `floor`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch

from precheck import ops
from precheck.observe.shadow.comparing.fetching import fetched
from precheck.observe.shadow.comparing.statistics import WHOLES, sampled
from precheck.observe.shadow.op_notes import Recut, Renumbered, Wrapped
from precheck.observe.shadow.operations import Operation

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call

NARROW = 32
"""Bits of the widest integer type that is checked for overflow. No real quantity overflows 64 bits."""
EVIDENCE = 10.0
"""Bits of evidence that numbers are integers because they count something. By chance they would be so in one of a thousand casts."""
BESIDE = 2.0**-5
"""How far beside a number its steps are counted: far more than roundings of any format."""
_BETWEEN = 8  # ops between `round` and a cast to integers
NEARLY = 8.0
"""Spacings of the reference that a whole number may be off after divisions and multiplications."""


def reads_one_low(call: Call) -> bool:
    """Whether an op of no backward pass reads one tensor of floats, which was rounded to a low format."""
    return len(call.floats) == 1 and bool(call.inputs[0].roundoff) and call.operation.phase != "backward"


def reads_whole(call: Call) -> bool:
    """Whether an op reads whole numbers that `round` or `floor` has made otherwise than in the reference. The reference follows these, so that they
    count as exact if they are stored wide. They may have been moved, added to, scaled or cut since."""
    maker = call.inputs[0].maker if len(call.floats) == 1 and call.operation.phase != "backward" else None
    for _ in range(_BETWEEN):
        if maker is None or maker.recut is not None or maker.base not in ops.KEEPING:
            break
        maker = maker.inputs[0].maker if maker.inputs else None
    return maker is not None and maker.recut is not None


def after_cast(call: Call, output: torch.Tensor) -> None:
    """Compares the integers that a cast makes with those of the reference."""
    given, shadow, limits, operation = call.floats[0], call.shadows[id(call.floats[0])], torch.iinfo(output.dtype), call.operation
    operation.bits = limits.bits
    if limits.bits >= NARROW:
        call.mode.places.cast(operation, output)
    held, exact = fetched([sampled(given, WHOLES), sampled(shadow, WHOLES)])
    note_renumbered(operation, call.inputs[0].roundoff, limits, held, exact)
    if limits.bits >= NARROW:
        note_recut(operation, torch.trunc, held, exact, held.trunc())
    if limits.bits <= NARROW:
        note_wrapped(operation, limits, *fetched([*map(sampled, (given, shadow, output))]))


def after_binning(call: Call, made: torch.Tensor) -> None:
    """If numbers were sorted into bins: compares the bins with those of the reference, and follows them, as after a cast to integers."""
    if call.plan.base not in ops.BINNED or len(call.floats) < 2 or call.op.kwargs.get("sorter") is not None or call.operation.phase == "backward":
        return
    numbers, bounds = call.floats[:2] if call.plan.base == "bucketize" else call.floats[1::-1]
    wide, right = call.shadows[id(bounds)], bool(call.op.kwargs.get("right")) or call.op.kwargs.get("side") == "right"
    if bounds.dim() != 1:
        return
    call.mode.places.cast(call.operation, made)
    four = [sampled(numbers, WHOLES), sampled(call.shadows[id(numbers)], WHOLES), sampled(made, WHOLES), (bounds == wide).all() | _even(wide)]

    def binned(held: torch.Tensor) -> torch.Tensor:  # which may have been fetched from a device
        return torch.searchsorted(wide.to(held.device), held, right=right).to(held.dtype)

    _note_rebinned(call.operation, binned, *fetched(four))


def _note_rebinned(operation: Operation, step: Callable[[torch.Tensor], torch.Tensor], *four: torch.Tensor) -> None:
    """Records numbers that fall into other bins. Places in equal steps have a bin each: no rounding explains another, if the bounds are no data."""
    note_recut(operation, step, *four[:3])
    if operation.recut and bool(four[3]) and four[1].dim() == 1 and bool(_even(four[1])):
        operation.recut = dataclasses.replace(operation.recut, size=0.0)


def _even(numbers: torch.Tensor) -> torch.Tensor:
    """Whether numbers follow each other in equal steps."""
    return ((numbers.diff() - numbers.diff().mean()).abs() <= NEARLY * torch.finfo(numbers.dtype).eps * numbers.abs().max()).all()


def note_renumbered(operation: Operation, unit: float, limits: torch.iinfo, run: torch.Tensor, shadow: torch.Tensor) -> None:
    """Records whole numbers that a cast to integers turns into others, since their low format could not hold them.

    All numbers beyond 1/u must be whole in the reference. A real number of size 2^e in a reference of t bits is whole by chance in one of 2^(t - e).
    So many whole elements are evidence that they count something: positions, ids, counts. Other numbers (a quotient, a draw times n) are truncated
    differently in healthy programs too. `note_recut` checks `round` and `floor`.
    """
    low, wide = run.to(shadow.dtype), shadow
    large = (wide.abs() > 1 / unit) & wide.isfinite() & low.isfinite()
    moved = large & (low.trunc() != wide.round())
    if not bool(moved.any()):
        return
    spacing, whole = torch.finfo(wide.dtype).eps * wide[large].abs(), wide[large].round()
    strays = (wide[large] - whole).abs()
    if bool((strays > NEARLY * spacing).any()) or float(whole.abs().max()) > limits.max:
        return
    sizes, places = whole.abs().unique(return_inverse=True)
    exact = torch.ones_like(sizes, dtype=torch.bool).index_put_((places[strays > 0],), sizes.new_zeros((), dtype=torch.bool))
    evidence = -torch.log2(torch.finfo(wide.dtype).eps * sizes) - torch.where(exact, 0.0, math.log2(2 * NEARLY))
    if float(evidence.clamp_min(0).sum()) >= EVIDENCE:
        first = int(moved.reshape(-1).nonzero()[0])
        different = int(wide[moved].round().unique().numel())
        operation.renumbered = Renumbered(different, float(sizes.max()), float(wide[first]), float(low[first]), 1 / unit)


def note_recut_in_call(call: Call, output: torch.Tensor, seen: dict[int, torch.Tensor]) -> None:
    """The same as `note_recut`, beside what float32 gives on the inputs that the call of the user's function had (`function_replay`)."""
    if len(call.floats) != 1 or id(call.floats[0]) not in seen or not call.inputs[0].roundoff:
        return
    run, wide, base = sampled(call.floats[0], WHOLES), sampled(seen[id(call.floats[0])], WHOLES), call.plan.base
    if base in ops.WHOLE:
        note_recut(call.operation, getattr(torch, base), run, wide, sampled(output, WHOLES), into="recut_in_call")
    elif base in ops.CASTS and output.dtype is not torch.bool and torch.iinfo(output.dtype).bits >= NARROW:
        note_recut(call.operation, torch.trunc, run, wide, run.trunc(), into="recut_in_call")


def note_recut(
    operation: Operation, step: Callable[[torch.Tensor], torch.Tensor], run: torch.Tensor, shadow: torch.Tensor, made: torch.Tensor,
    *, into: Literal["recut", "recut_in_call"] = "recut",
) -> None:  # fmt: skip
    """Records results of `round`, `floor` or a cast that differ from the reference's by more than the reference's own rounding explains."""
    slack, became = NEARLY * torch.finfo(shadow.dtype).eps * shadow.abs(), made.to(shadow.dtype)
    moved = run.isfinite() & shadow.isfinite() & ((became < step(shadow - slack)) | (became > step(shadow + slack)))
    if bool(moved.any()):
        places = moved.reshape(-1).nonzero().flatten().tolist()
        was = step(shadow)
        example = float(was.reshape(-1)[places[0]]), float(became.reshape(-1)[places[0]])
        note = Recut(len(places), moved.numel(), *example, _density(step, shadow), frozenset(places), _beyond(was, became, moved))
        setattr(operation, into, note)


def _beyond(was: torch.Tensor, became: torch.Tensor, moved: torch.Tensor) -> tuple[float, float, float] | None:
    """Of the integers that differ the one that is furthest above or below all of the reference: what it was and became, and the reference's end."""
    finite, flat, now = was[was.isfinite()], was.reshape(-1), became.reshape(-1)
    over = torch.where(moved, torch.maximum(became - finite.max(), finite.min() - became), torch.zeros((), dtype=was.dtype)).reshape(-1)
    place = int(over.argmax())
    end = finite.max() if now[place] > finite.max() else finite.min()
    return (float(flat[place]), float(now[place]), float(end)) if float(over[place]) > 0 else None


def _density(step: Callable[[torch.Tensor], torch.Tensor], numbers: torch.Tensor) -> float:
    """How many steps the mean number takes beside its relative change. It is the mean size of numbers that become whole ones."""
    finite = numbers[numbers.isfinite()]
    steps = step(finite * (1 + BESIDE)) - step(finite * (1 - BESIDE))
    return float(steps.abs().mean()) / (2 * BESIDE) if finite.numel() else 0.0


def note_wrapped(operation: Operation, limits: torch.iinfo, run: torch.Tensor, shadow: torch.Tensor, stored: torch.Tensor) -> None:
    """Records numbers that leave the range of an integer type in the run but not in the reference: as uint8, 255.9 is white and 256 is black."""
    low, wide = run.to(torch.float64).trunc(), shadow.to(torch.float64).trunc()
    inside = (wide >= limits.min) & (wide <= limits.max)
    beyond = inside & low.isfinite() & ((low < limits.min) | (low > limits.max))
    if bool(beyond.any()):
        first = int(beyond.reshape(-1).nonzero()[0])
        became = float(run.reshape(-1)[first])
        end = limits.max if became > 0 else limits.min
        was, held = float(shadow.reshape(-1)[first]), int(stored.reshape(-1)[first])
        operation.wrapped = Wrapped(int(beyond.sum()), was, became, held, limits.dtype, end)
