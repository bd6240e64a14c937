"""What observers of decisions need to know of an op, by its schema."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from precheck import ops
from precheck.observe.kernel_fixes import DROPPING, SUBSTITUTED
from precheck.torch_internals import once_an_op, overload, schema

aten = torch.ops.aten


@dataclasses.dataclass(frozen=True, slots=True)
class Nature:
    """Properties of an op, by its schema."""

    name: str  # "aten.add"
    draws: bool
    steps: bool  # its floating result is a step function
    moves: bool  # moves values or chooses among them: its result is as exact as its inputs
    workspace: bool  # its integer results are seeds and shapes, not decisions
    mutable: bool
    recurrent: bool
    masked: bool
    multiplies: bool  # a matrix product or the like, for which autocast casts
    substituted: bool
    drops: bool  # may be a part of dropout
    view: bool  # nothing is decided, drawn or rounded
    casts: bool
    attends: bool


@once_an_op
def nature(func: Any) -> Nature:
    """The properties of an op."""
    packet, name = func.overloadpacket, schema(func).name
    base = name.removeprefix("aten::").rstrip("_")
    rounds_quotient = base == "div" and overload(func).endswith("_mode")
    overwrites = name.endswith("_") and base in ops.DECIDING_IN_PLACE
    return Nature(
        name=str(packet),
        draws=torch.Tag.nondeterministic_seeded in func.tags and "attention" not in name,  # attention kernels are tagged even if they draw nothing
        steps=base in ops.STEPS or overwrites or rounds_quotient,
        moves=func.is_view or base in ops.UNROUNDED,
        workspace=func.is_view or "attention" in name or "rnn" in name or "empty" in name or name.endswith("_like"),
        mutable=schema(func).is_mutable,
        recurrent="rnn" in name or "lstm" in name,
        masked=base in ops.MASKED_SIDES,
        multiplies=base in ops.MULTIPLIED or "attention" in name or "rnn" in name or "lstm" in name or "gru" in name,
        substituted=packet in SUBSTITUTED,
        drops=packet in DROPPING,
        view=func.is_view,
        casts=packet is aten._to_copy,
        attends=base in ops.ATTENDING,
    )
