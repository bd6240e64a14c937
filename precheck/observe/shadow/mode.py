"""The dispatch mode that watches a block. It runs each op that has a low-precision ancestor again in the reference precision.

It sees forward, backward, optimizer and hand-written loops alike, one aten op at a time, and writes down one `Operation` for each.
So two runs never have to be aligned. Decisions and random draws of the shadow follow the run's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from precheck.observe.listeners import Progress
from precheck.observe.profiling import UncompiledMode
from precheck.observe.recording.exponents import Exponents
from precheck.observe.shadow import cuda_graphs, list_ops
from precheck.observe.shadow.call import Call
from precheck.observe.shadow.distributed.collectives import Collectives
from precheck.observe.shadow.memory.cells import Memory
from precheck.observe.shadow.memory.stable_ids import is_parameter
from precheck.observe.shadow.memory.window import Iteration, Judge, Window
from precheck.observe.shadow.op_notes import Refused
from precheck.observe.shadow.operations import Observation, Operation, Value
from precheck.observe.shadow.own_decisions import OwnDecisions
from precheck.observe.shadow.places.module_tracker import ModuleTracker
from precheck.observe.shadow.places.source import Lines
from precheck.observe.shadow.probes import partial_writes, python_numbers
from precheck.observe.shadow.probes.accumulation import Accumulation
from precheck.observe.shadow.probes.integers import IntegerAmounts, IntegerUses
from precheck.observe.shadow.probes.wide_numbers import WideNumbers
from precheck.observe.shadow.quantisers.codes import Codes
from precheck.observe.shadow.quantisers.scales.delayed_scales import DelayedScales
from precheck.observe.shadow.replaying import prod_gradient
from precheck.observe.shadow.replaying.function_replay import FunctionReplay
from precheck.observe.shadow.replaying.replay import LOW, PLAIN, OpCall, Replay, addressable, floats_in, local, plan, wraps
from precheck.observe.shadow.torch_wrappers import installed
from precheck.observe.shadow.training import stale_casts
from precheck.observe.shadow.training.loss_scales import LossScales
from precheck.observe.shadow.training.losses import Backwards, Losses
from precheck.observe.shadow.training.scaler_hooks import Scalers
from precheck.observe.shadow.training.updates import Updates
from precheck.torch_internals import active_modes, call_kernel, kernel_key, located, modes_on, nesting, no_dispatch, without_modes
from precheck.torch_support import emulation
from precheck.torch_support.dense_parts import continuous
from precheck.words import dtype_name

__tracebackhide__ = True  # pytest leaves out this module's frames, which lie between the user's line and torch's error
_NUMBERLESS = "torch._subclasses"
_NOTHING = contextlib.nullcontext()
_ANCESTRY = 8  # most ops between a parameter and the parameter that it was made from


class Shadow(UncompiledMode):
    """Watches the block inside `with`. Each op adds to `observation`."""

    def __init__(
        self, tracker: ModuleTracker, *, reference: torch.dtype = torch.float32, low: frozenset[torch.dtype] = LOW,
        judge: Judge | None = None,
    ) -> None:  # fmt: skip
        super().__init__()  # type: ignore[no-untyped-call]
        self.low, self.replay, self.memory = low, Replay(reference, low), Memory()  # runs an op again; keeps what came of it: the shadows
        self.tracker, self.lines = tracker, Lines()  # find an op's module, step and line
        self.function_replay = FunctionReplay()  # runs a call of a user's function again
        self.observation, self.progress = Observation(), Progress()  # what is written down
        self.observation.functions, self.observation.exact = self.lines.frames.functions, reference is torch.float64
        self.window = Window(self.observation, self.memory, judge)  # gives the judge the oldest operations, and drops them
        self.lock, self.any_perturbed, self.noise = threading.RLock(), False, dict[torch.device, torch.Generator]()  # noise: for perturbed shadows
        self.scales = LossScales()  # here begin the observers of single subjects: of training,
        self.backwards, self.losses = Backwards(self.memory, self.scales), Losses(self.memory, self.scales)
        self.exponents, self.scalers = Exponents(self.memory, self.scales), Scalers(tracker, self.scales, self.backwards, self.described)
        self.updates = Updates(self.memory, low, tracker.identity, lambda: Shadow(ModuleTracker(None), reference=reference, low=low))
        self.stale_casts, self.accumulation = stale_casts.Casts(self), Accumulation(self.memory)  # of casts and sums,
        self.round_trips: dict[tuple[str, str, tuple[int, ...]], Value] = {}  # the latest result of casts to low and back, by module, line and shape
        self.amounts, self.places, self.wide = IntegerAmounts(), IntegerUses(), WideNumbers()  # of where a number comes from,
        self.codes, self.delayed_scales, self.collectives = Codes(self), DelayedScales(self), Collectives(self)  # of quantisers, of other ranks
        self.executor: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None = None  # runs the user's ops; None: torch
        self.own: OwnDecisions | None = None  # what float32 would decide; None: nobody asks
        tracker.on_gradient, tracker.on_call = self.gradient, self._called
        tracker.on_step.append(self._step_begins)
        tracker.after_step.append(self._step_ends)
        tracker.belongs = lambda: not cuda_graphs.capturing() and any(mode is self for mode in active_modes())

    def unseen_within(self, func: Any) -> None:
        self.observation.seen += 1
        self.observation.opaque[str(func)] = self.observation.opaque.get(str(func), 0) + 1

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        wrappers = () if PLAIN.issuperset(types) else [kind for kind in types if wraps(kind)]
        if wrappers:  # a subclass runs ops on plain tensors, which are seen then; fake tensors compute nothing
            return self.run(func, args, kwargs) if any(kind.__module__.startswith(_NUMBERLESS) for kind in wrappers) else NotImplemented
        if cuda_graphs.capturing():
            return cuda_graphs.ran(self, OpCall(func, plan(func), args, kwargs))
        op = OpCall(func, planned := plan(func), args, kwargs)
        self.observation.seen += 1
        self.progress.op()
        if planned.composite and all(map(addressable, op.tensors())):
            return self._taken_apart(op)
        if planned.passes:
            if args and is_parameter(args[0]):
                self.tracker.saw(args[0])  # a linear layer reads its weight only through a view
            result = self.run(func, args, kwargs)
            if planned.packet == "lift_fresh":
                python_numbers.after_entry(self, result)
            if planned.name == "view.dtype":
                self.codes.after_view(args[0], result)
            return result
        with self.lock:
            if planned.packet == "ones_like":
                with self.unseen():
                    if self.losses.backward_begins(args[0], lambda: self.described("loss")):
                        self._end_iteration(Iteration.BACKWARD)
            if not self.scales.factors.entries:
                return self._ran(op)
            with self.unseen():
                factors = self.scales.before(op, lambda: self.described(planned.name))
            result = self._ran(op)
            self.scales.after(factors, args, result)
            with self.unseen():
                self.backwards.passed(result)
            return result

    def _ran(self, op: OpCall) -> Any:
        result = self._watched(op)
        self.codes.after(op, result)
        if self.places.made.entries:
            self.places.read(op, result)
        return result

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the user's op."""
        return func(*args, **kwargs) if self.executor is None else self.executor(func, args, kwargs)

    def described(self, name: str) -> Operation:
        """An operation that names the current line of the program, for events that are not ops."""
        line = self.lines.frames.line(1)[0]
        caller, _ = self.lines.frames.own(line, 1)
        return Operation(self.observation.seen, name, "scaler", self.tracker.module, line, self.tracker.step, caller=caller)

    def _taken_apart(self, op: OpCall) -> Any:
        """Runs torch's own decomposition of the op. Its parts are watched one by one."""
        self.observation.seen -= 1
        device = next((tensor.device.type for tensor in op.tensors()), "cpu")
        super().__enter__()  # the mode is off while it handles an op
        try:
            return call_kernel(op.func, kernel_key(op.func, device), op.args, op.kwargs)
        finally:
            super().__exit__(None, None, None)

    def _watched(self, op: OpCall) -> Any:
        func, planned, args, kwargs = op
        floats = floats_in((*args, *kwargs.values()) if kwargs else args, [])
        if planned.collective:
            return self.collectives(op)
        if planned.mutable:
            self.tracker.on_write()
            self._forgotten(op)
        places = located(floats)
        cells = [self.memory.at(place, tensor) for place, tensor in zip(places, floats, strict=True)]
        if not any(cells) and not self.replay.lowers(op, floats):
            result = self.run(func, args, kwargs)
            self.wide.made(op, places, result, self.tracker.step)
            if not floats:
                self.amounts.made(planned, result)
            return result
        calls, seen = list_ops.calls(self, op) if list_ops.several(op) else [Call(self, op, floats, cells, places)], []
        with self.unseen():
            self.observation.shadowed += 1
            for call in calls:
                call.prepare()
                call.operation.amounts, call.operation.drawn = self.amounts.given(args), self.wide.draws(places)
                seen.append(self.function_replay.before(call))
        try:
            result = self.run(func, args, kwargs)
        except Exception as error:
            self._refused(calls[0], str(error))
            raise
        with self.unseen():
            for call, made, before in zip(calls, [result] if len(calls) == 1 else list_ops.results(result, len(calls)), seen, strict=True):
                call.finish(made)
                self.function_replay.after(call, before)
                if emulation.active():
                    self.delayed_scales.after(call.operation)
        return result

    def _refused(self, call: Call, why: str) -> None:
        """Records an op that raised, with its low format, and its inputs' formats if these were the reason."""
        types = tuple(tensor.dtype for tensor in call.floats)
        low = next((each for each in (*types, *call.args, *call.op.kwargs.values()) if isinstance(each, torch.dtype) and each in self.low), None)
        mixed = len(set(types)) > 1 and len(types) == len(call.inputs) and "type" in why
        call.operation.refused = Refused("" if low is None else dtype_name(low), tuple(map(dtype_name, types)) if mixed else ())
        self.record(call.operation)

    def _forgotten(self, op: OpCall) -> None:
        """Drops the shadows of floats that are written through an integer view."""
        for tensor in op.written():
            self.stale_casts.wrote(tensor, op.plan.name)
            if addressable(tensor) and not continuous(tensor):
                self.memory.drop(tensor)
                self.amounts.known.drop(tensor)

    def apart(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which no mode sees the shadow's own ops. Modes below it, as torch's tracer always is, see only the user's."""
        return without_modes() if modes_on() else contextlib.nullcontext()

    def unseen(self) -> contextlib.AbstractContextManager[Any]:
        """The same, cheaper, for plain tensors without collectives: it turns dispatch to modes off, and takes no mode off the stack."""
        return no_dispatch() if modes_on() else _NOTHING

    def __enter__(self) -> Any:
        self.autocasts = nesting()
        self.function_replay.begin()
        return super().__enter__()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, calls that no op shows are recorded: scalers, optimizers, schedules, Python numbers that become tensors."""
        functions, methods = ({**wrappers, **prod_gradient.PRODUCT} for wrappers in (python_numbers.FUNCTIONS, python_numbers.METHODS))
        with self.scalers.watched(), self.codes.gradients.watched(), installed(self, functions, methods, at_last=python_numbers.forget):
            yield

    def _step_begins(self, optimizer: Any) -> None:
        self.lines.frames.steps(True)
        with without_modes(), torch.no_grad():
            self.updates.begin(optimizer, self.observation.seen)
            if self.collectives.ranks is not None:  # gradients have been reduced since they were accumulated
                for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.grad is not None):
                    self.gradient(self.tracker.name_of(parameter), parameter)

    def _step_ends(self, optimizer: Any) -> None:
        self.lines.frames.steps(False)
        with without_modes(), torch.no_grad():
            self.updates.end(optimizer, self.tracker.parameter_names, dataclasses.replace(self.described("step"), phase="optimizer"))
        self._end_iteration(Iteration.STEP)

    def _called(self) -> None:
        """Before the call of a root module: an iteration of the loop, if gradients are off. Otherwise a backward pass may still follow."""
        if not torch.is_grad_enabled():
            self._end_iteration(Iteration.CALL)

    def _end_iteration(self, kind: Iteration) -> None:
        """The loop has made an iteration: operations that lie far enough back may be judged."""
        with self.lock, without_modes(), torch.no_grad():
            self.observation.scaling, self.observation.steps = self.scales.events, self.scalers.taken
            if self.window.iterated(kind):
                self.lines.forget()

    def gradient(self, name: str, parameter: torch.Tensor) -> None:
        """Records the value of a parameter's gradient after it has been accumulated."""
        number = self.tracker.identity(parameter)
        self.observation.with_gradient.add(number)
        held = self.memory.find(local(parameter)) if addressable(local(parameter)) else None
        maker, steps = None if held is None else held.value.maker, 0
        while maker is not None and steps < _ANCESTRY:  # the parameters that this one was cast, cloned or sharded from
            self.observation.with_gradient.add(maker.parameter)
            maker, steps = maker.inputs[0].maker if maker.inputs else None, steps + 1
        with without_modes(), torch.no_grad():
            self.updates.gradient(parameter, name, self.observation.seen)
        gradient = parameter.grad
        mine = None if gradient is None else local(gradient)
        if mine is not None and addressable(mine):
            cell = self.memory.find(mine)
            self.exponents.gradient(name, self.tracker.step, mine, number)
            if cell is not None:
                value = partial_writes.found(cell, mine)[0]
                self.observation.keep_gradient(number, name, value, self.tracker.scale)
                self.backwards.gradient(name, value, mine)
                self.losses.undefined.gradient(name, value, mine, self.tracker.step)

    def record(self, operation: Operation) -> None:
        """Keeps an operation, and fills its row in the table."""
        self.observation.add(operation)
        self.observation.tabulate(operation)
        self.window.grew()

    def finish(self) -> Observation:
        """At the end of the block: completes the observation and marks the values that are still alive."""
        self.codes.finish()
        self.delayed_scales.finish()
        self.updates.finish(self.observation, self.tracker.parameter_names)
        self.observation.unchanged_products = self.accumulation.decayed_weights.unchanged
        for cell in (kept := self.memory.alive()):
            for value in partial_writes.present(cell):
                value.alive = True
        self.losses.undefined.results(kept)
        self.memory.cells.clear()
        self.observation.scaling, self.observation.steps = self.scales.events, self.scalers.taken
        self.observation.parameters, self.observation.trainable = dict(self.tracker.parameter_names), self.tracker.trainable()
        self.tracker.identity.forget()
        self.observation.losses, self.observation.each_loss = self.losses.finish(), self.losses.each
        self.observation.undefined = self.losses.undefined.first
        self.observation.exponents, self.observation.mixed = self.exponents.histograms(), self.backwards.mixed
        return self.observation
