"""Measures how close any op of a run comes to the end of its format's range. A search for bad inputs maximises this before anything overflows."""

from __future__ import annotations

import math
from typing import Any

import torch

from precheck.formats import Format
from precheck.torch_support.tensor_classes import Mode


class Reach(Mode):
    """The greatest magnitude among the results of all ops in one format, while entered. It changes nothing.
    Numbers at the end of the format or beyond are left out: fills of masks are intended, and other parts report overflows.
    """

    def __init__(self, fmt: Format) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtype, self.top = fmt.dtype, fmt.max
        self.greatest = 0.0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    @property
    def bits(self) -> float:
        """log2 of the greatest magnitude over the largest number of the format. It is below 0, and -inf if all was zero."""
        return math.log2(self.greatest / self.top) if self.greatest else -math.inf

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, torch.Tensor) and each.dtype is self.dtype and each.layout is torch.strided and each.numel():
                magnitudes = each.detach().abs()
                within = torch.where(magnitudes < self.top, magnitudes, torch.zeros((), dtype=self.dtype, device=each.device))
                self.greatest = max(self.greatest, float(within.amax()))
        return result
