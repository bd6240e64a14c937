"""Where a fault came from: origins of drift and of zeros, what float32 determines, and how findings are told.

What a user is told is shown by scenarios in torch; the walks back through a run are asked by hand, at the edges of their limits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graph import Graph, above, below, given, value
from scenario import finds, passes, watched
from torch import nn

from precheck.analysis.propagation.provenance import Origins, descendants, determined, zero_origin
from precheck.observe.shadow.operations import Operation

TINIEST = 2.0**-24
ZERO: dict[str, Any] = {"dtype": "float16", "zeros": 1, "largest_zeroed": TINIEST / 4}


def traced(graph: Graph) -> Origins:
    origins = Origins()
    for operation in graph.observation.operations:
        origins.trace(operation)
    return origins


@pytest.mark.parametrize(("drift", "line"), [(2e-3, 1), (above(2e-3), 2)])
def test_the_origin_is_the_last_op_that_more_than_doubled_the_drift(drift: float, line: int) -> None:
    graph = Graph()
    cast = graph.op("_to_copy.default", given("float32"), makes={"drift": 1e-3})
    made = graph.op("mul.Tensor", given(), cast, makes={"drift": drift})
    origin = traced(graph).of(made)
    assert origin is not None
    assert origin.number == line


def test_the_origin_is_followed_along_the_input_that_is_furthest_off() -> None:
    graph = Graph()
    less = graph.op("_to_copy.default", given("float32"), makes={"drift": 1e-4})
    more = graph.op("_to_copy.default", given("float32"), makes={"drift": 1e-3})
    made = graph.op("add.Tensor", less, more, makes={"drift": 1e-3})
    assert traced(graph).of(made) is more.maker


@pytest.mark.parametrize(("size", "line"), [(2.0, 1), (above(2.0), 2)])
def test_a_sum_that_more_than_doubled_the_absolute_error_of_its_terms_is_the_origin(size: float, line: int) -> None:
    """A half that is added to a million has one rounding before and one afterwards, and the second is a million times larger."""
    graph = Graph()
    cast = graph.op("_to_copy.default", given("float32"), makes={"drift": 1e-3, "norm": 1.0})
    made = graph.op("add.Tensor", cast, makes={"drift": 1e-3, "norm": size})
    origin = traced(graph).of(made)
    assert origin is not None
    assert origin.number == line


def test_what_was_given_has_no_origin() -> None:
    assert Origins().of(given()) is None
    assert Origins().of(None) is None


def test_a_copy_keeps_the_origin_of_what_it_copies() -> None:
    graph = Graph()
    cast = graph.op("_to_copy.default", given("float32"), makes={"drift": 1e-3})
    graph.op("_to_copy.default", cast)
    graph.last.outputs = (cast,)
    assert traced(graph).of(cast) is cast.maker


def handed_on() -> torch.Tensor:
    power = torch.full((4, 4), -30.0).half().exp()  # fault
    return 1 / (-power).mean(0)


def test_zeros_are_traced_back_to_the_op_that_flushed_them() -> None:
    finds(handed_on, "underflow", says="9.36e-14 in the reference became zero here; aten.reciprocal.default")


def a_third_of_the_factors() -> torch.Tensor:
    spreads = torch.tensor([0.04, 0.05, 1e-4]).repeat(4, 1).square().half()
    return 1 / spreads.float().prod(-1)


def test_one_factor_that_became_zero_makes_all_of_a_product_zero() -> None:
    """A third of what is multiplied is as many zeros as the products are."""
    (told,) = watched(a_third_of_the_factors).errors
    assert (told.rule, told.op) == ("underflow", "aten._to_copy.default")
    assert "1e-08 in the reference became zero here; aten.reciprocal.default" in told.message


@pytest.mark.parametrize(("name", "zeros", "own"), [
    ("prod.dim_int", 1, True), ("prod.dim_int", 2, False), ("sum.dim_IntList", 2, True),
])  # fmt: skip
def test_zeros_of_factors_are_counted_and_those_of_terms_are_shares(name: str, zeros: int, own: bool) -> None:
    """Four numbers of twelve factors are zero: half as many zeros explain them, and a sum of zeros needs half of its terms."""
    graph = Graph()
    factors = graph.op("_to_copy.default", given("float32"), makes={"shape": (4, 3), "sample_size": 12, "zeros": zeros, "largest_zeroed": 1e-8})
    products = graph.op(name, factors, makes={"shape": (4,), "sample_size": 4, "zeros": 4, "largest_zeroed": 1e-13})
    assert (zero_origin(products)[1] is products.maker) == own


@pytest.mark.parametrize(("name", "lost", "rule"), [
    ("sub.Tensor", above(TINIEST / 2), "cancellation"),
    ("sub.Tensor", TINIEST / 2, "underflow"),
    ("log.default", above(TINIEST / 2), "amplified-rounding"),
    ("log.default", TINIEST / 2, "underflow"),
    ("mul.Tensor", 1.0, "underflow"),
])  # fmt: skip
def test_a_zero_where_the_format_has_a_number_was_not_flushed(name: str, lost: float, rule: str) -> None:
    graph = Graph()
    zero = graph.op(name, given("float16"), makes=ZERO | {"largest_zeroed": lost})
    assert zero_origin(zero) == (rule, zero.maker)


def loss_of(scale: float) -> nn.Parameter:
    weight = nn.Parameter(torch.ones(8).half())
    product = weight * torch.full((8,), 1e-4).half()
    product.register_hook(lambda gradient: 1 / (gradient * 1e-9))
    torch.amp.GradScaler("cpu", init_scale=scale).scale(product.float().sum()).backward()
    return weight


def forward() -> torch.Tensor:
    product = torch.full((8,), 1e-4).half() * 1e-5  # fault
    return 1 / product


def test_a_zero_of_an_unscaled_backward_pass_wants_a_scaler() -> None:
    for scale, rule in ((1.0, "gradient-underflow"), (2.0, "underflow")):
        (finding,) = watched(lambda scale=scale: loss_of(scale)).findings  # type: ignore[misc]
        assert (finding.rule, finding.phase, finding.op) == (rule, "backward", "aten.mul.Tensor")
    finds(forward, "underflow")


POWERS = torch.tensor([-30.0, 1.0])


def guard_added() -> torch.Tensor:
    size = POWERS.half().exp() + 1e-8  # fault
    return 1 / -size


def guard_clamped() -> torch.Tensor:
    size = POWERS.half().exp().clamp(min=1e-8)  # fault
    return 1 / -size


def zero_added() -> torch.Tensor:
    power = POWERS.half().exp()  # fault
    return 1 / -(power + 0.0)


def scaled() -> torch.Tensor:
    power = POWERS.half().exp()  # fault
    return 1 / -(power * 1e-8)


@pytest.mark.parametrize("program", [guard_added, guard_clamped], ids=lambda program: program.__name__)
def test_a_guard_on_the_way_that_rounds_to_zero_is_what_vanished(program: Callable[[], Any]) -> None:
    """The walk stops at the first guard that guards nothing, though zeros come from further back."""
    finds(program, "vanished-constant", says="1e-08 is zero in float16 and guards nothing")


@pytest.mark.parametrize("program", [zero_added, scaled], ids=lambda program: program.__name__)
def test_what_is_no_guard_has_not_vanished(program: Callable[[], Any]) -> None:
    finds(program, "underflow", says="in the reference became zero here")


@pytest.mark.parametrize(("guard", "rule"), [(TINIEST / 2, "vanished-constant"), (above(TINIEST / 2), "underflow")])
def test_a_guard_that_the_format_holds_has_not_vanished(guard: float, rule: str) -> None:
    graph = Graph()
    flushed = graph.op("exp.default", given("float16"), makes=ZERO)
    guarded = graph.op("add.Tensor", flushed, makes=ZERO, scalars=(guard,))
    assert zero_origin(guarded) == (rule, guarded.maker if rule == "vanished-constant" else flushed.maker)


def test_zeros_that_were_given_are_the_users_own() -> None:
    with pytest.raises(ValueError, match="given to the watched block"):
        zero_origin(given("float16", zeros=3))


SIZES = [("sum.dim_IntList", (3.0,), 3.0), ("add.Tensor", (3.0, 5.0), 5.0), ("mm.default", (3.0, 5.0), 15.0)]


@pytest.mark.parametrize(("name", "norms", "scale"), SIZES)
def test_float32_determines_what_is_not_smaller_than_its_own_noise(name: str, norms: tuple[float, ...], scale: float) -> None:
    """2^-17 of the largest term, or of the product of a matrix product's factors."""
    operation = Operation(1, name, "backward", "", "", 1, tuple(given("float32", norm=norm) for norm in norms))
    assert determined(value(operation, norm=above(scale * 2.0**-17)))
    assert not determined(value(operation, norm=below(scale * 2.0**-17)))


