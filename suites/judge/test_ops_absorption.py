"""Additions that did not arrive: each limit from just below and just above, and what is nobody's fault.

Scenarios in torch; records made by hand where a limit's edge is the point.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graph import Graph, above, below, given
from scenario import finds, passes, watched
from torch import nn

import precheck
from precheck import formats
from precheck.observe.shadow.op_notes import Absorbed
from precheck.rules.absorption import rule as absorption

U = formats.of_dtype("bfloat16").unit_roundoff
STUCK = Absorbed(
    share=1.0,
    times=absorption.TIMES,
    additions=absorption.TIMES,
    arrived=0.6,
    intended=100 * U,
    lost=0.4,
    drift=absorption.ROUNDINGS * U,
)
"""A sum that stands still, at every limit of the first kind. It came a good part of its way before that."""
FROZEN = Absorbed(share=1.0, times=1, additions=int(absorption.UPDATES), arrived=0.0, intended=absorption.INTENDED * U, lost=1.0, drift=2 * U)
"""An average that never moved, at every limit of the second kind."""
RATE = 0.001
STARVED = Absorbed(
    share=absorption.UNCHANGED_SHARE,
    times=absorption.TIMES,
    additions=absorption.TIMES,
    arrived=below(absorption.LOST_UPDATE),
    intended=above(absorption.ROUNDINGS * U * RATE * absorption.TIMES),
    lost=1.0,
    drift=0.1 * U,
    steady=absorption.STEADY,
)
"""An average whose rate is too small for its format, at every limit of the third kind."""
MERGED = Absorbed(share=0.9, times=1, additions=1, arrived=0.2, intended=0.9 * U, lost=0.8, drift=0.3 * U)
"""A low-rank update, most of which a weight swallows."""


def judged(absorbed: Absorbed, name: str = "add_.Tensor", **facts: Any) -> list[tuple[str, int]]:
    graph = Graph()
    graph.op(name, given(), given(), absorbed=absorbed, **({"in_place": name.partition(".")[0].endswith("_")} | facts))
    return accused_by(graph)


def accused_by(graph: Graph) -> list[tuple[str, int]]:
    """The rule and the line of each error."""
    return [(finding.rule, int(finding.source.rpartition(":")[2])) for finding in graph.found() if finding.severity == "error"]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


WEIGHT, UPDATE = normal(64, 64), 5e-4 * normal(64, 64, seed=1)
"""An update most of which is less than half a rounding of the weight."""


def count() -> torch.Tensor:
    total = torch.zeros(64).bfloat16()
    for _ in range(300):
        total = total + 1  # fault
    return total


def updates_in_place() -> torch.Tensor:
    average = torch.ones(64).bfloat16()
    for _ in range(30):
        average.lerp_(torch.full((64,), 1.5).bfloat16(), 0.001)  # fault
    return average


def stored_again() -> torch.Tensor:
    average = torch.ones(64).bfloat16()
    for _ in range(30):
        average.copy_(average.float() + 0.001 * (1.5 - average.float()))  # fault
    return average


def difference_taken_off() -> torch.Tensor:
    weight, average = 1.25 * WEIGHT[:8].half(), WEIGHT[:8].half()
    for _ in range(4):
        average.sub_(0.001 * (average - weight))  # fault
    return average


def level_of_noise() -> torch.Tensor:
    """The average stands still as well, beside the mean of what it follows. In float32 it would be where it is."""
    average = torch.ones(64).bfloat16()
    for turn in range(20):
        average.lerp_(1 + 0.05 * normal(64, seed=turn), 0.01)
    return average


def merged() -> torch.Tensor:
    weight = WEIGHT.clone()
    weight.add_(UPDATE)  # fault
    return weight


def test_each_kind_is_found() -> None:
    finds(count, "absorption", says="additions left at least half of the elements unchanged; the accumulator is ")
    finds(updates_in_place, "absorption", says="4 updates left at least half of the elements unchanged, though the average is 50% from")
    finds(stored_again, "absorption", says="0% of what 16 updates in a row should add arrived")
    finds(difference_taken_off, "absorption", says="0.001 of the difference is less than half a spacing of float16 there")
    finds(merged, "absorption", says="89% of what is added is lost: 89% of the elements do not change")


def test_each_kind_is_found_at_its_limits() -> None:
    assert [judged(kind) for kind in (STUCK, FROZEN, MERGED)] == [[("absorption", 1)]] * 3


@pytest.mark.parametrize("change", [
    {"share": 0.49},
    {"times": absorption.TIMES - 1},
    {"drift": below(absorption.ROUNDINGS * U)},
    {"intended": below(absorption.INTENDED * U)},
    {"arrived": 1.0},
], ids=lambda change: next(iter(change)))  # fmt: skip
def test_a_sum_that_falls_short_of_any_limit_is_let_be(change: dict[str, Any]) -> None:
    assert judged(dataclasses.replace(STUCK, **change)) == []


@pytest.mark.parametrize("change", [
    {"additions": int(absorption.UPDATES) - 1},
    {"arrived": absorption.LOST_UPDATE},
    {"intended": below(absorption.INTENDED * U)},
], ids=lambda change: next(iter(change)))  # fmt: skip
def test_updates_that_fall_short_of_any_limit_are_let_be(change: dict[str, Any]) -> None:
    assert judged(dataclasses.replace(FROZEN, **change)) == []


@pytest.mark.parametrize("change", [
    {"share": 0.49},
    {"times": absorption.TIMES - 1},
    {"times": absorption.TIMES - 1, "additions": absorption.TIMES - 1},
    {"arrived": absorption.LOST_UPDATE},
    {"intended": below(absorption.ROUNDINGS * U * RATE * absorption.TIMES)},
    {"steady": below(absorption.STEADY)},
], ids=lambda change: "-".join(change))  # fmt: skip
def test_an_average_that_falls_short_of_any_limit_is_let_be(change: dict[str, Any]) -> None:
    assert judged(STARVED, "lerp_.Scalar", scalars=(RATE,)) == [("absorption", 1)]
    assert judged(dataclasses.replace(STARVED, **change), "lerp_.Scalar", scalars=(RATE,)) == []


@pytest.mark.parametrize("facts", [
    {"name": "add_.Tensor"}, {"scalars": ()}, {"phase": "backward"}, {"in_optimizer": True}, {"name": "lerp.Scalar"},
], ids=lambda facts: next(iter(facts)))  # fmt: skip
def test_only_an_average_with_a_known_rate_is_kept_from_what_it_follows(facts: dict[str, Any]) -> None:
    assert judged(STARVED, **({"name": "lerp_.Scalar", "scalars": (RATE,)} | facts)) == []


def test_an_average_of_noise_may_stand_still() -> None:
    passes(level_of_noise)


@pytest.mark.parametrize(("facts", "accused"), [({}, True), ({"name": "add.Tensor"}, False), ({"phase": "backward"}, False)])
def test_only_what_is_written_in_place_and_forward_has_updates(facts: dict[str, Any], accused: bool) -> None:
    assert bool(judged(FROZEN, **facts)) is accused


def gradients_added_up() -> nn.Parameter:
    weight = nn.Parameter(torch.ones(64).bfloat16())
    for _ in range(300):
        weight.float().sum().backward()
    return weight


class Summing(torch.optim.Optimizer):
    """Keeps the sum of all gradients."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                total = self.state[weight].setdefault("total", torch.zeros_like(weight))
                total.data.add_(weight.grad)


