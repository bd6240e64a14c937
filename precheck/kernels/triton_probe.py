"""A Triton kernel that tests whether bfloat16 is computed correctly here. Importing this needs triton."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

SIZE = 16
"""Rows and columns: the least size of a product of tiles."""


@triton.jit  # type: ignore[untyped-decorator]
def _probe(a: Any, b: Any, wide: Any, added: Any, less: Any, product: Any, rounded: Any, size: tl.constexpr) -> None:
    rows, columns = tl.arange(0, size), tl.arange(0, size)
    places = rows[:, None] * size + columns[None, :]
    left, right = tl.load(a + places), tl.load(b + places)
    tl.store(added + places, left + right)
    tl.store(less + places, tl.where(left < right, 1.0, 0.0))
    tl.store(product + places, tl.dot(left, right))
    tl.store(rounded + places, tl.load(wide + places).to(tl.bfloat16))


def right() -> bool:
    """Whether sums, comparisons, products and roundings of bfloat16 equal torch's bit for bit."""
    generator = torch.Generator().manual_seed(0)
    a, b, wide = (torch.randint(-512, 513, (SIZE, SIZE), generator=generator) / 128 for _ in range(3))
    a, b, wide = a.bfloat16(), b.bfloat16(), wide * 1.0078125 + 2.0**-20
    added, rounded = torch.empty_like(a), torch.empty_like(a)
    less, product = torch.empty(SIZE, SIZE), torch.empty(SIZE, SIZE)
    try:
        _probe[(1,)](a, b, wide, added, less, product, rounded, SIZE)
    except Exception:
        return False
    exact = (a.double() @ b.double()).float()  # the terms are multiples of 2^-14 below 2^8, so every order of adding is exact
    pairs = ((added, a + b), (less, (a < b).float()), (product, exact), (rounded, wide.bfloat16()))
    return all(torch.equal(got, wanted) for got, wanted in pairs)
