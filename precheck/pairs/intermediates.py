"""Records each op's result inside chosen modules, with its line and operands, and a signature that finds equal values in any layout."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from precheck.observe.decisions.log import outputs_of
from precheck.observe.decisions.natures import nature
from precheck.observe.profiling import UncompiledMode
from precheck.observe.shadow.places.source import Frames, shortened
from precheck.observe.shadow.replaying.replay import tensors_in
from precheck.torch_internals import in_backward, no_dispatch, schema, storage_key
from precheck.torch_support.dense_parts import continuous

if TYPE_CHECKING:
    from types import FrameType

ALIKE = 1e-7
"""Relative difference of two sums in float64 up to which contents are equal. It is a thousandth of the change from an eps of 1e-6 to 1e-5, and 1e8
times that of reordering a sum of 4096 terms."""
MOST = 1 << 26
"""Elements of intermediates that are kept, 0.5 GB in float64. Beyond it only signatures are kept."""

Signature = tuple[int, float, float, float]
View = tuple[Signature, tuple[int, ...], tuple[int, ...], int]
"""How an op reads memory: the signature of the contents, and sizes, strides and offset."""


@dataclasses.dataclass(slots=True, eq=False)
class Made:
    """One result of an op. `reads` are the numbers of the results that the op read."""

    op: str
    line: str
    signature: Signature
    reads: tuple[int, ...]
    tensor: torch.Tensor | None
    views: tuple[View, ...] = ()  # of its operands
    module: str = ""  # the module whose code called the op
    code: str = ""  # the module whose method made the call, if it was called by another name than forward
    makers: tuple[int | None, ...] = ()  # for each of the views: the number of the result, or None if it was not made here
    options: tuple[tuple[str, str], ...] = ()  # of the op's arguments those that are no tensors
    operands: tuple[Signature, ...] = ()  # for each of the views: the part of the contents that was read


class Intermediates(UncompiledMode):
    """Keeps the results of ops while one of the named modules runs. With `own`, only of the module's own code, otherwise also of the modules it
    calls."""

    def __init__(self, model: torch.nn.Module, names: Collection[str], *, own: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model, self.names, self.own = model, frozenset(names), own
        self.made: list[Made] = []
        self.sources: list[Signature] = []  # tensors that were read but not made here: inputs and weights
        self.stack: list[str] = []
        self.writers: dict[int, int] = {}
        self.alive: list[torch.Tensor] = []
        self.read: dict[int, Signature] = {}
        self.left = MOST
        self.frames = Frames()
        self.known: dict[int | None, str] = {id(module): name for name, module in model.named_modules()}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    @property
    def active(self) -> bool:
        if in_backward() or not self.stack:
            return False
        return self.stack[-1] in self.names if self.own else any(each in self.names for each in self.stack)

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        handles = []
        for name, module in self.model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                handles.append(module.register_forward_pre_hook(self._entering(name)))
                handles.append(module.register_forward_hook(self._leaving, always_call=True))
        try:
            with self:
                yield
        finally:
            for handle in handles:
                handle.remove()
            self.alive.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self.active or nature(func).view:
            return result
        with no_dispatch(), torch.no_grad():
            for output in outputs_of(result) or _written(func, args):
                if continuous(output) and output.layout is torch.strided and output.numel():
                    self._keep(func, args, kwargs, output)
        return result

    def meet(self, output: torch.Tensor) -> None:
        """Called with each result before it is kept. A subclass may change it."""

    def _keep(self, func: Any, args: Any, kwargs: Any, output: torch.Tensor) -> None:
        line = self.frames.line(3)[0]
        if not line:  # an op of precheck's own
            return
        self.meet(output)
        reads: list[int] = []
        views: list[View] = []
        makers: list[int | None] = []
        operands: list[Signature] = []
        for each in tensors_in(*args):
            if not continuous(each) or each.layout is not torch.strided:
                continue
            writer = self.writers.get(storage_key(each))
            if writer is not None:
                reads.append(writer)
            content = self.made[writer].signature if writer is not None else self._source(each)
            makers.append(writer)
            operands.append(content if each.numel() == content[0] else signature(each))
            views.append((content, tuple(each.shape), tuple(map(int, each.stride())), int(each.storage_offset())))
        self.alive.append(output)
        self.writers[storage_key(output)] = len(self.made)
        kept = output.detach().clone() if output.numel() <= self.left else None
        self.left -= 0 if kept is None else kept.numel()
        came = tuple(reads), kept, tuple(views), self.stack[-1], self._code(), tuple(makers), _options(func, args, kwargs), tuple(operands)
        self.made.append(Made(nature(func).name, shortened(line), signature(output), *came))

    def _code(self) -> str:
        """The module to which the running method belongs. A hook on the module does not see methods that are called by another name than forward."""
        frame = cast("FrameType | None", sys._getframe(3))
        while frame is not None:
            owner = id(frame.f_locals.get("self")) if "self" in frame.f_code.co_varnames[:1] else None
            if owner in self.known:
                return self.known[owner]
            frame = frame.f_back
        return self.stack[-1]

    def _source(self, read: torch.Tensor) -> Signature:
        """The signature of a tensor that was not made here: an input or a weight. If a part was read, the part is recorded too."""
        place = storage_key(read)
        if place not in self.read:
            whole = read.as_strided((read.untyped_storage().nbytes() // read.element_size(),), (1,), 0)
            self.read[place] = signature(whole)
            self.alive.append(read)
            self.sources += [self.read[place], signature(read)]
        return self.read[place]

    def _entering(self, name: str) -> Any:
        return lambda module, args: None if in_backward() else self.stack.append(name)

    def _leaving(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if not in_backward() and self.stack:
            self.stack.pop()


def signature(tensor: torch.Tensor) -> Signature:
    """Sums that do not depend on the layout: number of elements, sum, sum of squares and of fourth powers. Infinite elements of a mask count as
    zeros."""
    values = (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).detach().double()
    values = torch.where(values.abs() < 1e30, values, torch.zeros_like(values))
    squares = values.square()
    return tensor.numel(), float(values.sum()), float(squares.sum()), float(squares.square().sum())


def alike(a: Signature, b: Signature, within: float = ALIKE) -> bool:
    """Whether two tensors have equal contents in any layout."""
    near = math.isclose(a[2], b[2], rel_tol=within) and math.isclose(a[3], b[3], rel_tol=within)
    return a[0] == b[0] and near and abs(a[1] - b[1]) <= within * math.sqrt(a[0] * max(a[2], b[2]))


class Marks:
    """A set of signatures. A signature is looked up among those with the same number of elements."""

    def __init__(self, known: Sequence[Signature], within: float) -> None:
        self.within, self.by_size = within, dict[int, list[Signature]]()
        for each in known:
            self.by_size.setdefault(each[0], []).append(each)

    def __contains__(self, mark: Signature) -> bool:
        return any(alike(mark, each, self.within) for each in self.by_size.get(mark[0], ()))


def parting(
    theirs: Sequence[Made], known: Sequence[Signature], within: float = ALIKE, *,
    right: Callable[[Made], bool] = lambda made: False, usual: Callable[[Made], bool] = lambda made: False,
) -> int | None:  # fmt: skip
    """The number of the first op that makes contents that are not `known` from known contents only, on the way to the last result.

    The search goes back from the last result through unknown contents. Contents that become known again on the way are no fault. `right` may declare
    further results as known. Those that are `usual` are unknown where nothing is wrong, so that they are no fault, but may read one.
    """
    marks = Marks(known, within)
    good = [made.signature in marks for made in theirs]
    if not theirs or good[-1]:
        return None
    waiting, seen = [len(theirs) - 1], set[int]()
    while waiting:
        number = waiting.pop()
        if number not in seen:
            seen.add(number)
            waiting += [each for each in theirs[number].reads if not good[each] and not right(theirs[each])]
    return min((each for each in seen if not usual(theirs[each])), default=len(theirs) - 1)


def _options(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """The arguments of an op that are numbers, truth values or words, by name. Axes are counted from the first."""
    axes = next((each.dim() for each in args if isinstance(each, torch.Tensor)), 0)
    named = {each.name: each.default_value for each in schema(func).arguments}
    named |= dict(zip(named, args, strict=False)) | kwargs
    told: list[tuple[str, str]] = []
    for name, value in named.items():
        value = value % axes if name == "dim" and type(value) is int and axes else value
        if value is None or isinstance(value, (int, float, str)) or (isinstance(value, (list, tuple)) and all(type(each) is int for each in value)):
            told.append((name, str(value)))
    return tuple(told)


def _written(func: Any, args: Any) -> list[torch.Tensor]:
    if not schema(func).is_mutable:
        return []
    return [each for each in args[:1] if isinstance(each, torch.Tensor)]


def ingredients(made: Sequence[Made], tensor: torch.Tensor) -> set[str]:
    """The modules whose code made something that went into a tensor."""
    mark, found, seen = signature(tensor), set[str](), set[int]()
    waiting = [number for number, each in enumerate(made) if alike(mark, each.signature)][:1]
    while waiting:
        number = waiting.pop()
        if number not in seen:
            seen.add(number)
            found |= {made[number].module, made[number].code}
            waiting += made[number].reads
    return found
