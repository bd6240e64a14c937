"""A recipe carried out: inside the mode, each product of two matrices sees operands as the recipe quantises them, forward and backward.

A product is told by its operands. A product of a forward pass has an input and a weight. In a backward pass one with a weight makes the gradient of
an input, and one without makes that of a weight. Autograd's node says of which call. A weight is a Parameter, or what has been made of Parameters
alone.
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
from precheck.recipes.recipe import Quantiser, Recipe
from precheck.torch_internals import TorchDispatchMode, backward_node, in_backward, next_sequence_number, sequence_number, storage_key

PRODUCTS = {getattr(torch.ops.aten, name).default: places for name, places in ops.DENSE_PRODUCTS.items() if name in ("mm", "addmm")}
REMEMBERED = 1 << 17
"""Products whose calls are remembered for the backward pass."""
OWN = "precheck_products"
"""Attribute of a parameter whose layer follows another recipe than its model: that recipe, or None for a layer that is not quantised."""
Kind = Literal["input", "weight", "gradient"]
Product = Literal["forward", "input gradient", "weight gradient"]


@dataclasses.dataclass(slots=True)
class Call:
    """One call of a layer, forward and backward. `scales` are what its operands were multiplied by, where a recipe delays scales."""

    site: int
    shape: tuple[int, int]  # of the weight, as the product has it
    scales: dict[Kind, torch.Tensor] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True)
class Operand:
    """An operand of a product: its matrix with the summed dimension last, and whose history its scale follows."""

    kind: Kind
    matrix: torch.Tensor
    call: Call
    how: Quantiser | None = None

    @property
    def site(self) -> int:
        return self.call.site


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
    """Greatest magnitudes of the calls before, by site and operand, and operands quantised under the scales that follow."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.seen: dict[tuple[int, Kind], deque[torch.Tensor]] = {}
        self.told: deque[delays.Delayed] = deque(maxlen=2)  # of the operands of the last product, whose scales are of calls before

    def quantised(self, operand: Operand, noise: bool, generator: torch.Generator) -> torch.Tensor:
        """Under one scale a call, for all its products. Where nothing but zeros has been seen before, that of its own greatest magnitude."""
        assert operand.how is not None
        matrix, how, scales = operand.matrix, operand.how, operand.call.scales
        if operand.kind in scales:
            return quantising.rounded(matrix, how, by=scales[operand.kind], noise=noise, generator=generator)
        now, before = matrix.detach().abs().amax().float(), self.seen.setdefault((operand.site, operand.kind), deque(maxlen=self.length))
        expected = torch.stack(list(before)).amax() if before else now
        told, expected = bool(before) and bool(expected > 0), torch.where(expected > 0, expected, now)
        before.append(torch.where(now.isfinite(), now, torch.zeros_like(now)))  # as Transformer Engine, whose scale stays where a gradient overflows
        scales[operand.kind] = quantising.multiplier(expected, how)
        made = quantising.rounded(matrix, how, by=scales[operand.kind], noise=noise, generator=generator)
        if told and not noise:
            self.told.append(self._told(operand, made, now, expected))
        return made

    def _told(self, operand: Operand, made: torch.Tensor, now: torch.Tensor, expected: torch.Tensor) -> delays.Delayed:
        assert operand.how is not None
        if delays.fits(now, expected):
            return delays.Delayed(operand.kind)
        own = quantising.rounded(operand.matrix, operand.how, by=quantising.multiplier(now, operand.how))
        return delays.delayed(operand.kind, operand.matrix, made, own, float(now / expected))


class RecipeProducts(TorchDispatchMode):
    """Carries products out as `recipe` says. With `noise`, a seed, each rounding to nearest is an error by chance of its size instead."""

    def __init__(self, recipe: Recipe, *, noise: int | None = None, low_only: bool = False) -> None:
        """`low_only`: products of float32 stay as they are, since they are kept so on purpose where autocast makes all others low."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.recipe, self.noise, self.low_only = recipe, noise, low_only
        self.weights, self.inputs, self.gradients = Known(), Known(), Known()
        self.own: dict[int, Recipe | None] = {}  # by site, of layers that follow another recipe
        self.calls: dict[int, Call] = {}  # the last at each site
        self.nodes: dict[int, Call | None] = {}  # by the number of autograd's node; None of a product that is no layer's
        self.histories = Histories(recipe.history)
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
        """Told of all ops: what is made of weights alone is a weight, as a cast, three that are stacked, a merged adapter."""
        if in_backward():
            return
        sites = [self._weight(tensor) if is_plain(tensor) else None for tensor in tensors_in(args) if tensor.dim()]
        if sites and sites[0] is not None and None not in sites:
            for tensor in tensors_in([result]):
                if is_plain(tensor):
                    self.weights.add(tensor, sites[0])

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
        return self._quantised(operands[0]), self._quantised(operands[1])

    def _followed(self, operand: Operand) -> Recipe:
        return self.own.get(operand.site) or self.recipe

    def operands(self, left: torch.Tensor, right: torch.Tensor) -> tuple[Product, tuple[Operand, Operand]] | None:
        """Which product it is, and its operands in their order; None for a product that is no layer's, as that of two activations is."""
        sites = self._weight(left), self._weight(right)
        site = next((each for each in reversed(sites) if each is not None), None)
        if not in_backward() or torch.is_grad_enabled():  # a checkpoint's recomputation has autograd on
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
        """The call to which a product of a hand-written backward pass belongs. It is found by its weight, or by its input and the shape of its
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
            return self.histories.quantised(operand, noise, generator)
        return quantising.rounded(operand.matrix, operand.how, noise=noise, generator=generator)

    def _generator(self, device: torch.device) -> torch.Generator:
        """A run's own, so that the model's random numbers stay as they are."""
        if device not in self.generators:
            self.generators[device] = torch.Generator(device).manual_seed(0 if self.noise is None else self.noise)
        return self.generators[device]


def _pair(kinds: tuple[Kind, Kind], left: torch.Tensor, right: torch.Tensor, call: Call) -> tuple[Operand, Operand]:
    return Operand(kinds[0], left, call), Operand(kinds[1], right.t(), call)


def tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among arguments, inside lists too."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


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
