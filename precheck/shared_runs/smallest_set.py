"""Finds a smallest set of names that passes a test: QuickXplain (Junker 2004), about k log(n/k) trials for k of n names.

It assumes that a set that passes still passes with more names. Names that come earlier are kept first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Passes = Callable[[Sequence[str]], bool]
"""Whether a set of names passes the test."""


class SpentError(Exception):
    """No trial or no time is left."""


def needed(given: Sequence[str], names: Sequence[str], passes: Passes) -> list[str]:
    """Returns a smallest part of `names` that passes together with `given`. All of `names` must pass together with `given`."""
    if not names or passes(given):
        return []
    if len(names) == 1:
        return list(names)
    half = len(names) // 2
    late = needed([*given, *names[:half]], names[half:], passes)
    return [*needed([*given, *late], names[:half], passes), *late]


def swept(names: Sequence[str], passes: Passes) -> list[str]:
    """Returns `names` without those that can be left out one after another."""
    for name in names:
        rest = [other for other in names if other != name]
        if passes(rest):
            return swept(rest, passes)
    return list(names)
