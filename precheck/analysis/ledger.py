"""The ledger of exemptions: healthy code that a rule would report, and how it is recognised.

An exemption is a function that says whether it applies. `exempts` enters it into the ledger, with the rules that it suppresses, its reason, and the
programs of the corpus that would be reported without it. docs/limits-and-exemptions.md shows the ledger. A test disables each exemption in turn.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec

P = ParamSpec("P")


@dataclasses.dataclass(slots=True)
class Exemption:
    """One entry of the ledger."""

    name: str  # the function's
    what: str  # the first line of its docstring
    rules: tuple[str, ...]
    reason: str
    needed_by: tuple[str, ...]  # programs of suites/zoo, by name
    in_force: bool = True


LEDGER: dict[str, Exemption] = {}


def exempts(*rules: str, reason: str, needed_by: tuple[str, ...]) -> Callable[[Callable[P, bool]], Callable[P, bool]]:
    """Decorator that enters an exemption, a function that says whether it applies, into the ledger."""

    def entered(applies: Callable[P, bool]) -> Callable[P, bool]:
        name, what = applies.__name__.lstrip("_"), (applies.__doc__ or "").partition("\n")[0]
        entry = LEDGER[name] = Exemption(name, what, rules, reason, needed_by)

        @functools.wraps(applies)
        def checked(*args: P.args, **kwargs: P.kwargs) -> bool:
            return entry.in_force and applies(*args, **kwargs)

        return checked

    return entered


@contextlib.contextmanager
def without(name: str) -> Iterator[None]:
    """Disables an exemption inside the block, so that a test can show what it suppresses."""
    LEDGER[name].in_force = False
    try:
        yield
    finally:
        LEDGER[name].in_force = True
