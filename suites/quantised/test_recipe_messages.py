"""What is said of faults in recipes by hand, and what must not end the search for them."""

from __future__ import annotations

import re
from types import ModuleType

import eighth_recipes
import fifth_recipes
import float8_by_hand
import ninth_layers
import ninth_recipes
import pytest
import second_recipes
import seventh_recipes
import sixth_recipes
import torch
from float8_by_hand import normal
from frozen import watched

import precheck

BATCHES = (second_recipes, fifth_recipes, sixth_recipes, seventh_recipes, eighth_recipes, ninth_recipes, ninth_layers)
SAID = {
    "junk_in_the_workspace": r"this scale was made for numbers \d\d times as large as the greatest of this tensor, so half of the bits "
    r"of each code are 0: this loses 5\d% of the tensor, and a scale of its own would lose 0\.8\d%",
    "random_bits_too_low": r"a mean of 0\.4\d steps towards zero, .*: noise was added, and carries into the bits that are kept less often than it",
    "probabilities_flushed": r"8\d% of these numbers become zero in float8_e4m3fn, and 2\d% of the sum of all is lost: multiply by a scale first",
    "bytes_of_the_other_format": r"decoded here from the codes of .*sixth_recipes.py:\d+ is not the data that was rounded there, in any order: it is "
    r"off by \d\d%, and rounding explains 5\.\d%\. Look at",
    "saturates_too_early": r"12% of the elements become the format's largest number, though none is greater than that: this loses 2\d% of the tensor",
    "seed_reused": r"64 calls round stochastically with the same random numbers: the sum of their errors is 7\.\d times as large as",
    "descale_dropped": r"a scale is missing here, that of the codes of .*fifth_recipes.py:\d+ or of the tensor that they are multiplied with: "
    r"what reads the result gets numbers 20\.\d+ times as large as they should be",
    "values_under_the_keys_scale": r"are multiplied by another tensor's scale: the whole result is 7\.7\d+ times what it should be, which is "
    "one scale over the other",
    "ranks_saturate": r"2\d% of the elements are clipped, the greatest from 1\.7\d times the format's largest number: "
    r"this loses [12]\d% of the tensor, and rounding loses 2\.\d%; the scale does not fit this tensor",
    "zero_point_in_int8": r"[\d.]+% of the codes of .*fifth_recipes.py:\d+ have wrapped round in int8: compute in a wider integer, or in float32",
    "zeros_of_the_other_version": r"the codes of .*seventh_recipes.py:66 is not the data that was rounded there, in any order: it is off by 20%, "
    r"and rounding explains 7\.7%\. Look at the packing, the zero points and the scales",
    "rows_gathered_raw": r"a scale is missing here, .*: what reads the result gets numbers 106\.7 times as large as they should be",
    "rescaled_too_late": r"5\.5% of the elements are clipped, .*: this loses 70% of the tensor, and rounding loses 0\.82%",
    "scale_floored_at_one": r"made for numbers 58 times as large as the greatest of this tensor, .*: this loses 47% of the tensor",
    "divisor_taken_for_a_factor": r"codes of .*casts_by_hand.py:\d+ is used the wrong way round, .*: the whole result is 2e\+04 times",
    "projections_of_one_scale": r"are multiplied by another tensor's scale: the whole result is 0\.4\d+ times what it should be",
    "residuals_of_codes": r"aten.sub.Tensor .* a scale is missing here, that of the codes of .*eighth_recipes.py:\d+",
    "bias_not_dequantised": r"aten.add.Tensor .* a scale is missing here, that of the codes of .*ninth_recipes.py:\d+",
    "bias_scaled_too_early": r"aten.add.Tensor .* a scale is missing here, that of the codes of .*casts_by_hand.py:\d+",
    "factor_not_in_the_data": r"this scale was made for numbers .* times as large as the greatest of this tensor",
    "greatest_taken_for_a_step": r"was made with the largest number of a format, which is forgotten here .*: the whole result is 127 times",
    "high_bits_of_the_other": r"[\d.]+% of these integers have bits of two different codes of .*ninth_layers.py:\d+, and the others are codes",
    "chance_of_the_octave": r"rounding errors have a mean of 0\.\d+ steps",
    "recomputed_under_the_new_scale": r"are multiplied by another tensor's scale: the whole result is 3 times what it should be",
    "mantissa_leaks": "times these scales make Inf or NaN without any rounding, where the numbers that were quantised make none",
}


