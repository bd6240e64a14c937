"""A tensor beside its shadow: what is sampled stands for the whole, and what must not be missed is looked for everywhere."""

from __future__ import annotations

import math

import pytest
import torch
from beside import normal
from hypothesis import given, settings
from hypothesis import strategies as st

from precheck.observe.shadow.comparing import statistics
from precheck.observe.shadow.comparing.statistics import DOUBTFUL, SAMPLE, apart, compare, finite, norm, ratio, sampled
from precheck.observe.shadow.operations import Value

BF16 = 2.0**-8


def measured(run: torch.Tensor, shadow: torch.Tensor, perturbed: torch.Tensor | None = None, *, low: bool = True) -> Value:
    value = Value(None, tuple(run.shape), "bfloat16", BF16, low, low)
    compare(value, run, shadow, perturbed)
    return value


@pytest.mark.parametrize("columns", [64, 128, 1000, 4096])
def test_a_sample_covers_columns_evenly(columns: int) -> None:
    """A stride that divides a row's length would look at a few columns only, and those would stand for all."""
    rows = 8 * SAMPLE // columns
    numbers = torch.arange(columns).repeat(rows, 1)
    counts = torch.bincount(sampled(numbers), minlength=columns)
    expected = SAMPLE / columns
    assert counts.min() > 0.5 * expected
    assert counts.max() < 2 * expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("odd", [(), (0.0, 1e-9), (math.inf, 1e6), (math.nan, -math.inf), (3e38, 3e38)])
