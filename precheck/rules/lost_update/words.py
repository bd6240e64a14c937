"""Writes the message on a lost update."""

from __future__ import annotations

import dataclasses

from precheck import formats
from precheck.words import counted

BEYOND = 2.0
"""The ratio of step to dead zone, as root mean squares, from which a step is not rounded away. Most of such a step is in elements that move by at
least as much, and only a weight of more than twice the others' size could absorb that."""


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
        zone = f"{up:.2g}" if up == down else f"{min(up, down):.2g} to {max(up, down):.2g}"
        text = f"at weights of about {self.weight:.3g}, {self.dtype} drops changes smaller than {zone}, and a step is about {self.step:.2g}"
        if self.step >= BEYOND * max(down, up):
            return f"{text}, so rounding does not explain it: does the optimizer write these weights?"
        enough = self.rate * down / self.step if self.step else 0.0
        return text if not self.rate or enough <= self.rate else f"{text} (lr {self.rate:.2g}; an lr of {enough:.1g} would arrive)"


def worded(name: str, share: float, steps: int, numbers: Numbers, horizon: str, lost: int, parameters: int) -> str:
    """The message on the worst parameter. `share`: what arrived of its update. `lost` of all `parameters` lost more than half."""
    return (
        f"{name or 'a parameter'}: {share:.0%} of the update of {counted(steps, 'step')} arrived{horizon}: {numbers}; "
        f"{lost} of {counted(parameters, 'parameter')} lost more than half"
    )


def horizon(aged: tuple[float, int] | None) -> str:
    """The share that arrives after more steps of the optimizer alone, if that was tried."""
    return "" if aged is None else f", and {max(0.0, aged[0]):.0%} would arrive after {counted(aged[1], 'step')}"
