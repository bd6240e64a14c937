"""Tests whether tables in a lower format explain the candidate's result: what a reference makes of no input, as positions or frequencies.

Another formula for the same table rounds elsewhere, so that the errors themselves are not foreseen. Their sizes are: the reference is run with errors
by chance where its tables are not exact in the format.
"""

from __future__ import annotations

from typing import Any

import torch

from precheck.kernels.bench import Bench
from precheck.kernels.memory import address as _memory
from precheck.kernels.trial_result import Judged
from precheck.observe.containers import tensors
from precheck.observe.exact import Exact, written

_LOW = (torch.bfloat16, torch.float16)
_RUNS = 4
_TIMES = 4.0
"""Times that an error may be larger or smaller than those by chance, as a norm: a table of a few numbers, and several roundings in a row."""
_ALIKE = 0.5
"""The least cosine between the sizes of both errors. It is 0.64 for independent errors that have the same typical size at each element."""


class _Disturbed(Exact):
    """float64, with errors by chance in what is made of no input, as if it was rounded to a format."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtype, self.generator, self.changed = dtype, torch.Generator().manual_seed(seed), False
        self.tables: dict[int, torch.Tensor] = {}  # by their memory, which they keep

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        made_of_none = all(_memory(each) in self.tables for _, each in tensors((args, kwargs or {})))
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if not isinstance(result, torch.Tensor):
            return result
        if not made_of_none:  # also what an input was written into
            self.tables.pop(_memory(result), None)
            return result
        if result.is_floating_point() and not written(func) and _memory(result) not in self.tables:
            result = self._rounded(result)
        self.tables[_memory(result)] = result
        return result

    def _rounded(self, exact: torch.Tensor) -> torch.Tensor:
        chance = (torch.rand(exact.shape, generator=self.generator, dtype=torch.float64) - 0.5).to(exact.device)
        moved = torch.where(exact.to(self.dtype).to(exact.dtype) == exact, exact, exact * (1 + chance * torch.finfo(self.dtype).eps))
        self.changed |= not torch.equal(moved, exact)
        return moved.to(exact.dtype)


def explain(bench: Bench, judged: Judged) -> bool:
    """Whether the error has the size that tables in a lower format give it."""
    name, pair = judged.subject, judged.results()
    if pair is None or "gradient" in name or not pair[1].is_floating_point() or not bool(pair[0].isfinite().all()):
        return False  # the gradient that comes in is made of no input either
    error = (pair[0].double() - pair[1]).abs().nan_to_num()
    return any(_alike(error, sizes) for dtype in _LOW if (sizes := _sizes(bench, judged, name, pair[1], dtype)) is not None)


def _sizes(bench: Bench, judged: Judged, name: str, right: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """The typical error of each element if tables are rounded to a format. None if there are no such tables."""
    squares = torch.zeros_like(right, dtype=torch.float64)
    for seed in range(_RUNS):
        mode = _Disturbed(dtype, seed)
        made = bench.under(mode, judged.trial).values.get(name)
        if not mode.changed or made is None or made.shape != right.shape:
            return None
        squares += (made.double() - right).square().nan_to_num()
    return (squares / _RUNS).sqrt()


def _alike(error: torch.Tensor, sizes: torch.Tensor) -> bool:
    one, other = float(error.norm()), float(sizes.norm())
    return 0 < other <= _TIMES * one <= _TIMES**2 * other and float((error * sizes).sum()) >= _ALIKE * one * other
