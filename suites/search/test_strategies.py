"""What the strategies draw, what that shrinks to, and what they refuse."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, find, given, settings

from precheck import InputError
from precheck.strategies import LAYOUTS, masks, padded, tensors, tokens
from precheck.strategies.layouts import laid

QUICK = settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def first(strategy: Any, wanted: Any) -> Any:
    """The simplest value that is as wanted."""
    return find(strategy, wanted, settings=settings(QUICK, max_examples=500), random=random.Random(0))


@QUICK
@given(tensors((2, (1, 5), 8), dtype=[torch.float16, torch.float8_e4m3fn], magnitude=(2**-3, 2**5)))
def test_tensors_have_the_shape_dtype_and_magnitude_asked_for(value: torch.Tensor) -> None:
    assert value.shape[0] == 2
    assert 1 <= value.shape[1] <= 5
    assert value.shape[2] == 8
    assert value.dtype in (torch.float16, torch.float8_e4m3fn)
    assert float(value.double().abs().max()) <= 32
    assert value.is_contiguous()


def test_tensors_shrink_to_zeros_small_shapes_contiguous_memory_and_a_magnitude_of_one() -> None:
    strategy = tensors(((1, 9), (2, 9)), dtype=[torch.float32, torch.bfloat16], layout="any", outliers=64.0)
    simplest = first(strategy, lambda value: True)
    assert torch.equal(simplest, torch.zeros(1, 2))
    assert simplest.dtype is torch.float32
    assert simplest.is_contiguous()
    assert float(first(strategy, lambda value: bool(value.any())).double().abs().max()) == 1
    large = first(strategy, lambda value: float(value.double().abs().max()) >= 300)
    assert large.shape == (1, 2)
    assert large.float().max() == 512
    assert large.is_contiguous()


def test_a_number_as_magnitude_is_the_largest_element() -> None:
    found = first(tensors((4,), magnitude=300.0), lambda value: bool(value.any()))
    assert found.abs().max() == 300


def test_outliers_are_channels_that_many_times_larger() -> None:
    found = first(tensors((3, 8), magnitude=1.0, outliers=64.0, degenerate=False), lambda value: float(value.abs().max()) == 64)
    assert sorted(found.abs().amax(0).tolist()) == [1.0] * 7 + [64.0]
    assert not _exists(tensors((3, 8), magnitude=1.0), lambda value: float(value.abs().max()) > 1)
    # and never beyond the format
    assert not _exists(tensors((2, 8), dtype=torch.float16, magnitude=2.0**15, outliers=1024.0), lambda value: bool(value.isinf().any()))


@pytest.mark.parametrize(
    "degenerate",
    [
        lambda rows: any(not row.any() for row in rows) and rows.any(),
        lambda rows: any(len(row.unique()) == 1 and row.any() for row in rows) and len(rows.unique()) > 4,
        lambda rows: any(int((row != 0).sum()) == 1 for row in rows) and len(rows.unique()) > 4,
        lambda rows: len(rows.unique(dim=0)) == 2 and len(rows.unique()) > 4,
    ],
    ids=["zero", "constant", "one-hot", "duplicate"],
)
def test_rows_may_be_degenerate(degenerate: Any) -> None:
    assert _exists(tensors((3, 6), magnitude=4.0), lambda value: bool(degenerate(value)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_is_drawn_with_its_strides(layout: str) -> None:
    shape = (2, 3, 4, 5)
    value = first(tensors(shape, layout=layout), lambda value: bool(value.any()))
    expected = {
        "contiguous": (60, 20, 5, 1), "transposed": (60, 20, 1, 4), "channels-last": (60, 1, 15, 3), "strided": (120, 40, 10, 2),
        "offset": (60, 20, 5, 1), "expanded": (0, 20, 5, 1),
    }  # fmt: skip
    assert value.stride() == expected[layout]
    assert value.shape == shape
    assert value.storage_offset() == (1 if layout == "offset" else 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2])
def test_layouts_leave_the_values_of_any_format(dtype: torch.dtype) -> None:
    values = torch.randn(2, 3, 4, 5).to(dtype)
    for layout in LAYOUTS:
        expected = values[:1].expand(values.shape) if layout == "expanded" else values
        assert torch.equal(laid(values, layout).float(), expected.float())
        assert laid(values, layout).dtype is dtype


def test_hypothesis_seed_determines_what_is_drawn() -> None:
    def drawn() -> list[torch.Tensor]:
        values: list[torch.Tensor] = []

        @settings(QUICK, derandomize=True, max_examples=20)
        @given(tensors((2, 4)))
        def collect(value: torch.Tensor) -> None:
            values.append(value)

        collect()
        return values

    one, other = drawn(), drawn()
    assert len(one) == len(other) > 5
    assert all(map(torch.equal, one, other))


def test_tokens_are_whole_numbers_of_the_vocabulary_and_shrink_to_zeros() -> None:
    strategy = tokens(7, (2, (1, 6)), dtype=torch.int32)
    assert torch.equal(first(strategy, lambda value: True), torch.zeros(2, 1, dtype=torch.int32))
    assert _exists(strategy, lambda value: int(value.max()) == 6)
    assert not _exists(strategy, lambda value: bool((value < 0).any() | (value > 6).any()))
    assert _exists(strategy, lambda value: len(value.unique()) > 4)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_where_the_mask_says(side: Any) -> None:
    @QUICK
    @given(padded(tensors((3, 6, 2), magnitude=1.0), pad=9.0, side=side))
    def test(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
        batch, mask = pair
        assert bool(mask.any(-1).all())
        assert torch.equal(batch == 9, ~mask.unsqueeze(-1).expand(batch.shape))
        ordered = mask if side == "right" else mask.flip(-1)
        assert torch.equal(ordered.long().cummin(-1).values, ordered.long())  # nothing real behind padding

    test()
    _, mask = first(padded(tokens(5, (2, 4)), side=side), lambda pair: True)
    assert mask.all()
    assert _exists(padded(tokens(5, (2, 4)), side=side, empty=True), lambda pair: not pair[1].any(-1).all())


def test_masks_shrink_to_masking_nothing_and_mask_a_whole_row_only_if_asked() -> None:
    assert first(masks((2, 3, 3)), lambda mask: True).all()
    assert not _exists(masks((2, 1, 4, 4)), lambda mask: not mask.any(-1).all())
    assert int((~first(masks((2, 4, 4), empty_rows=True), lambda mask: not mask.any(-1).all()).any(-1)).sum()) == 1
    assert _exists(masks((3, 3), kinds="causal"), lambda mask: torch.equal(mask, torch.ones(3, 3).tril().bool()))


def test_padding_masks_are_alike_for_all_queries_of_one_of_the_batch() -> None:
    found = first(masks((3, 2, 4, 5), kinds="padding"), lambda mask: not mask[1].all() and mask[0].all())
    assert len(found[1].view(-1, 5).unique(dim=0)) == 1


def test_masks_of_a_floating_dtype_are_added() -> None:
    found = first(masks((2, 4), kinds="padding", dtype=torch.float16), lambda mask: bool(mask.any()))
    assert found.dtype is torch.float16
    assert set(found.unique().tolist()) == {0.0, -math.inf}
    assert -7.0 in first(masks((2, 4), dtype=torch.float32, fill=-7.0), lambda mask: bool(mask.any()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tensors((0, 3)), r"size 0 in shape=\(0, 3\); pass a whole number from 1"),
        (lambda: tensors(3), r"shape=3; pass sizes"),
        (lambda: tensors(((4, 2),)), r"size \(4, 2\)"),
        (lambda: tensors((2,), dtype=torch.int64), r"dtype=torch.int64; pass a floating dtype, .*tokens\(\)"),
        (lambda: tensors((2,), magnitude=-1.0), r"magnitude=-1.0; pass a positive number"),
        (lambda: tensors((2,), dtype=torch.float16, magnitude=1e5), r"magnitude=100000.0 is more than torch.float16 holds, which is 65504"),
        (lambda: tensors((2,), magnitude=(8.0, 2.0)), r"no power of two lies between"),
        (lambda: tensors((2,), outliers=0.5), r"outliers=0.5; pass how many times larger"),
        (lambda: tensors((2,), layout="nchw"), r"layout='nchw'; pass one of contiguous, transposed"),
        (lambda: tensors((2, 2), layout="channels-last"), r"layout='channels-last' needs 3 dimensions or more, and the shape has 2"),
        (lambda: tokens(0, (2,)), r"vocabulary=0; pass how many tokens there are"),
        (lambda: tokens(300, (2,), dtype=torch.uint8), r"vocabulary=300 is more than torch.uint8 counts"),
        (lambda: tokens(3, (2,), dtype=torch.float32), r"dtype=torch.float32; pass a dtype of whole numbers"),
        (lambda: masks((2, 2), kinds="diagonal"), r"kinds='diagonal'; pass one or several of open, padding, causal, random"),
        (lambda: masks((2, 2), fill=-1e4), r"fill=-10000.0 with a boolean mask"),
        (lambda: masks((4,), kinds="causal"), r"shape=\(4,\) has 1 dimension"),
        (lambda: padded(torch.ones(2, 2)), r"padded\(\) was given a Tensor; pass a strategy"),  # type: ignore[arg-type]
        (lambda: padded(tokens(3, (2, 2)), side="up"), r"side='up'; pass 'right' or 'left'"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_argument_is_refused_at_once(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_without_hypothesis_it_is_said_what_to_install() -> None:
    code = """
import sys
sys.modules["hypothesis"] = None
import precheck
for what in ("from precheck import strategies", "precheck.strategies", "precheck.search(abs, None)"):
    try:
        exec(what)
    except ModuleNotFoundError as error:
        assert "needs hypothesis; install it with: pip install hypothesis" in str(error), error
    else:
        raise AssertionError(what)
from precheck import *  # needs none of it
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def _exists(strategy: Any, wanted: Any) -> bool:
    from hypothesis.errors import NoSuchExample

    try:
        first(strategy, wanted)
    except NoSuchExample:
        return False
    return True
