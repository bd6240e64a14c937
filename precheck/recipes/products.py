"""A recipe carried out: inside the mode, each product of two matrices sees operands as the recipe quantises them, forward and backward.

A product is told by its operands. One of a forward pass has an input and a weight; of a backward pass, one with a weight makes the gradient of an
input, one without makes that of a weight. A weight is a Parameter or what autocast has made of one.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any, Literal

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from precheck import ops
from precheck.recipes import quantising
from precheck.recipes.recipe import Quantiser, Recipe
from precheck.torch_internals import TorchDispatchMode, in_backward, storage_key

PRODUCTS = {getattr(torch.ops.aten, name).default: places for name, places in ops.DENSE_PRODUCTS.items() if name in ("mm", "addmm")}
COPIES = {getattr(torch.ops.aten, name).default for name in ("_to_copy",)}
OWN = "precheck_products"
"""Attribute of a parameter whose layer follows another recipe than its model: that recipe, or None for a layer that is not quantised."""
Kind = Literal["input", "weight", "gradient"]
Product = Literal["forward", "input gradient", "weight gradient"]


@dataclasses.dataclass(slots=True)
class Operand:
    """An operand of a product: its matrix with the summed dimension last, and whose history its scale follows."""

    kind: Kind
    matrix: torch.Tensor
    site: int
    how: Quantiser | None = None


class Known:
    """Storages that were seen as something, and the site at which; those that are gone are not known."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def add(self, tensor: torch.Tensor, site: int) -> None:
        self.seen[storage_key(tensor)] = StorageWeakRef(tensor.untyped_storage()), site

    def site(self, tensor: torch.Tensor) -> int | None:
        """At which site a tensor of that storage was seen."""
        found = self.seen.get(storage_key(tensor))
        return None if found is None or found[0].expired() else found[1]


class Histories:
    """Greatest magnitudes of the steps before, by site and operand, and the scale that follows: what a tensor is multiplied by."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.seen: dict[tuple[int, Kind], deque[torch.Tensor]] = {}
        self.used: dict[tuple[int, Kind], torch.Tensor] = {}

    def scale(self, operand: Operand, product: Product) -> torch.Tensor:
        """Of an operand that an earlier product of the step has scaled, that scale. At a site's first step, that of its own greatest magnitude."""
        assert operand.how is not None
        key = (operand.site, operand.kind)
        again = product == "weight gradient" or (product == "input gradient" and operand.kind == "weight")
        if again and key in self.used:
            return self.used[key]
        now, before = operand.matrix.detach().abs().amax().float(), self.seen.setdefault(key, deque(maxlen=self.length))
        expected = torch.stack(list(before)).amax() if before else now
        before.append(now)
        self.used[key] = quantising.multiplier(expected, operand.how)
        return self.used[key]


