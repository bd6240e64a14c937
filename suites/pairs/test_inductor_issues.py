"""Public issues on torch.compile's accuracy on a CPU: what is still wrong is found, and what was closed as rounding passes."""

from __future__ import annotations

import os
import shutil

import pytest
from inductor_issues import ISSUES, Issue, told

SLOW = "PRECHECK_SLOW" in os.environ
pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles C++ on a CPU"),
    pytest.mark.filterwarnings("ignore"),  # of torch's own compiler
]


@pytest.mark.parametrize("one", [each for number, each in ISSUES.items() if SLOW or number in (191499, 142223)], ids=lambda one: str(one.number))
def test_an_issue(one: Issue) -> None:
    differs, report = told(one)
    if one.number in (191499, 191308) and differs:  # a later torch may have mended them
        assert report.verdict == "different"
    elif one.wrong and report.errors:
        assert differs
    else:
        assert report.verdict in ("rounding", "bitwise"), report.summary()
