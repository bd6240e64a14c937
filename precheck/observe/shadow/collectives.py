"""Collectives beside the reference precision: what a rank sends goes a second time as its shadow, so that what comes has one.

Every rank does the same, by a rule that all agree on: an op that is carried, on tensors of floating dtypes. Whether a rank has
shadows is no part of it; one without sends its own numbers, widened. Low-format reductions go a third time, as the run has
the addends, which tells what the reduction itself lost.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import torch

from precheck import ops
from precheck.observe.shadow import ranks as company
from precheck.observe.shadow.exchange import Exchange, works
from precheck.observe.shadow.ranks import Ranks
from precheck.observe.shadow.replay import OpPlan, addressable, continuous, tensors_in
from precheck.torch_internals import awaited, finished_work, in_backward

if TYPE_CHECKING:
    from precheck.observe.shadow.mode import Shadow


class Collectives:
    """The collectives of a watched run. Without `ranks` that watch together, what comes from others starts the shadow afresh."""

    def __init__(self, mode: Shadow) -> None:
        self.mode = mode
        self.ranks: Ranks | None = None

    def __call__(self, func: Any, planned: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The program's collective, and its shadows' if all ranks watch. Raises only what the program's own raises."""
        tensors = list(tensors_in(*args, *kwargs.values()))
        exchange = None
        with self.mode.apart():
            if self.ranks is not None and self._agreed(planned, tensors):
                exchange = Exchange(self.mode, self.ranks, func, planned, args, kwargs)
                exchange.prepare()
            else:
                self._forget(tensors)
        result = self.mode.run(func, args, kwargs)
        with self.mode.apart():
            done, result = self._ended(planned, args, kwargs, result) if planned.base in ops.CARRIED else (False, result)
            if exchange is not None:
                exchange.finish(result, done)
                if exchange.failed:
                    self._forget([*tensors, *tensors_in(result)])
        return result

    def _agreed(self, planned: OpPlan, tensors: list[torch.Tensor]) -> bool:
        carried = self.ranks is not None and not self.ranks.lost and planned.base in ops.CARRIED
        return carried and bool(tensors) and all(continuous(tensor) and addressable(tensor) for tensor in tensors)

    def _forget(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            if addressable(tensor):
                self.mode.memory.drop(tensor)

    def _ended(self, planned: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> tuple[bool, Any]:
        """Waits for the program's own collective; whether it is over, and its results.

        Callbacks, as comm hooks set them, then run in the program's thread, where they are seen. What the program waits for at
        once, or before a backward pass ends, is waited for as long as it would.
        """
        at_once = planned.argument("async_op", args, kwargs) is False or in_backward()
        if not at_once and self.ranks is None:
            return False, result
        handles = works(result)
        if not handles and self.ranks is not None:  # a functional one, whose works torch keeps
            for tensor in tensors_in(result):
                awaited(tensor)
        host = all(tensor.device.type == "cpu" for tensor in tensors_in(*args))
        try:
            for work in handles:
                work.wait() if at_once or not host else work.wait(datetime.timedelta(seconds=company.PATIENCE))
        except RuntimeError:
            return False, result  # it has failed or takes its time: the program will see
        if host and not all(work.is_completed() for work in handles):
            result = _over(result)
        return True, result


def _over(result: Any) -> Any:
    """The results with a handle of something done: gloo's scatter copies its result again each time that it is waited for."""
    work = finished_work(list(tensors_in(result)))
    return tuple(work if isinstance(part, torch.ScriptObject) else part for part in result) if isinstance(result, (list, tuple)) else work
