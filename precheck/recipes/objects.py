"""Turns frameworks' own objects into recipes: Transformer Engine's recipes, torchao's configurations and recipe names."""

from __future__ import annotations

from typing import Any

from precheck.recipes import torchao_options, transformer_engine_options
from precheck.recipes.options import Options, UnknownOptionError
from precheck.recipes.recipe import Recipe

READERS = {**torchao_options.TRAINING, **transformer_engine_options.READERS}
"""How a configuration of each class is read. Those of torchao's quantised inference are read alike."""


def recipe_of(given: Any, known: dict[str, Recipe]) -> Recipe | None:
    """The recipe that an object stands for, or None.

    Each option of the object is followed, or changes no number, or has its default. Otherwise it is refused by an UnknownOptionError.
    """
    value, kind = getattr(given, "value", None), type(given).__name__
    if kind == "Float8LinearRecipeName" and isinstance(value, str):
        return known.get(value)
    read = READERS.get(kind) or (torchao_options.inference if kind in known else None)
    if read is None:
        return None
    options = Options(given)
    recipe = read(options, known)
    options.finish()
    return recipe


__all__ = ["UnknownOptionError", "recipe_of"]
