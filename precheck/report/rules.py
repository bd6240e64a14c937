"""A page for each rule, from the catalogue, the judges' limits and an example that is run by the tests: docs/rules."""

from __future__ import annotations

from pathlib import Path

from precheck.findings import RULES, Rule
from precheck.report.limits import files_of, limits_of
from precheck.report.markdown import grid

EXAMPLES = "examples"
"""The folder beside the pages with a file for each rule, where there is one."""
_MADE = "<!-- made by python -m precheck rules --write docs/rules -->"


def pages(folder: Path) -> dict[str, str]:
    """Names of files and their content: README.md and one for each rule. `folder` is where they belong, with the examples."""
    return {"README.md": _index(), **{f"{rule.name}.md": _page(rule, _example(folder, rule)) for rule in RULES.values()}}


def _index() -> str:
    rows = [(f"[`{rule.name}`]({rule.name}.md)", _cell(rule.meaning)) for rule in RULES.values()]
    return "\n".join([_MADE, "", "# Rules", "", *grid(("rule", "fires when"), rows), ""])


def _example(folder: Path, rule: Rule) -> str:
    path = folder / EXAMPLES / f"{rule.name.replace('-', '_')}.py"
    return path.read_text(encoding="utf8") if path.is_file() else ""


def _page(rule: Rule, example: str) -> str:
    lines = [_MADE, "", f"# `{rule.name}`", "", _sentence(rule.meaning), "", f"**Cure**: {rule.remedy}.", ""]
    if example:
        lines += ["## Example", "", "```python", example.rstrip("\n"), "```", ""]
    lines += ["## How it is told", ""]
    for file, summary in files_of(rule.name):
        lines += [f"- `precheck/judge/{file}.py`: {summary}"]
    return "\n".join([*lines, "", *_limits(rule), *_in_tests(rule)])


def _limits(rule: Rule) -> list[str]:
    limits = limits_of(rule.name)
    if not limits:
        return ["It has no limits: it is a matter of yes or no.", ""]
    rows = [(f"`{limit.name}`", f"`{limit.value}`", f"`{limit.file}`", _cell(limit.why)) for limit in limits]
    return ["## Limits", "", "Numbers that take part in the verdict, as the code has them:", "", *grid(("limit", "value", "judge", "why"), rows), ""]


def _in_tests(rule: Rule) -> list[str]:
    return [
        "## In a test", "", "```python",
        f'@pytest.mark.expect_finding("{rule.name}")  # fails unless it is found',
        f'@pytest.mark.allow_finding("{rule.name}", reason="…")  # passes where it is found, and lists it at the end of the run',
        "```", "", "[All rules](README.md)", "",
    ]  # fmt: skip


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:] + "."


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("*", "\\*")
