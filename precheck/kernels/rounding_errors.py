"""Tells an error of rounding from another: by a wider format, by neighbouring inputs, and by its growth with the length of a sum."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch

from precheck.kernels import running
from precheck.kernels.bench import Bench
from precheck.kernels.errors import adds, carriers, error_of, errors_of
from precheck.kernels.examples import Example, Leaf
from precheck.kernels.replay import Replay
from precheck.kernels.trial_result import Judged
from precheck.kernels.trials import Made, Trial

PLENTY = 2**18
"""The most elements of a tensor in trials that search for a class."""
_GAIN = 8.0
"""The least factor by which a rounding error is smaller in the next wider format. Formats differ by 2^3 and more."""
_CARRIERS = 8  # elements that must carry an error, before it is asked whether it varies like rounding
_ENOUGH = 61  # the size of each dimension where the example has too few elements to show how an error varies
_GROWS = 4.0
"""Growth of a sum's relative error when the sum is 64 times as long, if its accumulator rounds: between 8, as for a random walk, and 64."""

_STEADY = 4096.0
"""The most that it grows then: a relative error of each addition adds up to 64 times as much, and 64 times that is spared. What is exact in small
sums and far off in large ones leaves terms out."""


_MEASURED, _DRAWS = 128, 8
"""The elements over which an error is measured, so that chance moves its norm by a sixteenth, and the most draws for them."""
_SHORT = 16
"""The size of a dimension with which a sum is short."""
_FAR = 2.0
"""The least mean of numbers that lie far from zero, in standard deviations. Positive numbers as they are usually drawn have 1.3 to 1.8."""


