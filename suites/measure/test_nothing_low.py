"""A run under a low precision in which nothing is low: its report says that it shows nothing of that precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import precheck

X = torch.linspace(-1, 1, 32).reshape(4, 8)


@pytest.mark.parametrize(
    ("model", "inputs", "precision", "told"),
    [
        (nn.Linear(8, 4).double(), X.double(), "bf16-mixed", True),  # autocast casts float32 alone
        (nn.Linear(8, 4).double(), X.double(), "16-mixed", True),
        (lambda x: x.exp(), X, "bf16-mixed", True),  # which autocast keeps in float32
        (nn.Linear(8, 4), X, "bf16-mixed", False),
        (nn.Linear(8, 4).double(), X.double(), "bf16-true", False),
        (lambda x: x.exp(), X, "bf16-true", False),
        (nn.Linear(8, 4), X, "tf32", False),
        (nn.Linear(8, 4), X, "32-true", False),
    ],
)
def test_it_is_said_where_no_op_is_low(model: Callable[..., Any], inputs: torch.Tensor, precision: str, told: bool) -> None:
    report = precheck.measure(model, inputs, precision=precision)
    assert not report.errors
    assert (f"not judged: {precision} itself, since no op of this run read a number in its format" in report.summary()) is told
