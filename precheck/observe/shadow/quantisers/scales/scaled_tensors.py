"""Keeps tensors that were multiplied or divided by a scale, which a quantiser may round next, and recognises scales.

A scale is a tensor with fewer numbers than the tensor it scales. It is certainly a scale if it is computed only from extremes of data (such as a
greatest magnitude) and Python numbers, or if data has been rounded under it before.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from precheck import ops
from precheck.observe.shadow.memory.storages import Flat, Storages, length
from precheck.observe.shadow.probes.partial_writes import Region, region
from precheck.observe.shadow.quantisers.code_copies import AGREE, LIKE, SATURATED
from precheck.observe.shadow.quantisers.scales.scale_roots import Nested, Powers, ScaleKind, ScaleRoots, Source, combined

EXTREMES = (ops.UNROUNDED - ops.MOVING) | {"aminmax"}
AVERAGES = ops.AVERAGES | {"std", "var"}
"""Ops that pick one of many numbers, if the result has fewer elements than the operand."""
ENDS = SATURATED | {127.0}
"""Largest numbers that data is limited to, which is then rounded: those of floats and signed integers of eight bits."""
EXPONENT = ops.STEPS | ops.ADDITIONS | ops.CASTS | ops.WHOLE_COPIES | ops.MOVING | ops.GUARDS | {"neg", "copy"}
"""Ops after which the logarithm of a scale is still one, such as the byte of an exponent."""
LOOKED_AT = 1 << 14
REMEMBERED = 31
"""Scales before the latest one that a number may be compared with."""
CHAIN = 3


@dataclasses.dataclass(slots=True)
class Scaled:
    """A scaled tensor. `bys` has the factors it was multiplied by: the last scale, the product of the last two, and so on."""

    region: Region
    bys: list[torch.Tensor]
    added: torch.Tensor | float | None = None  # noise, half a step or a zero point that was added
    unclipped: Flat | None = None  # its content before it was clamped
    powers: Powers | None = None  # the extremes that the last scale is made of; None if unknown
    source: Source | None = None  # the extremes that its scales are made of; None if unknown
    offset: torch.Tensor | None = None  # what was subtracted from the data before it was scaled
    nested: Nested | None = None  # the scales that are scaled
    written: bool = False  # whether the scale is written down as a number, as what it is taken out by may be
    chosen: bool = False  # whether the scale is an average of data or is learned, under which some of it is clipped on purpose

    def by(self, place: int, tensor: torch.Tensor) -> torch.Tensor:
        """The factor number `place` for each element of `tensor`, a view of the scaled tensor."""
        if region(tensor) == self.region:
            return self.bys[place]
        flat = torch.ones(length(tensor), device=tensor.device)
        flat.as_strided(*self.region).copy_(self.bys[place])
        return flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


class QuantiserScales:
    """Tensors that are computed only from extremes, and numbers that data has been rounded under."""

    def __init__(self) -> None:
        self.made: Storages[ScaleKind] = Storages(sized=True)
        self.shares: Storages[bool] = Storages()  # quotients of integers
        self.roots = ScaleRoots()
        self.sources: Storages[Source] = Storages(sized=True)
        self.averages: Storages[bool] = Storages()  # averages of data
        self.offsets: Storages[torch.Tensor] = Storages()  # for data from which extremes have been subtracted: these
        self.used: list[tuple[int, torch.Tensor]] = []  # a number for each, and the factors that data was multiplied by
        self.numbers: set[frozenset[int]] = set()  # extremes whose scales the program has as numbers

    def known(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a scale, by its origin or by its numbers. Extremes that were rounded to integers may be zero points."""
        return self.made.get(tensor) == "scale" or self.among(tensor)

    def follow(self, base: str, inputs: list[torch.Tensor], results: list[torch.Tensor]) -> None:
        """After an op: marks its results if they are computed only from extremes."""
        if base in AVERAGES or self.averages:
            self._averaged(base, inputs, results)
        if base not in EXTREMES and not self.made:
            return
        floats = [each for each in inputs[self._overwritten(base, inputs, results) :] if each.is_floating_point()]
        extreme = base in EXTREMES and len(floats) == 1 and all(each.numel() < floats[0].numel() for each in results)
        if extreme:
            made = True
        else:
            made = bool(self.made) and any(self.made.get(each) for each in inputs)
            made = made and all(each.numel() == 1 or self.made.get(each) for each in floats)
        if made and not extreme and len(results) == 1:
            self.roots.follow(base, inputs, results[0])
        rounded = base in ops.STEPS or (base not in ops.MULTIPLYING and base not in ops.EXPONENTIALS and base not in ops.POWERS and base != "pow"
                                        and any(self.made.get(each) == "whole" for each in inputs))  # fmt: skip
        if base == "sub" and not made and len(inputs) == 2 and self.made.get(inputs[1]) and _fewer(inputs[1], inputs[0], self):
            self.offsets.put(results[0], inputs[1].detach().float().clone())
        if made:
            self._sourced(extreme, inputs, results)
        exponent = base in ops.LOGARITHMS or (any(self.made.get(each) == "exponent" for each in inputs) and base in EXPONENT)
        for result in results if made else ():
            self.made.put(result, "exponent" if exponent else "whole" if rounded else "scale")

    def _overwritten(self, base: str, inputs: list[torch.Tensor], results: list[torch.Tensor]) -> bool:
        """Whether the first operand is only what others are written into: a buffer that held one number."""
        if base == "copy" or base not in ops.JOINED or len(inputs) < 2 or self.made.get(inputs[0]) or not results:
            return base == "copy"
        scale = next((each for each in inputs[1:] if self.made.get(each)), None)
        return scale is not None and results[0].shape == inputs[0].shape and len(results[0].unique()) <= len(scale.unique()) + 1

    def _averaged(self, base: str, inputs: list[torch.Tensor], results: list[torch.Tensor]) -> None:
        """After an op: marks its result if it is computed only from averages of data."""
        many = [each for each in inputs if each.numel() > 1 and not self.averages.get(each)]
        first = base in AVERAGES and len(many) == 1 and results[0].numel() < many[0].numel() and not self.made.get(many[0])
        if first or (not many and any(self.averages.get(each) for each in inputs)):
            self.averages.put(results[0], True)

    def _sourced(self, extreme: bool, inputs: list[torch.Tensor], results: list[torch.Tensor]) -> None:
        """After an op that makes scales or extremes: what they are made of. A comparison's result is a mask, and no scale."""
        given = [found for found in map(self.sources.get, inputs) if found is not None]
        for result in [each for each in results if each.is_floating_point()]:
            known, cost = frozenset().union(*(each.extremes for each in given)), max((each.cost for each in given), default=0.0)
            if extreme:
                greatest = result.detach().float().clone() if result.numel() == 1 else None
                self.sources.put(result, Source(known | {self.roots.extreme(result, inputs[0])}, greatest, cost))
            elif given:
                self.sources.put(result, Source(known, given[0].greatest if len(given) == 1 and result.numel() == 1 else None, cost))

    def read_off(self, base: str, inputs: list[torch.Tensor]) -> None:
        """After an op without a tensor as its result: whether it gives a scale to the program as a number."""
        for each in inputs if base == "_local_scalar_dense" else ():
            self.numbers |= (self.roots.held.get(each) or {}).keys()

    def numbered(self, powers: Powers | None) -> bool:
        """Whether the program has scales of these extremes as numbers, which may be multiplied by as any others."""
        return not self.numbers.isdisjoint(powers or {})

    def nested(self, data: torch.Tensor) -> Nested | None:
        """The scales that a tensor holds, which may be quantised next."""
        kind = self.made.get(data)
        return None if kind is None else Nested(kind, self.sources.get(data), self.roots.held.get(data))

    def dequantised(self, scales: Nested, result: torch.Tensor, cost: float) -> None:
        """Scales that were quantised have been dequantised: they are scales again, of the same extremes. `cost`: the relative error of that. If it is
        larger, codes that were rounded under the scales before do not agree with the data, and nothing is said of them."""
        if cost > AGREE / 2:
            return
        self.made.put(result, scales.kind)
        if scales.source is not None:
            self.sources.put(result, dataclasses.replace(scales.source, cost=scales.source.cost + cost))
        if scales.powers is not None:
            self.roots.held.put(result, scales.powers)

    def chosen(self, scale: torch.Tensor) -> bool:
        """Whether a scale is an average of data or is learned."""
        return bool(self.averages.get(scale)) or (scale.requires_grad and not self.made.get(scale))

    def multiplied(self, powers: Powers | None, scale: torch.Tensor | None, base: str) -> Powers | None:
        """What a product ("mul") or quotient ("div") is made of: something made of `powers`, and `scale`. None if unknown."""
        made = None if scale is None else self.roots.held.get(scale)
        made = self.again(scale) if scale is not None and made is None else made
        return combined([(powers, 1.0), (made, 1.0 if base == "mul" else -1.0)])

    def again(self, scale: torch.Tensor) -> Powers | None:
        """The power of a factor that data has been rounded under, if this is the factor or its inverse, whatever it was computed from."""
        if not self.used:
            return None
        values = _numbers(scale)
        for number, used in reversed(self.used):
            for sign, factors in ((1.0, used), (-1.0, (1 / used).flip(0))):
                if len(values) == len(used) and bool(((factors - values).abs() <= LIKE * factors).all()):
                    return {frozenset({number}): sign}
        return None

    def divides(self, data: torch.Tensor, by: torch.Tensor, result: torch.Tensor) -> bool:
        """Whether a quotient is one of integers. If it is truncated, that is an integer division, and nothing is quantised."""
        shares = counts(by) and (counts(data) or bool(self.shares.get(data)))
        if shares:
            self.shares.put(result, True)
        return shares

    def rounded_under(self, by: torch.Tensor) -> Powers | None:
        """Data that was multiplied by these factors is rounded. Returns their power. The number 1 scales nothing."""
        values = _numbers(by)
        if not len(values):  # a page that has no rows yet has no scales
            return None
        found = self.again(by)
        if found is None:
            found = {frozenset({next(self.roots.numbers)}): 1.0}
        self.used = [*self.used[-REMEMBERED:], (min(min(found)), values if 1.0 in found.values() else (1 / values).flip(0))]
        return None if bool((values == 1).all()) else found

    def among(self, tensor: torch.Tensor) -> bool:
        """Whether all its numbers are scales that data has been rounded under, or their inverses. The number 1 is no evidence."""
        values = torch.unique(tensor.detach().reshape(-1)[:LOOKED_AT].float().abs())
        if not self.used or bool(((values == 0) | (values == 1) | ~values.isfinite()).all()):
            return False
        return any(_within(values, torch.cat([used, 1 / used]).sort().values) for _, used in self.used)


