"""Decisions and random draws of one run, remembered, so that another run can follow them.

A router's top-k, a max-pool's winner, a ReLU's mask, an argmax: where the low-precision run decides otherwise than float32
would, everything after differs by far more than rounding, and neither is wrong. The reference therefore follows the run it
is compared with, and the decisions it would have taken itself are counted. Random draws are followed too, since a bfloat16
`randn` draws other numbers than a float32 one.

What counts as a decision follows from types, not from a list of models: an op that turns floating tensors into integers or
booleans decides (comparisons, top-k, argmax, sort, bucketize, casts to int), and so do the floating step functions below.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from precheck.observe.boundaries import LOW, Position, _in_backward

aten = torch.ops.aten
STEP_FUNCTIONS = {aten.round, aten.floor, aten.ceil, aten.trunc, aten.sign, aten.sgn, aten.heaviside}
MASKED_GRADIENTS = {aten.threshold_backward: 1, aten.hardtanh_backward: 1, aten.hardshrink_backward: 1, aten.softshrink_backward: 1}
"""Backward kernels that let a gradient through by where their second argument lies; the mask is the decision."""
UNROUNDED = {aten.detach, aten.clone, aten.copy_, aten.fill_, aten.zero_, aten.masked_fill, aten.where, aten.cat, aten.stack, aten.gather,
             aten.index_select, aten.embedding, aten.relu, aten.neg, aten.abs, aten.max_pool2d_with_indices, aten.constant_pad_nd,
             aten.zeros_like, aten.ones_like, aten.new_zeros, aten.zeros, aten.ones, aten.full, aten.empty, aten.empty_like, aten.topk,
             aten.sort, aten.index, aten.roll, aten.flip, aten.tril, aten.triu, aten.clamp, aten.amax, aten.amin, aten.repeat}  # fmt: skip
"""Ops that move values or choose among them; their results are as exact as their inputs."""

NARROW_ACCUMULATION = {aten.native_layer_norm_backward, aten.embedding_dense_backward}
"""CPU kernels that sum rows in the low format, where CUDA's accumulate in float32: their error grows with the root of the number
of rows (measured 1.6 to 28 u for layer norm's weight, 88 % for embeddings), on no hardware that the run stands in for."""

Key = tuple[str, str, tuple[int, ...], int]


@dataclasses.dataclass(slots=True)
class Tape:
    """Decisions by place: module call, op, shape, and how often that occurred there before."""

    entries: dict[Key, tuple[torch.Tensor | None, ...]] = dataclasses.field(default_factory=dict)
    rounded: set[Key] = dataclasses.field(default_factory=set)  # ops whose result the run stored in a low format


class _Places:
    def __init__(self, position: Position) -> None:
        self.position = position
        self.seen: Counter[tuple[Any, ...]] = Counter()

    def key(self, func: Any, shape: tuple[int, ...]) -> Key:
        place = ("backward" if _in_backward() else self.position.call, str(func.overloadpacket), shape)
        self.seen[place] += 1
        return (*place, self.seen[place])


class Recording(TorchDispatchMode):
    """Fills a tape from the low-precision run, and counts the results that each module call rounds to a low format."""

    def __init__(self, tape: Tape, position: Position) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape, self.places, self.position = tape, _Places(position), position
        self.results = _Places(position)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        mask = _gradient_mask(func, args)
        result = accumulated_wide(func, args, kwargs) if func.overloadpacket in NARROW_ACCUMULATION else func(*args, **kwargs)
        outputs = _outputs(result)
        if mask is not None:
            self.tape.entries[self.places.key(func, tuple(mask.shape))] = (mask,)
        elif outputs and (_decides(func, args, outputs) or _draws(func)):
            # A draw is a decision of the generator's: all of it is followed. Of a decision only what is discrete.
            kept = tuple(o.clone() if _draws(func) or _steps(func) or not _continuous(o) else None for o in outputs)
            self.tape.entries[self.places.key(func, tuple(outputs[0].shape))] = kept
        if outputs and _continuous(outputs[0]):
            self._count(func, args, outputs[0])
        return result

    def _count(self, func: Any, args: Any, output: torch.Tensor) -> None:
        key = self.results.key(func, tuple(output.shape))
        roundings = _roundings(func, args, output) if output.dtype in LOW else 0
        if roundings:
            self.tape.rounded.add(key)
            if not _in_backward():
                self.position.count(roundings)


class Following(TorchDispatchMode):
    """Takes the decisions of a tape in a reference run, and carries that run out in `dtype` wherever the code says lower.

    A cast or factory that names a lower dtype in the user's own code is lifted to `dtype`: the reference is what the program
    means, without the rounding it asks for. `disturb` is applied to the results that the recorded run stored low.
    """

    def __init__(self, tape: Tape, position: Position, dtype: torch.dtype, *, disturb: Callable[[torch.Tensor], None] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape, self.places, self.dtype = tape, _Places(position), dtype
        self.results, self.disturb = _Places(position), disturb
        self.lower = {torch.float32: LOW, torch.float64: (*LOW, torch.float32)}[dtype]
        self.decisions = self.flips = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        args, kwargs = self._lifted(func, args, kwargs or {})
        mask = _gradient_mask(func, args)
        if mask is not None:
            recorded = self.tape.entries.get(self.places.key(func, tuple(mask.shape)))
            if recorded is not None and recorded[0] is not None:
                self._count(mask, recorded[0])
                return args[0] * recorded[0]
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        outputs = _outputs(result)
        if self.disturb is not None and outputs and _continuous(outputs[0]):
            if self.results.key(func, tuple(outputs[0].shape)) in self.tape.rounded:
                self.disturb(outputs[0])
        if not outputs or not (_decides(func, args, outputs) or _draws(func)):
            return result
        recorded = self.tape.entries.get(self.places.key(func, tuple(outputs[0].shape)))
        if recorded is None or [r is None or r.shape == o.shape for r, o in zip(recorded, outputs, strict=False)].count(False):
            return result
        return self._followed(func, args, kwargs, result, outputs, recorded)

    def _followed(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any, outputs: list[torch.Tensor], recorded: Any) -> Any:
        if not _draws(func):
            for own, taken in zip(outputs, recorded, strict=False):
                if taken is not None:
                    self._count(own, taken)
        if func.overloadpacket is aten.native_dropout and recorded[1] is not None:
            _overwrite(outputs[1], recorded[1])
            scale = 1 / (1 - args[1]) if args[1] < 1 else 0.0
            outputs[0].copy_(args[0] * recorded[1] * scale)
            return result
        chosen = next((r for r in recorded if r is not None and r.dtype == torch.int64), None)
        for own, taken in zip(outputs, recorded, strict=False):
            if taken is not None:
                _overwrite(own, taken)
            elif chosen is not None:
                values = _chosen(func, args, kwargs, own, chosen)
                if values is not None:
                    own.copy_(values)
        return result

    def _count(self, own: torch.Tensor, taken: torch.Tensor) -> None:
        self.decisions += own.numel()
        self.flips += int((own != taken.to(own.dtype)).sum())

    def _lifted(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        kwargs = {name: self.dtype if value in self.lower else value for name, value in kwargs.items() if not isinstance(value, torch.Tensor)} | {
            name: value for name, value in kwargs.items() if isinstance(value, torch.Tensor)
        }
        args = tuple(self.dtype if isinstance(arg, torch.dtype) and arg in self.lower else arg for arg in args)
        if func.is_view or func._schema.is_mutable:
            return args, kwargs
        return tuple(self._raised(arg) for arg in args), {name: self._raised(value) for name, value in kwargs.items()}

    def _raised(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype in self.lower:
            return value.to(self.dtype)
        if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
            return [self._raised(item) for item in value]
        return value


def accumulated_wide(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The kernel on float32 inputs, its results rounded once to the dtype of its first argument."""
    dtype = args[0].dtype
    if dtype not in LOW or args[0].device.type != "cpu":
        return func(*args, **kwargs)
    result = func(*(arg.float() if isinstance(arg, torch.Tensor) and arg.dtype in LOW else arg for arg in args), **kwargs)
    if isinstance(result, torch.Tensor):
        return result.to(dtype)
    return tuple(item.to(dtype) if isinstance(item, torch.Tensor) else item for item in result)


def _outputs(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [item for item in result if isinstance(item, torch.Tensor)] if isinstance(result, (tuple, list)) else []


def _continuous(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _floats(args: Any) -> bool:
    return any(
        isinstance(item, torch.Tensor) and item.is_floating_point()
        for arg in args
        for item in (arg if isinstance(arg, (list, tuple)) else (arg,))
    )


def _steps(func: Any) -> bool:
    return func.overloadpacket in STEP_FUNCTIONS


def _draws(func: Any) -> bool:
    """Attention kernels carry the tag even where they draw nothing; they return floats computed from their inputs."""
    return torch.Tag.nondeterministic_seeded in func.tags and "attention" not in func._schema.name


def _decides(func: Any, args: Any, outputs: list[torch.Tensor]) -> bool:
    if func.is_view or not _floats(args):
        return False
    if _steps(func):
        return True
    name = func._schema.name
    if "attention" in name or "rnn" in name or "empty" in name or name.endswith("_like"):
        return False  # workspaces, seeds and shapes, not decisions
    return any(not _continuous(output) and output.numel() for output in outputs)


def _gradient_mask(func: Any, args: Any) -> torch.Tensor | None:
    if func.overloadpacket not in MASKED_GRADIENTS:
        return None
    values = args[1]
    if func.overloadpacket is aten.threshold_backward:
        return torch.as_tensor(values > args[2])
    if func.overloadpacket is aten.hardtanh_backward:
        return torch.as_tensor((values > args[2]) & (values < args[3]))
    return torch.as_tensor(values.abs() > args[2])


def _overwrite(own: torch.Tensor, taken: torch.Tensor) -> None:
    own.copy_(taken)


def _chosen(func: Any, args: Any, kwargs: dict[str, Any], own: torch.Tensor, indices: torch.Tensor) -> torch.Tensor | None:
    """The reference's values at the low run's indices, for ops that return both."""
    source: torch.Tensor = args[0]
    if "max_pool" in func._schema.name:
        dims = own.dim() - (3 if "3d" in func._schema.name else 2)
        if dims < 1:
            return None
        return source.flatten(dims).gather(-1, indices.flatten(dims)).view_as(own)
    if source.dim() == 0:
        return source.view_as(own)
    dim = _dim(func, args, kwargs)
    if dim is None:
        return None
    kept = indices.dim() == source.dim()
    picked = source.gather(dim, indices if kept else indices.unsqueeze(dim))
    return picked if kept else picked.squeeze(dim)


def _dim(func: Any, args: Any, kwargs: dict[str, Any]) -> int | None:
    """The op's `dim` argument, by its schema; None for an op that has none (max over everything, max-pool)."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dim":
            value = kwargs.get("dim", args[place] if place < len(args) else argument.default_value)
            return None if value is None else int(value)
    return None


def _roundings(func: Any, args: Any, output: torch.Tensor) -> int:
    """How many roundings of unit gain a result has been through: one, or one a time step for a recurrent kernel.

    None for moves and views, and none for the cast of a weight, whose noise is the weight's own.
    """
    if func.is_view or func.overloadpacket in UNROUNDED or (args and isinstance(args[0], torch.nn.Parameter)):
        return 0
    if not func._schema.is_mutable and any(_same_storage(arg, output) for arg in args):
        return 0  # a view in all but name: _unsafe_view, unsafe_split
    if "rnn" in func._schema.name or "lstm" in func._schema.name:
        return int(args[0].shape[0])
    return 1


def _same_storage(value: Any, output: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.untyped_storage()._cdata == output.untyped_storage()._cdata
