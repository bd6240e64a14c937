"""Bugs planted into whole networks: each does harm where it is, and `measure` finds it; the healthy networks pass."""

from __future__ import annotations

import pytest
from harm import LEAST, harm
from networks import names, network
from one_case import arguments
from score_table import table

import precheck

HEALTHY = [(name, precision) for name in names() for precision in network(name).precisions]
BUGS = [(name, bug.name) for name in names() for bug in network(name).bugs]
MISSED: dict[str, str] = {}
"""Bugs that `measure` does not find, and why, as far as is known."""


@pytest.mark.parametrize(("name", "precision"), HEALTHY)
def test_a_healthy_network_passes(name: str, precision: str) -> None:
    report = precheck.measure(**arguments(network(name).code()), precision=precision)
    assert report.errors == [], report.summary()


@pytest.mark.parametrize(("name", "bug"), BUGS)
def test_a_bug_does_harm_in_its_part(name: str, bug: str) -> None:
    planted = network(name).bug(bug)
    assert harm(network(name), planted, planted.precisions[0]).part >= LEAST


@pytest.mark.parametrize(("name", "bug"), BUGS)
def test_a_bug_is_found(name: str, bug: str) -> None:
    """Or it is in the ledger, which holds no bug that is found."""
    planted = network(name).bug(bug)
    if "measure" not in planted.through:
        pytest.skip("only the user's own loop has it")
    report = precheck.measure(**arguments(network(name).code(planted)), precision=planted.precisions[0])
    assert bool(report.errors) == (f"{name}/{bug}" not in MISSED), report.summary()


def test_the_ledger_names_bugs_that_there_are() -> None:
    assert set(MISSED) <= {f"{name}/{bug}" for name, bug in BUGS}


@pytest.mark.parametrize(("name", "bug"), BUGS)
def test_a_bug_names_its_lines_and_rules_that_exist(name: str, bug: str) -> None:
    planted = network(name).bug(bug)
    assert network(name).culprits(planted)
    assert set(planted.rules) <= set(precheck.RULES)
    assert set(planted.precisions) <= set(precheck.PRECISIONS)
    assert planted.source.startswith("https://")


def test_the_table_counts_what_was_found_and_names_what_was_missed() -> None:
    case = {"network": "n", "precision": "bf16-true", "part": 9.0}
    found = {"error": True, "errors": 1, "rule": "absorption", "line": True, "line_in_any": True, "rule_right": False, "cost": 3.0}
    rows = [
        case | {"bug": "seen", "result": 8.0, "measure": found},
        case | {"bug": "hidden", "result": 1.0, "measure": {"error": False, "errors": 0, "cost": 5.0}},
        {"network": "n", "bug": None, "precision": "bf16-true", "measure": {"error": False, "errors": 0, "cost": 4.0}},
        {"network": "n", "bug": "lost", "precision": "bf16-true", "failed": "no end"},
    ]
    text = table(rows)
    assert "| measure | 1 of 2 (50 %) | 1 of 1 (100 %) | 0 of 1 (0 %) | 1 of 1 (100 %) | 0 of 1 (0 %) | 0 of 1 (0 %) | 4.0 | 5.0 | 5.0 |" in text
    assert "Missed by measure (1): n/hidden bf16-true (9.0 in its part, 1.0 in the result)." in text
    assert "No row (1): n/lost bf16-true (no end)." in text
