"""Records the decisions and random draws of one run, so that another run can follow them.

Examples are a router's top-k, a max-pool's winner, a ReLU's mask, an argmax. If the low run decides otherwise than float32 would, all later
results differ by much more than rounding, and neither run is wrong. So the reference follows the decisions of the run that it is compared with,
and counts those that it would have made otherwise. It also follows random draws, since `randn` draws other numbers in bfloat16 than in float32.

Types tell what a decision is. An op that turns floating tensors into integers or booleans decides (comparisons, top-k, argmax, sort, bucketize,
casts to int). So do step functions with floating results.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence, Set
from typing import Any

import torch

from precheck.observe.containers import tensors
from precheck.observe.decisions.marks import Marked, Path, arguments
from precheck.observe.decisions.modes import DecisionMode
from precheck.observe.decisions.natures import Nature, nature
from precheck.observe.decisions.op_sequence import Program
from precheck.observe.kernel_fixes import Dropout, substitute
from precheck.observe.recording.module_hooks import LOW, Position
from precheck.observe.shadow.memory.stable_ids import is_parameter
from precheck.observe.shadow.memory.storages import Storages
from precheck.observe.shadow.places.source import Frames
from precheck.observe.shadow.replaying.attention import unseeing_rows
from precheck.observe.shadow.replaying.replay import OpCall, plan, tensors_in
from precheck.torch_internals import backward_node, in_backward, next_sequence_number, sequence_number, storage_key
from precheck.torch_support import cuda_blocks
from precheck.torch_support.dense_parts import continuous

aten = torch.ops.aten
Key = tuple[str, str, tuple[int, ...], int]
Trip = tuple[str, tuple[int, ...], torch.dtype]
"""A cast to a low format and back on one line: the line, the shape and the format."""


@dataclasses.dataclass(slots=True)
class DecisionLog:
    """The decisions of a run, keyed by module call, op, shape, and a count of repetitions."""

    entries: dict[Key, tuple[torch.Tensor | None, ...]] = dataclasses.field(default_factory=dict)
    rounded: set[Key] = dataclasses.field(default_factory=set)  # ops whose results the run stored in a low format
    drawn: set[Key] = dataclasses.field(default_factory=set)  # entries that are random draws
    meant: set[Trip] = dataclasses.field(default_factory=set)  # deliberate round trips, `x.half().float()`
    kept: set[Trip] = dataclasses.field(default_factory=set)  # those of `meant` that a float32 run has made too
    imposed: frozenset[str] = frozenset()  # lines of round trips that float32 does not make: the precision asks for them, and nobody means them
    narrowed: dict[Key, tuple[int, ...]] = dataclasses.field(default_factory=dict)  # places of arguments of backward ops that are gradients cast low
    entered: dict[Key, tuple[Path, ...]] = dataclasses.field(default_factory=dict)  # paths of arguments of products that are inputs cast low
    unseeing: dict[Key, torch.Tensor] = dataclasses.field(default_factory=dict)  # of calls of attention, the rows that see nothing
    recorded: bool = False  # whether a run has filled it
    failed: int = 0  # the later step whose loss is not finite
    idle: set[tuple[torch.dtype, str]] = dataclasses.field(default_factory=set)  # dtype and pass in which a following run had nothing to do

    def draws(self, places: Set[str] = frozenset()) -> DecisionLog:
        """A log with the random draws only, for a run that makes its own decisions, except at these places (`place_of`)."""
        followed = {key for key in self.entries if place_of(key) in places} if places else set()
        return dataclasses.replace(self, entries={key: self.entries[key] for key in self.drawn | followed})


def place_of(key: Key) -> str:
    """The place of a decision, by which flips are counted: the module call and the op."""
    return f"{key[0]}|{key[1]}"


def count_flips(flips: dict[str, tuple[int, int]], key: Key, mine: Sequence[torch.Tensor | None], other: Sequence[torch.Tensor | None]) -> None:
    """Adds to `flips`, by place, how many of one op's decisions differ between two runs, and how many there are."""
    for one, two in zip(mine, other, strict=False):
        if one is not None and two is not None and two.shape == one.shape:
            flipped, total = flips.get(place_of(key), (0, 0))
            flips[place_of(key)] = flipped + int((one != two.to(one.dtype)).sum()), total + one.numel()


