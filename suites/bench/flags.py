"""cuBLAS's switches between speed and digits, set for a block and put back as they were; and what a product loses under them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from precheck.formats import FORMATS, Format

SPLIT_K = "_split_k"
PAIRS = hasattr(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction" + SPLIT_K)  # torch 2.9 has single flags alone


@contextlib.contextmanager
def flag(name: str, value: bool) -> Iterator[None]:
    """torch.backends.cuda.matmul.`name` inside the block."""
    matmul = torch.backends.cuda.matmul
    before: Any = getattr(matmul, name)
    if PAIRS and name.endswith("reduction"):  # these are pairs: sums of parts in the low format, and whether to cut the sum into parts at all
        before = (before, getattr(matmul, name + SPLIT_K))
    setattr(matmul, name, value)
    try:
        yield
    finally:
        setattr(matmul, name, before)


def drift(left: torch.Tensor, right: torch.Tensor, unit: Format = FORMATS["fp32"]) -> float:
    """What `left @ right` errs by, in relative L2 beside float64, in unit roundoffs of `unit`."""
    exact = left.double() @ right.double()
    return float((torch.linalg.vector_norm((left @ right).double() - exact) / torch.linalg.vector_norm(exact)).item()) / unit.unit_roundoff
