"""Runs one call of a candidate or its reference, and returns its outputs and gradients."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from precheck.formats import Format
from precheck.kernels import memory
from precheck.kernels.examples import Example, parameters
from precheck.kernels.indices import Indices
from precheck.kernels.noise import Rounded
from precheck.kernels.parts import Parts
from precheck.observe.containers import call, tensors
from precheck.observe.exact import Exact, widened
from precheck.precisions import Precision
from precheck.torch_internals import without_modes


@dataclasses.dataclass(slots=True, eq=False)
class Outcome:
    """The results of one call. Subjects are named "output", "output[1]", "gradient of inputs[0]", "gradient of weight"."""

    values: dict[str, torch.Tensor | None] = dataclasses.field(default_factory=dict)
    attached: frozenset[str] = frozenset()  # outputs that gradients flow through
    structure: tuple[str, ...] = ()
    error: Exception | None = None
    where: str = "forward"  # the pass in which an error was raised
    seconds: float = 0.0
    outputs: tuple[torch.Tensor, ...] = ()  # as returned, to check their memory
    upstream: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()  # incoming gradients, with copies of their values
    passed: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)  # the incoming gradient of each output
    aliased: frozenset[str] = frozenset()  # outputs in the memory of inputs
    beyond: str = ""  # what was allocated and written beyond its end, in words
    rewritten: tuple[str, ...] = ()  # outputs that the backward pass changed
    turned: frozenset[int] = frozenset()  # inputs that have another shape, or other strides, behind the call
    again: tuple[str, ...] = ()  # gradients that a second backward pass gives otherwise
    parts: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)  # for gradients that autograd adds up: the total size of the parts


@dataclasses.dataclass(frozen=True, slots=True)
class Wishes:
    """The settings of a call."""

    precision: Precision | None = None
    gradients: bool = True
    double: bool = False
    upstream: str = "random"  # or "positive", "expanded", "large", …: the kind of incoming gradient
    only: int | None = None  # the only leaf that requires a gradient; None: all that are compared
    seed: int = 0
    expanded: tuple[int, ...] = ()  # leaves that are one row, expanded: the row's gradient is compared
    detached: frozenset[str] = frozenset()  # outputs without a gradient in the reference, if others have one
    again: bool = False  # whether a second backward pass goes through the same graph
    default: str = "cpu"  # the device of the user's factories; precheck's own make tensors on the CPU
    indices: Indices | None = None  # says on a CPU which whole numbers the reference takes, before a device is asked


SCALED = {"large": 2.0**10, "small": 2.0**-12}
"""Kinds of incoming gradients that are larger or smaller than those of a sum: as under a loss scale, and as of a mean over thousands of tokens."""


_AGAIN = 0.02
"""The share by which a gradient may differ when it is computed again: some roundings of bfloat16. What is multiplied in its place once more differs
by a whole incoming gradient."""


def run(function: Callable[..., Any], example: Example, values: Sequence[torch.Tensor], numbers: Mapping[int, int], wishes: Wishes, *,
        kind: str = "plain", keep: bool = False) -> Outcome:  # fmt: skip
    """Runs one call. `kind`: "plain", "exact" in float64, or "noise" with the rounding of correct implementations. A candidate is always "plain"."""
    outcome = Outcome(error=refusal(values, numbers, wishes))
    if outcome.error is not None:
        return outcome
    begun = time.perf_counter()
    try:
        with contextlib.ExitStack() as stack:
            _enter(stack, kind, wishes, example)
            _called(outcome, function, example, values, numbers, wishes, kind, keep)
    except Exception as error:
        outcome.error = error
    outcome.seconds = time.perf_counter() - begun
    return outcome


def noise(function: Callable[..., Any], example: Example, values: Sequence[torch.Tensor], numbers: Mapping[int, int], wishes: Wishes,
          seed: int, fine: float, stored: float = 0.0) -> tuple[Outcome, bool]:  # fmt: skip
    """A run with the rounding of correct implementations, and whether its result depends on the order of two writes."""
    outcome = Outcome(error=refusal(values, numbers, wishes))
    if outcome.error is not None:
        return outcome, False
    gemm = wishes.precision.gemm if wishes.precision else None
    if wishes.precision is not None and isinstance(gemm, Format):  # the mode rounds operands itself
        wishes = dataclasses.replace(wishes, precision=dataclasses.replace(wishes.precision, gemm=None))
    mode = Rounded(seed, fine, gemm if isinstance(gemm, Format) else None, stored)
    try:
        with contextlib.ExitStack() as stack:
            _enter(stack, "noise", wishes, example)
            stack.enter_context(mode)
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # its softmax is a separate op, and is rounded as one
            _called(outcome, function, example, values, numbers, wishes, "noise", False)
    except Exception as error:
        outcome.error = error
    return outcome, mode.ambiguous


def refusal(values: Sequence[torch.Tensor], numbers: Mapping[int, int], wishes: Wishes) -> Exception | None:
    """Why a device must not see these inputs, or None."""
    return None if wishes.indices is None else wishes.indices.refusal(values, numbers)


def _enter(stack: contextlib.ExitStack, kind: str, wishes: Wishes, example: Example) -> None:
    if kind == "plain" and wishes.precision is not None:
        stack.enter_context(wishes.precision.step(example.device.type))
    if kind == "exact":
        stack.enter_context(Exact())  # type: ignore[no-untyped-call]


def _without_fused_attention(values: Sequence[torch.Tensor]) -> contextlib.AbstractContextManager[Any]:
    """For inputs without elements. On them, torch 2.9's fused attention on a CPU ends the process, since it divides by a size."""
    return contextlib.nullcontext() if all(each.numel() for each in values) else sdpa_kernel(SDPBackend.MATH)


