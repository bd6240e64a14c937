"""docs/rules: a page for each rule that says what the code says, and examples that do what they are examples of."""

from __future__ import annotations

import ast
import copy
import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from example_texts import carried_out, words

import precheck
from precheck import rules
from precheck.__main__ import main
from precheck.analysis.limit import Limit
from precheck.findings import RULES
from precheck.report.rules import all_limits, example, example_output, limits_of, pages, rule_of

ROOT = Path(precheck.__file__).parent.parent
FOLDER = ROOT / "docs" / "rules"
TORCH = "2.13."
"""The torch whose names of ops the pages show: that of constraints.txt."""
INSIDE = {"TOGETHER", "UNCHANGED", "FINEST", "SHARED", "MADE_BY_OP"}
"""Limits of the analysis that every rule with a cause goes by: which of several ops is named, not whether there is a finding."""


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return pages()


def test_the_committed_pages_are_those_that_the_code_makes(made: dict[str, str]) -> None:
    there = {path.name: path.read_text(encoding="utf8") for path in FOLDER.glob("*.md")}
    stale = sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))
    assert not stale, f"{', '.join(stale)}: type python -m precheck rules --write docs/rules, and delete pages of rules that are gone"


@pytest.mark.parametrize("name", RULES)
def test_every_rule_has_a_page_with_its_meaning_its_cure_and_its_code(name: str, made: dict[str, str]) -> None:
    page = made[f"{name}.md"]
    assert RULES[name].meaning[1:] in page
    assert f"**Cure**: {RULES[name].remedy}." in page
    assert f'expect_finding("{name}")' in page
    [code] = re.findall(r"The code: `(.*)`", page)
    assert (ROOT / code).is_file()


@pytest.mark.parametrize("name", RULES)
def test_every_limit_is_told_with_its_unit_and_its_reason(name: str, made: dict[str, str]) -> None:
    assert limits_of(name) or "limits" in vars(rule_of(name)), "list what the verdict depends on; `limits = ()` says that no number does"
    page = made[f"{name}.md"]
    for limit in limits_of(name):
        assert f"| `{limit.name}` | `{limit.value}` | {limit.unit} | `{limit.file}` | " in page
        assert len(limit.origin) > 20


def test_every_limit_belongs_to_a_rule() -> None:
    """A limit that no page shows is one that nobody can question."""
    shown = {id(limit) for name in RULES for limit in rule_of(name).limits}
    hidden = {name for (_, name), limit in all_limits().items() if id(limit) not in shown}
    assert hidden == INSIDE


def _names_read(code: str) -> Iterator[str]:
    """The names that code reads, those in lists of limits aside."""
    waiting: list[ast.AST] = [ast.parse(code)]
    for node in waiting:
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            yield node.id if isinstance(node, ast.Name) else node.attr
        if not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "limits"):
            waiting += ast.iter_child_nodes(node)


def test_a_limit_that_a_rule_lists_is_read() -> None:
    """By the rule's own code, by an analysis, or where runs are shared."""
    listed = {limit.name: name for name in RULES for limit in limits_of(name)}
    sources = [path.read_text(encoding="utf8") for path in (ROOT / "precheck").rglob("*.py")]
    naming = [code for code in sources if not listed.keys().isdisjoint(re.findall(r"[A-Z_][A-Z_0-9]+", code))]
    read = {name for code in naming for name in _names_read(code)}
    assert not {limit: name for limit, name in listed.items() if limit not in read}, "listed, and read by nothing"


def test_a_limit_computes_as_a_float_and_is_copied_as_one() -> None:
    limit = Limit(0.5, "share")
    assert (limit * 4, limit.unit) == (2.0, "share")
    assert [type(each) for each in (copy.deepcopy(limit), pickle.loads(pickle.dumps(limit)))] == [float, float]
    assert json.dumps(limit) == "0.5"


