"""The records of the reference run, made of shadows while the run under autocast is recorded.

Autocast leaves weights and inputs in float32, so the shadow of such a run is the float32 run on the same decisions, bit for bit. A second run is
needed only where the two differ: where the shadow could not follow an op, where the float32 run would have chosen otherwise (how often is counted),
and where numbers of the run have gone through Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from precheck.observe.recorder import Moved, Recorder, Witness, without_fill
from precheck.observe.records import Trace
from precheck.observe.shadow.replay import addressable
from precheck.torch_internals import no_dispatch

if TYPE_CHECKING:
    from precheck.observe.shadow.mode import Shadow


class Reference:
    """A witness of a watched run that records the shadow of each tensor that is recorded, and tells another witness of the tensor itself."""

    def __init__(self, shadow: Shadow, beside: Witness) -> None:
        self.memory, self.observation, self.beside = shadow.memory, shadow.observation, beside
        self.trace = Trace()
        self.recorder = Recorder(self.trace)

    def boundary(self, kind: str, name: str, step: int, tensor: torch.Tensor) -> None:
        self.beside.boundary(kind, name, step, tensor)
        if kind not in ("result", "update"):
            with no_dispatch(), torch.no_grad():
                shadow = self._shadow(tensor)
                if kind == "returned":
                    shadow = without_fill(shadow, tensor)
                self.recorder.add(kind, name, step, shadow)  # type: ignore[arg-type]

    def moves(self, step: int, moved: Sequence[Moved]) -> None:
        self.beside.moves(step, moved)
        with no_dispatch(), torch.no_grad():
            shadows = [(each, self._shadow(each.parameter)) for each in moved]
            self.recorder.moves(step, [Moved(each.name, shadow, shadow, each.start) for each, shadow in shadows], broken=False)

    def complete(self, low: Trace) -> Trace | None:
        """What the reference run would have recorded beside the run `low`; None where that takes a run of its own."""
        if self.observation.opaque or self.observation.led or low.collapsed or low.elsewhere:
            return None
        self.recorder.unscale(low.scale)
        if self.trace.records.keys() != low.records.keys():
            return None
        for key, record in self.trace.records.items():
            record.is_result, record.place = low.records[key].is_result, low.records[key].place
        self.trace.results, self.trace.optimizer = low.results, low.optimizer
        return self.trace

    def _shadow(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor without an ancestor in a low format is its own."""
        cell = self.memory.find(tensor) if addressable(tensor) else None
        return tensor.detach() if cell is None else self.memory.view(cell, tensor)