def _called(outcome: Outcome, function: Callable[..., Any], example: Example, values: Sequence[torch.Tensor], numbers: Mapping[int, int],
            wishes: Wishes, kind: str, keep: bool) -> None:  # fmt: skip
    exact = kind == "exact"
    if not keep:  # the reference may write into its inputs, which are read again later
        values = [each.clone() for each in values]
    leaves = [_leaf(_row(widened(value) if exact else value, place, wishes), wanted=wishes.gradients and leaf.wanted and wishes.only in (None, place))
              for place, (leaf, value) in enumerate(zip(example.leaves, values, strict=True))]  # fmt: skip
    asked = {f"gradient of inputs{leaf.path}": tensor for leaf, tensor in zip(example.leaves, leaves, strict=True) if tensor.requires_grad}
    passed = [leaf.expand(value.shape) if place in wishes.expanded else leaf for place, (leaf, value) in enumerate(zip(leaves, values, strict=True))]
    arguments = example.filled(passed, numbers)
    weights = dict(parameters(function)) if wishes.gradients else {}
    with torch.set_grad_enabled(bool(asked) or bool(weights)), _without_fused_attention(values):
        if kind == "plain":
            before = [_lies(each) for each in passed]
            with surroundings(wishes, example.device):
                result = call(function, arguments)
            outcome.turned = frozenset(place for place, each in enumerate(passed) if _lies(each) != before[place])
        else:
            result, weights = _reference(function, arguments, exact, wishes, example.device, kind)
        asked |= {f"gradient of {name}": weight for name, weight in weights.items() if weight.requires_grad}
        found = list(tensors(result, ""))
        outcome.structure = tuple(path for path, _ in found)
        outcome.values = {f"output{path}" if len(found) > 1 else "output": _fetched(each) for path, each in found}
        if keep:
            outcome.outputs = tuple(each for _, each in found)
            outcome.values = {name: each if each is None else each.clone() for name, each in outcome.values.items()}
        names = list(outcome.values)
        held = {each.untyped_storage().data_ptr() for each in leaves if each.numel()}
        shared = (name for name, (_, each) in zip(names, found, strict=True) if each.numel() and each.untyped_storage().data_ptr() in held)
        outcome.aliased = frozenset(shared)
        outcome.attached = frozenset(name for name, (_, each) in zip(names, found, strict=True) if each.requires_grad)
        if asked:
            outcome.where = "backward"
            rows = zip(example.leaves, passed, strict=True)
            ways = asked | {f"gradient of inputs{leaf.path}": each for leaf, each in rows if each.grad_fn is not None}
            _backward(outcome, names, [each for _, each in found], asked, ways if keep else {}, wishes, keep)
            both = ((name, outcome.values[name], _fetched(each)) for name, each in zip(names, outcome.outputs, strict=False))
            outcome.rewritten = tuple(name for name, before, now in both if before is not None and not memory.same(before, now))


