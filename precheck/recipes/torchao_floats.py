"""torchao's quantised inference in narrow floats, under the names of the configurations that `quantize_` takes. Gradients are not quantised."""

from __future__ import annotations

from precheck.formats.floats import E2M1, E4M3FN
from precheck.recipes.recipe import Quantiser, Recipe

_ROW, _TENSOR = Quantiser(E4M3FN, across=1), Quantiser(E4M3FN)
_MX, _NVFP4 = Quantiser(E4M3FN, "mx", 1, 32), Quantiser(E2M1, "nvfp4", 1, 16)

RECIPES = (
    Recipe("Float8WeightOnlyConfig", (None, _ROW), source="torchao.quantization"),
    Recipe("Float8DynamicActivationFloat8WeightConfig", (_TENSOR, _TENSOR), source="torchao.quantization"),
    Recipe("MXDynamicActivationMXWeightConfig", (_MX, _MX), source="torchao.prototype.mx_formats"),
    Recipe("NVFP4WeightOnlyConfig", (None, _NVFP4), source="torchao.prototype.mx_formats"),
    Recipe("NVFP4DynamicActivationNVFP4WeightConfig", (_NVFP4, _NVFP4), source="torchao.prototype.mx_formats"),
)