def summed_by_an_optimizer() -> object:
    weight = nn.Parameter(torch.ones(64).bfloat16())
    weight.grad = torch.ones(64).bfloat16()
    optimizer = Summing([weight], {})
    for _ in range(300):
        optimizer.step()
    return optimizer


@pytest.mark.parametrize(("program", "phase"), [(gradients_added_up, "backward"), (summed_by_an_optimizer, "optimizer")])
def test_a_sum_is_judged_wherever_it_is_made(program: Callable[[], Any], phase: str) -> None:
    """Autograd's own accumulation, an optimizer's state."""
    (finding,) = watched(program).errors
    assert (finding.rule, finding.phase, finding.op) == ("absorption", phase, "aten.add_.Tensor")


def stepped() -> nn.Parameter:
    weight = nn.Parameter(torch.ones(64).bfloat16())
    weight.grad = torch.ones(64).bfloat16()
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    for _ in range(20):
        optimizer.step()
    return weight


def test_weights_in_an_optimizer_are_judged_by_their_whole_step() -> None:
    (finding,) = watched(stepped).errors
    assert finding.rule == "lost-update"


@pytest.mark.parametrize("kind", [STUCK, FROZEN, MERGED])
def test_so_are_they_at_each_limit(kind: Absorbed) -> None:
    assert judged(kind, phase="optimizer", in_optimizer=True, parameter=1) == []


