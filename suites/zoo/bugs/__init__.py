"""Bugs that shipped, one file a mechanism, each with its mended twin. `ALL` are all of them, `AT_FAULT` says where.

Every file of this folder that has `BUGS` belongs to the zoo; there is no list to keep.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

from bugs.bug import Bug, culprits
from bugs.loops import marked


def _modules() -> tuple[ModuleType, ...]:
    found = (importlib.import_module(f"bugs.{each.name}") for each in pkgutil.iter_modules(__path__))
    return tuple(module for module in found if hasattr(module, "BUGS"))


def _bugs(module: ModuleType) -> tuple[Bug, ...]:
    mechanism = getattr(module, "MECHANISM", module.__name__.rpartition(".")[2])
    return tuple(bug if bug.mechanism else dataclasses.replace(bug, mechanism=mechanism) for bug in module.BUGS)


MODULES = _modules()
ALL: tuple[Bug, ...] = tuple(bug for module in MODULES for bug in _bugs(module))
AT_FAULT: dict[str, tuple[Path, set[int]]] = {}
"""For each bug by name, the file and the lines that are at fault."""
for module in MODULES:
    path = Path(module.__file__ or "").resolve()
    AT_FAULT |= {name: (path, lines) for name, lines in culprits(path).items()}
    AT_FAULT |= {fault.name: (path, {line for _, line in marked(fault.code)}) for fault in getattr(module, "FAULTS", ())}
