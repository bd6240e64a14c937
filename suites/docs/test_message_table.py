"""docs/messages.md: the table of every message is that of the rules, and each sentence can be read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from named import ROOT

import precheck
from precheck.__main__ import main
from precheck.report import messages


def test_the_page_is_what_the_rules_say() -> None:
    stale = (ROOT / "docs" / messages.NAME).read_text(encoding="utf8") != messages.page()
    assert not stale, f"docs/{messages.NAME} is stale: type python -m precheck rules --messages --write docs"


def test_each_rule_has_its_meaning_its_remedy_and_what_its_words_are() -> None:
    page = messages.page()
    for rule in precheck.RULES.values():
        section = page.partition(f"## `{rule.name}`\n")[2].partition("\n## ")[0]
        assert "**Fires when**" in section
        assert "**What to do**" in section
        assert f"rules/{rule.name}.md" in section
        assert f"**Example**: `{rule.name}: " in section
    assert "‹number› in the reference is beyond the largest ‹dtype›" in page
    assert "of the update of ‹number› steps arrived" in page


def test_what_is_no_message_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "rule.py"
    file.write_text('''
"""A docstring with several words."""
LIMIT = Limit(4, "so many unit roundoffs")
def words(fact):
    if fact.how == "not a message at all":
        raise TypeError("no words for this at all")
    return f"{100 * fact.dead:.0f}% of {placed(fact.at)} are gone" + ", and that is the rest"
''', encoding="utf8")  # fmt: skip
    assert list(messages.texts(file)) == ["‹share›% of ‹op at line› are gone", ", and that is the rest"]


def test_it_needs_no_torch_and_is_printed_or_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--messages"]) == 0
    assert capsys.readouterr().out == messages.page()
    assert main(["rules", "--messages", "--write", str(tmp_path)]) == 0
    assert (tmp_path / messages.NAME).read_text(encoding="utf8") == messages.page()
    code = "import sys; from precheck.report import messages; messages.page(); assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_message_uses_a_word_that_has_to_be_decoded() -> None:
    """Words of the house that the glossary does not have, and forms that a reader stops at."""
    riddles = r"keep no digit|near-equals|stored low|kept wide|otherwise than|without a word|made anew|hands it to|as they come"
    assert not re.findall(riddles, messages.page())
