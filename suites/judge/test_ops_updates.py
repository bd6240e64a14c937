"""What a watched run's optimizer steps left undone: judged from numbers alone."""

from __future__ import annotations

from typing import Any

import pytest

from precheck.analysis.training import displacements
from precheck.judge.watched_runs import RunJudge
from precheck.observe.shadow.operations import Observation, Operation
from precheck.observe.shadow.training.step_records import OptimizerState, Update
from precheck.rules.lost_update.rule import Unarrived

STEP = Operation(7, "step", "optimizer", "", "train.py:9", 1)


def update(name: str = "net.norm.weight", **given: Any) -> Update:
    """64 weights of about one in bfloat16, after 4 steps of 1e-4 each, of which nothing arrived."""
    settled = {"steps": 4, "common": 0.0, "wanted": 4 * 64 * 1e-8, "arrived": 0.0, "size": 8.0, "sampled": 64, "rated": 4 * 1e-8}
    return Update(name, (64,), "bfloat16", STEP, **(settled | given))


def judged(*seen: Update) -> list[Any]:
    """The updates that did not arrive."""
    return [each for each in said(*seen) if isinstance(each, Unarrived)]


def stalled(*seen: Update) -> list[Any]:
    """The optimizer's states that stand still, or are zero."""
    return [each for each in said(*seen) if not isinstance(each, Unarrived)]


def said(*seen: Update) -> list[Any]:
    return RunJudge().candidates(Observation(updates=list(seen)))


def test_the_message_has_the_numbers_and_the_rate_that_would_do() -> None:
    """At one bfloat16 rounds away less than 2^-8 upwards, 2^-9 downwards: 0.002 is 20 times 1e-4."""
    (found,) = judged(update())
    assert (found.rule, found.severity, found.operation.module, found.tensor) == ("lost-update", "error", "net.norm", "net.norm.weight")
    assert found.message == (
        "net.norm.weight: 0% of the update of 4 steps arrived: at weights of about 1, bfloat16 drops changes smaller than 0.002 to 0.0039, and a "
        "step is about 0.0001 (lr 0.0001; an lr of 0.002 would arrive); 1 of 1 parameter lost more than half"
    )


@pytest.mark.parametrize(("step", "explained"), [(0.0039, True), (0.0077, True), (0.0079, False), (0.1, False)])
def test_what_rounding_does_not_explain_is_asked_of_the_optimizer(step: float, explained: bool) -> None:
    """From twice the longest step that is rounded away, 2^-8 at one."""
    (found,) = judged(update(wanted=4 * 64 * step**2, mass=1.0))
    assert ("so rounding does not explain it: does the optimizer write these weights?" in found.message) is not explained


def test_steps_beyond_the_dead_zone_that_went_elsewhere_are_not_lost() -> None:
    """Adam turns by the signs of a wrong gradient's small elements. All elements move, and the optimizer writes the weights."""
    assert not judged(update(wanted=4 * 64 * 0.1**2, arrived=0.4, moved=64, mass=0.01))


def test_the_worst_is_named_and_the_others_are_counted() -> None:
    found = judged(*(update(f"{number}.weight", arrived=number / 50) for number in (3, 1, 0, 4, 2)), update("well.weight", arrived=1.0))
    assert len(found) == 1
    assert found[0].message.startswith("0.weight: 0%")
    assert found[0].message.endswith("; 5 of 6 parameters lost more than half")


@pytest.mark.parametrize("given", [{"arrived": 0.9}, {"held": True}, {"aged": 0.9, "horizon": 300}, {"gradient_drift": 0.7, "moved": 1},
                                   {"gradient_drift": 0.7, "first_drift": 0.7}, {"wanted": 0.0},
                                   {"held": True, "aged": 0.9, "horizon": 300}], ids=str)  # fmt: skip
def test_what_arrives_or_will_or_never_was_is_not_lost(given: dict[str, Any]) -> None:
    assert judged(update(**given)) == []


def test_few_elements_may_be_unlucky_and_old_ones_not() -> None:
    """Of 4 elements under steps worth an eightieth of a spacing, by chance most often none moves."""
    few = {"sampled": 4, "size": 2.0, "wanted": 4 * 1e-8, "steps": 1, "arrived": 0.15}
    assert judged(update(**few)) == []
    (found,) = judged(update(**few, aged=0.0, horizon=313))
    assert "of 1 step arrived, and 0% would arrive after 313 steps: at weights of about 1," in found.message


@pytest.mark.parametrize(("elements", "lost"), [(64, False), (1024, True)])
def test_chance_reaches_less_far_with_more_elements(elements: int, lost: bool) -> None:
    """A step of 1e-3 on weights of one: by chance 1 ± 4 √(0.0078 / (0.001 n)) arrives, down to -0.4 of 64 elements and to 0.65 of 1024."""
    few = {"sampled": elements, "size": elements**0.5, "wanted": elements * 1e-6, "steps": 1, "arrived": 0.3}
    assert bool(judged(update(**few))) is lost


def test_a_remainder_that_stands_still_itself_holds_nothing() -> None:
    """Kahan's in bfloat16 at a rate of 1e-5."""
    (found,) = judged(update(held=True, arrived=0.6, aged=0.2, horizon=1500))
    assert found.measured == 0.2


def still(**given: Any) -> Update:
    state = {"steps": 20, "arrived": 0.1, "intended": 0.05, "moved": 0.02}
    return update(common=1.0, wanted=1.0, arrived=1.0, states={"exp_avg_sq": OptimizerState(**(state | given))})


def test_a_moment_that_stands_still_is_told_by_name() -> None:
    (found,) = stalled(still(), update(arrived=1.0))
    assert (found.rule, found.measured) == ("lost-update", 0.1)
    said = "optimizer state exp_avg_sq of net.norm.weight: 10% of the change that 20 steps intended arrived: a running average"
    assert found.message.startswith(said)


@pytest.mark.parametrize("given", [{"arrived": 0.6}, {"steps": 7}, {"intended": 0.007}], ids=str)
def test_a_moment_that_moves_or_had_not_far_to_go_is_healthy(given: dict[str, Any]) -> None:
    """0.007 is less than two unit roundoffs of bfloat16, 2^-8 each."""
    assert stalled(still(**given)) == []


def test_the_emptiest_moment_of_each_name_is_told() -> None:
    moments = {"a.weight": {"exp_avg_sq": 0.2}, "b.weight": {"exp_avg_sq": 0.6, "exp_avg": 0.005}}
    seen = [update(name, states={of: OptimizerState(4, 1.0, 1.0, 1.0, share) for of, share in each.items()}) for name, each in moments.items()]
    (found,) = stalled(*seen)
    assert (found.rule, found.measured, found.limit) == ("underflow", 0.6, 0.01)
    assert found.message.startswith("optimizer state exp_avg_sq of b.weight is zero for 60% of its elements, which in float32 are below the smallest")


def test_the_table_has_a_row_a_parameter() -> None:
    (row,) = displacements.table(Observation(updates=[update(aged=0.5, horizon=9)]))
    assert row["parameter"] == "net.norm.weight"
    assert {name: row[name] for name in ("edq", "arrived", "moved", "steps", "rate", "aged", "horizon", "held")} == {
        "edq": 0.0, "arrived": 0.0, "moved": 0, "steps": 4, "rate": 1e-4, "aged": 0.5, "horizon": 9, "held": False,
    }  # fmt: skip
    assert (row["weight"], row["step"], row["dead_zone"]) == (1.0, pytest.approx(1e-4), [2.0**-9, 2.0**-8])
