"""Computes what each call of a user's function would give in the reference precision, on the inputs that this call had.

The shadow measures the error of a result, whatever its origin. For a function, the error that it adds itself also matters. A second shadow
measures that: it starts anew at each call from the run's own inputs. A call is a call of the outermost function of the user's that a module calls,
or that is called outside of all modules. If there is none, it is the call of the module's own `forward`. A step of an optimizer that is not torch's
own is a call too. Calls are recognised by the frames on Python's stack.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import weakref
from typing import TYPE_CHECKING, Any

import torch

from precheck import ops
from precheck.observe.shadow.comparing import measuring
from precheck.observe.shadow.comparing.statistics import SAMPLE, apart, norm, sampled
from precheck.observe.shadow.memory.cells import Memory
from precheck.observe.shadow.operations import Value
from precheck.observe.shadow.places.source import KINDS
from precheck.observe.shadow.probes import casts, flips, integer_casts
from precheck.observe.shadow.replaying.replay import addressable
from precheck.torch_internals import MODULE_CALLS, storage_key
from precheck.torch_support.dense_parts import continuous

if TYPE_CHECKING:
    from types import FrameType

    from precheck.observe.shadow.call import Call

_numbers = itertools.count(1)


class Called:
    """Marks the frame of one call and holds its shadows; it is freed with the frame. It is stored as the frame's local trace function, which Python
    calls only under a debugger, and then it does nothing."""

    __slots__ = ("__weakref__", "memory", "number")

    def __init__(self) -> None:
        self.memory, self.number = Memory(), next(_numbers)

    def __call__(self, frame: FrameType, event: str, argument: object) -> Called:
        return self


class FunctionReplay:
    """The second shadow of a watched run."""

    def __init__(self) -> None:
        self.alive: weakref.WeakSet[Called] = weakref.WeakSet()  # the calls whose frames are still there
        self.outside: set[int] = set()  # the user's frames that were on the stack when the block began
        self.depth = 0  # the user's functions on the stack at the last op, from its call on
        self.traced: tuple[Any, Called | None] = (None, None)  # the last call whose frame has a debugger's trace function

    def begin(self) -> None:
        """At the start of the block: the frames on the stack now are not calls in it."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            if KINDS[frame.f_code.co_filename] == "user":
                self.outside.add(id(frame))
            frame = frame.f_back

    def before(self, call: Call, depth: int = 2) -> dict[int, torch.Tensor]:
        """Before the op runs: the second shadows of its operands, by id, where they have one."""
        operation, plan = call.operation, call.plan
        if operation.phase == "backward" or (operation.in_optimizer and call.mode.tracker.shipped) or call.failure:
            return {}
        if not plan.known or plan.base in ops.PACKED:
            return {}
        called = None if [tensor for tensor in call.floats if tensor.is_complex()] else self._called(depth)
        if called is None:
            return {}
        call.called, operation.call, operation.depth, memory, seen = called, called.number, self.depth, called.memory, {}
        for place, tensor in zip(call.places, call.floats, strict=True):
            cell = memory.at(place, tensor)
            written = bool(call.written) and any(tensor is each for each in call.written)
            if cell is None and written:
                cell = memory.seed(tensor, call.mode.replay.wide(tensor.dtype), _NOTHING)
            if cell is not None and not _as_cast(call, cell.value):
                if written:
                    cell.own()
                seen[id(tensor)] = memory.view(cell, tensor)
        return seen

    def after(self, call: Call, seen: dict[int, torch.Tensor]) -> None:
        """After the op has run: replays it on the second shadows and compares. Never raises.

        A call that does not follow what an op writes begins anew there with the run's numbers: another call, an optimizer or a backward pass wrote
        it. So does each call at a parameter: weights are given in their format, and whether a step arrives in them is judged by `training.updates`.
        """
        followed = False
        if call.called is not None and not call.failure:
            with contextlib.suppress(Exception):
                followed = self._follow(call, call.called.memory, seen)
        for tensor in call.written:
            cell = call.mode.memory.find(tensor)
            anew = not followed or (cell is not None and cell.parameter)
            for each in self.alive:
                if anew or each is not call.called:
                    each.memory.drop(tensor)

    def running(self) -> Called | None:
        """The call that runs now."""
        return self._called(1)

    def written(self, call: Call, tensor: torch.Tensor, exact: torch.Tensor) -> None:
        """Begins with a number that the program has written down, or rounded without an op: the call computes with `exact`, of which `tensor` is the
        rounding."""
        called, value = self._called(1), call.operation.outputs[0]
        if called is not None:
            call.operation.call = called.number
            called.memory.put(tensor, exact.clone(), _NOTHING)
            value.call_error = apart(sampled(tensor), sampled(exact)) if call.operation.inputs else value.drift

    def _follow(self, call: Call, memory: Memory, seen: dict[int, torch.Tensor]) -> bool:
        """Whether the call's shadows are now those of what the op wrote."""
        mode, plan, operation = call.mode, call.plan, call.operation
        outputs = [tensor for tensor in call.results if addressable(tensor)]
        if outputs and seen and (plan.steps or not continuous(outputs[0])):
            integer_casts.note_recut_in_call(call, outputs[0], seen)
        if not outputs or not continuous(outputs[0]) or (not seen and not any(tensor.dtype in mode.low for tensor in outputs)):
            return False
        dear = "attention" in plan.packet  # costly to replay, and it rounds as the precision demands
        if plan.steps or (plan.tagged and call.op.draws()) or (not seen and (dear or _stored(call))):
            return False
        wide = {id(tensor): seen[id(tensor)] if id(tensor) in seen else tensor.to(mode.replay.wide(tensor.dtype)) for tensor in call.floats}
        made = mode.replay.call(call.reference_op(), lambda tensor: measuring.operand(call, wide, tensor))
        flips.follow_run(call, call.results, made, wide)
        foreign = [place[0] for place in call.places] + list(map(storage_key, wide.values()))
        mark = _mark(call, memory, seen)
        for output, shadow in zip(call.results, made, strict=False):
            if addressable(output) and continuous(output):
                written = bool(call.written) and any(output is tensor for tensor in call.written)
                memory.keep(output, shadow.to(mode.replay.wide(output.dtype)), mark, perturbed=None, written=written, foreign=foreign)
        value = next(iter(operation.outputs), None)
        if value is not None and value.maker is operation:
            run, shadow = call.results[0], made[0]
            value.call_error = apart(run, shadow) if run.numel() <= SAMPLE else apart(sampled(run), sampled(shadow))
            value.norm = value.norm or (norm(run) if value.call_error else 0.0)  # behind a rounding on purpose nothing has measured it
        return True

    def _called(self, depth: int) -> Called | None:
        """The call that the op belongs to. None if no function of the user's is on the stack."""
        frame: Any = sys._getframe(depth)
        found = inner = None
        depth, outside, kinds = 0, self.outside, KINDS
        while frame is not None and id(frame) not in outside:
            code = frame.f_code
            if id(code) in MODULE_CALLS:
                found = inner or found
                break
            kind = kinds[code.co_filename]
            if kind == "runner" or kind == "optimizer":
                break
            if kind == "user":
                found, inner = frame, found
                depth += 1
            frame = frame.f_back
        self.depth = depth
        return None if found is None else self._marked(found)

    def _marked(self, frame: FrameType) -> Called:
        mark = frame.f_trace
        if mark is None:
            mark = frame.f_trace = self._begun()
        if isinstance(mark, Called):
            return mark
        place = id(frame), frame.f_code
        if self.traced[0] != place or self.traced[1] is None:
            self.traced = place, self._begun()
        return self.traced[1]  # type: ignore[return-value]

    def _begun(self) -> Called:
        begun = Called()
        self.alive.add(begun)
        return begun


