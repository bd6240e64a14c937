"""The result of one trial: its fault, if there is one, and the distance of each subject from the exact result."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence

import torch

from precheck.analysis.noise_floor import kernel_floor as floor
from precheck.analysis.noise_floor.kernel_floor import Distance
from precheck.kernels.running import Outcome
from precheck.kernels.trials import Made, Trial
from precheck.words import counted, digits, of_norm

CLEAR = 16.0
"""Factor on its bound from which an element is wrong regardless of the number of noise runs. The largest of 24 runs is twice that of 6."""
PLAIN = 1e9
"""Factor on its bound from which the number says nothing more: the bound is close to 0 there."""
MANY = 1 / 16
"""Share of wrong elements from which they are too many to be different decisions."""

AT_ONCE = {"touched": "kernel-mutation", "aliased": "kernel-mutation", "overwritten": "kernel-stale", "unlike": "kernel-nondeterminism",
           "refusal": "kernel-contract", "of nothing": "kernel-edge", "beyond": "kernel-edge"}  # fmt: skip
"""Classes of faults that need no search."""


@dataclasses.dataclass(slots=True, eq=False)
class Fault:
    """A fault of a candidate in one trial.

    `kind`: "values", "lost", "infinity", "leaked", "NaN lost", "crash", "refusal", "form", "missing", "touched", "beyond", "aliased", "overwritten",
    "unlike", "of nothing" or "registered".
    """

    kind: str
    subject: str
    text: str
    distance: Distance | None = None

    @property
    def backward(self) -> bool:
        return "gradient" in self.subject


@dataclasses.dataclass(slots=True, eq=False)
class Judged:
    """One trial with its verdict."""

    trial: Trial
    distances: dict[str, Distance] = dataclasses.field(default_factory=dict)
    fault: Fault | None = None
    noticed: tuple[str, str] | None = None  # what is no fault, and worth a warning: its rule, and the text
    refused: str = ""  # why the candidate refuses these inputs
    skipped: str = ""  # why there is no verdict
    outcome: Outcome | None = None  # of the candidate
    reference: Reference | None = None

    @property
    def subject(self) -> str:
        """The result that is wrong."""
        return self.fault.subject if self.fault is not None else "output"

    def results(self, name: str = "") -> tuple[torch.Tensor, torch.Tensor] | None:
        """What the candidate gives for a result, and what is exact; for the wrong one, if none is named. None unless both have one shape."""
        got, right = (side.values.get(name or self.subject) if side is not None else None
                      for side in (self.outcome, self.reference.exact if self.reference is not None else None))  # fmt: skip
        return None if got is None or right is None or got.shape != right.shape else (got, right)

    @property
    def ratio(self) -> float:
        return max((each.ratio for each in self.distances.values()), default=0.0)

    @property
    def open(self) -> bool:
        """Whether more noise runs may change the verdict."""
        return self.ratio > 1 or any(each.choices for each in self.distances.values())

    @property
    def everywhere(self) -> bool:
        """Whether the errors are so large and so many that no more noise runs can explain them. A few elements could have changed by a decision."""
        far = [each for each in self.distances.values() if each.ratio > CLEAR and each.wrong is not None and not each.choices]
        return any(each.wrong is not None and each.elements > MANY * each.wrong.numel() and each.elements >= 8 for each in far)

    @property
    def backward(self) -> bool:
        """Whether only gradients are wrong."""
        return all("gradient" in name for name, each in self.distances.items() if each.ratio > 1)


@dataclasses.dataclass(slots=True, eq=False)
class Reference:
    """The known results of the reference in a trial."""

    native: Outcome
    exact: Outcome
    floors: dict[str, floor.Floor] = dataclasses.field(default_factory=dict)
    runs: int = 0
    made: Made | None = None  # inputs, if they are not the trial's own
    ambiguous: bool = False
    sampled: bool = False  # whether the reference's error at nearby inputs is included


def distances(outcome: Outcome, reference: Reference) -> dict[str, Distance]:
    """The distance of every subject from the exact result."""
    found = {}
    for name, floored in reference.floors.items():
        floored.parted(outcome.parts.get(name))
        value = outcome.values.get(name)
        if value is None:
            value = torch.zeros_like(floored.exact)
        found[name] = floor.distance(floored, value)
    return found


def form(outcome: Outcome, native: Outcome) -> Fault | None:
    """A fault if shapes or dtypes differ from the reference's."""
    if outcome.structure != native.structure:
        counts = f"{counted(len(outcome.structure), 'tensor')}, the reference {len(native.structure)}"
        return Fault("form", "output", f"the candidate returns {counts}, or under other names")
    for name, right in native.values.items():
        got = outcome.values.get(name)
        if right is not None and name.startswith("output") and got is not None and (got.shape != right.shape or got.dtype != right.dtype):
            return Fault("form", name, f"{name}: {tuple(got.shape)} {got.dtype}, where the reference gives {tuple(right.shape)} {right.dtype}")
    return None


