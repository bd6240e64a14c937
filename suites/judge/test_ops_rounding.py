"""Rounding that costs more than rounding may: each limit from just below and just above, its excuses, and where blame goes.

Scenarios in torch; records made by hand where a limit's edge is the point. Those of whole numbers are in test_ops_whole_numbers.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graph import Graph, above, below, given
from scenario import finds, passes, watched
from torch import nn

from precheck import formats
from precheck.analysis.rounding import differences, errors
from precheck.analysis.rounding import misroundings as rounding

U = formats.of_dtype("bfloat16").unit_roundoff
ROUNDED = 0.42 * U  # what one rounding costs in relative L2
TURNS = int(rounding.RECURRENT)


def judged(name: str, makes: dict[str, Any], *inputs: Any, **facts: Any) -> list[tuple[str, int]]:
    """One op on a tensor that came in exactly, kept to the end."""
    graph = Graph()
    graph.op(name, *(inputs or (given(),)), makes={"alive": True} | makes, **facts)
    return graph.rules()


AT_LEAST = pytest.mark.parametrize(("nudge", "accused"), [(below, False), (above, True)])


@AT_LEAST
def test_a_difference_that_loses_five_bits_is_a_cancellation(nudge: Any, accused: bool) -> None:
    makes = {"drift": nudge(max(rounding.LOSES_FIVE_BITS * ROUNDED, rounding.ROUNDINGS * U))}
    assert judged("sub.Tensor", makes) == ([("cancellation", 1)] if accused else [])


@AT_LEAST
def test_a_difference_of_inputs_that_are_off_is_judged_by_what_it_adds(nudge: Any, accused: bool) -> None:
    fed = given(drift=4 * ROUNDED)
    assert judged("add.Tensor", {"drift": nudge(rounding.LOSES_FIVE_BITS * 4 * ROUNDED)}, fed) == ([("cancellation", 1)] if accused else [])


@pytest.mark.parametrize(("name", "terms", "results", "accused"), [
    ("sum.dim_IntList", 2, 8, True),
    ("sum.dim_IntList", int(differences.FEW_TERMS), 8, True),
    ("sum.dim_IntList", int(differences.FEW_TERMS) + 1, 8, False),
    ("sum.dim_IntList", 2, int(differences.RESULTS) - 1, False),
    ("sum.dim_IntList", 1, 8, False),
    ("bmm.default", 2, 8, True),
    ("bmm.default", int(differences.FEW_TERMS) + 1, 8, False),
    ("convolution.default", 2, 8, False),
])  # fmt: skip
def test_a_sum_of_few_terms_is_a_difference(name: str, terms: int, results: int, accused: bool) -> None:
    """A product of coordinates, written out or as a matrix product. Of many terms some sum to little by chance, and so may one sum of few."""
    found = judged(name, {"drift": 100 * ROUNDED, "shape": (results,)}, given(shape=(results, terms)))
    assert found == ([("cancellation", 1)] if accused else [])


@AT_LEAST
def test_a_sum_of_many_terms_is_a_difference_if_no_chance_makes_a_rounding_grow_so_much(nudge: Any, accused: bool) -> None:
    makes = {"drift": nudge(ROUNDED / differences.CHANCE), "shape": ()}
    assert judged("sum.default", makes, given(shape=(64,), drift=8.0)) == ([("cancellation", 1)] if accused else [])
    assert judged("sum.default", makes | {"norm": 2.0**-15}, given(shape=(64,), drift=8.0)) == []


def test_a_sum_of_few_terms_that_is_next_to_nothing_is_noise_in_float32_too() -> None:
    makes = {"drift": 100 * ROUNDED, "shape": (8,), "norm": 2.0**-15}
    assert judged("sum.dim_IntList", makes, given(shape=(8, 3))) == []


def places_from_a_large_origin() -> torch.Tensor:
    origin = torch.tensor([1.0e6, 2.2e6, 3.3e6]) * 1.0003
    near = 3e5 + 3e4 * torch.rand(8, 3, generator=torch.Generator().manual_seed(0))
    places = near.bfloat16() + origin.bfloat16()  # fault
    return places[1:] - places[:-1]


def test_what_is_added_to_all_elements_is_in_no_difference_of_two() -> None:
    """A large origin is rounded, and so is each place: the difference of two places has only the latter."""
    finds(places_from_a_large_origin, "amplified-rounding")


STATES, POLICY = (torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))) for shape in ((64, 16), (16,)))


def change_of_a_policy() -> torch.Tensor:
    before, after = STATES @ POLICY.bfloat16().float(), STATES @ (POLICY + 1e-3).bfloat16().float()
    return after - before


def sine_of_that_change() -> torch.Tensor:
    before, after = STATES @ POLICY.bfloat16().float(), STATES @ (POLICY + 1e-3).bfloat16().float()
    return ((after - before) * 3).sin()


def change_of_a_policy_in_bfloat16() -> torch.Tensor:
    before, after = STATES @ POLICY.bfloat16().float(), STATES @ (POLICY + 1e-3).bfloat16().float()
    return after.bfloat16() - before.bfloat16()  # fault


def test_a_small_difference_of_wide_values_is_healthy() -> None:
    """Policy ratios, advantages: the terms were computed in float32, though from low weights."""
    passes(change_of_a_policy)
    finds(change_of_a_policy_in_bfloat16, "cancellation")


def test_what_follows_a_small_difference_of_wide_values_is_excused_too() -> None:
    passes(sine_of_that_change)


@AT_LEAST
def test_four_bits_lost_with_elements_left_without_a_digit_is_amplified_rounding(nudge: Any, accused: bool) -> None:
    for makes in ({"drift": nudge(rounding.AMPLIFICATION * ROUNDED), "dead": rounding.DEAD}, {"drift": 20 * ROUNDED, "dead": nudge(rounding.DEAD)}):
        assert judged("sin.default", makes) == ([("amplified-rounding", 1)] if accused else [])


@AT_LEAST
def test_five_bits_lost_need_no_dead_elements(nudge: Any, accused: bool) -> None:
    for makes, fed in (({"drift": nudge(max(rounding.LOSES_FIVE_BITS * ROUNDED, rounding.AMPLIFIED_ROUNDINGS * U))}, 0.0),
                       ({"drift": nudge(rounding.LOSES_FIVE_BITS * U)}, U)):  # fmt: skip
        assert judged("sin.default", makes, given(drift=fed)) == ([("amplified-rounding", 1)] if accused else [])


@pytest.mark.parametrize(("dtype", "more", "line"), [("float32", 1.9, 1), ("bfloat16", 1.1, 1), ("bfloat16", 1.4, 2), ("float32", 2.1, 2)])
def test_the_blame_goes_to_the_last_op_that_made_half_of_the_error(dtype: str, more: float, line: int) -> None:
    """Of a chain of roundings the one nearest to where it matters; an op that rounds nothing is blamed for what it doubles."""
    graph = Graph()
    cast = graph.op("_to_copy.default", given("float32"), makes={"drift": ROUNDED})
    moved = graph.op("mul.Tensor", cast, makes={"drift": more * ROUNDED, "dtype": dtype, "roundoff": U})
    graph.op("sin.default", moved, makes={"drift": 0.9, "dead": 0.9, "alive": True})
    (finding,) = graph.found()
    assert (finding.rule, finding.source) == ("amplified-rounding", f"model.py:{line}")
    assert "aten.sin.default" in finding.message


@pytest.mark.parametrize("name", ["_to_copy.default", "embedding.default", "index.Tensor", "mm.default", "sum.dim_IntList"])
def test_moves_and_reductions_amplify_nothing(name: str) -> None:
    """By hand: no move makes an error larger. What is off by so much came in so, unknown to the run."""
    assert judged(name, {"drift": 100 * ROUNDED, "dead": 0.2}) == []


ANGLES = torch.linspace(300.0, 310.0, 64)


def powers_of_sines() -> torch.Tensor:
    made = ANGLES.bfloat16().sin()  # fault
    for _ in range(3):
        made = made.exp()
    return made


def test_what_follows_a_suspect_is_not_suspected_again() -> None:
    finds(powers_of_sines, "amplified-rounding")


class Sine(torch.autograd.Function):
    """A cosine's slope, written by hand."""

    @staticmethod
    def forward(context: Any, weight: torch.Tensor) -> torch.Tensor:
        return weight.float().sum()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return ANGLES.bfloat16().sin()