class Places:
    """Gives each op of a run a key that the same op of another run gets too."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self.seen: Counter[tuple[Any, ...]] = Counter()

    def key(self, kind: Nature, shape: tuple[int, ...], backward: bool) -> Key:
        place = ("backward" if backward else self.position.call, kind.name, shape)
        number = self.seen[place] = self.seen.get(place, 0) + 1
        return (*place, number)


class Recording(DecisionMode):
    """Fills a log from the low-precision run, and counts the results that each module call rounds to a low format."""

    def __init__(self, log: DecisionLog, position: Position, program: Program | None = None) -> None:
        super().__init__()
        self.log, self.places, self.position = log, Places(position), position
        self.results, self.attended = Places(position), Places(position)
        self.program = program
        log.recorded = True
        self.frames = Frames()
        self.dropout = Dropout(self.frames)
        self.casts: Storages[str] = Storages()  # tensors cast low, and the line
        self.narrow = Marked()  # gradients cast low
        self.own, self.nodes = Marked(), set[int]()  # low by casts where autocast is off; their readers by sequence number
        self.given, self.entered = Marked(), Marked()  # the model's inputs, also moved by views and copies; inputs cast low
        self.decided: Key | None = None  # of the last op, if it has decided or drawn something

    def marked(self) -> Callable[[], None]:
        """Returns a function that resets the numbering of ops to its present state, for a step that is run again."""
        marks = [(places, places.seen.copy()) for places in (self.places, self.results, self.attended)]
        taken = None if self.program is None else self.program.steps.copy()

        def back() -> None:
            for places, seen in marks:
                places.seen = seen.copy()
            if self.program is not None and taken is not None:
                self.program.steps = taken.copy()

        return back

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an op and records it. Another mode may call this for each op. Then this mode need not be entered."""
        kind, backward, self.decided = nature(func), in_backward(), None
        if self.program is not None and not self.rests:
            self.program.took(kind.name, args, kwargs, backward)
        if kind.view or self.rests:
            return func(*args, **kwargs)
        mask = gradient_mask(func, args) if kind.masked else None
        run = substitute if kind.substituted else None if not kind.drops else self.dropout.run
        result = func(*args, **kwargs) if run is None else run(func, args, kwargs)
        outputs = outputs_of(result)
        if not outputs:
            return result
        if kind.attends:
            self._unseeing(kind, OpCall(func, plan(func), args, kwargs), backward)
        if mask is not None:
            self.log.entries[self.places.key(kind, tuple(mask.shape), backward)] = (mask,)
        elif kind.draws or decides(kind, args, outputs):
            key = self.decided = self.places.key(kind, tuple(outputs[0].shape), backward)
            self.log.entries[key] = discrete(kind, outputs)
            if kind.draws:
                self.log.drawn.add(key)
        if self.own.entries:
            self._own(args, outputs[0])
        if not kind.moves and continuous(outputs[0]):
            self._count(kind, args, outputs[0], backward)
            if kind.casts and isinstance(args[0], torch.Tensor) and not backward:  # `vmap` hands on a Python number as it is
                self._cast(args[0], outputs[0])
        if kind.moves or kind.casts:
            if backward and args and isinstance(args[0], torch.Tensor):
                self._narrow(args[0], outputs[0])
            if self.given.entries and continuous(outputs[0]):
                self._enter(args, outputs)
        return result

    def _unseeing(self, kind: Nature, call: OpCall, backward: bool) -> None:
        key, rows = self.attended.key(kind, tuple(call.args[0].shape), backward), unseeing_rows(call)
        if rows is not None:
            self.log.unseeing[key] = rows

    def gives(self, inputs: Any) -> None:
        """Notes the inputs of a call of the model."""
        for _, tensor in tensors(inputs):
            if continuous(tensor) and tensor.dtype not in LOW:
                self.given.add(tensor)

    def _enter(self, args: Any, outputs: list[torch.Tensor]) -> None:
        """Follows an input that is moved, or cast to a low format. As with gradients, the noise goes to the op that reads the cast.

        Only products get noise: autocast would cast for them too. Other ops, such as a difference or a sine, read a low input
        because the user's code says so.
        """
        sources = [tensor for _, tensor in arguments(args)]
        entered = any(tensor in self.entered for tensor in sources)
        given = not entered and any(tensor in self.given for tensor in sources)
        for output in outputs if entered or given else ():
            (self.entered if entered or output.dtype in LOW else self.given).add(output)

    def _narrow(self, source: torch.Tensor, output: torch.Tensor) -> None:
        """Follows a gradient that is cast to a low format. The reference has no such cast, so the noise goes to the op that reads it."""
        lowered = output.dtype in LOW and source.dtype not in LOW and output not in self.own
        if lowered or source in self.narrow:
            self.narrow.add(output)

    def _own(self, args: Any, output: torch.Tensor) -> None:
        """Follows numbers that are low only since the author has cast them where autocast is turned off, and the gradients that autograd casts low
        for them. The precision asks for neither, so noise explains nothing of what the roundings of these gradients do."""
        low = [tensor in self.own for _, tensor in arguments(args) if tensor.dtype in LOW]
        if in_backward():
            node = backward_node()
            if output.dtype in LOW and (all(low) if low else node is not None and sequence_number(node) in self.nodes):
                self.own.add(output)
        elif low and all(low):
            if torch.is_grad_enabled():  # autograd has just made this op's node
                self.nodes.add(next_sequence_number() - 1)
            if output.dtype in LOW:
                self.own.add(output)

    def _cast(self, source: torch.Tensor, output: torch.Tensor) -> None:
        """Notes a cast to a low format and back on one line. The program rounds there on purpose, in any precision."""
        if output.dtype in LOW and source.dtype not in LOW and output.layout is torch.strided:
            self.casts.put(output, self.frames.line(1)[0])
            if cuda_blocks.left():
                self.own.add(output)
        elif source.dtype in LOW and output.dtype not in LOW and source.layout is torch.strided:
            line = self.casts.get(source)
            if line is not None and line == self.frames.line(1)[0] and line not in self.log.imposed and not _no_data(source):
                self.log.meant.add((line, tuple(source.shape), source.dtype))

    def _count(self, kind: Nature, args: Any, output: torch.Tensor, backward: bool) -> None:
        key = self.results.key(kind, tuple(output.shape), backward)
        roundings = _roundings(kind, args, output) if output.dtype in LOW else 0
        if self.narrow.entries and not kind.mutable and not kind.casts and backward:
            places = tuple(place for place, arg in enumerate(args) if arg in self.narrow)
            if places:
                self.log.narrowed[key] = places
        if kind.multiplies and self.entered.entries:
            paths = tuple(path for path, tensor in arguments(args) if tensor in self.entered)
            if paths:
                self.log.entered[key] = paths
        if roundings and not (backward and output in self.own):
            self.log.rounded.add(key)
            if not backward:
                self.position.count(roundings)


