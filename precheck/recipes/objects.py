"""Turns frameworks' own objects into recipes: Transformer Engine's recipes, torchao's configurations and recipe names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from precheck.formats.floats import E2M1, E2M3, E3M2, E4M3FN, E5M2, Format
from precheck.formats.tiles import WHOLE
from precheck.formats.whole import INT4, INT8, Integers
from precheck.recipes.recipe import Pair, Quantiser, Recipe

ELEMENTS: Mapping[str, Format | Integers] = {
    "torch.float8_e4m3fn": E4M3FN, "torch.float8_e5m2": E5M2, "torch.float4_e2m1fn_x2": E2M1, "fp6_e2m3": E2M3, "fp6_e3m2": E3M2,
    "torch.int8": INT8, "torch.int4": INT4,
}  # fmt: skip
"""Formats by the names that a configuration's `weight_dtype` and `activation_dtype` have."""


class UnknownOptionError(Exception):
    """A configuration has an option that no recipe here supports. The message says which."""


def recipe_of(given: Any, known: dict[str, Recipe]) -> Recipe | None:
    """The recipe that an object stands for, or None.

    In Transformer Engine's recipes, `fp8_format` gives the format of gradients. In torchao's configurations, `group_size` or `granularity` gives the
    number of elements that share a scale, and `weight_dtype` and `activation_dtype` give the formats.

    Raises UnknownOptionError.
    """
    value, kind = getattr(given, "value", None), type(given).__name__
    if kind == "Float8LinearRecipeName" and isinstance(value, str):
        return known.get(value)
    if kind == "Float8LinearConfig":
        return _float8_training(given, known)
    found = known.get(kind)
    if found is None:
        return None
    if str(getattr(given, "fp8_format", "")).endswith("E4M3"):
        return known.get(f"{found.name}-E4M3", found)
    size = getattr(given, "group_size", None)
    if isinstance(size, int) and size > 0:
        weight = found.forward[1]
        assert weight is not None
        return dataclasses.replace(found, forward=(found.forward[0], dataclasses.replace(weight, along=size)))
    return _configured(given, found)


def _float8_training(given: Any, known: dict[str, Recipe]) -> Recipe | None:
    """torchao's recipe whose casts have the same scales as those of this configuration."""
    casts = [getattr(given, f"cast_config_{operand}", None) for operand in ("input", "weight", "grad_output", "input_for_grad_weight")]
    each = [getattr(getattr(cast, "scaling_granularity", None), "value", None) for cast in casts[:3]]
    kept = getattr(getattr(casts[3], "scaling_type", None), "value", None) == "disabled"
    if each == ["tensorwise"] * 3 and not kept:
        return known.get("tensorwise")
    if each == ["axiswise"] * 3:
        return known.get("rowwise_with_gw_hp" if kept else "rowwise")
    raise UnknownOptionError(f"a Float8LinearConfig with scales of {', '.join(map(str, each))} is none of torchao's three recipes")


def _configured(given: Any, recipe: Recipe) -> Recipe:
    """`recipe` with the formats and scales that a configuration for inference specifies."""
    mode = getattr(getattr(given, "scaling_mode", None), "value", "rceil")
    if mode != "rceil":
        raise UnknownOptionError(f"scaling_mode={mode!r} of {recipe.name}: its powers of two are rounded up here, which is 'rceil'")
    mapping = getattr(getattr(given, "mapping_type", None), "name", "SYMMETRIC")
    if mapping != "SYMMETRIC" and "granularity" in dir(given):
        raise UnknownOptionError(f"mapping_type={mapping} of {recipe.name}: scales are symmetric here")
    spans = getattr(given, "granularity", None) or [None, getattr(given, "weight_granularity", None)]
    spans = spans if isinstance(spans, (list, tuple)) else [spans, spans]
    pair = [
        _operand(quantiser, getattr(given, f"{name}_dtype", None), span)
        for quantiser, name, span in zip(recipe.forward, ("activation", "weight"), spans, strict=True)
    ]
    forward: Pair = (pair[0], pair[1])
    return dataclasses.replace(recipe, forward=forward)


def _operand(quantiser: Quantiser | None, dtype: Any, span: Any) -> Quantiser | None:
    if quantiser is None:
        return None
    if dtype is not None:
        element = ELEMENTS.get(str(dtype))
        if element is None:
            raise UnknownOptionError(f"{dtype} is none of the formats here: {', '.join(ELEMENTS)}")
        quantiser = dataclasses.replace(quantiser, element=element)
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
