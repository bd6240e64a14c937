"""What a sparse tensor is made of, the same tensor with other values, and the error for a product that torch cannot make of one."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

_BY_ROW, _BY_COLUMN = ("crow_indices", "col_indices", "values"), ("ccol_indices", "row_indices", "values")
_SPARSE = {
    torch.sparse_coo: ("indices", "values"), torch.sparse_csr: _BY_ROW, torch.sparse_bsr: _BY_ROW,
    torch.sparse_csc: _BY_COLUMN, torch.sparse_bsc: _BY_COLUMN,
}  # fmt: skip
_NO_KERNEL = re.compile(r"sparse_cs.* not implemented for '(\w+)'")
"""What torch says where a compressed layout has no kernel for a format. On a CPU its products have none in bfloat16 and float16."""
_FORMATS = {"BFloat16": "bfloat16", "Half": "float16"}


def parts(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The dense tensors that one consists of: of a sparse one its indices and values, of a dense one itself, under ""; of others none."""
    if tensor.layout is torch.strided:
        return {"": tensor}
    known = _coalesced(tensor.detach())
    return {name: getattr(known, name)() for name in _SPARSE.get(tensor.layout, ())}


def with_values(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A copy of a sparse tensor with `change` applied to the elements that it stores; a tensor of any other layout as it is."""
    if tensor.layout not in _SPARSE:
        return tensor
    fresh = _coalesced(tensor.detach().clone())
    fresh.values().copy_(change(fresh.values()))
    return fresh.requires_grad_(tensor.requires_grad)


def place(tensor: torch.Tensor) -> int:
    """Where the first of the elements lies that a tensor stores; 0 for what stores none, and for a COO tensor that is not coalesced."""
    if tensor.layout in _SPARSE:
        whole = tensor.layout is not torch.sparse_coo or tensor.is_coalesced()
        return tensor.detach().values().data_ptr() if whole else 0
    return tensor.data_ptr()


@contextlib.contextmanager
def explained(given: Iterable[tuple[str, Any]]) -> Iterator[None]:
    """Inside, an error of torch for such a missing kernel becomes one that names the tensor, if it is among the `given`, and says what to pass."""
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
    """The beginning of a sentence that ends with the format."""
    tensors = ((name, each) for name, each in given if isinstance(each, torch.Tensor))
    name, layout = next(((name, each.layout) for name, each in tensors if len(_SPARSE.get(each.layout, ())) == 3), ("", None))
    if layout is None:
        return "torch has no product of a compressed sparse tensor (CSR, CSC, BSR, BSC)"
    return f"{name} is a {str(layout).rpartition('_')[2].upper()} tensor, of which torch has no product"


def _coalesced(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor
