"""`quantised`: torchao's models as they come, and layers written by hand. Rounding is reported; wrong scales, zero points, orders are errors."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import torch
from float8_by_hand import normal
from layers_by_hand import FAULTS, INT8_FAULTS, Int4, Int8, converted, model
from torch import nn

import precheck
from precheck.analysis.quantisation import quantised_layers
from precheck.formats import E2M1, E2M3, E4M3FN, integers, mx, nvfp4, scaled

X = normal(64, 128, seed=3)
SAID = {
    "zero point": "its zero points are wrong", "groups transposed": "its scales are wrong", "nibbles": "neighbouring columns have changed places",
    "halves": "even and odd columns were unpacked as first and second half",
    "scale axis": "its scales are wrong",
    "scale of neighbour": "its scales are wrong", "double": "its scales are wrong",
    "bias scaled": "the bias that it adds is off by 200%",
    "scale stale": "its result is off by .* the kernel, or the scales of its inputs, are wrong",
    "tokens": "its result is off by", "not scaled": "its scales are wrong",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "fault"), [*((Int4, fault) for fault in FAULTS), *((Int8, fault) for fault in INT8_FAULTS)])
def test_a_fault_is_found_in_its_layer_and_said_by_name(kind: type[nn.Module], fault: str) -> None:
    report = precheck.quantised(model(), converted(kind, fault), X)
    assert {error.module for error in report.errors} == {"2"}
    with pytest.raises(AssertionError, match=SAID[fault]):
        report.raise_for_errors()


@pytest.mark.parametrize("kind", [Int4, Int8])
def test_what_is_quantised_well_is_reported_and_no_error(kind: type[nn.Module]) -> None:
    report = precheck.quantised(model(), converted(kind), X)
    assert not report.findings
    assert re.match(r"no errors: 2 quantised layers compared; the coarsest weight is that of [02], \d\d\.\d dB", report.summary())
    rows = report.facts["quantised"]
    assert [row["layer"] for row in rows] == ["0", "2"]
    assert all(row["verdict"] == "rounding" for row in rows)
    assert all((20 < row["weight_db"] < 28) if kind is Int4 else (40 < row["weight_db"] < 48) for row in rows)


def _configurations() -> list[Any]:
    logging.disable(logging.WARNING)
    quantization = pytest.importorskip("torchao.quantization")
    group = quantization.granularity.PerGroup(32)
    return [
        quantization.Int8WeightOnlyConfig(version=2),
        quantization.Int8DynamicActivationInt8WeightConfig(version=2),
        quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=group),
        quantization.IntxWeightOnlyConfig(weight_dtype=torch.int2, granularity=group),
        quantization.Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=group),
        quantization.Float8WeightOnlyConfig(),
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", range(6))
def test_torchaos_models_are_taken_as_they_come(place: int) -> None:
    try:
        config = _configurations()[place]
        low = model().bfloat16()
        pytest.importorskip("torchao.quantization").quantize_(low, config)
        report = precheck.quantised(model(), low, X.bfloat16())
    finally:
        logging.disable(logging.NOTSET)
    assert not report.findings
    assert len(report.facts["quantised"]) == 2


@pytest.mark.filterwarnings("ignore")
def test_a_torchao_model_with_a_scale_of_another_layer_is_found() -> None:
    try:
        config = _configurations()[0]
        low = model().bfloat16()
        pytest.importorskip("torchao.quantization").quantize_(low, config)
        with torch.no_grad():
            low[2].weight.scale.copy_(low[2].weight.scale.flip(0))
        report = precheck.quantised(model(), low, X.bfloat16())
    finally:
        logging.disable(logging.NOTSET)
    assert [error.module for error in report.errors] == ["2"]
    assert "of 64 rows are" in report.errors[0].message


def nf4(weight: torch.Tensor) -> torch.Tensor:
    normal_levels = torch.erfinv(torch.cat([torch.linspace(-0.96, 0.0, 9)[:-1], torch.linspace(0.0, 0.96, 8)])) * 2**0.5
    levels = normal_levels / normal_levels.abs().max()
    blocks = weight.view(-1, 64)
    scale = blocks.abs().amax(1, keepdim=True)
    return (levels[(blocks / scale)[..., None].sub(levels).abs().argmin(-1)] * scale).view(weight.shape)


def affine(weight: torch.Tensor, kind: integers.Integers, columns: int, symmetric: bool) -> torch.Tensor:
    tile = integers.group(columns)
    scale, zero = integers.parameters(weight, kind, tile=tile, symmetric=symmetric)
    return integers.dequantised(integers.quantised(weight, kind, scale, zero, tile), scale, zero, tile)


def two_levels(weight: torch.Tensor) -> torch.Tensor:
    over = nvfp4.tensor_scale(weight.abs().amax())
    return nvfp4.dequantised(*nvfp4.quantised(weight, over=over), over)


INT3 = integers.Integers("int3", -4, 3)
QUANTISERS = {
    "int8": lambda w: affine(w, integers.INT8, -1, True), "int8 tensor": lambda w: affine(w, integers.INT8, -1, False),
    "int4 g128": lambda w: affine(w, integers.INT4, 128, True), "uint4 g32": lambda w: affine(w, integers.UINT4, 32, False),
    "int3 g64": lambda w: affine(w, INT3, 64, True), "e4m3": lambda w: scaled.dequantised(*scaled.quantised(w, E4M3FN)),
    "mxfp8": lambda w: mx.dequantised(*mx.quantised(w, E4M3FN)), "mxfp6": lambda w: mx.dequantised(*mx.quantised(w, E2M3)),
    "mxfp4": lambda w: mx.dequantised(*mx.quantised(w, E2M1)), "nvfp4": two_levels, "nf4": nf4,
}  # fmt: skip
WEIGHTS = {
    "normal": lambda: normal(96, 256) / 16,
    "uniform": lambda: torch.rand(96, 256, generator=torch.Generator().manual_seed(1)) - 0.5,
    "heavy tails": lambda: normal(96, 256) * normal(96, 256, seed=1).abs() ** 1.5,
    "channels of all sizes": lambda: normal(96, 256) * torch.exp2(2 * normal(96, 1, seed=2)) * torch.exp2(normal(1, 256, seed=3)),
    "not centred": lambda: normal(96, 256) + 0.5,
    "sparse": lambda: normal(96, 256) * (normal(96, 256, seed=4) > 0.5),
    "outlier columns": lambda: normal(96, 256) * torch.where(torch.arange(256) % 97 == 5, 30.0, 1.0),
}


@pytest.mark.parametrize("kind", QUANTISERS)
@pytest.mark.parametrize("name", WEIGHTS)
def test_rounding_of_any_format_is_no_misfit(name: str, kind: str) -> None:
    weight = WEIGHTS[name]()
    fit = quantised_layers.fitted(weight, QUANTISERS[kind](weight))
    assert fit.misfit is None, fit


@pytest.mark.parametrize("turned", ["scale", "zero point"])
@pytest.mark.parametrize("kind", [integers.INT8, integers.UINT4])
@pytest.mark.parametrize("name", ["normal", "heavy tails", "not centred"])
def test_scales_and_zero_points_of_the_neighbouring_row_are_told_apart(name: str, kind: integers.Integers, turned: str) -> None:
    weight = WEIGHTS[name]()
    tile = integers.group(-1)
    scale, zero = integers.parameters(weight, kind, tile=tile, symmetric=turned == "scale")
    codes = integers.quantised(weight, kind, scale, zero, tile)
    read = (scale.roll(1, 0), zero) if turned == "scale" else (scale, zero.roll(1, 0))
    fit = quantised_layers.fitted(weight, integers.dequantised(codes, *read, tile))
    assert fit.misfit is not None
    assert fit.misfit.what == turned


def test_models_that_are_not_quantised_are_refused() -> None:
    with pytest.raises(precheck.InputError, match=r"none of the 2 nn\.Linear of original is quantised in model"):
        precheck.quantised(model(), model(), X)
    with pytest.raises(precheck.InputError, match=r"model is an int; pass a torch\.nn\.Module"):
        precheck.quantised(model(), 3, X)  # type: ignore[arg-type]


def test_models_come_back_as_they_were() -> None:
    low = converted(Int4).train()
    low[1].eval()
    precheck.quantised(model(), low, X)
    assert (low.training, low[0].training, low[1].training) == (True, True, False)
