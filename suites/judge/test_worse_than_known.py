"""Known failures: what is as known, what is worse, and what is left to be known. No model, no pytest."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
from collections.abc import Mapping

import pytest

from precheck.findings import Finding, Report, Row
from precheck.judge.beyond_limits import CLEAR, errors_and_places
from precheck.judge.known_failures import Fault, Known, Observed, Reach, expired, recorded, tightened, worse

TODAY = datetime.date(2026, 11, 21)
NOISE = 1.5


def saw(*faults: Fault, **times: float) -> Observed:
    """`times` by place: forward_a is `forward a`."""
    beyond = {place.replace("__", ".").replace("_", " "): Reach(value, NOISE, value > CLEAR) for place, value in times.items()}
    return Observed(faults, beyond)


DRIFT, OVERFLOW = Fault("accumulated-drift", "forward a", 12.0), Fault("overflow", "forward b", 32.0)
BEFORE = saw(DRIFT, forward_a=4.0, forward_c=2.0)
KNOWN = recorded([], BEFORE)


def test_what_was_recorded_is_as_known_and_stays_as_it_is() -> None:
    assert worse(KNOWN, BEFORE, TODAY) == []
    assert tightened(KNOWN, BEFORE) == KNOWN
    assert recorded(KNOWN, BEFORE) == KNOWN


@pytest.mark.parametrize(
    ("now", "text"),
    [
        (saw(DRIFT, OVERFLOW, forward_a=4.0), "overflow at forward b is new; known is accumulated-drift at forward a"),
        (saw(OVERFLOW, forward_a=4.0), "overflow at forward b is new; known is accumulated-drift at forward a"),
        (saw(Fault("accumulated-drift", "forward z", 4.0)), "accumulated-drift at forward z is new; known is accumulated-drift at forward a"),
        (saw(DRIFT, forward_a=6.1, forward_c=2.0), "forward a is 6.1 times its limit, where 4 is known"),
        (saw(DRIFT, forward_a=math.inf), "forward a is inf times its limit, where 4 is known"),
        (saw(DRIFT, forward_a=4.0, forward_d=1.6), "forward d is 1.6 times its limit, and was within it"),
        (saw(DRIFT, forward_a=4.0, backward_a=1.6), "backward a is 1.6 times its limit, and was within it"),
    ],
)
def test_what_is_worse_is_said_in_words(now: Observed, text: str) -> None:
    assert worse(KNOWN, now, TODAY) == [text]


@pytest.mark.parametrize(
    "now",
    [
        saw(DRIFT, forward_a=5.9, forward_c=2.9),  # within 1.5 of what is known
        saw(DRIFT, forward_a=4.0, forward_d=1.4),  # just beyond the limit, as another machine may have it
        saw(Fault("accumulated-drift", "forward c", 6.0), forward_c=2.0),  # the first place is mended, and the next one is told
        saw(),
    ],
)
def test_chance_and_what_is_better_are_not_worse(now: Observed) -> None:
    assert worse(KNOWN, now, TODAY) == []


class TestCounts:
    """Rules that count."""

    @pytest.mark.parametrize(("rule", "as_known", "more"), [("missing-gradient", 4.0, 5.0), ("decision-flip", 6.0, 6.1)])
    def test_more_of_it_is_worse(self, rule: str, as_known: float, more: float) -> None:
        known = recorded([], saw(Fault(rule, "backward a", 4.0)))
        assert worse(known, saw(Fault(rule, "backward a", as_known)), TODAY) == []
        assert worse(known, saw(Fault(rule, "backward a", more)), TODAY) == [f"{rule} at backward a: {more:g}, where 4 are known"]

    def test_fewer_are_written_down(self) -> None:
        known = recorded([], saw(Fault("missing-gradient", "backward a", 4.0)))
        assert tightened(known, saw(Fault("missing-gradient", "backward a", 3.0)))[0].measured == 3.0

    def test_how_many_elements_overflow_is_no_measure(self) -> None:
        known = recorded([], saw(OVERFLOW))
        assert worse(known, saw(Fault("overflow", "forward b", 3200.0)), TODAY) == []


class TestFamilies:
    """Places of one pattern."""

    def layers(self, number: int, times: float = 2.0) -> Observed:
        return saw(DRIFT, **{f"forward_layers__{place}__norm": times for place in range(number)})

    def test_many_are_written_as_one_and_few_by_name(self) -> None:
        assert list(recorded([], self.layers(4))[0].beyond) == ["forward layers.*.norm"]
        assert list(recorded([], self.layers(3))[0].beyond) == [f"forward layers.{place}.norm" for place in range(3)]
        words = {f"forward layer{place}" for place in range(9)}  # a number that is part of a name stands for no pattern
        assert recorded([], saw(DRIFT, **{word.replace(" ", "_"): 2.0 for word in words}))[0].beyond.keys() == words

    def test_another_one_of_them_is_worse(self) -> None:
        known = recorded([], self.layers(4))
        assert worse(known, self.layers(4, 2.9), TODAY) == []
        told = worse(known, self.layers(5), TODAY)
        assert len(told) == 1
        assert told[0].startswith("forward layers.*.norm: 5 modules are beyond their limits, where 4 are known: forward layers.0.norm, ")

    def test_one_that_is_further_is_worse(self) -> None:
        told = worse(recorded([], self.layers(4)), saw(DRIFT, forward_layers__2__norm=3.1), TODAY)
        assert told == ["forward layers.2.norm is 3.1 times its limit, where 2 is known"]

    def test_those_that_are_mended_are_counted_off(self) -> None:
        left = tightened(recorded([], self.layers(6)), self.layers(5, 1.2))
        assert [(name, family.times, family.modules) for name, family in left[0].beyond.items()] == [("forward layers.*.norm", 1.2, 5)]


class TestMended:
    """What is left to be known."""

    @pytest.mark.parametrize(
        ("now", "left"),
        [
            (saw(), []),
            (saw(forward_b=0.9), []),  # another place
            (saw(forward_a=0.9), ["accumulated-drift"]),  # it passes, and by so little that another machine may have it fail
        ],
    )
    def test_a_fault_is_forgotten_where_it_is_mended_beyond_chance(self, now: Observed, left: list[str]) -> None:
        assert [known.rule for known in tightened(KNOWN, now)] == left

    def test_one_of_two_leaves_the_other_with_the_table(self) -> None:
        known = recorded([], saw(OVERFLOW, DRIFT, forward_b=math.inf, forward_a=4.0))
        left = tightened(known, saw(DRIFT, forward_a=4.0))
        assert [each.rule for each in left] == ["accumulated-drift"]
        assert dict(left[0].beyond) == dict(recorded([], saw(DRIFT, forward_a=4.0))[0].beyond)
        assert worse(left, saw(OVERFLOW, DRIFT, forward_b=math.inf, forward_a=4.0), TODAY)

    @pytest.mark.parametrize(("times", "written"), [(3.0, 4.0), (2.6, 2.6)])
    def test_what_is_lower_beyond_chance_is_lowered(self, times: float, written: float) -> None:
        left = tightened(KNOWN, saw(DRIFT, forward_a=times, forward_c=2.0))
        assert left[0].beyond["forward a"].times == written

    def test_nothing_is_ever_raised_or_added(self) -> None:
        left = tightened(KNOWN, saw(DRIFT, OVERFLOW, forward_a=5.0, forward_c=2.9, forward_d=1.2))
        assert left == KNOWN

    def test_a_fault_that_moved_behind_the_mended_one_is_known_by_its_new_place(self) -> None:
        moved = saw(Fault("accumulated-drift", "forward c", 6.0), forward_c=2.0)
        left = tightened(KNOWN, moved)
        assert [(known.place, known.measured, list(known.beyond)) for known in left] == [("forward c", 6.0, ["forward c"])]


class TestExcused:
    """Places that a closer look found healthy, which hangs on the noise that it was made with."""

    def test_are_not_judged_but_recorded_for_a_run_that_does_not_excuse_them(self) -> None:
        healthy = dataclasses.replace(BEFORE, excused={"backward a": 3.0})
        assert worse(KNOWN, healthy, TODAY) == []
        assert worse(recorded([], healthy), saw(DRIFT, forward_a=4.0, forward_c=2.0, backward_a=4.4), TODAY) == []
        assert worse(recorded([], healthy), saw(DRIFT, forward_a=4.0, backward_a=4.6), TODAY) == [
            "backward a is 4.6 times its limit, where 3 is known"
        ]

    def test_stay_recorded_and_keep_no_fault_alive(self) -> None:
        healthy = dataclasses.replace(BEFORE, excused={"backward a": 3.0})
        known = recorded([], healthy)
        assert tightened(known, healthy) == known
        assert tightened(known, dataclasses.replace(healthy, excused={"backward a": 1.2})) == known
        assert tightened(known, Observed((), {}, {"forward a": 4.0})) == []


class TestDates:
    """`until`."""

    @pytest.mark.parametrize(("until", "over"), [("2026-11-20", True), ("2026-11-21", False), ("2027-01-01", False)])
    def test_the_last_day_is_still_excused(self, until: str, over: bool) -> None:
        known = [dataclasses.replace(KNOWN[0], until=datetime.date.fromisoformat(until))]
        told = [f"accumulated-drift at forward a was known until {until}, which has passed; mend it, or give it another `until`"] if over else []
        assert worse(known, BEFORE, TODAY) == expired(known, BEFORE, TODAY) == told

    def test_what_is_mended_does_not_expire(self) -> None:
        known = [dataclasses.replace(KNOWN[0], until=datetime.date(2020, 1, 1))]
        assert worse(known, saw(), TODAY) == []

    def test_reasons_and_dates_outlast_a_new_recording(self) -> None:
        known = [dataclasses.replace(KNOWN[0], until=datetime.date(2027, 1, 1), reason="#12")]
        again = recorded(known, saw(Fault("accumulated-drift", "forward z", 9.0), OVERFLOW, forward_z=3.0))
        assert [(each.place, str(each.until), each.reason) for each in again] == [("forward z", "2027-01-01", "#12"), ("forward b", "None", "")]


class TestSeen:
    """What is taken from a report."""

    def row(self, tensor: str, r: float, allowed: float = 3.0, kind: str = "output", relative: float = 0.01) -> Row:
        return Row(tensor, kind, 1, (2, 2), "bfloat16", r=r, allowed=allowed, drift=r, floor=1.0, relative=relative, nonfinite=0)

    def of(self, *rows: Row, facts: Mapping[str, object] | None = None, rule: str = "accumulated-drift") -> Observed:
        finding = Finding(rule, "error", "…", phase="forward", module="a", measured=12.0, limit=3.0)
        warning = Finding("headroom", "warning", "…", module="a")
        return errors_and_places(Report(findings=[finding, warning], boundaries=list(rows), facts=dict(facts or {})))

    def test_errors_are_its_faults_and_rows_its_places(self) -> None:
        found = self.of(self.row("a", 12.0), self.row("output", 6.0), self.row("a.weight", 3.3, kind="parameter-gradient"), self.row("b", 1.9))
        assert found.faults == (Fault("accumulated-drift", "forward a", 12.0),)
        assert {place: (reach.times, reach.clear) for place, reach in found.beyond.items()} == {
            "forward a": (4.0, True), "forward": (2.0, True), "backward a": (pytest.approx(1.1), False),
        }  # fmt: skip

    def test_the_worst_tensor_of_a_module_counts_and_small_ones_have_their_luck(self) -> None:
        found = self.of(self.row("a.weight", 6.0, kind="parameter-gradient"), self.row("a.bias", 90.0, allowed=30.0, kind="parameter-gradient"))
        assert found.beyond == {"backward a": Reach(3.0, 15.0, clear=True)}

    def test_what_a_closer_look_excused_and_what_rounding_drowns_are_left_out(self) -> None:
        drowned = self.row("a.bias", 12.0, kind="parameter-gradient", relative=60.0)
        found = self.of(self.row("a", 12.0), drowned, facts={"excused": ["output:a@1"]})
        assert (found.beyond, found.excused) == ({}, {"forward a": 4.0})

    def test_lost_updates_are_places_too(self) -> None:
        report = Report(findings=[Finding("lost-update", "error", "…", phase="optimizer", module="a", measured=0.0, limit=0.5)])
        report.updates = [
            {"parameter": "a.weight", "steps": 4, "arrived": 0.0, "lost": True},
            {"parameter": "b.weight", "steps": 4, "arrived": 0.45, "lost": False},
        ]
        found = errors_and_places(report)
        assert found.beyond == {"optimizer a": Reach(2.0, math.inf, clear=True)}
        report.updates[1] |= {"arrived": 0.1, "lost": True}
        assert worse(recorded([], found), errors_and_places(report), TODAY) == ["optimizer b is 1.8 times its limit, and was within it"]

    def test_it_travels_as_json(self) -> None:
        found = self.of(self.row("a", math.inf), self.row("b", 4.0))
        assert Observed.of(json.loads(json.dumps(dataclasses.asdict(found)))) == found


def test_known_failures_read_as_a_line() -> None:
    assert str(Known("overflow", "forward b", 32.0, datetime.date(2027, 1, 1), "#12")) == "overflow at forward b, until 2027-01-01: #12"
    assert str(Known("overflow", "forward b")) == "overflow at forward b"
