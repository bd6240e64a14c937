"""Drift against its floor, on records made by hand: what is compared, when it has failed, and when nothing can be said."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hand import beside, normal, record, trace

from precheck.analysis.noise_floor import drift, noise
from precheck.analysis.noise_floor.drift import ComparedTensor
from precheck.judge import compared_runs
from precheck.observe.noise import ONE_ROUNDING
from precheck.observe.records import Record
from precheck.precisions import PRECISIONS

DRIFT = "accumulated-drift unstable-reference"
BF16 = PRECISIONS["bf16-true"]
U = 2.0**-8
VALUES = normal(4000)


def rows(low: Record, reference: Record, spread: float = 0.0, precision: str = "bf16-true") -> list[ComparedTensor]:
    return drift.compare(trace(low), trace(reference), drift.Spreads({low.key: spread}, 2), PRECISIONS[precision])


def off_by(floors: float, *, name: str = "a", kind: str = "output", **facts: object) -> ComparedTensor:
    """A row whose drift is that many floors, by the sketch's own measure."""
    error = normal(4000, seed=9)
    reference = record(kind, name, VALUES, **facts)  # type: ignore[arg-type]
    unit = drift.distance(record("output", name, VALUES + error).sketch, reference.sketch)
    floor = ONE_ROUNDING * U * reference.norm
    low = record(kind, name, VALUES + error * (floors * floor / unit), **facts)  # type: ignore[arg-type]
    return rows(low, reference)[0]


def test_r_is_drift_in_floors() -> None:
    row = off_by(2.5)
    assert row.r == pytest.approx(2.5, rel=1e-3)
    assert row.drift == pytest.approx(row.r * row.floor)
    assert row.relative == pytest.approx(2.5 * ONE_ROUNDING * U, rel=1e-3)


@pytest.mark.parametrize(("floors", "failed"), [(0.0, False), (1.9, False), (2.9, False), (3.1, True)])
def test_up_to_three_passes_and_beyond_fails(floors: float, failed: bool) -> None:
    row = off_by(floors)
    assert (row.doubtful, row.failed) == (False, failed)


def test_the_spread_of_the_noise_runs_widens_the_floor() -> None:
    row = off_by(6.0)
    wide = ComparedTensor(row.record, row.reference, row.drift, math.hypot(row.floor, 3 * row.floor), row.allowed)
    assert row.failed
    assert not wide.failed
    assert wide.r == pytest.approx(6 / math.sqrt(10), rel=1e-3)


def test_what_rounding_drowns_is_not_judged() -> None:
    reference = record("gradient", "a", VALUES * 1e-6)
    row = rows(record("gradient", "a", VALUES), reference, spread=reference.norm)[0]
    assert row.r > row.allowed
    assert row.undetermined
    assert not row.failed


def test_excess_nan_fails_even_there() -> None:
    broken = VALUES.clone()
    broken[3] = math.nan
    row = rows(record("gradient", "a", broken), record("gradient", "a", VALUES * 1e-6), spread=1.0)[0]
    assert row.r == math.inf
    assert row.failed


def test_nonfinite_elements_that_the_reference_has_too_are_no_excess() -> None:
    masked = VALUES.clone()
    masked[:100] = -math.inf
    row = rows(record("output", "a", masked), record("output", "a", masked))[0]
    assert (row.excess_nonfinite, row.r, row.failed) == (0, 0.0, False)


def test_zeros_on_both_sides_have_not_drifted() -> None:
    zeros = torch.zeros(50)
    row = rows(record("output", "a", zeros), record("output", "a", zeros))[0]
    assert (row.r, row.relative, row.failed) == (0.0, 0.0, False)


def test_a_tensor_that_is_not_zero_where_the_reference_is_cannot_be_judged_by_share() -> None:
    row = rows(record("output", "a", torch.ones(50)), record("output", "a", torch.zeros(50)))[0]
    assert row.relative == math.inf
    assert row.r > 1e6


def test_only_tensors_of_one_name_and_shape_are_compared_and_inputs_are_not() -> None:
    low = trace(record("output", "a", normal(4)), record("output", "b", normal(4)), record("output", "c", normal(4)),
                record("input", "x", normal(4)), record("output", "empty", normal(0)))  # fmt: skip
    reference = trace(record("output", "c", normal(4)), record("output", "a", normal(2, 2)), record("input", "x", normal(4)),
                      record("output", "empty", normal(0)))  # fmt: skip
    assert [row.record.name for row in drift.compare(low, reference, drift.Spreads({}, 2), BF16)] == ["c"]


