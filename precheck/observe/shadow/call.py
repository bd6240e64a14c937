"""One op of a watched run: finds its inputs' shadows, replays it on them, compares the two results, and writes down an `Operation`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from precheck import ops
from precheck.observe.shadow.comparing import measuring
from precheck.observe.shadow.comparing.statistics import compare
from precheck.observe.shadow.memory.cells import Cell
from precheck.observe.shadow.memory.stable_ids import is_parameter
from precheck.observe.shadow.memory.storages import whole
from precheck.observe.shadow.operations import Operation, Value
from precheck.observe.shadow.probes import casts, draws, flips, masks, partial_writes, perturbation
from precheck.observe.shadow.replaying.replay import OpCall, addressable, tensors_in, with_written
from precheck.torch_internals import backward_node, in_backward, nesting, storage_key
from precheck.torch_support import cuda_blocks
from precheck.torch_support.dense_parts import continuous

if TYPE_CHECKING:
    from precheck.observe.shadow.mode import Shadow
    from precheck.observe.shadow.probes.accumulation import Samples
    from precheck.observe.shadow.replaying.function_replay import Called

EPSILONS = {torch.finfo(dtype).eps for dtype in (torch.bfloat16, torch.float16)}


class Call:
    """One op of the run with its replay. `prepare` comes before the op, `finish` after it."""

    __slots__ = (
        "args", "before", "before_scatter", "called", "cells", "failure", "floats", "inputs", "mode", "op", "operation", "places", "plan", "results",
        "shadows", "written",
    )  # fmt: skip

    def __init__(self, mode: Shadow, op: OpCall, floats: list[torch.Tensor], cells: list[Cell | None], places: list[tuple[int, int]]) -> None:
        self.mode, self.op, self.plan, self.args = mode, op, op.plan, op.args
        self.floats, self.cells, self.places = floats, cells, places  # operands, their cells, and their storages as `located`
        self.inputs: tuple[Value, ...] = ()
        self.written: list[torch.Tensor] = []
        self.shadows: dict[int, torch.Tensor] = {}
        self.before: dict[int, Samples] | None = None
        self.before_scatter: dict[int, torch.Tensor] = {}  # copies of what it is about to add to, by the tensor's id
        self.failure = ""  # why the shadow cannot follow; empty if it can
        self.called: Called | None = None  # the call of a user's autograd function that it belongs to
        self.results: list[torch.Tensor] = []  # its outputs and what it has written

    def prepare(self) -> None:
        """Before the op runs: finds its inputs' values and shadows. Never raises, since the user's op has to run."""
        try:
            self._read()
        except Exception as error:
            self._lose(error)
            self.operation, self.before = self.described(), None

    def finish(self, result: Any) -> None:
        """After the op has run: replays it and compares the results. Never raises."""
        if not self.failure:
            try:
                self._follow(result)
            except Exception as error:
                self._lose(error)
        if self.failure:  # the shadow starts again from the run's results
            self.operation.opaque = self.failure
            self.store(self._outputs(result), None, None)
            self.mode.record(self.operation)

    def _lose(self, error: Exception) -> None:
        self.failure = f"{type(error).__name__}: {error}".splitlines()[0][:200]

    def _read(self) -> None:
        mode, planned, memory, shadows = self.mode, self.plan, self.mode.memory, self.shadows
        if planned.mutable:
            self.written = list(filter(addressable, self.op.written()))
        written = {id(tensor) for tensor in self.written}
        inputs = []
        for place, tensor in enumerate(self.floats):
            key, cell = id(tensor), self.cells[place]
            if cell is None:
                cell = self.cells[place] = memory.at(self.places[place], tensor)  # an earlier operand on the same storage may have made it
            if cell is None:
                if key in written or tensor.dtype in mode.low:
                    cell = self.cells[place] = self._given(tensor)
                else:
                    if is_parameter(tensor):
                        mode.tracker.saw(tensor)
                    inputs.append(measuring.outside(tensor))
                    shadows[key] = tensor
                    continue
            if key in written:
                cell.own()
            if is_parameter(tensor):
                cell.parameter = mode.tracker.identity(tensor)
                mode.tracker.saw(tensor)
            if cell.parts is None:
                inputs.append(cell.value)
            else:
                inputs.append(partial_writes.read(self, cell, tensor, key in written and planned.base in ops.OVERWRITING))
            shadows[key] = (memory.written_view if key in written else memory.view)(cell, tensor)
        self.inputs = tuple(inputs)
        self.operation = self.described()
        if self.written and mode.any_perturbed and any(cell is not None and cell.perturbed is not None for cell in self.cells):
            for tensor, cell in zip(self.floats, self.cells, strict=True):
                if cell is not None and id(tensor) in written and cell.perturbed is None:
                    cell.perturbed = cell.flat.clone()
        self.before = mode.accumulation.before(self.operation, planned, self.floats, self.cells, written) if written else {}
        if written:
            self.before_scatter = measuring.copies_before_scatter(self)
        if mode.stale_casts.made:
            mode.stale_casts.read(self)

    def _given(self, tensor: torch.Tensor) -> Cell:
        """A new cell for a tensor from outside the block."""
        mode, wide = self.mode, self.mode.replay.wide(tensor.dtype)
        cell: Cell = mode.memory.seed(tensor, wide.to_real() if wide.is_complex else wide, measuring.outside(tensor, mode.low))
        cell.parameter = mode.tracker.identity.owner(tensor)
        return cell

    def described(self) -> Operation:
        mode, tracker = self.mode, self.mode.tracker
        backward, derived, line, module, caller, site = mode.lines.locate(tracker.module, depth=5)
        if not backward and in_backward() and backward_node() is None:
            backward = derived = True  # a callback at the end of the backward pass, as DDP and FSDP queue
        phase = tracker.phase(backward)
        numbers = (int, float) if self.plan.base == "pow" else float  # an integer exponent matters as much as a float
        given = (*self.args, *self.op.kwargs.values()) if self.op.kwargs else self.args
        scalars = tuple([float(value) for value in given if isinstance(value, numbers)])
        casts = self.plan.packet == "_to_copy"
        converts, policy = mode.lines.frames.casting(4) if casts else ("", "")
        return Operation(
            mode.observation.seen, self.plan.name, phase, module, line, tracker.step, self.inputs, (), scalars, self.plan.mutable,
            tracker.optimizing > 0, scale=tracker.scale if backward else 1.0, parameter=self._parameter(), recording=torch.is_grad_enabled(),
            derived=derived, caller=caller, site=site, converts=converts, policy=policy, plain=phase == "forward" and tracker.plain,
            instruction=mode.lines.frames.instruction(4) if casts or (self.plan.base in ops.ADDITIONS and not derived) else 0,
            mixed=len(self.floats) > 1 and len({tensor.dtype for tensor in self.floats if tensor.dim()}) > 1,
            autocast=nesting() > mode.autocasts, autocast_left=cuda_blocks.left(),
        )  # fmt: skip

    def _parameter(self) -> int:
        for tensor in self.floats:
            if is_parameter(tensor):
                return int(self.mode.tracker.identity(tensor))
        return next((cell.parameter for cell in self.cells if cell is not None and cell.parameter), 0)

    def _follow(self, result: Any) -> None:
        """Replays the op in the reference precision, compares both results and records the operation."""
        mode, planned, operation = self.mode, self.plan, self.operation
        if planned.packet == "_local_scalar_dense":
            operation.reads = 1
            mode.observation.followed += not any(value.maker is not None and value.maker.packet.startswith("_amp_") for value in self.inputs)
            mode.record(operation)
            return
        outputs = self._outputs(result)
        if not self.written and outputs and all(map(self._is_alias, outputs)):
            return  # a view that the op's schema does not declare
        if not any(map(continuous, outputs)):
            flips.after_discrete_op(self, outputs)
            if outputs and operation.phase != "backward":  # which decides nothing anew
                flips.follows(self, outputs)
            mode.record(operation)
            return
        copies = planned.packet in ops.WHOLE_COPIES and bool(self.floats)
        if not (copies and (casts.rounds_on_purpose(self, outputs[0]) or casts.shares_shadow(self, outputs[0]))):
            shadows = self._replayed(outputs)
            seconds = perturbation.replayed(self, outputs) if shadows is not None and mode.any_perturbed else None
            self.store(outputs, shadows, seconds)
        if planned.base == "mul" and outputs:
            masks.count_unmasked(self, outputs[0])
            if self.written and operation.scalars:
                mode.accumulation.decayed_weights.multiplied(self)
        if planned.packet == "_to_copy" and self.floats:
            mode.stale_casts.cast(self, outputs[0])
        mode.record(operation)

    def _outputs(self, result: Any) -> list[torch.Tensor]:
        outputs = [result] if type(result) is torch.Tensor else list(tensors_in(result))
        self.results = with_written(outputs, self.written) if self.plan.mutable else outputs
        return self.results

    def _is_alias(self, output: torch.Tensor) -> bool:
        return addressable(output) and storage_key(output) in [place[0] for place in self.places]

    def _replayed(self, outputs: list[torch.Tensor]) -> list[torch.Tensor] | None:
        mode, planned = self.mode, self.plan
        if planned.base in ops.PACKED:
            self.operation.opaque = "the kernel packs its weights and workspace in a form of its own"
            return None
        if not planned.known:
            self.operation.opaque = "an op of another library runs once only"
            return None
        if planned.steps:
            if self.operation.phase != "backward":
                flips.follows(self, outputs)
            flips.count_flips(self, outputs)
            if planned.base in ops.COUNTS:
                return [measuring.exact(self)]  # the run chooses the bins; what each bin sums is computed exactly
            return flips.where_finite(self, outputs)
        if planned.tagged and self.op.draws():
            return self._same_draw(outputs)
        op, change, wide = self.reference_op(), self.shadow_of, mode.replay.reference
        if not self.floats and outputs[0].dtype in mode.low and op.argument("dtype") is None:  # torch's default dtype decides, and here the reference
            op = op._replace(kwargs={**op.kwargs, "dtype": wide}) if "dtype" in planned.names else op
            change = mode.replay.counted
        shadows = mode.replay.call(op, change)
        if len(shadows) < len(outputs) and "attention" not in planned.packet:
            raise RuntimeError(f"{len(shadows)} results instead of {len(outputs)}")
        flips.follow_run(self, outputs, shadows, self.shadows)
        return shadows

    def reference_op(self) -> OpCall:
        """The op and its arguments, with the reference's eps in place of a low format's: `torch.finfo(x.dtype).eps` depends on the format.

        An eps of float32 is kept, as are those of torch's own optimizers (Adafactor asks for one) and all under a float64 reference.
        """
        tracker, wide = self.mode.tracker, self.mode.replay.reference is torch.float64
        if not self.operation.scalars or wide or self.plan.base not in ops.GUARDS_BELOW or (tracker.optimizing and tracker.shipped):
            return self.op
        lent = [arg for arg in self.args if isinstance(arg, float) and arg in EPSILONS]
        if lent:
            self.operation.own_epsilon = lent[0]
        own = torch.finfo(self.mode.replay.reference).eps
        return self.op._replace(args=tuple(own if isinstance(arg, float) and arg in EPSILONS else arg for arg in self.args))

    def shadow_of(self, tensor: torch.Tensor) -> torch.Tensor:
        shadow: torch.Tensor | None = self.shadows.get(id(tensor))
        if shadow is not None:
            place = ops.SIDES.get(self.plan.base)
            if place is not None and place < len(self.args) and self.args[place] is tensor:
                shadow = flips.on_its_side(self.plan.base, tensor, shadow)
            return shadow
        if tensor.layout is torch.sparse_coo and all(tensor is not each for each in self.args[:1]):
            return tensor.to(self.mode.replay.wide(tensor.dtype))  # a sparse gradient, with the run's numbers
        if not addressable(tensor):
            raise TypeError(f"a {'nested' if tensor.is_nested else tensor.layout} tensor has no shadow")
        if measuring.is_workspace(self, tensor):
            return measuring.workspace(self, tensor)
        return tensor.clone() if self.plan.mutable and any(tensor is written for written in self.written) else tensor

    def _same_draw(self, outputs: list[torch.Tensor]) -> list[torch.Tensor] | None:
        """The shadows of random results. Dropout uses the run's mask. A uniform draw gets a number that rounds to the run's. Others have none."""
        dropped = draws.dropped(self, outputs, self.shadows.get(id(self.floats[0]))) if self.floats else None
        if dropped is not None:
            return dropped
        drawn = draws.refined(self, outputs[0])
        self.mode.observation.followed += drawn is not None
        return None if drawn is None else [drawn]

    def store(self, outputs: list[torch.Tensor], shadows: list[torch.Tensor] | None, seconds: list[torch.Tensor] | None) -> None:
        """Stores the shadows of the outputs, and `seconds` as their perturbed shadows. Without shadows, these start again from the run's numbers."""
        operation, mode = self.operation, self.mode
        values: list[Value] = []
        for place, output in enumerate(outputs):
            if not addressable(output):
                continue
            if not continuous(output):
                if shadows is not None and self.plan.base in ops.PAYLOADS and output.dtype == torch.uint8:
                    mode.memory.entrust(output, shadows[place])
                continue
            shadow = shadows[place] if shadows is not None and place < len(shadows) else None
            perturbed = seconds[place] if seconds is not None and place < len(seconds) else None
            values.append(self._settle(place, output, shadow, perturbed))
        operation.outputs = tuple(values)
        if shadows is None and not operation.opaque and not self.plan.tagged and not self.plan.steps:
            operation.opaque = "not followed"
        if operation.opaque:
            known = mode.observation.opaque
            known[operation.title] = known.get(operation.title, 0) + 1
        if values and shadows is not None:
            mode.accumulation.after(self, outputs, values)

    def _settle(self, place: int, output: torch.Tensor, shadow: torch.Tensor | None, perturbed: torch.Tensor | None) -> Value:
        """Measures one output and stores its shadow in a cell. Returns its value."""
        mode, memory = self.mode, self.mode.memory
        value, written = measuring.fresh(self, output), bool(self.written) and any(output is tensor for tensor in self.written)
        wide = mode.replay.wide(output.dtype)
        if shadow is None and written and not whole(output):
            shadow = output.to(wide, copy=True)  # the rest of the storage keeps its shadow
        if shadow is None:
            if value.low or written or any(value.drift for value in self.inputs):
                value.roundoff = value.roundoff if value.low else 0.0
                memory.seed(output, wide.to_real() if wide.is_complex else wide, value)
            return value
        if shadow.dtype is not wide:
            shadow = shadow.to(wide)
        measuring.measure(self, value, output, shadow, perturbed, place)
        if self.plan.base in ops.SINGULAR:
            draws.note_tail(self, output, shadow)
        if perturbed is None and measuring.suspicious(self.operation, value):
            mode.any_perturbed, perturbed = True, perturbation.from_disturbed_inputs(self, place)
            perturbed = perturbation.disturbed(mode, shadow) if perturbed is None else perturbed
            compare(value, output, shadow, perturbed)
        foreign = [place[0] for place in self.places] + [storage_key(cell.content) for cell in self.cells if cell is not None]
        memory.keep(output, shadow, value, perturbed=perturbed, written=written, foreign=foreign)
        return value
