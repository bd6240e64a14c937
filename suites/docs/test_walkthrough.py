"""How a page is held against what is said: near is near, and anything else is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from walkthrough import Spoken, alike, blocks, carry_out, change, commands, unsaid

SAID = """\
header of this machine
one.py .          [100%]
worst r 1.41 of 3 allowed: blocks.0
==== 1 passed in 3.21s ====
"""
PAGE = """\
```python a/one.py
print(6 * 7)
```
Text.
```diff a/one.py
-print(6 * 7)
+print(6 * 8)
```
```console
$ python a/one.py
42
```
```sh
exit 1
```
"""


@pytest.mark.parametrize(
    "expected",
    [
        SAID,
        SAID.replace("3.21s", "137.02s (0:02:17)").replace("====", "======="),  # time is no promise
        SAID.replace("1.41", "1.6"),
        SAID.replace("header of this machine", "header of …"),
        SAID.replace("header of this machine\none.py .          [100%]", "…"),
        SAID.replace("   ", " ").replace("\n", "\n\n"),
        "…",
    ],
)
def test_the_same_is_the_same(expected: str) -> None:
    assert unsaid(expected, SAID) is None


@pytest.mark.parametrize(
    ("expected", "first"),
    [
        (SAID.replace("1 passed", "2 passed"), "==== 2 passed in 3.21s ===="),  # counts are exact
        (SAID.replace("1.41", "2.1"), "worst r 2.1 of 3 allowed: blocks.0"),
        (SAID.replace("blocks.0", "blocks.1"), "worst r 1.41 of 3 allowed: blocks.1"),
        (SAID.replace("header of this machine\n", ""), "one.py .          [100%]"),  # nothing is left out unsaid
        (SAID + "and more\n", "and more"),
        (SAID.replace("==== 1 passed in 3.21s ====\n", ""), "(the end; there is more: === 1 passed in a while ===)"),
        ("…\none.py .          [100%]\nheader of this machine\n…", "header of this machine"),  # order counts
    ],
)
def test_another_is_told_by_its_first_line(expected: str, first: str) -> None:
    assert unsaid(expected, SAID) == first
    assert first in Spoken("pytest", 7, expected, SAID, 0).difference()


def test_numbers_within_names_are_names() -> None:
    assert not alike("bf16-mixed 1.5", "bf17-mixed 1.5")
    assert not alike("a.py:9: x", "a.py:10: x")
    assert alike("0.30%; 2.5e-05", "0.31%; 2.6e-05")


def test_blocks_are_carried_out(tmp_path: Path) -> None:
    (told,) = [one for block in blocks(PAGE) for one in carry_out(block, tmp_path)]
    assert (told.said, told.status, told.line) == ("48\n", 0, 9)
    assert told.difference() == "line 9: $ python a/one.py\nhas not said\n42\nbut\n48\n"


def test_a_change_is_of_one_place(tmp_path: Path) -> None:
    path = tmp_path / "it.py"
    path.write_text("a\na\n", encoding="utf8")
    with pytest.raises(AssertionError, match=r"it\.py has 2 times"):
        change(path, "-a\n+b\n")
    change(path, " a\n-a\n+b\n")
    assert path.read_text(encoding="utf8") == "a\nb\n"


def test_a_console_begins_with_a_command() -> None:
    assert commands("$ a b\nsaid\n$ c\n") == [("a b", "said\n"), ("c", "")]
    with pytest.raises(AssertionError, match="begins with a command"):
        commands("said\n$ c\n")


def test_the_slowest_checks_of_a_slow_machine_are_left_out() -> None:
    slow = SAID.replace("==== 1 passed", "1 check took 27 s; the slowest:\n    27 s  test_gpt.py::test_gpt[32-true]: the rest 6.6 s\n==== 1 passed")
    assert slow != SAID
    assert unsaid(SAID, slow) is None
    assert unsaid(slow, SAID) == "1 check took 27 s; the slowest:"