def test_weights_kept_low_may_move_by_their_own_rounding() -> None:
    update = record("update", "w", VALUES * 1e-6, step=3, dtype="bfloat16", weight_norm=100.0)
    floor = rows(update, record("update", "w", VALUES * 1e-6, step=3))[0].floor
    assert floor == pytest.approx(ONE_ROUNDING * U * 100.0 * math.sqrt(4), rel=1e-3)  # on entry, and once in each of three steps


def test_float16_gradients_are_judged_in_the_steps_that_the_loss_scale_leaves() -> None:
    tiny = VALUES * 1e-12
    low, reference = record("gradient", "a", tiny), record("gradient", "a", tiny)
    scaled = drift.compared(low, reference, 0.0, PRECISIONS["16-mixed"], samples=2, scale=1024.0)
    plain = drift.compared(low, reference, 0.0, PRECISIONS["16-mixed"], samples=2)
    assert plain.floor == pytest.approx(2.0**-24 * math.sqrt(4000 / 12))
    assert scaled.floor == pytest.approx(plain.floor / 1024, rel=1e-3)


def test_a_result_that_noise_runs_pass_on_has_the_spread_of_what_it_was_cast_from() -> None:
    """`head(x).float()` is a tensor of its own in the low run, and the head's output in a float32 run."""
    reference = trace(record("output", "head", VALUES), record("output", "[logits]", VALUES))
    noises = [trace(record("output", "head", VALUES + 0.01 * normal(4000, seed=seed))) for seed in (3, 4)]
    assert list(drift.spreads(reference, noises)) == ["output:head@1"]
    for each in noises:
        each.same["output:[logits]@1"] = "output:head@1"
    spreads = drift.spreads(reference, noises)
    assert spreads["output:[logits]@1"] == spreads["output:head@1"]
    assert set(drift.independent(reference, noises)) == set(spreads)


def test_spreads_need_every_noise_run() -> None:
    reference = trace(record("output", "a", VALUES), record("output", "b", VALUES))
    first = trace(record("output", "a", VALUES * 1.01), record("output", "b", VALUES * 1.01))
    second = trace(record("output", "a", VALUES * 1.01), record("output", "b", VALUES[:5]))
    spreads = drift.spreads(reference, [first, second])
    assert list(spreads) == ["output:a@1"]
    assert spreads["output:a@1"] == pytest.approx(0.01 * reference.records["output:a@1"].norm, rel=0.2)


def moved_by_noise(together: bool, runs: int = 8) -> list[ComparedTensor]:
    """A tensor that is eight times as far off as noise runs are: in each run all elements move by one random number, or each by its own."""
    exact, draws = record("output", "a", VALUES), torch.Generator().manual_seed(1)
    size = 0.02 * VALUES.square().mean().sqrt()
    steps = [size * torch.randn(1 if together else 4000, generator=draws) * torch.ones(4000) for _ in range(runs)]
    noises = [trace(record("output", "a", VALUES + step)) for step in steps]
    low, reference = trace(record("output", "a", VALUES + 8 * size)), trace(exact)
    spreads, free = drift.spreads(reference, noises), drift.independent(reference, noises)
    return drift.compare(low, reference, drift.Spreads(spreads, runs, independent=free), BF16)


def test_the_limit_is_that_of_as_many_errors_as_the_noise_runs_show() -> None:
    """A loop may add up the rounding of one weight in each turn: its state then has one error, of which eight runs say little."""
    [one], [many] = moved_by_noise(together=True), moved_by_noise(together=False)
    assert one.errors <= 4
    assert many.errors > 100
    assert not one.failed
    assert many.failed
    assert one.allowed == noise.allowed(one.errors, 8) > many.allowed == noise.FAIL


def test_two_noise_runs_do_not_tell_how_many_errors_there_are() -> None:
    (row,) = moved_by_noise(together=True, runs=2)
    assert row.allowed == noise.FAIL


def test_what_a_tensor_rounds_itself_are_errors_of_its_elements() -> None:
    """Where noise runs hardly move it, its own last rounding is most of the floor."""
    low, reference = record("output", "a", VALUES), record("output", "a", VALUES)
    spread = 0.01 * ONE_ROUNDING * U * reference.norm
    row = drift.compared(low, reference, spread, BF16, samples=8, independent=1.0)
    assert row.errors > 40  # the sketch tells no more, and the limit is that of many from 31 on
    assert row.allowed == noise.FAIL


