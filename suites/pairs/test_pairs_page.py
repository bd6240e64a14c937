"""docs/pairs.md: its first block runs as it stands, and its table names the rules there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import precheck

PAGE = (Path(precheck.__file__).parent.parent / "docs" / "pairs.md").read_text(encoding="utf8")


def test_the_first_block_runs() -> None:
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0], names)
    assert names["report"].verdict == "rounding"


def test_every_verdict_of_the_page_is_a_rule() -> None:
    verdicts = re.findall(r"^\| `([a-z ]+)` \| ", PAGE.partition("## Where they differ")[0], re.MULTILINE)
    assert len(verdicts) == 5
    assert {verdict.replace(" ", "-") for verdict in verdicts} <= precheck.RULES.keys()