@pytest.mark.parametrize("change", [
    {"share": 0.5},
    {"lost": absorption.LOST_UPDATE},
    {"intended": U},
    {"additions": 2},
], ids=lambda change: next(iter(change)))  # fmt: skip
def test_a_merge_that_mostly_arrives_is_let_be(change: dict[str, Any]) -> None:
    assert judged(dataclasses.replace(MERGED, **change)) == []


def added_to_a_new_tensor() -> torch.Tensor:
    return WEIGHT + UPDATE


def scaled_a_little() -> torch.Tensor:
    return WEIGHT.clone().mul_(1.0005)


def added_by_a_hook() -> nn.Parameter:
    weight = nn.Parameter(torch.ones(64).bfloat16())
    product = weight * 2
    product.register_hook(lambda gradient: (WEIGHT.clone().add_(UPDATE) * 0)[0] + gradient)
    product.float().sum().backward()
    return weight


LAYER = nn.Parameter(WEIGHT.clone())
DOWN, UP, TOKENS = 2e-4 * normal(64, 4, seed=2), normal(4, 64, seed=3), normal(8, 64, seed=4)


def merged_into_a_weight() -> torch.Tensor:
    whole = LAYER + DOWN @ UP  # fault
    return TOKENS @ whole


@pytest.mark.parametrize("program", [added_to_a_new_tensor, scaled_a_little, added_by_a_hook], ids=lambda program: program.__name__)
def test_a_merge_is_one_addition_to_something_kept(program: Callable[[], Any]) -> None:
    passes(program)


def test_a_merge_in_a_step_is_the_optimizers() -> None:
    """By hand: a real step that loses so much is told as a lost update."""
    assert judged(MERGED, phase="optimizer", in_optimizer=True) == []


def merged_into_a_parameter() -> nn.Parameter:
    layer = nn.Parameter(WEIGHT.clone())
    with torch.no_grad():
        layer.add_(UPDATE)  # fault
    return layer


def test_the_cure_of_a_merge_says_how_the_sum_is_kept() -> None:
    """A float32 sum that is stored low again has lost as much."""
    assert finds(merged_into_a_parameter, "absorption").remedy.startswith("keep the weight in float32 from here on")
    assert finds(merged, "absorption").remedy.startswith("make the accumulator float32")


def merged_into_a_cast() -> torch.Tensor:
    weight = WEIGHT.float().bfloat16()
    weight.add_(UPDATE)  # fault
    return weight


def added_to_a_mean() -> torch.Tensor:
    mean = normal(8, 64, 64).mean(0)
    return mean.add_(0.3 * UPDATE)


def added_to_a_product() -> torch.Tensor:
    product = TOKENS @ WEIGHT
    return product.add_(UPDATE[:8])


def test_what_is_merged_into_was_stored_not_computed() -> None:
    finds(merged_into_a_cast, "absorption")
    passes(added_to_a_mean)
    passes(added_to_a_product)


def written_back() -> torch.Tensor:
    layer = nn.Parameter(WEIGHT.clone(), requires_grad=False)
    layer.copy_(layer.float() + DOWN @ UP)  # fault
    return TOKENS @ layer


