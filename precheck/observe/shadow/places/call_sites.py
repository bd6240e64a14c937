"""Remembers from where a line of the user's was called, for lines that several others call: a helper that rounds, such as `to_low(x)`.

A finding names the line that runs the op. If that is a helper's, the line does not say which of its calls went wrong, so the calls are named too.
A module's forward method is called by torch; which module it was is told otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

DEPTH = 3
"""Calls that are remembered, from a line outwards. A helper of a helper has two."""
_INLINE = frozenset({"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"})


class CallSite:
    """The calls that led to a line, innermost first. `known`: all that have led to this line so far, by the places of their calls."""

    __slots__ = ("calls", "known")

    def __init__(self, calls: list[tuple[CodeType, int]], known: dict[tuple[int, ...], CallSite]) -> None:
        self.calls, self.known = calls, known

    @property
    def lines(self) -> list[str]:
        """The lines of those calls that tell this way to the line from others. Empty if it is the only one, or if one line has all calls."""
        own, ways = self._way(), [site._way() for site in self.known.values()]
        return [line for place, line in enumerate(own) if any(way[:place] == own[:place] and way[place : place + 1] != [line] for way in ways)]

    def _way(self) -> list[str]:
        return [_line(*call) for call in self.calls]


class CallSites:
    """The call sites of a run, by line."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self.kinds = kinds  # of files
        self.known: dict[str, dict[tuple[int, ...], CallSite]] = {}

    def of(self, frame: FrameType, line: str) -> CallSite | None:
        """How the line that a frame is at was reached: through functions of the user's. None if nothing of the user's called it directly."""
        key: tuple[int, ...] = ()
        calls: list[tuple[CodeType, int]] = []
        back: Any = frame
        while back is not None and back.f_code.co_name in _INLINE:
            back = back.f_back
        back = back and back.f_back
        while back is not None and len(calls) < DEPTH and self.kinds[back.f_code.co_filename] == "user":
            key += (id(back.f_code), back.f_lasti)  # by id, since hashing code takes two microseconds
            calls.append((back.f_code, back.f_lasti))
            back = back.f_back
        known = self.known.setdefault(line, {})
        site = known.get(key)
        if site is None:
            site = known[key] = CallSite(calls, known)
        return site if calls else None


def _line(code: CodeType, instruction: int) -> str:
    """The line of an instruction."""
    line = next((line for start, end, line in code.co_lines() if start <= instruction < end), None)
    return f"{code.co_filename}:{line or code.co_firstlineno}"
