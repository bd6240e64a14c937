"""docs/rules: a page for each rule that says what the code says, and examples that do what they are examples of."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import precheck
from precheck.__main__ import main
from precheck.findings import RULES
from precheck.report import limits
from precheck.report.limits import Limit, files_of, limits_of
from precheck.report.rules import EXAMPLES, pages

FOLDER = Path(precheck.__file__).parent.parent / "docs" / "rules"
WITHOUT = {"missing-gradient"}
"""Rules that no number decides: a gradient is there or it is not."""


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return pages(FOLDER)


def test_the_committed_pages_are_those_that_the_code_makes(made: dict[str, str]) -> None:
    there = {path.name: path.read_text(encoding="utf8") for path in FOLDER.glob("*.md")}
    stale = sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))
    assert not stale, f"{', '.join(stale)}: type python -m precheck rules --write docs/rules, and delete pages of rules that are gone"


@pytest.mark.parametrize("name", RULES)
def test_every_rule_has_a_page_with_its_meaning_its_cure_and_its_judges(name: str, made: dict[str, str]) -> None:
    page = made[f"{name}.md"]
    assert RULES[name].meaning[1:] in page
    assert f"**Cure**: {RULES[name].remedy}." in page
    assert f'expect_finding("{name}")' in page
    assert files_of(name)
    for file, _ in files_of(name):
        assert f'"{name}"' in (limits.JUDGE / f"{file}.py").read_text(encoding="utf8")


@pytest.mark.parametrize("name", RULES)
def test_every_limit_is_told_with_its_reason(name: str, made: dict[str, str]) -> None:
    assert bool(limits_of(name)) == (name not in WITHOUT)
    page = made[f"{name}.md"]
    for limit in limits_of(name):
        assert f"| `{limit.name}` | `{limit.value}` | `{limit.file}` | " in page
        assert len(limit.why) > 20


def test_limits_are_found_where_they_are_read() -> None:
    """Across functions and files: `Comparison.doubtful` reads noise.WARN, `_order` of a scheduled event comes after AHEAD skips."""

    def named(rule: str) -> set[str]:
        return {f"{limit.file}.{limit.name}" for limit in limits_of(rule)}

    assert {"noise.FAIL", "noise.WARN", "boundaries.PLAIN"} <= named("accumulated-drift")
    assert named("headroom") == {"extent.HEADROOM_BITS"}
    assert "absorption.TIMES" in named("absorption")
    assert "scaling.AHEAD" in named("scaler-order")
    assert not named("headroom") & named("lost-update")


def test_a_limit_is_what_the_code_computes_with() -> None:
    from precheck.judge import absorption, noise

    shown = {(limit.file, limit.name): limit for rule in RULES for limit in limits_of(rule)}
    assert isinstance(shown["noise", "FAIL"], Limit)
    assert float(shown["noise", "FAIL"].value) == noise.FAIL
    assert eval(shown["noise", "REASSOCIATED"].value.replace("^", "**")) == noise.REASSOCIATED
    assert int(shown["absorption", "TIMES"].value) == absorption.TIMES


def test_tables_are_whole(made: dict[str, str]) -> None:
    """Whatever bars and stars a derivation has."""
    for name, page in made.items():
        rows = [line for line in page.splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) <= 1, name


EXAMPLE_FILES = sorted((FOLDER / EXAMPLES).glob("*.py"))


def test_every_rule_has_an_example() -> None:
    assert {path.stem.replace("_", "-") for path in EXAMPLE_FILES} == RULES.keys()


@pytest.mark.parametrize("path", EXAMPLE_FILES, ids=lambda path: path.stem)
def test_an_example_shows_its_rule(path: Path, made: dict[str, str]) -> None:
    """As its own finding, or as the cause of one."""
    rule = path.stem.replace("_", "-")
    report = runpy.run_path(str(path))["report"]
    assert rule in {name for finding in report.findings for name in (finding.rule, finding.cause_rule)}, report.summary()
    assert f"```python\n{path.read_text(encoding='utf8').rstrip()}\n```" in made[f"{rule}.md"]


def test_the_command_lists_the_rules_and_writes_the_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{rule.name}: {rule.meaning}" for rule in RULES.values()]
    assert main(["rules", "--write", str(tmp_path / "new")]) == 0
    assert {path.name: path.read_text(encoding="utf8") for path in (tmp_path / "new").iterdir()} == pages(tmp_path / "new")
    (tmp_path / "file").write_text("in the way", encoding="utf8")
    assert main(["rules", "--write", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err == f"{tmp_path / 'file'} cannot be written: File exists\n"
