"""Tells whether a candidate hides other elements than the reference: each wrong one is what the reference has there with it hidden, or shown.

Other masks are tried one by one in `masks`. Which elements a computed mask hides, as shares that make up four fifths, has no such list.
"""

from __future__ import annotations

from typing import Any

import torch

from precheck.kernels import masks
from precheck.kernels.bench import Bench
from precheck.kernels.trial_result import Judged
from precheck.kernels.trials import Made
from precheck.observe.exact import Exact

_DRAWS = 4
"""Draws of which elements are changed, to see whether a mask depends on others."""
_MOST = 8
"""The most masks of a reference that are changed one by one."""


class Shown(Exact):
    """float64, with one of the masks hiding nothing, or everything, or as another one does. `masks`: those that the reference has, as they were."""

    def __init__(self, which: int = -1, chosen: bool | torch.Tensor = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.which, self.chosen = which, chosen
        self.masks: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        place = {"where": 0, "masked_fill": 1}.get(func.overloadpacket.__name__.rstrip("_"))
        if place is not None and len(args) == 3 and isinstance(args[place], torch.Tensor) and args[place].dtype is torch.bool:
            self.masks.append(args[place].clone())
            if len(self.masks) - 1 == self.which:
                other = self.chosen if isinstance(self.chosen, torch.Tensor) else torch.full_like(args[place], self.chosen)
                args = (*args[:place], other, *args[place + 1 :])
        return super().__torch_dispatch__(func, types, args, kwargs)


def explains(bench: Bench, judged: Judged) -> str:
    """The explanation in words, or "". A mask whose elements each depend on one element alone chooses between two functions, and does not count."""
    name = judged.fault.subject if judged.fault is not None else ""
    got, found = judged.outcome.values.get(name) if judged.outcome is not None else None, judged.distances.get(name)
    if got is None or found is None or found.wrong is None or not bool(found.wrong.any()) or not got.is_floating_point():
        return ""
    mode = Shown()
    bench.under(mode, judged.trial)
    for which in range(min(len(mode.masks), _MOST)):
        shown, hidden = (bench.under(Shown(which, chosen), judged.trial).values.get(name) for chosen in (True, False))
        if shown is None or hidden is None or shown.shape != got.shape or hidden.shape != got.shape:
            continue
        other = torch.where(gap(got, shown) <= gap(got, hidden), shown, hidden)
        right = judged.reference.exact.values.get(name) if judged.reference is not None else None
        off, left = (gap(got, each)[found.wrong] for each in (right, other))
        if bool((left <= masks.BEHIND**0.5 * off).all()) and depends_on_others(bench, judged, which):
            return "a mask that hides other elements"
    return ""


def gap(one: torch.Tensor, other: Any) -> torch.Tensor:
    """The distance of elements. Two that are not finite, and the same, are at one place."""
    gap = (one.double() - other.double()).abs()
    same = (one == other.to(one.dtype)) | (one.isnan() & other.isnan())
    return torch.where(same, 0.0, gap.nan_to_num(nan=torch.inf))


def depends_on_others(bench: Bench, judged: Judged, which: int) -> bool:
    """Whether a mask changes at elements that stay as they are, where others of an input of its shape change."""
    made, generator = bench.make(judged.trial), torch.Generator().manual_seed(5)
    before = _mask(bench, judged, made, which)
    if before is None:
        return False
    for place, value in enumerate(made.values):
        if value.is_floating_point() and value.shape == before.shape:
            for _ in range(_DRAWS):
                stays = torch.rand(value.shape, generator=generator) < 0.5
                values = [torch.where(stays, each, each * 0.5 + 0.75) if other == place else each for other, each in enumerate(made.values)]
                after = _mask(bench, judged, Made(values, made.numbers), which)
                if after is not None and after.shape == before.shape and bool((before != after)[stays].any()):
                    return True
    return False


def _mask(bench: Bench, judged: Judged, made: Made, which: int) -> torch.Tensor | None:
    mode = Shown()
    bench.under(mode, judged.trial, made=made)
    return mode.masks[which] if which < len(mode.masks) else None
