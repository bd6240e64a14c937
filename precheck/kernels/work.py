"""What verdicts cost, counted and not timed, so that a search ends at the same trial on each machine.

A clock would end it earlier on a slow or busy machine, and the class of a fault that needs more trials would be another one there.
"""

from __future__ import annotations

from typing import Any

import torch

from precheck.kernels.bench import Bench
from precheck.kernels.trials import Trial
from precheck.observe.profiling import UncompiledMode

_OP = 2**16
"""The elements that cost as much as an op of none. A verdict spends some two milliseconds on an op of the reference, and 25 nanoseconds on an
element (230 searches of the sets of kernels, on one thread)."""


class _Counted(UncompiledMode):
    """Counts the ops of its block and the elements that they make."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.done = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.done += _OP
        for each in result if isinstance(result, (list, tuple)) else (result,):
            self.done += each.numel() if isinstance(each, torch.Tensor) else 0
        return result


class Work:
    """The work of the verdicts that were noted: for each the elements that the reference computes there, once.

    A candidate that is slower than its reference takes longer for the same work.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench, self.done = bench, 0
        self._of: dict[tuple[tuple[tuple[str, int], ...], bool], int] = {}

    def of(self, trial: Trial) -> int:
        """The work of one verdict, which its shapes decide. The reference runs for it once."""
        key = trial.sizes, trial.given
        if key not in self._of:
            mode = _Counted()
            self.bench.under(mode, trial.but(family="plain", layout="contiguous", laid=-1), gradients=True)
            self._of[key] = mode.done
        return self._of[key]

    def note(self, trial: Trial) -> None:
        """Adds the work of a verdict on that trial."""
        self.done += self.of(trial)