def _reference(function: Callable[..., Any], arguments: Any, exact: bool, wishes: Wishes, device: torch.device,
               kind: str) -> tuple[Any, dict[str, Any]]:  # fmt: skip
    """Calls the reference, with copies of a module's weights, widened for an exact run."""
    if not isinstance(function, torch.nn.Module):
        with surroundings(wishes, device, autocasts=kind == "noise"):
            return call(function, arguments), {}
    change = widened if exact else torch.clone
    held = {name: _leaf(change(each.detach()), wanted=each.requires_grad) for name, each in function.named_parameters()}
    buffers = {name: change(each.detach()) for name, each in function.named_buffers()}
    args, kwargs = ((), arguments) if isinstance(arguments, dict) else (arguments, {}) if isinstance(arguments, tuple) else ((arguments,), {})
    with surroundings(wishes, device, autocasts=kind == "noise"):
        result = torch.func.functional_call(function, {**held, **buffers}, args, kwargs)
    return result, held if wishes.gradients else {}


def on_cpu() -> contextlib.AbstractContextManager[Any]:
    """A block in which precheck's factories make tensors on the CPU, whatever device the user has made the default."""
    cpu = torch.device("cpu")
    return contextlib.nullcontext() if torch.get_default_device() == cpu else cpu


@contextlib.contextmanager
def surroundings(wishes: Wishes, device: torch.device, *, autocasts: bool = True) -> Iterator[None]:
    """What both sides are called in: the user's default device, and the precision's autocast."""
    with contextlib.ExitStack() as stack:
        if wishes.default != "cpu":
            stack.enter_context(torch.device(wishes.default))
        if autocasts and wishes.precision is not None:
            stack.enter_context(wishes.precision.autocast(device.type))
        yield


def _fetched(result: torch.Tensor) -> torch.Tensor:
    """A result on the CPU, where it is judged."""
    with without_modes():
        return result.detach().cpu()


def _row(value: torch.Tensor, place: int, wishes: Wishes) -> torch.Tensor:
    return value[:1] if place in wishes.expanded else value


def _lies(value: torch.Tensor) -> tuple[Any, ...]:
    """Where a tensor's numbers lie in its memory."""
    return (value.shape, value.stride(), value.storage_offset()) if value.layout is torch.strided else ()


def _leaf(value: torch.Tensor, *, wanted: bool) -> torch.Tensor:
    leaf = value.detach()
    return leaf.requires_grad_() if wanted else leaf


