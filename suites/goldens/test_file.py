"""The golden file's contents: what goes in comes out, equal content gives equal bytes, and few of them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy
import pytest
import safetensors.numpy
from samples import close, equal, everything, golden, record

from precheck.goldens import file
from precheck.goldens.file import Golden, decode, encode, write
from precheck.observe.recording import sketch

BUDGET = 614  # bytes a tensor: 0.6 KB


def test_what_goes_in_comes_out_in_order() -> None:
    assert equal(decode(encode(everything()), "x"), everything())


def test_a_golden_of_nothing_is_one() -> None:
    assert equal(decode(encode(golden()), "x"), golden())


@pytest.mark.parametrize("scale", [0.0, 5e-324, 1e-310, 1e-45, 1e-30, 1.0, 1e38, 1e300])
def test_a_sketch_keeps_its_digits_at_any_size(scale: float) -> None:
    held = record(scale=scale)
    with numpy.errstate(all="raise"):
        back = decode(encode(golden(held)), "x").records[0].record
    assert close(held.sketch, back.sketch)


def test_the_greatest_numbers_there_are_stay_finite() -> None:
    held = record(sketch=numpy.full(127, -numpy.finfo(numpy.float64).max))
    with numpy.errstate(all="raise"):
        back = decode(encode(golden(held)), "x").records[0].record
    assert numpy.isfinite(back.sketch).all()
    assert close(held.sketch, back.sketch)


def test_small_numbers_beside_a_great_one_lose_less_than_float32_does_of_the_great_one() -> None:
    held = record(sketch=numpy.array([1e300, 1.0] + [1e299] * 125))
    with numpy.errstate(all="raise"):
        back = decode(encode(golden(held)), "x").records[0].record
    assert close(held.sketch, back.sketch)


def test_the_file_expects_sketches_of_the_width_they_are_made_with() -> None:
    assert file._WIDTH == sketch.WIDTH


def test_a_floor_that_is_not_finite_is_unknown() -> None:
    floors = decode(encode(golden(record(), floors={"mixed": math.inf, "true": 1.0})), "x").records[0].floors
    assert math.isnan(floors["mixed"])
    assert floors["true"] == 1.0


def test_a_floor_for_a_placement_that_files_do_not_hold_is_an_error_not_a_loss() -> None:
    with pytest.raises(ValueError, match="mixed, true, not for else"):
        encode(golden(record(), floors={"else": 1.0}))


def test_equal_content_gives_equal_bytes_whatever_the_order_of_its_dicts() -> None:
    turned = Golden(everything().records, dict(reversed(everything().provenance.items())))
    assert encode(turned) == encode(everything())
    assert encode(golden(record(), floors={"true": 1.0, "mixed": 2.0})) == encode(golden(record(), floors={"mixed": 2.0, "true": 1.0}))


@pytest.mark.parametrize("other", [golden(record(seed=1)), golden(record("b")), golden(record(), seed=1), golden(record(), floors={}), golden()])
def test_other_content_gives_other_bytes(other: Golden) -> None:
    assert encode(other) != encode(golden(record()))


def gpt2(layers: int) -> Golden:
    """As many tensors as forward and backward of GPT-2 give, under their names, with numbers at random."""
    modules = ["ln_1", "attn.c_attn", "attn.c_proj", "attn[0]", "ln_2", "mlp.c_fc", "mlp.act", "mlp.c_proj", "mlp"]
    places = [f"transformer.h.{layer}.{module}" for layer in range(layers) for module in modules]
    weights = [f"{place}.{part}" for place in places for part in ("weight", "bias")]
    kinds = [("output", places), ("gradient", places[::-1]), ("parameter-gradient", weights), ("update", weights)]
    noise = iter(range(10**6))
    held = [record(name, kind=kind, seed=(n := next(noise)), zeros=n * 7919 % 977, roundings=n % 3) for kind, names in kinds for name in names]
    return Golden([file.GoldenRecord(each, {"mixed": each.norm / 3, "true": each.norm / 7}) for each in held], golden().provenance)


@pytest.mark.parametrize("layers", [2, 12])
def test_a_tensor_costs_no_more_than_the_budget(layers: int) -> None:
    content = gpt2(layers)
    assert len(content.records) >= 100
    assert len(encode(content)) <= BUDGET * len(content.records)


def test_any_reader_of_safetensors_opens_it(tmp_path: Path) -> None:
    write(tmp_path / "a.safetensors", everything())
    arrays = safetensors.numpy.load_file(tmp_path / "a.safetensors")
    assert arrays["sketches"].shape == (len(everything().records), 127)
    assert arrays["sketches"].dtype == numpy.float32
