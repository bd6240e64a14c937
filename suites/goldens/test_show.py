"""Goldens as text: a table that is fit for a diff, and what moved from one golden to the next, worst first."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy
import pytest
from samples import everything, golden, record

from precheck.analysis.noise_floor.noise import REASSOCIATED
from precheck.goldens.file import Golden, decode, encode
from precheck.goldens.show import STILL, circumstances, describe, difference, show


def moved(name: str, share: float, **facts: Any) -> Any:
    """`record(name)`, moved by `share` of its norm."""
    held = record(name, **facts)
    step = numpy.random.default_rng(99).standard_normal(127)
    return replace(held, sketch=held.sketch + step * (share * held.norm / numpy.linalg.norm(step)))


def whats(before: Golden, now: Golden) -> list[str]:
    return [change.what for change in difference(before, now)]


def rows(text: str) -> list[str]:
    return text.partition("\n\n")[2].splitlines()


def test_it_shows_where_a_golden_comes_from_then_a_row_a_tensor_in_the_order_of_the_run() -> None:
    text = show(everything(), "a.safetensors")
    assert text.startswith("golden a.safetensors\n")
    assert "torch: 2.13.0\n" in text
    assert text.index("seed: 0") < text.index("torch:")
    assert [row.split()[0] for row in rows(text)[1:]] == [each.record.kind for each in everything().records]


def test_a_row_holds_the_facts_of_its_tensor() -> None:
    held = record("head", shape=(4, 8), norm=2.0, amax=1.25, zeros=3, neginf=2, posinf=1)
    header, row = rows(show(golden(held, floors={"mixed": 0.5, "true": math.nan}), "x"))
    assert header.split() == "kind tensor step shape dtype norm amax zeros nonfinite floor mixed floor true".split()
    assert row.split() == ["output", "head", "1", "4x8", "float32", "2", "1.25", "3", "3", "0.25", "nan"]


def test_a_scalar_and_a_floor_that_was_never_sought_have_words_of_their_own() -> None:
    row = rows(show(golden(record(shape=()), floors={}), "x"))[1]
    assert row.split()[3] == "scalar"
    assert row.split()[-2:] == ["-", "-"]


def test_any_name_keeps_to_one_row_and_has_one() -> None:
    shown = [row.split()[1:3] for row in rows(show(golden(record("a\nb"), record("")), "x"))[1:]]
    assert shown == [["a", "b"], ["(model)", "1"]]


def test_a_tensor_of_zeros_is_shown_with_its_floor_as_it_is() -> None:
    assert rows(show(golden(record(scale=0.0), floors={"mixed": 0.0, "true": 0.25}), "x"))[1].split()[-2:] == ["0", "0.25"]


def test_a_diff_shows_the_tensor_that_changed_and_no_other_row() -> None:
    before = golden(record("a"), record("b"), record("c"))
    now = golden(record("a"), record("b", norm=1.23456e-150, shape=(1000, 1000, 1000, 1000)), record("c"))
    a, b = (show(each, "x").splitlines() for each in (before, now))
    assert [place for place, (old, new) in enumerate(zip(a, b, strict=True)) if old != new] == [len(a) - 2]


def test_a_golden_and_what_was_read_back_of_it_differ_in_nothing() -> None:
    back = decode(encode(everything()), "x")
    assert difference(everything(), back) == []
    assert show(back, "x") == show(everything(), "x")


def test_what_counts_as_still_is_what_a_check_counts_so() -> None:
    assert STILL == REASSOCIATED


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1.0, 1e200, 1e300])
@pytest.mark.parametrize(("share", "still"), [(2**-21, True), (2**-19, False)])
def test_a_tensor_has_moved_if_its_distance_is_more_than_float32_may_differ_by(share: float, still: bool, scale: float) -> None:
    if scale == 1e-310 and not still:
        share = 1e-3  # subnormal numbers have no more than 12 digits there
    changes = difference(golden(record("a", scale=scale)), golden(moved("a", share, scale=scale)))
    assert (changes == []) == still
    assert still or math.isclose(changes[0].distance, share, rel_tol=1e-3)


def test_the_worst_comes_first_and_what_only_one_has_before_that() -> None:
    before = golden(record("gone"), *(record(name) for name in "abc"), seed=0)
    now = golden(moved("a", 0.01), moved("b", 0.5), moved("c", 0.1), record("new", step=2), seed=1)
    changes = whats(before, now)
    assert changes[:2] == ["output of gone: gone", "output of new, step 2: new"]
    assert [line.split(":")[0] for line in changes[2:]] == ["output of b", "output of c", "output of a", "seed"]
    assert changes[2].startswith("output of b: moved by 0.5 of its norm (")
    assert changes[-1] == "seed: 0 -> 1"
    assert describe(difference(before, now)).splitlines() == changes


def test_the_same_name_at_another_step_or_of_another_kind_is_another_tensor() -> None:
    before, now = golden(record("a")), golden(record("a"), record("a", step=2), record("a", kind="gradient"))
    assert whats(before, now) == ["output of a, step 2: new", "gradient of a: new"]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"shape": (8, 4)}, "output of a: shape (4, 8) -> (8, 4)"),
        ({"dtype": "float64"}, "output of a: dtype float32 -> float64"),
        ({"neginf": 2}, "output of a: elements NaN, +Inf, -Inf (0, 0, 1) -> (0, 0, 2)"),
        ({"neginf": 0, "posinf": 1}, "output of a: elements NaN, +Inf, -Inf (0, 0, 1) -> (0, 1, 0)"),
    ],
)
def test_another_shape_dtype_or_count_of_infinities_is_a_change_whatever_the_distance(facts: dict[str, Any], said: str) -> None:
    changes = difference(golden(record("a", neginf=1)), golden(record("a", **{"neginf": 1, **facts})))
    assert [(change.what, change.distance) for change in changes] == [(said, math.inf)]


def test_what_was_zero_and_is_not_has_moved_by_more_than_any_share() -> None:
    assert difference(golden(record("a", scale=0.0)), golden(record("a")))[0].distance == math.inf
    assert difference(golden(record("a", scale=0.0)), golden(record("a", scale=0.0))) == []


def test_versions_and_devices_are_told_aside_since_no_value_hangs_on_them() -> None:
    before, now = golden(record("a")), golden(record("a"), torch="2.14.0", cpu="AVX512")
    assert difference(before, now) == []
    assert [change.what for change in circumstances(before, now)] == ["cpu: - -> AVX512", "torch: 2.13.0 -> 2.14.0"]
