"""Steps aside while a CUDA graph is captured: the shadow's ops would be captured with the program's, and nothing may wait for the device then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from precheck.observe.shadow.replaying.replay import OpCall, addressable

if TYPE_CHECKING:
    from precheck.observe.shadow.mode import Shadow


def capturing() -> bool:
    """Whether the current stream of CUDA is captured."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def ran(mode: Shadow, op: OpCall) -> Any:
    """Runs an op that is captured and counts it as one that was not followed. What it writes has no reference from then on."""
    mode.unseen_within(op.func)
    for tensor in filter(addressable, op.written()):
        mode.memory.drop(tensor)
    return mode.run(op.func, op.args, op.kwargs)
