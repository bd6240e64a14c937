"""Replays an op of the watched run in the reference precision.

An `OpPlan` holds what an op's schema says, and is made once for each op. An `OpCall` is an op with its arguments. `Replay` repeats a call on other
tensors.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from precheck import ops
from precheck.observe.shadow.replaying import attention
from precheck.torch_internals import NO_DISPATCH, has_kernel, once_an_op, overload, schema
from precheck.torch_support.dense_parts import continuous

LOW = frozenset({torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2})
COLLECTIVES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd"})
RECEIVING = ("output", "tensors")
"""Prefixes of the names of the arguments that collectives write."""
OPENED_LIBRARIES = frozenset({"fsdp"})
"""Libraries whose ops are made of other ops in Python, on any device. FSDP's pack and unpack what is sent."""
FOLLOWED_LIBRARIES = frozenset({"aten", "prims", "torchvision"})
"""Libraries whose ops are pure and accept any floating dtype. Another library's op may count calls, send data, or require bfloat16."""
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
"""Classes of tensors without ops of their own."""
FEW = 64
"""How many units roundings of a few ordinary ops make in the reference: what a product of vectors of some thousand elements is off by."""
_OFF = ("dropout_p", "dropout", "p")
_SPECIAL = frozenset({"found_inf", "half_to_float", "nextafter", "_amp_foreach_non_finite_check_and_unscale_"})
"""Ops and arguments that need special treatment in a replay."""


@dataclasses.dataclass(slots=True)
class OpPlan:
    """What an op's schema says. `written` has the places of the arguments that it writes. `tagged`: it may draw random numbers."""

    name: str  # "mul.Tensor"
    packet: str
    base: str  # its name in the registry of ops: "mul" of "_foreach_mul_"
    passes: bool  # whether it needs no shadow: a view, an alias, an allocation
    known: bool  # whether it may be replayed
    collective: bool  # whether it communicates with other ranks
    composite: bool  # whether it is decomposed into other ops; in inference mode such ops reach the mode whole
    written: tuple[int, ...]
    written_names: tuple[str, ...]
    mutable: bool
    tagged: bool
    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    steps: bool
    typed: bool  # whether it has a dtype argument
    attends: bool  # whether rows that see nothing become zero
    special: bool  # whether its replay needs special treatment


class OpCall(NamedTuple):
    """An op and its arguments, as the run calls it."""

    func: Any
    plan: OpPlan
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def base(self) -> str:
        """The op's name in the registry of ops."""
        return self.plan.base

    def argument(self, name: str) -> Any:
        """The value of the argument of that name; None if the op has none."""
        if name in self.kwargs:
            return self.kwargs[name]
        if name not in self.plan.names:
            return None
        place = self.plan.names.index(name)
        return self.args[place] if place < len(self.args) else self.plan.defaults[place]

    def tensors(self) -> Iterator[torch.Tensor]:
        """The tensors among the arguments, also those in lists."""
        return tensors_in(*self.args, *self.kwargs.values())

    def indices(self) -> Iterator[torch.Tensor]:
        """The tensors among the arguments that say where elements are, as `index` does."""
        return tensors_in(*[arg for name, arg in zip(self.plan.names, self.args, strict=False) if name.startswith(("index", "indices"))])

    def written(self) -> list[torch.Tensor]:
        """The tensors that the call writes into."""
        args, places = self.args, zip(self.plan.written, self.plan.written_names, strict=True)
        return list(tensors_in(*[args[place] if place < len(args) else self.kwargs.get(name) for place, name in places]))

    def draws(self) -> bool:
        """Whether the call draws random numbers. Attention and recurrent kernels are tagged even with dropout off."""
        if not self.plan.tagged:
            return False
        off = (self.argument(name) for name in _OFF)
        if any(isinstance(value, (int, float)) and value == 0 for value in off):
            return False
        return not (self.plan.packet == "native_dropout" and self.argument("train") is False)


