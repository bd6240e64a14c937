"""Bugs that shipped, one module a mechanism, each with its mended twin. `ALL` are all of them, `at_fault` says where."""

from __future__ import annotations

from pathlib import Path

from bugs import accumulators, cancellation, choices, constants, gradients, masks, overflow, positions, reference, underflow
from bugs.bug import Bug, culprits

MODULES = (overflow, masks, underflow, constants, positions, cancellation, accumulators, choices, gradients, reference)
ALL: tuple[Bug, ...] = tuple(bug for module in MODULES for bug in module.BUGS)
AT_FAULT: dict[str, tuple[Path, set[int]]] = {}
"""For each bug by name, the file and the lines that are at fault."""
for module in MODULES:
    path = Path(module.__file__).resolve()
    AT_FAULT |= {name: (path, lines) for name, lines in culprits(path).items()}
