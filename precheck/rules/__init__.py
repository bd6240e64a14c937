"""The rules. Each has a folder with its name and texts (`about.py`), its code and limits (`rule.py`) and an example (`example.py`).

`catalogue()` imports only `about.py`, which needs neither torch nor numpy. To add a rule, add a folder.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING

from precheck.findings import RuleInfo

if TYPE_CHECKING:
    from precheck.rules import rule


def folders() -> list[str]:
    """The names of all rules' folders, sorted."""
    return sorted(found.name for found in pkgutil.iter_modules(__path__) if found.ispkg)


@functools.cache
def catalogue() -> dict[str, RuleInfo]:
    """All rules by name. Those that explain others come first."""
    about = [importlib.import_module(f"{__name__}.{folder}.about").ABOUT for folder in folders()]
    return {rule.name: rule for rule in sorted(about, key=lambda rule: (rule.rank, rule.name))}


@functools.cache
def classes() -> tuple[type[rule.Rule], ...]:
    """The classes of all rules, in the order of the catalogue. Imports torch."""
    return tuple(sorted(map(_class, folders()), key=lambda each: (each.about.rank, each.about.name)))


def _class(folder: str) -> type[rule.Rule]:
    """The subclass of `Rule` that a folder defines."""
    from precheck.rules.rule import Rule

    module = importlib.import_module(f"{__name__}.{folder}.rule")
    own = (each for each in vars(module).values() if isinstance(each, type) and issubclass(each, Rule) and each.__module__ == module.__name__)
    return next(own)
