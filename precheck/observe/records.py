"""What was seen: one small record a tensor, and the trace of a run.

A record never holds a tensor of the user's, only what judgement needs of it: a linear sketch, a norm, an amplitude and
counts. The same records are compared in memory (`precheck.measure`) and written to golden files.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy

    from precheck.observe.op_sequence import Step

Kind = Literal["input", "handed", "returned", "output", "gradient", "parameter-gradient", "loss", "update"]
"""`handed` is what a module's own code made and gives to another module. `returned` is what a function of the user's returns, and `output` a
module's result. `gradient` is the loss' gradient by that result, `parameter-gradient` by a parameter. `update` is a parameter's move since before
the first step."""


@dataclass(slots=True, eq=False)
class Record:
    """One tensor of one run. `sketch` and `norm` leave non-finite elements out; those are counted. Its numbers may follow, by `learn`."""

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
    roundings: int = 0  # results in a low format that the module's own code made on the way to this one
    is_result: bool = False  # belongs to what the model itself returned
    weight_norm: float = 0.0  # of the parameter that moved (updates only)
    sampled: bool = False  # `sketch` and `norm` are of a sample, scaled to the whole; of most kinds magnitude and counts are of all elements
    place: tuple[str, int, int] | None = None  # of what a function returned: its file, first and last line
    key: str = field(init=False)  # "output:layers.0.attn@1", by which runs are compared
    numel: int = field(init=False)

    def __post_init__(self) -> None:
        self.key, self.numel = f"{self.kind}:{self.name}@{self.step}", math.prod(self.shape)

    def learn(self, found: Mapping[str, Any]) -> None:
        """What was found of the tensor, by fields."""
        for name, value in found.items():
            setattr(self, name, value)

    @property
    def nonfinite(self) -> int:
        return self.nan + self.posinf + self.neginf


@dataclass(slots=True)
class Trace:
    """The records of one run in the order in which they came into being."""

    records: dict[str, Record] = field(default_factory=dict)
    makers: dict[str, str] = field(default_factory=dict)  # of a `handed` record: the module whose code made it
    results: dict[str, str] = field(default_factory=dict)  # where in what the model returned ("", "[logits]"): the record's key
    scale: float = 1.0  # the loss scale the first step was taken at
    skipped: int = 0  # steps that GradScaler skipped while it searched for that scale
    elsewhere: bool = False  # of a glance: whether gradients end in more than parameters, so that it was broken off
    collapsed: bool = False  # no loss scale down to 1 gave finite gradients
    flips: dict[str, tuple[int, int]] = field(default_factory=dict)  # "call|op": decisions otherwise than the rival's, of how many
    even: set[str] = field(default_factory=set)  # records of which a sample tells as much as the whole, where that was asked
    aged: dict[str, tuple[float, int]] = field(default_factory=dict)  # what the optimizer alone brings home to low weights, after how many steps
    steps: Counter[Step] = field(default_factory=Counter)  # the ops that it consisted of, where that was asked
    optimizer: str = ""  # "AdamW lr=0.001 betas=(0.9, 0.999) ..."

    def add(self, record: Record) -> None:
        self.records[record.key] = record
