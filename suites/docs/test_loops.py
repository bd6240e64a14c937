"""docs/recipes/loops.md: its loops pass as tests under the precisions that the page names."""

from __future__ import annotations

import re

import pytest
from named import ROOT


@pytest.mark.usefixtures("everything_imported")
def test_the_loops_pass_and_pure_bfloat16_loses_updates_as_the_page_says(pytester: pytest.Pytester) -> None:
    page = (ROOT / "docs" / "recipes" / "loops.md").read_text(encoding="utf8")
    pytester.makepyfile(test_of_the_page="\n\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)))
    result = pytester.runpytest_inprocess("--precision=bf16,16-mixed,bf16-true", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    result.assert_outcomes(passed=13, failed=2)
    for loop in ("gan", "sac"):
        result.stdout.fnmatch_lines([f"FAILED test_of_the_page.py::test_{loop}[[]bf16-true] - Failed: lost-update: *"])
    result.stdout.fnmatch_lines(["allowed: integer-rounding (the table is only looked at in a picture) in *"])
