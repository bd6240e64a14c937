"""The rules: a folder each, with what it says of itself (`about.py`), what it does (`rule.py`), its limits and an example.

`catalogue()` needs `about.py` alone, which imports neither torch nor numpy. To add a rule, add a folder.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING

from precheck.findings import Rule

if TYPE_CHECKING:
    from precheck.rules import rule


def folders() -> list[str]:
    """The folders of all rules, by name."""
    return sorted(found.name for found in pkgutil.iter_modules(__path__) if found.ispkg)


@functools.cache
def catalogue() -> dict[str, Rule]:
    """Every rule by its name, those that explain others first."""
    about = [importlib.import_module(f"{__name__}.{folder}.about").ABOUT for folder in folders()]
    return {rule.name: rule for rule in sorted(about, key=lambda rule: (rule.rank, rule.name))}


@functools.cache
def classes() -> tuple[type[rule.Rule], ...]:
    """What each rule does, in the order of the catalogue. Loads torch."""
    from precheck.rules import rule

    for folder in folders():
        importlib.import_module(f"{__name__}.{folder}.rule")
    return tuple(sorted(rule.Rule.__subclasses__(), key=lambda each: (each.about.rank, each.about.name)))
