"""A choice that is used for its values alone is right whichever of equal scores it takes; one whose places are used is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from scenario import finds, passes

SCORES = 1 + 1e-3 * torch.randn(256, 64, generator=torch.Generator().manual_seed(0))
"""Distinct numbers, of which bfloat16 makes three or four."""


def pooled() -> torch.Tensor:
    return SCORES.bfloat16().topk(4).values.float().mean(-1)


def hard_examples() -> torch.Tensor:
    losses = SCORES.bfloat16().requires_grad_()
    hardest, _ = losses.topk(4)
    hardest.float().mean().backward()
    return losses.grad


def peaks() -> torch.Tensor:
    peak, _ = SCORES.bfloat16().max(-1)
    return peak.float()


def looked_up() -> torch.Tensor:
    values, places = SCORES.bfloat16().topk(1)  # fault
    return torch.arange(64.0)[places] * values


def told() -> tuple[torch.Tensor, list[Any]]:
    values, places = SCORES.bfloat16().topk(1)  # fault
    return values.float(), places.tolist()


def kept() -> Any:
    return SCORES.bfloat16().topk(1)  # fault


@pytest.mark.parametrize("program", [pooled, hard_examples, peaks], ids=lambda program: program.__name__)
def test_of_equal_scores_the_values_are_the_same(program: Callable[[], Any]) -> None:
    passes(program)


@pytest.mark.parametrize("program", [looked_up, told, kept], ids=lambda program: program.__name__)
def test_places_that_an_op_or_python_reads_or_that_are_kept_are_a_choice(program: Callable[[], Any]) -> None:
    finds(program, "decision-flip", says="because bfloat16 makes distinct scores equal")
