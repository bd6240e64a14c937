"""Which conditions decide no verdict: on a small judge of its own."""

from __future__ import annotations

from typing import Any

import conditions
import pytest

SOURCE = """
def judged(number):
    if number > 10 and number is not None:
        return "large"
    if number == -1000:
        return "small"
    return "even" if number % 2 == 0 or number == 4 else [each for each in (1, 3, 5) if each < number if each != 2]
"""


@pytest.fixture
def judge() -> tuple[conditions.Conditions, Any]:
    made = conditions.Conditions()
    names: dict[str, Any] = {"_precheck_condition": made.asked}
    exec(made.compiled(SOURCE, "judge.py", "judge.py"), names)
    return made, names["judged"]


def told(judge: tuple[conditions.Conditions, Any], programs: list[Any], share: tuple[int, int] = (0, 1)) -> set[tuple[str, bool, int]]:
    made, judged = judge
    rows = conditions.needless(made, programs, lambda each: judged(each), share)
    return {(row["text"], row["was"], row["programs"]) for row in rows}


def test_a_module_with_conditions_that_ask_judges_as_before(judge: tuple[conditions.Conditions, Any]) -> None:
    _, judged = judge
    assert [judged(each) for each in (11, 2, 7, -1000)] == ["large", "even", [1, 3, 5], "small"]


def test_conditions_that_change_nothing_are_told(judge: tuple[conditions.Conditions, Any]) -> None:
    assert told(judge, [11, 2, 7, 4]) == {
        ("number is not None", True, 0),  # no program needs it
        ("number == -1000", False, 0),  # nor is there a program that is small
        ("number == 4", False, 0),  # four is even, so nobody asks
        ("each != 2", True, 0),
        ("each < number", True, 0),  # all of them are smaller than seven
    }


def test_what_a_program_needs_is_not_told(judge: tuple[conditions.Conditions, Any]) -> None:
    found = told(judge, [11, 2, 7, 4, -1000, 1])
    assert ("number == -1000", False, 1) not in found
    assert not any(text == "each < number" for text, *_ in found)


def test_a_guard_without_which_the_judge_fails_is_needed() -> None:
    made = conditions.Conditions()
    names: dict[str, Any] = {"_precheck_condition": made.asked}
    exec(made.compiled("def judged(text):\n    return text is not None and text.strip()\n", "judge.py", "judge.py"), names)
    rows = list(conditions.needless(made, [None, "a"], names["judged"], (0, 1)))
    assert not any(row["text"] == "text is not None" for row in rows)


def test_processes_share_the_conditions(judge: tuple[conditions.Conditions, Any]) -> None:
    programs = [11, 2, 7, 4]
    halves = [told(judge, programs, (number, 2)) for number in range(2)]
    assert halves[0] | halves[1] == told(judge, programs)
    assert not halves[0] & halves[1]