class RoundingErrors:
    """Asks about the error of one trial. `replay` judges other ones. `late`: whether the work for it is done."""

    def __init__(self, replay: Replay, late: Callable[[], bool]) -> None:
        self.bench, self.state, self.late, self.replay = replay.bench, replay.state, late, replay

    def explains(self, judged: Judged) -> bool:
        """Whether the error is a rounding error: a wider format removes it, or it is small and differs at every neighbouring input."""
        name = judged.subject
        error = error_of(judged, name)
        if not error > 0:
            return False
        for dtype in (torch.float64, torch.float32):
            wide = self._wider(judged.trial, dtype)
            if wide is not None and math.isfinite(left := error_of(wide, name)) and left * _GAIN <= error:
                return True
        return error < 0.1 and self._erratic(judged, name)

    def _wider(self, trial: Trial, dtype: torch.dtype) -> Judged | None:
        """The same numbers in a wider format. None if the example has that format already, or the candidate does not accept it."""
        example = self.bench.example
        if all(leaf.tensor.dtype.itemsize >= dtype.itemsize for leaf in example.leaves if leaf.tensor.is_floating_point()):
            return None
        made = self.bench.make(trial)
        values = [each.to(dtype) if each.is_floating_point() else each for each in made.values]
        leaves = tuple(Leaf(leaf.path, each, leaf.wanted) for leaf, each in zip(example.leaves, values, strict=True))
        wider = Bench(self.bench.candidate, self.bench.reference, Example(example.inputs, leaves), self.bench.dimensions, self.bench.wishes)
        with self.state.restored():
            outcome = wider.call(trial.but(fill="NaN"), Made(values, made.numbers))[0]
        return None if outcome.error is not None else Judged(trial, outcome=outcome, reference=self.bench.of(trial))

    def _erratic(self, judged: Judged, name: str) -> bool:
        """Whether the error changes when each input changes by up to 2^-5 of itself. A wrong formula has a similar error there."""
        trial, made = judged.trial, self.bench.make(judged.trial)
        first = errors_of(judged, name)
        if first is None or self.late():
            return False
        if not carriers(first) >= _CARRIERS:
            larger = self._larger(judged, name)
            return larger is not None and error_of(larger, name) < 0.1 and self._erratic(larger, name)
        generator = torch.Generator().manual_seed(3)
        moved = [(each.double() * (1 + (torch.rand(each.shape, generator=generator).double() - 0.5) / 16)).to(each.dtype)
                 if each.is_floating_point() else each for each in made.values]  # fmt: skip
        with self.state.restored():
            outcome = running.run(self.bench.candidate, self.bench.example, moved, made.numbers, self.bench.wishes_of(trial))
        exact = self.bench.exact_of(trial, type(made)(moved, made.numbers))
        second = errors_of(Judged(trial, outcome=outcome, reference=dataclasses.replace(self.bench.of(trial), exact=exact)), name)
        if outcome.error is not None or exact.error is not None or second is None:
            return False
        norms = float(first.norm() * second.norm())
        return norms > 0 and float((first * second).sum()) / norms < 0.5

    def _larger(self, judged: Judged, name: str) -> Judged | None:
        """Larger sizes, if the fault is there too, or an error half as large. A few elements do not show how an error varies."""
        before = self.bench.dimensions.sizes | dict(judged.trial.sizes)
        least = _ENOUGH if min(before.values(), default=_ENOUGH) < _ENOUGH else 4 * max(before.values())
        sizes = tuple((name, max(size, least)) for name, size in before.items())
        if dict(sizes) == before or self.bench.dimensions.elements(dict(sizes)) > PLENTY:
            return None
        taken = self.bench.takes(judged.trial.but(given=False, sizes=sizes, seed=judged.trial.seed + 1))
        found = None if taken is None else self.replay.fresh(taken)
        same = found is not None and found.fault is not None and found.fault.subject == name
        return found if found is not None and (same or 2 * error_of(found, name) >= error_of(judged, name)) else None

    def grows(self, judged: Judged, family: str = "", *, steady: bool = False) -> bool:
        """Whether the relative error grows with the length of a dimension along which the result adds up. `family`: instead of the trial's. `steady`:
        and no more than a sum's may.

        A result that is Inf or NaN in long rows shows no growth. However additions round, a sum of 1024 plain terms stays finite, since it is no more
        than 1024 times the largest. What is lost there left the range of its format for another reason, as powers of scores do: scores are
        products of rows, and their numbers get larger with the length of a row.
        """
        name = judged.subject
        trial = judged.trial.but(family=family or judged.trial.family, layout="contiguous", laid=-1)  # equal rows have few independent errors
        longest = {each: size for each in self.bench.dimensions.sizes if (size := self._longest(each))}
        for dimension in sorted(longest, key=lambda each: self.bench.dimensions.elements({each: longest[each]})):
            errors, ratio = [], 0.0
            for size in (_SHORT, longest[dimension]):
                taken = None if self.late() else self.bench.takes(trial.but(given=False, seed=trial.seed + 1, sizes=((dimension, size),)))
                if taken is None:
                    break
                if not adds(self.bench, taken, dimension, name):  # the largest of a few numbers changes with the first, and of many it does not
                    break
                error, ratio = self._drawn(taken, name)
                if not math.isfinite(error):
                    break
                errors.append(error)
            most = _STEADY * errors[0] if steady and len(errors) == 2 and errors[0] else math.inf
            if len(errors) == 2 and ratio > 1 and _GROWS * errors[0] < errors[1] <= most and not (taken and self.cancels(taken, name)):
                return True
        return False

    def _drawn(self, trial: Trial, name: str) -> tuple[float, float]:
        """The relative error of a result, and how many times its bound it is, in as many draws as have enough elements. Inf where it is lost.

        Of n errors that are rounded at random, the norm varies by 1 / √(2n): by chance a sum of a few results seems not to grow.
        """
        squares: list[float] = []
        ratio, elements = 0.0, 0
        while elements < _MEASURED and len(squares) < _DRAWS:
            found = self.replay.fresh(trial.but(seed=trial.seed + 100 * len(squares))).distances.get(name)
            if found is None:
                return 0.0, 0.0
            squares.append(math.inf if found.lost else found.relative**2)
            ratio, elements = max(ratio, found.ratio), elements + (found.wrong.numel() if found.wrong is not None else 1)
        return math.sqrt(sum(squares) / len(squares)), ratio

    def _longest(self, name: str) -> int:
        """The largest size with which a sum along that dimension has 64 times the terms at least, or 0. Of a dimension that a tensor has twice, as a
        square, a smaller size has as many."""
        count = self.bench.dimensions.elements
        sizes = (size for size in (1024, 512, 256, 128) if size == 1024 or count({name: size}) >= 64 * count({name: _SHORT}))
        return next((size for size in sizes if count({name: size}) <= PLENTY), 0)

    def cancels(self, trial: Trial, name: str) -> bool:
        """Whether the result is right in that trial with the numbers of one input about zero, which lie far from zero beside their spread.

        Then adding up is not what causes the error: sums in a low format round numbers about zero as much. Where squares are taken from squares, as a
        squared mean from a mean square, the rounding of numbers far from zero is left, and there is none of numbers about zero.
        """
        made = self.bench.make(trial)
        for place, value in enumerate(made.values):
            if value.is_floating_point() and value.numel() > 1 and value.double().mean().abs() > _FAR * value.double().std():
                values = [each - each.mean() if other == place else each for other, each in enumerate(made.values)]
                if self.bench.passes_on(trial, Made(values, made.numbers), name):
                    return True
        return False
