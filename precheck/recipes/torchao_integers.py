"""torchao's quantised inference in integers, under the names of the configurations that `quantize_` takes. Gradients are not quantised."""

from __future__ import annotations

from precheck.formats.whole import INT4, INT8, UINT4
from precheck.recipes.recipe import Quantiser, Recipe

SOURCE = "torchao.quantization"
_CHANNEL = Quantiser(INT8, "symmetric", 1)

RECIPES = (
    Recipe("Int8WeightOnlyConfig", (None, _CHANNEL), source=SOURCE),
    Recipe("IntxWeightOnlyConfig", (None, _CHANNEL), source=SOURCE),
    Recipe("Int4WeightOnlyConfig", (None, Quantiser(UINT4, "affine", 1, 128)), source=SOURCE),
    Recipe("Int8DynamicActivationInt8WeightConfig", (_CHANNEL, _CHANNEL), source=SOURCE),
    Recipe(
        "Int8DynamicActivationIntxWeightConfig", (Quantiser(INT8, "affine", 1), Quantiser(INT4, "symmetric", 1, 32)),
        source=f"{SOURCE}; weight_dtype=torch.int4, PerGroup(32)",
    ),
)  # fmt: skip
