"""The sizes of an example: which vary together, and which integer arguments change with them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from precheck.kernels.examples import Example
from precheck.observe.job import InputError

Sizes = Mapping[str, int]
"""New sizes by the name of the dimension. Others do not change."""


@dataclasses.dataclass(frozen=True, slots=True)
class Dimensions:
    """The sizes of an example by name. Equal sizes have one name, unless the user gave them different names. A size of 1 has a name of its own: the
    first of a tensor may be a batch of one, and any other may be one for all."""

    sizes: dict[str, int]  # those of the example, largest last
    shapes: tuple[tuple[str | int, ...], ...]  # of each leaf: names, and fixed sizes
    ones: tuple[str, ...] = ()  # names of first sizes of 1, each of its own tensor
    inner: tuple[str, ...] = ()  # names of other sizes of 1

    def old(self, name: str) -> int:
        """The size in the example."""
        return self.sizes.get(name, 1)

    def shape(self, leaf: int, sizes: Sizes) -> tuple[int, ...]:
        """The shape of that leaf under other sizes."""
        return tuple(each if isinstance(each, int) else sizes.get(each, self.old(each)) for each in self.shapes[leaf])

    def elements(self, sizes: Sizes) -> int:
        """The number of elements of the largest tensor under other sizes."""
        return max((math.prod(self.shape(leaf, sizes)) for leaf in range(len(self.shapes))), default=0)

    def numbers(self, sizes: Sizes) -> dict[int, int]:
        """New values of Python integers that are a size: `normalized_shape=[64]` changes with the dimension of 64."""
        return {self.old(name): new for name, new in sizes.items() if self.old(name) > 1}

    def multiples(self, name: str, new: int) -> dict[str, int] | None:
        """The sizes that change together because one is a multiple of the other, such as heads times head size. None if there are no others."""
        old, together = self.old(name), {name: new}
        if name in (*self.ones, *self.inner):
            return None
        for other, size in self.sizes.items():
            if other != name and size % old == 0:
                together[other] = size // old * new
            elif other != name and old % size == 0 and new % (old // size) == 0:
                together[other] = new // (old // size)
        return together if len(together) > 1 else None


def of(example: Example, named: Any = None) -> Dimensions:
    """Reads the dimensions of an example.

    `named`: names of the dimensions of each tensor, so that equal sizes can vary separately: ("rows columns", "columns"), or a dict by argument. A
    number among the names, or "_", is a fixed size. Raises InputError for names that do not fit the tensors.
    """
    sizes: dict[str, int] = {}
    shapes, ones, inner = [], list[str](), list[str]()
    for place, leaf in enumerate(example.leaves):
        names = _named(named, place, leaf.path, leaf.tensor.dim())
        shape: list[str | int] = []
        for size, name in zip(leaf.tensor.shape, names or [""] * leaf.tensor.dim(), strict=True):
            fixed = name.isdecimal() or name == "_" or (not name and size <= 1)
            name = name or f"={size}"
            if not fixed and sizes.setdefault(name, size) != size:
                raise InputError(f"sizes= names {name!r} both {sizes[name]} and {size} (in inputs{leaf.path}); give different sizes different names")
            shape.append(size if fixed else name)
        if leaf.tensor.dim() > 1 and shape[0] == 1 and not names:  # it may be a batch of one
            ones.append(f"=1 of inputs{leaf.path}")
            shape[0] = ones[-1]
        for axis in range(1, len(shape)):
            if shape[axis] == 1 and not names:
                inner.append(f"dimension {axis} of inputs{leaf.path}")
                shape[axis] = inner[-1]
        shapes.append(tuple(shape))
    return Dimensions(dict(sorted(sizes.items(), key=lambda item: item[1])), tuple(shapes), tuple(ones), tuple(inner))


def _named(named: Any, place: int, path: str, dimensions: int) -> list[str]:
    if named is None:
        return []
    if isinstance(named, str):
        named = (named,)
    if not isinstance(named, (Mapping, Sequence)):
        raise InputError(f"sizes={named!r}; pass names of the dimensions of each tensor, as in sizes=('rows columns', 'columns')")
    found = named.get(path.strip("[]")) if isinstance(named, Mapping) else named[place] if place < len(named) else None
    if found is None:
        return []
    words = found.replace(",", " ").split() if isinstance(found, str) else [str(each) for each in found]
    if len(words) != dimensions:
        raise InputError(f"sizes= gives {len(words)} names to inputs{path}, which has {dimensions} dimensions: {found!r}; name each of them")
    return words