@pytest.mark.parametrize("alone", [True, False])
def test_the_error_of_a_tensor_that_is_one_large_number_is_one_error(alone: bool) -> None:
    """The gradient of a norm's weight, whose one channel is far larger than the others: eight noise runs say little of one number."""
    values = torch.cat([torch.tensor([100.0]), 0.01 * VALUES[:47]]) if alone else 100 * torch.ones(48)
    exact = record("parameter-gradient", "norm.weight", values)
    low = record("parameter-gradient", "norm.weight", values * (1 + 6 * ONE_ROUNDING * U))
    row = drift.compared(low, exact, 0.5 * ONE_ROUNDING * U * exact.norm, BF16, samples=8, independent=2.0)
    assert 4 < row.r < 7
    assert (row.errors <= 2) == alone
    assert row.failed != alone


def test_the_first_failed_row_is_named_and_the_others_counted() -> None:
    found = beside(DRIFT, BF16, [off_by(1.0, name="a"), off_by(4.0, name="b", is_result=True), off_by(9.0, name="c")])
    assert [(f.rule, f.severity, f.tensor, f.module) for f in found] == [("accumulated-drift", "error", "b", "b")]
    said = "output of b: off by 0.66% of its norm under bf16-true, where rounding explains 0.16% (r = 4, 3 allowed)"
    assert found[0].message.startswith(said)
    assert found[0].message.endswith("; 1 more tensor too")


@pytest.mark.parametrize(
    ("row", "severity"),
    [
        ({"kind": "loss", "name": "loss"}, "error"), ({"kind": "parameter-gradient", "name": "a.weight"}, "error"),
        ({"is_result": True}, "error"), ({}, "warning"), ({"kind": "gradient"}, "warning"),
    ],
)  # fmt: skip
def test_drift_that_reaches_nothing_is_a_warning_unless_plain(row: dict[str, object], severity: str) -> None:
    assert [f.severity for f in beside(DRIFT, BF16, [off_by(4.0, **row)])] == [severity]  # type: ignore[arg-type]
    assert [f.severity for f in beside(DRIFT, BF16, [off_by(6.5, **row)])] == ["error"]  # type: ignore[arg-type]


def test_what_was_explained_or_unstable_is_no_error() -> None:
    row = off_by(9.0)
    assert [f.severity for f in beside(DRIFT, BF16, [row], explained={row.record.key})] == ["note"]
    assert [(f.rule, f.severity) for f in beside(DRIFT, BF16, [row], unstable={row.record.key})] == [("unstable-reference", "warning")]
    assert beside(DRIFT, BF16, [off_by(2.9)]) == []


def test_a_float32_run_that_float64_contradicts_is_ill_conditioned() -> None:
    assert [(f.rule, f.severity) for f in beside(DRIFT, PRECISIONS["32-true"], [off_by(9.0)])] == [("unstable-reference", "warning")]


def test_gradients_that_are_not_there() -> None:
    reference = trace(record("parameter-gradient", "a.w", VALUES), record("parameter-gradient", "b.w", VALUES * 0), record("output", "c", VALUES))
    assert beside("missing-gradient", BF16, (), reference, reference) == []
    found = beside("missing-gradient", BF16, (), trace(), reference)
    assert [(f.rule, f.severity, f.module, f.measured) for f in found] == [("missing-gradient", "error", "a", 1.0)]


def test_rows_for_reports_leave_updates_out() -> None:
    table = compared_runs.table([off_by(2.5), off_by(1.0, kind="update", name="w")])
    assert [(row.tensor, row.kind, round(row.r, 1), row.failed) for row in table] == [("a", "output", 2.5, False)]
    assert noise.WARN < table[0].r < noise.FAIL


def endless(floors: float) -> list[ComparedTensor]:
    """A row so many floors off, of which one noise run is NaN."""
    row, values = off_by(floors), VALUES.clone()
    values[0] = math.nan
    noises = [trace(record("output", "a", VALUES)), trace(record("output", "a", values))]
    unknown = drift.floor_unknown(trace(row.reference), noises)
    return drift.compare(trace(row.record), trace(row.reference), drift.Spreads({}, 2, unknown), BF16)


def test_a_noise_run_that_is_not_finite_tells_nothing() -> None:
    (row,) = endless(9.0)
    assert (row.floor_unknown, row.failed, row.doubtful) == (True, False, False)
    (found,) = beside(DRIFT, BF16, [row])
    assert (found.rule, found.severity, found.tensor) == ("unstable-reference", "note", "a")
    assert "It is unknown whether rounding explains that: noise of the size of one rounding makes it Inf or NaN" in found.message


def test_what_is_within_its_limit_needs_no_noise_run() -> None:
    assert beside(DRIFT, BF16, endless(1.5)) == []


def test_what_the_run_itself_makes_infinite_is_an_error_whatever_noise_does() -> None:
    (row,) = endless(1.0)
    infinite = dataclasses.replace(row, record=record("output", "a", VALUES.masked_fill(VALUES > 3, math.inf)))
    assert infinite.failed