MASTER = WEIGHT.float()


def written_from_a_master() -> torch.Tensor:
    layer = nn.Parameter(WEIGHT.clone(), requires_grad=False)
    master = layer.float() + DOWN @ UP
    layer.copy_(master)
    return TOKENS @ layer + (master - MASTER).sum()


def written_at_random() -> torch.Tensor:
    layer = nn.Parameter(WEIGHT.clone(), requires_grad=False)
    spacing = 2.0 ** (layer.float().abs().log2().floor() - 7)
    layer.copy_(layer.float() + DOWN @ UP + (torch.rand(64, 64) - 0.5) * spacing)
    return TOKENS @ layer


def written_anew() -> torch.Tensor:
    layer = nn.Parameter(WEIGHT.clone(), requires_grad=False)
    wide = layer.float()
    layer.copy_(wide - wide.mean(1, keepdim=True) * 1e-3)
    layer.copy_(layer.float() / layer.float().norm(dim=1, keepdim=True) * layer.float().norm(dim=1, keepdim=True))
    return TOKENS @ layer


@pytest.mark.parametrize("program", [written_from_a_master, written_at_random, written_anew], ids=lambda program: program.__name__)
def test_a_merge_may_be_a_copy_of_a_sum_into_its_own_term(program: Callable[[], Any]) -> None:
    """Not where the wide sum is kept, rounded at random, or made from the weight alone."""
    finds(written_back, "absorption")
    passes(program)


BIAS = nn.Parameter(normal(64))


def multiplied_from_the_left() -> torch.Tensor:
    return (LAYER + DOWN @ UP) @ TOKENS.t()


def normalised() -> torch.Tensor:
    return nn.functional.layer_norm(LAYER + DOWN @ UP, [64])


def spread_over_a_batch() -> torch.Tensor:
    hidden = DOWN @ UP + BIAS
    return TOKENS @ hidden


def test_a_sum_with_a_parameter_is_a_merge_where_it_is_used_as_a_weight() -> None:
    """All of the parameter, that is: a token or a bias that is spread over a batch is a term of an activation."""
    finds(merged_into_a_weight, "absorption")
    passes(multiplied_from_the_left)
    passes(normalised)
    passes(spread_over_a_batch)


@pytest.mark.parametrize(("size", "accused"), [(15, False), (16, True)])
def test_a_few_numbers_are_too_few_for_a_share(size: int, accused: bool) -> None:
    graph = Graph()
    graph.op("add_.Tensor", given(), given(), absorbed=MERGED, in_place=True, makes={"shape": (size,)})
    assert bool(accused_by(graph)) is accused


def test_the_message_has_the_number_that_is_beyond_its_limit() -> None:
    graph = Graph()
    graph.op("add.Tensor", given(), absorbed=dataclasses.replace(STUCK, drift=above(0.25)))
    graph.op("add_.Tensor", given(), absorbed=FROZEN, in_place=True)
    summed, frozen = graph.found()
    assert "25% off" in summed.message
    assert summed.measured is not None
    assert summed.measured > (summed.limit or 0.0) == absorption.ROUNDINGS
    assert "0% of what 8 updates in a row should add arrived" in frozen.message
    assert frozen.measured is not None
    assert frozen.measured < (frozen.limit or 0.0) == absorption.LOST_UPDATE


def noted(absorbed: Absorbed, name: str = "add_.Tensor", step: int = 1, **facts: Any) -> list[str]:
    graph = Graph()
    graph.op(name, given(), given(), absorbed=absorbed, step=step, **({"in_place": name.partition(".")[0].endswith("_")} | facts))
    return [finding.message for finding in graph.found() if finding.severity == "note"]


FEW = dataclasses.replace(FROZEN, additions=2)
"""An average that has not moved in two updates."""