def slope_by_hand() -> torch.Tensor | None:
    weight = nn.Parameter(torch.ones(64).bfloat16())
    Sine.apply(weight).backward()  # the rounding that is amplified is in `Sine`
    return weight.grad


def slope_by_autograd() -> torch.Tensor | None:
    weight = nn.Parameter(torch.linspace(0.985, 0.995, 64))
    weight.bfloat16().asin().float().sum().backward()
    return weight.grad


def test_only_what_the_user_wrote_is_judged_in_a_backward_pass() -> None:
    """The slope of an arc sine is 1 / √(1 - x²), which near 1 makes rounding fifty times larger."""
    (finding,) = watched(slope_by_hand).findings
    assert (finding.rule, finding.phase) == ("amplified-rounding", "backward")
    passes(slope_by_autograd)


@AT_LEAST
def test_half_of_the_elements_gone_by_no_single_op_is_accumulated_drift(nudge: Any, accused: bool) -> None:
    makes, fed = {"drift": 0.5, "dead": nudge(rounding.GARBAGE)}, given(drift=0.4)
    assert judged("mul.Tensor", makes, fed) == ([("accumulated-drift", 1)] if accused else [])


@pytest.mark.parametrize(("turns", "modules", "severity"), [(TURNS - 1, 1, "note"), (TURNS, 1, "error"), (40, 40, "note")])
def test_drift_adds_up_where_an_op_works_on_its_own_results(turns: int, modules: int, severity: str) -> None:
    """In a network as deep, in which each module has one turn, correct rounding may do as much."""
    graph, made = Graph(), given(drift=0.2)
    for turn in range(turns):
        drift = 0.2 + 0.5 * (turn + 1) / turns
        makes = {"drift": drift, "dead": rounding.GARBAGE if turn == turns - 1 else 0.0, "alive": turn == turns - 1}
        made = graph.op("mul.Tensor", made, makes=makes, source="model.py:1", module=f"layers.{turn % modules}")
    (finding,) = graph.found()
    assert (finding.rule, finding.severity) == ("accumulated-drift", severity)
    assert ("correct rounding may do as much in so deep a network; r, which" in finding.message) is (severity == "note")


