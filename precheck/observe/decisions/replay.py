"""The mode of a reference run: it takes over another run's decisions and random draws, and counts the decisions that it would have made otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

from precheck import ops
from precheck.observe.decisions.log import (
    DecisionLog,
    Key,
    Places,
    aten,
    count_flips,
    decides,
    discrete,
    gradient_mask,
    outputs_of,
)
from precheck.observe.decisions.marks import replaced
from precheck.observe.decisions.modes import DecisionMode
from precheck.observe.decisions.natures import Nature, nature
from precheck.observe.decisions.op_sequence import Program
from precheck.observe.exact import WIDE
from precheck.observe.listeners import Progress
from precheck.observe.recording.module_hooks import LOW, Position
from precheck.observe.shadow.places.source import Frames
from precheck.observe.shadow.replaying.attention import without_rows
from precheck.observe.shadow.replaying.replay import OpCall, chosen, plan
from precheck.torch_internals import in_backward, schema
from precheck.torch_support.dense_parts import composed, continuous

HALVES = {**dict.fromkeys(LOW, torch.float32), torch.complex32: torch.complex64}
LOWER = {torch.float32: HALVES, torch.float64: {**dict.fromkeys((*LOW, torch.float32), torch.float64), **dict.fromkeys(WIDE, torch.complex128)}}
"""For each format of a reference run: the lower formats that code may name, and what they become."""


class DecisionReplay(DecisionMode):
    """Runs a reference in `dtype`, also where the code names a lower dtype, and takes its decisions from a log.

    A cast or factory with a lower dtype in the user's code is changed to `dtype`, so that the reference does not round there. `disturb` adds noise to
    results that the recorded run stored low. `read` rounds inputs of the run for ops that read them cast low.

    The decisions that this run would have made itself go to `own`, and are compared with `compared_with` (by default the log it follows).
    `flips` holds the differing and all forward decisions, by module call and op.
    """

    def __init__(
        self,
        log: DecisionLog,
        position: Position,
        dtype: torch.dtype,
        *,
        disturb: Callable[[torch.Tensor], None] | None = None,
        read: Callable[[torch.Tensor], torch.Tensor] | None = None,
        own: DecisionLog | None = None,
        compared_with: DecisionLog | None = None,
        program: Program | None = None,
    ) -> None:
        super().__init__()
        self.log, self.places, self.dtype = log, Places(position), dtype
        self.results, self.attended, self.disturb = Places(position), Places(position), disturb
        self.read = read if log.entered else None
        self.disturbs = disturb is not None or self.read is not None
        self.program = program
        self.own, self.compared_with = own, compared_with if compared_with is not None else log
        self.lower = LOWER[dtype]
        self.flips: dict[str, tuple[int, int]] = {}
        self.frames, self.progress = Frames(), Progress()
        self.met: set[str] = set()  # passes ("forward", "backward") in which it has seen ops
        self.busy: set[str] = set()  # passes in which it had something to do

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        self.progress.op()
        kwargs = kwargs or {}
        if self.rests:
            return func(*args, **kwargs)
        kind, backward = nature(func), in_backward()
        if self.program is not None:
            self.program.took(kind.name, args, kwargs, backward)
        place = "backward" if backward else "forward"
        self.met.add(place)
        lowered = self._lower(args) or (bool(kwargs) and self._lower(kwargs.values()))
        if lowered:
            self.busy.add(place)
            if kind.casts and self.log.meant:
                meant = self._meant(func, args, kwargs)
                if meant is not None:
                    return meant
            args, kwargs = self._lifted(func, args, kwargs)
        if kind.view:
            return func(*args, **kwargs)
        if kind.masked:
            self.busy.add(place)
            return self._masked(func, kind, args, kwargs, backward)
        if kind.attends and self.log.unseeing:
            rows = self.log.unseeing.get(self.attended.key(kind, tuple(args[0].shape), backward))
            if rows is not None:
                _, _, args, kwargs = without_rows(OpCall(func, plan(func), args, kwargs), rows)
        result = func(*args, **kwargs)
        outputs = outputs_of(result)
        if not outputs:
            return result
        if self.disturbs and not kind.moves and continuous(outputs[0]):
            result, outputs = self._disturbed(func, kind, args, kwargs, result, outputs, backward)
        if not (kind.draws or decides(kind, args, outputs)):
            return result
        self.busy.add(place)
        key = self.places.key(kind, tuple(outputs[0].shape), backward)
        recorded = self.log.entries.get(key)
        if not kind.draws:
            self._decided(kind, key, outputs)
        if recorded is None or [r is None or r.shape == o.shape for r, o in zip(recorded, outputs, strict=False)].count(False):
            return result
        return self._followed(func, args, kwargs, result, outputs, recorded)

    def _masked(self, func: Any, kind: Nature, args: tuple[Any, ...], kwargs: dict[str, Any], backward: bool) -> Any:
        """The gradient of an op with a mask, such as a ReLU's, under the mask of the run that is followed."""
        recorded = self.log.entries.get(self.places.key(kind, tuple(gradient_mask(func, args).shape), backward))
        if recorded is None or recorded[0] is None:
            return func(*args, **kwargs)
        return torch.where(recorded[0], args[0], torch.zeros_like(args[0]))  # multiplying by the mask would turn Inf into NaN

    def during(self, place: str) -> contextlib.AbstractContextManager[None]:
        """Inside a forward or backward pass, the mode is off if an earlier run of the same ops had nothing to do there."""
        needless = (self.dtype, place) in self.log.idle and not self.disturbs and self.program is None
        return self.aside() if needless else contextlib.nullcontext()

    def ended(self) -> None:
        """After the last step: notes the passes in which there was nothing to do."""
        self.log.idle |= {(self.dtype, place) for place in self.met - self.busy}

    def _lower(self, values: Iterable[Any]) -> bool:
        """Whether an op's arguments contain a lower dtype, or a tensor of one."""
        lower = self.lower
        for value in values:
            if isinstance(value, torch.Tensor):
                if value.dtype in lower:
                    return True
            elif isinstance(value, torch.dtype):
                if value in lower:
                    return True
            elif isinstance(value, (list, tuple)) and self._lower(value):
                return True
        return False

    def _disturbed(
        self, func: Any, kind: Nature, args: Any, kwargs: dict[str, Any], result: Any, outputs: list[torch.Tensor], backward: bool
    ) -> tuple[Any, list[torch.Tensor]]:
        """The result with noise where the recorded run rounded."""
        key = self.results.key(kind, tuple(outputs[0].shape), backward)
        if self.read is not None and key in self.log.entered:
            args = replaced(args, self.log.entered[key], self.read)
            result = func(*args, **kwargs)
            outputs = outputs_of(result)
        if self.disturb is not None:
            if key in self.log.narrowed:
                result, outputs = self._on_rounded(func, args, kwargs, self.log.narrowed[key])
            if key in self.log.rounded:
                self.disturb(outputs[0])
        return result, outputs

    def _on_rounded(self, func: Any, args: Any, kwargs: dict[str, Any], places: tuple[int, ...]) -> tuple[Any, list[torch.Tensor]]:
        """The op's result with noise on the arguments at these places, which are gradients that the recorded run had cast low."""
        assert self.disturb is not None
        args = list(args)
        for place in places:
            if place < len(args) and isinstance(args[place], torch.Tensor):
                args[place] = args[place].clone()
                self.disturb(args[place])
        result = func(*args, **kwargs)
        return result, outputs_of(result)

    def _meant(self, func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor | None:
        """The rounded result of a cast that is one half of a deliberate round trip, in this run's dtype. None for any other cast."""
        trip = self.frames.line(1)[0], tuple(args[0].shape), kwargs.get("dtype")
        if trip not in self.log.meant:
            return None
        self.log.kept.add(trip)
        low: torch.Tensor = func(*args, **kwargs)
        return low.to(self.dtype)

    def _followed(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any, outputs: list[torch.Tensor], recorded: Any) -> Any:
        if func.overloadpacket is aten.native_dropout and recorded[1] is not None:
            outputs[1].copy_(recorded[1])
            scale = 1 / (1 - args[1]) if args[1] < 1 else 0.0
            outputs[0].copy_(args[0] * recorded[1] * scale)
            return result
        indices = next((r for r in recorded if r is not None and r.dtype == torch.int64), None)
        for own, taken in zip(outputs, recorded, strict=False):
            if taken is not None:
                own.copy_(taken)
            elif indices is not None and func.overloadpacket.__name__ not in ops.ORDERED:
                values = chosen(OpCall(func, plan(func), args, kwargs), args[0], own, indices)  # this run's, in the places of the other's
                if values is not None:
                    own.copy_(values)
        return result

    def _decided(self, kind: Nature, key: Key, outputs: list[torch.Tensor]) -> None:
        """Counts the decisions of this op that differ from those of `compared_with`. Backward kernels repeat decisions of the forward pass,
        and do not count."""
        if key[0] == "backward":
            return
        if self.own is not None:
            self.own.entries[key] = discrete(kind, outputs)
        count_flips(self.flips, key, outputs, self.compared_with.entries.get(key, ()))

    def _lifted(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        kwargs = {name: self.lower.get(value, value) if isinstance(value, torch.dtype) else value for name, value in kwargs.items()}
        args = tuple(self.lower.get(arg, arg) if isinstance(arg, torch.dtype) else arg for arg in args)
        if func.is_view or schema(func).is_mutable:
            return args, kwargs
        return tuple(self._raised(arg) for arg in args), {name: self._raised(value) for name, value in kwargs.items()}

    def _raised(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype in self.lower and not composed(value):
            return value.to(self.lower[value.dtype])
        if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
            return [self._raised(item) for item in value]
        return value