class RecipeProducts(TorchDispatchMode):
    """Carries products out as `recipe` says. With `noise`, a seed, each rounding to nearest is an error by chance of its size instead."""

    def __init__(self, recipe: Recipe, *, noise: int | None = None, low_only: bool = False) -> None:
        """`low_only`: products of float32 stay as they are, since they are kept so on purpose where autocast makes all others low."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.recipe, self.noise, self.low_only = recipe, noise, low_only
        self.weights, self.inputs, self.gradients = Known(), Known(), Known()
        self.own: dict[int, Recipe | None] = {}  # by site, of layers that follow another recipe
        self.histories = Histories(recipe.history)
        self.generators: dict[torch.device, torch.Generator] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs, places = kwargs or {}, PRODUCTS.get(func)
        if places is None:
            result = func(*args, **kwargs)
            if func in COPIES:
                self._copied(args[0], result)
            return result
        left, right = (args[place] for place in places)
        if not all(is_plain(tensor) for tensor in (left, right)) or (self.low_only and left.dtype is torch.float32):
            return func(*args, **kwargs)
        made = self.product(*self.operands(left, right))
        if made is None:
            return func(*args, **kwargs)
        if places[0]:  # addmm
            made = args[0].float() * kwargs.get("beta", 1) + made * kwargs.get("alpha", 1)
        return made.to(left.dtype)

    def _copied(self, source: torch.Tensor, copy: torch.Tensor) -> None:
        site = self._weight(source)
        if site is not None:
            self.weights.add(copy, site)

    def _weight(self, tensor: torch.Tensor) -> int | None:
        """The site of a weight; None if it is none."""
        base = tensor._base if tensor._base is not None else tensor
        if isinstance(base, torch.nn.Parameter):
            site = storage_key(base)
            if hasattr(base, OWN):
                self.own[site] = getattr(base, OWN)
            return site
        return self.weights.site(tensor)

    def product(self, product: Product, operands: tuple[Operand, Operand]) -> torch.Tensor | None:
        """The product in float32, from operands as the recipe has them; None where it leaves both alone."""
        made = self.quantised(product, operands)
        return None if made is None else self.summed(operands, made)

    def summed(self, operands: tuple[Operand, Operand], made: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """The product of two operands as the recipe has made them."""
        return _summed(*made, self._followed(operands[0]).chunk)

    def quantised(self, product: Product, operands: tuple[Operand, Operand]) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Both operands as the recipe has them, in float32; None where it leaves both alone. What a recipe turns first is turned in `operands`."""
        if self.own.get(operands[0].site, self.recipe) is None:
            return None
        recipe = self._followed(operands[0])
        pair = {"forward": recipe.forward, "input gradient": recipe.input_gradient, "weight gradient": recipe.weight_gradient}[product]
        places = {"forward": ("input", "weight"), "input gradient": ("gradient", "weight"), "weight gradient": ("gradient", "input")}[product]
        if pair == (None, None):
            return None
        for operand in operands:
            operand.how = pair[places.index(operand.kind)]
        size = max(each.hadamard for each in pair if each is not None)
        if size:
            for operand in operands:
                operand.matrix = quantising.turned(operand.matrix, size)
        return self._quantised(operands[0], product), self._quantised(operands[1], product)

    def _followed(self, operand: Operand) -> Recipe:
        return self.own.get(operand.site) or self.recipe

    def operands(self, left: torch.Tensor, right: torch.Tensor) -> tuple[Product, tuple[Operand, Operand]]:
        """Which product it is, and its operands in their order."""
        sites = self._weight(left), self._weight(right)
        backward = in_backward() and not torch.is_grad_enabled()  # a checkpoint's recomputation has autograd on
        site = next((each for each in reversed(sites) if each is not None), None)
        if not backward:
            return "forward", self._forward(left, right, sites, storage_key(right) if site is None else site)
        kinds: tuple[Kind, Kind]
        if site is not None:
            kinds = ("weight", "gradient") if sites[1] is None else ("gradient", "weight")
            self.gradients.add(left if kinds[0] == "gradient" else right, site)
            return "input gradient", _pair(kinds, left, right, site)
        kinds = ("input", "gradient") if self.inputs.site(left) is not None and self.inputs.site(right) is None else ("gradient", "input")
        gradient, given = (left, right) if kinds[0] == "gradient" else (right, left)
        found = self.gradients.site(gradient) or self.inputs.site(given)
        return "weight gradient", _pair(kinds, left, right, found or storage_key(given))

    def _forward(self, left: torch.Tensor, right: torch.Tensor, sites: tuple[int | None, int | None], site: int) -> tuple[Operand, Operand]:
        kinds: tuple[Kind, Kind] = ("weight", "input") if sites[0] is not None and sites[1] is None else ("input", "weight")
        given, weight = (left, right) if kinds[0] == "input" else (right, left)
        self.inputs.add(given, site)
        self.weights.add(weight, site)
        return _pair(kinds, left, right, site)

    def _quantised(self, operand: Operand, product: Product) -> torch.Tensor:
        if operand.how is None:
            return operand.matrix.float()
        by = self.histories.scale(operand, product) if operand.how.scale == "delayed" else None
        generator = self._generator(operand.matrix.device)
        return quantising.rounded(operand.matrix, operand.how, by=by, noise=self.noise is not None, generator=generator)

    def _generator(self, device: torch.device) -> torch.Generator:
        """A run's own, so that the model's random numbers stay as they are."""
        if device not in self.generators:
            self.generators[device] = torch.Generator(device).manual_seed(0 if self.noise is None else self.noise)
        return self.generators[device]


def _pair(kinds: tuple[Kind, Kind], left: torch.Tensor, right: torch.Tensor, site: int) -> tuple[Operand, Operand]:
    return Operand(kinds[0], left, site), Operand(kinds[1], right.t(), site)


def is_plain(tensor: Any) -> bool:
    """Whether a tensor is one of torch's own, of real numbers."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided and tensor.is_floating_point()


def _summed(first: torch.Tensor, second: torch.Tensor, chunk: int) -> torch.Tensor:
    """The sums over the last dimensions of both, in float32; `chunk` terms at a time, where there are more."""
    length = first.shape[-1]
    if not chunk or length <= chunk:
        return first @ second.t()
    total = first.new_zeros(first.shape[0], second.shape[0])
    for start in range(0, length, chunk):
        total.addmm_(first[:, start : start + chunk], second[:, start : start + chunk].t())
    return total