def test_zeros_of_what_the_format_can_hold_are_no_underflow() -> None:
    """A ReLU whose input rounding has moved across zero; and a product of numbers beyond the format's end."""
    for largest, accused in ((below(2.0**-126), True), (0.5, False)):
        makes = {"drift": 0.3, "dead": 0.3, "zeros": 20, "zeroed": 0.3, "largest_zeroed": largest}
        graph = Graph()
        made = graph.op("relu.default", given(drift=0.1), makes=makes)
        graph.op("mul.Tensor", made, makes={"drift": 0.3, "dead": 0.3, "alive": True})
        assert ("underflow" in [rule for rule, _ in graph.rules()]) is accused


@pytest.mark.parametrize(("size", "accused"), [(7, False), (8, True)])
def test_a_few_numbers_are_too_few_for_a_share(size: int, accused: bool) -> None:
    makes, fed = {"drift": 0.5, "dead": 1.0, "shape": (size,)}, given(drift=0.4)
    assert bool(judged("mul.Tensor", makes, fed)) is accused


@AT_LEAST
def test_what_float32_does_not_determine_is_a_note(nudge: Any, accused: bool) -> None:
    """A descendant most of which is dead wanders as far in float32, disturbed by 2^-20, as the run is off."""
    for sensitivity, dead, twin in ((nudge(errors.UNSTABLE), 0.5, 0.5), (0.9, nudge(errors.SHAKEN), 0.5), (0.9, 0.5, nudge(errors.DIGIT))):
        graph = Graph()
        made = graph.op("sin.default", given(), makes={"drift": 0.9, "dead": 0.9})
        graph.op("exp.default", made, makes={"drift": 1.0, "dead": dead, "sensitivity": sensitivity, "perturbed_drift": twin, "alive": True})
        (finding,) = graph.found()
        assert (finding.rule, finding.severity) == (("unstable-reference", "note") if accused else ("amplified-rounding", "error"))