def of_nothing(judged: Judged, outcome: Outcome, reference: Reference) -> Fault | None:
    """A fault if a number is given where the reference has NaN since a size is 0. Nothing is computed there, so that nothing but the reference says
    what is right."""
    for name, right in reference.exact.values.items() if any(size == 0 for _, size in judged.trial.sizes) else ():
        got, native = outcome.values.get(name), reference.native.values.get(name)
        if right is None or got is None or native is None or not right.is_floating_point() or not got.shape == right.shape == native.shape:
            continue
        other = right.isnan() & native.isnan() & ~got.isnan()
        if name.startswith("output") and bool(other.any()):
            return Fault("of nothing", name, f"{name}: no NaN in {counted(int(other.sum()), 'element')} of no terms, where the reference gives NaN")
    return None


def aliased(judged: Judged, outcome: Outcome, native: Outcome) -> Fault | None:
    """A fault if an output lies in an input's memory, and the reference's does not. In other sizes than the example's it is noticed: where there is
    nothing to do, a kernel may hand back what it was given, which is wrong only for who writes there."""
    if judged.trial.layout != "contiguous":  # the reference was not run in that layout
        return None
    for name in sorted(outcome.aliased - native.aliased):
        text, made = "is in the memory of an input; the reference returns memory of its own", outcome.values[name]
        if not judged.trial.sizes:
            return Fault("aliased", name, f"{name} {text}")
        shape = f"of shape {tuple(made.shape)} " if made is not None else ""
        judged.noticed = judged.noticed or ("kernel-mutation", f"{name} {shape}{text}. In the example's sizes it lies elsewhere")
    return None


def surplus(outcome: Outcome, native: Outcome) -> Fault | None:
    """A fault if the candidate has a gradient, not zero, where the reference has none."""
    for name, right in native.values.items():
        got = outcome.values.get(name)
        if right is None and got is not None and bool((got != 0).any()):
            return Fault("missing", name, f"{name}: the candidate has one, and the reference has none")
    return None


def values_of(judged: Judged, outcome: Outcome, reference: Reference) -> Fault | None:
    too_far = {name: each for name, each in judged.distances.items() if each.ratio > 1}
    if not too_far:
        return None
    name = next(iter(too_far))
    found = too_far[name]
    cut = sorted(reference.native.attached - outcome.attached)
    if cut and "gradient" in name:
        return Fault("missing", name, f"{name}: none flows through the candidate's {', '.join(cut)}; through the reference's it does", found)
    if outcome.values.get(name) is None:
        return Fault("missing", name, f"{name}: the candidate has none, and the reference's is not zero", found)
    return Fault("lost" if found.lost else "values", name, _far(name, found), found)


def _far(name: str, found: Distance) -> str:
    assert found.wrong is not None
    whole = found.wrong.numel()
    share = f"{found.lost or found.elements} of {counted(whole, 'element')}" if whole > 1 else "1 element"
    if found.lost:
        return f"{name}: Inf or NaN in {share}{_block(found.wrong)}, where every correct implementation is finite"
    by = f"{digits(found.ratio, 3)} times the error that rounding explains" if found.ratio < PLAIN else "more than rounding explains"
    if found.elements:
        where = f"{share} off{_block(found.wrong)}, the worst at {list(found.first)}"
        return f"{name}: {where}: {found.got + 0:.6g} instead of {found.exact + 0:.6g}, {by}"
    return f"{name}: {found.block} is off by {of_norm(found.relative)}, {by}"


def _block(wrong: torch.Tensor) -> str:
    """The smallest block that holds all wrong elements, in words, where these are several and it is at most half of the tensor."""
    places = wrong.nonzero()
    if len(places) < 2:
        return ""
    least, ends = places.amin(0).tolist(), (places.amax(0) + 1).tolist()
    if 2 * math.prod(end - first for first, end in zip(least, ends, strict=True)) > wrong.numel():
        return ""
    return f", all in [{', '.join(f'{first}:{end}' for first, end in zip(least, ends, strict=True))}]"


def stored_as(judged: Judged, name: str) -> str:
    """The format in which the reference gives a result."""
    value = judged.reference.native.values.get(name) if judged.reference is not None else None
    return "" if value is None else str(value.dtype).removeprefix("torch.")


def asked(judged: Judged) -> bool:
    """Whether the reference has numbers to return in the pass in which the candidate raises."""
    values = judged.reference.native.values if judged.reference is not None else {}
    wanted = "gradient" if judged.fault is not None and judged.fault.backward else "output"
    return any(each is not None and each.numel() > 0 for name, each in values.items() if wanted in name)


def vacuous(judged: Judged, shapes: Sequence[Sequence[Hashable]]) -> bool:
    """Whether a size other than the number of rows is 0. A kernel without columns has nothing to compute, and may raise any error. A pass that
    has numbers to return has something to compute: the gradient of a table is zero where no row is looked up. (What memory held before is no result
    of a computation either: the session asks `Replay.unwritten` too.)"""
    empty = {name for name, size in judged.trial.sizes if size == 0}
    first = next((shape[0] for shape in shapes if shape), "")
    if not empty or first in empty:
        return False
    assert judged.fault is not None
    return judged.fault.kind not in ("of nothing", "touched", "beyond") and (judged.fault.kind != "crash" or not asked(judged))
