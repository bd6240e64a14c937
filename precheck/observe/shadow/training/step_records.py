"""The records of a watched run's steps: updates of weights and optimizer states, scaled backward passes, scaler steps."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from precheck import formats

if TYPE_CHECKING:
    import torch

    from precheck.observe.shadow.memory.stable_ids import WeakReference
    from precheck.observe.shadow.operations import Operation, Value


@dataclasses.dataclass(frozen=True, slots=True)
class ScalingEvent:
    """A use of quantities with different loss scales, or an event of a scaler: the op or call, and the factors."""

    kind: str
    operation: Operation
    factor: float
    other: float = 1.0
    text: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Undefined:
    """A loss, a gradient, a choice or a result that is lost to Inf or NaN in the run and in the reference."""

    operation: Operation  # that makes it of finite numbers, or reads NaN from elsewhere; the last op, if none is known to
    what: str  # "loss", "gradient of layer.weight", "number that argmax chooses by", "result"
    nan: bool
    step: int


@dataclasses.dataclass(slots=True)
class Backward:
    """A backward pass under a loss scale. Magnitudes are the reference's, without the scale."""

    peak: float = 0.0  # greatest |gradient| in a float16 tensor of the pass
    at: Operation | None = None  # the op that made it
    overflowed: Operation | None = None  # the first op whose result is finite in the reference only
    beyond: float = 0.0  # greatest magnitude that overflowed in its result
    parameter: str = ""  # the first parameter whose gradient is finite in the reference only

    @property
    def room(self) -> float:
        """The largest loss scale at which no float16 gradient overflows."""
        return formats.FP16.max / self.peak if self.peak else math.inf


@dataclasses.dataclass(frozen=True, slots=True)
class ScalerStep:
    """An optimizer step that a GradScaler took or skipped. Several taken in a row at one scale are one record, described by the first."""

    scaler: int  # identity
    operation: Operation  # the call of the step
    scale: float
    interval: int  # steps without a skip after which the scale grows
    skipped: bool
    backward: Backward
    optimizer: int = 0  # identity
    made: Operation | None = None  # where the scaler was made, if in the block
    times: int = 1
    until: int = 0  # number of the last step, if there are several

    @property
    def last(self) -> int:
        return self.until or self.operation.number

    def with_next(self, other: ScalerStep) -> ScalerStep | None:
        """One record for both steps. None if they differ in more than the count and the room of their backward passes."""
        alike = self.scaler == other.scaler and self.optimizer == other.optimizer and self.made is other.made
        if not alike or self.skipped or other.skipped or (self.scale, self.interval) != (other.scale, other.interval):
            return None
        if self.backward is other.backward:  # two steps of one update
            return None
        tightest = min(self.backward, other.backward, key=lambda back: back.room)
        return dataclasses.replace(self, backward=tightest, times=self.times + other.times, until=other.last)


@dataclasses.dataclass(frozen=True, slots=True)
class OptimizerState:
    """How much of a low-format state tensor's intended displacement since the first recorded step has arrived."""

    steps: int
    arrived: float
    intended: float  # |shadow's displacement| / |content at the first step|
    moved: float  # share of elements that have changed
    emptied: float = 0.0  # share of the shadow's non-zero elements that are zero in the run, since they are below the format's smallest number
    wrote: str = ""  # the user's own line that writes it


@dataclasses.dataclass(slots=True)
class Update:
    """How much of its steps arrived in one low-format parameter, over all steps so far. `meant` is the shadow's displacement."""

    parameter: str
    shape: tuple[int, ...]
    dtype: str
    operation: Operation  # the first step
    steps: int = 0
    common: float = 0.0  # Σ ⟨moved, meant⟩ over steps
    wanted: float = 0.0  # Σ ⟨meant, meant⟩
    arrived: float = 0.0  # share of the displacement since the first step
    size: float = 0.0  # |parameter|
    sampled: int = 0  # elements that were measured
    gradient_drift: float = 0.0  # of the worst step
    first_drift: float = 0.0  # of the first step's gradient, made by weights that have lost nothing yet
    held: bool = False  # whether an optimizer state holds the remainder that the parameter lost
    moved: int = 0  # how many of these have changed
    absorbed: float = 0.0  # of the elements that should move in a step, the share that does not, averaged over steps
    mass: float = 0.0  # share of Σ |meant| in these elements
    rated: float = 0.0  # Σ learning rate², over steps
    wrote: str = ""  # the user's own line that wrote the weight, or led to it
    aged: float | None = None  # share of the displacement after `horizon` steps of the optimizer alone, if the run was too short to tell
    horizon: int = 0
    states: dict[str, OptimizerState] = dataclasses.field(default_factory=dict)  # its low-format optimizer states, by name

    @property
    def edq(self) -> float:
        """Effective descent quality, normalised: ⟨meant, moved⟩ / ⟨meant, meant⟩ (Collage, arXiv 2405.03637)."""
        return self.common / self.wanted if self.wanted else 1.0

    @property
    def weight(self) -> float:
        """The root mean square of the parameter's elements."""
        return self.size / math.sqrt(max(1, self.sampled))

    @property
    def step(self) -> float:
        """The root mean square of an intended step's elements."""
        return math.sqrt(self.wanted / max(1, self.steps)) / math.sqrt(max(1, self.sampled))

    @property
    def rate(self) -> float:
        """The learning rate, or of a schedule's the root mean square, as `step` is."""
        return math.sqrt(self.rated / max(1, self.steps))

    @property
    def roundoff(self) -> float:
        return formats.of_dtype(self.dtype).unit_roundoff


@dataclasses.dataclass(slots=True)
class UnchangedProducts:
    """Products that left a weight unchanged: how many, and the relative change that they intended in total."""

    operation: Operation  # the first
    dtype: str
    times: int = 0
    intended: float = 0.0
    averages: bool = False  # whether what a product takes away is added of another tensor, as in `average.mul_(d).add_(new, alpha=1 - d)`


@dataclasses.dataclass(slots=True)
class Before:
    """A parameter before a step: samples of it and of its shadow, its content's value, and how many ops had run."""

    values: torch.Tensor
    shadow: torch.Tensor
    content: Value | None
    seen: int
    gradient: Value | None
    unused: bool
    parameter: WeakReference
