"""Tells lines on which nothing needs to be followed to a quantiser. Most programs multiply by fewer numbers than they scale, and quantise nothing.

Following a result costs more than computing it. So an op of a line is followed a few times and then no more, until the program makes codes: it rounds
what is followed, or makes whole numbers of it, or makes numbers of eight bits. From then on everything is followed. Until then, what torch itself
computes is not followed either: derivatives of a program that rounds nothing round nothing, nor do torch's own optimizers.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from precheck import ops
from precheck.observe.shadow.operations import Observation, Operation
from precheck.observe.shadow.quantisers.code_copies import FLOATS
from precheck.observe.shadow.replaying.replay import OpCall, tensors_in

if TYPE_CHECKING:
    from precheck.observe.shadow.places.module_tracker import ModuleTracker

OFTEN = 8
"""How often an op of one line is followed in a program without codes. A helper that several layers share may come to a quantiser only then."""


class FruitlessLines:
    """The lines of a run on which something was followed, until the run makes codes."""

    def __init__(self, observation: Observation, tracker: ModuleTracker) -> None:
        self.observation, self.tracker, self.codes = observation, tracker, False
        self.followed: Counter[tuple[str, tuple[str, str]]] = Counter()  # by op and line

    def made(self, op: OpCall, result: Any, followed: bool) -> bool:
        """After an op: notes whether it makes what may be codes. `followed`: whether an operand is. Returns whether it makes floats of eight bits."""
        eight = isinstance(result, torch.Tensor) and result.dtype in FLOATS
        self.codes = self.codes or eight or (followed and (op.base in ops.WHOLE or _numbered(op.args, result)))
        return eight

    def fruitless(self, op: OpCall, followed: bool) -> bool:
        """Whether an op has been followed often on its line, in a run without codes. What it writes into a `followed` operand is always followed."""
        last = self._recorded()
        if self.codes or (op.plan.written and followed) or last is None:
            return False
        made = op.base, last.line
        self.followed[made] += 1
        return self.followed[made] > OFTEN

    def barren(self, op: OpCall, result: Any) -> bool:
        """Whether an op is `fruitless` and makes no codes, whatever it reads. This costs less than to ask what it reads."""
        last = None if self.codes or op.plan.written or op.base in ops.WHOLE else self._recorded()
        if last is None or self.followed.get((op.base, last.line), 0) <= OFTEN:
            return False
        return not (isinstance(result, torch.Tensor) and result.dtype in FLOATS) and not _numbered(op.args, result)

    def torchs_own(self, op: OpCall, result: Any) -> bool:
        """Whether autograd or an optimizer of torch's runs this op, in a run without codes. What it writes is always followed."""
        if self.codes or op.plan.written or (isinstance(result, torch.Tensor) and result.dtype in FLOATS):
            return False
        last = self._recorded()
        return (last is not None and last.derived) or (self.tracker.optimizing > 0 and self.tracker.shipped)

    def _recorded(self) -> Operation | None:
        """The operation of the op that has just run; None if it is not recorded."""
        operations = self.observation.operations
        return operations[-1] if operations and operations[-1].number == self.observation.seen else None


def _numbered(args: tuple[Any, ...], result: Any) -> bool:
    """Whether an op has made whole numbers of others: a cast, the bits of floats, places in a table, a count of comparisons."""
    made = next(tensors_in(result), None)
    numbers = made is not None and not made.is_floating_point() and made.dtype is not torch.bool and not made.is_complex()
    return numbers and any(each.is_floating_point() or each.dtype is torch.bool for each in tensors_in(*args))
