"""Defines `Setting`, which says how to run a user's job: under a precision, or as a reference."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from precheck.observe.shadow.comparing.statistics import finite_everywhere

if TYPE_CHECKING:
    from precheck.observe.decisions.log import DecisionLog
    from precheck.observe.decisions.selections import Selection
    from precheck.observe.recording.module_hooks import Disturbance
    from precheck.observe.recording.recorder import Witness
    from precheck.observe.shadow.mode import Shadow
    from precheck.precisions import Precision


@dataclasses.dataclass(slots=True)
class Setting:
    """How to run a job. `dtype` is the storage format of floats (None: unchanged). Other fields are off if None."""

    dtype: torch.dtype | None
    precision: Precision | None = None  # None: a reference run, with plain arithmetic in `dtype`
    records: DecisionLog | None = None
    follows: DecisionLog | None = None
    disturbance: Disturbance | None = None
    decides: DecisionLog | None = None  # filled with the decisions that this run would have made itself
    compared_with: DecisionLog | None = None  # the log to compare these with; None: `follows`
    shadow: Shadow | None = None  # watches every op
    finds_sample_sizes: bool = False  # whether to find out for which records a sample is enough
    module_inputs: bool = False  # whether to record tensors that modules pass to each other too
    fast_path: bool = False  # whether to leave out gradients between modules (if all end in parameters), and the zeros of large tensors
    buffers: torch.dtype | None = None  # the format of floating buffers in the run to compare with
    functions: bool = False  # whether to record results of the user's functions too
    files: bool = False  # whether to note the files of the code that runs
    early: bool = False  # whether to stop after the loss of the first step
    witness: Witness | None = None  # another observer of recorded tensors; None: the shadow's, if there is one
    unmeasured: bool = False  # whether records have no numbers, since the witness looks at the tensors
    compiled: bool = False  # whether compiled code runs compiled, with hooks on the whole model only
    extra_mode: contextlib.AbstractContextManager[Any] | None = None  # another mode that watches its ops
    steps: bool = False  # whether to count the ops of the run
    selections: list[Selection] | None = None  # filled with products that only move values; these are then computed exactly
    returned: list[torch.Tensor] | None = None  # filled with the model's last result, to keep it alive

    @property
    def watching(self) -> Witness | None:
        """The observer of recorded tensors, if there is one."""
        return self.witness if self.witness is not None or self.shadow is None else self.shadow.exponents

    def fails(self, step: int, loss: torch.Tensor) -> bool:
        """Whether the loss of a later step is not finite. A run that follows another fails where that one did. No mode sees the question, since it is
        no decision of the user's."""
        fails = not finite_everywhere([loss]) if self.follows is None else self.follows.failed == step
        if fails and self.records is not None:
            self.records.failed = step
        return fails


def low(precision: Precision, *, records: DecisionLog | None = None) -> Setting:
    """The setting of a low run under a precision. It writes decisions and draws to the log `records`, if given."""
    return Setting(None if precision.autocasts else precision.param_dtype, precision, records=records)


def reference(
    dtype: torch.dtype,
    precision: Precision | None = None,
    *,
    follows: DecisionLog | None = None,
    disturbance: Disturbance | None = None,
    decides: DecisionLog | None = None,
    compared_with: DecisionLog | None = None,
    functions: bool = False,
) -> Setting:
    """The setting of a reference run in `dtype`, with the decisions of `follows`, and with noise if it has a `disturbance`.

    Buffers are first rounded as `precision` stores them. A table of frequencies is rounded when the model is converted and not by the model's code,
    so the rounded table is given, like the weights. A buffer that the format cannot hold (a mask's -1e9) is not rounded.
    """
    stored = precision.param_dtype if precision is not None and precision.is_low and not precision.autocasts else None
    return Setting(
        dtype, follows=follows, disturbance=disturbance, decides=decides, compared_with=compared_with, buffers=stored, functions=functions
    )
