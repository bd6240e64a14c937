"""Makes the records of the reference run from shadows, while the run under autocast is recorded.

Autocast leaves weights and inputs in float32, so the shadow of such a run is the float32 run with the same decisions, bit for bit. A separate run is
needed only if the shadow could not follow an op, if the float32 run would decide otherwise, or if numbers went through Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from precheck.observe.recording.recorder import Moved, Recorder, Witness, without_fill
from precheck.observe.records import Trace
from precheck.observe.shadow.replaying.replay import addressable
from precheck.torch_internals import no_dispatch

if TYPE_CHECKING:
    from precheck.observe.shadow.mode import Shadow


class Reference:
    """A witness of a watched run. It records the shadow of each boundary tensor, and passes the tensor itself to another witness."""

    def __init__(self, shadow: Shadow, beside: Witness) -> None:
        self.shadow, self.memory, self.observation, self.beside = shadow, shadow.memory, shadow.observation, beside
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
        """The trace of the reference run beside the run `low`. None if a separate run is needed."""
        if self.observation.opaque or self.observation.followed or low.collapsed or low.elsewhere or low.retaken:
            return None
        self.recorder.unscale(low.scale)
        if self.trace.records.keys() != low.records.keys():
            return None
        for key, record in self.trace.records.items():
            record.is_result, record.place = low.records[key].is_result, low.records[key].place
        self.trace.results, self.trace.optimizer = low.results, low.optimizer
        self.trace.flips = {} if self.shadow.own is None else self.shadow.own.flips()
        return self.trace

    def _shadow(self, tensor: torch.Tensor) -> torch.Tensor:
        """The shadow of a tensor. A tensor without a low-precision ancestor is its own shadow."""
        cell = self.memory.find(tensor) if addressable(tensor) else None
        return tensor.detach() if cell is None else self.memory.view(cell, tensor)
