"""Compares gradients that an autograd Function makes of codes with the derivative of its forward product.

A Function whose result is x Wᵀ up to rounding has the gradients g W and gᵀ x, whatever its code does with scales. Both are computed from the data,
and the distance is noted beside what rounding explains: that of the operands, or the distance of the forward result, if it is greater. It must be
known that rounding is all that is done: what is rounded in the Function are whole operands, turned at most, which keeps their norm. A factor that all
of a gradient has may be meant, unless it is made of scales, which the copies of the codes tell. So may numbers that are zero.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from precheck import ops
from precheck.observe.shadow.memory.storages import Storages, plain
from precheck.observe.shadow.operations import Operation
from precheck.observe.shadow.quantisers.code_copies import distance, factor_between
from precheck.observe.shadow.quantisers.code_notes import Derived
from precheck.observe.shadow.replaying.replay import OpCall
from precheck.torch_internals import active_modes, is_transformed, version, without_modes

if TYPE_CHECKING:
    from precheck.observe.shadow.quantisers.codes import Codes

COARSE = 0.25
"""Relative distance of a forward result from the product. Rounding both operands to four bits makes 0.2, and another function is further off."""
REGISTER = torch.Tensor.register_hook
FUNCTIONS: Any = torch.autograd.Function.__mro__[1 if isinstance(torch.autograd.Function.apply, types.MethodType) else 0]
"""The class whose `apply` each Function calls. Up to torch 2.14 `Function.apply` is Python's and calls that of the class above it, so that one that
was bound to a name before is followed too. From 2.15 on it is C's own, and only one that is looked up within the block is followed."""
APPLY: Any = FUNCTIONS.__dict__.get("apply")
"""What that class has itself, and not from the class above it."""
REMEMBERED = 8
"""Roundings that are remembered of each number of elements, since a weight may have been rounded before."""
ALIKE = 0.02
"""Relative distance of two norms below which they are those of one operand. A cast to bfloat16 and clipping at a 1e-3 quantile change less."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Rounding:
    """Data that was rounded within a Function."""

    line: str
    size: int
    norms: tuple[float, ...]  # of the data, for each scale that it may have had
    error: float  # relative

    def of(self, operand: torch.Tensor) -> bool:
        """Whether it is this operand, as it is or turned."""
        norm = float(operand.norm())
        return self.size == operand.numel() and any(abs(each - norm) <= ALIKE * norm for each in self.norms)


@dataclasses.dataclass(slots=True, eq=False)
class Product:
    """The forward product of a Function, times a factor: x Wᵀ if it is `turned`, else x W."""

    x: torch.Tensor
    w: torch.Tensor
    turned: bool
    factor: float
    error: float  # of the result, relative
    places: tuple[int, int]  # of the two among the tensors that are given
    roundings: list[Rounding]
    versions: tuple[int, int]

    def made(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ (w.mT if self.turned else w)

    def of_x(self, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return self.factor * (g @ (w if self.turned else w.mT))

    def of_w(self, g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if self.w.dim() == 2:
            g, x = g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])
        return self.factor * (g.mT @ x if self.turned else x.mT @ g)


class FunctionGradients:
    """The Functions of a run."""

    def __init__(self, codes: Codes) -> None:
        self.codes = codes
        self.open: list[Rounding] | None = None  # what was rounded in the Function that runs now
        self.returns = False  # whether the backward pass of another Function runs now
        self.coded: Storages[Operation] = Storages()  # what a Function has made of codes, by the operation that made it
        self.latest: dict[int, list[Rounding]] = {}  # what was rounded in the run, by number of elements

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, each Function of this thread is followed, and each hook of a tensor that is registered here."""
        with _lock:
            _watching.append(self)
            FUNCTIONS.apply, torch.Tensor.register_hook = classmethod(_applied), _hooked  # type: ignore[method-assign]
        try:
            yield
        finally:
            with _lock:
                _watching.remove(self)
                if not _watching and APPLY is not None:
                    FUNCTIONS.apply = APPLY
                elif not _watching:
                    del FUNCTIONS.apply
                    torch.Tensor.register_hook = REGISTER  # type: ignore[method-assign]

    def rounded(self, line: str, plains: Sequence[torch.Tensor], error: float) -> None:
        """Data was rounded. `plains`: the data, for each scale that it may have had."""
        norms = tuple(float(each.norm()) for each in plains)
        made = Rounding(line, plains[0].numel(), norms, error)
        self.latest[made.size] = [*self.latest.get(made.size, ()), made][-REMEMBERED:]
        if self.open is not None:
            self.open.append(made)

    def follow(self, op: OpCall, inputs: Sequence[torch.Tensor], result: torch.Tensor) -> None:
        """After an op: whether its result is made of codes, within a Function."""
        if self.open is None and not self.returns:
            return
        before = next((made for each in inputs if (made := self.coded.get(each)) is not None), None)
        if before is not None and op.base in ops.WHOLE_COPIES | ops.CASTS:
            self.coded.put(result, before)
        elif before is not None or any(self.codes.tracks.get(each) or self.codes.dequantised.held.get(each) for each in inputs):
            self.coded.put(result, self.codes.described(op.plan.name))

    def applied(self, call: Callable[[], Any], args: tuple[Any, ...]) -> Any:
        """Runs a Function. If its result is a product of two inputs, its gradients are compared when they are made."""
        if self.codes.off or any(is_transformed(each) for each in args if isinstance(each, torch.Tensor)):
            return call()
        outer, self.open = self.open, []
        try:
            result = call()
        finally:
            mine, self.open = self.open, outer
        first = next((each for each in (result if isinstance(result, tuple) else (result,)) if isinstance(each, torch.Tensor)), None)
        node = first.grad_fn if first is not None else None
        if first is None or node is None or not plain(first) or not first.is_floating_point():
            return result
        tensors, product, own = [each for each in args if isinstance(each, torch.Tensor)], None, []
        try:
            with without_modes(), torch.no_grad():
                product = self._product(first.detach(), [each.detach() for each in tensors], mine) if first is result else None
                own = [plain(each) and not self.codes.scales.known(each) for each in tensors] if product is None else []
        except Exception:
            self.codes.off = True
        node.register_prehook(self._returns if product is None else self._begins)
        node.register_hook(functools.partial(self._returned, own) if product is None else functools.partial(self._ends, product))
        return result

    def hooked(self, call: Callable[[], Any]) -> Any:
        """Runs a hook, whose gradient takes the place of the one that it is given."""
        outer, self.returns = self.returns, True
        try:
            made = call()
        finally:
            self.returns = outer
        if isinstance(made, torch.Tensor):
            self._due(made)
        return made

    def _due(self, gradient: torch.Tensor) -> None:
        """Scales that have not cancelled in a gradient are due in what is made of it."""
        if plain(gradient) and (track := self.codes.tracks.get(gradient)) is not None:
            track.due = self.coded.get(gradient)

    def _product(self, y: torch.Tensor, given: Sequence[torch.Tensor], roundings: list[Rounding]) -> Product | None:
        """The product of two inputs that the result is, but for one factor and a bias. The closest, if there are several."""
        wide = [each for each in given if plain(each) and each.is_floating_point() and each.element_size() > 1]
        pairs = itertools.permutations([(place, each) for place, each in enumerate(given) if each.dim() > 1 and any(each is one for one in wide)], 2)
        found: list[Product] = []
        for ((first, x), (second, w)), turned in itertools.product(pairs, (True, False)):
            inner, outer = w.shape[::-1][:2] if turned else w.shape[-2:]
            if x.shape[-1] != inner or y.shape != (*x.shape[:-1], outer) or w.shape[:-2] not in ((), x.shape[:-2]):
                continue
            made = Product(x, w, turned, 1.0, 0.0, (first, second), roundings, (version(x), version(w)))
            alone = made.made(x.float(), w.float())
            for bias in (None, *(each for each in wide if each.shape == (outer,))):
                rest = y.float() if bias is None else y.float() - bias.float()
                factor = factor_between(rest, alone)
                found.append(dataclasses.replace(made, factor=factor, error=distance(factor * alone, rest)))
        best = min(found, key=lambda each: each.error, default=None)
        return best if best is not None and best.error <= COARSE else None

    def _returns(self, gradients: tuple[torch.Tensor | None, ...]) -> None:
        """Before the backward pass of a Function whose result is no product."""
        self.returns = True

    def _returned(self, own: Sequence[bool], made: tuple[torch.Tensor | None, ...], given: tuple[torch.Tensor | None, ...]) -> None:
        """After it. The gradient of a scale has another unit: it is not in `own`."""
        self.returns = False
        for gradient, data in zip(made, own, strict=False):
            if gradient is not None and data:
                self._due(gradient)

    def _begins(self, gradients: tuple[torch.Tensor | None, ...]) -> None:
        """Before the backward pass of a Function."""
        self.open = []

    def _ends(self, product: Product, made: tuple[torch.Tensor | None, ...], given: tuple[torch.Tensor | None, ...]) -> None:
        """After it."""
        roundings, self.open = [*product.roundings, *(self.open or [])], None
        if self.codes.off or given[0] is None or (version(product.x), version(product.w)) != product.versions:
            return
        try:
            with without_modes(), torch.no_grad():
                self._compared(product, roundings, [made[place] for place in product.places], given[0].float())
        except Exception:
            self.codes.off = True

    def _compared(self, product: Product, roundings: Sequence[Rounding], made: Sequence[torch.Tensor | None], g: torch.Tensor) -> None:
        """Compares both gradients of a product with its derivative, if what was rounded is known."""
        data = g, product.x.float(), product.w.float()
        found = [[each for each in self.latest.get(one.numel(), ()) if each.of(one)] for one in data]
        known = [each for one in found for each in one]
        if not known:
            return
        entire = all(any(each is one for one in known) for each in roundings)
        error = max(each.error for each in known)
        for of, gradient, other, name in ((product.of_x, made[0], data[2], "input"), (product.of_w, made[1], data[1], "weight")):
            if gradient is None or not plain(gradient) or (place := self.coded.get(gradient)) is None:
                continue
            kept, expected = gradient.float(), of(g, other) * (gradient != 0)
            off, left = distance(kept, expected), distance(kept, factor_between(kept, expected) * expected)
            if not error < off < math.inf:
                continue
            if (track := self.codes.tracks.get(gradient)) is not None:
                self.codes.judge(track, unit=True, own=True, place=place)
            if entire and error < left:
                explained = _explained(of, g, other, max(error, torch.finfo(gradient.dtype).eps)) / float(expected.norm())
                self.codes.note(place, Derived(known[-1].line, name, off, left, max(product.error, explained)))


