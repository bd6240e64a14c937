"""Records made by hand: a tensor reduced as a run would reduce it, with whatever else a test wants to say of it."""

from __future__ import annotations

from typing import Any

import torch

from precheck.observe.records import Kind, Record, Trace
from precheck.observe.reduce import reduced


def record(kind: Kind, name: str, tensor: torch.Tensor, *, step: int = 1, **facts: Any) -> Record:
    return Record(kind=kind, name=name, step=step, **(reduced(tensor) | facts))


def trace(*records: Record, **facts: Any) -> Trace:
    made = Trace(**facts)
    for item in records:
        made.add(item)
    return made


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale
