"""Code that a hasty tool accuses and that is right: each function's docstring says what looks like a fault. `IDIOMS` are all of them.

Every file of this folder that has `IDIOMS` belongs to the zoo; there is no list to keep. `MEASURED` are functions that give arguments
for precheck.measure, as keywords: healthy models at a precision. `ACCUSED` says of idioms by name why they are accused all the same; those in `EXACT`
are float32 throughout, and are watched beside float64.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

_FOUND = [importlib.import_module(f"healthy.{each.name}") for each in pkgutil.iter_modules(__path__)]
IDIOMS: tuple[Callable[[], Any], ...] = tuple(idiom for module in _FOUND for idiom in getattr(module, "IDIOMS", ()))
MEASURED: tuple[Callable[[], dict[str, Any]], ...] = tuple(each for module in _FOUND for each in getattr(module, "MEASURED", ()))
ACCUSED: dict[str, str] = {name: why for module in _FOUND for name, why in getattr(module, "ACCUSED", {}).items()}
EXACT: frozenset[str] = frozenset(name for module in _FOUND for name in getattr(module, "EXACT", ()))
