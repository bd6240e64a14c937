"""Collectives beside the reference precision: what a rank sends goes a second time as its shadow, so that what comes has one.

Every rank does the same, by a rule that all agree on: an op that is carried, on tensors of floating dtypes. Whether a rank has
shadows is no part of it; one without sends its own numbers, widened. Low-format reductions go a third time, as the run has
the addends, which tells what the reduction itself lost.
"""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from precheck.observe import ranks as company
from precheck.observe.call import Call
from precheck.observe.measuring import off
from precheck.observe.operations import Value
from precheck.observe.ranks import Ranks
from precheck.observe.replay import OpPlan, addressable, continuous, tensors_in
from precheck.observe.statistics import compare

if dist.is_available():
    from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
    from torch.distributed import distributed_c10d as c10d

REDUCING = frozenset({"allreduce_", "allreduce_coalesced_", "reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_",
                      "all_reduce", "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_", "reduce_scatter_tensor",
                      "reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_out"})  # fmt: skip
CARRIED = REDUCING | frozenset({"broadcast_", "allgather_", "_allgather_base_", "allgather_into_tensor_coalesced_", "allgather_coalesced_",
                                "alltoall_base_", "scatter_", "broadcast", "all_gather_into_tensor", "all_gather_into_tensor_out",
                                "all_gather_into_tensor_coalesced", "all_to_all_single"})  # fmt: skip
"""Collectives whose results every rank has. Messages from one rank to another, and `reduce`, leave what they write without a shadow."""
_GROUPS = ("process_group", "group_name")
_FIGURES = ("drift", "norm", "nonfinite", "nans", "zeros", "zeroed", "largest_zeroed", "dead", "roundoff", "kept_low")
"""What ranks tell each other of what they send: its errors are theirs, not the reduction's."""