def _backward(outcome: Outcome, names: Sequence[str], results: Sequence[torch.Tensor], asked: Mapping[str, torch.Tensor],
              ways: Mapping[str, torch.Tensor], wishes: Wishes, keep: bool) -> None:  # fmt: skip
    found = enumerate(zip(names, results, strict=True))
    through = [(place, name, each) for place, (name, each) in found if each.requires_grad and name not in wishes.detached]
    if wishes.upstream == "partial" and len(through) > 1:
        through = through[:1]
    if not through:
        outcome.values |= dict.fromkeys(asked)
        return
    given = [_upstream(each, wishes, place) for place, _, each in through]
    if keep:
        outcome.upstream = tuple((each, each.clone()) for each in given)
    outcome.passed = {name: _fetched(each) for (_, name, _), each in zip(through, given, strict=True)}
    results = [each for _, _, each in through]
    with Parts(results if ways else [], ways) as parts:
        gradients = torch.autograd.grad(results, list(asked.values()), given, allow_unused=True, create_graph=wishes.double,
                                        retain_graph=wishes.again or wishes.double)  # fmt: skip
    if wishes.again:
        outcome.where = "second backward"
        first = [None if each is None else each.clone() for each in gradients]
        second = torch.autograd.grad(results, list(asked.values()), given, allow_unused=True)
        outcome.again = tuple(name for name, a, b in zip(asked, first, second, strict=True) if not _close(a, b))
        return
    outcome.parts = {name: _fetched(each) for name, each in parts.sizes.items()}
    for name, gradient in zip(asked, gradients, strict=True):
        outcome.values[name] = None if gradient is None else _fetched(gradient)
    if wishes.double:
        outcome.where = "double backward"
        _twice(outcome, asked, gradients, wishes)


def _close(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
    """Whether two passes gave the same, up to the order of sums."""
    if first is None or second is None or first.shape != second.shape:
        return first is second is None
    return bool(torch.allclose(first.double(), second.double(), rtol=_AGAIN, atol=_AGAIN * float(first.abs().nan_to_num().max()), equal_nan=True)) \
        if first.numel() and not first.is_complex() else True  # fmt: skip


def _twice(outcome: Outcome, asked: Mapping[str, torch.Tensor], found: Sequence[torch.Tensor | None], wishes: Wishes) -> None:
    again = [(place, each) for place, each in enumerate(found) if each is not None and each.requires_grad]
    if not again:
        outcome.values |= {f"second {name}": None for name in asked}
        return
    given = [_upstream(each, wishes, 100 + place) for place, each in again]
    second = torch.autograd.grad([each for _, each in again], list(asked.values()), given, allow_unused=True)
    outcome.values |= {f"second {name}": None if each is None else _fetched(each) for name, each in zip(asked, second, strict=True)}


def _upstream(result: torch.Tensor, wishes: Wishes, place: int) -> torch.Tensor:
    """The incoming gradient of an output: the same numbers on both sides and in every mode, in the format of `result`."""
    with without_modes():
        return _drawn(result, wishes, place)


def _drawn(result: torch.Tensor, wishes: Wishes, place: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(wishes.seed * 1009 + place)
    dtype = result.dtype
    drawn = torch.randn(result.shape, generator=generator, dtype=torch.complex128 if dtype.is_complex else torch.float64)
    drawn = drawn.to(torch.bfloat16).to(dtype) if not dtype.is_complex else drawn.to(dtype)
    if wishes.upstream == "positive" and not dtype.is_complex:
        return drawn.abs().to(result.device)
    drawn = drawn * SCALED.get(wishes.upstream, 1.0)
    drawn = drawn.to(result.device)  # before it is laid out: a copy to another device is contiguous
    if wishes.upstream in ("expanded", "equal") and drawn.numel():
        one = drawn.reshape(-1)[:1].reshape([1] * drawn.dim()).expand(drawn.shape)
        return one if wishes.upstream == "expanded" else one.contiguous()
    if wishes.upstream == "transposed" and drawn.dim() >= 2:
        return drawn.mT.contiguous().mT
    if wishes.upstream == "columns of a wider tensor" and drawn.dim() == 1:
        return drawn.repeat_interleave(2)[::2]
    if wishes.upstream == "columns of a wider tensor" and drawn.dim() >= 2:
        return torch.cat([drawn, drawn], -1)[..., : drawn.shape[-1]]
    return drawn
