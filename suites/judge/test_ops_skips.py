"""What is said of skipped steps: calibration, growth and oscillation are told apart by count, what no scale mends by its size.

These are the edges of limits. suites/scaler has the same in loops of torch.
"""

from __future__ import annotations

import math

import pytest
from graph import above, below

from precheck.analysis.training import scaling
from precheck.formats import FP16
from precheck.judge.watched_runs import RunJudge
from precheck.observe.shadow.operations import Observation, Operation
from precheck.observe.shadow.training.step_records import Backward, ScalerStep
from precheck.rules.rule import Candidate
from precheck.rules.scaler_skip.rule import IN_A_ROW as MOST_IN_A_ROW

IN_A_ROW = int(MOST_IN_A_ROW)

SCALE = 2.0**16


def operation(name: str = "mul.Tensor", number: int = 1, phase: str = "backward") -> Operation:
    return Operation(number, name, phase, "", f"model.py:{number}", 1)  # type: ignore[arg-type]


def back(room: float, *, overflowed: bool = False, beyond: float = 1.0) -> Backward:
    """A backward pass with that largest safe scale."""
    made = Backward(peak=FP16.max / room, at=operation("mm.default", 7))
    if overflowed:
        made.overflowed, made.beyond, made.parameter = operation(), beyond, "layer.weight"
    return made


def run(skips: str, *, scale: float = SCALE, room: float = SCALE, interval: int = 2000, scaler: int = 1, lost: bool = False) -> list[ScalerStep]:
    """Steps by letter: `x` skipped, `.` taken. The scale halves after each skip, as update() makes it; where a step is skipped there
    was less room than scale.
    """
    steps = []
    for letter in skips:
        skipped = letter == "x"
        made = back(min(room, scale / 2) if skipped and not lost else room, overflowed=skipped and not lost)
        steps.append(ScalerStep(scaler, operation("step", 3, "scaler"), scale, interval, skipped, made))
        scale = scale / 2 if skipped else scale
    return steps


def faults(observation: Observation) -> list[Candidate]:
    return RunJudge().candidates(observation)


def judged(*steps: ScalerStep) -> list[tuple[str, str]]:
    """Rule and severity."""
    return [(suspect.rule, suspect.severity) for suspect in faults(Observation(steps=list(steps)))]


WARNED, FAILED = [("scaler-skip", "warning")], [("scaler-skip", "error")]


def test_no_skips_are_no_finding() -> None:
    assert judged() == judged(*run("." * 50)) == []


@pytest.mark.parametrize("halvings", [1, 2, 8, 24])
def test_a_burst_as_long_as_the_way_down_is_calibration(halvings: int) -> None:
    """⌈log2(S₀/S)⌉ skips lead down to S, and one more is let pass, since S is known from steps before it."""
    first = SCALE * 2.0**halvings
    assert judged(*run("x" * halvings + "." * 50, scale=first)) == []
    assert judged(*run("x" * (halvings + 1) + "." * 50, scale=first)) == []


@pytest.mark.parametrize("room", [SCALE, 0.75 * SCALE, 3.0, 1.01])
def test_the_way_down_is_rounded_up(room: float) -> None:
    """A run that skips that often, all in the first steps, whose least room is `room`."""
    steps = [ScalerStep(1, operation("step"), SCALE * 2.0**-place, 2000, place < 40, back(room, overflowed=place < 40)) for place in range(60)]
    assert scaling.count_of_calibration_steps(steps) == math.ceil(math.log2(SCALE / room)) + 1


def test_beyond_calibration_a_run_of_skips_is_an_error() -> None:
    """Room for the first scale itself, and yet skip after skip: one is calibration's, the next four are let pass, then five are not."""
    def steps(skips: int) -> list[ScalerStep]:
        return [ScalerStep(1, operation("step"), SCALE, 20, place < skips, back(SCALE, overflowed=place < skips)) for place in range(60)]

    assert ("scaler-skip", "error") not in judged(*steps(1 + IN_A_ROW))
    assert judged(*steps(2 + IN_A_ROW)) == FAILED


@pytest.mark.parametrize(("in_a_row", "found"), [(IN_A_ROW, []), (IN_A_ROW + 1, FAILED)])
def test_skips_in_a_row_in_the_steady_state(in_a_row: int, found: list[tuple[str, str]]) -> None:
    """Of 400 steps with growth every 100, 3.96 skips are expected and 8.9 let pass, so that only the row decides."""
    assert judged(*run("." * 200 + "x" * in_a_row + "." * (200 - in_a_row), interval=100)) == found


