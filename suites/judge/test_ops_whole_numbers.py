"""Whole numbers that a format cannot hold: where they count something, where they are measures, and which op is told.

Scenarios in torch; records made by hand where a limit's edge is the point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graph import Graph, given
from scenario import finds, passes, watched
from torch import nn

from precheck import formats
from precheck.analysis.rounding import misroundings as rounding

U = formats.of_dtype("bfloat16").unit_roundoff
ROUNDED = 0.42 * U  # what one rounding costs in relative L2


@pytest.mark.parametrize(("moved", "accused"), [(1, False), (2, True)])
def test_two_distinct_whole_numbers_must_have_moved(moved: int, accused: bool) -> None:
    """A lone magnitude is a constant, such as a mask's -10000."""
    makes = {"drift": ROUNDED, "wholes_moved": moved, "peak": 999.0}
    graph = Graph()
    graph.op("_to_copy.default", given("float32"), makes=makes | {"alive": True})
    assert graph.rules() == ([("integer-rounding", 1)] if accused else [])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn() -> torch.Tensor:
    return torch.rand(64, generator=seeded(), dtype=torch.bfloat16) * 768


def drawn_in_place() -> torch.Tensor:
    return torch.empty(64, dtype=torch.bfloat16).uniform_() * 768


def integers_drawn() -> torch.Tensor:
    return torch.randint(0, 256, (64,), generator=seeded()).bfloat16() * 3  # fault


def integers_in_order() -> torch.Tensor:
    return torch.arange(256).bfloat16() * 3  # fault


def test_multiples_of_a_real_draw_count_nothing() -> None:
    """As in `(torch.rand(n, dtype=torch.bfloat16) * 768).long()`, whose draws were multiples of 1/256 up to torch 2.11."""
    passes(drawn)
    passes(drawn_in_place)
    finds(integers_drawn, "integer-rounding")
    finds(integers_in_order, "integer-rounding")


def positions_chosen() -> torch.Tensor:
    positions = torch.arange(1000).bfloat16()  # fault
    return positions[::3].sin()


def test_whole_numbers_are_blamed_on_the_op_that_rounded_them_and_not_on_what_hands_them_on() -> None:
    finding = finds(positions_chosen, "integer-rounding")
    assert (finding.measured, finding.limit) == (999.0, 256.0)


def pixels(*shape: int) -> torch.Tensor:
    return torch.randint(0, 1000, shape, generator=seeded())


def pixels_into_a_layer() -> torch.Tensor:
    torch.manual_seed(0)
    return nn.Linear(64, 8).bfloat16()(pixels(4, 64).bfloat16())


def pixels_into_a_convolution() -> torch.Tensor:
    torch.manual_seed(0)
    return nn.Conv2d(1, 4, 3).bfloat16()(pixels(2, 1, 8, 8).bfloat16())


def positions_times_frequencies() -> torch.Tensor:
    positions = torch.arange(1000).bfloat16()  # fault
    return positions[:, None] @ torch.rand(1, 8, generator=seeded()).bfloat16()


def times_a_weight_each() -> torch.Tensor:
    weight = nn.Parameter(torch.rand(64, generator=seeded(1)).bfloat16())
    return pixels(4, 64).bfloat16() * weight


def lengths_over_their_mean() -> torch.Tensor:
    """As in BM25, where a number of occurrences is added to it."""
    relative = (pixels(4, 64).bfloat16() / 300).float()
    return pixels(4, 64) % 8 / (pixels(4, 64) % 8 + 1.2 * (0.25 + 0.75 * relative))


def cases_of_each_region() -> torch.Tensor:
    return pixels(4, 64).bfloat16().float() * (100_000 / (40_000 + 300 * pixels(4, 1)).float())


def millimetres_beside_what_a_network_says() -> torch.Tensor:
    torch.manual_seed(0)
    return pixels(4, 64).bfloat16().float() / 1000 + nn.Linear(64, 64).bfloat16()(SCORES[0, :256].bfloat16().reshape(4, 64)).float()


def rows_in_turn() -> torch.Tensor:
    stored = pixels(4, 100).bfloat16()
    state = torch.zeros(4)
    for place in range(100):
        state = 0.9 * state + stored[:, place].float() / 100
    return state.tanh()


def test_whole_numbers_that_meet_weights_are_measures() -> None:
    """Of pixels one rounding is one rounding; positions that meet a table of frequencies are positions still."""
    passes(pixels_into_a_layer)
    passes(pixels_into_a_convolution)
    finds(positions_times_frequencies, "integer-rounding")


@pytest.mark.parametrize("program", [times_a_weight_each, lengths_over_their_mean, cases_of_each_region, millimetres_beside_what_a_network_says,
                                     rows_in_turn], ids=lambda program: program.__name__)  # fmt: skip
def test_amounts_may_be_rounded_once(program: Callable[[], Any]) -> None:
    passes(program)


def shares_in_order() -> torch.Tensor:
    places = torch.arange(1000).bfloat16()  # fault
    return places / 1000 + 1


def amounts_that_are_compared() -> torch.Tensor:
    stored = pixels(4, 64).bfloat16()  # fault
    return torch.where(stored > 301, 1.0, 0.0)


def amounts_that_are_given() -> torch.Tensor:
    return pixels(4, 64).bfloat16()  # fault


def times_that_are_subtracted() -> torch.Tensor:
    stored = (18_000 + pixels(4, 64)).bfloat16()  # fault
    times = stored.float()
    return times[:, 1:] - times[:, :-1]


