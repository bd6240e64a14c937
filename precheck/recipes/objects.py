"""Frameworks' own objects for recipes: Transformer Engine's recipes, torchao's configurations and recipe names."""

from __future__ import annotations

import dataclasses
from typing import Any

from precheck.recipes.recipe import Pair, Quantiser, Recipe


def recipe_of(given: Any, known: dict[str, Recipe]) -> Recipe | None:
    """The recipe that an object stands for; None if it stands for none.

    Transformer Engine's say by `fp8_format` what gradients are stored in, torchao's configurations by `group_size` how many columns share a scale.
    """
    value = getattr(given, "value", None)  # of torchao's Float8LinearRecipeName
    if type(given).__name__ == "Float8LinearRecipeName" and isinstance(value, str):
        return known.get(value)
    found = known.get(type(given).__name__)
    if found is None:
        return None
    if str(getattr(given, "fp8_format", "")).endswith("E4M3"):
        return known.get(f"{found.name}-E4M3", found)
    size = getattr(given, "group_size", None)
    return _grouped(found, size) if isinstance(size, int) and size > 0 else found


def _grouped(recipe: Recipe, size: int) -> Recipe:
    """`recipe` with groups of so many columns of the weight."""
    given, weight = recipe.forward
    assert isinstance(weight, Quantiser)
    forward: Pair = (given, dataclasses.replace(weight, along=size))
    return dataclasses.replace(recipe, forward=forward)