class Collectives:
    """The collectives of a watched run. Without `ranks` that watch together, what comes from others starts the shadow afresh."""

    def __init__(self, mode: Any) -> None:
        self.mode = mode
        self.ranks: Ranks | None = None

    def __call__(self, func: Any, planned: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The program's collective, and its shadows' if all ranks watch. Raises only what the program's own raises."""
        tensors = list(tensors_in(*args, *kwargs.values()))
        exchange = None
        with self.mode.apart():
            if self.ranks is not None and self._agreed(planned, tensors):
                exchange = _Exchange(self.mode, self.ranks, func, planned, args, kwargs)
                exchange.prepare()
            else:
                self._forget(tensors)
        result = func(*args, **kwargs)
        with self.mode.apart():
            done, result = self._ended(planned, args, kwargs, result) if planned.packet in CARRIED else (False, result)
            if exchange is not None:
                exchange.finish(result, done)
                if exchange.failed:
                    self._forget([*tensors, *tensors_in(result)])
        return result

    def _agreed(self, planned: OpPlan, tensors: list[torch.Tensor]) -> bool:
        carried = self.ranks is not None and not self.ranks.lost and planned.packet in CARRIED
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
        at_once = planned.argument("async_op", args, kwargs) is False or torch._C._current_graph_task_id() != -1
        if not at_once and self.ranks is None:
            return False, result
        works = _works(result)
        if not works:  # a functional one, whose works torch keeps
            return self.ranks is not None, [torch.ops._c10d_functional.wait_tensor(tensor) for tensor in tensors_in(result)] and result
        host = all(tensor.device.type == "cpu" for tensor in tensors_in(*args))
        try:
            for work in works:
                work.wait() if at_once or not host else work.wait(datetime.timedelta(seconds=company.PATIENCE))
        except RuntimeError:
            return False, result  # it has failed or takes its time: the program will see
        if host and not all(work.is_completed() for work in works):
            result = _over(result)
        return True, result


class _Exchange:
    """One collective of the program, carried out again on shadows."""

    def __init__(self, mode: Any, ranks: Ranks, func: Any, planned: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.mode, self.ranks, self.func, self.plan, self.args, self.kwargs = mode, ranks, func, planned, args, kwargs
        self.given: list[tuple[Value, Value]] = []  # what this rank sends: where it is from, and how it is
        self.shadows: dict[int, torch.Tensor] = {}  # by the identity of the program's tensor, on the host
        self.exact: dict[int, torch.Tensor] = {}
        self.known: list[bool] = []  # whether each had a shadow
        self.failed = False

    def prepare(self) -> None:
        """Before the program's own: copies of what is sent. Raises nothing."""
        try:
            self._copied()
        except Exception as error:
            self._lose(f"{type(error).__name__}: {error}".splitlines()[0][:200])

    def _copied(self) -> None:
        mode, planned = self.mode, self.plan
        floats = list(tensors_in(*self.args, *self.kwargs.values()))
        call = self.call = Call(mode, self.func, planned, self.args, self.kwargs, floats, [mode.memory.find(tensor) for tensor in floats])
        self.known = [cell is not None for cell in call.cells]
        call.prepare()
        if call.why:
            raise RuntimeError(call.why)
        self.shadows = {id(tensor): _copy(call.shadows[id(tensor)]) for tensor in floats}
        filled = {id(tensor) for name, tensor in self._named() if name.startswith("output")}
        for tensor, value in zip(floats, call.inputs, strict=True):
            if id(tensor) not in filled:
                sent = Value(None, value.shape, value.dtype, value.roundoff, value.low, value.kept_low)
                compare(sent, _copy(tensor), self.shadows[id(tensor)], zeros=True)  # all of a bucket, whose value is that of its newest part
                self.given.append((value, sent))
        if planned.packet in REDUCING and floats[0].dtype in mode.low:
            self.exact = {id(tensor): _copy(tensor.to(mode.replay.wide(tensor.dtype))) for tensor in floats}

    def finish(self, result: Any, done: bool) -> None:
        """After it: the same on shadows, and both compared. Raises nothing."""
        if self.failed:
            return
        try:
            if not done:
                raise TimeoutError(f"the program's own did not end within {company.PATIENCE:.0f} s")
            self._exchanged(result)
        except Exception as error:
            self._lose(f"{type(error).__name__}: {error}".splitlines()[0][:200])

    def _lose(self, why: str) -> None:
        self.failed = True
        self.ranks.lose(f"{self.plan.name}: {why}")

    def _exchanged(self, result: Any) -> None:
        call, mode = self.call, self.mode
        fresh = [tensor for tensor, known in zip(call.floats, self.known, strict=True) if not known]
        sources = [value for value, _ in self.given]
        group = self.ranks.group(self._program()[1])
        heard = self._heard(group)
        shadows = self._again(group, self.shadows)
        exact = self._again(group, self.exact) if self.exact else None
        outputs = call.written or list(tensors_in(result))
        call.inputs = call.operation.inputs = (*sources, *heard)
        call.operation.derived = False  # nobody's derivative, in whatever pass it is made
        for output in call.written:
            mode.memory.find(output).twin = None  # which other ranks may not have
        call.store(outputs, [shadow.to(output.device) for shadow, output in zip(shadows, outputs, strict=True)], None)
        mode.record(call.operation)
        mode.later.flush()
        elsewhere = any(value.nonfinite for value in heard) and not any(value.nonfinite for value in sources)
        for place, value in enumerate(call.operation.outputs):
            if exact is not None:
                value.local = off(_copy(outputs[place]), exact[place])
            if value.nonfinite and elsewhere:
                value.maker = None  # told where it was made
            if not value.low and not value.drift and not value.nonfinite and (not call.written or any(outputs[place] is each for each in fresh)):
                mode.memory.drop(outputs[place])  # no rank has anything low in it

    def _again(self, group: Any, tensors: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        """The op on other tensors, in another group of the same ranks; what it wrote or returned."""
        try:
            return self._sent(group, tensors, {})
        except RuntimeError as error:
            if "ReduceOp.AVG" not in str(error):  # which gloo does not know, and says before it sends anything
                raise
        given = self.plan.argument("reduce_op", self.args, self.kwargs)
        summed = self._sent(group, tensors, {id(given): "sum" if isinstance(given, str) else _sum(group)})
        return [each.div_(group.size()) for each in summed]

    def _sent(self, group: Any, tensors: dict[int, torch.Tensor], otherwise: dict[int, Any]) -> list[torch.Tensor]:
        program, _ = self._program()
        swapped = {id(program): group.group_name if isinstance(program, str) else group.boxed(), **tensors, **otherwise}
        kwargs = {name: _changed(value, swapped) for name, value in self.kwargs.items()}
        result = self.func(*_changed(self.args, swapped), **kwargs)
        for work in _works(result):
            work.wait()
        if self.call.written:
            return [tensors[id(tensor)] for tensor in self.call.written]
        return [torch.ops._c10d_functional.wait_tensor(tensor) for tensor in tensors_in(result)]

    def _program(self) -> tuple[Any, Any]:
        """The program's process group, as the op's arguments have it and as it is."""
        given = next(value for name in _GROUPS if (value := self.plan.argument(name, self.args, self.kwargs)) is not None)
        return given, c10d._resolve_process_group(given) if isinstance(given, str) else dist.ProcessGroup.unbox(given)  # type: ignore[attr-defined, arg-type]

    def _named(self) -> list[tuple[str, torch.Tensor]]:
        pairs = [*zip(self.plan.names, self.args, strict=False), *self.kwargs.items()]
        return [(name, tensor) for name, value in pairs for tensor in tensors_in(value)]

    def _heard(self, group: Any) -> list[Value]:
        """What each rank says of what it sends."""
        worst = max((sent for _, sent in self.given), key=lambda sent: (sent.nonfinite, sent.drift), default=Value(None, (), "", 0.0))
        told = torch.tensor([float(getattr(worst, name)) for name in _FIGURES], dtype=torch.float64)
        rows = [torch.empty_like(told) for _ in range(group.size())]
        group.allgather([rows], [told]).wait()
        heard = [dataclasses.replace(worst) for _ in rows]
        for value, row in zip(heard, rows, strict=True):
            for name, figure in zip(_FIGURES, row.tolist(), strict=True):
                setattr(value, name, type(getattr(value, name))(figure))
        return heard


def _changed(value: Any, swapped: dict[int, Any]) -> Any:
    """An argument with tensors and group exchanged for others, by identity."""
    if isinstance(value, (list, tuple)):
        return type(value)(_changed(each, swapped) for each in value)
    return swapped.get(id(value), value)


class _Caught(TorchDispatchMode):
    """Keeps the arguments of the last op."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        self.args = args
        return func(*args, **(kwargs or {}))


def _sum(group: Any) -> Any:
    """ReduceOp.SUM as ops have it, which Python cannot make."""
    with _Caught() as caught:  # type: ignore[no-untyped-call]
        group.allreduce([torch.zeros(1)]).wait()
    return caught.args[2]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def _over(result: Any) -> Any:
    """The results with a handle of something done: gloo's scatter copies its result again each time that it is waited for."""
    done: Any = torch.futures.Future()
    done.set_result(list(tensors_in(result)))
    work = _create_work_from_future(done).boxed()
    return tuple(work if isinstance(part, torch.ScriptObject) else part for part in result) if isinstance(result, (list, tuple)) else work


def _works(result: Any) -> list[Any]:
    """The handles among an op's results."""
    parts = result if isinstance(result, (list, tuple)) else (result,)
    return [dist.Work.unbox(part) for part in parts if isinstance(part, torch.ScriptObject)]
