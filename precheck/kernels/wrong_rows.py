"""Tells whether the size of a trial is at fault, or numbers that many rows have not: by how many rows are wrong, and which."""

from __future__ import annotations

from collections.abc import Callable

import torch

from precheck.analysis.chance import MORE_ROWS, SPARED
from precheck.kernels.bench import Bench
from precheck.kernels.rounding_errors import PLENTY
from precheck.kernels.trial_result import Judged
from precheck.kernels.trials import Trial

_DRAWS = range(1017, 1023)
"""Draws of the failing sizes that tell how often a result of one row is wrong. Six, as many as those of the example's sizes."""


class WrongRows:
    """The rows that are wrong in a trial, and those of other trials. `fresh` judges a trial from the state before the first call; None if the
    reference refuses it."""

    def __init__(self, bench: Bench, fresh: Callable[[Trial], Judged | None]) -> None:
        self.bench, self.fresh = bench, fresh

    def chance(self, judged: Judged, sizes: tuple[tuple[str, int], ...] = ()) -> float:
        """The chance that all rows of the example, or of other sizes, are right, if each row is wrong as often as in the trial.

        A trial was found because it fails, so that its one row is wrong for certain, and says nothing of how often. Other draws of the same sizes do.
        """
        if _rows(judged) <= 1:
            return 1 - self._share(judged)
        wrong, taken = _wrong(judged), self.bench.takes(judged.trial.but(sizes=sizes))
        right = self.bench.of(taken).exact.values.get(judged.subject) if taken else None
        if wrong is None or right is None or not right.numel():
            return 0.0
        rows = right.numel() // right.shape[-1] if right.dim() > 1 else right.numel()
        return (1 - float(wrong.double().mean())) ** rows

    def _share(self, judged: Judged) -> float:
        """The share of other draws of these sizes in which the same result is wrong. Of a reference that refuses them it is one."""
        found = [self.fresh(judged.trial.but(seed=judged.trial.seed + seed)) for seed in _DRAWS]
        wrong = [each.fault is not None for each in found if each is not None and not each.refused and not each.skipped]
        return sum(wrong) / len(wrong) if wrong else 1.0

    def same(self, judged: Judged) -> bool:
        """Whether the rows that are wrong are wrong in another draw of these sizes, too: their place is at fault, and not their numbers."""
        one, other = _wrong(judged), self.fresh(judged.trial.but(seed=judged.trial.seed + 1000))
        two = None if other is None else _wrong(other)
        if one is None or two is None or one.shape != two.shape:
            return False
        return 2 * int((one & two).sum()) > min(int(one.sum()), int(two.sum())) > 0

    def right_in_more(self, judged: Judged) -> bool:
        """Whether it is right where one size is larger, so that rows are too many to be right by chance. Numbers of one sign are tried, too: in short
        rows all have it more often."""
        for name, size in self.bench.dimensions.sizes.items():
            sizes = ((name, int(MORE_ROWS * size)),)
            if self.bench.dimensions.elements(dict(sizes)) > PLENTY or _rows(judged) <= 1 or not 0 < self.chance(judged, sizes) <= SPARED:
                continue
            found = [self.fresh(judged.trial.but(sizes=sizes, family=family)) for family in (judged.trial.family, "above", "below")]
            if all(each is not None and each.fault is None and not each.refused and not each.skipped for each in found):
                return True
        return False


def _wrong(judged: Judged) -> torch.Tensor | None:
    """Which rows of the result are wrong; elements of a result of one dimension."""
    found = judged.distances.get(judged.subject) if judged.fault is not None else None
    wrong = found.wrong if found is not None else None
    if wrong is None or not wrong.dim() or not wrong.numel():
        return None
    return wrong.any(-1).flatten() if wrong.dim() > 1 else wrong


def _rows(judged: Judged) -> int:
    """How many rows of the result are known to be right or wrong."""
    wrong = _wrong(judged)
    return 0 if wrong is None else wrong.numel()
