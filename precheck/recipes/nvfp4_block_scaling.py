"""NVFP4 training: square blocks for weights, a Hadamard transform for operands of the weight gradient, stochastic rounding of gradients."""

from __future__ import annotations

from precheck.formats.floats import E2M1
from precheck.recipes.recipe import Quantiser, Recipe

BLOCK = 16
_INPUT = Quantiser(E2M1, "nvfp4", 1, BLOCK)
_WEIGHT = Quantiser(E2M1, "nvfp4", BLOCK, BLOCK)
_GRADIENT = Quantiser(E2M1, "nvfp4", 1, BLOCK, stochastic=True)
_TURNED = Quantiser(E2M1, "nvfp4", 1, BLOCK, hadamard=BLOCK)
_TURNED_GRADIENT = Quantiser(E2M1, "nvfp4", 1, BLOCK, stochastic=True, hadamard=BLOCK)

RECIPES = (
    Recipe(
        "NVFP4BlockScaling", (_INPUT, _WEIGHT), (_GRADIENT, _WEIGHT), (_TURNED_GRADIENT, _TURNED),
        source="arXiv 2509.25149, section 4; transformer_engine.common.recipe.NVFP4BlockScaling",
    ),
)  # fmt: skip
