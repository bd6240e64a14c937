"""Describes how a parameter of one model is stored in the other: unchanged, transposed, or joined with others in one tensor."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch

from precheck.torch_support.dense_parts import composed

AXES = 5
"""Axes of a weight up to which all orders are tried: those of a filter of three dimensions."""


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """Parameters of `other` and of `model` that hold the same numbers. One of the two lists may be longer: its parameters are joined along `dim`."""

    others: tuple[str, ...]
    models: tuple[str, ...]
    dim: int = 0
    turned: bool = False  # whether one side is the transpose of the other; with `order`, it is the side whose rows are reordered
    same: bool = True  # whether the numbers are equal; False if only the names match
    shape: tuple[int, ...] | None = None  # model's shape, if other's differs: a convolution's weight as a matrix
    order: tuple[int, ...] | None = None  # of rows: the joined rows of one side, in this order, are those of the other
    ordered: Literal["models", "others"] = "models"  # the side whose rows, or axes, are reordered
    axes: tuple[int, ...] = ()  # the axes of that side in this order, in any shape, give the other side

    def of_other(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        found = self._joined(self.others, tensors, turned=self.turned and (self.order is None or self.ordered == "others"), side="others")
        return found if found is None or self.shape is None else found.reshape(self.shape)

    def of_model(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        return self._joined(self.models, tensors, turned=self.turned and self.order is not None and self.ordered == "models", side="models")

    def placed(self, common: torch.Tensor, shapes: Mapping[str, torch.Size]) -> dict[str, torch.Tensor]:
        """The parameters of `other`, of these shapes, that hold the numbers of `common`. It is the inverse of `of_other`."""
        if len(self.others) == 1 and self.order is None and not self.turned and not self.axes and self.shape is None:
            return {self.others[0]: common} if common.shape == shapes[self.others[0]] else {}
        ids, count = {}, 0
        for name in self.others:
            ids[name] = torch.arange(count, count + shapes[name].numel(), device=common.device).reshape(shapes[name])
            count += shapes[name].numel()
        places = self.of_other(ids)
        if places is None or places.shape != common.shape or places.numel() != count:
            return {}
        values = torch.empty(count, dtype=common.dtype, device=common.device)
        values[places.reshape(-1)] = common.reshape(-1)
        return {name: values[each] for name, each in ids.items()}

    def _joined(self, names: Sequence[str], tensors: Mapping[str, torch.Tensor], *, turned: bool, side: str) -> torch.Tensor | None:
        """All parts as one. A part without a gradient, such as an expert that no token chose, has a gradient of zero if others have one; parts of one
        shape alone can be told then."""
        there = [tensors[name] for name in names if name in tensors]
        if not there or (len(there) < len(names) and len({each.shape for each in there}) > 1):
            return None
        found = [tensors[name] if name in tensors else torch.zeros_like(there[0]) for name in names]
        values = [each.t() if turned and each.dim() == 2 else each for each in found]
        if self.order is not None:
            rows = torch.cat([_rows(each) for each in values])
            return rows[list(self.order)] if self.ordered == side else rows
        if self.axes and self.ordered == side:
            return values[0].permute(self.axes)
        return values[0] if len(values) == 1 else torch.cat(values, self.dim)


def numbers(value: torch.Tensor) -> torch.Tensor:
    """The numbers that a weight stands for, one by one: those of a quantised weight of torchao, say, whose class compares nothing."""
    if composed(value) and hasattr(value, "dequantize"):
        with contextlib.suppress(NotImplementedError, RuntimeError, TypeError), torch.no_grad():
            return value.dequantize()
    return value


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold equal numbers. If their formats differ, both are compared in the lower one."""
    if a.shape != b.shape or a.layout != b.layout or a.layout is not torch.strided or a.is_complex() != b.is_complex():
        return False
    if a.dtype != b.dtype:
        lower = min(a.dtype, b.dtype, key=lambda dtype: dtype.itemsize)
        a, b = a.to(lower), b.to(lower)
    return bool(torch.equal(a, b))


def one_to_one(name: str, value: torch.Tensor, wanted: str, candidate: torch.Tensor) -> Link | None:
    """The link of two parameters with the same numbers, unchanged, transposed, or with axes in another order and another shape."""
    if equal(value, candidate):
        return Link((name,), (wanted,))
    if value.dim() == 2 and equal(value.t(), candidate):
        return Link((name,), (wanted,), turned=True)
    if value.shape != candidate.shape and value.numel() == candidate.numel() > 1 and len({value.dim(), candidate.dim()}) > 1:
        for turned in (False, True) if value.dim() == 2 else (False,):
            if equal((value.t() if turned else value).reshape(candidate.shape), candidate):
                return Link((name,), (wanted,), turned=turned, shape=tuple(candidate.shape))
    if value.numel() != candidate.numel() or value.numel() < 2 or not equal(*(each.flatten()[[0, -1]] for each in (value, candidate))):
        return None  # no order of axes moves the first number, or the last
    side: Literal["models", "others"] = "others" if value.dim() >= candidate.dim() else "models"
    here, there = (value, candidate) if side == "others" else (candidate, value)
    orders = itertools.permutations(range(here.dim())) if here.dim() <= AXES else iter(())
    axes = next((each for each in orders if equal(here.permute(each).reshape(there.shape), there)), None)
    if axes is None:
        return None
    shape = candidate.shape if side == "others" else candidate.permute(axes).shape
    return Link((name,), (wanted,), shape=tuple(shape), ordered=side, axes=axes)


