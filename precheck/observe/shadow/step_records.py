"""What a watched run's steps came to, in numbers: updates of weights and states, scaled backward passes, scalers."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from precheck.formats import FP16

if TYPE_CHECKING:
    from precheck.observe.shadow.operations import Operation


@dataclasses.dataclass(frozen=True, slots=True)
class ScalingEvent:
    """Something done across loss scales, or to a scaler: at which op or call, and under which factors."""

    kind: str
    operation: Operation
    factor: float
    other: float = 1.0
    text: str = ""


@dataclasses.dataclass(slots=True)
class Backward:
    """A backward pass under a loss scale. Magnitudes are the reference's, the scale divided out."""

    peak: float = 0.0  # greatest gradient that a float16 tensor holds on the way
    at: Operation | None = None  # which op made it
    overflowed: Operation | None = None  # the first whose result is finite in the reference and not here
    beyond: float = 0.0  # greatest magnitude among what overflowed there
    parameter: str = ""  # the first whose gradient is finite in the reference and not here

    @property
    def room(self) -> float:
        """The largest safe loss scale: no float16 gradient on the way overflows."""
        return FP16.max / self.peak if self.peak else math.inf


@dataclasses.dataclass(frozen=True, slots=True)
class ScalerStep:
    """An optimizer's step as a GradScaler took or skipped it; or several in a row that were taken at one scale, described by their first."""

    scaler: int  # identity
    operation: Operation  # where the step was asked for
    scale: float
    interval: int  # steps without a skip after which the scale grows
    skipped: bool
    backward: Backward
    optimizer: int = 0  # identity
    made: Operation | None = None  # where the scaler was made, if in the block
    times: int = 1
    until: int = 0  # number of the last, where they are several

    @property
    def last(self) -> int:
        return self.until or self.operation.number

    def with_next(self, other: ScalerStep) -> ScalerStep | None:
        """Both as one, where the other adds nothing to what is judged but a count, and how tight its backward pass was."""
        alike = self.scaler == other.scaler and self.optimizer == other.optimizer and self.made is other.made
        if not alike or self.skipped or other.skipped or (self.scale, self.interval) != (other.scale, other.interval):
            return None
        if self.backward is other.backward:  # two steps of one update
            return None
        tightest = min(self.backward, other.backward, key=lambda back: back.room)
        return dataclasses.replace(self, backward=tightest, times=self.times + other.times, until=other.last)


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """What of a low-format state tensor's displacement since the first step seen arrived."""

    steps: int
    arrived: float
    intended: float  # |shadow's displacement| / |what it held at first|
    moved: float  # share of elements that are not what they were
    emptied: float = 0.0  # share of the shadow's non-zero elements that are zero here, being less than the format's smallest number


@dataclasses.dataclass(slots=True)
class Update:
    """What of its steps arrived in one low-format parameter. What was meant is the shadow's move, over all steps so far."""

    parameter: str
    shape: tuple[int, ...]
    dtype: str
    operation: Operation  # the first step
    steps: int = 0
    common: float = 0.0  # Σ ⟨moved, meant⟩ over steps
    wanted: float = 0.0  # Σ ⟨meant, meant⟩
    arrived: float = 0.0  # of the displacement since the first step
    size: float = 0.0  # |parameter|
    sampled: int = 0  # elements looked at
    gradient_drift: float = 0.0  # the worst step's
    held: bool = False  # whether the optimizer's state holds what the parameter lacks
    moved: int = 0  # elements, of those looked at, that are not what they were
    absorbed: float = 0.0  # share of what should have moved at a step and did not, on average over steps
    mass: float = 0.0  # share of Σ |meant| that lies there
    rate: float = 0.0  # learning rate, at the first step
    wrote: str = ""  # the user's own line that wrote the weight, or led to it
    aged: float | None = None  # of the displacement after `horizon` steps of the optimizer alone, where few steps did not tell
    horizon: int = 0
    states: dict[str, State] = dataclasses.field(default_factory=dict)  # the optimizer's low-format tensors of it, by name

    @property
    def edq(self) -> float:
        """Effective descent quality, normalised: ⟨meant, moved⟩ / ⟨meant, meant⟩ (Collage, arXiv 2405.03637)."""
        return self.common / self.wanted if self.wanted else 1.0


@dataclasses.dataclass(slots=True)
class Undone:
    """Products that left a weight as it was: how many, and what they were to change it by all together, as a share of it."""

    operation: Operation  # the first
    dtype: str
    times: int = 0
    meant: float = 0.0