@AT_LEAST
def test_what_is_zero_in_theory_does_not_excuse_what_it_is_made_from(nudge: Any, accused: bool) -> None:
    """The sum of a softmax's gradient is nothing but rounding error, and so is what is made from it."""
    wanders = {"drift": 1.4, "dead": 0.9, "sensitivity": 0.9, "perturbed_drift": 0.9}
    graph = Graph()
    made = graph.op("sin.default", given(), makes={"drift": 0.9, "dead": 0.9})
    terms = graph.op("exp.default", made, makes={"drift": 0.9, "dead": 0.9, "norm": 1.0})
    total = graph.op("sum.dim_IntList", terms, makes={**wanders, "norm": nudge(errors.ZERO_SUM)})
    graph.op("mul.Tensor", total, given(), makes={**wanders, "norm": 1.0, "alive": True})
    (finding,) = graph.found()
    assert (finding.rule, finding.severity) == (("unstable-reference", "note") if accused else ("amplified-rounding", "error"))


def test_what_wanders_at_the_op_itself_is_not_suspected() -> None:
    makes = {"drift": 0.9, "dead": 0.9, "sensitivity": above(errors.UNSTABLE), "perturbed_drift": above(errors.DIGIT)}
    assert judged("sin.default", makes) == []


SHARES = torch.linspace(0.5, 0.6, 64)


def gap_added_to_one() -> torch.Tensor:
    gap = SHARES.bfloat16().square() - (SHARES + 1e-3).bfloat16().square()
    return 1 + gap


def gap_added_and_scaled() -> tuple[torch.Tensor, torch.Tensor]:
    gap = SHARES.bfloat16().square() - (SHARES + 1e-3).bfloat16().square()  # fault
    return 1 + gap, gap * 2


def test_a_small_difference_to_which_something_large_is_added_does_no_harm() -> None:
    passes(gap_added_to_one)
    finds(gap_added_and_scaled, "cancellation")


def gap_compared() -> torch.Tensor:
    gap = SHARES.bfloat16().square() - (SHARES + 1e-3).bfloat16().square()
    return gap > 0.5


def gap_compared_and_read() -> torch.Tensor:
    gap = SHARES.bfloat16().square() - (SHARES + 1e-3).bfloat16().square()  # fault
    gap[0].item()
    return gap > 0.5


def test_what_is_only_compared_does_no_harm() -> None:
    passes(gap_compared)
    finds(gap_compared_and_read, "cancellation")


def test_a_small_difference_excuses_what_it_leads_to_until_all_is_right_again() -> None:
    """A recurrence that lost a digit once, and recovered, is as guilty as any of what it loses later."""
    for recovered in (False, True):
        graph = Graph()
        mild = graph.op("sub.Tensor", given(), given(), makes={"drift": 0.5 * rounding.AMPLIFICATION * U, "kept_low": False})
        state = graph.op("mul.Tensor", mild, makes={"drift": U if recovered else 0.4 * rounding.AMPLIFICATION * U})
        handed = graph.op("tanh.default", state, makes={"drift": U if recovered else 0.4 * rounding.AMPLIFICATION * U})
        graph.op("exp.default", handed, makes={"drift": 0.9, "dead": 0.9, "alive": True})
        assert [rule for rule, _ in graph.rules()] == ["amplified-rounding"] * recovered


