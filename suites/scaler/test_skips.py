"""Skipped steps: calibration and growth go unsaid; what no loss scale mends is named, and what spoils the loss is told apart."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from bugs.loops import Loop, told, watched
from counting import Training, at, line_with
from spoiling import ROOM, TOO_STEEP, of, trained, truly_overflowing
from torch import nn
from towers import Tower


@pytest.mark.parametrize("start", [16, 24, 40])
def test_a_burst_is_calibration(start: int) -> None:
    """A skip for each halving down to the room there is, whatever the first scale."""
    report = watched(lambda: trained(40, scale=2.0**start))
    assert not told(report), report.summary()
    assert math.floor(math.log2(report.scaler["safe"])) == ROOM
    assert report.scaler["skipped"] == report.scaler["calibration"] == start - ROOM
    assert report.scaler["scale"] == 2.0**ROOM


def test_a_run_that_ends_before_the_scale_has_settled_says_so() -> None:
    """Nine skips come down to the room there is, so that the tenth step arrives."""
    report = watched(lambda: trained(4, scale=2.0 ** (ROOM + 9)))
    assert not told(report), report.summary()
    (note,) = of(report, "scaler-skip")
    assert (note.severity, note.measured) == ("note", 4)
    assert "all 4 steps skipped, so no weight has moved" in note.message
    assert f"the largest safe one is 2^{ROOM}, by " in note.message
    assert "; 10 steps would tell more" in note.message
    assert not of(watched(lambda: trained(10, scale=2.0 ** (ROOM + 9))), "scaler-skip")


@pytest.mark.parametrize(("start", "steps"), [(24, 12), (40, 28)])
def test_a_burst_of_a_gpt_is_calibration(start: int, steps: int) -> None:
    report = Training(steps, scale=2.0**start).run()
    assert not told(report), report.summary()
    assert start - 18 <= report.scaler["skipped"] <= start - math.floor(math.log2(report.scaler["safe"])) + 1  # its room is 2^17 or 2^18


def test_as_many_steps_as_an_interval_has() -> None:
    report = watched(lambda: trained(400, scale=2.0**ROOM, growth=400))
    assert not told(report), report.summary()
    assert report.scaler["steps"] == report.scaler["interval"] == 400
    assert report.scaler["skipped"] <= 1


def test_growth_every_fifty_steps() -> None:
    """After each fifty steps without a skip the scale doubles, and is found too large: one skip in 51, six at most."""
    report = watched(lambda: trained(300, scale=2.0**ROOM, growth=50))
    assert not told(report), report.summary()
    assert 1 <= report.scaler["skipped"] <= 6


def test_what_no_scale_mends_is_named_in_forty_steps_of_a_gpt() -> None:
    training = Training(40, at(24, slope=TOO_STEEP))
    report = training.run()
    assert [place for place, (_, skipped) in enumerate(report.scaler["history"]) if skipped] == [24]
    (finding,) = of(report, "scaler-skip")
    assert (finding.severity, finding.phase, finding.module, finding.step) == ("error", "backward", "layers.1.place", 25)
    assert finding.op == "aten._to_copy.default"
    assert finding.source.endswith(line_with("too steep"))
    for piece in ("skipped, as it would be at any loss scale", f"{finding.measured:.3g}", "the largest float16, 65504", "that of layers.1.up."):
        assert piece in finding.message
    assert finding.measured is not None
    assert finding.limit == 65504 < finding.measured < TOO_STEEP  # the scale is divided out: it is no part of the fault
    assert not [each for each in report.errors if each.source != finding.source], report.summary()
    assert report.scaler["safe"] < 1
    assert training.losses[-1] < training.losses[24] < training.losses[0]  # it learns on both sides of the step that was skipped


def test_what_only_the_scale_makes_is_halved_away() -> None:
    """65536 is within the room there is, and a thousand times too large at one step: one skip, no error, no warning."""
    report = Training(14, at(9, slope=2.0**12)).run()
    assert not told(report), report.summary()
    assert [place for place, (_, skipped) in enumerate(report.scaler["history"]) if skipped] == [9]
    assert report.scaler["scale"] == 2.0**15
    assert 1 < report.scaler["safe"] < 2.0**16


def test_a_forward_overflow_is_named_where_it_is() -> None:
    report = Training(14, at(9, factor=1e6)).run()
    (finding,) = report.errors
    assert (finding.rule, finding.severity, finding.phase, finding.module, finding.step) == ("overflow", "error", "forward", "layers.1.place", 10)
    assert finding.source.endswith(line_with("too large"))
    assert (report.scaler["skipped"], report.scaler["scale"]) == (1, 2.0**15)


def layered() -> None:
    """At one step two slopes: of 2^12, which the scale alone makes too much, and behind it of 2^50."""
    loop = Loop(scale=2.0**ROOM)
    for step in range(6):
        loop.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = loop.model(loop.x)
        for slope in (2.0**50, 2.0**12) if step == 3 else ():
            wide = out.float() * slope
            out = out + (wide - wide.detach()).to(out.dtype)
        loop.scaler.scale(nn.functional.mse_loss(out.float(), loop.y)).backward()
        loop.step()


def test_what_no_scale_mends_may_lie_behind_what_one_would() -> None:
    report = watched(layered)
    assert report.scaler["safe"] < 1
    assert len(of(report, "scaler-skip")) == 1, report.summary()


@pytest.mark.parametrize("slope", [1.0, 2.0**4])
def test_a_slope_that_the_scale_makes_room_for_is_none(slope: float) -> None:
    report = watched(lambda: truly_overflowing(slope))
    assert not told(report), report.summary()


@pytest.mark.parametrize("spoilt", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_no_matter_of_the_scale(spoilt: float) -> None:
    report = watched(lambda: trained(12, {5: spoilt}))
    (finding,) = told(report)
    assert (finding.rule, finding.severity, finding.step, finding.measured, finding.limit) == ("scaler-skip", "warning", 6, 1.0, 0.0)
    for piece in ("1 of 12 steps skipped", "not finite in float32 either", "the loss or the data are at fault"):
        assert piece in finding.message
    assert report.scaler["skipped"] == 1


def test_of_what_is_finite_in_float32_nothing_else_is_said_under_a_scale_of_one() -> None:
    report = watched(lambda: truly_overflowing(scale=1.0))
    assert report.scaler["skipped"] == 1
    assert not [finding for finding in told(report) if "not finite in float32 either" in finding.message], report.summary()


def test_of_what_is_finite_in_float32_nothing_else_is_said_behind_an_op_that_moves() -> None:
    """One step too steep for its scale, by 2^12, before columns are flipped."""

    def code() -> None:
        slopes = [1.0, 1.0, 1.0, 2.0**12, 1.0, 1.0]
        loop = Loop(scale=2.0**ROOM, model=Tower(lambda x: _steeper(x, slopes.pop(0)).flip(-1), into=4, out=1))
        for _ in range(6):
            loop.backward()
            loop.step()

    report = watched(code)
    assert report.scaler["skipped"] == 1
    assert not told(report), report.summary()


def _steeper(x: torch.Tensor, slope: float) -> torch.Tensor:
    wide = x.float() * slope
    return x + (wide - wide.detach()).to(x.dtype)


def test_data_that_are_not_finite_are_no_matter_of_the_scale() -> None:
    def code() -> None:
        loop = Loop()
        for step in range(8):
            kept = loop.x.clone()
            if step == 5:
                loop.x[0, 0] = math.nan
            loop.backward()
            loop.step()
            loop.x = kept

    report = watched(code)
    assert not report.errors, report.summary()
    assert "not finite in float32 either" in of(report, "scaler-skip")[0].message


def test_a_spike_in_each_of_six_steps_is_an_error_and_in_one_it_is_not() -> None:
    """1e4 times the loss is nine halvings too much; growth cannot explain six skips one after another, calibration has ended."""
    report = watched(lambda: trained(20, dict.fromkeys(range(5, 11), 1e4)))
    (finding,) = told(report)
    assert (finding.rule, finding.severity, finding.measured) == ("scaler-skip", "error", 6.0)
    for piece in ("6 of 20 steps skipped after the scale had settled, 6 in a row", "grows every 2000 steps explains 1",
                  "this one went between 16 and 1024", "the largest safe one is 2^", ", by aten."):  # fmt: skip
        assert piece in finding.message
    assert not told(watched(lambda: trained(20, {5: 1e4})))


@pytest.mark.parametrize(("growth", "severities"), [(1, ["warning"]), (4, ["warning"]), (2000, [])])
def test_a_scale_that_grows_too_often_oscillates(growth: int, severities: list[str]) -> None:
    report = watched(lambda: trained(60, scale=2.0**ROOM, growth=growth))
    assert [(finding.rule, finding.severity) for finding in told(report)] == [("scaler-skip", severity) for severity in severities]
    every = "step" if growth == 1 else f"{growth} steps"
    for finding in told(report):
        for piece in (f"steps skipped: the scale grows every {every} beyond what is safe, 2^1", "the default growth_interval is 2000"):
            assert piece in finding.message
        assert finding.measured is not None
        assert finding.measured > 0.05 == finding.limit


def test_what_the_report_holds() -> None:
    report = watched(lambda: trained(20, scale=2.0**18, growth=500))
    held = report.scaler
    assert set(held) == {"scale", "steps", "skipped", "calibration", "interval", "safe", "tightest", "history"}
    assert (held["scale"], held["steps"], held["skipped"], held["calibration"], held["interval"]) == (2.0**ROOM, 20, 3, 3, 500)
    assert 2.0**ROOM <= held["safe"] < 2.0 ** (ROOM + 1)
    assert held["tightest"].startswith("aten.mm.default at ")
    assert held["history"] == [[2.0**18, True], [2.0**17, True], [2.0**16, True], *[[2.0**15, False]] * 17]
    assert all(after[0] <= before[0] for before, after in itertools.pairwise(held["history"]))


def test_a_block_without_a_scaler_holds_nothing() -> None:
    assert watched(lambda: Loop().loss().backward()).scaler == {}
