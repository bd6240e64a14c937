"""Finds stochastic rounding that uses the random numbers of an earlier call again. The errors of both calls are alike, and do not average out.

Only calls that round the same quantity are compared, such as a gradient in two steps. A call that rounds the same numbers is a recomputation and does
not count. Neither does noise that the program keeps in one tensor: it may be a pattern, as in ordered dithering.
"""

from __future__ import annotations

import dataclasses

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from precheck.observe.shadow.quantisers.code_notes import Repeated

KEPT = 8
"""Noises of a line that are remembered."""
ALIKE = 0.5
"""Cosine between what two calls round, from which it is the same quantity."""
SAMPLE = 1 << 14


@dataclasses.dataclass(slots=True)
class Noise:
    """Random numbers, and the calls that rounded with them. Errors are in steps."""

    drawn: StorageWeakRef
    first: torch.Tensor  # what the first of these calls rounded
    total: torch.Tensor  # the sum of their errors
    energy: float  # the sum of the squares of these errors
    calls: int = 1

    @property
    def grown(self) -> float:
        """The square of the sum of errors, over the sum of their squares: 1 where they are independent, the number of calls where they are one."""
        return float(self.total.square().sum()) / max(self.energy, 1e-30)


class Noises:
    """The noises of one line."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, float, float], Noise] = {}

    def seen(self, noise: torch.Tensor, exact: torch.Tensor, made: torch.Tensor) -> None:
        """A call has rounded `exact` and `noise` to `made`."""
        drawn = StorageWeakRef(noise.untyped_storage())
        noise, exact, made = (each.detach().float().reshape(-1)[:SAMPLE] for each in (noise, exact, made))
        key, error = (noise.numel(), float(noise.double().sum()), float(noise[0])), made - exact
        found, energy = self.held.get(key), float(error.square().sum())
        if found is None:
            self.held[key] = Noise(drawn, exact.clone(), error, energy)
            if len(self.held) > KEPT:
                del self.held[next(iter(self.held))]
            return
        again = found.drawn.expired() or found.drawn.cdata != drawn.cdata
        if again and not torch.equal(exact, found.first) and float(torch.cosine_similarity(exact, found.first, 0)) > ALIKE:
            found.total, found.energy, found.calls = found.total + error, found.energy + energy, found.calls + 1

    def worst(self) -> Repeated | None:
        """The noise with which most calls have rounded."""
        found = max(self.held.values(), key=lambda each: each.calls, default=None)
        return None if found is None or found.calls == 1 else Repeated(found.calls, found.grown)