@AT_LEAST
def test_an_epsilon_of_the_low_format_must_make_a_difference(nudge: Any, accused: bool) -> None:
    makes = {"dtype": "float32", "roundoff": U, "drift": nudge(rounding.ROUNDINGS * 2.0**-8)}
    assert judged("add.Tensor", makes, given("float32"), own_epsilon=2.0**-7) == ([("dtype-leak", 1)] if accused else [])


@pytest.mark.parametrize("terms", [1, 4096])
@AT_LEAST
def test_a_kernel_may_err_by_what_a_low_sum_of_its_terms_errs(nudge: Any, accused: bool, terms: int) -> None:
    """(1 + √n/2) u for n terms, and never less than `ROUNDINGS`."""
    allowed = max(rounding.ROUNDINGS, 1 + terms**0.5 / 2) * U
    makes = {"drift": 0.3, "local": nudge(allowed), "shape": (4,)}
    rules = judged("index_put.default", makes, given(shape=(4 * terms,), drift=0.1))
    assert (rules == [("local-drift", 1)]) is accused


@AT_LEAST
def test_attention_may_err_by_what_two_roundings_of_its_weights_make(nudge: Any, accused: bool) -> None:
    makes = {"drift": 0.3, "local": nudge(2 * 0.05), "weighting": 0.05}
    rules = judged("_scaled_dot_product_flash_attention_for_cpu.default", makes, given(), given(), given(drift=0.1))
    assert (rules == [("local-drift", 1)]) is accused


def attention_to_values_that_cancel() -> torch.Tensor:
    """Each value has its opposite among the others, and the weights are nearly equal. The result is small, and nine unit roundoffs off."""
    queries, keys, values = torch.randint(-8, 9, (3, 2, 4, 32, 8), generator=torch.Generator().manual_seed(0)).div(4).bfloat16().unbind()
    opposed = torch.cat([values[..., :16, :], -values[..., :16, :]], dim=-2)
    return torch.nn.functional.scaled_dot_product_attention(3 / 128 * queries, keys, opposed).float()


def test_attention_over_values_that_cancel_has_the_error_of_its_weights() -> None:
    """What PatchTST of transformers does. A kernel of any device stores its weights in the low format."""
    passes(attention_to_values_that_cancel)


def norm_of_what_is_centred() -> tuple[torch.Tensor, ...]:
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    centred = (x - x.mean(-1, keepdim=True)).bfloat16()
    return torch.native_layer_norm(centred, [64], None, None, 1e-5)


def test_a_fused_kernels_later_results_are_its_statistics() -> None:
    """LayerNorm's mean of a centred tensor is all rounding, and nobody's business."""
    passes(norm_of_what_is_centred)


def sine_of_what_infinity_left() -> torch.Tensor:
    powers = torch.linspace(10.0, 13.0, 64).half().exp()  # fault
    return (1e5 / powers.float()).sin()


def test_what_infinity_made_of_the_rest_is_not_judged_again() -> None:
    finds(sine_of_what_infinity_left, "overflow")


SUMMED = [({}, {}, {}, True), ({"zeroed": 0.014}, {}, {}, False), ({}, {"dead": 0.49, "drift": 0.24}, {}, False), ({}, {}, {"drift": 0.04}, False),
          ({}, {"norm": 1e-6}, {}, False)]  # fmt: skip


@pytest.mark.parametrize(("flushed", "summed", "other", "accused"), SUMMED,
                         ids=["zeros alone", "rounding as well", "mostly right", "another operand", "a sum that cancels"])  # fmt: skip