def _no_data(low: torch.Tensor) -> bool:
    """Whether it holds whole numbers beyond those that the format can represent one by one, or only numbers below its smallest normal one. Nobody
    rounds these on purpose: the former are positions, and the latter have fewer bits than the format has, or become zero. In a format of eight bits
    they are codes, which the rules on quantisers judge."""
    if not low.numel():
        return False
    limits, largest = torch.finfo(low.dtype), float(low.float().abs().amax())
    positions = low.numel() > 1 and largest > 2 / limits.eps and bool((low == low.round()).all())
    return positions or (limits.bits > 8 and largest < limits.smallest_normal)


def outputs_of(result: Any) -> list[torch.Tensor]:
    """The tensors among an op's results. A ragged one has no shape, and is left out."""
    if isinstance(result, torch.Tensor):
        return [] if result.is_nested else [result]
    return [item for item in result if isinstance(item, torch.Tensor)] if isinstance(result, (tuple, list)) else []


def _floats(args: Any) -> bool:
    return any(tensor.is_floating_point() for tensor in tensors_in(*args))


def decides(kind: Nature, args: Any, outputs: list[torch.Tensor]) -> bool:
    if kind.steps:
        return _floats(args)
    if kind.workspace or all(map(continuous, outputs)):
        return False
    return any(not continuous(output) and output.numel() for output in outputs) and _floats(args)


def discrete(kind: Nature, outputs: list[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
    """Copies of an op's decisions: all results of a draw or a step function, else only those that are not floating."""
    whole = kind.draws or kind.steps
    return tuple(o.clone() if whole or not continuous(o) else None for o in outputs)


def gradient_mask(func: Any, args: Any) -> torch.Tensor:
    """A mask of the elements that a kernel of `ops.MASKED_SIDES` lets through."""
    values = args[1]
    if func.overloadpacket is aten.threshold_backward:
        return torch.as_tensor(values > args[2])
    if func.overloadpacket is aten.hardtanh_backward:
        return torch.as_tensor((values > args[2]) & (values < args[3]))
    return torch.as_tensor(values.abs() > args[2])


def _roundings(kind: Nature, args: Any, output: torch.Tensor) -> int:
    """How many roundings with unit gain a result has: one, or one for each time step of a recurrent kernel.
    The cast of a weight has none, since its noise is added to the weight. Neither has a view.
    """
    if args and is_parameter(args[0]):
        return 0
    if not kind.mutable and _shares_storage(args, output):
        return 0  # shares storage without being declared a view: _unsafe_view, unsafe_split
    return int(args[0].shape[0]) if kind.recurrent else 1


def _shares_storage(args: Any, output: torch.Tensor) -> bool:
    """Whether some argument has the storage and the dtype of the output."""
    alike = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.dtype is output.dtype and arg.layout is torch.strided]
    return bool(alike) and output.layout is torch.strided and storage_key(output) in map(storage_key, alike)
