"""Reads the options of Transformer Engine's recipes (transformer_engine.common.recipe)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from precheck.formats.floats import E4M3FN, E5M2, Format
from precheck.recipes.options import Options
from precheck.recipes.recipe import PLAIN, Kind, Quantiser, Recipe

Known = Mapping[str, Recipe]


def _float8(options: Options, recipe: Recipe) -> Recipe:
    """What all recipes have: attention stays in bfloat16, gradients are in e4m3 or e5m2, and the backward pass may be in bfloat16 too."""
    for name in ("fp8_dpa", "fp8_mha"):
        options.need(name, False)
    if options.need("backward_override", None, "high_precision"):
        recipe = dataclasses.replace(recipe, input_gradient=PLAIN, weight_gradient=PLAIN)
    formats = {"e4m3": E4M3FN, "hybrid": E5M2}
    word = options.word("fp8_format", "")
    if not word:
        return recipe
    if word not in formats:
        raise options.unknown("fp8_format")

    def change(kind: Kind, how: Quantiser) -> Quantiser:
        float8 = kind == "gradient" and isinstance(how.element, Format) and how.element in (E4M3FN, E5M2)
        return dataclasses.replace(how, element=formats[word]) if float8 else how

    return recipe.changed(change)


def _named(options: Options, known: Known, name: str) -> Recipe:
    """The recipe of this name, or its variant with e4m3 for gradients."""
    return known[f"{name}-E4M3" if options.word("fp8_format", "") == "e4m3" and f"{name}-E4M3" in known else name]


def delayed(options: Options, known: Known) -> Recipe:
    """`DelayedScaling`. The most recent magnitude is a history of one step."""
    options.need("scaling_factor_compute_algo", None)
    length = options.read("amax_history_len", 1024) if options.need("amax_compute_algo", "max", "most_recent") == "max" else 1
    options.read("amax_history_len")
    recipe = _float8(options, _named(options, known, "DelayedScaling"))
    return dataclasses.replace(recipe, history=length, margin=options.read("margin", 0))


def current(options: Options, known: Known) -> Recipe:
    """`Float8CurrentScaling`."""
    power = options.read("use_power_2_scales", False)
    recipe = _float8(options, _named(options, known, "Float8CurrentScaling"))
    return recipe.changed(lambda _, how: dataclasses.replace(how, scale="power of two" if power else "float32"))


def blocks(options: Options, known: Known) -> Recipe:
    """`Float8BlockScaling`: a line or a square of each operand has a scale."""
    full = options.read("use_f32_scales", False)
    names: tuple[tuple[Kind, str, int], ...] = (
        ("input", "x_block_scaling_dim", 1), ("weight", "w_block_scaling_dim", 2), ("gradient", "grad_block_scaling_dim", 1),
    )  # fmt: skip
    square = {kind: options.read(name, usual) == 2 for kind, name, usual in names}

    def change(kind: Kind, how: Quantiser) -> Quantiser:
        return dataclasses.replace(how, scale="float32" if full else "power of two", across=how.along if square[kind] else 1)

    return _float8(options, known["Float8BlockScaling"]).changed(change)


def mxfp8(options: Options, known: Known) -> Recipe:
    """`MXFP8BlockScaling`."""
    return _float8(options, known["MXFP8BlockScaling"])


def nvfp4(options: Options, known: Known) -> Recipe:
    """`NVFP4BlockScaling`, whose three techniques can be left out."""
    options.need("row_scaled_activation", False)
    options.need("nvfp4_4over6", "none")
    plain, nearest, lines = (options.read(f"disable_{name}", False) for name in ("rht", "stochastic_rounding", "2d_quantization"))

    def change(kind: Kind, how: Quantiser) -> Quantiser:
        across = 1 if lines and kind == "weight" else how.across
        return dataclasses.replace(how, across=across, stochastic=how.stochastic and not nearest, hadamard=0 if plain else how.hadamard)

    return _float8(options, known["NVFP4BlockScaling"]).changed(change)


READERS: dict[str, Callable[[Options, Known], Recipe]] = {
    "DelayedScaling": delayed, "Float8CurrentScaling": current, "Float8BlockScaling": blocks, "MXFP8BlockScaling": mxfp8, "NVFP4BlockScaling": nvfp4,
}  # fmt: skip
