"""Applies a recipe: inside the mode, the operands of each product of two matrices are quantised as the recipe says, forward and backward.

A product is identified by its operands. Forward, it has an input and a weight. Backward, a product with a weight makes the gradient of an input, and
one without makes the gradient of a weight. Autograd's node identifies the call. A weight is a Parameter, or a tensor that is computed from Parameters
only.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from precheck import ops
from precheck.recipes import delays, quantising
from precheck.recipes.recipe import KINDS, Kind, Quantiser, Recipe
from precheck.torch_internals import backward_node, in_backward, next_sequence_number, sequence_number, storage_key
from precheck.torch_support.tensor_classes import Mode

PRODUCTS = {getattr(torch.ops.aten, name).default: places for name, places in ops.DENSE_PRODUCTS.items() if name in ("mm", "addmm")}
REMEMBERED = 1 << 17
"""Products whose calls are kept for the backward pass."""
OWN = "precheck_products"
"""Attribute of a parameter whose layer follows another recipe than its model. It holds that recipe, or None for a layer that is not quantised."""
Product = Literal["forward", "input gradient", "weight gradient"]


@dataclasses.dataclass(slots=True)
class Call:
    """One call of a layer, forward and backward. `scales` are the factors of its operands, if the recipe has delayed scales."""

    site: int
    shape: tuple[int, int]  # of the weight, as the product takes it
    scales: dict[Kind, torch.Tensor] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True)
class Operand:
    """An operand of a product: its matrix with the summed dimension last, and the call whose history its scale follows."""

    kind: Kind
    matrix: torch.Tensor
    call: Call
    how: Quantiser | None = None

    @property
    def site(self) -> int:
        return self.call.site


class Known:
    """Maps storages to the site where they were used. Storages that were freed are unknown."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def add(self, tensor: torch.Tensor, site: int) -> None:
        self.seen[storage_key(tensor)] = StorageWeakRef(tensor.untyped_storage()), site

    def site(self, tensor: torch.Tensor) -> int | None:
        """The site where a tensor with this storage was used, or None."""
        found = self.seen.get(storage_key(tensor))
        return None if found is None or found[0].expired() else found[1]


class Histories:
    """The greatest magnitudes of earlier calls, by site and operand. Quantises operands under the scales that follow from them."""

    def __init__(self) -> None:
        self.seen: dict[tuple[int, Kind], deque[torch.Tensor]] = {}
        self.told: deque[delays.Delayed] = deque(maxlen=2)  # the operands of the last product, if their scales come from earlier calls

    def quantised(self, operand: Operand, recipe: Recipe, noise: bool, generator: torch.Generator) -> torch.Tensor:
        """Quantises under one scale per call, for all its products. If earlier calls had only zeros, the scale is that of the operand itself."""
        assert operand.how is not None
        matrix, how, scales = operand.matrix, operand.how, operand.call.scales
        if operand.kind in scales:
            return quantising.rounded(matrix, how, by=scales[operand.kind], noise=noise, generator=generator)
        now, before = matrix.detach().abs().amax().float(), self.seen.setdefault((operand.site, operand.kind), deque(maxlen=recipe.history))
        expected = torch.stack(list(before)).amax() if before else now
        told, expected = bool(before) and bool(expected > 0), torch.where(expected > 0, expected, now) * 2**recipe.margin
        before.append(torch.where(now.isfinite(), now, torch.zeros_like(now)))  # as in Transformer Engine, which keeps its scale at an overflow
        scales[operand.kind] = quantising.multiplier(expected, how)
        made = quantising.rounded(matrix, how, by=scales[operand.kind], noise=noise, generator=generator)
        if told and not noise:
            self.told.append(dataclasses.replace(self._told(operand, made, now, expected), history=recipe.history))
        return made

    def _told(self, operand: Operand, made: torch.Tensor, now: torch.Tensor, expected: torch.Tensor) -> delays.Delayed:
        assert operand.how is not None
        if delays.fits(now, expected):
            return delays.Delayed(operand.kind)
        own = quantising.rounded(operand.matrix, operand.how, by=quantising.multiplier(now, operand.how))
        return dataclasses.replace(delays.delayed(operand.kind, operand.matrix, made, own), grown=float(now / expected))


