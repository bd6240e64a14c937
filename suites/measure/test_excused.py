"""Tensors that a closer look passes: a report says which, and for which of two reasons."""

from __future__ import annotations

import pytest

from precheck.judge.compared_runs import report_on
from precheck.observe.records import Trace
from precheck.precisions import PRECISIONS


@pytest.mark.parametrize(
    ("explained", "unstable", "facts"),
    [
        ((), (), {}),
        (("output:a@1",), (), {"excused": ["output:a@1"], "unstable": []}),
        (("output:a@1",), ("output:a@1", "output:b@1"), {"excused": ["output:a@1", "output:b@1"], "unstable": ["output:b@1"]}),
    ],
    ids=["none", "rounding", "both"],
)
def test_each_excused_tensor_has_one_reason(explained: tuple[str, ...], unstable: tuple[str, ...], facts: dict[str, list[str]]) -> None:
    assert report_on(Trace(), Trace(), [], PRECISIONS["bf16-mixed"], explained=explained, unstable=unstable).facts == facts
