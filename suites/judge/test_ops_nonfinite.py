"""What Inf, NaN and zeros come from, and whom they harm. What reads an Inf is in test_infinity.

Scenarios in torch; records made by hand where a limit's edge is the point, or where torch itself does not go wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graph import Graph, above, below, given
from scenario import finds, passes, watched
from torch import nn

from precheck.analysis.rounding import misroundings as rounding
from precheck.analysis.unrepresentable import nonfinite, zeros

LARGEST = 65504.0
TINIEST = 2.0**-24  # float16's smallest subnormal; half of it and less rounds to zero
NORMAL = 2.0**-14  # float16's smallest normal
INF: dict[str, Any] = {"dtype": "float16", "nonfinite": 1, "beyond": 1e5}
NAN: dict[str, Any] = {"dtype": "float16", "nonfinite": 1, "nans": 1, "beyond": 3.0}
ZERO: dict[str, Any] = {"dtype": "float16", "zeros": 1, "largest_zeroed": TINIEST / 4}


def overflowed(name: str = "mul.Tensor", **facts: Any) -> tuple[Graph, Any]:
    graph = Graph()
    return graph, graph.op(name, given("float16"), makes=INF, **facts)


@pytest.mark.parametrize(("drift", "accused"), [(nonfinite.HARMED, False), (above(nonfinite.HARMED), True)])
def test_a_finite_consumer_heals_it_if_it_is_right_to_a_quarter(drift: float, accused: bool) -> None:
    graph, infinite = overflowed()
    graph.op("clamp.default", infinite, makes={"dtype": "float16", "drift": drift})
    assert (("overflow", 1) in graph.rules()) is accused


class StraightThrough(torch.autograd.Function):
    """A clamp whose backward pass multiplies by what was clamped."""

    @staticmethod
    def forward(context: Any, raw: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(raw)
        return raw.clamp(max=6e4)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        (raw,) = context.saved_tensors
        return gradient * raw


def clamped_and_differentiated() -> torch.Tensor | None:
    weight = torch.full((4,), 300.0, requires_grad=True)
    raw = weight.half() * 300  # fault
    loss = StraightThrough.apply(raw).float().mean()
    torch.amp.GradScaler("cpu").scale(loss).backward()
    return weight.grad


def clamped_by_torch_and_differentiated() -> torch.Tensor | None:
    weight = torch.full((4,), 300.0, requires_grad=True)
    loss = (weight.half() * 300).clamp(max=6e4).float().mean()
    torch.amp.GradScaler("cpu").scale(loss).backward()
    return weight.grad


def test_a_backward_pass_that_it_reaches_is_harmed() -> None:
    """Whatever the loss scale is: the number was too large in the forward pass."""
    finds(clamped_and_differentiated, "overflow")
    passes(clamped_by_torch_and_differentiated)


def test_one_over_infinity_harms_where_the_reference_has_a_number() -> None:
    graph, infinite = overflowed()
    graph.op("reciprocal.default", infinite, makes={"dtype": "float16", "zeros": 1, "largest_zeroed": below(TINIEST / 2)})
    assert graph.rules() == []
    graph, infinite = overflowed()
    graph.op("reciprocal.default", infinite, makes={"dtype": "float16", "zeros": 1, "largest_zeroed": above(TINIEST / 2)})
    assert ("overflow", 1) in graph.rules()


def handed_on(graph: Graph, value: Any, name: str = "_to_copy.default") -> None:
    """A copy in another dtype, which is the same value."""
    graph.op(name, value)
    graph.last.outputs = (value,)


@pytest.mark.parametrize(("distinct_overflows", "negative", "alive", "accused"), [
    (nonfinite.FILLS, True, True, False), (nonfinite.FILLS + 1, True, True, True), (nonfinite.FILLS + 1, False, False, False),
    (1, False, True, True), (1, False, False, False), (0, False, True, False),
])  # fmt: skip
def test_more_numbers_than_masks_have_or_one_above_zero_are_no_mask(distinct_overflows: int, negative: bool, alive: bool, accused: bool) -> None:
    """Where only samples are looked at, nothing may be known of the numbers."""
    graph = Graph()
    made = {"distinct_overflows": distinct_overflows, "negative": negative, "alive": alive}
    cast = graph.op("_to_copy.default", given("float32"), makes=INF | made)
    handed_on(graph, cast)
    assert (graph.rules() == [("overflow", 1)]) is accused


HIDDEN = torch.tensor([[0.0, 1.0], [0.0, 0.0]])


def masked_scores() -> torch.Tensor:
    return torch.ones(2, 2).half() + (HIDDEN * -1e9).half()


def raised_scores() -> torch.Tensor:
    bias = (HIDDEN * 1e9).half()  # fault
    return torch.ones(2, 2).half() + bias


def biased_scores() -> torch.Tensor:
    bias = (HIDDEN.repeat(1, 4) * torch.arange(-8e5, 0, 1e5)).half()  # fault
    return torch.ones(2, 8).half() + bias


def test_scores_under_a_mask_may_be_handed_out() -> None:
    """Of a number above zero, or of four different ones, -Inf is no mask."""
    passes(masked_scores)
    finds(raised_scores, "overflow", says="1e+09 in the reference")
    finds(biased_scores, "overflow", says="700000 in the reference")


def large_gradient() -> torch.Tensor | None:
    weight = torch.ones(4, requires_grad=True)
    wide = weight.half().float()  # fault
    (wide * -1e9).sum().backward()
    return weight.grad


def test_a_gradient_is_no_mask() -> None:
    assert finds(large_gradient, "overflow").phase == "backward"


def mask_cast() -> torch.Tensor:
    return (HIDDEN * -1e9).half()


def mask_chosen() -> torch.Tensor:
    return torch.where(HIDDEN.bool(), torch.tensor(-1e9), torch.zeros(2, 2).half())


def mask_filled() -> torch.Tensor:
    return torch.full((2, 2), -1e9).half()


def power() -> torch.Tensor:
    return torch.full((2, 2), 20.0).half().exp()  # fault


def test_a_constant_that_nobody_computes_with_harms_nobody() -> None:
    """Nothing reads them. (`full` and `masked_fill` in float16 raise: torch refuses such a constant.)"""
    passes(mask_cast)
    passes(mask_chosen)
    passes(mask_filled)
    finds(power, "overflow")


@pytest.mark.parametrize(("op", "accused"), [("add.Tensor", False), ("div.Tensor", True)])
def test_zeros_of_a_sum_do_not_come_of_an_infinite_term(op: str, accused: bool) -> None:
    """By hand: 1/Inf is zero. A sum with Inf is infinite, so its zeros are those of its other term, of which a sample has shown none."""
    graph = Graph()
    mask = graph.op("_to_copy.default", given("float32"), makes=INF | {"negative": True, "distinct_overflows": 1})
    masked = graph.op(op, given("float16"), mask, makes={"dtype": "float16", "zeros": 3, "largest_zeroed": 1.0, "nonfinite": int(not accused)})
    graph.op("_softmax.default", masked, makes={"dtype": "float16"})
    assert (graph.rules() == [("overflow", 1)]) is accused


@pytest.mark.parametrize(("beyond", "accused"), [(LARGEST * 1024, False), (above(LARGEST * 1024), True)])
def test_a_loss_scale_excuses_what_would_fit_without_it(beyond: float, accused: bool) -> None:
    graph = Graph()
    graph.op("mm.default", given("float16"), makes=INF | {"beyond": beyond}, phase="backward", derived=True, scale=1024.0)
    assert (graph.rules() == [("overflow", 1)]) is accused


def forward_under_a_scale() -> torch.Tensor:
    weight = torch.full((4,), 300.0, requires_grad=True)
    torch.amp.GradScaler("cpu").scale((weight * 1e-3).sum()).backward()
    return weight.half() * 300  # fault


def backward_without_a_scale() -> torch.Tensor | None:
    weight = torch.ones(4, requires_grad=True)
    (weight.half().float() * 1e6).sum().backward()  # fault
    return weight.grad


def backward_under_a_scale() -> torch.Tensor | None:
    weight = torch.ones(4, requires_grad=True)
    torch.amp.GradScaler("cpu").scale((weight.half().float() * 10).sum()).backward()
    return weight.grad


def test_no_scale_and_no_forward_pass_is_excused() -> None:
    finds(forward_under_a_scale, "overflow")
    finds(backward_without_a_scale, "overflow")
    passes(backward_under_a_scale)


@pytest.mark.parametrize(("starved", "rule"), [(below(NORMAL), "underflow"), (NORMAL, "overflow")])
def test_a_divisor_below_the_smallest_normal_is_to_blame_for_the_quotient(starved: float, rule: str) -> None:
    graph, _ = overflowed("div.Tensor", starved=starved)
    assert graph.rules() == [(rule, 1)]


def test_the_format_and_the_end_that_a_divisor_is_below_are_named() -> None:
    def inverse() -> torch.Tensor:
        return 1 / torch.full((8,), 6e-6).half()  # fault

    finds(inverse, "underflow", says="is below float16's smallest normal number, 6.1e-05: Inf, in the reference ")


@pytest.mark.parametrize(("guard", "rule"), [(TINIEST / 2, "vanished-constant"), (above(TINIEST / 2), "underflow")])
def test_a_zero_at_a_pole_is_traced_to_its_guard_or_to_the_flush(guard: float, rule: str) -> None:
    graph = Graph()
    zero = graph.op("add.Tensor", given("float16"), makes=ZERO, scalars=(1.0, guard) if rule != "underflow" else (guard,))
    graph.op("div.Tensor", given("float16"), graph.op("neg.default", zero, makes=ZERO), makes=INF)
    assert graph.rules() == [(rule, 1)]


def powers_of_which_one_is_zero() -> torch.Tensor:
    powers = torch.tensor([-20.0, 10.0, 10.0, 10.0]).half().exp()
    return powers * 300  # fault


def test_a_zero_times_a_larger_than_largest_is_still_an_overflow() -> None:
    """A zero among the inputs explains nothing at an op that has no pole."""
    finds(powers_of_which_one_is_zero, "overflow")


SHARES = torch.linspace(0.0, 1.0, 64)


def guard_of_a_pole() -> torch.Tensor:
    held = SHARES.half().clamp(max=1 - 1e-6)  # fault
    return held.atanh()


def guard_negated() -> torch.Tensor:
    held = SHARES.half().clamp(max=0.9999)  # fault
    return torch.log1p(-held)


def guard_subtracted() -> torch.Tensor:
    held = SHARES.half().clamp(min=1e-4)  # fault
    return (1 - held).neg().atanh()


@pytest.mark.parametrize("program", [guard_of_a_pole, guard_negated, guard_subtracted], ids=lambda program: program.__name__)
def test_a_bound_that_rounds_onto_the_pole_it_guards(program: Callable[[], Any]) -> None:
    """From the pole back through moves and one sum at most."""
    finds(program, "vanished-constant", says="its bound should keep numbers off the pole of aten.")


def test_a_bound_that_is_the_pole_guards_nothing_and_is_not_rounded() -> None:
    """What lies at one was rounded there by the tangent, and every format holds the bound."""

    def squashed() -> torch.Tensor:
        actions = torch.linspace(0.0, 8.0, 64).half().tanh().clamp(-1, 1)  # fault
        return actions.atanh()

    finds(squashed, "amplified-rounding", says="this rounding moves a number to where aten.atanh.default")


def subtracted_and_added() -> torch.Tensor:
    held = SHARES.half().clamp(min=1e-4)
    shifted = 0.25 - held
    total = 0.75 + shifted  # fault
    return total.atanh()


def test_a_guard_with_two_sums_behind_it_guards_no_pole() -> None:
    """The op whose rounding moved the argument is to blame."""
    finds(subtracted_and_added, "amplified-rounding", says="this rounding moves a number to where ")


def gumbel() -> torch.Tensor:
    ticks = 65535 - torch.randint(0, 500, (2000,), generator=torch.Generator().manual_seed(1))
    drawn = ((ticks.float() + 0.5) / 65536).half().clamp_max(0.9999)  # fault
    return -torch.log(-torch.log(drawn.float()))


def test_a_wide_logarithm_that_amplifies_a_rounding_has_rounded_nothing() -> None:
    """The cast makes one of 0.9999, and the inner logarithm nought of one, exactly."""
    report = watched(gumbel)
    assert report.errors
    assert {error.source.rpartition(":")[2] for error in report.errors} == {str(gumbel.__code__.co_firstlineno + 2)}


def saturated() -> torch.Tensor:
    held = torch.linspace(0.0, 20.0, 64).half().clamp(max=12)
    share = held.sigmoid()  # fault
    return share.atanh()


def test_a_guard_of_what_a_function_saturates_guards_no_pole() -> None:
    """Its bound, 12, is exact: it is the sigmoid of it that becomes 1."""
    finds(saturated, "amplified-rounding", says="this rounding moves a number to where ")


def guarded_below_one() -> torch.Tensor:
    held = SHARES.half().clamp(max=0.9999)  # fault
    return (1 - held).log()


def guarded_and_held() -> torch.Tensor:
    held = SHARES.half().clamp(max=0.999)
    return (1 - held).log()


def guarded_at_an_exact_bound() -> torch.Tensor:
    held = torch.linspace(0.5, 0.7499, 64).half().clamp(max=0.75)
    gap = 0.75 - held  # fault
    return gap.log()


def test_a_difference_is_zero_for_a_bound_that_is_no_less_than_what_it_is_taken_from() -> None:
    """float16 has 0.9995 next to 1. Where it holds the bound, the difference lost the digits itself."""
    finds(guarded_below_one, "vanished-constant", says="0.9999 is 1 in float16")
    passes(guarded_and_held)
    finds(guarded_at_an_exact_bound, "cancellation")


def guarded_and_compared() -> torch.Tensor:
    held = torch.linspace(0.4, 0.6, 64).half().clamp(1e-4, 0.9999)
    other = (torch.linspace(0.4, 0.6, 64) - 1e-4).half()
    gap = held - other  # fault
    return gap.log()


def test_a_difference_of_two_tensors_is_not_the_bounds_doing() -> None:
    """Where p is 0.5 and q nearly so, it makes no odds that one of them was kept off 1."""
    finds(guarded_and_compared, "cancellation")


def adam_of_a_few_small_gradients() -> torch.Tensor:
    gradient = torch.cat([torch.full((60,), 1e-2), torch.full((4,), 1e-7)]).half()
    average = gradient * 0.1
    size = (gradient * gradient).sqrt() + 1e-8  # fault
    return torch.ones(64).half().addcdiv(average, size, value=-1e-3)


def adam_of_small_gradients() -> torch.Tensor:
    gradient = torch.full((64,), 2.0**-23).half()
    average = gradient * 0.1  # fault
    size = (gradient * gradient).sqrt() + 1e-8
    return torch.ones(64).half().addcdiv(average, size, value=-1e-3)


def test_of_nothing_over_nothing_the_guard_is_to_blame_unless_all_was_lost() -> None:
    """Adam's moments vanish, and eps with them; but a numerator that is gone as a whole needs no guard to be wrong."""
    finds(adam_of_a_few_small_gradients, "vanished-constant", says="1e-08 is zero in float16 and guards nothing")
    finds(adam_of_small_gradients, "underflow", says="made NaN of it")


