"""Where a block has turned autocast off, a product is low only since a cast of the author's. Under autocast it is low anyway."""

from __future__ import annotations

import re

import pytest
import torch
from graph import Graph, given
from test_own_errors import LOW, line_of, normal
from torch.nn import functional

import precheck
from precheck.observe.shadow.operations import Origin
from precheck.rules.advice import widened

NEAR = 1 + 0.1 * normal(24, 32)
"""Rows that are much alike."""


def distances(rows: torch.Tensor, low: torch.dtype, *, enabled: bool) -> torch.Tensor:
    with torch.autocast("cpu", enabled=enabled):
        unit = functional.normalize(rows.float().to(low), dim=-1)
        return 1 - unit @ unit.T


def told(low: torch.dtype, *, enabled: bool) -> list[str]:
    with precheck.watch() as report, torch.autocast("cpu"):
        kept = distances(NEAR, low, enabled=enabled)
    del kept
    return [finding.message for finding in report.errors]


def test_what_is_computed_of_such_a_product_names_the_cast() -> None:
    (message,) = told(LOW, enabled=False)
    assert re.search(rf"in bfloat16 since \S*test_products_without_autocast.py:{line_of(distances, 'unit =')}: ", message)
    assert told(torch.float32, enabled=False) == []


def test_under_autocast_it_does_not() -> None:
    assert all("since" not in message for message in told(torch.float32, enabled=True))


@pytest.mark.parametrize(("left", "cure"), [
    (True, "stay in float32 from model.py:3 on"),
    (False, "run this line with torch.autocast(..., enabled=False) and .float() on what it reads"),
])  # fmt: skip
def test_nobody_is_told_to_turn_autocast_off_where_it_is_off(left: bool, cure: str) -> None:
    graph = Graph()
    graph.op("mm", given(), source="model.py:7", since=("bfloat16", Origin("model.py:3")), autocast=True, autocast_left=left)
    assert widened(graph.last, "float32") == cure
