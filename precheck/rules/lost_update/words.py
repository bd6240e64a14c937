"""Writes the message on a lost update."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from precheck import formats
from precheck.words import counted

BEYOND = 2.0
"""The ratio of step to dead zone, as root mean squares, from which a step is not rounded away. Most of such a step is in elements that move by at
least as much, and only a weight of more than twice the others' size could absorb that."""
NAMED = 3
"""How many further parameters a message lists. The first few show which kinds are affected (norms, biases, matrices)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Numbers:
    """Root mean squares of a parameter's elements and of its intended step, and its learning rate, if known."""

    dtype: str
    weight: float
    step: float
    rate: float = 0.0

    def __str__(self) -> str:
        """The dead zone in numbers, and the learning rate that would leave it. If the steps are beyond it, the text says that something else has kept
        the weights."""
        fmt = formats.of_dtype(self.dtype)
        down, up = fmt.half_ulp(self.weight)
        zone = f"{up:.2g}" if up == down else f"{up:.2g} up or {down:.2g} down"
        text = f"weights are about {self.weight:.3g}, where {fmt.name} drops a change smaller than {zone}; a step is about {self.step:.2g}"
        if self.step >= BEYOND * max(down, up):
            return f"{text}, so rounding does not explain it: does the optimizer write these weights?"
        enough = self.rate * down / self.step if self.step else 0.0
        return text if not self.rate or enough <= self.rate else f"{text} (lr {self.rate:.2g}; an lr of {enough:.1g} would arrive)"


def worded(
    found: Sequence[tuple[str, float]], every: Sequence[tuple[tuple[int, ...], float, float]], steps: int, numbers: Numbers, further: str = ""
) -> str:
    """The message.

    `found`: names and arrived shares, the worst first. `every`: all shapes, with ⟨moved, meant⟩ and ⟨meant, meant⟩.
    """
    (name, share), others = found[0], found[1 : 1 + NAMED]
    more = ", …" if len(found) > 1 + NAMED else ""
    listed = " (" + ", ".join(f"{other or 'unnamed'} {part:.0%}" for other, part in others) + f"{more})" if others else ""
    return (
        f"{name or 'a parameter'}: {share:.0%} of the update of {counted(steps, 'step')} arrived in {numbers.dtype}{further}; {numbers}; "
        f"{len(found)} of {len(every)} parameters lost more than half{listed}{_kinds(every)}"
    )


def _kinds(every: Sequence[tuple[tuple[int, ...], float, float]]) -> str:
    """The shares that arrived in all vectors (norms, biases) and in all matrices, in words. Empty if there is only one kind."""
    parts = []
    for kind, chosen in (("vectors", [each for each in every if len(each[0]) < 2]), ("matrices", [each for each in every if len(each[0]) > 1])):
        meant = sum(each[2] for each in chosen)
        if meant:
            parts.append(f"{kind} {max(0.0, sum(each[1] for each in chosen) / meant):.0%}")
    return f"; together, {', '.join(parts)}" if len(parts) > 1 else ""


def horizon(aged: tuple[float, int] | None) -> str:
    return "" if aged is None else f", and {max(0.0, aged[0]):.0%} would after {aged[1]}"
