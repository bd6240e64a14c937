"""Plans the trials and their order: cheap ones and those close to the example first."""

from __future__ import annotations

from collections.abc import Iterator

from precheck.kernels import constants, contents, memory, number_kinds, thresholds
from precheck.kernels.bench import Bench
from precheck.kernels.trials import Trial

SMALL = (1, 2, 3, 5, 6, 7, 8, 12, 13, 15, 16, 17)
EDGES = (24, 31, 33, 48, 63, 65, 71, 96, 127, 129, 192, 255, 257, 513, 1025, 2053)
"""Sizes next to powers of two, beyond 70 rows and beyond 2 000 elements. 6, 12, 24, 48, 96 and 192 fit tiles of 2, 4, … 64, and not two of them: a
kernel may take a tile at a time, and do something else once for two."""
BATCHES = (2, 3, 5)
"""Sizes of what may be a batch of one."""
_INNER = 4
"""The most sizes of 1 that are changed, and the most sizes that each becomes."""
UPSTREAM = ("expanded", "transposed", "columns of a wider tensor", "partial", "large", "small")
"""Kinds of incoming gradients, each beside the example's own inputs."""
SPANNING = (129, 257)
"""Sizes of several tiles in which numbers rise and fall: what is kept of earlier tiles is replaced in each of them, or in none."""
BEHIND = (31, 63, 127)
"""Sizes with the longest rests behind full tiles. A rest has code of its own, which may take the other side of a tie."""
LONG = (4099, 16411, 65537, 100003)
"""Sizes at which a sum in a low format stops growing."""


def near(bench: Bench) -> Iterator[Trial]:
    """Trials in the shapes of the example."""
    yield Trial(given=True, fill="")
    yield Trial(seed=1, fill="")
    yield Trial(seed=2)
    yield Trial(seed=3, only=-2)  # no gradient, for which kernels have another code path
    left_out = {"plain", number_kinds.OPPOSED, *number_kinds.SPECIAL}
    left_out |= set() if any(contents.unit(leaf.tensor) for leaf in bench.example.leaves) else {"ends"}
    left_out |= set() if any(leaf.tensor.dim() and not leaf.tensor.dtype.is_floating_point for leaf in bench.example.leaves) else {"all alike"}
    yield from (Trial(seed=4, family=name) for name in number_kinds.FAMILIES if name not in left_out)
    real = [place for place, leaf in enumerate(bench.example.leaves) if leaf.tensor.is_floating_point() and leaf.tensor.dim()]
    yield from (Trial(seed=4, family=number_kinds.OPPOSED, leaf=place) for place in real[:4] if len(real) > 1)
    yield from thresholds.trials(bench)
    yield from constants.trials(bench)


def laid(bench: Bench) -> Iterator[Trial]:
    """Trials with other strides and offsets, of all inputs and of each alone, and of incoming gradients."""
    count = len(bench.example.leaves)
    for layout in memory.LAYOUTS:
        fitting = [place for place, leaf in enumerate(bench.example.leaves) if memory.fits(leaf.tensor, layout)]
        if fitting:
            yield Trial(seed=5, layout=layout)
        if count > 1:
            yield from (Trial(seed=6, layout=layout, laid=place) for place in fitting)
    yield from (Trial(seed=7, upstream=upstream) for upstream in UPSTREAM)
    wanted = [place for place, leaf in enumerate(bench.example.leaves) if leaf.wanted]
    if len(wanted) > 1:
        yield from (Trial(seed=8, only=place) for place in wanted)


def special(bench: Bench) -> Iterator[Trial]:
    """Trials with non-finite numbers, in one tensor at a time. A NaN at the very end or start may do no harm, nor where all is one sequence: so
    places, lengths and ends vary, and one NaN is among the example's own."""
    for place, leaf in enumerate(bench.example.leaves[:4]):
        if leaf.tensor.is_floating_point() and leaf.tensor.dim():
            yield from (Trial(seed=seed, family=name, leaf=place) for name, seed in zip(number_kinds.SPECIAL, (9, 39, 49, 59), strict=True))
            yield from (Trial(seed=seed, family="NaN", leaf=place) for seed in (19, 29))
            yield Trial(seed=9, family="NaN", leaf=place, given=True)