def product() -> torch.Tensor:
    return torch.tensor([1e4, 1e4, 0.0]).half().prod()  # fault


def test_nan_from_what_the_reference_has_too_is_called_nan() -> None:
    finds(product, "nan")


FLOOD: dict[str, Any] = {"dtype": "float16", "zeros": 40, "largest_zeroed": TINIEST / 4, "drift": 0.9, "norm": 1e-6}


@pytest.mark.parametrize(("zeroed", "flooded"), [(below(zeros.LOST_TENSOR), False), (zeros.LOST_TENSOR, True)])
def test_a_tensor_half_of_which_is_flushed_is_lost_if_the_user_keeps_it(zeroed: float, flooded: bool) -> None:
    """Below that it has an error of the op's own, as subnormal numbers have."""
    graph = Graph()
    graph.op("mul.Tensor", given("float16", norm=1e-3), makes=FLOOD | {"zeroed": zeroed, "alive": True})
    (finding,) = graph.found()
    assert (finding.rule, "of this tensor became zero" in finding.message) == ("underflow", flooded)


@pytest.mark.parametrize(("zeroed", "phase", "accused"), [
    (0.2, "forward", True), (below(rounding.FAIR), "backward", True), (rounding.FAIR, "backward", False),
])  # fmt: skip
def test_a_part_that_is_flushed_is_an_error_of_the_op_except_in_gradients(zeroed: float, phase: str, accused: bool) -> None:
    graph = Graph()
    graph.op("mul.Tensor", given("float16", norm=1e-3), makes=FLOOD | {"zeroed": zeroed, "drift": 0.08, "dead": 0.1, "alive": True}, phase=phase)
    assert graph.rules() == ([("underflow", 1)] if accused else [])