@once_an_op
def plan(func: Any) -> OpPlan:
    """The plan of an op."""
    signature = schema(func)
    library, _, packet = signature.name.rpartition("::")
    composite = _has(func, "CompositeImplicitAutograd") and not _has(func, "CPU") and not _has(func, "CUDA")
    written = [place for place, argument in enumerate(signature.arguments) if argument.alias_info is not None and argument.alias_info.is_write]
    base = ops.base_name(packet if library in FOLLOWED_LIBRARIES else signature.name)
    written += ops.HIDDEN_WRITES.get(base, ())
    collective = library in COLLECTIVES
    if collective:  # their schemas do not declare it
        written += [place for place, argument in enumerate(signature.arguments) if argument.name.startswith(RECEIVING)]
    return OpPlan(
        name=f"{packet if library == 'aten' else signature.name}.{overload(func) or 'default'}",
        packet=packet,
        base=base,
        passes=func.is_view or base in ops.FORMS or base in ops.EMPTY or base == "_amp_update_scale",
        written=tuple(written),
        written_names=tuple(signature.arguments[place].name for place in written),
        mutable=bool(signature.is_mutable or base in ops.HIDDEN_WRITES or (collective and written)),
        known=library in FOLLOWED_LIBRARIES,
        collective=collective,
        composite=composite or library in OPENED_LIBRARIES,
        tagged=torch.Tag.nondeterministic_seeded in func.tags,
        names=tuple(argument.name for argument in signature.arguments),
        defaults=tuple(argument.default_value if argument.has_default_value() else None for argument in signature.arguments),
        steps=base in ops.STEPS | ops.COUNTS or (base == "div" and overload(func).endswith("_mode")),
        typed=any("dtype" in argument.name for argument in signature.arguments),
        attends=base in ops.ATTENDING,
        special=packet in attention.REPLAYED or packet in _SPECIAL or any(argument.name in _SPECIAL for argument in signature.arguments),
    )


def _has(func: Any, key: str) -> bool:
    return bool(has_kernel(func.name(), key))


def items_in(*values: Any) -> Iterator[Any]:
    """The items among an op's arguments or results, in order, also those in lists."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from items_in(*value)
        else:
            yield value


def tensors_in(*values: Any) -> Iterator[torch.Tensor]:
    """The tensors among them."""
    return (value for value in items_in(*values) if isinstance(value, torch.Tensor))


def with_items(value: Any, change: Callable[[Any], Any]) -> Any:
    """An argument of an op with `change` applied to it, or to each item if it is a list."""
    return type(value)(with_items(each, change) for each in value) if isinstance(value, (list, tuple)) else change(value)


def floats_in(values: Iterable[Any], found: list[torch.Tensor]) -> list[torch.Tensor]:
    """Appends to `found` the `addressable` real and complex tensors among the values, in order, also those in lists. Returns it."""
    for value in values:
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            if (value.is_floating_point() or value.is_complex()) and value.layout is torch.strided and not value.is_meta and not value.is_nested:
                found.append(value)
        elif kind is list or kind is tuple:
            floats_in(value, found)
        elif isinstance(value, torch.Tensor):
            if continuous(value) and addressable(value):
                found.append(value)
        elif isinstance(value, (list, tuple)):
            floats_in(value, found)
    return found


def addressable(tensor: torch.Tensor) -> bool:
    """Whether sizes and strides locate the tensor's numbers in its storage. False for sparse, nested, quantised, meta and wrapper tensors."""
    kind = type(tensor)
    return tensor.layout is torch.strided and not (tensor.is_meta or tensor.is_nested or tensor.is_quantized) and (kind in PLAIN or not wraps(kind))


