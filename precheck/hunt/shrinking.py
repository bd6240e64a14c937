"""An input that breaks a model, shrunk to the elements that matter.

Hypothesis shrinks what a strategy drew: shapes, layouts, contents. What is left are elements. All that the fault does not need become zero, half by
half (the recursive form of delta debugging), and the rest become as plain as they can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from precheck.hunt.literals import FEW, differing
from precheck.observe.containers import mapped, tensors

_ROUNDS = 3
"""As tensors of one input get simpler, so may others; a third round has never changed anything but the last bit of work."""


class Shrinking:
    """Shrinks one input while `breaks` says that it still does, with at most `most` questions.

    `ceilings`: by path, the greatest magnitude that the strategy has given there, which no element is raised beyond.
    """

    def __init__(self, inputs: Any, breaks: Callable[[Any], bool], ceilings: Mapping[str, float], most: int) -> None:
        self.inputs, self.breaks, self.ceilings, self.left = inputs, breaks, ceilings, most
        self.paths, self.values = [path for path, _ in tensors(inputs)], [value for _, value in tensors(inputs)]

    def shrunk(self) -> Any:
        """The simplest input found that still breaks, in the structure that was given."""
        for _ in range(_ROUNDS):
            before = list(self.values)
            for place in range(len(self.values)):
                self._laid_out(place)
                self._thinned(place)
                self._plainer(place)
            if all(now is then for now, then in zip(self.values, before, strict=True)):
                break
        return self._with(self.values)

    def _with(self, values: list[torch.Tensor]) -> Any:
        rest = iter(values)
        return mapped(self.inputs, lambda _: next(rest))

    def _attempt(self, place: int, value: torch.Tensor) -> bool:
        """Takes `value` if the input with it still breaks."""
        if self.left <= 0:
            return False
        self.left -= 1
        trial = list(self.values)
        trial[place] = value.requires_grad_(self.values[place].requires_grad)
        if not self.breaks(self._with(trial)):
            return False
        self.values = trial
        return True

    def _laid_out(self, place: int) -> None:
        value = self.values[place].detach()
        if not value.is_contiguous():
            self._attempt(place, value.contiguous())

    def _thinned(self, place: int) -> None:
        """Leaves as few elements as can be that are neither 0 (True of a mask) nor, where that leaves fewer, 1 (False)."""
        start = self.values[place]
        fills = (True, False) if start.dtype is torch.bool else (0, 1)
        best = start
        for fill in fills:
            self.values[place] = start
            self._bolder(place, fill)
            self._dropped(place, differing(self.values[place], fill), fill)
            if _matter(self.values[place]) < _matter(best):
                best = self.values[place]
            if _matter(best) <= FEW:
                break
        self.values[place] = best
        if _matter(best) > FEW and best.is_floating_point():
            self._attempt(place, torch.full_like(best, float(best.detach().double().abs().amax())))

    def _bolder(self, place: int, fill: float) -> None:
        """Where many elements matter together, fewer do if each is as large as any that the strategy gives."""
        value, top = self.values[place].detach(), self.ceilings.get(self.paths[place], 0.0)
        which = differing(value, fill)
        if value.is_floating_point() and len(which) > FEW and top:
            bold = value.clone().contiguous()
            wide = bold.double().view(-1)
            wide[which] = wide[which].sign() * top
            self._attempt(place, wide.to(value.dtype).view(value.shape))

    def _dropped(self, place: int, which: torch.Tensor, fill: float) -> None:
        """Sets those elements to `fill`: all at once, or each half on its own."""
        if not len(which) or self.left <= 0 or self._attempt(place, _edited(self.values[place], which, fill)) or len(which) == 1:
            return
        half = len(which) // 2
        self._dropped(place, which[half:], fill)  # the first elements stay, where any would do
        self._dropped(place, which[:half], fill)

    def _plainer(self, place: int) -> None:
        """Floating elements, if few: positive, a power of two, and as near to 1 as still breaks."""
        value = self.values[place]
        which = differing(value, 0)
        if not value.is_floating_point() or not 0 < len(which) <= FEW:
            return
        for one in which.split(1):
            number = _number(self.values[place], one)
            if not math.isfinite(number):
                continue
            if number < 0:
                self._attempt(place, _edited(self.values[place], one, -number))
            self._rounder(place, one)

    def _rounder(self, place: int, one: torch.Tensor) -> None:
        number = _number(self.values[place], one)
        sign, (mantissa, exponent) = math.copysign(1.0, number), math.frexp(abs(number))
        exponent -= 1  # |number| = 2 mantissa 2^exponent, with 2 mantissa in [1, 2)
        if mantissa != 0.5 and not self._attempt(place, _edited(self.values[place], one, sign * 2.0**exponent)):
            return
        breaking, sparing = exponent, 0 if 2.0**0 <= self.ceilings.get(self.paths[place], 0.0) or exponent > 0 else exponent
        while abs(breaking - sparing) > 0:
            middle = sparing if abs(breaking - sparing) == 1 else (breaking + sparing) // 2
            if self._attempt(place, _edited(self.values[place], one, sign * 2.0**middle)):
                breaking = middle
            elif middle == sparing:
                break
            else:
                sparing = middle


def _number(value: torch.Tensor, one: torch.Tensor) -> float:
    return float(value.detach().reshape(-1).double()[one])  # float8 takes no index in torch 2.9


def _edited(value: torch.Tensor, which: torch.Tensor, number: float) -> torch.Tensor:
    edited = value.detach().clone(memory_format=torch.contiguous_format)
    wide = edited.view(-1) if edited.element_size() > 1 or not edited.is_floating_point() else edited.float().view(-1)
    wide[which] = number  # float8 takes no index
    return wide.to(value.dtype).view(value.shape)


def _matter(value: torch.Tensor) -> int:
    return len(differing(value, value.dtype is torch.bool))
