"""What a watched run did, op by op, in numbers: operations, the values they read and made, and how these hang together.

A `Value` is one version of a tensor's content. In-place ops make new values of the same storage; views share their base's.
Nothing here holds a tensor.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Literal

from precheck.findings import Binades, Loss
from precheck.observe.shadow.code_notes import Clipped, Late, Repeated, Skewed, Uncancelled, Unturned
from precheck.observe.shadow.op_notes import Outdated, Recut, Refused, Renumbered, Skew, Summed, Tail, Wrapped
from precheck.observe.shadow.source import Function, shortened
from precheck.observe.shadow.step_records import ScalerStep, ScalingEvent, Undone, Update
from precheck.ops import names_of

Phase = Literal["forward", "backward", "optimizer", "scaler", "data"]


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Value:
    """A tensor's content as the run has it, beside its shadow in the reference precision. Shares are of elements.

    Tensors of more than `statistics.SAMPLE` elements are measured on a sample of them, non-finite values excepted.
    """

    maker: Operation | None  # None: weights, inputs and whatever else the block was given
    shape: tuple[int, ...]
    dtype: str
    roundoff: float  # of the coarsest format that the content has passed through; 0 where that is the reference's own
    low: bool = False  # stored in a low format
    kept_low: bool = False  # stored so, or only moved or widened since
    drift: float = 0.0  # |run - shadow| / |shadow|, Euclidean
    norm: float = 0.0  # of the shadow
    nonfinite: int = 0  # Inf or NaN here, finite in the shadow; or NaN here, and Inf there
    nans: int = 0  # of these, NaN
    beyond: float = 0.0  # greatest |shadow| among these
    distinct_overflows: int = 0  # how many different numbers these are in the shadow
    negative: bool = False  # whether all of them are negative there
    zeros: int = 0  # zero here, not in the shadow, among so many
    sample_size: int = 0
    zeroed: float = 0.0  # share of the shadow's norm that lies there
    largest_zeroed: float = 0.0  # greatest |shadow| there
    dead: float = 0.0  # off by more than a quarter of max(|shadow|, root mean square): not one digit left
    sensitivity: float = 0.0  # |perturbed shadow - shadow| / |run - shadow|: 1 where float32 does not determine the value either
    perturbed_drift: float = 0.0  # |perturbed shadow - shadow| / |shadow|, where there is a perturbed shadow
    wholes_moved: int = 0  # distinct whole numbers that the format could not hold
    peak: float = 0.0  # greatest |shadow|, where whole numbers moved
    restarted: float = 0.0  # the error that the call of a user's function has made itself, relative
    local: float | None = None  # error of the op on the inputs it had, relative; None where not asked
    alive: bool = False  # when the block ended, or now, where a part of the run is judged before
    past: Past | None = None  # where its ancestors have been let go

    def __repr__(self) -> str:
        return f"<{self.dtype}{list(self.shape)} off by {self.drift:.2g}>"

    @property
    def rounded(self) -> float:
        """What one rounding in the coarsest format so far costs: 0.42 u in relative L2 (Gaussian data, measured)."""
        return 0.42 * self.roundoff


@dataclasses.dataclass(frozen=True, slots=True)
class Past:
    """What walks back from a value would have found among ancestors that are no longer there."""

    zeros: tuple[str, Operation] | None  # the rule and the op behind its zeros
    rounding: Operation | None  # the op whose rounding its error is
    turns: Counter[tuple[str, ...]]  # how often each op of each module and line was passed on the way


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Absorbed:
    """An addition that left bits as they were although the shadow moved; figures since the accumulator's first."""

    share: float  # of elements whose shadow moved, those that did not
    times: int  # additions of that kind in a row of additions to this accumulator
    additions: int
    arrived: float  # share of the shadow's whole displacement that the run's covers
    intended: float  # |shadow's displacement| / |what the run started from|
    lost: float  # |displacement - shadow's| / |shadow's|
    drift: float
    first: Operation | None = None
    carried: bool = False  # read, computed elsewhere and stored again, turn by turn


