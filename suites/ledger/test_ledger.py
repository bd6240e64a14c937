"""Every exemption is needed: without it a healthy program of the zoo is accused."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from programs import Program, named

import precheck
from precheck import rules
from precheck.analysis.ledger import LEDGER, without
from precheck.findings import RULES
from precheck.report.rules import all_limits

PAGE = Path(precheck.__file__).parent.parent / "docs" / "limits-and-exemptions.md"
rules.classes()  # which enter their exemptions
EVERY = pytest.mark.parametrize("name", LEDGER)


def errors(program: Program) -> set[str]:
    return {f"{rule} at {source}" for rule, source in program.errors()}


@EVERY
def test_an_exemption_says_what_it_is_and_which_rules_it_holds_back(name: str) -> None:
    entry = LEDGER[name]
    assert entry.what.endswith(".")
    assert len(entry.reason) > 20
    assert set(entry.rules) <= RULES.keys()


@EVERY
def test_without_an_exemption_the_programs_that_need_it_are_accused(name: str) -> None:
    entry = LEDGER[name]
    assert entry.needed_by, f"no healthy program of the zoo needs {name}: delete it"
    for each in entry.needed_by:
        program = named(each)
        assert not errors(program), f"{each} is accused although {name} holds"
        with without(name):
            found = {rule for rule, _ in program.errors()}
        assert found & set(entry.rules), f"{each} is not accused of {entry.rules} without {name}, but of {found or 'nothing'}"
    assert entry.in_force


def test_the_page_has_every_exemption_and_every_limit() -> None:
    page = PAGE.read_text(encoding="utf8")
    missing = [name for name in LEDGER if f"| {name} |" not in page] + [name for file, name in all_limits() if f"| `{name}` ({file}) |" not in page]
    assert not missing, f"type python suites/ledger docs/limits-and-exemptions.md {' '.join(missing)}"


def test_limits_are_where_the_page_looks_for_them() -> None:
    """A limit that another folder made would be on no page."""
    root = Path(precheck.__file__).parent
    made = {path.relative_to(root) for path in root.rglob("*.py") if re.search(r"^\w+ = Limit\(", path.read_text(encoding="utf8"), re.MULTILINE)}
    assert {path.parts[0] for path in made} == {"analysis", "rules"}, made


ROWS = """| exemption | rules | reason | accused without it |
| --- | --- | --- | --- |
| drawn | integer-rounding | draws lie on a grid | none |
| unread | integer-rounding | a table that nobody reads | absolute-keys |

| limit | value | halved | doubled |
| --- | --- | --- | --- |
| `OWN` (analysis/rounding/function_errors.py) | 0.75 share | – | 1 accused |
| `MOST` (rules/decision_flip/rule.py) | 0.5 share | – | – |
| `SEEN` (analysis/quantisation/quantisers.py) | 0.02 share | not moved yet | not moved yet |
"""


def test_rows_that_are_named_or_missing_are_made_again_and_others_kept(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(ROWS, encoding="utf8")
    kept = runpy.run_path(str(Path(__file__).with_name("__main__.py")))["_kept"](page, ["MOST", "drawn"])
    assert kept["unread"] == ("unread", "integer-rounding", "a table that nobody reads", "absolute-keys")
    assert kept["`OWN` (analysis/rounding/function_errors.py)"] == ("`OWN` (analysis/rounding/function_errors.py)", "0.75 share", "–", "1 accused")
    assert not any(name in label for label in kept for name in ("drawn", "MOST", "SEEN"))


def test_help_is_shown_and_nothing_is_run() -> None:
    told = subprocess.run([sys.executable, str(Path(__file__).parent), "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert told.startswith("usage: python suites/ledger")
