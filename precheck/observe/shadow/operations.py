"""The record of a watched run: each op as an `Operation`, with the `Value`s that it read and made, in an `Observation`.

A `Value` is one version of a tensor's content, and holds no tensor. In-place ops make new values of a storage. Views share their base's value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal, NamedTuple

from torch.multiprocessing.reductions import StorageWeakRef

from precheck.findings import Binades, Loss, OpRow
from precheck.formats import ONE_ROUNDING
from precheck.observe.shadow.op_notes import (
    Absorbed,
    Flips,
    LetThrough,
    LostBound,
    Mistaken,
    Outdated,
    Past,
    Recut,
    Refused,
    Renumbered,
    Skew,
    Summed,
    Tail,
    Wrapped,
)
from precheck.observe.shadow.places.call_sites import CallSite
from precheck.observe.shadow.places.source import Function, shortened
from precheck.observe.shadow.quantisers.code_notes import Remark
from precheck.observe.shadow.training.step_records import ScalerStep, ScalingEvent, UnchangedProducts, Undefined, Update
from precheck.ops import names_of

Phase = Literal["forward", "backward", "optimizer", "scaler", "data"]
BITS_ROUNDED = "_to_copy.bits"
"""The name of an operation that stands for a cast which a program makes by arithmetic on bits. Its last op is a view."""


class Origin(NamedTuple):
    """The line that made a tensor low, with what called its function, and the setting of FSDP's policy if FSDP made the cast there."""

    line: str
    site: CallSite | None = None
    policy: str = ""


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Value:
    """A tensor's content in the run, beside its shadow. Shares are of its elements, or of a sample of `statistics.SAMPLE`; non-finite ones of all."""

    maker: Operation | None  # None: weights, inputs and other tensors from outside the block
    shape: tuple[int, ...]
    dtype: str
    roundoff: float  # of the coarsest format that the content has passed through; 0 if that is the reference's
    low: bool = False  # stored in a low format
    kept_low: bool = False  # stored in a low format, or only moved or widened since
    drift: float = 0.0  # |run - shadow| / |shadow|, Euclidean
    norm: float = 0.0  # of the shadow
    nonfinite: int = 0  # elements: Inf or NaN in the run, finite in the shadow; or NaN in the run, Inf in the shadow
    nans: int = 0  # how many of these are NaN
    beyond: float = 0.0  # greatest |shadow| of these
    unheld: int = 0  # elements that are Inf or NaN in the shadow; counted where any element of the run is
    distinct_overflows: int = 0  # how many different numbers the shadow has for these
    negative: bool = False  # whether all of these are negative in the shadow
    zeros: int = 0  # elements of the sample that are zero in the run, not in the shadow
    sample_size: int = 0
    zeroed: float = 0.0  # share of the shadow's norm in these elements
    largest_zeroed: float = 0.0  # greatest |shadow| of these
    dead: float = 0.0  # share without a correct digit: off by more than a quarter of max(|shadow|, root mean square)
    sensitivity: float = 0.0  # |perturbed shadow - shadow| / |run - shadow|: 1 if float32 does not determine the value either
    perturbed_drift: float = 0.0  # |perturbed shadow - shadow| / |shadow|, if there is a perturbed shadow
    wholes_moved: int = 0  # distinct whole numbers that the format could not hold
    peak: float = 0.0  # greatest |shadow|, if whole numbers moved
    enumerates: bool = False  # whether these whole numbers follow each other in equal steps, and neighbours became one
    call_error: float = 0.0  # relative error that the call of a user's function added itself
    since: Origin | None = None  # the user's line whose cast or factory has made it low; None if a product, a module of torch's or autograd has
    local: float | None = None  # relative error of the op alone, on the run's inputs; None if not measured
    stored: float | None = None  # the same of a cast of numbers that were wrong before; None if not measured
    weighting: float = 0.0  # of an attention kernel's result, if `local` is measured: the relative error that a rounding of its weights makes
    terms: float = 0.0  # of a scattering op's result, if `local` is measured: how many numbers it adds up for an element
    alive: bool = False  # when the block ended, or at the time when this part of the run is judged
    past: Past | None = None  # set if its ancestors have been dropped

    def __repr__(self) -> str:
        return f"<{self.dtype}{list(self.shape)} off by {self.drift:.2g}>"

    @property
    def rounded(self) -> float:
        """The relative L2 error of one rounding to the coarsest format so far."""
        return ONE_ROUNDING * self.roundoff


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
    recut_in_call: Recut | None = None  # the same beside float32 on the inputs that the call of the user's function had
    let_through: LetThrough | None = None
    mistaken: Mistaken | None = None
    lost_bound: LostBound | None = None
    parted: int = 0  # of an equality, the answers that Inf gives where the reference compares two finite numbers and answers otherwise
    bits: int = 0  # of the integers, for a cast from floats
    used_as: Literal["", "amount", "place"] = ""  # how the program uses these integers; "": nothing has read them
    places: StorageWeakRef | None = None  # of a choice that returns values too: where its places are, as long as they live
    left_out: frozenset[int] | None = None  # of a cast to integers, the elements of the sample that a `where` discards; empty: all are read
    drawn: bool = False  # whether it reads random numbers from a wide format
    wrapped: Wrapped | None = None
    outdated: Outdated | None = None
    tail: Tail | None = None
    skew: Skew | None = None
    summed: Summed | None = None
    coded: Remark | None = None
    mixed: bool = False  # whether its tensors have several formats, single numbers aside
    autocast: bool = False  # whether it runs inside an autocast context of the block
    autocast_left: bool = False  # whether it runs where the block has turned off an autocast that was on: float32 is asked for
    cuda_off: bool = False  # whether it runs low under the CPU's autocast, in a block that turns CUDA's off
    impossible: tuple[int, int] = (0, 0)  # drawn indices with probability zero, and all drawn indices
    unmasked: int = 0  # elements that are NaN because a boolean mask multiplied Inf or NaN by zero
    derived: bool = False  # made by autograd from a forward op, not written by the user
    absorbed: Absorbed | None = None
    breaks: bool = False  # whether it makes Inf or NaN of finite numbers, in the shadow too; of functions with poles and exponentials
    given_nan: bool = False  # whether it reads NaN from outside: of an input, of a weight, or of an op that is not watched
    starved: float = 0.0  # smallest non-zero |divisor| in the run, for a quotient that overflowed
    scale: float = 1.0  # loss scale of its backward pass
    stores_own: bool = False  # whether it casts to a low format what the model has computed without an error, or has written down
    amounts: bool = False  # whether it reads results of an integer product, which are amounts and not counts
    own_epsilon: float = 0.0  # eps of a low format among its arguments, replaced in the shadow by the reference's
    parameter: int = 0  # identity of the parameter that it reads or writes
    part_drift: float | None = None  # drift of its inputs if one is part of a storage, which `inputs` may not describe
    amplifies: int | None = None  # the place of the input whose error makes most of its result's, if several are wrong and it amplifies one
    recording: bool = True  # whether autograd was on
    reads: int = 0  # numbers that Python took from its input
    converts: str = ""  # a cast of what a module holds, as by model.to(dtype) ("held"), or of a measurement's inputs ("given")
    call: int = 0  # number of the call of a user's function that it belongs to
    depth: int = 0  # how many functions of the user's that call has called, one inside the other, where it runs the op
    policy: str = ""  # the setting of FSDP's mixed-precision policy by which FSDP makes this cast: "cast_forward_inputs"
    implicit: bool = False  # whether it is a cast that autocast has made for an op
    plain: bool = False  # whether it is in a module of torch's own, which rounds as the precision demands
    instruction: int = 0  # for a cast or a sum: its place in the bytecode
    since: tuple[str, Origin] | None = None  # the format of its low result, and the `since` of its low operands
    site: CallSite | None = None  # what called the function of the user's in which `blamed` is
    refused: Refused | None = None  # set if torch raised an error
    caller: str = ""  # the user's own line, if `source` is a library's; "" if there is none
    packet: str = dataclasses.field(init=False)  # "mul" of "mul.Tensor"
    base: str = dataclasses.field(init=False)  # without in-place underscore and foreach prefix: "mul" of "_foreach_mul_.Scalar"

    def __post_init__(self) -> None:
        self.packet, self.base = names_of(self.name)  # once, since analyses ask some forty times for each op

    def __repr__(self) -> str:
        return f"<{self.number} {self.name} at {self.source}>"

    @property
    def blamed(self) -> str:
        """The line that findings name."""
        return self.caller or self.source

    @property
    def line(self) -> tuple[str, str]:
        """The line of code that runs the op. A line of a library counts apart for each of the user's lines that call it."""
        return self.source, self.caller

    @property
    def title(self) -> str:
        if self.name == BITS_ROUNDED:
            return "aten.view.dtype"
        return self.name.replace("::", ".") if "::" in self.name else f"aten.{self.name}"

    @property
    def drift_in(self) -> float:
        return max([value.drift for value in self.inputs], default=0.0) if self.part_drift is None else self.part_drift

    @property
    def result(self) -> Value | None:
        """The first output."""
        return self.outputs[0] if self.outputs else None

    @property
    def drifting(self) -> Value | None:
        """The input with the greatest drift."""
        return max(self.inputs, key=lambda value: value.drift, default=None)


