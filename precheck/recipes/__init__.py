"""Recipes for matrix products in low precision, each under the name that its framework gives it.

A file holds the recipes of one kind in `RECIPES`. A new file is entered below. `recipe` defines what a recipe is, and `products` applies one in plain
torch, forward and backward, on any device. Importing this package does not import torch.
"""

from __future__ import annotations

from precheck.recipes import (
    float8_block_scaling,
    mx_block_scaling,
    nvfp4_block_scaling,
    torchao_float8,
    torchao_inference,
    transformer_engine_fp8,
)
from precheck.recipes.objects import UnknownOptionError, recipe_of
from precheck.recipes.recipe import Quantiser, Recipe

_FILES = (transformer_engine_fp8, float8_block_scaling, mx_block_scaling, nvfp4_block_scaling, torchao_float8, torchao_inference)
RECIPES: dict[str, Recipe] = {recipe.name: recipe for file in _FILES for recipe in file.RECIPES}
ALIASES: dict[str, str] = {
    "fp8-delayed": "DelayedScaling", "fp8-current": "Float8CurrentScaling", "fp8-block": "Float8BlockScaling", "mxfp8": "MXFP8BlockScaling",
    "nvfp4": "NVFP4BlockScaling", "int8-weight-only": "Int8WeightOnlyConfig", "int4-weight-only": "Int4WeightOnlyConfig",
    "int8-dynamic": "Int8DynamicActivationInt8WeightConfig", "8da4w": "Int8DynamicActivationIntxWeightConfig",
}  # fmt: skip

__all__ = ["ALIASES", "RECIPES", "Quantiser", "Recipe", "UnknownOptionError", "recipe_of"]