@pytest.mark.parametrize(("drift", "accused"), [(zeros.LOST_TENSOR, False), (above(zeros.LOST_TENSOR), True)])
def test_what_is_flushed_harms_by_what_it_ends_up_in(drift: float, accused: bool) -> None:
    graph = Graph()
    flushed = graph.op("mul.Tensor", given("float16", norm=1e-3), makes=FLOOD | {"zeroed": 1.0})
    product = graph.op("mul.Tensor", flushed, given("float16"), makes=FLOOD | {"zeroed": 1.0})
    graph.op("add.Tensor", product, given("float16"), makes={"dtype": "float16", "drift": drift, "zeros": 0})
    assert (("underflow", 1) in graph.rules()) is accused


def weight_cast() -> torch.Tensor:
    weight = nn.Parameter(torch.full((64,), 1e-9))
    return weight.half()  # fault


def test_a_weight_that_its_cast_makes_zero_is_lost_like_any_other_tensor() -> None:
    finds(weight_cast, "underflow", says="100% of this tensor became zero in float16, numbers up to 1e-09")


def starved(zeroed: float, norm: float = 1e-9) -> Graph:
    graph = Graph()
    lost = {"dtype": "float16", "zeros": 60, "zeroed": zeroed, "largest_zeroed": TINIEST / 4, "norm": norm, "drift": 0.9}
    made = graph.op("mm.default", given("float16", norm=1e-6), given("float16", norm=1e-2), makes=lost, phase="backward", derived=True, scale=1.0)
    graph.observation.gradients[7] = ("head.weight", made, 1.0)
    return graph


