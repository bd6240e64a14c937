"""Reads the options of torchao's configurations: for training in float8, MXFP8 and NVFP4, and for quantised inference."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from precheck.formats.floats import E2M1, E2M3, E3M2, E4M3FN, E5M2, Format
from precheck.formats.tiles import WHOLE
from precheck.formats.whole import Integers
from precheck.recipes.options import Options, UnknownOptionError
from precheck.recipes.recipe import PLAIN, Pair, Quantiser, Recipe, Scale

Known = Mapping[str, Recipe]
ELEMENTS: Mapping[str, Format | Integers] = {
    "torch.float8_e4m3fn": E4M3FN, "torch.float8_e5m2": E5M2, "torch.float4_e2m1fn_x2": E2M1, "fp6_e2m3": E2M3, "fp6_e3m2": E3M2,
    **{f"torch.int{bits}": Integers(f"int{bits}", -(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in range(1, 9)},
}  # fmt: skip
"""Formats by the names that options have."""
MAPPINGS: dict[str, Scale] = {"symmetric": "symmetric", "asymmetric": "affine"}
MAPPING_OPTIONS = (("act_mapping_type",), ("mapping_type", "weight_mapping_type"))
CASTS = (
    ("cast_config_input", "cast_config_weight"), ("cast_config_grad_output", "cast_config_weight_for_grad_input"),
    ("cast_config_grad_output_for_grad_weight", "cast_config_input_for_grad_weight"),
)  # fmt: skip
"""The options of `Float8LinearConfig` for the operands of the three products."""


def linear(options: Options, known: Known) -> Recipe:
    """`Float8LinearConfig`. Named as the recipe of torchao that has the same casts, or else the one with scales of the same extents."""
    scale: Scale = "power of two" if options.read("round_scales_to_power_of_2") else "float32"
    pairs: list[Pair] = [(_cast(options, first, scale), _cast(options, second, scale)) for first, second in CASTS]
    for name in ("tensorwise", "rowwise", "rowwise_with_gw_hp"):
        if [known[name].forward, known[name].input_gradient, known[name].weight_gradient] == pairs:
            return known[name]
    name = "rowwise" if any(how is not None and how.across == 1 for pair in pairs for how in pair) else "tensorwise"
    return dataclasses.replace(known[name], forward=pairs[0], input_gradient=pairs[1], weight_gradient=pairs[2])


def _cast(options: Options, name: str, scale: Scale) -> Quantiser | None:
    cast = Options(options.read(name))
    if cast.word("scaling_type", "dynamic") == "disabled":
        return None
    extents = {"tensorwise": WHOLE, "axiswise": 1}
    return Quantiser(_element(cast.read("target_dtype")), scale, extents[cast.word("scaling_granularity", "tensorwise")])


def float8_ops(options: Options, known: Known) -> Recipe:
    """`Float8TrainingOpConfig`."""
    if str(options.read("float8_dtype")) != "torch.float8_e4m3fn":
        raise options.unknown("float8_dtype")
    return known[options.read("float8_linear_recipe")]


def mxfp8_ops(options: Options, known: Known) -> Recipe:
    """`MXFP8TrainingOpConfig`."""
    made = _with_mode(known["MXFP8BlockScaling"], options.word("scale_calculation_mode", "rceil"))
    return dataclasses.replace(made, weight_gradient=PLAIN) if options.read("wgrad_with_hp") else made


def nvfp4_ops(_: Options, known: Known) -> Recipe:
    """`NVFP4TrainingConfig`."""
    return known["NVFP4BlockScaling"]


def inference(options: Options, known: Known) -> Recipe:
    """A configuration that `quantize_` takes: formats, scales and their extents of the activation and the weight."""
    recipe = known[type(options.given).__name__]
    spans = options.read("granularity")
    spans = spans if isinstance(spans, (list, tuple)) else [spans, spans]
    size, block = options.read("group_size"), options.read("block_size")
    pair: list[Quantiser | None] = []
    for quantiser, name, span, mappings in zip(recipe.forward, ("activation", "weight"), spans, MAPPING_OPTIONS, strict=True):
        dtype, span = options.read(f"{name}_dtype"), options.read(f"{name}_granularity", span)
        how = quantiser
        if how is not None:
            how = _spanning(how if dtype is None else dataclasses.replace(how, element=_element(dtype)), span)
            how = dataclasses.replace(how, along=block or (size if name == "weight" else None) or how.along)
            how = _mapped(options, how, mappings)
        pair.append(how)
    return _with_mode(dataclasses.replace(recipe, forward=(pair[0], pair[1])), options.word("scaling_mode", "rceil"))


def _mapped(options: Options, how: Quantiser, names: tuple[str, ...]) -> Quantiser:
    """With zero points or without, as one of the options `names` says, if there is one."""
    for name in names:
        word = options.word(name, "")
        if word and word not in MAPPINGS:
            raise options.unknown(name)
        how = dataclasses.replace(how, scale=MAPPINGS[word]) if word else how
    return how


def _with_mode(recipe: Recipe, mode: Any) -> Recipe:
    return recipe.changed(lambda _, how: dataclasses.replace(how, mode=mode) if how.scale == "mx" else how)


def _element(dtype: Any) -> Format | Integers:
    found = ELEMENTS.get(str(dtype))
    if found is None:
        raise UnknownOptionError(f"{dtype} is none of the formats here: {', '.join(ELEMENTS)}")
    return found


def _spanning(quantiser: Quantiser, span: Any) -> Quantiser:
    kind = type(span).__name__
    if kind == "PerTensor":
        return dataclasses.replace(quantiser, across=WHOLE, along=WHOLE)
    if kind in ("PerRow", "PerAxis"):
        return dataclasses.replace(quantiser, across=1, along=WHOLE)
    if kind == "PerGroup":
        return dataclasses.replace(quantiser, across=1, along=span.group_size)
    if span is not None:
        raise UnknownOptionError(f"granularity {span}: known are PerTensor, PerRow, PerAxis and PerGroup")
    return quantiser


TRAINING: dict[str, Callable[[Options, Known], Recipe]] = {
    "Float8LinearConfig": linear, "Float8TrainingOpConfig": float8_ops, "MXFP8TrainingOpConfig": mxfp8_ops, "NVFP4TrainingConfig": nvfp4_ops,
}  # fmt: skip