def phases_of_times() -> torch.Tensor:
    stored = pixels(4, 64).bfloat16()  # fault
    return (stored.float() * 0.7).sin()


@pytest.mark.parametrize("program", [shares_in_order, amounts_that_are_compared, amounts_that_are_given, times_that_are_subtracted, phases_of_times],
                         ids=lambda program: program.__name__)  # fmt: skip
def test_whole_numbers_that_must_be_exact_are_no_amounts(program: Callable[[], Any]) -> None:
    """They stand in equal steps, or are compared, returned, subtracted from each other, or amplified."""
    finds(program, "integer-rounding")


@pytest.mark.parametrize("drift", [rounding.ROUNDINGS * U, 0.9])
def test_whole_numbers_that_meet_weights_and_come_out_far_off_are_not(drift: float) -> None:
    graph = Graph()
    cast = graph.op("_to_copy.default", given("float32"), makes={"drift": ROUNDED, "wholes_moved": 200, "peak": 999.0})
    graph.op("mm.default", cast, given(), makes={"drift": drift}, parameter=1)
    assert graph.rules() == [("integer-rounding", 1)]


SCORES = torch.rand(8, 4000, generator=seeded())
CHOSEN = torch.rand(8, 4000, generator=seeded(1)) < 0.3


def count_added_to_measures() -> torch.Tensor:
    count = CHOSEN.bfloat16().sum(-1)
    return SCORES.bfloat16().sum(-1) + count


def count_subtracted_from_measures() -> torch.Tensor:
    count = CHOSEN.bfloat16().sum(-1)
    return SCORES.bfloat16().sum(-1) - count


def count_that_divides() -> torch.Tensor:
    count = CHOSEN.bfloat16().sum(-1)  # fault
    return SCORES.bfloat16().sum(-1) / count


def count_added_to_exact_numbers() -> torch.Tensor:
    count = CHOSEN.bfloat16().sum(-1)  # fault
    return count + torch.ones(8).bfloat16()


def count_added_to_counts() -> torch.Tensor:
    counts = torch.stack([CHOSEN, CHOSEN.flip(0)]).bfloat16().sum(-1)  # fault
    return counts[0] + counts[1]


def positions_added_to_measures() -> torch.Tensor:
    positions = torch.arange(1000).bfloat16()  # fault
    return positions + (SCORES[0, :1000] * 3).bfloat16()


COUNTED = [count_that_divides, count_added_to_exact_numbers, count_added_to_counts, positions_added_to_measures]


def test_a_count_that_is_added_to_measures_is_as_coarse_as_they_are() -> None:
    """As in Tversky's score."""
    passes(count_added_to_measures)
    passes(count_subtracted_from_measures)


@pytest.mark.parametrize("program", COUNTED, ids=lambda program: program.__name__)
def test_what_divides_and_what_is_added_to_counts_or_exact_numbers_are_whole_numbers_still(program: Callable[[], Any]) -> None:
    finds(program, "integer-rounding")


def one_identifier() -> torch.Tensor:
    stored = torch.tensor([2051.0, 0.5, 0.25, 0.7]).half()  # fault
    return torch.cat([stored, stored]).long()


def test_one_number_that_becomes_another_integer_is_enough() -> None:
    finding = finds(one_identifier, "integer-rounding", says="2051 becomes 2052 in float16")
    assert (finding.measured, finding.limit) == (2051.0, 2048.0)
    assert "makes an integer of it" in finding.message


def said_by_a_network() -> torch.Tensor:
    torch.manual_seed(0)
    return (nn.Linear(64, 64).half()(torch.randn(4, 64).half()) * 3000).long()


def stored_twice() -> torch.Tensor:
    torch.manual_seed(0)
    return (nn.Linear(64, 64).bfloat16()(torch.randn(4, 64).bfloat16()) * 3000).half().long()


def test_of_what_is_computed_low_all_large_numbers_are_whole() -> None:
    passes(said_by_a_network)
    passes(stored_twice)


def positions_made_integers() -> torch.Tensor:
    return torch.arange(1000).bfloat16().long()  # fault


def test_a_tensor_of_whole_numbers_is_told_once() -> None:
    finds(positions_made_integers, "integer-rounding")


def gaussian() -> torch.Tensor:
    places = (torch.arange(41) - 20).bfloat16()
    weights = torch.exp(-(places**2) / (2 * 7.0**2))
    return weights / weights.sum()


def spot() -> torch.Tensor:
    places = torch.arange(64).bfloat16()
    return torch.exp(-((places[:, None] - 20) ** 2 + (places - 31) ** 2) / 50)


def chirp() -> torch.Tensor:
    places = torch.arange(64).half()
    return torch.cos(places**2 * 0.7)


def ring() -> torch.Tensor:
    places = torch.arange(64).half()
    return torch.bincount((places[:, None] ** 2 + places**2).long().flatten() // 100)


def inside() -> torch.Tensor:
    places = torch.arange(64).half()
    return (places[:, None] ** 2 + places**2 <= 65**2).sum()


def test_squares_of_places_are_measures_as_products_are() -> None:
    """A bell curve needs of a squared distance how large it is, to a rounding. (A square is a product, however it is written.)"""
    for program in (gaussian, spot):
        passes(program)


@pytest.mark.parametrize(("program", "rule"), [(chirp, "amplified-rounding"), (ring, "integer-rounding"), (inside, "integer-rounding")])
def test_squares_of_places_that_are_angles_or_counts_or_compared_are_told(program: Callable[[], torch.Tensor], rule: str) -> None:
    assert [finding.rule for finding in watched(program).errors] == [rule]
