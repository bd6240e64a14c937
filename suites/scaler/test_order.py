"""Loss scaling done wrong: each fault is called by its name, on its line, and its mended twin is left in peace."""

from __future__ import annotations

import re

import pytest
from bugs import mismatches, misorders
from bugs.loops import Fault, line_of, marked, told, watched

EVERY = pytest.mark.parametrize("fault", [*mismatches.FAULTS, *misorders.FAULTS], ids=lambda fault: fault.code.__name__)


@EVERY
def test_it_is_found_on_its_line(fault: Fault) -> None:
    report = watched(fault.code, True, raises=fault.raises)
    found = told(report)
    assert found, "nothing found"
    assert found[0].rule == fault.rule, report.summary()
    assert found[0].severity == fault.severity
    assert found[0].phase == "scaler"
    assert line_of(found[0]) in marked(fault.code), report.summary()
    said = f"{found[0].message}: {found[0].remedy}"
    assert re.search(fault.says, said), said


ALONE = [*mismatches.FAULTS, *misorders.FAULTS]


@pytest.mark.parametrize("fault", ALONE, ids=lambda fault: fault.code.__name__)
def test_nothing_else_is_accused(fault: Fault) -> None:
    """One fault, one finding, though the wrong numbers go on to a step."""
    report = watched(fault.code, True, raises=fault.raises)
    assert len(told(report)) == 1, report.summary()


@EVERY
def test_done_right_nothing_is_said(fault: Fault) -> None:
    report = watched(fault.code, False)
    assert not told(report), report.summary()
