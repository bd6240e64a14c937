"""Modes that see the decisions of a run, and when they need not look."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from precheck.observe.profiling import UncompiledMode
from precheck.torch_internals import innermost_mode, without_innermost_mode

UNDECIDED = {torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adagrad,
             torch.optim.Adadelta, torch.optim.RMSprop, torch.optim.ASGD}  # fmt: skip
"""Torch's own optimizers that compare nothing and draw nothing."""


class DecisionMode(UncompiledMode):
    """Sees the decisions of a run, op by op, but for steps of torch's own optimizers, which take none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rests = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Goes around what decides nothing. The mode is left, since each op of it costs; where another mode stands before it, it lets ops pass."""
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
    """Goes around a step of that optimizer: `DecisionMode.aside` for each of the modes that are there, where it decides nothing."""
    with contextlib.ExitStack() as stack:
        for mode in filter(None, modes) if type(optimizer) in UNDECIDED else ():
            stack.enter_context(mode.aside())
        yield