@pytest.mark.parametrize("name", SAID)
def test_a_message_says_what_the_fault_is(name: str) -> None:
    batch: ModuleType = next(each for each in BATCHES if hasattr(each, name))
    assert re.search(SAID[name], watched(getattr(batch, name), True).errors[0].message)


def test_integers_that_are_added_to_bits_for_another_reason_are_left_in_peace() -> None:
    with precheck.watch() as report:
        bits = normal(64, 64).view(torch.int32) + torch.arange(4096, dtype=torch.int32).view(64, 64)
        (bits.view(torch.float32) @ normal(64, 8, seed=1)).to(torch.bfloat16)
    assert not report.findings


def test_a_scale_that_lags_behind_numbers_that_become_smaller_wastes_bits_once_and_is_left_in_peace() -> None:
    with precheck.watch() as report:
        scale, outs = normal(256, 64).abs().amax() / 127, []
        for place, size in enumerate((1.0, 0.8, 0.03, 0.3, 0.2)):
            codes = torch.round(normal(16, 64, seed=place) * size / scale).clamp(-128, 127).to(torch.int8)
            outs.append(codes.float() * scale @ normal(64, 8, seed=9))
        torch.cat(outs).to(torch.bfloat16)
    assert not report.findings


def test_half_of_the_calls_must_waste_bits_where_the_bounds_of_the_integers_say_so_too() -> None:
    def errors(*sizes: float) -> list[str]:
        with precheck.watch() as report:
            scale = normal(256, 64).abs().amax() / 127
            for place, size in enumerate(sizes):
                codes = torch.round(normal(16, 64, seed=place) * size / scale).clamp(-128, 127).to(torch.int8)
                (codes.float() * scale @ normal(64, 8, seed=9)).to(torch.bfloat16)
        return [each.rule for each in report.errors]

    assert not errors(1.0, 0.02, 0.03, 0.3, 0.2)
    assert errors(1.0, 0.02, 0.03, 0.03, 0.2) == ["clipping"]


def test_codes_and_scales_share_a_page_of_bytes() -> None:
    """The scale of each row is kept in the four bytes after its codes. It is that of another row, or its own."""

    def program(bug: bool) -> torch.Tensor:
        rows, page = normal(16, 32) * torch.exp2(normal(16, 1, seed=1)), torch.zeros(16, 36, dtype=torch.uint8)
        scale = rows.abs().amax(-1, keepdim=True) / 127
        page[:, :32] = (torch.round(rows / scale) + 128).to(torch.uint8)
        page[:, 32:].view(torch.float32).copy_(scale.roll(1, 0) if bug else scale)
        return (normal(4, 32, seed=2) @ ((page[:, :32].float() - 128) * page[:, 32:].view(torch.float32)).t()).to(torch.bfloat16)

    assert watched(program, True).errors[0].rule == "wrong-scale"
    assert not watched(program, False).findings


def test_a_clamp_of_data_counts_only_where_a_float8_format_ends_there() -> None:
    def report(end: float) -> precheck.Report:
        with precheck.watch() as seen:
            held = (normal(16, 64) * end).clamp(-end, end).to(torch.float8_e4m3fn)
            (held.float() @ normal(64, 8, seed=1)).to(torch.bfloat16)
        return seen

    assert [each.rule for each in report(448.0).errors] == ["clipping"]
    assert not report(6.0).findings


def test_a_zero_point_that_is_cast_to_an_integer_does_not_end_the_search() -> None:
    """Its cast was taken for one to a narrower float. The exception ended the search for the rest of the run."""

    def program(bug: bool) -> torch.Tensor:
        zero = torch.round(normal(64).amin() * 8).to(torch.int8)
        return (float8_by_hand.wrong_axis(bug) + 0 * zero).to(torch.bfloat16)

    assert watched(program, True).errors[0].rule == "wrong-scale"
    assert not watched(program, False).findings


def test_bytes_of_a_picture_may_saturate() -> None:
    """Nothing is dequantised by the scale that the bytes were made with: they are what the program means."""
    with precheck.watch() as report:
        sound = normal(64, 64).abs()
        picture = torch.round(sound / (sound.amax() / 255))
        brighter = (picture + picture.flip(0) + picture.flip(1)).clamp(0, 255)
        ((brighter - 127.5) / 60.0 @ normal(64, 8, seed=1)).to(torch.bfloat16)
    assert float((brighter == 255).float().mean()) > 0.01
    assert not report.findings