def test_a_rule_is_told_in_its_own_folder_alone() -> None:
    """No code but a rule's own makes findings of it. (`excess` and others ask for rules by name, and make none.)"""
    for path in (ROOT / "precheck").rglob("*.py"):
        made = set(re.findall(r"\b(?:Finding|Candidate|at)\(\s*(?:\w+\.record, )?\"([a-z-]+)\"", path.read_text(encoding="utf8"))) & RULES.keys()
        assert not made or made == {path.parent.name.replace("_", "-")}, f"{path} makes findings of {made}"


def test_a_new_folder_is_a_new_rule(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And nothing else has to be edited."""
    folder = tmp_path / "too_wide"
    folder.mkdir()
    (folder / "__init__.py").write_text('MEANING = "something is too wide"\nREMEDY = "make it narrow"\n')
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
    rules.catalogue.cache_clear()
    try:
        assert RULES["too-wide"].remedy == "make it narrow"
        assert len(RULES) == len(list(RULES))
    finally:
        monkeypatch.undo()
        rules.catalogue.cache_clear()
    assert "too-wide" not in RULES


def test_tables_are_whole(made: dict[str, str]) -> None:
    """Whatever bars and stars a derivation has."""
    for name, page in made.items():
        rows = [line for line in page.splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) <= 1, name


EXAMPLE_FILES = [example(name) for name in RULES]


@pytest.mark.parametrize("path", EXAMPLE_FILES, ids=lambda path: path.parent.name)
def test_an_example_shows_its_rule(path: Path, made: dict[str, str], tmp_path: Path) -> None:
    """As its own finding, or as the cause of one, and the page shows what it prints."""
    rule = path.parent.name.replace("_", "-")
    assert example_output(rule).is_file(), f"type python suites/report/example_texts.py {rule}"
    report, printed = carried_out(path, tmp_path)
    assert rule in {name for finding in report.findings for name in (finding.rule, finding.cause_rule)}, report.summary()
    assert f"```python\n{path.read_text(encoding='utf8').rstrip()}\n```" in made[f"{rule}.md"]
    shown = example_output(rule).read_text(encoding="utf8")
    assert f"It prints:\n\n```text\n{shown.rstrip()}\n```" in made[f"{rule}.md"]
    if torch.__version__.startswith(TORCH):
        assert words(shown) == words(printed), "stale: type python suites/report/example_texts.py"


def test_words_are_compared_and_numbers_are_not() -> None:
    """Of another processor the numbers differ in their last digits, and columns in their width."""
    assert words("gpt.py:9: off by 33.47%\n  1.6e-07     3.00  output of 0") == words("gpt.py:9: off by 33.1%\n 0.00  3.00  output of 0")
    assert words("off by 33% in bfloat16") != words("off by 33% in float16")
    assert words("1 element off") != words("1 elements off")


def test_the_command_lists_the_rules_and_writes_the_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{rule.name}: {rule.meaning}" for rule in RULES.values()]
    assert main(["rules", "--write", str(tmp_path / "new")]) == 0
    assert {path.name: path.read_text(encoding="utf8") for path in (tmp_path / "new").iterdir()} == pages()
    assert main(["rules", "--write", str(tmp_path / "new")]) == 0  # its own pages it may replace
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "README.md").write_text("# Mine", encoding="utf8")
    assert main(["rules", "--write", str(tmp_path / "docs")]) == 2
    assert [path.read_text(encoding="utf8") for path in (tmp_path / "docs").iterdir()] == ["# Mine"]
    assert capsys.readouterr().err.startswith(f"{tmp_path / 'docs' / 'README.md'} is a file of yours, which a page would replace; name another")
    (tmp_path / "file").write_text("in the way", encoding="utf8")
    assert main(["rules", "--write", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err == f"{tmp_path / 'file'} cannot be written: File exists\n"


def test_a_severity_of_its_own_meaning_is_told_alone() -> None:
    """The page shows a finding with what its rule means for this severity."""
    assert RULES["nan"].meant("error") == "more NaN than the reference, with no overflow before it"
    assert RULES["nan"].meant("warning") == "a loss or gradient that is not finite in float32 either"
    assert RULES["less-accurate"].meant("note") == "it is the reference"
    assert RULES["lost-update"].meant("error") == RULES["lost-update"].meaning
