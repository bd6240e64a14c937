"""What a sparse tensor is made of, and the same tensor with other values."""

from __future__ import annotations

from collections.abc import Callable

import torch

_BY_ROW, _BY_COLUMN = ("crow_indices", "col_indices", "values"), ("ccol_indices", "row_indices", "values")
_SPARSE = {
    torch.sparse_coo: ("indices", "values"), torch.sparse_csr: _BY_ROW, torch.sparse_bsr: _BY_ROW,
    torch.sparse_csc: _BY_COLUMN, torch.sparse_bsc: _BY_COLUMN,
}  # fmt: skip


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


def _coalesced(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor
