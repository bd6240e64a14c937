"""float8 with block scales, as in DeepSeek-V3: 1 x 128 for inputs and gradients, 128 x 128 for weights. Sums of 128 terms are added in float32."""

from __future__ import annotations

from precheck.formats.floats import E4M3FN
from precheck.recipes.recipe import Quantiser, Recipe

BLOCK = 128
_LINE = Quantiser(E4M3FN, "power of two", 1, BLOCK)
_SQUARE = Quantiser(E4M3FN, "power of two", BLOCK, BLOCK)

RECIPES = (
    Recipe(
        "Float8BlockScaling", (_LINE, _SQUARE), (_LINE, _SQUARE), (_LINE, _LINE), chunk=BLOCK,
        source="arXiv 2412.19437, section 3.3.2; transformer_engine.common.recipe.Float8BlockScaling, whose scales are powers of two",
    ),
)  # fmt: skip
