"""The function `survey`: measures the signal to quantisation noise of each layer's products under each recipe, in one float32 run."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Iterable
from typing import Any

import torch

from precheck import arguments, interpreter, interrupts
from precheck.measurement import job_of
from precheck.observe.job import InputError
from precheck.observe.recording.surveys import surveyed
from precheck.precisions import resolve
from precheck.recipes import RECIPES, Recipe
from precheck.recipes.survey import Place


@dataclasses.dataclass(frozen=True, slots=True)
class Survey:
    """The signal to quantisation noise of each layer's products, in decibels, by precision."""

    precisions: tuple[str, ...]
    places: tuple[Place, ...]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each layer and product: "layer", "product", "outlier" (an input channel, or None), decibels by precision (None where a recipe
        leaves it alone), and "flushed": by precision, the share of each operand that is rounded to zero.

        "blocks" has by precision and operand how many blocks there are that share a scale, and by step the shares of blocks ("clipping",
        "flushing") and of elements ("clipped", "flushed") that are clipped or rounded to zero.
        """
        return [
            {"layer": place.layer, "product": place.product, "outlier": place.channel}
            | {name: round(each, 2) if abs(each := place.decibels(name)) < math.inf else None for name in self.precisions}
            | {"flushed": {name: {kind: round(share, 4) for kind, share in place.flushed(name).items()} for name in self.precisions}}
            | {"blocks": {name: place.shares(name) for name in self.precisions}}
            for place in self.places
        ]

    def coarsest(self, precision: str, least: float) -> list[str]:
        """The layers with a product of fewer than `least` decibels under a precision. Keep these in bfloat16 first."""
        low: dict[str, float] = {}
        for place in self.places:
            low[place.layer] = min(place.decibels(precision), low.get(place.layer, math.inf))
        return sorted((layer for layer, value in low.items() if value < least), key=low.__getitem__)

    def to_json(self) -> str:
        """`rows` as JSON."""
        return json.dumps(self.rows(), indent=1)

    def __str__(self) -> str:
        """The survey as a table, with the median of each product below."""
        width = max((len(place.layer) for place in self.places), default=5)
        head = f"{'layer':{width}}  {'product':15}  " + "  ".join(f"{name:>10.10}" for name in self.precisions) + "  outlier"
        lines = []
        for place in self.places:
            cells = "  ".join(f"{place.decibels(name):10.1f}" for name in self.precisions)
            outlier = "" if place.channel is None else f"channel {place.channel}, {place.excess:.0f} times the median"
            lines.append(f"{place.layer:{width}}  {place.product:15}  {cells}  {outlier}".rstrip())
        return "\n".join([head, *lines, *self._medians(width), *self._blocks()])

    def blocks(self, precision: str) -> list[tuple[str, str, str, dict[str, Any]]]:
        """Layer, product, operand and shares of blocks by step; those that clip most come first, then those that flush most."""
        rows = [(place.layer, place.product, kind, found) for place in self.places for kind, found in place.shares(precision).items()]
        return sorted(rows, key=lambda row: (-max(row[3]["clipping"]), -max(row[3]["flushing"])))

    def _blocks(self) -> list[str]:
        """For each precision the operand that clips or flushes in most blocks."""
        lines = []
        for name in self.precisions:
            for layer, product, kind, found in self.blocks(name)[:1]:
                clip, flush = (100 * max(found[what]) for what in ("clipping", "flushing"))
                what = f"{found['blocks']} blocks of the {kind} of {layer or 'the model'} ({product})"
                lines.append(f"{name}: of {what}, {clip:.3g}% clip and {flush:.3g}% round something to zero; no operand has more")
        return lines

    def _medians(self, width: int) -> list[str]:
        lines = []
        for product in dict.fromkeys(place.product for place in self.places):
            among = [place for place in self.places if place.product == product]
            cells = "  ".join(f"{statistics.median(place.decibels(name) for place in among):10.1f}" for name in self.precisions)
            lines.append(f"{'median':{width}}  {product:15}  {cells}")
        return lines


@arguments.explained
@interrupts.held()
@interpreter.spared
def survey(
    model: torch.nn.Module | Callable[..., Any],
    inputs: Any,
    precisions: Iterable[object],
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer] | None = None,
    steps: int = 1,
    seed: int = 0,
) -> Survey:
    """Runs `model` once in float32, and also computes each product of a layer under each recipe.

    Decibels are those of the first step. Blocks that clip or round something to zero are counted in each step.

    Args:
        model: A module or a function of tensors. It comes back as it was.
        inputs: A tensor is one argument, a tuple positional arguments, a dict keyword arguments.
        precisions: Names of recipes ("mxfp8", "nvfp4"), or frameworks' objects for them.
        loss: Takes the model's output, gives a scalar. With it the two products of the backward pass are surveyed too.
        optimizer: Takes the parameters, gives an optimizer. With it `steps` steps are made.
        steps: How many training steps are taken.
        seed: The seed of torch's random numbers.

    Returns:
        The signal to quantisation noise of each layer under each recipe.

    Raises:
        InputError: An argument cannot be run, a precision is no recipe, or two recipes have one name.
        PrecisionError: There is no such precision.
    """
    chosen: dict[str, Recipe] = {}
    for each in precisions:
        recipe = _recipe(each)
        if chosen.setdefault(recipe.name, recipe) != recipe:
            raise InputError(f"two different recipes are called {recipe.name}; survey one at a time")
    if not chosen:
        raise InputError(f"no precision was named; pass names of recipes, as in survey(model, inputs, ['mxfp8']); known are {', '.join(RECIPES)}")
    found = surveyed(job_of(model, inputs, loss=loss, optimizer=optimizer, steps=steps, seed=seed), chosen.values())
    return Survey(tuple(chosen), tuple(found))


def _recipe(name: object) -> Recipe:
    gemm = resolve(name).gemm
    if not isinstance(gemm, Recipe):
        raise InputError(f"{name} is no recipe of products; known are {', '.join(RECIPES)}")
    return gemm