def test_too_few_additions_are_told_with_the_steps_that_would_tell() -> None:
    (message,) = noted(dataclasses.replace(FEW, intended=absorption.INTENDED * U))
    assert "too few steps to tell whether it stands still: 100% of the elements that 2 updates should have moved did not move" in message
    assert "4 steps would tell" in message  # two additions a step, and eight are needed
    (message,) = noted(dataclasses.replace(FEW, intended=absorption.INTENDED * U / 100))
    assert "100 steps would tell" in message  # by then it was to move by two roundings


def test_a_slow_average_needs_as_long_a_way_as_a_verdict_does() -> None:
    slow = dataclasses.replace(FROZEN, additions=40, intended=absorption.INTENDED * U / 10, steady=0.9)
    (message,) = noted(slow)
    assert "10 steps would tell" in message  # by then it was to move by two roundings
    assert noted(dataclasses.replace(slow, steady=0.2)) == []  # noise has no direction


@pytest.mark.parametrize("change", [{"share": 0.49}, {"arrived": absorption.LOST_UPDATE}, {"intended": 0.0}])
def test_what_moves_is_not_waited_for(change: dict[str, Any]) -> None:
    assert noted(FEW)
    assert noted(dataclasses.replace(FEW, **change)) == []


def slow_averages(*, drifts: bool) -> torch.Tensor:
    """Averages of weights, a factor and an addition each. One of the two weights stands still, or both are noise."""
    weights = [WEIGHT[:8].clone(), WEIGHT[8:16].clone()]
    averages = [weight.clone() for weight in weights]
    for turn in range(6):
        weights[0] = (1.01 + 0.01 * turn) * WEIGHT[:8] if drifts else WEIGHT[:8] * (1 + 0.05 * normal(8, 64, seed=turn))
        for average, weight in zip(averages, weights, strict=True):
            average.mul_(0.9999).add_(weight, alpha=0.0001)
    return averages[0]


def test_slow_averages_of_what_drifts_need_more_steps_and_those_of_noise_none() -> None:
    told = [finding.message for finding in watched(lambda: slow_averages(drifts=True)).findings]
    assert len(told) == 1
    assert "too few steps to tell whether it stands still" in told[0]
    assert watched(lambda: slow_averages(drifts=False)).findings == []


def two_updates() -> torch.Tensor:
    average = torch.ones(64).bfloat16()
    for _ in range(2):
        average.lerp_(torch.full((64,), 1.5).bfloat16(), 0.001)  # fault
    return average


def two_updates_rebound() -> torch.Tensor:
    average = torch.ones(64).bfloat16()
    for _ in range(2):
        average = average.lerp(torch.full((64,), 1.5).bfloat16(), 0.001)
    return average


def two_large_updates() -> torch.Tensor:
    average = torch.ones(64).bfloat16()
    for _ in range(2):
        average.lerp_(torch.full((64,), 1.5).bfloat16(), 0.1)
    return average


def two_factors() -> torch.Tensor:
    average = torch.ones(64).bfloat16()
    for _ in range(2):
        average.mul_(1.0005)
    return average


def test_only_what_is_kept_and_stands_still_is_waited_for() -> None:
    finds(two_updates, "absorption", severity="note", says="100% of the elements that 2 updates should have moved did not move")
    for program in (two_updates_rebound, two_large_updates, two_factors):
        passes(program)


@pytest.mark.parametrize("facts", [{"phase": "backward"}, {"phase": "optimizer", "in_optimizer": True}], ids=str)
def test_autograds_sums_and_optimizers_steps_are_not_waited_for(facts: dict[str, Any]) -> None:
    assert noted(FEW, **facts) == []


def a_few_updates_and_many() -> list[torch.Tensor]:
    averages = [torch.ones(64).bfloat16(), torch.ones(64).bfloat16()]
    for average, times in zip(averages, (2, 30), strict=True):
        for _ in range(times):
            average.lerp_(torch.full((64,), 1.5).bfloat16(), 0.001)  # fault
    return averages


def test_nothing_is_waited_for_on_a_line_that_has_told() -> None:
    finds(a_few_updates_and_many, "absorption")


