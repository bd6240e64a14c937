"""Shrinks a failing input element by element, so that only the elements that the fault needs are left.

Hypothesis has shrunk what the strategy drew: shapes, layouts, contents. Here the elements that the fault does not need are set to zero, half of them
at a time (recursive delta debugging), and the others are made as simple as possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from precheck.input_search.literals import FEW, differing
from precheck.observe.containers import mapped, tensors

_ROUNDS = 3
"""The most rounds. When one tensor gets simpler, others may too. A third round hardly ever changes anything."""


class Shrinking:
    """Shrinks one input as long as `breaks` is true for it, with at most `most` calls of `breaks`.

    `ceilings`: the largest magnitude that the strategy drew for each path. No element is raised beyond it.
    """

    def __init__(self, inputs: Any, breaks: Callable[[Any], bool], ceilings: Mapping[str, float], most: int) -> None:
        self.inputs, self.breaks, self.ceilings, self.left = inputs, breaks, ceilings, most
        self.paths, self.values = [path for path, _ in tensors(inputs)], [value for _, value in tensors(inputs)]

    def shrunk(self) -> Any:
        """The simplest failing input that was found, in the structure of the original."""
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
        """Replaces a tensor by `value` if the input still fails with it. Returns whether it did."""
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
        """Sets as many elements as possible to 0 (True in a mask), or to 1 (False) if that leaves fewer others."""
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
        """Raises all elements to the largest magnitude of the strategy if many are needed, since then fewer may be enough."""
        value, top = self.values[place].detach(), self.ceilings.get(self.paths[place], 0.0)
        which = differing(value, fill)
        if value.is_floating_point() and len(which) > FEW and top:
            bold = value.clone().contiguous()
            wide = bold.double().view(-1)
            wide[which] = wide[which].sign() * top
            self._attempt(place, wide.to(value.dtype).view(value.shape))

    def _dropped(self, place: int, which: torch.Tensor, fill: float) -> None:
        """Tries to set those elements to `fill`: all at once, or else each half separately."""
        if not len(which) or self.left <= 0 or self._attempt(place, _edited(self.values[place], which, fill)) or len(which) == 1:
            return
        half = len(which) // 2
        self._dropped(place, which[half:], fill)  # the second half first, so that of equal choices the first elements stay
        self._dropped(place, which[:half], fill)

    def _plainer(self, place: int) -> None:
        """Simplifies the elements of a floating tensor if they are few: positive, a power of two, and as near to 1 as possible."""
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
