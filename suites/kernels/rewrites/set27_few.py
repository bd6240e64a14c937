"""The twenty-seventh frozen set of healthy kernels: few, since its broken ones were what was asked. Committed before any was tried."""

from __future__ import annotations

import torch
from cases import need, rewrite, shapes, wide


@rewrite("variance of columns, from pairs of rows", wide(lambda x: x.var(0)), shapes((5, 4)))
@wide
def from_pairs_of_rows(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, 1 < len(x) <= 600)
    return (x[:, None] - x).square().sum((0, 1)) / (2 * len(x) * (len(x) - 1))


@rewrite("codes by a floor, the half added to the scaled number", lambda x: (x.detach().float() * 8 + 0.5).floor().clamp(-128, 127).to(torch.int8),
         shapes((4, 9)), gradients=False)  # fmt: skip
def half_added(x: torch.Tensor) -> torch.Tensor:
    need(bool(x.isfinite().all()))
    return torch.floor(torch.add(0.5, x.detach().float(), alpha=8)).clip(-128, 127).to(torch.int8)


@rewrite("likeness of rows with a least length, by hand",
         wide(lambda x, y: torch.nn.functional.cosine_similarity(x, y, 1, 0.3)), shapes((4, 6), (4, 6)))  # fmt: skip
@wide
def by_hand(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape)
    one, two = (torch.linalg.vector_norm(each, dim=1).clamp_min(0.3) for each in (x, y))
    return torch.linalg.vecdot(x, y) / (one * two)