@dataclasses.dataclass(frozen=True, slots=True)
class Flips:
    """Rows of a choice (elements, where there are no rows) that came out otherwise, beside what there was to choose by."""

    changed: int
    total: int
    ties: int = 0  # changed rows whose scores are equal at the edge of the choice, in the run
    blur: float = 0.0  # |error| / |scores - their row's mean|: a choice sees differences only
    swapped: float = 1.0  # of what a row chooses that comes out otherwise, the mean share that is not among the reference's


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Operation:
    """One op of the run. `inputs` and `outputs` are its floating tensors, in the order of its schema."""

    number: int
    name: str  # "mul.Tensor"
    phase: Phase
    module: str
    source: str  # "models/gpt.py:88"
    step: int
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    scalars: tuple[float, ...] = ()  # Python floats among its arguments
    in_place: bool = False
    in_optimizer: bool = False
    opaque: str = ""  # why the shadow could not follow
    flips: Flips | None = None
    renumbered: Renumbered | None = None
    recut: Recut | None = None
    bits: int = 0  # of the integers that a cast makes of floats
    taken: Literal["", "amount", "place"] = ""  # for what the program takes these; "": nothing has read them
    drawn: bool = False  # whether it reads random numbers that no low format had rounded
    wrapped: Wrapped | None = None
    outdated: Outdated | None = None
    tail: Tail | None = None
    skew: Skew | None = None
    summed: Summed | None = None
    coded: Uncancelled | Unturned | Clipped | Skewed | Repeated | Late | None = None
    mixed: bool = False  # whether its tensors, those of one number aside, are of several formats
    autocast: bool = False  # whether the block has switched autocast on, or off again
    impossible: tuple[int, int] = (0, 0)  # indices drawn that have no probability, of so many
    unmasked: int = 0  # Inf and NaN that a mask was multiplied by, to be NaN all of them
    derived: bool = False  # made by autograd from a forward op, not written by the user
    absorbed: Absorbed | None = None
    starved: float = 0.0  # smallest non-zero |divisor| as the run has it, for a quotient that overflowed
    scale: float = 1.0  # loss scale of the backward pass it belongs to
    amounts: bool = False  # given integers that are sums of products, which count nothing
    own_epsilon: float = 0.0  # eps of the low format among its arguments, which the shadow replaced by the reference's own
    parameter: int = 0  # identity of the parameter that it reads or writes
    parts: float | None = None  # drift of what it reads, where that is part of a storage and so not what `inputs` tell of
    recording: bool = True  # whether autograd was on
    reads: int = 0  # numbers that Python took from its input
    converts: str = ""  # "held" or "given": what a module holds, as model.to(dtype) does, or what a measurement is given
    call: int = 0  # of a user's function, that it belongs to
    plain: bool = False  # of a module of torch's own, whose result is rounded since the precision asks for it
    instruction: int = 0  # of a cast or a sum, where in the code of its line it is
    refused: Refused | None = None  # where torch raised instead of carrying it out
    caller: str = ""  # the user's own line behind `source`, which may be a library's; "" where there is none

    def __repr__(self) -> str:
        return f"<{self.number} {self.name} at {self.source}>"

    @property
    def blamed(self) -> str:
        """The line that findings name."""
        return self.caller or self.source

    @property
    def packet(self) -> str:
        """ "mul" of "mul.Tensor"."""
        return names_of(self.name)[0]

    @property
    def base(self) -> str:
        """The name without in-place underscore and foreach prefix: "mul" of "_foreach_mul_.Scalar"."""
        return names_of(self.name)[1]

    @property
    def title(self) -> str:
        return self.name.replace("::", ".") if "::" in self.name else f"aten.{self.name}"

    @property
    def drift_in(self) -> float:
        return max((value.drift for value in self.inputs), default=0.0) if self.parts is None else self.parts

    @property
    def drifting(self) -> Value | None:
        """The input that is furthest off."""
        return max(self.inputs, key=lambda value: value.drift, default=None)


@dataclasses.dataclass(slots=True)
class OpRow:
    """All calls of one op on one line, for the drift report. Drifts are relative and Euclidean, the worst call's."""

    op: str
    phase: str
    module: str
    source: str
    dtype: str
    calls: int = 0
    drift: float = 0.0
    inherited: float = 0.0  # the furthest input's, at the call with the worst drift
    nonfinite: int = 0
    zeros: int = 0
    flips: int = 0
    opaque: str = ""
    first: int = 0  # number of the first call

    @property
    def added(self) -> float:
        return max(0.0, self.drift - self.inherited)


