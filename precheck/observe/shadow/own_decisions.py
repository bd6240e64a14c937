"""The decisions that float32 would make by itself in a watched run.

A shadow takes over the decisions of the run, as a reference run does that follows them. Its numbers tell what float32 would decide, so no other run
has to be made for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from precheck import ops
from precheck.observe.decisions.log import DecisionLog, Recording, count_flips, discrete
from precheck.observe.decisions.natures import nature

if TYPE_CHECKING:
    from precheck.observe.shadow.call import Call


class OwnDecisions:
    """Float32's own decisions, by the keys under which `recording` writes down those of the run."""

    def __init__(self, recording: Recording) -> None:
        self.recording, self.log = recording, DecisionLog()

    def known(self, call: Call, outputs: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor] | None) -> bool:
        """Notes what float32 decides in place of `outputs`: `theirs`, or what the op makes of its shadows. False if that is not known, or if a run
        that follows decisions does not go on with the shadow's numbers: it draws, keeps its own order, and counts as the run does.
        """
        key, run = self.recording.decided, self.recording.log
        if key is None or key in run.drawn or key[0] == "backward" or call.written or call.plan.base in ops.COUNTS:
            return False
        if call.plan.steps and not bool(outputs[0].isfinite().all()):
            return False
        try:
            made = call.mode.replay.call(call.op, call.shadow_of) if theirs is None else theirs
        except Exception:  # only this is not known; the shadow goes on
            return False
        if [each.shape for each in made] != [each.shape for each in outputs] or len(run.entries[key]) != len(made):
            return False
        if call.plan.base in ops.ORDERED and not torch.equal(made[-1], outputs[-1]):
            return False
        self.log.entries[key] = discrete(nature(call.op.func), list(made))
        return True

    def flips(self) -> dict[str, tuple[int, int]]:
        """As in `Trace.flips`: the run's decisions beside float32's own. Of exact numbers both decide alike."""
        found = dict[str, tuple[int, int]]()
        for key, decided in self.recording.log.entries.items() if self.log.entries else ():
            if key[0] != "backward" and key not in self.recording.log.drawn:
                count_flips(found, key, self.log.entries.setdefault(key, decided), decided)
        return found
