"""Tells whether a candidate hides other elements than the reference, as of shares that make up four fifths, for which `masks` has no list.

What the rows of the candidate's result do not depend on is tried as a mask of the reference. Where an element matters to its own result alone, each
wrong result is what the reference has there with it hidden, or shown. Where shares are made one again, or a sum is divided by what counts in it,
every result depends on the whole mask. There elements of the mask are turned over one after another, and each stays so if the reference comes closer
to the candidate. A mask that chooses between two functions is none: its elements each depend on one element, and change no result but their own.
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
_MASKS, _ELEMENTS = 4, 48
"""The most masks of which elements are turned over, and the most elements of each. Each element takes a run of the reference."""


_KEYS = 32
"""The most rows of an input that are changed one by one. Each takes a run of the candidate."""


class _Shown(Exact):
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
    """The explanation in words, or ""."""
    pair, found, mode = judged.results(), judged.distances.get(judged.subject), _Shown()
    if pair is None or found is None or found.wrong is None or not bool(found.wrong.any()) or not pair[0].is_floating_point():
        return ""
    got, right = pair
    bench.under(mode, judged.trial)
    for place, leaf in enumerate(bench.example.leaves if mode.masks and got.dim() > 1 else ()):
        if (unread := _unread(bench, judged, got, place)) is not None and _hides(bench, judged, mode.masks, unread):
            return f"a mask that leaves other rows of inputs{leaf.path}"
    if any(_each(bench, judged, which, right, got, found.wrong) for which in range(min(len(mode.masks), _MOST))):
        return "a mask that hides other elements"
    for which, mask in enumerate(mode.masks[:_MASKS]):
        few = 1 < mask.numel() <= _ELEMENTS and mask.shape == got.shape[: mask.dim()]
        if few and _one_after_another(bench, judged, which, mask, right, got, found.wrong):
            alike = any(leaf.tensor.is_floating_point() and leaf.tensor.shape == mask.shape for leaf in bench.example.leaves)
            if not alike or _depends_on_others(bench, judged, which):
                return "a mask that hides other elements, which count in the results of others,"
    return ""


def _unread(bench: Bench, judged: Judged, got: torch.Tensor, place: int) -> torch.Tensor | None:
    """Which rows of an input each row of the candidate's result does not depend on. None if it depends on all, or on none."""
    made = bench.make(judged.trial)
    value = made.values[place]
    if not value.is_floating_point() or value.dim() < 2 or not 0 < value.shape[-2] <= _KEYS:
        return None
    unread = torch.zeros(*got.shape[:-1], value.shape[-2], dtype=torch.bool)
    for row in range(value.shape[-2]):
        moved = value.clone()
        moved.select(-2, row).mul_(0.75).add_(0.25)
        outcome = bench.call(judged.trial, Made([moved if other == place else each for other, each in enumerate(made.values)], made.numbers))[0]
        now = outcome.values.get(judged.subject)
        if now is None or now.shape != got.shape:
            return None
        unread[..., row] = (now.nan_to_num() == got.nan_to_num()).all(-1)
    return unread if bool(unread.any()) and not bool(unread.all()) else None


def _hides(bench: Bench, judged: Judged, found: list[torch.Tensor], unread: torch.Tensor) -> bool:
    """Whether the reference gives the candidate's result with a mask of its own that hides, or shows, what the candidate does not read."""
    fitting = [which for which, mask in enumerate(found[:_MOST]) if mask.dim() > 1 and mask.shape[-2:] == unread.shape[-2:]]
    return any(masks.closer(judged, bench.under(_Shown(which, each), judged.trial)) for which in fitting for each in (unread, ~unread))


def _each(bench: Bench, judged: Judged, which: int, right: torch.Tensor, got: torch.Tensor, wrong: torch.Tensor) -> bool:
    """Whether each wrong element is what the reference has there with all hidden by a mask, or all shown."""
    assert judged.fault is not None
    shown, hidden = (bench.under(_Shown(which, chosen), judged.trial).values.get(judged.fault.subject) for chosen in (True, False))
    if shown is None or hidden is None or shown.shape != got.shape or hidden.shape != got.shape:
        return False
    other = torch.where(_gap(got, shown) <= _gap(got, hidden), shown, hidden)
    off, left = (_gap(got, each)[wrong] for each in (right, other))
    return bool((left <= masks.BEHIND**0.5 * off).all()) and _depends_on_others(bench, judged, which)


def _one_after_another(bench: Bench, judged: Judged, which: int, mask: torch.Tensor, right: torch.Tensor, got: torch.Tensor,
                       wrong: torch.Tensor) -> bool:  # fmt: skip
    """Whether another mask gives all of the candidate's wrong elements, and an element of it changes results of others."""
    assert judged.fault is not None
    value, off, shared = right, _gap(got, right)[wrong], False
    left = off
    for place in range(mask.numel()):
        turned = mask.clone()
        turned.view(-1)[place] ^= True
        other = bench.under(_Shown(which, turned), judged.trial).values.get(judged.fault.subject)
        if other is None or other.shape != got.shape:
            return False
        now = _gap(got, other)[wrong]
        if float(now.square().sum()) < float(left.square().sum()):
            changed = (other != value).reshape(mask.numel(), -1).any(1)
            shared |= bool((changed & (torch.arange(mask.numel()) != place)).any())
            mask, value, left = turned, other, now
    return shared and bool((left <= masks.BEHIND**0.5 * off).all())


def _gap(one: torch.Tensor, other: Any) -> torch.Tensor:
    """The distance of elements. Two that are not finite, and the same, are at one place."""
    gap = (one.double() - other.double()).abs()
    same = (one == other.to(one.dtype)) | (one.isnan() & other.isnan())
    return torch.where(same, 0.0, gap.nan_to_num(nan=torch.inf))


def _depends_on_others(bench: Bench, judged: Judged, which: int) -> bool:
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
    mode = _Shown()
    bench.under(mode, judged.trial, made=made)
    return mode.masks[which] if which < len(mode.masks) else None