def test_what_is_zero_or_made_of_nothing_is_determined() -> None:
    operation = Operation(1, "mm.default", "backward", "", "", 1, (given("float32", norm=0.0),))
    assert determined(value(operation, norm=1.0))
    assert determined(value(Operation(1, "sum.default", "backward", "", "", 1, (given(),)), norm=0.0))


@pytest.mark.parametrize("name", ["mul.Tensor", "div.Tensor"])
def test_a_factor_makes_small_and_cancels_nothing(name: str) -> None:
    """What is 1e-8 of its operand is known as well as that; of a sum that cancelled no factor makes more than its noise."""
    graph = Graph()
    drifting = {"dtype": "float32", "drift": 0.1}
    known = graph.op(name, graph.op("sum.dim_IntList", given(norm=1.0), makes=drifting | {"norm": 1.0}), makes={"norm": 1e-8})
    noise = graph.op(name, graph.op("sum.dim_IntList", given(norm=1.0), makes=drifting | {"norm": 1e-6}), makes={"norm": 1.0})
    assert determined(known)
    assert not determined(noise)


def test_descendants_are_what_a_value_went_into() -> None:
    graph = Graph()
    root = graph.op("exp.default", given())
    other = graph.op("exp.default", given())
    child = graph.op("mul.Tensor", root, other)
    grandchild = graph.op("neg.default", child)
    assert descendants(graph.observation, [root]) == {root, child, grandchild}
    assert descendants(graph.observation, []) == set()


