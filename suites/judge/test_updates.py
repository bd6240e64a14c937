"""Displacement: rounding to nearest that swallows updates is told from stochastic rounding and Kahan summation, which do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hand import normal, record, trace

from precheck.analysis.noise_floor import drift
from precheck.analysis.training import displacements
from precheck.analysis.training.displacements import Displacement
from precheck.findings import Finding
from precheck.precisions import PRECISIONS
from precheck.rules.lost_update.rule import lost_updates

STEPS, SIZE = 60, 2000
Stepper = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def nearest(weights: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    return (weights + delta).bfloat16().float()


def stochastic(weights: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Adds a uniform draw below the bits that bfloat16 drops, and drops them: right on average."""
    bits = (weights + delta).view(torch.int32)
    noise = torch.randint(0, 1 << 16, bits.shape, generator=GENERATOR, dtype=torch.int32)
    return ((bits + noise) & ~0xFFFF).view(torch.float32)


class Kahan:
    """What rounding took is kept, and given to the next step."""

    def __init__(self) -> None:
        self.owed = torch.zeros(SIZE)

    def __call__(self, weights: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        wanted = delta + self.owed
        moved = (weights + wanted).bfloat16().float()
        self.owed = wanted - (moved - weights)
        return moved


GENERATOR = torch.Generator().manual_seed(0)


def rows(step: Stepper, delta: torch.Tensor, *, size: int = SIZE, steps: int = STEPS, dtype: str = "bfloat16") -> list[drift.ComparedTensor]:
    """STEPS updates by `delta` of weights around 1.5, of which bfloat16 rounds away less than 2^-8 = 0.0039."""
    start = (1.5 + 0.2 * normal(size)).bfloat16().float()
    weights = start
    for _ in range(steps):
        weights = step(weights, delta)
    low = record("update", "net.w", weights - start, step=steps, dtype=dtype, weight_norm=float(weights.norm()))
    reference = record("update", "net.w", delta * steps, step=steps)
    return drift.compare(trace(low), trace(reference), drift.Spreads({}, 2), PRECISIONS["bf16-true"])


def displacement(step: Stepper, delta: torch.Tensor, **options: int) -> Displacement:
    return displacements.displacements(rows(step, delta, **options))[0]


SMALL = torch.full((SIZE,), -1e-4)  # a fortieth of half a spacing


def test_rounding_to_nearest_loses_all_of_a_small_update() -> None:
    found = displacement(nearest, SMALL)
    assert found.arrived == 0.0
    assert found.lost


def test_what_is_larger_than_the_spacing_arrives() -> None:
    found = displacement(nearest, torch.full((SIZE,), -0.05))
    assert found.arrived == pytest.approx(1.0, abs=0.1)
    assert not found.lost


def test_kahan_summation_loses_nothing_although_most_single_steps_move_nothing() -> None:
    found = displacement(Kahan(), SMALL)
    # what is still owed after the last step is below half a spacing of each, and comes with both signs
    assert found.arrived == pytest.approx(1.0, abs=0.35)
    assert not found.lost


@pytest.mark.parametrize("attempt", range(5))
def test_stochastic_rounding_is_healthy(attempt: int) -> None:
    GENERATOR.manual_seed(attempt)
    assert not displacement(stochastic, SMALL).lost


def test_the_uncertainty_covers_what_stochastic_rounding_of_few_elements_does() -> None:
    """16 elements, 60 steps of a 1/78 chance each: the arrived share is Poisson with mean 12 and deviation 3.5 in 12."""
    shares = []
    for attempt in range(40):
        GENERATOR.manual_seed(attempt)
        found = displacement(stochastic, torch.full((16,), -1e-4), size=16)
        shares.append(found.arrived)
        assert not found.lost
    assert min(shares) < 0.7  # or the test would prove nothing


def test_half_of_the_weights_unmoved_is_half_arrived() -> None:
    def half(weights: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        return weights + delta * (torch.arange(SIZE) % 4 == 0)

    found = displacement(half, normal(SIZE, seed=3))
    # the inner product of sketches has a deviation of |a||b| sqrt(1/127), which is 0.5 * 0.09 of what it is a share of
    assert found.arrived == pytest.approx(0.25, abs=0.15)
    assert found.uncertainty == pytest.approx(4 * 0.5 / 127**0.5, rel=0.3)


def test_an_update_the_wrong_way_round_is_lost() -> None:
    assert displacement(lambda weights, delta: weights - delta, torch.full((SIZE,), 0.1)).arrived < -0.9


def test_float32_weights_are_judged_only_if_they_did_not_move_at_all() -> None:
    """Their moves differ from the reference's for other reasons than rounding; standing still does not."""
    assert displacements.displacements(rows(nearest, torch.full((SIZE,), -0.05), dtype="float32")) == []
    (finding,) = lost_updates(displacements.displacements(rows(nearest, SMALL, dtype="float32")), {})
    assert "0% of the update of 60 steps arrived: " in finding.message


def test_only_the_last_step_counts() -> None:
    early, late = rows(nearest, SMALL, steps=1), rows(nearest, torch.full((SIZE,), 0.1), steps=2)
    assert [d.record.step for d in displacements.displacements([*early, *late])] == [2]


def test_an_update_of_nothing_is_not_lost() -> None:
    assert lost_updates(displacements.displacements(rows(nearest, torch.zeros(SIZE))), {}) == []


def test_one_finding_names_the_worst_and_counts_the_rest() -> None:
    good = rows(nearest, torch.full((SIZE,), 0.1))
    other = record("update", "net.v", torch.zeros(SIZE), step=STEPS, dtype="bfloat16")
    swallowed = drift.compare(trace(other), trace(record("update", "net.v", SMALL, step=STEPS)), drift.Spreads({}, 2), PRECISIONS["bf16-true"])
    found: list[Finding] = lost_updates(displacements.displacements([*good, *swallowed]), {})
    assert [(f.rule, f.severity, f.phase, f.tensor, f.module, f.step) for f in found] == [
        ("lost-update", "error", "optimizer", "net.v", "net", STEPS)
    ]
    assert f"0% of the update of {STEPS} steps arrived: " in found[0].message
    assert found[0].message.endswith("; 1 of 2 parameters lost more than half")


@pytest.mark.parametrize(("aged", "gone"), [((1.0, 300), False), ((0.1, 300), True)], ids=["arrives", "never"])
def test_few_steps_are_judged_by_what_becomes_of_them(aged: tuple[float, int], gone: bool) -> None:
    """One step of a 78th of a spacing: rounding to nearest and by chance look the same."""
    found = lost_updates(displacements.displacements(rows(nearest, SMALL, steps=1)), {"net.w": aged})
    assert bool(found) is gone
    if gone:
        assert " step arrived, and 10% would arrive after 300 steps: at weights of about" in found[0].message


def turned(size: float) -> list[drift.ComparedTensor]:
    """An update that did not arrive, of a gradient that rounding made another: as large as float32's, times `size`."""
    gradient = normal(SIZE, seed=3)
    low, reference = record("parameter-gradient", "net.w", normal(SIZE, seed=4) * size), record("parameter-gradient", "net.w", gradient)
    found = drift.compare(trace(low), trace(reference), drift.Spreads({low.key: low.norm}, 2), PRECISIONS["bf16-true"])
    return [*rows(nearest, SMALL), *found]


@pytest.mark.parametrize(("arrived", "is_lost"), [(0.0, True), (0.95, False)])
def test_of_a_gradient_that_rounding_turned_the_optimizer_alone_tells(arrived: float, is_lost: bool) -> None:
    (found,) = displacements.displacements(turned(1.0), {"net.w": (arrived, 500)})
    assert (found.arrived, found.lost) == (arrived, is_lost)


def test_nobody_tells_of_a_weight_that_moved_under_such_a_gradient() -> None:
    assert displacements.displacements(turned(1.0)) == []


def test_a_gradient_that_is_nothing_but_rounding_has_nothing_to_lose() -> None:
    assert displacements.displacements(turned(2.0**13), {"net.w": (0.0, 500)}) == []


def elsewhere(size: float, weight: float) -> list[drift.ComparedTensor]:
    """Two steps of Adam by 0.001, of which half go the other way than in float32, of weights of about `weight`. The move is `size` times as large."""
    meant = 2e-3 * normal(SIZE).sign()
    low = record("update", "net.w", size * meant * normal(SIZE, seed=1).sign(), step=2, dtype="bfloat16", weight_norm=weight * SIZE**0.5)
    return drift.compare(trace(low), trace(record("update", "net.w", meant, step=2)), drift.Spreads({}, 2), PRECISIONS["bf16-true"])


def test_a_weight_that_moved_as_far_elsewhere_has_lost_nothing() -> None:
    """The signs of small gradients are chance, and Adam moves each weight by the sign. The optimizer alone tells whether its steps arrive."""
    assert displacements.displacements(elsewhere(1.0, 0.01)) == []
    (found,) = displacements.displacements(elsewhere(1.0, 0.01), {"net.w": (0.98, 500)})
    assert not found.lost
    assert lost_updates([found], {}) == []


@pytest.mark.parametrize(("size", "weight"), [(0.3, 0.01), (0.6, 0.3)], ids=["it hardly moved", "its format drops such steps"])
def test_a_weight_that_hardly_moved_or_whose_format_drops_such_steps_has_lost_them(size: float, weight: float) -> None:
    (found,) = displacements.displacements(elsewhere(size, weight))
    assert found.lost
