"""Tests whether another mask explains the candidate's result: the reference is run in float64 with its masks changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from precheck import ops
from precheck.kernels import running
from precheck.kernels.bench import Bench
from precheck.kernels.trial_result import Judged
from precheck.kernels.trials import Made
from precheck.observe.exact import Exact
from precheck.torch_internals import overload, schema

BEHIND = 0.01
"""Share of a mean square error that may be left if another mask explains it."""


class _Masked(Exact):
    """float64, with one change to masks. `changed` says whether there was a mask to change."""

    def __init__(self, way: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.way, self.changed = way, False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, dict(kwargs or {})
        other = self._otherwise(name.rstrip("_"), func, args, kwargs)
        if other is not None:
            self.changed = True
            func, args, kwargs = other
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _otherwise(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
        if name in ("tril", "triu") and self.way in ("later", "earlier"):
            diagonal = args[1] if len(args) > 1 else kwargs.pop("diagonal", 0)
            return func, (args[0], diagonal + (1 if self.way == "later" else -1)), kwargs
        if self.way == "bound" and _bounds(name) and isinstance(args[0], torch.Tensor) and not args[0].is_floating_point():
            packet = getattr(torch.ops.aten, name[0] + ("t" if name[1] == "e" else "e"))  # ge and gt, le and lt
            return getattr(packet, overload(func) or "default"), args, kwargs
        if self.way == "same" and name in ("eq", "ne") and isinstance(args[0], torch.Tensor) and not args[0].is_floating_point():
            return func, args, kwargs
        if name == "slice" and self.way in _WINDOWS:
            return _sliced(func, args, *_WINDOWS[self.way])
        ignored = next((place for place, each in enumerate(schema(func).arguments) if each.name == "ignore_index"), len(args))
        if self.way == "none" and ignored < len(args) and "backward" not in name:  # of a loss: then no label is the ignored one
            return func, (*args[:ignored], int(args[1].min()) - 1 if args[1].numel() else 0, *args[ignored + 1 :]), kwargs
        if name == "masked_fill" and self.way in ("none", "inverted", "weak"):
            mask = torch.zeros_like(args[1]) if self.way == "none" else ~args[1] if self.way == "inverted" else args[1]
            value = torch.zeros_like(args[2]) if self.way == "weak" and isinstance(args[2], torch.Tensor) else 0.0 if self.way == "weak" else args[2]
            return func, (args[0], mask, value), kwargs
        if self.way in _CONDITIONS and name in _JOINING and all(isinstance(each, torch.Tensor) and each.dtype is torch.bool and each.dim()
                                                                for each in args[:2]):  # fmt: skip
            return func, self._alone(name, args), kwargs
        if name in ("masked_fill", "where") and self.way in _SHIFTS:
            place = 1 if name == "masked_fill" else 0
            moved = _shifted(args[place], self.way)
            return None if moved is None else (func, (*args[:place], moved, *args[place + 1 :]), kwargs)
        if name == "where" and len(args) == 3 and args[0].dim() and self.way in ("none", "all", "inverted"):  # one condition for all hides nothing
            mask = torch.ones_like(args[0]) if self.way == "none" else torch.zeros_like(args[0]) if self.way == "all" else ~args[0]
            return func, (mask, *args[1:]), kwargs
        if "scaled_dot_product" in name and "backward" not in name and self.way in ("none", "toggled", *_SHIFTS):
            return self._attention(func, args, kwargs)
        return None

    def _alone(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Two flags that an op joins, one of which says nothing: True for "and", False for "or"."""
        left_out = _CONDITIONS[self.way]
        same = torch.ones_like(args[left_out]) if _JOINING[name] else torch.zeros_like(args[left_out])
        return (*args[:left_out], same, *args[left_out + 1 :])

    def _attention(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
        if self.way == "none" and kwargs.get("attn_mask") is not None:
            return func, args, {**kwargs, "attn_mask": None}
        if self.way in _SHIFTS and "attn_mask" in {each.name for each in schema(func).arguments}:
            return self._moved(func, args, kwargs)
        if self.way == "toggled" and len(args) > 4 and isinstance(args[4], bool):
            return func, (*args[:4], not args[4], *args[5:]), kwargs
        return None

    def _moved(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
        """The mask of an attention, also its causal one, moved."""
        rows, columns, added = args[0].shape[-2], args[1].shape[-2], kwargs.get("attn_mask")
        causal = len(args) > 4 and args[4] is True
        if (added is None and not causal) or (added is not None and self.changed):  # the tensor that the mask was made of has been moved already
            return None
        hidden = torch.ones(rows, columns, dtype=torch.bool).triu(1) if added is None else added == float("-inf")
        moved = _shifted(hidden, self.way)
        if moved is None:
            return None
        mask = torch.zeros(moved.shape, dtype=torch.float64).masked_fill(moved, float("-inf"))
        return func, (*args[:4], False, *args[5:]), {**kwargs, "attn_mask": mask}


def _bounds(name: str) -> bool:
    """Whether the op compares which of two values is larger."""
    return name in ops.ASKING and name[0] in "gl" and name[1:] in ("e", "t")


def _shifted(mask: torch.Tensor, way: str) -> torch.Tensor | None:
    """A mask moved along its columns, as if it started at another corner. None if that is the same mask."""
    if mask.dim() < 2 or mask.shape[-1] < 2:  # one column is no row of a window, nor has a corner
        return None
    if way in _WINDOWS:
        return _resized(mask, *_WINDOWS[way])
    rows, columns = mask.shape[-2:]
    step = {"next": 1, "last": -1, "corner": rows - columns, "other corner": columns - rows}[way]
    apart = torch.arange(columns, device=mask.device) - torch.arange(rows, device=mask.device)[:, None]
    if step and bool(mask.any()) and not bool(mask.all()):
        inside = apart.expand(mask.shape)[mask]
        for found, moved in ((apart >= inside.min(), apart >= inside.min() + step), (apart <= inside.max(), apart <= inside.max() + step)):
            if torch.equal(found.expand(mask.shape), mask):
                return moved.expand(mask.shape)
    places = (torch.arange(columns, device=mask.device) - step).clamp(0, columns - 1)
    return mask[..., places] if step else None


def _resized(mask: torch.Tensor, edge: int, step: int) -> torch.Tensor | None:
    """A window with one of its two edges moved, or None if the mask is no window. A window's mask depends only on the distance of a column from its
    row."""
    rows, columns = mask.shape[-2:]
    places = torch.arange(columns, device=mask.device) - torch.arange(rows, device=mask.device)[:, None] + rows - 1
    along = torch.zeros(rows + columns - 1, dtype=torch.bool, device=mask.device)
    along[places.expand(mask.shape)[mask]] = True
    edges = (along[1:] != along[:-1]).nonzero().flatten().tolist()
    if len(edges) < 2 or not torch.equal(along[places].expand(mask.shape), mask):
        return None
    last = edges[edge]  # the diagonal before the edge
    along[last + 1 if step > 0 else last] = along[last if step > 0 else last + 1].clone()
    return along[places].expand(mask.shape)


def _sliced(func: Any, args: tuple[Any, ...], edge: int, step: int) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """A slice with one of its two edges moved. It is a mask that leaves out the rest. None if nothing is left out at that edge."""
    place, size = (3 if edge else 2), args[0].shape[args[1]] if len(args) > 1 else 0
    bound = args[place] if len(args) > place else None
    bound = bound + size if bound is not None and bound < 0 else bound
    if bound is None or not 0 < bound < size:
        return None
    return func, (*args[:place], bound + step, *args[place + 1 :]), {}


_WINDOWS = {"early": (0, -1), "late": (0, 1), "ends early": (-1, -1), "ends late": (-1, 1)}
_SHIFTS = {"next": "a mask one column further", "last": "a mask one column less far", "corner": "a mask from the first corner",
           "other corner": "a mask from the last corner", "early": "a window that begins one column earlier",
           "late": "a window that begins one column later", "ends early": "a window that ends one column earlier",
           "ends late": "a window that ends one column later"}  # fmt: skip
BOUNDS = ("bound", "ends late")
"""Ways that change something where the reference compares places with lengths, or leaves out the end of a row."""
HIDING = ("none", "later", "toggled")
"""Ways that change something where the reference masks anything."""
_CONDITIONS = {"without the first": 0, "without the second": 1}
_JOINING = {"bitwise_and": True, "logical_and": True, "bitwise_or": False, "logical_or": False}
"""Ops that join two conditions of a mask, and whether both have to be met."""
_WAYS = _SHIFTS | {
    "without the first": "a mask without the first of two conditions", "without the second": "a mask without the second of two conditions",
    "later": "a triangle one further", "earlier": "a triangle one less far", "bound": "a bound taken in that is left out, or the other way round",
    "none": "no mask", "all": "everything masked", "inverted": "the mask inverted", "weak": "a mask of 0 in place of its value",
    "toggled": "a causal mask more or less",
}  # fmt: skip


def explains(bench: Bench, judged: Judged) -> str:
    """The mask that explains the candidate's result, in words, or ""."""
    return next((words for words, outcome in _others(bench, judged) if closer(judged, outcome)), "")


def _others(bench: Bench, judged: Judged) -> Iterator[tuple[str, running.Outcome]]:
    for way, words in _WAYS.items():
        mode = _Masked(way)
        outcome = bench.under(mode, judged.trial)
        if mode.changed:
            yield words, outcome
    made, bounded = bench.make(judged.trial), asks(bench, judged, *BOUNDS)
    for place, leaf in enumerate(bench.example.leaves):
        for words, values in _leaves(made.values[place], bounded):
            changed = [values if other == place else each for other, each in enumerate(made.values)]
            yield f"{words} for inputs{leaf.path}", bench.exact_of(judged.trial, Made(changed, made.numbers))


def _leaves(mask: torch.Tensor, bounded: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Other masks instead of one that is an input. `bounded`: whether the reference compares places with lengths, or cuts rows off."""
    if mask.dtype is torch.bool:
        changes: Sequence[tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = (
            ("all True", torch.ones_like), ("all False", torch.zeros_like), ("the inverse", torch.logical_not),
        )  # fmt: skip
        yield from ((words, change(mask)) for words, change in changes)
        if mask.dim():
            yield from ((f"a mask shifted by {step}", mask.roll(step, axis)) for axis in range(mask.dim()) for step in (1, -1))
    elif mask.is_floating_point() and bool(mask.isinf().any()):
        yield "no Inf", mask.nan_to_num(neginf=0.0, posinf=0.0)
    elif bounded and not mask.is_floating_point() and not mask.is_complex() and mask.numel() and mask.dim() <= 1:
        yield from (("lengths one longer", mask + 1), ("lengths one shorter", (mask - 1).clamp(min=0)))


def asks(bench: Bench, judged: Judged, *ways: str) -> bool:
    """Whether the reference has something that these ways change: it compares integers, as to find positions beyond a length or rows of one
    sequence, or leaves out the end of a row by a slice."""
    modes = [_Masked(way) for way in ways]
    for mode in modes:
        bench.under(mode, judged.trial)
    return any(mode.changed for mode in modes)


def closer(judged: Judged, other: running.Outcome, behind: float = BEHIND) -> bool:
    """Whether the candidate's wrong outputs equal those of `other`. `behind`: the share of a mean square error that may be left."""
    shown = False
    for name in judged.outcome.values if judged.outcome is not None and other.error is None else ():
        found, pair, b = judged.distances.get(name), judged.results(name), other.values.get(name)
        if (found is not None and found.ratio <= 1) or pair is None or b is None or not name.startswith("output") or b.shape != pair[0].shape:
            continue
        off, left = _error(*pair), _error(pair[0], b)
        if off > 0:
            shown = True
            if left > behind * off:
                return False
    return shown


def _error(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.double(), b.double()
    different = (a.isfinite() != b.isfinite()).double()
    gap = (a - b).where(a.isfinite() & b.isfinite(), 0.0)
    return float(gap.square().sum() + different.sum() * 1e6)