def test_few_elements_are_told_of_as_many_are(dtype: torch.dtype, odd: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """By numpy what torch tells: of a turned matrix, with zeros, Inf and NaN, and squares that leave float32's range."""
    shadow = normal(24, 40).t()
    shadow[0, : len(odd)] = torch.tensor(odd)
    run = (shadow * (1 + 0.3 * normal(40, 24, seed=1))).to(dtype)
    few = measured(run, shadow, low=dtype is not torch.float32)
    monkeypatch.setattr(statistics, "FEW", 0)
    many = measured(run, shadow, low=dtype is not torch.float32)
    for field in ("drift", "norm", "nonfinite", "nans", "beyond", "zeros", "sample_size", "zeroed", "largest_zeroed", "dead"):
        assert getattr(few, field) == pytest.approx(getattr(many, field), rel=1e-5, nan_ok=True), field


@given(
    st.integers(0, statistics.HANDFUL),
    st.sampled_from([torch.bfloat16, torch.float16, torch.float32, torch.float64]),
    st.sampled_from([0.0, 1e-7, 1e-3, 0.3, 3.0]),
    st.sampled_from([(), (0.0, 1e-9), (math.inf, 1e6), (math.nan, -math.inf), (3e38, 3e38), (1e-40, 0.0), (300.0, 301.0)]),
    st.booleans(),
    st.booleans(),
)
@settings(deadline=None, max_examples=300)
def test_a_handful_is_told_of_as_more_are(
    many: int, dtype: torch.dtype, off: float, odd: tuple[float, ...], twinned: bool, handed: bool
) -> None:
    shadow = normal(many).to(torch.float64 if dtype is torch.float64 else torch.float32)
    shadow[: len(odd)] = torch.tensor(odd)[:many]
    run, perturbed = (shadow * (1 + off * normal(many, seed=1))).to(dtype), shadow * (1 + 0.1 * normal(many, seed=2)) if twinned else None
    low = dtype in (torch.bfloat16, torch.float16)
    values = []
    for handful in (statistics.HANDFUL, -1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(statistics, "HANDFUL", handful)
            value = Value(None, (many,), "bfloat16" if low else "float32", BF16 if low else 0.0, low, low)
            compare(value, run, shadow, perturbed, zeros=handed)
            values.append(value)
    few, more = values
    for field in (
        "drift", "norm", "nonfinite", "nans", "beyond", "zeros", "sample_size", "zeroed", "largest_zeroed", "dead", "sensitivity", "perturbed_drift",
        "wholes_moved", "peak",
    ):  # fmt: skip
        assert getattr(few, field) == pytest.approx(getattr(more, field), rel=1e-5, abs=1e-12, nan_ok=True), field


@given(st.lists(st.integers(1, 400), min_size=1, max_size=3), st.integers(0, 2))
@settings(deadline=None, max_examples=60)
def test_a_sample_is_of_the_tensor_and_as_large_as_asked(shape: list[int], turn: int) -> None:
    if math.prod(shape) > 1 << 22:
        shape = shape[:2]
    x = torch.arange(math.prod(shape)).reshape(shape)
    x = x.transpose(0, turn) if turn < len(shape) else x
    taken = sampled(x, 1024)
    assert taken.dim() == 1
    # runs of 16, a prime apart: the prime below n/64 is at least 23/29 of it from 17 on
    assert taken.numel() == x.numel() if x.numel() <= 1024 else 0.9 * 1024 < taken.numel() < 1.35 * 1024
    assert 0 <= int(taken.min()) <= int(taken.max()) < x.numel()
    assert len(set(taken.tolist())) == taken.numel()


def test_a_sample_of_a_view_with_gaps_is_of_the_view() -> None:
    """Of a column what reshape gives is no copy, nor of what is expanded: elements beside them belong to others."""
    others = torch.arange(1 << 18)
    column, expanded = others.view(-1, 2)[:, 1], others[7].expand(512, 512)
    assert set((sampled(column) % 2).tolist()) == {1}
    assert set(sampled(expanded).tolist()) == {7}
    assert len(set(sampled(column).tolist())) == len(sampled(column))


@pytest.mark.parametrize("shape", [(1 << 20,), (1 << 10, 1 << 10), (16, 64, 1 << 10)], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_drift_is_known_from_a_sample(shape: tuple[int, ...], layout: str) -> None:
    """A norm to 0.3 % (one standard deviation: 1/√(2 SAMPLE)), a ratio of two to 0.4 %: four of these here."""
    shadow = normal(*shape)
    run = shadow + 1e-3 * normal(*shape, seed=1)
    if layout == "transposed":
        run, shadow = run.transpose(0, -1), shadow.transpose(0, -1)
    whole = float((run - shadow).norm() / shadow.norm())
    assert measured(run, shadow).drift == pytest.approx(whole, rel=0.016)
    assert measured(run, shadow).norm == pytest.approx(float(shadow.norm()), rel=0.015)


@pytest.mark.parametrize("place", [1, 5_000_000, -2])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_one_bad_element_in_ten_million_is_found(place: int, bad: float) -> None:
    shadow = torch.ones(10_000_000)
    run = shadow.bfloat16()
    shadow[place], run[place] = 70000.0, bad
    value = measured(run, shadow)
    assert (value.nonfinite, value.nans, value.beyond) == (1, int(math.isnan(bad)), 70000.0)
    assert value.drift == 0


def test_what_the_reference_overflows_as_well_is_nobodys_fault() -> None:
    run, shadow = torch.tensor([1.0, math.inf, math.nan]).bfloat16(), torch.tensor([1.0, math.inf, math.nan])
    assert measured(run, shadow).nonfinite == 0


def test_zeros_that_the_shadow_has_not() -> None:
    shadow = torch.tensor([3.0, 4.0, 0.0, 12.0])
    value = measured(torch.tensor([3.0, 0.0, 0.0, 12.0]).bfloat16(), shadow)
    assert value.zeros == 1
    assert value.largest_zeroed == 4.0
    assert value.zeroed == pytest.approx(4 / 13)


@pytest.mark.parametrize("size", [1e-18, 1e-25, 1e-38])
def test_numbers_whose_squares_float32_does_not_hold(size: float) -> None:
    shadow = size * torch.tensor([3.0, 4.0])
    value = measured(torch.tensor([3 * size, 0.0]).bfloat16(), shadow)
    assert value.norm == pytest.approx(5 * size, rel=1e-5)
    assert value.drift == pytest.approx(4 / 5, abs=0.01)
    assert value.zeros == 1


def test_wide_tensors_are_searched_for_zeros_on_request_only() -> None:
    shadow = torch.tensor([3.0, 4.0])
    assert measured(torch.tensor([3.0, 0.0]), shadow, low=False).zeros == 0


@given(st.integers(257, 4000), st.integers(8, 200))
@settings(deadline=None, max_examples=40)
def test_whole_numbers_that_moved(start: int, count: int) -> None:
    """Beyond 256 = 1/u a bfloat16 holds every second integer at most."""
    shadow = torch.arange(start, start + count, dtype=torch.float32)
    moved = shadow.bfloat16().float() != shadow
    value = measured(shadow.bfloat16(), shadow)
    assert value.wholes_moved == int(moved.sum())
    assert value.peak == start + count - 1


def test_fractions_are_no_whole_numbers() -> None:
    shadow = torch.arange(300, 400) + 0.5
    assert measured(shadow.bfloat16(), shadow).wholes_moved == 0


@given(st.floats(0.02, 0.9))
@settings(deadline=None, max_examples=30)
def test_the_share_of_elements_without_a_digit(share: float) -> None:
    shadow = torch.sign(normal(10_000)) * (1 + 0.1 * normal(10_000, seed=1))
    dead = torch.rand(10_000, generator=torch.Generator().manual_seed(2)) < share
    value = measured(torch.where(dead, shadow * 1.5, shadow), shadow)
    assert value.dead == pytest.approx(float(dead.float().mean()), abs=0.002)


def test_a_rounding_kills_nothing() -> None:
    shadow = normal(10_000)
    value = measured(shadow.bfloat16(), shadow)
    assert 0 < value.drift < DOUBTFUL * BF16
    assert value.dead == 0
    assert value.drift == pytest.approx(value.rounded, rel=0.1)


def test_a_twin_says_whether_float32_determines_the_value() -> None:
    shadow = normal(1000)
    run = shadow * (1 + 0.1 * normal(1000, seed=1))
    assert measured(run, shadow, shadow * (1 + 2**-20)).sensitivity < 1e-4
    assert measured(run, shadow, shadow * (1 + 0.1 * normal(1000, seed=2))).sensitivity == pytest.approx(1, rel=0.2)


@pytest.mark.parametrize("shape", [(0,), (0, 4), ()], ids=str)
def test_empty_and_single(shape: tuple[int, ...]) -> None:
    shadow = torch.full(shape, 1 / 3)
    assert measured(shadow.bfloat16(), shadow).drift <= BF16


def test_complex_numbers_are_pairs() -> None:
    shadow = torch.complex(normal(100), normal(100, seed=1))
    run = shadow * (1 + 1e-3j)
    assert measured(run, shadow).drift == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(("part", "whole", "expected"), [(1, 2, 0.5), (0, 0, 0.0), (1, 0, math.inf)])
def test_ratios(part: float, whole: float, expected: float) -> None:
    assert ratio(part, whole) == expected
    assert norm(torch.zeros(0)) == 0.0


def test_nan_where_the_reference_is_infinite_is_one_too_many() -> None:
    """0/0 where the reference divides something by zero; what is infinite on both sides is equal."""
    value = measured(torch.tensor([math.nan, math.inf, 1.0]).bfloat16(), torch.tensor([math.inf, math.inf, 1.0]))
    assert (value.nonfinite, value.nans, value.drift) == (1, 1, 0.0)


class TestFinite:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
    @pytest.mark.parametrize("place", [0, 70_001, -1])
    @pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
    def test_one_element_that_is_not(self, dtype: torch.dtype, place: int, bad: float) -> None:
        healthy, spoilt = normal(100_000).to(dtype), normal(100_000, seed=1).to(dtype)
        spoilt[place] = bad
        assert finite([healthy])
        assert not finite([spoilt])
        assert not finite([healthy, spoilt])

    def test_inf_does_not_hide_behind_its_opposite(self) -> None:
        assert not finite([torch.tensor([math.inf, 1.0, -math.inf])])

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
    def test_a_sum_may_leave_the_format(self, dtype: torch.dtype) -> None:
        great = torch.full((1000,), torch.finfo(dtype).max, dtype=dtype)
        assert not math.isfinite(float(great.sum()))
        assert finite([great])
        assert finite([great, torch.zeros(0, dtype=dtype)])

    def test_of_nothing(self) -> None:
        assert finite([])
        assert finite([torch.zeros(0)])
        assert finite([torch.zeros((), dtype=torch.bfloat16)])


def test_what_a_mask_is_filled_with_hides_no_error() -> None:
    """Beside -3.4e38 the norm of what is left would be nothing, and its error too."""
    shadow = torch.linspace(1.0, 2.0, 64)
    run = shadow.to(torch.bfloat16)
    fill = torch.finfo(torch.bfloat16).min
    plain = measured(run, shadow)
    masked = measured(torch.cat([run, torch.full((64,), fill, dtype=torch.bfloat16)]), torch.cat([shadow, torch.full((64,), fill)]))
    assert (masked.drift, masked.norm) == pytest.approx((plain.drift, plain.norm))


@pytest.mark.filterwarnings("error")
def test_the_error_of_complex_numbers_has_their_imaginary_parts() -> None:
    shadow = torch.tensor([3.0 + 4.0j, 0.0j])
    assert apart(shadow + 0.5j, shadow) == pytest.approx(0.5 * 2**0.5 / 5)
    assert apart((shadow + 0.5j).conj(), shadow.conj()) == pytest.approx(0.5 * 2**0.5 / 5)