@pytest.mark.parametrize(("steps", "interval"), [(50, 2000), (2000, 2000), (6000, 2000), (600, 100), (3000, 500)])
def test_skips_apart_are_held_against_growth(steps: int, interval: int) -> None:
    """One more than expected and two standard deviations of that, of a count whose variance is its mean."""
    expected = steps / (interval + 1)
    allowed = math.floor(1 + expected + 2 * math.sqrt(expected))
    apart = steps // (allowed + 2)

    def spread(skips: int) -> list[ScalerStep]:
        letters = ["."] * steps
        for place in range(skips):
            letters[(place + 1) * apart] = "x"
        return [ScalerStep(1, operation("step"), SCALE, interval, each == "x", back(SCALE / 2, overflowed=each == "x")) for each in letters]

    assert judged(*spread(allowed)) == []
    assert judged(*spread(allowed + 1)) == WARNED


@pytest.mark.parametrize(("skips", "found"), [(4, []), (5, []), (6, WARNED)])
def test_growth_that_costs_more_than_a_twentieth_oscillates(skips: int, found: list[tuple[str, str]]) -> None:
    """Growth after every 10 steps explains 1 + 9 + 2·3 skips in a hundred steps, of which a twentieth is five."""
    letters = "." + ("x" + "." * 15) * skips
    assert judged(*run(letters + "." * (100 - len(letters)), interval=10)) == found


def test_three_skips_are_the_least_that_oscillate() -> None:
    assert judged(*run(".." + "x..." * 2, interval=2)) == []
    assert judged(*run(".." + "x..." * 3, interval=2)) == WARNED


def test_a_first_step_that_passes_by_luck_does_not_end_calibration() -> None:
    assert judged(*run(".xxx" + "." * 8)) == []
    assert judged(*run("." * 4 + "xxx" + "." * 8)) == WARNED


@pytest.mark.parametrize(("beyond", "found"), [(below(FP16.max), []), (above(FP16.max), FAILED), (math.nan, [])])
def test_what_overflows_at_a_scale_of_one_is_an_error_at_once(beyond: float, found: list[tuple[str, str]]) -> None:
    step = ScalerStep(1, operation("step"), SCALE, 2000, True, back(1.0, overflowed=True, beyond=beyond))
    assert judged(*run("." * 50), step, *run("." * 50)) == found


def test_each_op_is_told_once_and_in_its_words() -> None:
    steps = [ScalerStep(1, operation("step"), SCALE, 2000, True, back(1.0, overflowed=True, beyond=2e9)) for _ in range(3)]
    (suspect,) = faults(Observation(steps=[*run("." * 9), *steps]))
    assert (suspect.operation.name, suspect.measured, suspect.limit) == ("mul.Tensor", 2e9, FP16.max)
    for piece in ("skipped, as it would be at any loss scale", "2e+09", "65504", "that of layer.weight"):
        assert piece in suspect.message


def test_words_of_too_many() -> None:
    (suspect,) = faults(Observation(steps=run("." * 20 + "xxxxx" + "." * 20)))
    assert suspect.message.startswith("5 of 45 steps skipped after the scale had settled, 5 in a row. ")
    assert "A scale that grows every 2000 steps explains 1;" in suspect.message
    assert "this one went between 2048 and 65536, and the largest safe one is 2^11, by aten.mm.default at model.py:7" in suspect.message


def test_scalers_are_judged_one_by_one() -> None:
    """Five skips in a row of one scaler, taken steps of another between them."""
    spoilt = run("." * 20 + "xxxxx" + "." * 20)
    sound = run("." * 45, scaler=2)
    assert judged(*(step for pair in zip(spoilt, sound, strict=True) for step in pair)) == FAILED


def test_a_beginning_that_is_not_finite_in_float32_either_is_no_calibration() -> None:
    assert judged(*run("xxxx" + "." * 20, room=math.inf, lost=True)) == WARNED


def test_the_table_is_of_the_busiest_scaler() -> None:
    steps = [*run("xx...", scale=2.0**18, interval=500), *run("..", scaler=2)]
    held = scaling.table(Observation(steps=steps))
    assert held == {
        "scale": SCALE, "steps": 5, "skipped": 2, "calibration": 2, "interval": 500, "safe": pytest.approx(SCALE),
        "tightest": "aten.mm.default at model.py:7",
        "history": [[2.0**18, True], [2.0**17, True], [SCALE, False], [SCALE, False], [SCALE, False]],
    }  # fmt: skip
    assert scaling.table(Observation()) == {}


def test_without_float16_gradients_the_table_knows_no_limit() -> None:
    step = ScalerStep(1, operation("step"), SCALE, 2000, False, Backward())
    assert (scaling.table(Observation(steps=[step]))["safe"], scaling.table(Observation(steps=[step]))["tightest"]) == (None, "")


@pytest.mark.parametrize(("scale", "told"), [(1.0, "2^0"), (below(2.0), "2^0"), (2.0, "2^1"), (65536.5, "2^16"), (0.3, "2^-2")])
def test_a_power_is_the_one_that_it_holds(scale: float, told: str) -> None:
    assert scaling.power_of_two_in_words(scale) == told