@pytest.mark.parametrize("handed_on", [lambda h: h.view(8, 8, 64).transpose(0, 1).contiguous(), lambda h: torch.cat([h[:1], h]), lambda h: h])
@pytest.mark.parametrize("given", [True, False])
def test_a_branch_that_begins_small_is_no_update(handed_on: Callable[[torch.Tensor], torch.Tensor], given: bool) -> None:
    """A branch that begins with a scale of 1e-6 is added in place to what it is computed from: to a layer's moved result, or to a block's input."""
    branch = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64)).to(torch.bfloat16)
    layer, x = torch.nn.Linear(64, 64).to(torch.bfloat16), torch.randn(64, 64).bfloat16()

    def residual() -> torch.Tensor:
        hidden = handed_on(x.clone() if given else layer(x))
        hidden += 1e-6 * branch(hidden)
        return hidden

    with torch.no_grad():
        passes(residual)


@pytest.mark.parametrize("widths", [(32, 32, 32, 32), (32, 33, 34, 35)], ids=["of one shape", "of several shapes"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_states_of_several_weights_that_one_line_stores_in_turn(widths: tuple[int, ...], dtype: torch.dtype) -> None:
    """As an average of a model's weights, of which many have one shape. Each is held against what it was itself."""
    weights = [normal(32, width, seed=place).float() for place, width in enumerate(widths)]
    average = [weight.to(dtype) for weight in weights]
    with precheck.watch() as report:
        for _ in range(40):
            weights = [weight + 0.02 for weight in weights]
            average = [(0.998 * held.float() + 0.002 * weight).to(dtype) for held, weight in zip(average, weights, strict=True)]
    if dtype is torch.float32:
        assert not report.findings
    else:
        (found,) = report.errors
        assert found.rule == "absorption"
        assert "updates in a row should add arrived" in found.message


class RunningMoments:
    """Mean and mean square of observations, which are updated in place; `read` makes a number of them."""

    def __init__(self) -> None:
        self.count = 0
        self.mean, self.square = (torch.zeros(32, dtype=torch.bfloat16) for _ in range(2))

    def update(self, observation: torch.Tensor) -> None:
        self.count += 1
        self.mean += (observation - self.mean) / self.count
        self.square += (observation * observation - self.square) / self.count  # culprit

    def read(self) -> torch.Tensor:
        return (self.square - 0.001 * self.mean).sum()


def test_a_number_made_of_a_state_adds_nothing_to_it() -> None:
    torch.manual_seed(0)
    moments = RunningMoments()
    with precheck.watch() as report:
        for _ in range(300):
            moments.update(torch.randn(32).to(torch.bfloat16))
            moments.read()
    blamed = {int(error.source.rpartition(":")[2]) for error in report.errors if error.rule == "absorption"}
    state, read = (method.__code__.co_firstlineno for method in (RunningMoments.update, RunningMoments.read))
    assert blamed == {state + 3}, "the state's own line, and not the line that reads it"
    assert blamed.isdisjoint({read + 1})


def test_a_sum_that_takes_the_place_of_the_last_one_is_accused_though_it_began_in_place() -> None:
    def added(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(32, dtype=torch.bfloat16)
        for _ in range(300):
            total += x
            total = total + x
        return total.sum()

    with precheck.watch() as report:
        added(torch.ones(32, dtype=torch.bfloat16))
    first = added.__code__.co_firstlineno
    assert {(error.rule, int(error.source.rpartition(":")[2])) for error in report.errors} == {("absorption", first + 3), ("absorption", first + 4)}


def test_one_line_is_accused_once_whether_the_model_has_run_before_or_not() -> None:
    model, count = torch.nn.Linear(32, 32), torch.zeros(32, dtype=torch.bfloat16)

    def tick() -> None:
        with torch.no_grad():
            for _ in range(600):
                count.add_(1)

    with precheck.watch() as report:
        tick()
        model(count.float())
        tick()
    (found,) = (error for error in report.errors if error.rule == "absorption")
    assert "the same when called at" in found.message
