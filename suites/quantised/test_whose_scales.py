"""Whose scale a result lacks, codes beside the data that they stand for, and integers under a number that is written down."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from float8_by_hand import E4M3, LOW, normal
from frozen import watched
from more_healthy import HEALTHY

import precheck


def errors(program: Callable[[], torch.Tensor]) -> list[str]:
    with precheck.watch() as report:
        program()
    return [f"{error.rule}: {error.message}" for error in report.errors]


def product(borrowed: bool) -> torch.Tensor:
    """Rows in float8 under scales of their own, times a weight under one scale. The scales are multiplied before they are multiplied by."""
    x, w, other = normal(16, 64), normal(24, 64, seed=1), normal(24, 64, seed=2) * 3
    sx, sw = x.abs().amax(1, keepdim=True) / 448, w.abs().amax() / 448
    sums = (x / sx).to(E4M3).float() @ (w / sw).to(E4M3).float().t()
    return (sums * (sx * (other.abs().amax() / 448 if borrowed else sw))).to(LOW)


def test_a_scale_of_another_tensor_is_told_by_what_it_is_made_of() -> None:
    (message,) = errors(lambda: product(True))
    assert "are multiplied by another tensor's scale: the whole result is" in message
    assert not errors(lambda: product(False))


@pytest.mark.parametrize("twice", [True, False])
def test_a_scale_that_is_multiplied_by_twice_is_told(twice: bool) -> None:
    """The scale of a product's inputs is multiplied by, and is in a factor with that of the weight too (vllm-project/vllm-ascend#16728)."""

    def dequantised() -> torch.Tensor:
        x, w = normal(16, 64), normal(32, 64, seed=1)
        sx, sw = x.abs().amax() / 127, w.abs().amax(1) / 127
        sums = torch.round(x / sx) @ torch.round(w / sw[:, None]).t()
        return torch.tanh((sums * sx if twice else sums) * (sx * sw))

    found = errors(dequantised)
    assert bool(found) == twice
    assert not twice or "is multiplied by once more than it was divided by: the whole result is" in found[0]


def test_codes_over_their_own_greatest_number_need_no_scale() -> None:
    def normalised() -> torch.Tensor:
        codes = torch.round(normal(64, 64) * (127 / normal(64, 64).abs().amax())).to(torch.int8).float()
        return torch.softmax(codes / codes.abs().amax(), -1)

    assert not errors(normalised)


@pytest.mark.parametrize("forgotten", [True, False])
def test_what_rounding_leaves_is_in_the_unit_of_the_data(forgotten: bool) -> None:
    def residual() -> torch.Tensor:
        x = normal(64, 64)
        low = x.amin(1, keepdim=True)
        step = (x.amax(1, keepdim=True) - low) / 15
        codes = torch.round((x - low) / step)
        return torch.linalg.svdvals(x - (codes if forgotten else codes * step + low)).to(LOW)

    found = errors(residual)
    assert bool(found) == forgotten
    assert not found or "wrong-scale" in found[0]
    assert not found or "a scale is missing here, that of the codes of" in found[0]


def test_the_error_of_rounding_to_whole_numbers_may_be_kept() -> None:
    def straight_through() -> torch.Tensor:
        scaled = normal(64, 64) / 0.3
        return scaled + (torch.round(scaled) - scaled).detach()

    assert not errors(straight_through)


@pytest.mark.parametrize("first", ["round", "clamp"])
def test_integers_under_a_number_that_is_too_small_are_clipped(first: str) -> None:
    def quantised(least: float) -> torch.Tensor:
        scaled = normal(64, 64) * (127 / least)
        codes = scaled.round().clamp(-127, 127) if first == "round" else scaled.clamp(-128, 127).round()
        return (codes.to(torch.int8).float() * (least / 127)).to(LOW)

    (message,) = errors(lambda: quantised(0.5))
    assert message.startswith("clipping: ")
    assert "the scale does not fit this tensor" in message
    assert not errors(lambda: quantised(4.5))


@pytest.mark.skipif(not torch.tensor(1e4).to(E4M3).float().isfinite(), reason="this torch makes NaN of numbers beyond float8_e4m3fn")
@pytest.mark.parametrize("form", ["one line", "two lines", "a scale of 1"])
def test_a_cast_that_saturates_cuts_off(form: str) -> None:
    """Numbers beyond 448 become 448 in float8_e4m3fn, where older formats have Inf. Numbers within it are only rounded."""

    def cast(size: float) -> torch.Tensor:
        data, weight = normal(64, 64) * size, normal(64, 64, seed=1) / 8
        if form == "one line":
            return data.to(E4M3).float() @ weight
        codes = (data / torch.ones(1) if form == "a scale of 1" else data).to(E4M3)
        return codes.float() @ weight

    (message,) = errors(lambda: cast(500.0))
    assert message.startswith("clipping: ")
    assert "of the elements are clipped, the greatest from 4.58 times the format's largest number" in message
    assert ("it is cast without a scale" in message) == (form != "a scale of 1")
    assert not errors(lambda: cast(50.0))


def test_bytes_of_pictures_and_samples_of_sound_saturate_on_purpose() -> None:
    def saturated() -> torch.Tensor:
        picture = (normal(64, 64) * 255).round().clamp(0, 255).to(torch.uint8).float() / 255
        sound = (normal(64, 64) * 32767).round().clamp(-32768, 32767).to(torch.int16).float() / 32767
        return picture + sound

    assert not errors(saturated)


def test_codes_are_followed_into_places_of_another_tensor() -> None:
    def paged(bug: bool) -> torch.Tensor:
        pages, scales, table = torch.zeros(8, 8, 16, dtype=torch.int8), torch.ones(8, 8, 1), torch.tensor([5, 2, 7])
        keys = normal(3, 8, 16) * torch.exp2(normal(3, 8, 1, seed=1))
        scale = keys.abs().amax(-1, keepdim=True) / 127
        pages[table], scales[table] = torch.round(keys / scale).to(torch.int8), scale.roll(1, 0) if bug else scale
        return torch.softmax(normal(4, 16, seed=2) @ (pages[table].float() * scales[table]).view(24, 16).t(), -1)

    assert "these scales do not cancel" in errors(lambda: paged(True))[0]
    assert not errors(lambda: paged(False))


@pytest.mark.parametrize("program", HEALTHY, ids=lambda program: program.__name__)
def test_scales_that_cancel_in_another_way_are_left_in_peace(program: Callable[[], torch.Tensor]) -> None:
    assert not watched(lambda _: program(), False).findings
