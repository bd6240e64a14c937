"""Collects all rows by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from precheck.ops import arithmetic, collectives, kernels, structure
from precheck.ops.spec import OpSpec

_ROWS = (*arithmetic.ROWS, *structure.ROWS, *kernels.ROWS, *collectives.ROWS)

REGISTRY: Mapping[str, OpSpec] = MappingProxyType({row.name: row for row in _ROWS})
"""The facts of each op. Nothing is assumed about ops that are not here."""


def where(wanted: Callable[[OpSpec], bool]) -> frozenset[str]:
    """The names of the ops for whose row `wanted` is true."""
    return frozenset(name for name, row in REGISTRY.items() if wanted(row))