def sized(bench: Bench) -> Iterator[Trial]:
    """Trials with other sizes, small ones first: each dimension alone, then all together."""
    names = list(bench.dimensions.sizes)
    yield from _batches(bench)
    yield from inner(bench)
    for size in SMALL:
        for name in names:
            yield Trial(seed=10 + size, sizes=((name, size),))
            if size % 2 or size == 2:  # some lanes of a tile are empty
                yield Trial(seed=11 + size, sizes=((name, size),), family="below")
            if size < 4:  # whole numbers fall on the ends of what they are places in
                yield Trial(seed=12 + size, sizes=((name, size),), family="ties")
    for name in names:
        if bench.example.device.type == "cpu":
            yield Trial(seed=9, sizes=((name, 0),))
        least = next((size for size in range(1, bench.dimensions.sizes[name]) if bench.takes(Trial(seed=9, sizes=((name, size),))) is not None), 0)
        if least not in (0, *SMALL):  # as many as are asked for
            yield Trial(seed=9, sizes=((name, least),))
    for seed, sizes in enumerate(((1, 1, 1, 1), (3, 5, 2, 7), (17, 3, 9, 2), (33, 37, 5, 11), (7, 129, 4, 6))):
        if len(names) > 1:
            yield Trial(seed=40 + seed, sizes=tuple((name, sizes[place % 4]) for place, name in enumerate(names)))
    for size in EDGES:
        for name in names:
            yield Trial(seed=50 + size, sizes=((name, size),))
            if size in BEHIND:
                yield Trial(seed=54 + size, sizes=((name, size),), family="ties")
                yield from (Trial(seed=55 + size, sizes=((name, size),), family="NaN", leaf=leaf) for leaf in _along(bench, name, size))
            if size in SPANNING:
                yield from (Trial(seed=53 + size, sizes=((name, size),), family=family) for family in number_kinds.ORDERED)
            if size < 300 and size % 2:
                yield Trial(seed=51 + size, sizes=((name, size),), family="below")
            elif size > 1000:
                yield Trial(seed=52 + size, sizes=((name, size),), family="above", upstream="positive")


def _along(bench: Bench, name: str, size: int) -> list[int]:
    """One input of real numbers with that dimension, another one for each size behind tiles."""
    leaves = [place for place, (leaf, shape) in enumerate(zip(bench.example.leaves, bench.dimensions.shapes, strict=True))
              if name in shape and leaf.tensor.is_floating_point()]  # fmt: skip
    return leaves[BEHIND.index(size) % len(leaves) :][:1] if leaves else []


def empty(bench: Bench) -> Iterator[Trial]:
    """On a device, trials with sizes of 0, which come last there: what faults on them, as operators of torch's do, leaves the process no device."""
    if bench.example.device.type != "cpu":
        yield from (Trial(seed=9, sizes=((name, 0),)) for name in bench.dimensions.sizes)


def _batches(bench: Bench) -> Iterator[Trial]:
    """Trials with more than one where the example has a batch of one: in all tensors, or else in those of the most dimensions."""
    known = bench.dimensions
    most = max((len(shape) for shape in known.shapes), default=0)
    widest = tuple(str(shape[0]) for shape in known.shapes if len(shape) == most and shape[0] in known.ones)
    for names in (known.ones, widest):
        trials = [Trial(seed=30 + size, sizes=tuple((name, size) for name in names)) for size in BATCHES] if names else []
        if trials and all(bench.takes(each) is not None for each in trials):
            yield from trials
            return


def inner(bench: Bench) -> Iterator[Trial]:
    """Trials with other sizes where the example has a 1 that is not a first size: each alone, in the sizes that other tensors have."""
    for name in bench.dimensions.inner[:_INNER]:
        for size in sorted({2, 3, *bench.dimensions.sizes.values()})[:_INNER]:
            yield Trial(seed=36 + size, sizes=((name, size),))


def long(bench: Bench) -> Iterator[Trial]:
    """Trials with long sums."""
    for size in LONG:
        for name in bench.dimensions.sizes:
            yield Trial(seed=60, sizes=((name, size),), family="above", upstream="positive")
            yield Trial(seed=61, sizes=((name, size),))
