"""Records made by hand: a tensor reduced as a run would reduce it, with whatever else a test wants to say of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from precheck.analysis.noise_floor.drift import ComparedTensor
from precheck.findings import Finding
from precheck.observe.recording.reduce import reduced
from precheck.observe.records import Kind, Record, Trace
from precheck.precisions import Precision
from precheck.rules import classes
from precheck.rules.rule import Compared, Rule


def record(kind: Kind, name: str, tensor: torch.Tensor, *, step: int = 1, **facts: Any) -> Record:
    return Record(kind=kind, name=name, step=step, **(reduced(tensor) | facts))


def trace(*records: Record, **facts: Any) -> Trace:
    made = Trace(**facts)
    for item in records:
        made.add(item)
    return made


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def rule(name: str) -> Rule:
    """The rule of that name, at work on a run of its own."""
    return next(each for each in classes() if each.about.name == name)()


def beside(
    names: str, precision: Precision, rows: Sequence[ComparedTensor] = (), seen: Trace | None = None, reference: Trace | None = None,
    *, explained: Collection[str] = (), unstable: Collection[str] = (),
) -> list[Finding]:  # fmt: skip
    """What these rules say of a run beside its reference, in the order in which they are named."""
    run = Compared(seen or trace(), reference or trace(), rows, precision, explained, unstable)
    return [finding for name in names.split() for finding in rule(name).beside(run)]