@pytest.mark.parametrize(("zeroed", "accused"), [(zeros.LOST_TENSOR, False), (above(zeros.LOST_TENSOR), True)])
def test_a_gradient_more_than_half_of_which_is_flushed_is_starved(zeroed: float, accused: bool) -> None:
    assert (starved(zeroed).rules() == [("gradient-underflow", 1)]) is accused


def head_without_a_scale() -> nn.Module:
    head, x = nn.Linear(8, 8, bias=False), torch.full((4, 8), 1e-3).half()
    with torch.autocast("cpu", torch.float16):
        said = head(x)  # fault
    (said.float() * 1e-5).mean().backward()
    return head


def head_under_a_small_scale() -> nn.Module:
    head, x = nn.Linear(8, 8, bias=False), torch.full((4, 8), 1e-3).half()
    with torch.autocast("cpu", torch.float16):
        said = head(x)  # fault
    torch.amp.GradScaler("cpu", init_scale=1024.0).scale((said.float() * 1e-8).mean()).backward()
    return head


def test_under_a_loss_scale_a_starved_gradient_is_a_warning() -> None:
    """A scaler may yet grow to where it fits."""
    unscaled = finds(head_without_a_scale, "gradient-underflow", says="of the gradient of Linear.weight is flushed to zero without a loss scale")
    scaled = finds(head_under_a_small_scale, "gradient-underflow", severity="warning", says="under a loss scale of 1024")
    assert unscaled.phase == scaled.phase == "backward"