def _stored(call: Call) -> bool:
    """Whether a cast only stores in low precision what was given or converted, as data and weights are."""
    if call.plan.base not in ops.CASTS:
        return False
    if call.operation.plain or call.operation.converts:
        return True
    return _data(call) and not call.mode.tracker.stack


def _data(call: Call) -> bool:
    """Whether a cast stores numbers that the program has not made itself. Whole numbers that it has computed are its own, as fractions are. So is
    what becomes subnormal or zero: data are known to a rounding, and a number with fewer bits than the format has is none."""
    made = next(iter(call.operation.outputs), None)
    if made is not None and casts.below_normal(made, call.results[0].dtype):
        return False
    maker = call.inputs[-1].maker if call.inputs else None
    if maker is not None:
        return maker.base in ops.WHOLE_COPIES
    source = next(iter(call.floats) if call.floats else call.op.tensors(), None)
    return source is None or not call.mode.wide.own(source, bool(call.mode.tracker.stack))


def _as_cast(call: Call, mark: Value) -> bool:
    """Whether an op takes a cast of an input of the call as it is, so that the cast is no error of the function.

    Matrix products do, since autocast would cast too. Where the author has turned autocast off it would not, and the cast is theirs. Wide arithmetic
    on data takes them as they were stored. Any other op computes in the low format because the function's author chose so.
    """
    if call.plan.base in ops.MULTIPLIED:
        return mark is _DATA or (mark is _CAST and not call.operation.autocast_left)
    return mark is _DATA and call.plan.base not in ops.MOVING and not all(tensor.dtype in call.mode.low for tensor in call.floats)


def _mark(call: Call, memory: Memory, seen: dict[int, torch.Tensor]) -> Value:
    """Whether a result is a cast of an input of the call, or such a cast moved by views and copies. `_DATA`: a cast of data, which may be rounded."""
    if not seen and call.plan.base in ops.CASTS:
        return _DATA if _data(call) else _CAST
    if not seen or call.plan.base not in ops.MOVING or call.written:
        return _NOTHING
    marks = {_NOTHING if cell is None else cell.value for cell in map(memory.find, call.floats)}
    return _NOTHING if _NOTHING in marks else _DATA if _DATA in marks else _CAST


_NOTHING, _CAST, _DATA = Value(None, (), "", 0.0), Value(None, (), "", 0.0), Value(None, (), "", 0.0)
