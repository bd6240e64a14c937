"""Gives named layers another recipe than the rest of the model, as frameworks do with layers that they keep in bfloat16."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import torch

from precheck.observe.job import InputError
from precheck.observe.models.float32_parts import modules_named
from precheck.precisions import Precision, resolve
from precheck.recipes import RECIPES, Recipe
from precheck.recipes.products import OWN


def layers_in(model: torch.nn.Module, names: Sequence[str], precision: str | Precision) -> None:
    """Makes layers follow another recipe than the rest of the model, for good: `layers_in(model, ["lm_head"], "bf16")`.

    It holds wherever the model runs under a recipe (`--precision=nvfp4`, `measure`, `survey`), for the three products of each layer. Under
    other precisions it changes nothing.

    Args:
        model: Its parameters are marked; their numbers are not touched. A copy of the model has no marks.
        names: Names of modules, as `model.get_submodule` takes them. All layers inside them are meant.
        precision: "bf16", for layers that are not quantised, or the name of a recipe.

    Raises:
        AttributeError: There is no module of that name.
        TypeError: `names` is a str, or `model` is no module.
        ValueError: `names` is empty.
        InputError: `precision` is neither, or a module has no weight that a product reads.
    """
    recipe = recipe_for(precision)
    for name, module in zip(names, modules_named(model, names), strict=True):
        weights = _weights(module)
        if not weights:
            raise InputError(f"{name or 'the model'} has no weight of two dimensions that a product could read; name linear layers")
        for weight in weights:
            setattr(weight, OWN, recipe)


def recipe_for(precision: str | Precision) -> Recipe | None:
    """The recipe of that name. None for "bf16", which does not quantise."""
    resolved = resolve(precision)
    if isinstance(resolved.gemm, Recipe):
        return resolved.gemm
    if resolved.name != "bf16-mixed":
        raise InputError(f'layers cannot be kept in {precision}; pass "bf16", or one of {", ".join(RECIPES)} (in_float32 keeps modules in float32)')
    return None


@contextlib.contextmanager
def kept_in(model: torch.nn.Module, names: Iterable[str], recipe: Recipe | None) -> Iterator[None]:
    """Inside, the layers of those names follow `recipe`. Afterwards their former recipes hold again."""
    weights = [weight for name in names for weight in _weights(model.get_submodule(name))]
    before = [(vars(weight), dict(vars(weight))) for weight in weights]
    try:
        for weight in weights:
            setattr(weight, OWN, recipe)
        yield
    finally:
        for held, was in before:
            held.pop(OWN, None)
            held.update({name: value for name, value in was.items() if name == OWN})


def _weights(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.dim() == 2 and parameter.is_floating_point()]
