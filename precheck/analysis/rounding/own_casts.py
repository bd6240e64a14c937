"""Tells a call of a user function that computes low by its author's own casts from one where the precision asks for it.

A rounding that nobody asked for can be left out. So a call with such roundings alone is held to what they add up to if none is amplified, and a call
that computes low because it must is allowed more: sharp scores in a softmax amplify in correct code too.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable

from precheck import ops
from precheck.analysis.noise_floor.noise import FAIL
from precheck.analysis.propagation.attribution import Attribution
from precheck.formats import ONE_ROUNDING
from precheck.observe.shadow.operations import Operation


def asked(made: Attribution) -> bool:
    """Whether the precision asks for low numbers in a call: it has a product, or was given one. Otherwise its author's own casts made all of them."""
    passed = made.through.keys()
    return any(each.base in ops.PRODUCTS or any(source.low and source.maker not in passed for source in each.inputs) for each in passed)


def unamplified(made: Attribution) -> float:
    """How many unit roundoffs a call may be off by that amplifies none of its n roundings: √n of them, times the limit of any boundary (`FAIL`)."""
    return FAIL * ONE_ROUNDING * math.sqrt(sum(share > 0 for share in made.shares.values()))


def repeats(made: Attribution, operations: Iterable[Operation]) -> bool:
    """Whether the call comes back to a line that rounds, as a loop does. `operations`: those of the call, in order."""
    rounding = {operation.line for operation, share in made.shares.items() if share}
    turns = Counter(line for line, _ in itertools.groupby(operation.line for operation in operations))
    return any(turns[line] > 1 for line in rounding)
