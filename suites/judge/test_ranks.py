"""One report of many ranks: what they found alike is said once, with their names."""

from __future__ import annotations

import dataclasses
from typing import Any

from precheck.findings import Finding
from precheck.judge.watched_runs import merged

LOST = Finding("overflow", "error", "aten.exp.default at train.py:8: 1e+09 is beyond float16\nsecond line", source="train.py:8")


def test_a_finding_of_all_is_one() -> None:
    (one,) = merged({0: [LOST], 1: [LOST], 2: [LOST]}, 3)
    assert one.ranks == (0, 1, 2)
    assert one.message.splitlines() == ["aten.exp.default at train.py:8: 1e+09 is beyond float16 (on all 3 ranks)", "second line"]


def test_a_finding_of_some_names_them() -> None:
    assert merged({0: [], 1: [LOST]}, 2)[0].message.splitlines()[0].endswith("(on rank 1)")
    assert merged({0: [LOST], 1: [], 2: [LOST]}, 3)[0].message.splitlines()[0].endswith("(on ranks 0, 2)")
    assert merged({0: [LOST], 1: [LOST]}, 2)[0].message.splitlines()[0].endswith("(on both ranks)")


def test_the_same_fault_with_other_numbers_is_the_same_fault() -> None:
    other = dataclasses.replace(LOST, message="aten.exp.default at train.py:8: 2e+09 is beyond float16", measured=2e9, step=2)
    (one,) = merged({1: [other], 0: [LOST]}, 2)
    assert one.message.startswith("aten.exp.default at train.py:8: 1e+09")  # as the first rank has it
    assert one.ranks == (0, 1)


def test_another_place_rule_or_gravity_is_another_finding() -> None:
    changes: list[dict[str, Any]] = [{"source": "train.py:9"}, {"rule": "nan"}, {"severity": "note"}, {"phase": "backward"}]
    others = [dataclasses.replace(LOST, **change) for change in changes]
    assert len(merged({0: [LOST], 1: others}, 2)) == 5


def test_of_nothing_found_nothing_is_made() -> None:
    assert merged({0: [], 1: []}, 2) == []