def taken_apart(whole: torch.Tensor, parts: Mapping[str, torch.Tensor]) -> tuple[tuple[str, ...], int, bool] | None:
    """Names of two or more `parts` that, joined in this order, equal `whole`, with the dimension and whether `whole` is transposed."""
    turnings = [(whole, False)] + ([(whole.t(), True)] if whole.dim() == 2 else [])
    for value, turned in turnings:
        for dim in range(min(2, value.dim())):
            names: list[str] = []
            place = 0
            while place < value.shape[dim]:
                following = next((name for name, part in parts.items() if name not in names and _begins(value, place, dim, part)), None)
                if following is None:
                    break
                names.append(following)
                place += parts[following].shape[dim]
            else:
                if len(names) > 1:
                    return tuple(names), dim, turned
    return None


def rearranged(whole: torch.Tensor, parts: Mapping[str, torch.Tensor]) -> tuple[tuple[str, ...], tuple[int, ...], bool] | None:
    """Names of the `parts` whose rows, joined and reordered, are those of `whole`: interleaved heads, stacked experts.

    Also returns the order, and whether the parts are transposed. None if the rows are not all different or not all found.
    """
    wanted = _keys(whole)
    some = set(wanted)
    if len(some) < len(wanted) or len(wanted) < 2:
        return None
    for turned in (False, True):
        sources = {name: part.t() if turned else part for name, part in parts.items() if not turned or part.dim() == 2}
        known = {name: _keys(part) for name, part in sources.items() if _width(part) == _width(whole)}
        names = tuple(name for name, keys in known.items() if keys and some.issuperset(keys))
        place = {key: number for number, key in enumerate(key for name in names for key in known[name])}
        if len(place) == len(wanted) == sum(len(known[name]) for name in names):
            return names, tuple(place[key] for key in wanted), turned
    return None


def reordered_table(name: str, links: Iterable[Link]) -> str:
    """The module of `model` whose table holds the rows of a table in another order, or "". Its results are chosen by number, and so are not in
    another order."""
    found = {link for link in links if link.order is not None and name in [each.rpartition(".")[0] for each in link.others]}
    alone = [link for link in found if len(found) == len(link.models) == len(link.others) == 1]
    return alone[0].models[0].rpartition(".")[0] if alone else ""


def beside(names: Sequence[str], among: Mapping[str, torch.Tensor]) -> list[tuple[str, ...]]:
    """The vectors that lie beside these parameters, one in the module of each, under one name: the biases of these weights."""
    homes = [owner(name) for name in names]
    last = [name.rpartition(".")[2] for name in among if owner(name) == homes[0]]
    found = [tuple(f"{home}.{each}".lstrip(".") for home in homes) for each in last]
    return [each for each in found if len(set(each)) == len(homes) and all(name in among and among[name].dim() == 1 for name in each)]


def stored_as(
    link: Link, others: tuple[str, ...], models: tuple[str, ...], theirs: Mapping[str, torch.Tensor], ours: Mapping[str, torch.Tensor]
) -> Link | None:  # fmt: skip
    """The link of these vectors, which holds their numbers as `link` holds those of the weights beside them. None if the numbers then differ."""
    found = dataclasses.replace(link, others=others, models=models, dim=0, same=True, shape=None, axes=())
    if found.order is not None and len(found.order) != sum(theirs[name].numel() for name in others):
        return None
    here, there = found.of_other(theirs), found.of_model(ours)
    return found if here is not None and there is not None and equal(here, there) else None


def constant(value: torch.Tensor) -> bool:
    return value.numel() < 2 or bool((value == value.reshape(-1)[0]).all())


def owner(name: str) -> str:
    return name.rpartition(".")[0]


def _rows(value: torch.Tensor) -> torch.Tensor:
    return value.flatten(0, -2) if value.dim() > 1 else value[:, None]


def _width(value: torch.Tensor) -> int:
    return value.shape[-1] if value.dim() > 1 else 1


def _keys(value: torch.Tensor) -> list[bytes]:
    """The bytes of each row, converted to float64."""
    if value.layout is not torch.strided or not value.is_floating_point() or not value.dim():
        return []
    return [row.tobytes() for row in _rows(value.detach().cpu().double()).contiguous().numpy()]


def _begins(value: torch.Tensor, place: int, dim: int, part: torch.Tensor) -> bool:
    if part.dim() != value.dim() or place + part.shape[dim] > value.shape[dim] or part.shape[dim] == value.shape[dim]:
        return False
    return equal(value.narrow(dim, place, part.shape[dim]), part)