ANGLES = torch.linspace(300.0, 310.0, 64)


def sine() -> torch.Tensor:
    return ANGLES.bfloat16().sin()  # fault


def sines_in_a_loop() -> list[torch.Tensor]:
    return [ANGLES.bfloat16().sin() for _ in range(3)]  # fault


def sines_on_two_lines() -> nn.Parameter:
    weight = nn.Parameter(torch.ones(64).bfloat16())
    product = weight * sine()
    product = product + (ANGLES + 1).bfloat16().sin()
    product.register_hook(lambda gradient: gradient * 0 + sine())
    product.float().sum().backward()
    return weight


def test_a_rule_speaks_once_for_each_line_and_phase() -> None:
    finds(sines_in_a_loop, "amplified-rounding")
    told = [(int(finding.source.rpartition(":")[2]), finding.phase) for finding in watched(sines_on_two_lines).errors]
    first = sine.__code__.co_firstlineno + 1
    second = sines_on_two_lines.__code__.co_firstlineno + 3
    assert told == [(first, "forward"), (second, "forward"), (first, "backward")]


def three_faults() -> tuple[torch.Tensor, ...]:
    shares = torch.linspace(0.99, 1.01, 64)
    sines = ANGLES.bfloat16().sin()
    powers = torch.full((4,), 12.0).half().exp()
    gap = shares.bfloat16().square() - (shares + 1e-3).bfloat16().square()
    return sines, powers, gap


def test_findings_come_in_the_order_of_their_causes() -> None:
    """Not in the order of the rules: the earliest is the first that a reader meets."""
    assert [finding.rule for finding in watched(three_faults).findings] == ["amplified-rounding", "overflow", "cancellation"]


class Angles(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.bfloat16().sin()


def in_a_module() -> torch.Tensor:
    return nn.Sequential(nn.Identity(), Angles())(ANGLES)


def test_a_finding_carries_what_the_op_knows() -> None:
    (finding,) = watched(in_a_module).findings
    line = Angles.forward.__code__.co_firstlineno + 1
    assert (finding.op, finding.phase, finding.module, finding.step) == ("aten._to_copy.default", "forward", "1", 1)
    assert finding.source.endswith(f"test_ops_provenance.py:{line}")
    assert finding.message.startswith("cast to bfloat16 (aten._to_copy) at ")
    assert f"test_ops_provenance.py:{line}: its rounding" in finding.message


def healthy() -> torch.Tensor:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10)).bfloat16()
    return net(torch.randn(16, 32).bfloat16()).softmax(-1)


def test_a_healthy_run_has_no_findings() -> None:
    passes(healthy)


def test_the_line_that_makes_an_op_low_is_told() -> None:
    """Without the cast the sum would be wide, so that is the line to mend."""

    def summed() -> torch.Tensor:
        terms = torch.full((400, 8), 1.01).bfloat16()
        level = terms[0] * 1.5
        for term in terms:
            level = level + term  # fault
        return level

    finding = finds(summed, "absorption")
    place, _, line = finding.source.rpartition(":")
    assert f"aten.add.Tensor at {finding.source}, in bfloat16 since {place}:{int(line) - 3}: " in finding.message


def test_no_line_is_told_where_the_precision_made_an_op_low() -> None:
    layer = nn.Linear(8, 8)

    def summed() -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            level = layer(torch.ones(8))
            for _ in range(400):
                level = level + layer(torch.ones(8))  # fault
            return level

    assert " since " not in finds(summed, "absorption").message
