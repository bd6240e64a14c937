"""The rules. Each has a folder of its name with its texts (`__init__.py`), its code and limits (`rule.py`) and an example (`example.py`).

`catalogue()` imports only the folders themselves, which need neither torch nor numpy. To add a rule, add a folder.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
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
    return {rule.name: rule for rule in sorted(map(_info, folders()), key=lambda rule: (rule.rank, rule.name))}


def _info(folder: str) -> RuleInfo:
    package = importlib.import_module(f"{__name__}.{folder}")
    return RuleInfo(folder.replace("_", "-"), package.MEANING, package.REMEDY, getattr(package, "RANK", 1000))


@functools.cache
def classes() -> tuple[type[rule.Rule], ...]:
    """The classes of all rules, in the order of the catalogue. Imports torch."""
    return tuple(sorted(map(_class, folders()), key=lambda each: (each.about.rank, each.about.name)))


def _class(folder: str) -> type[rule.Rule]:
    """The subclass of `Rule` that a folder defines. A folder without code is a verdict of `kernels` or `pairs`."""
    from precheck.rules import verdicts
    from precheck.rules.rule import Rule

    package = importlib.import_module(f"{__name__}.{folder}")
    if importlib.util.find_spec(f"{package.__name__}.rule") is None:
        limits = () if getattr(package, "EXACT", False) else {"kernels": verdicts.KERNELS, "pairs": verdicts.PAIRS}[package.GIVEN_BY]
        return type(folder, (Rule,), {"__module__": package.__name__, "limits": limits})
    module = importlib.import_module(f"{__name__}.{folder}.rule")
    own = (each for each in vars(module).values() if isinstance(each, type) and issubclass(each, Rule) and each.__module__ == module.__name__)
    return next(own)
