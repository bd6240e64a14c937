"""Run in a process of its own, under one setting: products whose sums have so many terms, where nothing else is rounded.

Models say what 2^-20 covers at their size; this says up to which size of a sum it does.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from precheck.analysis.noise_floor.noise import REASSOCIATED
from precheck.observe.noise import ONE_ROUNDING

TERMS = (1024, 4096, 16384, 65536, 262144)
FILE = "products.json"


def products() -> dict[str, list[float]]:
    """Of 256 sums each, by how many terms they have. Terms are of either sign, so that their sums are small beside them."""
    draws = torch.Generator().manual_seed(0)
    found = {}
    for terms in TERMS:
        one, other = (torch.rand(16, terms, generator=draws).sub(0.5) for _ in range(2))
        found[str(terms)] = (one @ other.mT).reshape(-1).tolist()
    return found


def furthest(by_setting: Mapping[str, Mapping[str, Sequence[float]]]) -> list[dict[str, Any]]:
    """For each number of terms, the two settings that differ most, in roundings of 2^-20, as r of a tensor that comes of nothing rounded."""
    found = []
    for terms in map(str, TERMS):
        pairs = ((_apart(by_setting[one][terms], by_setting[other][terms]), one, other) for one, other in itertools.combinations(by_setting, 2))
        r, one, other = max(pairs)
        found.append({"terms": int(terms), "r": r, "one": one, "other": other})
    return found


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    return float(numpy.linalg.norm(numpy.subtract(one, other)) / numpy.linalg.norm(one) / (ONE_ROUNDING * REASSOCIATED))


if __name__ == "__main__":
    (Path(sys.argv[1]) / FILE).write_text(json.dumps(products()) + "\n", encoding="utf8")
