"""The base class of modes that see the decisions of a run. They step aside where nothing is decided, to save time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from precheck.observe.profiling import UncompiledMode
from precheck.torch_internals import innermost_mode, without_innermost_mode

UNDECIDED = {torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adagrad,
             torch.optim.Adadelta, torch.optim.RMSprop, torch.optim.ASGD}  # fmt: skip
"""Torch's own optimizers that make no decisions and draw no random numbers."""


class DecisionMode(UncompiledMode):
    """Sees the decisions of a run, op by op. It skips steps of torch's own optimizers, which make none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rests = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, the mode is off, for code that decides nothing. If another mode is inside this one, it stays on but only passes ops through."""
        if innermost_mode() is self:
            with without_innermost_mode():
                yield
        else:
            self.rests = True
            try:
                yield
            finally:
                self.rests = False


@contextlib.contextmanager
def undecided(optimizer: torch.optim.Optimizer, *modes: DecisionMode | None) -> Iterator[None]:
    """Inside, the modes are off for a step of that optimizer, if it is known to make no decisions."""
    with contextlib.ExitStack() as stack:
        for mode in filter(None, modes) if type(optimizer) in UNDECIDED else ():
            stack.enter_context(mode.aside())
        yield
