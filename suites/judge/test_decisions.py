"""Flips by count: how many are too many, held against a simulation, and which place is named."""

from __future__ import annotations

import numpy
import pytest
from hand import trace

from precheck.analysis.decisions import flips as decisions
from precheck.analysis.decisions.flips import CHANCE, Place
from precheck.analysis.noise_floor.noise import FAIL
from precheck.precisions import PRECISIONS
from precheck.rules.decision_flip.rule import flipped

BF16 = PRECISIONS["bf16-mixed"]


def most(expected: int, samples: int) -> int:
    """The greatest count that is let pass, of a place with so many decisions that its share never matters."""
    return next(n for n in range(10**6) if Place("", "aten.topk", 1, n + 1, expected, samples).too_many(PRECISIONS["32-true"]))


@pytest.mark.parametrize("samples", [2, 4, 8])
@pytest.mark.parametrize("rate", [0.5, 5.0, 300.0])
def test_flips_at_three_times_the_rate_of_rounding_pass(rate: float, samples: int) -> None:
    """Pairs at FAIL times the rate of the noise runs' exceed the limit with CHANCE; in 20000 draws of both, never."""
    generator = numpy.random.default_rng(0)
    expected = 2 * generator.poisson(rate * samples, 20_000)
    flipped = 2 * generator.poisson(rate * FAIL, 20_000)
    worst: dict[int, int] = {}
    for before, here in zip(expected.tolist(), flipped.tolist(), strict=True):
        worst[before] = max(worst.get(before, 0), here)
    assert not [before for before, here in worst.items() if Place("", "op", 1, here, before, samples).too_many(PRECISIONS["32-true"])]
    assert CHANCE * 20_000 < 0.05


@pytest.mark.parametrize(("expected", "samples"), [(0, 8), (20, 8), (1000, 8), (10_000, 8)])
def test_and_ten_times_the_rate_does_not(expected: int, samples: int) -> None:
    flips = max(10 * expected // samples, 60)
    assert Place("", "op", 1, flips, expected, samples).too_many(PRECISIONS["32-true"])


def test_the_limit_grows_with_what_rounding_explains_and_shrinks_with_its_certainty() -> None:
    limits = [most(expected, 8) for expected in (0, 2, 10, 100, 1000)]
    assert limits == sorted(limits)
    assert limits[0] < limits[-1]
    assert most(10, 8) < most(5, 4) < most(2, 2)


def test_both_ways_to_count_agree_where_they_meet() -> None:
    """The exact sum gives way to a normal approximation for many flips; there they differ by a few percent."""
    switch = next(n for n in range(0, 10**5, 2) if (n / 2 + 1) * numpy.log(4 / (4 + FAIL)) <= -700)
    below, above = (decisions.most_by_chance(n, 4) for n in (switch - 2, switch))
    assert above == pytest.approx(below, rel=0.05)


def test_few_of_many_are_not_worth_a_word() -> None:
    """Below 8 unit roundoffs of all decisions, four times what one rounding does to values spread over their magnitude."""
    total = 100_000
    share = int(8 * BF16.roundoff * total)
    assert not Place("", "op", total, share, 0, 8).too_many(BF16)
    assert Place("", "op", total, share + 1, 0, 8).too_many(BF16)


@pytest.mark.parametrize(
    ("flips", "expected", "samples", "many"), [(397, 16, 1, True), (60, 16, 1, False), (397, 1200, 8, False), (397, 128, 8, True)]
)
def test_where_noise_flips_some_the_number_of_all_does_not_matter(flips: int, expected: int, samples: int, many: bool) -> None:
    """Of the words of a sorted distribution only those near the bound can be cut off, whether there are few others or many."""
    assert [Place("", "aten.lt", total, flips, expected, samples).too_many(BF16) for total in (10_000, 1_000_000)] == [many, many]


def test_more_runs_are_asked_only_where_they_can_change_the_answer() -> None:
    """Where 2 noise runs flip nothing, 60 flips of 1000 are too many by that alone, 50 need more runs, and 1 is no matter."""
    assert [Place("", "op", 1000, flips, 0, 2).unsettled(BF16) for flips in (60, 50, 1)] == [False, True, False]
    assert [Place("", "op", 10**6, flips, 2, 1).unsettled(BF16) for flips in (200, 50, 10)] == [False, True, False]


def test_places_sum_the_flips_of_the_noise_runs() -> None:
    reference = trace(flips={"moe.gate#2|aten.topk": (9, 100), "norm|aten.gt": (0, 50)})
    noises = [trace(flips={"moe.gate#2|aten.topk": (n, 100)}) for n in (1, 2)] + [trace()]
    assert decisions.places(reference, noises) == [Place("moe.gate#2", "aten.topk", 100, 9, 3, 3)]


def test_the_first_place_is_named() -> None:
    suspects = [Place("a", "aten.gt", 100, 1, 0, 8), Place("moe.gate#2", "aten.topk", 100, 60, 4, 8), Place("b", "aten.topk", 100, 90, 0, 8)]
    (found,) = flipped(suspects, BF16)
    assert (found.rule, found.severity, found.op, found.module, found.measured) == ("decision-flip", "error", "aten.topk", "moe.gate", 60.0)
    assert found.message == (
        "aten.topk in moe.gate in call 2: 60 of 100 decisions (60%) differ under bf16-mixed from those in float32, "
        "where correct rounding explains 0.5"
    )
    assert flipped([], BF16) == []
    assert "in the model's own forward" in flipped([Place("", "aten.topk", 100, 60, 4, 8)], BF16)[0].message
