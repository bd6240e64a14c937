"""Barges: tallies that stand still, counts that are not whole any more, spreads of what lies far from zero."""

from __future__ import annotations

import torch
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

SINGLE, DOUBLE = torch.float32, torch.float64
EXACT = "32-true"


class Printer:
    """Shows the mean loss of all examples so far, or of those since it was last shown."""

    def __init__(self, loss: float, examples: int, cleared: bool) -> None:
        self.cleared = cleared
        self.loss, self.examples = torch.tensor(0.0 if cleared else loss), 0 if cleared else examples

    def add(self, loss: torch.Tensor) -> None:
        self.loss += loss  # culprit: loss-that-is-printed
        self.examples += 1


def printed(cleared: bool) -> torch.Tensor:
    """By how much the sum of losses that a trainer shows grows for each of three hundred examples. Too little."""
    printer = Printer(4.2e7, 21_000_000, cleared)
    before = printer.loss.clone()
    for loss in 0.9 + 0.2 * uniform(300, seed=1511):
        printer.add(loss)
    return (printer.loss - before) / 300


def bucket_counts(kind: torch.dtype) -> torch.Tensor:
    """How many of a hundred batches' numbers fall into each of eight buckets, after very many before. Some buckets are full."""
    before = torch.tensor([17e6, 2e7, 3.4e7, 5e7, 3.4e7, 2e7, 17e6, 1e3], dtype=DOUBLE).to(kind)
    counts = before.clone()
    for turn in range(100):
        buckets = (8 * uniform(24, seed=1521 + turn)).long()
        for each in functional.one_hot(buckets, 8).to(kind):
            counts = counts + each  # culprit: counts-of-a-histogram
    return (counts - before).float()


class Monitor:
    """Checks that as many examples were seen as a set says that it has."""

    def __init__(self, examples: int, kind: torch.dtype) -> None:
        self.examples = torch.tensor(examples).to(kind)  # culprit: examples-of-a-large-set

    def check(self, seen: int) -> torch.Tensor:
        said = int(self.examples.item())
        if said != seen:
            raise RuntimeError(f"the iterator said it had {said} examples, but it gave us {seen}")
        return torch.tensor(float(seen))


def monitored(kind: torch.dtype) -> torch.Tensor:
    """How many examples a very large set has. The monitor refuses it."""
    return Monitor(60_002_994, kind).check(60_002_994)


def spread_of(values: torch.Tensor, centred: bool) -> torch.Tensor:
    """The variance of the last dimension."""
    mean = values.mean(-1, keepdim=True)
    if centred:
        return (values - mean).square().mean(-1)
    return values.square().mean(-1) - mean.square().squeeze(-1)  # culprit: features-of-a-texture, chains-that-have-converged, steps-of-a-series


def textures(centred: bool) -> torch.Tensor:
    """How widely the grey of sixteen smooth patches of a sky varies."""
    return spread_of(200 + 0.05 * normal(16, 256, seed=1531), centred).sqrt()


def converged(centred: bool) -> torch.Tensor:
    """How much further apart four chains of a sampler lie than each of them is wide, for ten numbers near eight thousand."""
    chains = 8000 + 0.4 * normal(10, 4, 300, seed=1541)
    within, between = spread_of(chains, centred).mean(-1), spread_of(chains.double().mean(-1), centred=True).float()
    return ((within * 299 / 300 + between) / within).sqrt()


def windows(centred: bool) -> torch.Tensor:
    """The deviation of a series' steps in windows of twenty, where it hardly moves. Not a number."""
    series = 5000 + 1e-3 * normal(400, seed=1551).cumsum(0)
    return spread_of(series.unfold(0, 20, 10), centred).sqrt()


BUGS = (
    Bug("loss-that-is-printed", "facebookresearch/fastText#757", ("absorption", "accumulated-drift"), "aten.add_.Tensor",
        lambda: printed(cleared=False), lambda: printed(cleared=True), precision=EXACT),
    Bug("counts-of-a-histogram", "tensorflow/tensorboard#5337", ("integer-rounding", "absorption"), "aten.add.Tensor",
        lambda: bucket_counts(SINGLE), lambda: bucket_counts(DOUBLE), precision=EXACT),
    Bug("examples-of-a-large-set", "lisa-lab/pylearn2#1356", ("integer-rounding",), "aten._to_copy.default",
        lambda: monitored(SINGLE), lambda: monitored(torch.int64), precision=EXACT, raises=RuntimeError),
    Bug("features-of-a-texture", "locked-fg/JFeatureLib#20", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: textures(centred=False), lambda: textures(centred=True), precision=EXACT),
    Bug("chains-that-have-converged", "stan-dev/stan#2816", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: converged(centred=False), lambda: converged(centred=True), precision=EXACT),
    Bug("steps-of-a-series", "senx/warp10-platform#1027", ("cancellation", "nan", "amplified-rounding"), "aten.sub.Tensor",
        lambda: windows(centred=False), lambda: windows(centred=True), precision=EXACT,
        twin_accused="the series itself is stored in float32, half a thousandth apart at 5000: the mended deviations are 16 % off"),
)  # fmt: skip
