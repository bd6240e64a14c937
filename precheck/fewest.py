"""The fewest of several things that suffice, found by trying: QuickXplain (Junker 2004), about k log(n/k) trials for k of n.

It holds that what suffices still suffices with more. The earlier a name stands, the rather it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Passes = Callable[[Sequence[str]], bool]
"""Whether these suffice."""


def needed(given: Sequence[str], names: Sequence[str], passes: Passes) -> list[str]:
    """Of `names`, which suffice together with `given`, a smallest part that does."""
    if not names or passes(given):
        return []
    if len(names) == 1:
        return list(names)
    half = len(names) // 2
    late = needed([*given, *names[:half]], names[half:], passes)
    return [*needed([*given, *late], names[:half], passes), *late]


def swept(names: Sequence[str], passes: Passes) -> list[str]:
    """`names` without any that can be left out after all."""
    for name in names:
        rest = [other for other in names if other != name]
        if passes(rest):
            return swept(rest, passes)
    return list(names)
