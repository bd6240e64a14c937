"""Collectives in the reference precision: each rank also sends the shadow of what it sends, so that received tensors have shadows.

All ranks must decide alike whether to send, so the decision depends only on the op and on the dtypes of its tensors. A rank
without shadows sends its own numbers, widened. A reduction in a low format runs a third time in the reference precision, on the run's addends:
this shows what the reduction itself lost.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import torch

from precheck import ops
from precheck.observe.shadow.distributed import ranks as company
from precheck.observe.shadow.distributed.exchange import Exchange, works
from precheck.observe.shadow.distributed.ranks import Ranks
from precheck.observe.shadow.replaying.replay import OpCall, addressable, tensors_in
from precheck.torch_internals import awaited, finished_work, in_backward
from precheck.torch_support.dense_parts import continuous

if TYPE_CHECKING:
    from precheck.observe.shadow.mode import Shadow


class Collectives:
    """The collectives of a watched run. If `ranks` is None, the ranks do not watch together, and received tensors get new shadows."""

    def __init__(self, mode: Shadow) -> None:
        self.mode = mode
        self.ranks: Ranks | None = None

    def __call__(self, op: OpCall) -> Any:
        """Runs the program's collective, and one on the shadows if all ranks watch. Raises only what the program's collective raises."""
        tensors = list(op.tensors())
        exchange = None
        with self.mode.apart():
            if self.ranks is not None and self._agreed(op, tensors):
                exchange = Exchange(self.mode, self.ranks, op)
                exchange.prepare()
            else:
                self._forget(tensors)
        result = self.mode.run(op.func, op.args, op.kwargs)
        with self.mode.apart():
            done, result = self._ended(op, result) if op.base in ops.CARRIED else (False, result)
            if exchange is not None:
                exchange.finish(result, done)
                if exchange.failed:
                    self._forget([*tensors, *tensors_in(result)])
        return result

    def _agreed(self, op: OpCall, tensors: list[torch.Tensor]) -> bool:
        carried = self.ranks is not None and not self.ranks.lost and op.base in ops.CARRIED
        return carried and bool(tensors) and all(continuous(tensor) and addressable(tensor) for tensor in tensors)

    def _forget(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            if addressable(tensor):
                self.mode.memory.drop(tensor)

    def _ended(self, op: OpCall, result: Any) -> tuple[bool, Any]:
        """Waits for the program's own collective. Returns whether it has ended, and its results.

        Callbacks of comm hooks then run in the program's thread, where the shadow sees them. Where the program itself would wait, at once or before
        the end of a backward pass, there is no time limit.
        """
        at_once = op.argument("async_op") is False or in_backward()
        if not at_once and self.ranks is None:
            return False, result
        handles = works(result)
        if not handles and self.ranks is not None:  # a functional collective: torch keeps its works
            for tensor in tensors_in(result):
                awaited(tensor)
        host = all(tensor.device.type == "cpu" for tensor in tensors_in(*op.args))
        try:
            for work in handles:
                work.wait() if at_once or not host else work.wait(datetime.timedelta(seconds=company.PATIENCE))
        except RuntimeError:
            return False, result  # it failed or is slow: the program will find out
        if host and not all(work.is_completed() for work in handles):
            result = _over(result)
        return True, result


def _over(result: Any) -> Any:
    """The results with a finished handle: gloo's scatter copies its result again at each wait."""
    work = finished_work(list(tensors_in(result)))
    return tuple(work if isinstance(part, torch.ScriptObject) else part for part in result) if isinstance(result, (list, tuple)) else work