@dataclasses.dataclass(slots=True)
class Observation:
    """A watched run: its operations in order, a table of them by line, and how much of it the shadow covers.

    Of a long run `operations` are the latest (`window`), and `closing` of them, the oldest, are about to be judged and let go.
    """

    operations: list[Operation] = dataclasses.field(default_factory=list)
    closing: int | None = None  # None: the run has ended, and all are judged
    rows: dict[tuple[str, ...], OpRow] = dataclasses.field(default_factory=dict)
    seen: int = 0  # ops
    shadowed: int = 0  # ops with a low-precision ancestor
    opaque: dict[str, int] = dataclasses.field(default_factory=dict)  # ops the shadow could not follow, and how often
    led: int = 0  # choices, draws and numbers in which the shadow may not be the reference run: it follows the run, or refines what that has drawn
    forgotten: int = 0  # operations that were let go unjudged
    unjudged: str = ""  # why, if a judge failed
    came: set[int] = dataclasses.field(default_factory=set)  # identities of the parameters whose gradients came
    parameters: dict[int, str] = dataclasses.field(default_factory=dict)  # names by identity
    wanting: set[int] = dataclasses.field(default_factory=set)  # identities of the parameters that want a gradient
    optimized: set[int] = dataclasses.field(default_factory=set)  # of those that an optimizer holds which has stepped
    gradients: dict[int, tuple[str, Value, float]] = dataclasses.field(default_factory=dict)  # parameters': name, value, loss scale
    updates: list[Update] = dataclasses.field(default_factory=list)
    decays: list[Update] = dataclasses.field(default_factory=list)  # of weights whose gradient was zero at these steps
    undone: dict[int, Undone] = dataclasses.field(default_factory=dict)  # products with numbers next to one, by identity of the weight
    scaling: list[ScalingEvent] = dataclasses.field(default_factory=list)
    steps: list[ScalerStep] = dataclasses.field(default_factory=list)
    losses: list[Loss] = dataclasses.field(default_factory=list)
    each_loss: int = 1  # backward passes that one of them stands for
    exponents: list[Binades] = dataclasses.field(default_factory=list)
    functions: dict[str, Function] = dataclasses.field(default_factory=dict)  # of the user's, by line
    exact: bool = False  # whether float32 is what the run was asked for, and float64 its reference
    raised: str = ""  # the exception that ended the block, by its class

    def add(self, operation: Operation) -> None:
        self.operations.append(operation)

    @property
    def judged(self) -> list[Operation]:
        """The operations to judge now."""
        return self.operations[: self.closing]

    @property
    def ahead(self) -> list[Operation]:
        """Later ones, which show what became of what those made."""
        return [] if self.closing is None else self.operations[self.closing :]

    def undecided(self, value: Value) -> bool:
        """Whether something may yet read a value: it is alive, or has only just been made."""
        if self.closing is None:
            return False
        return value.alive or (value.maker is not None and value.maker.number > self.operations[self.closing - 1].number)

    def tabulate(self, operation: Operation) -> None:
        value = operation.outputs[0] if operation.outputs else None
        key = (operation.name, operation.phase, operation.module, operation.source, value.dtype if value else "")
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = OpRow(operation.title, key[1], key[2], shortened(key[3]), key[4], first=operation.number)
        row.calls += 1
        for made in operation.outputs:
            if made.drift > row.drift:
                row.drift, row.inherited = made.drift, operation.drift_in
            row.nonfinite += made.nonfinite
            row.zeros += made.zeros
        row.flips += operation.flips.changed if operation.flips else 0
        row.opaque = row.opaque or operation.opaque

    def came_as(self, number: int, name: str, value: Value, scale: float) -> None:
        """A parameter's gradient has come; of several, the one that lost most to zeros is kept."""
        known = self.gradients.get(number)
        if known is None or value.zeroed > known[1].zeroed:
            self.gradients[number] = (name, value, scale)

    def consumers(self) -> dict[Value, list[Operation]]:
        """Who read each value, in order."""
        readers: dict[Value, list[Operation]] = {}
        for operation in self.operations:
            for value in operation.inputs:
                readers.setdefault(value, []).append(operation)
        return readers

    def made(self) -> Iterator[tuple[Operation, Value]]:
        """All values, with the ops that gave them out."""
        for operation in self.operations:
            for value in operation.outputs:
                yield operation, value