def _numbers(by: torch.Tensor) -> torch.Tensor:
    """The magnitudes of a scale's numbers, each once, in order."""
    values = by.detach().reshape(-1)[:: max(1, by.numel() // LOOKED_AT)].float().abs()
    made: torch.Tensor = values[(values > 0) & values.isfinite()].unique()
    return made


def counts(tensor: torch.Tensor) -> bool:
    """Whether it holds only integers."""
    return not tensor.is_floating_point() or not bool((tensor.detach() % 1 != 0).any())


def _within(values: torch.Tensor, known: torch.Tensor) -> bool:
    place = torch.searchsorted(known, values).clamp_(max=len(known) - 1)
    nearest = torch.minimum((known[place] - values).abs(), (known[(place - 1).clamp_(min=0)] - values).abs())
    return bool((nearest <= LIKE * values).all())


def scale_of(
    left: torch.Tensor, right: torch.Tensor | float, scales: QuantiserScales, scaled: Storages[Scaled], *, quotient: bool
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The data and the scale of a product or quotient. None if neither is clearly a scale. Numbers are read only to test for a step size."""
    if not isinstance(right, torch.Tensor):
        return None
    if right.is_floating_point() and _fewer(right, left, scales):
        return left, right
    if not quotient and left.is_floating_point() and _fewer(left, right, scales):
        return right, left
    if quotient and scaled and scaled.get(left) is not None and left.shape == right.shape and steps(right):
        return left, right
    return None


def steps(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a power of two for each element, as the distances between a float format's neighbouring numbers are."""
    fractions, _ = torch.frexp(tensor.detach()) if tensor.is_floating_point() else (tensor, None)
    return bool((fractions == 0.5).all())


def _fewer(scale: torch.Tensor, data: torch.Tensor, scales: QuantiserScales) -> bool:
    if scale.numel() != data.numel():
        return scale.numel() < data.numel()
    return (length(scale) < scale.numel() or bool(scales.made.get(scale))) and not scales.made.get(data)


def written(base: str, args: tuple[Any, ...]) -> bool:
    """Whether an op multiplies data by the largest number of a float8 format, which is written down as a number."""
    return base == "mul" and isinstance(args[1], (int, float)) and args[1] in SATURATED and isinstance(args[0], torch.Tensor)


def begins(base: str, args: tuple[Any, ...]) -> bool:
    """Whether an op may make a scale, or may scale a tensor by fewer numbers than it has. An expanded scale has fewer numbers in memory."""
    if base in EXTREMES or base in AVERAGES or base == "round" or (base.startswith("clamp") and any(each in ENDS for each in args[1:])):
        return True
    if base not in ("mul", "div") or written(base, args):
        return base == "mul"
    left, right = args[:2]
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor) or {left.layout, right.layout} != {torch.strided}:
        return False
    return left.numel() != right.numel() or not (left.is_contiguous() and right.is_contiguous())
