"""Makes the pages of docs/rules: for each rule its docstring, its limits and its example, which the tests run."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from precheck import rules
from precheck.findings import RULES, RuleInfo
from precheck.report.limits import analyses_of, limits_of, rule_of
from precheck.report.markdown import grid
from precheck.words import sentence

_MADE = "<!-- made by python -m precheck rules --write docs/rules -->"
_GIVEN = {
    "kernels": ["`kernels.causes` classifies the fault, and `kernels.reporting` writes the message.", ""],
    "pairs": ["`pairs.verdicts` gives the verdict on each tensor, and `pairs.reporting` writes the message.", ""],
}
"""Where a verdict comes from that no code of its rule gives."""


def pages() -> dict[str, str]:
    """The pages by file name: README.md and one for each rule."""
    return {"README.md": _index(), **{f"{rule.name}.md": _page(rule) for rule in RULES.values()}}


def example(rule: str) -> Path:
    """The file of a rule's example."""
    return Path(rules.__path__[0]) / rule.replace("-", "_") / "example.py"


def example_output(rule: str) -> Path:
    """The file with the output of a rule's example. suites/report/example_texts.py writes it, and a test compares it."""
    return example(rule).with_suffix(".txt")


def _index() -> str:
    rows = [(f"[`{rule.name}`]({rule.name}.md)", _cell(rule.meaning)) for rule in RULES.values()]
    return "\n".join([_MADE, "", "# Rules", "", *grid(("rule", "fires when"), rows), ""])


def _page(rule: RuleInfo) -> str:
    shown = example(rule.name).read_text(encoding="utf8").rstrip("\n")
    lines = [_MADE, "", f"# `{rule.name}`", "", sentence(rule.meaning), "", f"**Cure**: {rule.remedy}.", ""]
    lines += ["## Example", "", "```python", shown, "```", ""]
    if example_output(rule.name).is_file():
        lines += ["It prints:", "", "```text", example_output(rule.name).read_text(encoding="utf8").rstrip("\n"), "```", ""]
    module = sys.modules[rule_of(rule.name).__module__]
    lines += ["## How it is found", "", inspect.getdoc(module) or "", "", *_GIVEN.get(rule.given_by, ())]
    used = [f"- `precheck/{file}`: {summary}" for file, summary in analyses_of(rule.name)]
    code = Path(module.__file__ or "").relative_to(Path(rules.__path__[0]).parents[1]).as_posix()
    lines += [f"The code: `{code}`.{' Analyses that it uses:' if used else ''}", ""]
    return "\n".join([*lines, *used, *([""] if used else []), *_limits(rule), *_in_tests(rule)])


def _limits(rule: RuleInfo) -> list[str]:
    limits = limits_of(rule.name)
    if not limits:
        return ["It has no limits: the answer is yes or no.", ""]
    rows = [(f"`{limit.name}`", f"`{limit.value}`", limit.unit, f"`{limit.file}`", _cell(limit.origin)) for limit in limits]
    table = grid(("limit", "value", "unit", "file", "what it is, and why"), rows)
    return ["## Limits", "", "Numbers that the verdict depends on, as they are in the code:", "", *table, ""]


def _in_tests(rule: RuleInfo) -> list[str]:
    return [
        "## In a test", "", "```python",
        f'@pytest.mark.expect_finding("{rule.name}")  # fails unless it is found',
        f'@pytest.mark.allow_finding("{rule.name}", reason="…")  # passes where it is found, and lists it at the end of the run',
        "```", "", "[All rules](README.md)", "",
    ]  # fmt: skip


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("*", "\\*")