def test_a_gradient_that_float32_does_not_know_either_is_let_be() -> None:
    """A key's bias: products of 1e-8 that cancel to 1e-17."""
    assert starved(1.0, norm=1e-8 * below(2.0**-17)).rules() == []
    assert starved(1.0, norm=1e-8 * above(2.0**-17)).rules() == [("gradient-underflow", 1)]


@pytest.mark.parametrize(("name", "rules"), [("div.Tensor", ["underflow"]), ("convolution_backward.default", ["nan"]), ("mul.Tensor", ["nan"])])
def test_a_product_of_finite_numbers_makes_no_nan_of_a_zero(name: str, rules: list[str]) -> None:
    """A kernel that does is wrong; a quotient of zeros is none. By hand, since no kernel of the torch that runs this is known to."""
    graph = Graph()
    zero = graph.op("mul.Tensor", given("float16"), makes=ZERO | {"zeros": 64, "zeroed": 1.0})
    graph.op(name, given("float16"), zero, makes=NAN | {"alive": True})
    assert [finding.rule for finding in graph.found()] == rules


PROBABILITIES = torch.tensor([0.0, 0.0, 0.0, 0.5])


def masked_by_a_product() -> torch.Tensor:
    p = PROBABILITIES.half()
    terms = p.log() * (p > 0)  # fault
    return terms.sum()


def masked_and_replaced() -> torch.Tensor:
    p = PROBABILITIES.half()
    return (p.log() * (p > 0)).nan_to_num()


def masked_and_chosen() -> torch.Tensor:
    p = PROBABILITIES.half()
    return torch.where(p > 0, p.log() * (p > 0), 0)


def masked_and_looked_for() -> torch.Tensor:
    p = PROBABILITIES.half()
    terms = p.log() * (p > 0)
    return terms != terms


def test_a_mask_that_is_multiplied_by_infinity() -> None:
    assert "torch.where" in finds(masked_by_a_product, "nan", says="multiplied by 3 Inf or NaN").advice
    passes(masked_and_replaced)
    passes(masked_and_chosen)
    passes(masked_and_looked_for)


def overflowed_and_masked() -> torch.Tensor:
    big = torch.full((4,), 300.0).half() * 300  # fault
    return (big * torch.tensor([0.0, 1.0, 1.0, 1.0]).half()).sum()


def test_infinity_of_the_run_alone_is_told_where_it_came_from() -> None:
    finds(overflowed_and_masked, "overflow")
