"""The parts of a sparse tensor by layout, and a clear error for products of sparse tensors that torch lacks."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch

_BY_ROW, _BY_COLUMN = ("crow_indices", "col_indices", "values"), ("ccol_indices", "row_indices", "values")
LAYOUTS = {
    torch.sparse_coo: ("indices", "values"), torch.sparse_csr: _BY_ROW, torch.sparse_bsr: _BY_ROW,
    torch.sparse_csc: _BY_COLUMN, torch.sparse_bsc: _BY_COLUMN,
}  # fmt: skip
_NO_KERNEL = re.compile(r"sparse_cs.* not implemented for '(\w+)'")
"""torch's error where a compressed layout has no kernel for a format. On a CPU products in bfloat16 and float16 have none."""
_FORMATS = {"BFloat16": "bfloat16", "Half": "float16"}


@contextlib.contextmanager
def explained(given: Iterable[tuple[str, Any]]) -> Iterator[None]:
    """Inside the block, torch's error for a missing kernel becomes one that names the tensor and says what to pass instead. `given`: named
    tensors."""
    try:
        yield
    except NotImplementedError as error:
        found = _NO_KERNEL.search(str(error))
        if found is None:
            raise
        told = f"{_compressed(given)} in {_FORMATS.get(found[1], found[1])} ({error})"
        instead = "pass it as tensor.to_sparse_coo(), or multiply in float32, inside torch.autocast(device, enabled=False)"
        raise NotImplementedError(f"{told}; {instead}").with_traceback(error.__traceback__) from None


def _compressed(given: Iterable[tuple[str, Any]]) -> str:
    """The beginning of the error message, up to the format."""
    tensors = ((name, each) for name, each in given if isinstance(each, torch.Tensor))
    name, layout = next(((name, each.layout) for name, each in tensors if len(LAYOUTS.get(each.layout, ())) == 3), ("", None))
    if layout is None:
        return "torch has no product of a compressed sparse tensor (CSR, CSC, BSR, BSC)"
    return f"{name} is a {str(layout).rpartition('_')[2].upper()} tensor, of which torch has no product"


def coalesced(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor
