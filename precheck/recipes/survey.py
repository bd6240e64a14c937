"""Measures the signal to quantisation noise of each product under several recipes, during one float32 run that stays unchanged."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import torch

from precheck.recipes.blocks import Blocks, shares
from precheck.recipes.products import PRODUCTS, Operand, Product, RecipeProducts, is_plain
from precheck.recipes.recipe import Recipe
from precheck.torch_internals import storage_key
from precheck.torch_support.tensor_classes import Mode

PLACES: tuple[Product, ...] = ("forward", "input gradient", "weight gradient")
OUTLIER = 8.0
"""Ratio of a channel's greatest magnitude to the median channel's from which the channel is an outlier."""
HARDLY = 1e-4
"""Share of a product's energy: a thousandth of what `coarse-recipe` allows to be missing."""


@dataclasses.dataclass(slots=True)
class Place:
    """One product of one layer. Energies are sums of squares over its calls. `noise` holds one energy for each recipe."""

    layer: str
    product: Product
    signal: float = 0.0
    noise: dict[str, float] = dataclasses.field(default_factory=dict)
    lost: dict[str, float] = dataclasses.field(default_factory=dict)  # energy of the terms that are missing since elements are rounded to zero
    blocks: dict[str, dict[str, dict[int, Blocks]]] = dataclasses.field(default_factory=dict)  # by recipe, by operand, by step
    channel: int | None = None  # the channel of the layer's input that is an outlier
    excess: float = 1.0  # ratio of its greatest magnitude to the median channel's

    def decibels(self, recipe: str) -> float:
        """Signal to quantisation noise. Infinite if the recipe does not quantise the product."""
        noise = self.noise.get(recipe, 0.0)
        return math.inf if not noise else -math.inf if not self.signal else 10 * math.log10(self.signal / noise)

    def share_lost(self, recipe: str) -> float:
        """Share of the product's energy that comes from elements which the recipe rounds to zero."""
        return self.lost.get(recipe, 0.0) / self.signal if self.signal else 0.0

    def flushed(self, recipe: str) -> dict[str, float]:
        """Share of each operand's elements that the recipe rounds to zero, over all calls and steps."""
        steps = {kind: found.values() for kind, found in self.blocks.get(recipe, {}).items()}
        return {kind: sum(each.flushed for each in found) / max(sum(each.elements for each in found), 1) for kind, found in steps.items()}

    def shares(self, recipe: str) -> dict[str, dict[str, Any]]:
        """The blocks of each operand, and by step the shares of them with elements that are clipped or rounded to zero."""
        return {kind: shares(found[step] for step in sorted(found)) for kind, found in self.blocks.get(recipe, {}).items()}

    def count(self, recipe: str, operands: tuple[Operand, Operand], made: tuple[torch.Tensor, torch.Tensor], step: int) -> None:
        """Counts the elements that one call clips or rounds to zero."""
        for operand, result in zip(operands, made, strict=True):
            if operand.how is not None:
                steps = self.blocks.setdefault(recipe, {}).setdefault(operand.kind, {})
                steps.setdefault(step, Blocks()).add(operand.matrix, result, operand.how, operand.call.scales.get(operand.kind))


def by_layer(places: Iterable[Place], recipe: str) -> list[dict[str, Any]]:
    """A row for each layer, the worst first.

    It has "layer", the decibels of each product (None if the recipe does not quantise it), "outlier" (a channel or None), "flushed" (the largest
    share of an operand that is rounded to zero), and "blocks": the number of blocks of each operand, and by step the shares that clip or flush.
    """
    rows: dict[str, dict[str, Any]] = {}
    for place in places:
        row, value = rows.setdefault(place.layer, {"layer": place.layer, "outlier": None, "flushed": 0.0, "blocks": []}), place.decibels(recipe)
        row[place.product] = round(value, 2) if math.isfinite(value) else None
        row["flushed"] = round(max([row["flushed"], *place.flushed(recipe).values()]), 4)
        row["blocks"] += [{"product": place.product, "operand": kind} | found for kind, found in place.shares(recipe).items()]
        row["outlier"] = place.channel if place.product == "forward" else row["outlier"]
    return sorted(rows.values(), key=lambda row: min((row[name] for name in PLACES if row.get(name) is not None), default=math.inf))


def _missing(operands: tuple[Operand, Operand], made: tuple[torch.Tensor, torch.Tensor], exact: torch.Tensor) -> float:
    """The energy that a product lacks because elements of its operands are rounded to zero. 0 under stochastic rounding, which is right on
    average. `exact` is the product without rounding.

    The product of what is lost has at most the norm of both its factors multiplied. Where this bound says that hardly anything is missing, it is
    returned in place of the energy, which takes a product more.
    """
    if any(operand.how is not None and operand.how.stochastic for operand in operands):
        return 0.0
    first, second = (operand.matrix.float() for operand in operands)
    left, right = (_lost(*each) for each in zip((first, second), made, strict=True))
    if left is None and right is None:
        return 0.0
    bound = (_norm(left) * _norm(second) + _norm(first) * _norm(right)) ** 2
    if bound <= HARDLY * float(exact.square().sum()):
        return bound
    rest = (first if left is None else first - left) @ (second if right is None else second - right).t()
    return float((exact - rest).square().sum())


def _lost(whole: torch.Tensor, made: torch.Tensor) -> torch.Tensor | None:
    """The elements that are rounded to zero, and zeros elsewhere; None if there are none. What is zero stays zero."""
    if int(torch.count_nonzero(whole)) == int(torch.count_nonzero(made)):
        return None
    return whole * (made == 0)


def _norm(matrix: torch.Tensor | None) -> float:
    return 0.0 if matrix is None else float(torch.linalg.vector_norm(matrix, dtype=torch.float64))


class Survey(Mode):
    """Watches the products of a float32 run of `model`, and also computes each of them as every recipe would.

    Noise and lost energy are measured in the first step. Blocks are counted in all steps.
    """

    def __init__(self, model: torch.nn.Module, recipes: Iterable[Recipe]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model, self.modes = model, [RecipeProducts(recipe) for recipe in recipes]
        self.names: dict[int, str] = {}
        self.step, self.stepping = 1, False  # the current step, and whether its optimizer is at work
        self.places: dict[tuple[str, Product], Place] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        operands = PRODUCTS.get(func)
        if self.stepping:
            return result
        if operands is not None and self.modes:
            left, right = (args[place] for place in operands)
            if is_plain(left) and is_plain(right) and result.numel():
                self._beside(left, right, result if not operands[0] else None)
        for mode in self.modes:
            mode.made(args, result)
        return result

    def _beside(self, left: torch.Tensor, right: torch.Tensor, made_so: torch.Tensor | None) -> None:
        """Computes a product as every recipe would. `made_so`: what the run has made of it, if it added nothing."""
        whole = made_so if made_so is not None and made_so.dtype is torch.float32 else None
        exact, place = None, None
        if self.step == 1:
            exact = (left.float() @ right.float() if whole is None else whole).double()
        for mode in self.modes:
            found = mode.operands(left, right)
            if found is None:
                continue
            product, (first, second) = found
            if place is None:
                place = self._place(first.site, product)
                place.signal += float(exact.square().sum()) if exact is not None else 0.0
                if product == "forward":
                    self._channels(place, first.matrix if first.kind == "input" else second.matrix)
            quantised, name = mode.quantised(product, (first, second)), mode.recipe.name
            if quantised is not None:
                place.count(name, (first, second), quantised, self.step)
            if quantised is not None and exact is not None:
                made = mode.summed((first, second), quantised)
                place.noise[name] = place.noise.get(name, 0.0) + float((made.double() - exact).square().sum())
                place.lost[name] = place.lost.get(name, 0.0) + _missing((first, second), quantised, exact)

    def follow(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Ends a step of the run at each optimizer step. The optimizer's own products belong to no layer."""

        def begun(*_: Any) -> None:
            self.stepping = True

        def ended(*_: Any) -> None:
            self.step, self.stepping = self.step + 1, False

        optimizer.register_step_pre_hook(begun)
        optimizer.register_step_post_hook(ended)
        return optimizer

    def _place(self, site: int, product: Product) -> Place:
        if not self.names:
            self.names = {storage_key(parameter): name.rpartition(".")[0] for name, parameter in self.model.named_parameters()}
        layer = self.names.get(site, "a product without a weight")
        return self.places.setdefault((layer, product), Place(layer, product))

    @staticmethod
    def _channels(place: Place, given: torch.Tensor) -> None:
        each = given.detach().abs().amax(0).float()
        excess = float(each.amax() / each.median().clamp_min(1e-30))
        if excess > max(OUTLIER, place.excess):
            place.channel, place.excess = int(each.argmax()), excess
