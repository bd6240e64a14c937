"""Microscaling formats for all three products: blocks of 32 along the summed dimension, with power-of-two scales that are rounded up."""

from __future__ import annotations

from precheck.formats.floats import E2M1, E2M3, E3M2, E4M3FN, Format
from precheck.recipes.recipe import Quantiser, Recipe

BLOCK = 32


def _recipe(name: str, element: Format, source: str) -> Recipe:
    each = Quantiser(element, "mx", 1, BLOCK)
    return Recipe(name, (each, each), (each, each), (each, each), source=source)


RECIPES = (
    _recipe("MXFP8BlockScaling", E4M3FN, "transformer_engine.common.recipe.MXFP8BlockScaling; arXiv 2506.08027 for rounding scales up"),
    _recipe("mxfp6-e3m2", E3M2, "OCP Microscaling Formats 1.0; torchao.prototype.mx_formats, DTYPE_FP6_E3M2"),
    _recipe("mxfp6-e2m3", E2M3, "OCP Microscaling Formats 1.0; torchao.prototype.mx_formats, DTYPE_FP6_E2M3"),
    _recipe("mxfp4", E2M1, "OCP Microscaling Formats 1.0; torchao.prototype.mx_formats, float4_e2m1fn_x2"),
)
