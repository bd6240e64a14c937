"""torchao's recipes for float8 training, under the names of `torchao.float8.config.Float8LinearRecipeName`."""

from __future__ import annotations

from precheck.formats.floats import E4M3FN, E5M2
from precheck.recipes.recipe import PLAIN, Quantiser, Recipe

SOURCE = "torchao.float8.config.Float8LinearConfig.from_recipe_name"
_TENSOR, _GRADIENT = Quantiser(E4M3FN), Quantiser(E5M2)
_ROW = Quantiser(E4M3FN, "power of two", 1)
_WEIGHT = Quantiser(E4M3FN, "power of two")

RECIPES = (
    Recipe("tensorwise", (_TENSOR, _TENSOR), (_GRADIENT, _TENSOR), (_GRADIENT, _TENSOR), source=SOURCE),
    Recipe("rowwise", (_ROW, _ROW), (_ROW, _ROW), (_ROW, _ROW), source=SOURCE),
    Recipe("rowwise_with_gw_hp", (_ROW, _ROW), (_ROW, _WEIGHT), PLAIN, source=SOURCE),
)
