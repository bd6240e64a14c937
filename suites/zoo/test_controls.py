"""Healthy idioms that a hasty tool accuses are left in peace."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bugs.bug import tensors
from healthy import ACCUSED, EXACT, IDIOMS

import precheck

EVERY = pytest.mark.parametrize("idiom", IDIOMS, ids=lambda idiom: idiom.__name__)


def test_there_are_many() -> None:
    assert len(IDIOMS) >= 25
    assert len({idiom.__name__ for idiom in IDIOMS}) == len(IDIOMS)


@EVERY
def test_a_healthy_idiom_is_left_in_peace(idiom: Callable[[], Any], score: Callable[..., None]) -> None:
    """Findings would be false alarms; an idiom that watch() does not look at at all would prove nothing."""
    with precheck.watch(precision="32-true" if idiom.__name__ in EXACT else None) as report:
        result = idiom()
    score(SimpleNamespace(name=f"healthy {idiom.__name__}", mechanism="healthy"), control=bool(report.errors))
    assert bool(report.errors) is (idiom.__name__ in ACCUSED), report.summary()
    assert not [finding for finding in report.findings if finding.severity == "warning"], report.summary()
    assert report.facts["shadowed"] > 0
    assert all(bool((torch.isfinite(part) | (part == -torch.inf)).all()) for part in tensors(result))