class RecipeProducts(Mode):
    """Computes products as `recipe` says. With `noise`, a seed, each rounding to nearest is replaced by a random error of its size."""

    def __init__(self, recipe: Recipe, *, noise: int | None = None, low_only: bool = False) -> None:
        """`low_only`: products in float32 are not quantised. Where autocast makes all others low, they are kept in float32 on purpose."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.recipe, self.noise, self.low_only = recipe, noise, low_only
        self.weights, self.inputs, self.gradients = Known(), Known(), Known()
        self.own: dict[int, Recipe | None] = {}  # recipes of layers that do not follow the model's, by site
        self.calls: dict[int, Call] = {}  # the last call at each site
        self.nodes: dict[int, Call | None] = {}  # by the number of autograd's node; None for a product that belongs to no layer
        self.histories = Histories()
        self.generators: dict[torch.device, torch.Generator] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = self._carried_out(func, args, kwargs or {})
        self.made(args, result)
        return result

    def _carried_out(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        places = PRODUCTS.get(func)
        if places is None:
            return func(*args, **kwargs)
        left, right = (args[place] for place in places)
        if not all(is_plain(tensor) for tensor in (left, right)) or (self.low_only and left.dtype is torch.float32):
            return func(*args, **kwargs)
        found = self.operands(left, right)
        made = None if found is None else self.product(*found)
        if made is None:
            return func(*args, **kwargs)
        if places[0]:  # addmm
            made = args[0].float() * kwargs.get("beta", 1) + made * kwargs.get("alpha", 1)
        return made.to(left.dtype)

    def made(self, args: Iterable[Any], result: Any) -> None:
        """Sees the arguments and the result of every op. A result of weights only is a weight too, such as a cast, a stack or a merged adapter."""
        if in_backward():
            return
        sites = [self._weight(tensor) if is_plain(tensor) else None for tensor in tensors_in(args) if tensor.dim()]
        if sites and sites[0] is not None and None not in sites:
            for tensor in tensors_in([result]):
                if is_plain(tensor):
                    self.weights.add(tensor, sites[0])

    def _weight(self, tensor: torch.Tensor) -> int | None:
        """The site of a weight, or None if the tensor is no weight."""
        base = tensor._base if tensor._base is not None else tensor
        if isinstance(base, torch.nn.Parameter):
            site = storage_key(base)
            if hasattr(base, OWN):
                self.own[site] = getattr(base, OWN)
            return site
        return self.weights.site(tensor)

    def product(self, product: Product, operands: tuple[Operand, Operand]) -> torch.Tensor | None:
        """The product in float32 of the quantised operands, or None if the recipe quantises neither."""
        made = self.quantised(product, operands)
        return None if made is None else self.summed(operands, made)

    def summed(self, operands: tuple[Operand, Operand], made: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """The product of two quantised operands."""
        return _summed(*made, self._followed(operands[0]).chunk)

    def quantised(self, product: Product, operands: tuple[Operand, Operand]) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Both operands quantised, in float32, or None if the recipe quantises neither. A Hadamard transform is also applied to `operands`."""
        if self.own.get(operands[0].site, self.recipe) is None:
            return None
        recipe = self._followed(operands[0])
        name = product.replace(" ", "_")
        pair, places = getattr(recipe, name), KINDS[name]
        if pair == (None, None):
            return None
        for operand in operands:
            operand.how = pair[places.index(operand.kind)]
        size = max(each.hadamard for each in pair if each is not None)
        if size:
            for operand in operands:
                operand.matrix = quantising.rotated(operand.matrix, size)
        return self._quantised(operands[0]), self._quantised(operands[1])

    def _followed(self, operand: Operand) -> Recipe:
        return self.own.get(operand.site) or self.recipe

    def operands(self, left: torch.Tensor, right: torch.Tensor) -> tuple[Product, tuple[Operand, Operand]] | None:
        """Which product it is, and its operands in their order. None for a product that belongs to no layer, such as one of two activations."""
        sites = self._weight(left), self._weight(right)
        site = next((each for each in reversed(sites) if each is not None), None)
        if not in_backward() or torch.is_grad_enabled():  # autograd is on while a checkpoint is recomputed
            return self._forward(left, right, sites, site)
        node = backward_node()
        number = -1 if node is None else sequence_number(node)
        call = self.nodes[number] if number in self.nodes else self._guessed(left, right, site)
        if call is None:
            return None
        kinds: tuple[Kind, Kind]
        if site is not None:
            kinds = ("weight", "gradient") if sites[1] is None else ("gradient", "weight")
            self.gradients.add(left if kinds[0] == "gradient" else right, site)
            return "input gradient", _pair(kinds, left, right, call)
        kinds = ("input", "gradient") if self.inputs.site(left) is not None and self.inputs.site(right) is None else ("gradient", "input")
        return "weight gradient", _pair(kinds, left, right, call)

    def _forward(
        self, left: torch.Tensor, right: torch.Tensor, sites: tuple[int | None, int | None], site: int | None
    ) -> tuple[Product, tuple[Operand, Operand]] | None:
        kinds: tuple[Kind, Kind] = ("weight", "input") if sites[0] is not None and sites[1] is None else ("input", "weight")
        given, weight = (left, right) if kinds[0] == "input" else (right, left)
        call = None if site is None else Call(site, (weight.shape[0], weight.shape[1]))
        if torch.is_grad_enabled():  # autograd has just made the node of this product
            self.nodes[next_sequence_number() - 1] = call
            if len(self.nodes) > REMEMBERED:
                self.nodes = dict(list(self.nodes.items())[REMEMBERED // 2 :])
        if call is None or site is None:
            return None
        self.calls[site] = call
        self.inputs.add(given, site)
        return "forward", _pair(kinds, left, right, call)

    def _guessed(self, left: torch.Tensor, right: torch.Tensor, site: int | None) -> Call | None:
        """The call that a product of a hand-written backward pass belongs to. It is found by its weight, or by its input and the shape of its
        result."""
        if site is not None:
            return self.calls.get(site) or Call(site, (0, 0))
        seen = (known.site(operand) for known in (self.gradients, self.inputs) for operand in (left, right))
        calls = (self.calls.get(each) for each in seen if each is not None)
        shape = left.shape[0], right.shape[1]
        return next((call for call in calls if call is not None and shape in (call.shape, call.shape[::-1])), None)

    def _quantised(self, operand: Operand) -> torch.Tensor:
        if operand.how is None:
            return operand.matrix.float()
        noise, generator = self.noise is not None, self._generator(operand.matrix.device)
        if operand.how.scale == "delayed":
            return self.histories.quantised(operand, self._followed(operand), noise, generator)
        return quantising.rounded(operand.matrix, operand.how, noise=noise, generator=generator)

    def _generator(self, device: torch.device) -> torch.Generator:
        """A generator of its own for each run, so that the model's random numbers do not change."""
        if device not in self.generators:
            self.generators[device] = torch.Generator(device).manual_seed(0 if self.noise is None else self.noise)
        return self.generators[device]


def _pair(kinds: tuple[Kind, Kind], left: torch.Tensor, right: torch.Tensor, call: Call) -> tuple[Operand, Operand]:
    return Operand(kinds[0], left, call), Operand(kinds[1], right.t(), call)


def tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among arguments, also those in lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def is_plain(tensor: Any) -> bool:
    """Whether it is an ordinary strided floating-point tensor or Parameter, no subclass."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided and tensor.is_floating_point()


def _summed(first: torch.Tensor, second: torch.Tensor, chunk: int) -> torch.Tensor:
    """The product of both, summed over their last dimensions in float32, in chunks of `chunk` terms if there are more."""
    length = first.shape[-1]
    if not chunk or length <= chunk:
        return first @ second.t()
    total = first.new_zeros(first.shape[0], second.shape[0])
    for start in range(0, length, chunk):
        total.addmm_(first[:, start : start + chunk], second[:, start : start + chunk].t())
    return total
