"""A `Record` for each recorded tensor, and the `Trace` of a run, which holds them.

A record holds no tensor, only the numbers that a judgement needs: a linear sketch, a norm, a greatest magnitude and counts.
The same records are compared in memory (`precheck.measure`) and written to golden files.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy

    from precheck.observe.decisions.op_sequence import Step

Kind = Literal["input", "handed", "returned", "output", "gradient", "parameter-gradient", "loss", "update"]
"""`handed` is a tensor that a module's own code made and passes to another module. `returned` is the result of a function of the user, and `output`
that of a module. `gradient` is the gradient of the loss with respect to an output, `parameter-gradient` with respect to a parameter. `update` is a
parameter's displacement since before the first step."""


@dataclass(slots=True, eq=False)
class Record:
    """One tensor of one run. `sketch` and `norm` leave out non-finite elements, which are counted. `learn` may fill in numbers later."""

    kind: Kind
    name: str  # "layers.0.attn", "layers.0.attn[1]" (second of a tuple), "shared#2" (second call), "head.weight"
    step: int  # counted from 1
    shape: tuple[int, ...]
    dtype: str  # as stored by the run, "bfloat16"
    sketch: numpy.ndarray  # (127,) float64
    norm: float  # Euclidean
    amax: float  # greatest magnitude
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    zeros: int = 0
    roundings: int = 0  # low-format results that the module's own code made on the way to this one
    is_result: bool = False  # whether it is part of the model's own result
    weight_norm: float = 0.0  # of the parameter that moved (updates only)
    sampled: bool = False  # whether `sketch` and `norm` are from a sample, scaled to the whole; for most kinds `amax` and counts are of all elements
    place: tuple[str, int, int] | None = None  # of a function that returned it: file, first and last line
    key: str = field(init=False)  # "output:layers.0.attn@1", by which runs are compared
    numel: int = field(init=False)

    def __post_init__(self) -> None:
        self.key, self.numel = f"{self.kind}:{self.name}@{self.step}", math.prod(self.shape)

    def learn(self, found: Mapping[str, Any]) -> None:
        """Sets fields to the numbers that were found."""
        for name, value in found.items():
            setattr(self, name, value)

    @property
    def low(self) -> bool:
        """Whether the run stores it in bfloat16 or float16."""
        return self.dtype in ("bfloat16", "float16")

    @property
    def nonfinite(self) -> int:
        return self.nan + self.posinf + self.neginf


@dataclass(slots=True)
class Trace:
    """The records of one run, in order."""

    records: dict[str, Record] = field(default_factory=dict)
    makers: dict[str, str] = field(default_factory=dict)  # for `handed` and `returned` records: the call of the module whose code made it
    same: dict[str, str] = field(default_factory=dict)  # output that a module passed on as it was given: key of the record that has it
    results: dict[str, str] = field(default_factory=dict)  # path in the model's result ("", "[logits]"): key of the record
    scale: float = 1.0  # the loss scale of the first step
    skipped: int = 0  # steps that GradScaler skipped while it searched for that scale
    retaken: bool = False  # whether a step was taken again: a watched one under another scale, or a later one that failed
    elsewhere: bool = False  # whether gradients reach other leaves than parameters, so that a glance was stopped
    collapsed: bool = False  # whether no loss scale down to 1 gave finite gradients
    flips: dict[str, tuple[int, int]] = field(default_factory=dict)  # "call|op": decisions that differ from the rival's, and all
    even: set[str] = field(default_factory=set)  # records for which a sample is as good as the whole, if this was tested
    aged: dict[str, tuple[float, int]] = field(default_factory=dict)  # low weights: share that arrives with the optimizer alone, and steps
    steps: Counter[Step] = field(default_factory=Counter)  # the ops of the run, if they were counted
    files: set[str] | None = None  # those of the code that ran, without torch's, precheck's and Python's; None: unknown
    optimizer: str = ""  # "AdamW lr=0.001 betas=(0.9, 0.999) ..."

    def add(self, record: Record) -> None:
        """Adds a record at the end. A tensor that is made again, such as a gradient of a second backward pass, takes the place of the first."""
        self.records.pop(record.key, None)
        self.records[record.key] = record
