"""Healthy models measured over many seeds: how often one is called broken, and how near the limit the nearest comes."""

from __future__ import annotations

import itertools
import runpy
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

from verdicts import Verdict, line, read, verdict_of

MODELS = Path(__file__).parents[2] / "models"
SLOW = "sentence_encoder"  # up to 15 s a run; it takes its turn last, with one seed in ten


def measure(path: Path, checks: int) -> list[Verdict]:
    """As many checks as asked for, kept in `path` one a line, so that a later call goes on where this one ended."""
    runpy.run_path(str(MODELS / "conftest.py"))
    sys.path.insert(0, str(MODELS))
    import test_healthy

    found = read(path) if path.exists() else []
    done = {each.check for each in found}
    with path.open("a", encoding="utf8") as kept, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for model, precision, seed in turns(tuple(test_healthy.NEEDS), test_healthy.PRECISIONS):
            if len(found) >= checks:
                return found
            if ("healthy", model, precision, seed) not in done:
                found.append(verdict_of(test_healthy.measured(model, precision, seed), "healthy", model, seed=seed))
                kept.write(line(found[-1]))
                kept.flush()
    raise AssertionError("seeds have no end")


def turns(models: tuple[str, ...], precisions: tuple[str, ...]) -> Iterator[tuple[str, str, int]]:
    """Seed after seed, all models under all precisions; the slow one with every tenth seed."""
    for seed in itertools.count():
        for model, precision in itertools.product(models, precisions):
            if model != SLOW or seed % 10 == 9:
                yield model, precision, seed
