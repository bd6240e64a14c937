"""Tells products that need not be followed. Most programs multiply by fewer numbers than they scale, and quantise nothing.

Following a product costs more than computing it. So a line that has multiplied a few times starts nothing more, until the program makes codes: it
rounds, or makes whole numbers or numbers of eight bits of others. From then on all products are followed.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from precheck import ops
from precheck.observe.shadow.operations import Observation
from precheck.observe.shadow.quantisers.code_copies import FLOATS
from precheck.observe.shadow.replay import OpCall, tensors_in

OFTEN = 8
"""Products that are followed on each line of a program without codes. A helper that several layers share may come to a quantiser only then."""


class Products:
    """The products of a run, by line, until the run makes codes."""

    def __init__(self, observation: Observation) -> None:
        self.observation, self.codes = observation, False
        self.lines: Counter[tuple[str, str]] = Counter()

    def made(self, op: OpCall, result: Any) -> bool:
        """After an op: notes whether it makes what may be codes. Returns whether it makes floats of eight bits."""
        eight = isinstance(result, torch.Tensor) and result.dtype in FLOATS
        self.codes = self.codes or eight or op.base in ops.WHOLE or _numbered(op.args, result)
        return eight

    def fruitless(self, base: str) -> bool:
        """Whether the latest op is a product on a line that has multiplied often, in a run without codes."""
        last = self.observation.operations[-1:]
        if self.codes or base != "mul" or not last or last[0].number != self.observation.seen:
            return False
        self.lines[last[0].line] += 1
        return self.lines[last[0].line] > OFTEN


def _numbered(args: tuple[Any, ...], result: Any) -> bool:
    """Whether an op has made whole numbers of others: a cast, the bits of floats, places in a table, a count of comparisons."""
    made = next(tensors_in(result), None)
    numbers = made is not None and not made.is_floating_point() and made.dtype is not torch.bool and not made.is_complex()
    return numbers and any(each.is_floating_point() or each.dtype is torch.bool for each in tensors_in(*args))