def wraps(kind: Any) -> bool:
    """Whether tensors of that class have ops of their own."""
    return kind not in PLAIN and getattr(kind, "__torch_dispatch__", NO_DISPATCH) is not NO_DISPATCH


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a DTensor. Any other tensor is returned as it is."""
    mine: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return mine


class Replay:
    """Repeats calls in `reference`: float32 for runs in 16 bits, float64 for runs in float32."""

    def __init__(self, reference: torch.dtype, low: frozenset[torch.dtype]) -> None:
        self.reference, self.low = reference, low

    def wide(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype that stands for a dtype of the run in the reference."""
        if dtype in self.low:
            return self.reference
        if dtype.is_complex and dtype.to_real() in self.low:
            return self.reference.to_complex()
        return dtype

    def counted(self, tensor: torch.Tensor) -> torch.Tensor:
        """An integer operand in the reference, where an op makes floats of integers alone, as 2 / 3: torch's default dtype does not decide there."""
        return tensor if tensor.dtype is torch.bool else tensor.to(self.reference)

    def lowers(self, op: OpCall, floats: list[torch.Tensor]) -> bool:
        """Whether an op reads or makes a low format."""
        if any(tensor.dtype in self.low for tensor in floats):
            return True
        if op.plan.typed and any(isinstance(value, torch.dtype) and value in self.low for value in (*op.args, *op.kwargs.values())):
            return True
        return not floats and torch.get_default_dtype() in self.low

    def call(self, op: OpCall, change: Callable[[Any], Any]) -> list[torch.Tensor]:
        """The results of the call with each tensor replaced by `change(tensor)`. Raises what the op raises.

        Ops without a float64 kernel (oneDNN's recurrent layers, grouped products) run in float32 under a float64 reference.
        """
        if self.reference is not torch.float64 or op.plan.mutable:
            return self._call(op, change)
        if op.base not in ops.PAYLOADS:
            with contextlib.suppress(RuntimeError):  # NotImplementedError is one
                return self._call(op, change)
        return self._call(op, lambda tensor: _single(change(tensor)))

    def on_others(self, op: OpCall, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """The op's result on other tensors, in their own format. What it writes into is copied first."""

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            return change(tensor).clone() if op.plan.written and tensor is op.args[0] else change(tensor)

        return self.call(op._replace(kwargs={name: value for name, value in op.kwargs.items() if name != "dtype"}), copied)[0]

    def _call(self, op: OpCall, change: Callable[[Any], Any]) -> list[torch.Tensor]:
        func, planned, args, kwargs = op

        def changed(item: Any) -> Any:
            return change(item) if isinstance(item, torch.Tensor) else self.wide(item) if isinstance(item, torch.dtype) else item

        again = tuple([change(arg) if isinstance(arg, torch.Tensor) else with_items(arg, changed) for arg in args])
        named = {name: with_items(value, changed) for name, value in kwargs.items()} if kwargs else {}
        if planned.attends and (rows := attention.unseeing_rows(op)) is not None:
            _, _, again, named = attention.without_rows(OpCall(func, planned, again, named), rows)
        if planned.special:
            if kwargs.get("found_inf") is not None:
                named["found_inf"] = kwargs["found_inf"]  # a step that the run skips is skipped here too
            special = attention.REPLAYED.get(planned.packet)
            if special is not None:
                return list(special(OpCall(func, planned, again, named)))
            if planned.packet == "nextafter":  # depends on the run's own format; used for stochastic rounding
                return [own.to(self.wide(own.dtype)) for own in tensors_in(func(*args, **kwargs))]
            if planned.names[2:3] == ("half_to_float",):  # a softmax that also widens: its operand is wide already
                again = (again[0], again[1], False)
            if planned.packet == "_amp_foreach_non_finite_check_and_unscale_":
                for gradient in again[0]:
                    gradient.mul_(again[2])
                return [*again[0], args[1].clone()]  # the run decides whether a step is skipped, as with `found_inf` above
        result = func(*again, **named)
        if planned.base in ops.ENDS_AT_ONE and not planned.mutable and bool(result.isnan().any()):
            result = func(*[_ended(each, result) if isinstance(each, torch.Tensor) else each for each in again], **named)
        results = [result] if isinstance(result, torch.Tensor) else list(tensors_in(result))
        return with_written(results, OpCall(func, planned, again, named).written()) if planned.mutable else results


def _ended(argument: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """The argument of a function that ends at one. Where it is beyond by the reference's own roundings, it stands for one, as a cosine does."""
    beyond = (argument.abs() - 1).abs() <= FEW * torch.finfo(argument.dtype).eps
    return torch.where(beyond & result.isnan(), argument.sign(), argument)


def _single(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype is torch.float64 else tensor


def with_written(results: list[torch.Tensor], written: list[torch.Tensor]) -> list[torch.Tensor]:
    """The results, and written tensors that are not among them: foreach ops return None, and batch norm does not return its statistics."""
    return results + [tensor for tensor in written if all(tensor is not result for result in results)]


def chosen(op: OpCall, shadow: torch.Tensor, own: torch.Tensor, indices: torch.Tensor) -> torch.Tensor | None:
    """The shadow's values at the run's indices. None if it is not known how the op chooses by indices."""
    if op.base in ops.CHOOSERS:
        if shadow.dim() == 0:
            return shadow.reshape(own.shape)
        dim = op.argument("dim")
        dim = -1 if dim is None else int(dim)
        index = indices if indices.dim() == shadow.dim() else indices.unsqueeze(dim)
        return shadow.gather(dim, index).reshape(own.shape)
    if "max_pool" in op.plan.packet:
        dims = own.dim() - (3 if "3d" in op.plan.packet else 2)
        return shadow.flatten(dims).gather(-1, indices.flatten(dims)).view_as(own) if dims >= 0 else None
    return None
