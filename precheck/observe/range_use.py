"""How close a run comes to the end of its format's range, at any op. A search climbs it before anything has overflowed."""

from __future__ import annotations

import math
from typing import Any

import torch

from precheck.formats import Format
from precheck.torch_internals import TorchDispatchMode


class Reach(TorchDispatchMode):
    """The greatest magnitude among the results of all ops in one format, while entered. Reads, and changes nothing.

    What lies at the very end of the format or beyond is left out: a mask's fill is meant, and an overflow is told by others.
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
        """log2 of the greatest magnitude over the largest number of the format, below 0; -inf where all was zero."""
        return math.log2(self.greatest / self.top) if self.greatest else -math.inf

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, torch.Tensor) and each.dtype is self.dtype and each.layout is torch.strided and each.numel():
                magnitudes = each.detach().abs()
                within = torch.where(magnitudes < self.top, magnitudes, torch.zeros((), dtype=self.dtype, device=each.device))
                self.greatest = max(self.greatest, float(within.amax()))
        return result