@dataclasses.dataclass(slots=True)
class Observation:
    """A watched run: its operations in order, a table of them by line, and how much of the run the shadow covers.

    In a long run, `operations` are the latest ones (`window`). The oldest `closing` of them are about to be judged and dropped."""

    operations: list[Operation] = dataclasses.field(default_factory=list)
    closing: int | None = None  # None: the run has ended and all are judged
    rows: dict[tuple[str, ...], OpRow] = dataclasses.field(default_factory=dict)
    seen: int = 0  # ops
    shadowed: int = 0  # ops with a low-precision ancestor
    opaque: dict[str, int] = dataclasses.field(default_factory=dict)  # ops the shadow could not follow, and how often
    quantisers: int = 0  # lines whose codes were multiplied by a scale again
    followed: int = 0  # decisions, draws and numbers read by Python, in which the shadow may differ from a free float32 run
    forgotten: int = 0  # operations that were dropped unjudged
    unjudged: str = ""  # why, if a judge failed
    with_gradient: set[int] = dataclasses.field(default_factory=set)  # identities of the parameters
    parameters: dict[int, str] = dataclasses.field(default_factory=dict)  # names by identity
    trainable: set[int] = dataclasses.field(default_factory=set)  # identities of the parameters with requires_grad=True
    optimized: set[int] = dataclasses.field(default_factory=set)  # identities of the parameters of optimizers that have stepped
    gradients: dict[int, tuple[str, Value, float]] = dataclasses.field(default_factory=dict)  # parameters': name, value, loss scale
    updates: list[Update] = dataclasses.field(default_factory=list)
    decays: list[Update] = dataclasses.field(default_factory=list)  # steps of weights whose gradient was zero
    unchanged_products: dict[int, UnchangedProducts] = dataclasses.field(default_factory=dict)  # by weight
    scaling: list[ScalingEvent] = dataclasses.field(default_factory=list)
    mixed: list[ScalingEvent] = dataclasses.field(default_factory=list)  # sums of terms under two scales that a parameter's gradient is made from
    steps: list[ScalerStep] = dataclasses.field(default_factory=list)
    losses: list[Loss] = dataclasses.field(default_factory=list)
    undefined: Undefined | None = None  # the first loss or gradient that is not finite in the shadow either
    each_loss: int = 1  # backward passes that one loss stands for
    exponents: list[Binades] = dataclasses.field(default_factory=list)
    functions: dict[str, Function] = dataclasses.field(default_factory=dict)  # the user's functions, by line
    exact: bool = False  # whether float32 is checked, against float64
    raised: str = ""  # class of the exception that ended the block
    complaint: str = ""  # its message
    meant: set[str] = dataclasses.field(default_factory=set)  # lines of casts to low and back that the shadow rounded as well
    imposed: frozenset[str] | None = None  # lines on which it does not, since float32 makes no such cast (`evidence.imposed`); None: not known

    def add(self, operation: Operation) -> None:
        self.operations.append(operation)

    @property
    def judged(self) -> list[Operation]:
        """The operations to judge now."""
        return self.operations[: self.closing]

    @property
    def ahead(self) -> list[Operation]:
        """Later operations, which show how the values of `judged` were used."""
        return [] if self.closing is None else self.operations[self.closing :]

    def undecided(self, value: Value) -> bool:
        """Whether a later op may still read a value: it is alive, or newer than the operations to judge."""
        newer = self.closing is not None and value.maker is not None and value.maker.number > self.operations[self.closing - 1].number
        return newer or (self.closing is not None and value.alive)

    def tabulate(self, operation: Operation) -> None:
        value = operation.result
        key = (operation.name, operation.phase, operation.module, operation.source, value.dtype if value else "")
        if (row := self.rows.get(key)) is None:
            row = self.rows[key] = OpRow(operation.title, key[1], key[2], shortened(key[3]), key[4], first=operation.number)
        row.calls += 1
        for made in operation.outputs:
            if made.drift > row.drift:
                row.drift, row.inherited = made.drift, operation.drift_in
            row.nonfinite += made.nonfinite
            row.zeros += made.zeros
        row.flips += operation.flips.changed if operation.flips else 0
        row.opaque = row.opaque or operation.opaque

    @property
    def parameter_gradients(self) -> set[Value]:
        return {value for _, value, _ in self.gradients.values()}

    def keep_gradient(self, number: int, name: str, value: Value, scale: float) -> None:
        """Records a parameter's gradient. Of several, the one that lost most to zeros is kept."""
        known = self.gradients.get(number)
        if known is None or value.zeroed > known[1].zeroed:
            self.gradients[number] = (name, value, scale)

    def consumers(self) -> dict[Value, list[Operation]]:
        """The operations that read each value, in order."""
        readers: dict[Value, list[Operation]] = {}
        for operation in self.operations:
            for value in operation.inputs:
                readers.setdefault(value, []).append(operation)
        return readers

    def made(self) -> Iterator[tuple[Operation, Value]]:
        """All output values, with their operations."""
        for operation in self.operations:
            for value in operation.outputs:
                yield operation, value
