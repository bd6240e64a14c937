"""Transformer Engine's float8 recipes with one scale per tensor, computed from the current step or from earlier steps."""

from __future__ import annotations

from precheck.formats.floats import E4M3FN, E5M2, Format
from precheck.recipes.recipe import Quantiser, Recipe, Scale

SOURCE = "https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/api/common.html (transformer_engine.common.recipe)"


def _recipe(name: str, scale: Scale, backward: Format) -> Recipe:
    plain, gradient = Quantiser(E4M3FN, scale), Quantiser(backward, scale)
    return Recipe(name, (plain, plain), (gradient, plain), (gradient, plain), source=SOURCE)


RECIPES = (
    _recipe("DelayedScaling", "delayed", E5M2),
    _recipe("DelayedScaling-E4M3", "delayed", E4M3FN),
    _recipe("Float8CurrentScaling", "float32", E5M2),
    _recipe("Float8CurrentScaling-E4M3", "float32", E4M3FN),
)
"""Fp8Format.HYBRID, Transformer Engine's default, uses e4m3 in the forward pass and e5m2 for gradients. Fp8Format.E4M3 uses e4m3 for all."""
