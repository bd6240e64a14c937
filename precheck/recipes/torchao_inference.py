"""torchao's quantised inference in integers and narrow floats, by the configurations that `quantize_` takes. Gradients are not quantised."""

from __future__ import annotations

from precheck.formats.floats import E2M1, E4M3FN
from precheck.formats.whole import INT4, INT8, UINT4
from precheck.recipes.recipe import Quantiser, Recipe

SOURCE, MX_FORMATS = "torchao.quantization", "torchao.prototype.mx_formats"
_CHANNEL = Quantiser(INT8, "symmetric", 1)
_ROW, _TENSOR = Quantiser(E4M3FN, across=1), Quantiser(E4M3FN)
_MX, _NVFP4 = Quantiser(E4M3FN, "mx", 1, 32), Quantiser(E2M1, "nvfp4", 1, 16)

RECIPES = (
    Recipe("Int8WeightOnlyConfig", (None, _CHANNEL), source=SOURCE),
    Recipe("IntxWeightOnlyConfig", (None, _CHANNEL), source=SOURCE),
    Recipe("Int4WeightOnlyConfig", (None, Quantiser(UINT4, "affine", 1, 128)), source=SOURCE),
    Recipe("Int8DynamicActivationInt8WeightConfig", (_CHANNEL, _CHANNEL), source=SOURCE),
    Recipe(
        "Int8DynamicActivationIntxWeightConfig", (Quantiser(INT8, "affine", 1), Quantiser(INT4, "symmetric", 1, 32)),
        source=f"{SOURCE}; weight_dtype=torch.int4, PerGroup(32)",
    ),
    Recipe("Float8WeightOnlyConfig", (None, _ROW), source=SOURCE),
    Recipe("Float8DynamicActivationFloat8WeightConfig", (_TENSOR, _TENSOR), source=SOURCE),
    Recipe("MXDynamicActivationMXWeightConfig", (_MX, _MX), source=MX_FORMATS),
    Recipe("NVFP4WeightOnlyConfig", (None, _NVFP4), source=MX_FORMATS),
    Recipe("NVFP4DynamicActivationNVFP4WeightConfig", (_NVFP4, _NVFP4), source=MX_FORMATS),
)  # fmt: skip
