"""Makes the report's list of losses: the loss of each step beside that of the reference."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy
import torch

from precheck.analysis.drift import ComparedTensor
from precheck.findings import Loss
from precheck.observe.records import Record
from precheck.observe.sketch import inner, sketch


def losses(rows: Iterable[ComparedTensor]) -> list[Loss]:
    """The losses in the order of the rows. A record holds the norm. The sign comes from the sketch, which for a scalar is the number times ±1."""
    turn = sketch(torch.ones(1))
    found = [row for row in rows if row.record.kind == "loss"]
    return [Loss(row.record.step, _number(row.record, turn), _number(row.reference, turn), row.floor) for row in found]


def _number(record: Record, turn: numpy.ndarray) -> float:
    if record.nonfinite:
        return math.nan if record.nan else math.inf * (record.posinf - record.neginf)
    return math.copysign(record.norm, inner(record.sketch, turn))
