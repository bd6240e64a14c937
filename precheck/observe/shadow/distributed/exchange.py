"""Repeats one collective on shadows, among the same ranks. The shadows are copied to the host and sent through gloo, beside the program's own."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from precheck import ops
from precheck.observe.shadow.call import Call
from precheck.observe.shadow.comparing.measuring import relative_error
from precheck.observe.shadow.comparing.statistics import compare
from precheck.observe.shadow.distributed import ranks as company
from precheck.observe.shadow.distributed.ranks import Ranks
from precheck.observe.shadow.operations import Value
from precheck.observe.shadow.replaying.replay import OpCall, tensors_in, with_items
from precheck.torch_internals import awaited, group_named, located
from precheck.torch_support.tensor_classes import Mode

if TYPE_CHECKING:
    from precheck.observe.shadow.mode import Shadow

_GROUPS = ("process_group", "group_name")
_FIGURES = ("drift", "norm", "nonfinite", "nans", "zeros", "zeroed", "largest_zeroed", "dead", "roundoff", "kept_low")
"""Figures of a `Value` that ranks tell each other about what they send. These errors come from the senders, not from the reduction."""


class Exchange:
    """One collective of the program, repeated on shadows. `prepare` comes before the program's own, `finish` after it."""

    def __init__(self, mode: Shadow, ranks: Ranks, op: OpCall) -> None:
        self.mode, self.ranks, self.op = mode, ranks, op
        self.given: list[tuple[Value, Value]] = []  # what this rank sends: the value in its storage, and the value of what is sent
        self.shadows: dict[int, torch.Tensor] = {}  # on the host, by the id of the program's tensor
        self.exact: dict[int, torch.Tensor] = {}
        self.known: list[bool] = []  # for each tensor, whether it had a shadow
        self.failed = False

    def prepare(self) -> None:
        """Before the program's collective: copies what is sent. Never raises."""
        try:
            self._copied()
        except Exception as error:
            self._lose(error)

    def _copied(self) -> None:
        mode, floats = self.mode, list(self.op.tensors())
        call = self.call = Call(mode, self.op, floats, [mode.memory.find(tensor) for tensor in floats], located(floats))
        self.known = [cell is not None for cell in call.cells]
        call.prepare()
        if call.failure:
            raise RuntimeError(call.failure)
        self.shadows = {id(tensor): _copy(call.shadows[id(tensor)]) for tensor in floats}
        filled = {id(tensor) for name, tensor in self._named() if name.startswith("output")}
        for tensor, value in zip(floats, call.inputs, strict=True):
            if id(tensor) not in filled:
                sent = Value(None, value.shape, value.dtype, value.roundoff, value.low, value.kept_low)
                compare(sent, _copy(tensor), self.shadows[id(tensor)], zeros=True)  # of the whole bucket: its value describes only its newest part
                self.given.append((value, sent))
        if self.op.base in ops.REDUCED and floats[0].dtype in mode.low:
            self.exact = {id(tensor): _copy(tensor.to(mode.replay.wide(tensor.dtype))) for tensor in floats}

    def finish(self, result: Any, done: bool) -> None:
        """After the program's collective: repeats it on shadows and compares the results. Never raises."""
        if self.failed:
            return
        try:
            if not done:
                raise TimeoutError(f"the program's own did not end within {company.PATIENCE:.0f} s")
            self._exchanged(result)
        except Exception as error:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        self.failed = True
        self.ranks.lose(f"{self.op.plan.name}: {type(error).__name__}: {error}".splitlines()[0][:200])

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
        call.operation.derived = False  # a collective is no derivative of a forward op, also in a backward pass
        for output in call.written:
            cell = mode.memory.find(output)
            if cell is not None:
                cell.perturbed = None  # other ranks may have no perturbed shadow
        call.store(outputs, [shadow.to(output.device) for shadow, output in zip(shadows, outputs, strict=True)], None)
        mode.record(call.operation)
        elsewhere = any(value.nonfinite for value in heard) and not any(value.nonfinite for value in sources)
        for place, value in enumerate(call.operation.outputs):
            if exact is not None:
                value.local = relative_error(_copy(outputs[place]), exact[place])
            if value.nonfinite and elsewhere:
                value.maker = None  # reported by the rank that made it
            if not value.low and not value.drift and not value.nonfinite and (not call.written or any(outputs[place] is each for each in fresh)):
                mode.memory.drop(outputs[place])  # no rank sent anything in a low format

    def _again(self, group: Any, tensors: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        """The op on other tensors, in another group of the same ranks. Returns what it wrote or returned."""
        try:
            return self._sent(group, tensors, {})
        except RuntimeError as error:
            if "ReduceOp.AVG" not in str(error):  # gloo refuses it before it sends anything
                raise
        given = self.op.argument("reduce_op")
        summed = self._sent(group, tensors, {id(given): "sum" if isinstance(given, str) else _sum(group)})
        return [each.div_(group.size()) for each in summed]

    def _sent(self, group: Any, tensors: dict[int, torch.Tensor], otherwise: dict[int, Any]) -> list[torch.Tensor]:
        program, _ = self._program()
        swapped = {id(program): group.group_name if isinstance(program, str) else group.boxed(), **tensors, **otherwise}

        def replaced(item: Any) -> Any:
            return swapped.get(id(item), item)

        kwargs = {name: with_items(value, replaced) for name, value in self.op.kwargs.items()}
        result = self.op.func(*with_items(self.op.args, replaced), **kwargs)
        for work in works(result):
            work.wait()
        if self.call.written:
            return [tensors[id(tensor)] for tensor in self.call.written]
        return [awaited(tensor) for tensor in tensors_in(result)]

    def _program(self) -> tuple[Any, Any]:
        """The program's process group: the argument of the op, and the group itself."""
        given = next(value for name in _GROUPS if (value := self.op.argument(name)) is not None)
        return given, group_named(given) if isinstance(given, str) else dist.ProcessGroup.unbox(given)

    def _named(self) -> list[tuple[str, torch.Tensor]]:
        pairs = [*zip(self.op.plan.names, self.op.args, strict=False), *self.op.kwargs.items()]
        return [(name, tensor) for name, value in pairs for tensor in tensors_in(value)]

    def _heard(self, group: Any) -> list[Value]:
        """The value of what each rank sends, as that rank measured it."""
        worst = max((sent for _, sent in self.given), key=lambda sent: (sent.nonfinite, sent.drift), default=Value(None, (), "", 0.0))
        told = torch.tensor([float(getattr(worst, name)) for name in _FIGURES], dtype=torch.float64, device="cpu")
        rows = [torch.empty_like(told) for _ in range(group.size())]
        group.allgather([rows], [told]).wait()
        heard = [dataclasses.replace(worst) for _ in rows]
        for value, row in zip(heard, rows, strict=True):
            for name, figure in zip(_FIGURES, row.tolist(), strict=True):
                setattr(value, name, type(getattr(value, name))(figure))
        return heard


class _Caught(Mode):
    """Keeps the arguments of the last op."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        self.args = args
        return func(*args, **(kwargs or {}))


def _sum(group: Any) -> Any:
    """ReduceOp.SUM in the form in which ops receive it. Python cannot make one, so it is taken from a call."""
    with _Caught() as caught:  # type: ignore[no-untyped-call]
        group.allreduce([torch.zeros(1, device="cpu")]).wait()
    return caught.args[2]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def works(result: Any) -> list[Any]:
    """The handles among an op's results."""
    parts = result if isinstance(result, (list, tuple)) else (result,)
    return [dist.Work.unbox(part) for part in parts if isinstance(part, torch.ScriptObject)]