def _explained(of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], left: torch.Tensor, right: torch.Tensor, error: float) -> float:
    """The norm of the error of a product whose operands have errors of that relative size: of each number, or of the largest ones, as where small
    numbers become zero. The larger of the two for each operand."""
    generator = torch.Generator(left.device).manual_seed(0)

    def worst(operand: torch.Tensor, product: Callable[[torch.Tensor], torch.Tensor]) -> float:
        noise = error * torch.randn(operand.shape, generator=generator, device=operand.device)
        return max(float(product(noise * operand).norm()), float(product(noise * operand.square().mean().sqrt()).norm()))

    return float(math.hypot(worst(left, lambda each: of(each, right)), worst(right, lambda each: of(left, each))))


_lock = threading.Lock()
_watching: list[FunctionGradients] = []


def _applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """What `apply` of each Function calls while a block is watched."""
    call: Callable[[], Any] = functools.partial(super(FUNCTIONS, cls).apply, *args, **kwargs)
    for each in [each for each in _watching if each.codes.mode in active_modes()]:
        call = functools.partial(each.applied, call, (*args, *kwargs.values()))
    return call()


def _hooked(tensor: torch.Tensor, hook: Callable[[torch.Tensor], Any]) -> Any:
    """What `register_hook` of each tensor is while a block is watched."""

    def run(gradient: torch.Tensor) -> Any:
        call: Callable[[], Any] = functools.partial(hook, gradient)
        for each in [each for each in _watching if each.codes.mode in active_modes()]:
            call = functools.partial(each.hooked, call)
        return call()

    return REGISTER(tensor, run)  # type: ignore[no-untyped-call]