def test_zeros_that_are_nothing_to_a_norm_may_be_most_of_a_sum(flushed: Any, summed: Any, other: Any, accused: bool) -> None:
    """2000 at exp(-7.3) beside a one in fp8: 3 % of the norm, and half of what a product with positive numbers makes of them."""
    graph = Graph()
    facts = {"dtype": "float8_e4m3fn", "drift": 0.03, "zeros": 60, "zeroed": 0.0299, "largest_zeroed": 2.0**-11}
    coarse = graph.op("_to_copy.default", given("float32"), makes=facts | flushed)
    makes = {"drift": 0.56, "dead": 1.0, "dtype": "float32", "roundoff": 2.0**-4, "alive": True}
    graph.op("mm.default", coarse, given(**other), makes=makes | summed)
    assert graph.rules() == ([("underflow", 1)] if accused else [])


@AT_LEAST
def test_float32_beside_float64_is_judged_as_float16_would_be(nudge: Any, accused: bool) -> None:
    """A drift of 274 roundings of float32 is 2e-5, and nothing to anyone; 8 roundings of float16 are 0.4 %."""
    fine = {"dtype": "float32", "roundoff": 2.0**-24, "low": True, "kept_low": True}
    makes = fine | {"drift": nudge(rounding.ROUNDINGS * 2.0**-11)}
    assert judged("sub.Tensor", makes, given(**fine)) == ([("cancellation", 1)] if accused else [])


def product(end: dict[str, Any], **changed: Any) -> Graph:
    """A product of what was stored low, and what became of it."""
    graph = Graph()
    facts = {"drift": above(rounding.LOSES_FIVE_BITS * ROUNDED), "dead": above(rounding.DEAD)} | changed
    made = graph.op("bmm.default", given(norm=8.0), given(norm=8.0), makes=facts)
    graph.op("add.Tensor", made, given("float32"), makes={"dtype": "float32", "roundoff": U, "alive": True} | end)
    return graph


def test_a_product_whose_terms_cancel_is_an_error_if_it_spoils_a_result() -> None:
    assert product({"drift": above(0.5)}).rules() == [("cancellation", 1)]
    assert product({"drift": below(0.5)}).rules() == []
    assert product({"drift": above(0.5), "alive": False}).rules() == []


@pytest.mark.parametrize("changed", [{"drift": below(rounding.LOSES_FIVE_BITS * ROUNDED)}, {"dead": below(rounding.DEAD)},
                                     {"norm": 64.0 * below(2.0**-17)}],
                         ids=["four bits", "digits left", "nothing left in float32 either"])  # fmt: skip
def test_but_not_if_it_is_small_as_products_are(changed: dict[str, Any]) -> None:
    assert product({"drift": above(0.5)}, **changed).rules() == []


NEAR_ONE = torch.linspace(0.99, 1.01, 64)


def stored_and_subtracted() -> torch.Tensor:
    stored = NEAR_ONE.bfloat16().exp()  # fault
    gap = stored.float() - (NEAR_ONE + 1e-3).exp()
    return 1 / gap


def subtracted_in_bfloat16() -> torch.Tensor:
    stored = NEAR_ONE.bfloat16().exp()
    gap = stored - (NEAR_ONE + 0.01).exp().bfloat16()  # fault
    return 1 / gap


def test_a_difference_in_float32_hands_its_blame_on_to_what_stored_its_term() -> None:
    """It is exact; a low one rounds, and is blamed itself."""
    finds(stored_and_subtracted, "amplified-rounding")
    finds(subtracted_in_bfloat16, "cancellation")


def test_a_norm_of_single_numbers_is_zero_on_paper() -> None:
    """What remains of x - mean(x) is rounding, and zero in float32: no share of zero says how good the kernel is."""
    layer, values = torch.nn.LayerNorm(1).bfloat16(), torch.linspace(-3, 3, 128).reshape(128, 1)

    def normalised() -> torch.Tensor:
        return layer((3 * values).bfloat16() * 1.1)

    assert not watched(normalised).errors
