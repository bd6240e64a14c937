"""Prepares exponent histograms for the HTML page: finds the histogram of a row or finding, and lists the ranges of formats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from precheck.formats import BF16, E4M3FN, E5M2, FP16

RANGED = (FP16, BF16, E4M3FN, E5M2)
"""Formats whose ranges the page draws, in this order."""
COLUMNS = ("tensor", "kind", "step", "dtype", "elements", "least", "zeros", "nonfinite", "op", "phase", "module", "source")


def ranges() -> list[dict[str, Any]]:
    """For each format the exponents of its smallest subnormal, smallest normal and largest number, and the largest number."""
    return [
        {
            "dtype": fmt.dtype_name,
            "subnormal": math.frexp(fmt.min_subnormal)[1] - 1,
            "normal": fmt.min_exponent,
            "largest": math.frexp(fmt.max)[1] - 1,
            "max": fmt.max,
        }
        for fmt in RANGED
    ]


class Histograms:
    """The histograms of a report, found by tensor or by op."""

    def __init__(self, report: dict[str, Any]) -> None:
        self.rows: list[dict[str, Any]] = report["exponents"]
        self.ops: Sequence[dict[str, Any]] = report["ops"]
        self.boundaries: Sequence[dict[str, Any]] = report["boundaries"]
        self.tensors: dict[tuple[str, str, int], int] = {}
        self.results: dict[tuple[str, ...], int] = {}
        for place, row in enumerate(self.rows):
            if row["kind"] == "op":
                self.results.setdefault(_op(row), place)
            else:
                self.tensors[_tensor(row)] = place

    def of_row(self, row: dict[str, Any]) -> int:
        """The index of a tensor's histogram; -1 if there is none."""
        return self.tensors.get(_tensor(row), -1)

    def of_finding(self, finding: dict[str, Any], at_op: int, at_row: int) -> int:
        """The index of the histogram of the finding's tensor, or else of its parameter's gradient or its op's result. -1 if there is none."""
        found = self.of_row(self.boundaries[at_row]) if at_row >= 0 else -1
        if found < 0 and finding["tensor"]:
            wanted = finding["tensor"], "parameter-gradient"
            found = next((place for key, place in self.tensors.items() if key[:2] == wanted), -1)
        return self.results.get(_op(self.ops[at_op]), -1) if found < 0 <= at_op else found


def _tensor(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["tensor"], row["kind"], row["step"]


def _op(row: dict[str, Any]) -> tuple[str, ...]:
    return row["op"], row["phase"], row["module"], row["source"]
