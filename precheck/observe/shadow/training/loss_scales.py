"""Follows the loss scale like a physical unit: every tensor carries the factor by which it is scaled, and ops combine factors.

A product's factor is the product of its operands' factors. A norm has its input's factor, a square root the root of it. `GradScaler._scale` carries
itself. Everything else follows from the ops: a scaled loss, its gradients, their norm, a clipping coefficient, the result of `unscale_`.
It is an error to add, compare or apply quantities with different factors. The order of calls does not matter.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from precheck import ops
from precheck.observe.shadow.memory.storages import Storages
from precheck.observe.shadow.replaying.replay import OpCall, tensors_in
from precheck.observe.shadow.training.operands import CLOSE, digits, guards, is_number, matters, nothing, part, quotient, same
from precheck.observe.shadow.training.step_records import ScalingEvent
from precheck.torch_internals import in_backward, storage_key
from precheck.torch_support.dense_parts import continuous

WHOLE_SHARES = 1024
"""Division by the scale times an integer up to this is unscaling too: it also takes the mean over micro-batches."""
ANY = (0, math.inf, -math.inf)
"""Numbers that are the same under any scale."""

REPEATED = 32
"""Events of one kind and line that are kept. An error in each step is reported once, with its latest state."""

Locate = Callable[[], Any]


class LossScales:
    """Factors by storage, while a scaler is in use, and the events in which different factors met."""

    def __init__(self) -> None:
        self.factors: Storages[float] = Storages()
        self.own: set[int] = set()  # storages of the scales themselves
        self.known: set[float] = set()  # scales that scalers have had
        self.asked: set[float] = set()  # scales that the program read from a scaler as Python numbers
        self.newest = 1.0  # the last of them
        self.meant: set[float] = set()  # Python numbers by which the program scaled or unscaled; autograd multiplies by them again
        self.read: deque[tuple[float, ScalingEvent]] = deque(maxlen=REPEATED)  # Python numbers that were read from scaled tensors
        self.events: list[ScalingEvent] = []
        self.noted: Counter[tuple[str, ...]] = Counter()  # events by kind and line
        self.mixtures: Storages[ScalingEvent] = Storages()  # sums of gradients under two scales, an error only if they are used
        self._mixture: ScalingEvent | None = None
        self.maker: Callable[[torch.Tensor], Any] = lambda tensor: None  # the op of a backward pass of the user that made a tensor

    def of(self, tensor: torch.Tensor) -> float:
        """The factor that the tensor carries: 1 if it is not scaled, NaN if unknown."""
        if tensor.layout is not torch.strided or not self.factors:
            return 1.0
        found = self.factors.get(tensor)
        return 1.0 if found is None else found

    def give(self, tensor: torch.Tensor, factor: float) -> None:
        """Gives a tensor its factor."""
        if tensor.layout is not torch.strided:
            return
        self.mixtures.drop(tensor)
        if same(factor, 1.0):
            self.factors.drop(tensor)
        else:
            self.factors.put(tensor, factor if 0 < factor < math.inf else math.nan)

    def before(self, op: OpCall, where: Locate) -> list[float]:
        """Before an op runs: the factor of each of its results. `where()` describes the op, for an event."""
        given = list(filter(continuous, op.tensors()))
        base, packet = op.base, op.plan.packet
        self._mixture = next((each for each in map(self.mixture, given) if each is not None), None) if self.mixtures else None
        fused = packet.startswith("_fused_") and isinstance(op.args[0], (list, tuple))  # an optimizer's step; other fused ops take a tensor
        bare = base in ops.FRESH or fused or all(self.of(tensor) == 1 for tensor in given)
        if bare and (by_hand := self._by_hand(base, op.args)) != 1:
            return [by_hand]
        if bare:
            return [1.0] if base in ops.REPLACING else []
        if base in ops.REPLACING and part(given[0]) and (len(given) == 1 or nothing(given[1])):
            return []  # zeros written into a part: the rest of the storage keeps its factor
        if packet == "_local_scalar_dense":
            if storage_key(given[0]) not in self.own and not math.isnan(self.of(given[0])):
                self.read.append((float(given[0].detach()), self._note("read", self.of(given[0]), 1.0, where)))
            return []
        if packet.startswith(("_foreach_", "_amp_foreach_")):
            return self._lanes(op, where)
        return [self._combined(op, [*op.args, *(value for name, value in op.kwargs.items() if name != "out")], where)]

    def after(self, factors: list[float], args: tuple[Any, ...], result: Any) -> None:
        """After the op has run: gives these factors to its results, or to the tensors that it wrote."""
        if not factors:
            return
        outputs = list(tensors_in(result)) or list(tensors_in(args[0]))
        for place, output in enumerate(outputs):
            if continuous(output) and (len(factors) == 1 or place < len(factors)):
                self.give(output, factors[min(place, len(factors) - 1)])
                if self._mixture is not None and output.layout is torch.strided:
                    self.mixtures.put(output, self._mixture)

    def mixture(self, tensor: torch.Tensor) -> ScalingEvent | None:
        """The event in which the tensor got terms under different scales. None if it has none."""
        return self.mixtures.get(tensor) if self.mixtures and tensor.layout is torch.strided else None

    def _lanes(self, op: OpCall, where: Locate) -> list[float]:
        """The factors of an op on lists, one for each tensor."""
        first, given = next(arg for arg in op.args if isinstance(arg, (list, tuple))), (*op.args, *op.kwargs.values())
        if op.plan.packet.startswith("_amp_foreach_non_finite_check_and_unscale"):
            return [self.of(tensor) * self.of(op.args[2]) for tensor in first]
        lanes = ([arg[n] if isinstance(arg, (list, tuple)) and len(arg) > n else arg for arg in given] for n in range(len(first)))
        return [self._combined(op, lane, where) for lane in lanes]

    def _combined(self, op: OpCall, operands: list[Any], where: Locate) -> float:
        """The factor of a result, from those of its operands. NaN if it is unknown."""
        base = op.base
        values = [value for operand in operands for value in (operand if isinstance(operand, (list, tuple)) else (operand,)) if is_number(value)]
        carried = [self.of(value) for value in values if isinstance(value, torch.Tensor) and continuous(value)]
        first = carried[0] if carried else 1.0
        if op.plan.collective:
            return float(carried[-1]) if carried else 1.0  # outputs come before inputs in the arguments
        if base == "zero" or (base == "fill" and len(carried) == 1):
            return 1.0
        if any(math.isnan(factor) for factor in carried):
            return math.nan
        if base.endswith(("_backward", "_backward_data")) and base not in ops.KEPT:
            return self._joined(*zip(*gradients, strict=True)) if (gradients := self._gradients(op)) else first  # it is linear in these
        if base in ops.SCALED_PRODUCTS:
            return math.prod(carried) * (self._number(values, first, where, inverse=False) if len(carried) == 1 else 1.0)
        if base in ops.SCALED_QUOTIENTS:
            if len(carried) > 1:
                return first / carried[1]
            return first * self._number(values, first, where, inverse=True) if isinstance(values[0], torch.Tensor) else 1 / first
        if base in ops.FUSED_SUMS and len(carried) >= 3:
            return self._sum(values[0], carried[0], None, carried[1] * float(carried[2] ** ops.FUSED_SUMS[base]), where)
        if base in ops.SCALED_SUMS or base in ops.DIFFERENCES:
            return self._terms(base, values, carried, where)
        if base in ops.EXPONENTIALS or base in ops.SOFTMAXES:
            return self._mixed(first, 1.0, where, "function")  # only a dimensionless argument makes sense: its series has all powers
        if base == "copy":
            return float(carried[-1])
        if base in ops.ORDERINGS:
            return self._compared(base, values, first, where)
        if base == "pow":
            return float(first ** float(values[1])) if len(values) > 1 and not isinstance(values[1], torch.Tensor) else math.nan
        if base in ops.POWERS:
            return float(first ** ops.POWERS[base])
        if base in ops.KEPT:
            return first
        return self._joined(values, carried) if base in ops.JOINED else math.nan

    def _gradients(self, op: OpCall) -> list[tuple[torch.Tensor, float]]:
        """The incoming gradients of a derivative, with their factors. They come first in most derivatives, but not in those of cuDNN's kernels."""
        named = (op.argument(name) for name in op.plan.names if name.startswith("grad"))
        return [(each, self.of(each)) for each in named if isinstance(each, torch.Tensor) and continuous(each)]

    def _joined(self, values: Sequence[Any], carried: Sequence[float]) -> float:
        """The common factor of joined tensors, as in `cat`. Zeros have any factor."""
        tensors = [value for value in values if isinstance(value, torch.Tensor) and continuous(value)]
        factors = [factor for tensor, factor in zip(tensors, carried, strict=True) if factor != 1 or not nothing(tensor)]
        return factors[0] if factors and all(same(factor, factors[0]) for factor in factors) else math.nan

    def _number(self, values: list[Any], factor: float, where: Locate, *, inverse: bool) -> float:
        """The factor that a product with a Python number contributes, or a division by it if `inverse`."""
        number = next((float(value) for value in values if not isinstance(value, torch.Tensor)), 1.0)
        if number <= 0 or not math.isfinite(number):
            return 1.0
        number = 1 / number if inverse else number
        if in_backward() and not any(same(number, meant) for meant in self.meant):
            return 1.0  # autograd's own number, such as the 1/n of a mean
        if factor != 1 and self._asked_for(number, 1 / factor):
            return 1 / factor  # a threshold divided by a norm: torch multiplies by the norm's reciprocal
        if self._clips(number, factor):
            self._note("compared", factor, 1.0, where)
            return math.nan
        shares = 1 / (number * factor)
        if factor != 1 and self.newest > 1 and same(number, 1 / self.newest) and not same(factor, self.newest):
            self._note("rescaled", factor, self.newest, where, "updated" if same(self.newest, 2 * factor) or same(2 * self.newest, factor) else "")
            return number
        if factor != 1 and 1 - CLOSE <= shares <= WHOLE_SHARES and same(shares, round(shares)) and (factor >= 4 or shares < 2):
            self.meant.add(number)
            return 1 / factor
        for scale in self.known:
            if scale > 1 and (same(number, scale) or same(number, 1 / scale)):
                self.meant.add(number)
                if factor != 1 and not same(number, factor):
                    self._note("rescaled", factor, scale, where)
                return number
        return 1.0

    def _clips(self, number: float, factor: float) -> bool:
        """Whether a Python number is a threshold over a norm that was read under that scale. Then the read is no event of its own."""
        clipped = [event for norm, event in self.read if same(event.factor, factor) and quotient(number, norm, factor)]
        self.events = [event for event in self.events if event not in clipped] if clipped else self.events
        return bool(clipped)

    def _by_hand(self, base: str, args: tuple[Any, ...]) -> float:
        """The factor of an unscaled tensor that is multiplied by a scale read from the scaler: it is a loss that the user scales by hand, or its
        gradient. Or it is any tensor, if the program has divided by that number before: it scales again what it has unscaled."""
        if base != "mul" or len(args) != 2 or not isinstance(args[1], (int, float)) or args[1] not in self.asked:
            return 1.0
        forward = not in_backward()
        if forward and any(same(args[1] * number, 1.0) for number in self.meant):
            return float(args[1])
        if args[0].dim():
            return 1.0
        if forward and args[0].requires_grad:
            self.meant.add(args[1])
        return float(args[1]) if args[1] in self.meant and (args[0].requires_grad or not forward) else 1.0

    def _asked_for(self, number: float, scale: float) -> bool:
        """Whether a Python number is a multiple of a loss scale that the program has read, as the threshold 51.2 is 0.05 times 1024.
        It does if division by the scale makes its decimal digits fewer.
        """
        return any(same(scale, asked) for asked in self.asked) and digits(number / scale) < digits(number)

    def _sum(self, one: Any, carried: float, other: Any, added: float, where: Locate) -> float:
        """The factor of a sum of two. A term that is zero, or does not matter, has any factor."""
        if same(carried, added):
            return carried
        if isinstance(one, torch.Tensor) and nothing(one):
            return added
        if isinstance(other, torch.Tensor) and nothing(other):
            return carried
        if added == 1 and isinstance(other, torch.Tensor) and other.dim() == 0 and not matters([one, float(other.detach())], carried):
            return carried
        return self._mixed(carried, added, where, unscaled=one if carried == 1 else other if added == 1 else None)

    def _terms(self, base: str, values: list[Any], carried: list[float], where: Locate) -> float:
        """The factor of a sum or difference of two tensors, or of a tensor and a number, or of a loss that subtracts one from the other."""
        if len(carried) < 2:
            return self._mixed(carried[0], 1.0, where, "number") if matters(values, carried[0]) else carried[0]
        factor = self._sum(values[0], carried[0], values[1], carried[1], where)
        return factor if base in ops.SCALED_SUMS else math.nan

    def _mixed(self, carried: float, added: float, where: Locate, text: str = "", unscaled: Any = None) -> float:
        """Notes a sum of terms with different factors. If the user's own backward pass made one of them, it is wrong whatever becomes of the sum."""
        made = self.maker(unscaled) if isinstance(unscaled, torch.Tensor) and in_backward() else None  # autograd only adds up what that pass gave
        event = ScalingEvent("mixed", made or where(), carried, added, "backward" if made is not None else text)
        if made is not None or not in_backward():
            self.add(event)
        else:
            self._mixture = event  # this gradient may still be discarded, as a GAN does with the discriminator's in the generator's step
        return math.nan

    def _compared(self, base: str, values: list[Any], first: float, where: Locate) -> float:
        """Notes a comparison of numbers with different factors."""
        for other in values[1:]:
            if base in ops.BOUNDS_BELOW and guards(values[0], other):
                continue
            if isinstance(other, torch.Tensor) and continuous(other):
                if not same(self.of(other), first) and not nothing(other):
                    self._note("compared", first, self.of(other), where)
                    return math.nan
            elif isinstance(other, (int, float)) and first != 1 and other not in ANY and not self._asked_for(other, first):
                self._note("compared", first, 1.0, where, "backward" if in_backward() else "")
                return math.nan
        return first

    def _note(self, kind: str, factor: float, other: float, where: Locate, text: str = "") -> ScalingEvent:
        event = ScalingEvent(kind, where(), factor, other, text)
        self.add(event)
        return event

    def add(self, event: ScalingEvent) -> None:
        """Keeps an event. Of many events of one kind and line, the first ones and the latest are kept."""
        place = event.kind, event.operation.source, event.operation.caller
        self.noted[place] += 1
        if self.noted[place] > REPEATED:
            latest = max(at for at, each in enumerate(self.events) if (each.kind, each.operation.source, each.operation.caller) == place)
            del self.events[latest]
        self.events.append(event)
