"""Calls a model in another way: row by row, padded, with a cache. The weights keep their names, and only the forward pass changes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from precheck.observe.containers import call, mapped, tensors
from precheck.observe.job import InputError
from precheck.pairs.callables import Borrowed

Ask = Callable[[torch.nn.Module, Any], Any]
"""Calls a model on parts of the inputs or on altered inputs, and returns what one plain call would return."""
Step = Callable[[torch.nn.Module, Any, Any], tuple[Any, Any]]
"""A user's own decoding step. It takes the model, the next tokens and the state (None at first), and returns the output for these tokens and the new
state."""
Aligned = Callable[[torch.Tensor], torch.Tensor]
"""Makes a tensor of one run comparable with that of the other."""
SPARSE = frozenset({torch.sparse_coo, torch.sparse_csr, torch.sparse_csc})


class Asked(Borrowed):
    """`host` with its own children and weights, whose forward pass is `ask`."""

    def __init__(self, host: torch.nn.Module, ask: Ask) -> None:
        super().__init__(host)
        self.__dict__["ask"] = ask

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        alone = len(args) == 1 and not isinstance(args[0], (tuple, Mapping))  # a container that is an argument stays in its tuple
        given: Any = kwargs if kwargs and not args else args[0] if alone and not kwargs else args
        return self.__dict__["ask"](self.__dict__["original"], given)


def rows(inputs: Any) -> int:
    """The number of rows in the batch: the length of the first dimension of the first tensor."""
    first = next((tensor for _, tensor in tensors(inputs) if tensor.dim()), None)
    if first is None or not first.size(0):
        raise InputError("inputs hold no tensor with a batch dimension (the first); vary needs one for batch, order and microbatches")
    return first.size(0)


def chosen(inputs: Any, which: torch.Tensor | slice, count: int) -> Any:
    """Selects some rows from all tensors that have `count` rows."""

    def part(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dim() or tensor.size(0) != count:
            return tensor
        if tensor.is_nested:
            held = tensor.unbind()
            return _ragged([held[place] for place in torch.arange(count, device="cpu")[which].tolist()], tensor)
        if not tensor.is_sparse:
            return tensor[which]
        return tensor.index_select(0, torch.arange(count, device=tensor.device)[which])  # torch slices no sparse tensor

    return mapped(inputs, part)


def batch_axis(shape: Sequence[int], count: int) -> int:
    """The axis of a tensor along which `count` rows lie: the first, or else the only one of that length, as of the states of a recurrent layer."""
    found = [axis for axis, length in enumerate(shape) if length == count]
    return found[0] if len(found) == 1 else 0


def joined(outputs: Sequence[Any], lengths: Sequence[int], dims: int | Sequence[int], weights: Sequence[float]) -> Any:
    """Joins several outputs into one. Tensors are joined along an axis, or each along its own in `dims`, if that is as long as their part of the
    inputs. Scalars become weighted means."""
    parts = [[tensor for _, tensor in tensors(each)] for each in outputs]
    if len({len(each) for each in parts}) > 1:
        raise InputError("the model returned another number of tensors for one part of the inputs than for the other")
    axes = [dims] * len(parts[0]) if isinstance(dims, int) else list(dims)
    pieces: Iterator[tuple[tuple[torch.Tensor, ...], int]] = iter(zip(zip(*parts, strict=True), axes, strict=True))

    def whole(_: torch.Tensor) -> torch.Tensor:
        found, dim = next(pieces)
        if all(each.dim() > dim and each.size(dim) == length for each, length in zip(found, lengths, strict=True)):
            if found[0].is_nested:
                return _ragged([row for each in found for row in each.unbind()], found[0])
            return laid_out(torch.cat([dense(each) for each in found], dim), found[0].layout)
        if all(each.dim() == 0 and each.is_floating_point() for each in found):
            return torch.stack([each * weight for each, weight in zip(found, weights, strict=True)]).sum()
        return found[-1]

    return mapped(outputs[-1], whole)


def in_rows(size: int, weigh: Callable[[Any], float] | None, axes: Sequence[int]) -> Ask:
    """Calls the model on `size` rows at a time. `weigh` gives each part's weight in a mean, by default its number of rows. `axes`: along which rows
    lie in the tensors that one plain call returns."""

    def ask(model: torch.nn.Module, inputs: Any) -> Any:
        count = rows(inputs)
        pieces = [chosen(inputs, slice(start, start + size), count) for start in range(0, count, size)]
        lengths = [rows(each) for each in pieces]
        weights = [float(weigh(each)) for each in pieces] if weigh is not None else [float(each) for each in lengths]
        shares = weights if weigh is not None and sum(weights) == len(weights) else [each / sum(weights) for each in weights]
        outputs = [call(model, each) for each in pieces]
        return joined(outputs, lengths, axes if len(axes) == sum(1 for _ in tensors(outputs[0])) else 0, shares)

    return ask


def in_reverse(axes: Sequence[int]) -> Ask:
    """Calls the model on the rows in the opposite order. `axes` as of `in_rows`."""

    def ask(model: torch.nn.Module, inputs: Any) -> Any:
        count = rows(inputs)
        output = call(model, chosen(inputs, torch.arange(count - 1, -1, -1, device="cpu"), count))
        left = iter(axes if len(axes) == sum(1 for _ in tensors(output)) else ())
        return mapped(output, lambda tensor: turned_round(tensor, count, next(left, None)))

    return ask


def turned_round(tensor: torch.Tensor, count: int, axis: int | None = None) -> torch.Tensor:
    """A tensor with its `count` rows in the opposite order; as it is if it has no axis of that length."""
    if tensor.is_nested and tensor.size(0) == count:
        return _ragged(tensor.unbind()[::-1], tensor)
    axis = batch_axis(tensor.shape, count) if axis is None else axis
    if not tensor.dim() or tensor.shape[axis] != count:
        return tensor
    return laid_out(dense(tensor).index_select(axis, torch.arange(count - 1, -1, -1, device=tensor.device)), tensor.layout)


def _ragged(rows: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """Rows of other lengths as one tensor."""
    return torch.nested.as_nested_tensor(list(rows), layout=like.layout)


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """A sparse tensor with all its numbers, since torch neither joins nor turns all of its layouts."""
    return tensor.to_dense() if tensor.layout in SPARSE else tensor


def laid_out(tensor: torch.Tensor, layout: torch.layout) -> torch.Tensor:
    """A tensor in a layout, as a loss may need it."""
    return tensor.to_sparse(layout=layout) if layout in SPARSE else tensor


def plainly(model: torch.nn.Module, inputs: Any) -> Any:
    return call(model, inputs)


CACHES = ("past_key_values", "cache")
"""What transformers calls the keys and values of earlier tokens: before 5.24, and since."""


class Language:
    """Calls a language model by the conventions of transformers: the argument names of its forward, and the tokens among its inputs."""

    def __init__(self, model: torch.nn.Module, inputs: Any) -> None:
        self.names = inspect.signature(model.forward).parameters
        first = inputs.get("input_ids") if isinstance(inputs, dict) else inputs if isinstance(inputs, torch.Tensor) else None
        if first is None and isinstance(inputs, tuple) and inputs and isinstance(inputs[0], torch.Tensor):
            first = inputs[0]
        self.tokens = first if first is not None and first.dim() == 2 and not first.is_floating_point() else None
        self.cache = next((name for name in CACHES if name in self.names), CACHES[0])
        self.filler = getattr(getattr(model, "config", None), "pad_token_id", None) or 0

    def takes(self, name: str) -> bool:
        return name in self.names or any(each.kind is inspect.Parameter.VAR_KEYWORD for each in self.names.values())

    def needs(self, variation: str, *names: str) -> torch.Tensor:
        """The tokens. Raises InputError if there are none, or if the forward pass does not take arguments of these names."""
        if self.tokens is None:
            raise InputError(f"{variation} needs tokens, (batch, length) of integers, as the only input, the first or under the name input_ids")
        for name in names:
            if not self.takes(name):
                raise InputError(
                    f"{variation} needs a model whose forward takes {name}, as those of transformers do"
                    + ("; for any other pass step=, a function of model, tokens and state" if name in CACHES or variation == "packing" else "")
                )
        return self.tokens

    def ask(self, model: torch.nn.Module, inputs: Any, tokens: torch.Tensor, **more: Any) -> Any:
        if isinstance(inputs, dict):
            return model(**{**inputs, "input_ids": tokens, **more})
        return model(tokens, *(inputs[1:] if isinstance(inputs, tuple) else ()), **more)

    def padded(self, left: bool, amount: int) -> Ask:
        """Adds `amount` filler tokens before or after each row, which the mask hides, and removes their positions from the output."""

        def ask(model: torch.nn.Module, inputs: Any) -> Any:
            tokens = _tokens(inputs)
            mask = inputs.get("attention_mask") if isinstance(inputs, dict) else None
            mask = torch.ones_like(tokens) if mask is None else mask
            filler, hidden = tokens.new_full((len(tokens), amount), self.filler), mask.new_zeros(len(tokens), amount)
            more: dict[str, Any] = {"attention_mask": torch.cat([hidden, mask] if left else [mask, hidden], 1)}
            if left and self.takes("position_ids"):
                more["position_ids"] = (more["attention_mask"].cumsum(1) - 1).clamp(min=0)
            if isinstance(inputs, dict) and isinstance(inputs.get("labels"), torch.Tensor):
                ignored = inputs["labels"].new_full((len(tokens), amount), -100)
                more["labels"] = torch.cat([ignored, inputs["labels"]] if left else [inputs["labels"], ignored], 1)
            out = self.ask(model, inputs, torch.cat([filler, tokens] if left else [tokens, filler], 1), **more)
            return cropped(out, tokens.shape[1] + amount, tokens.shape[1], left)

        return ask

    def shifted(self, amount: int) -> Ask:
        """Moves all positions by `amount`. The result stays the same for a model that uses only distances between positions."""

        def ask(model: torch.nn.Module, inputs: Any) -> Any:
            tokens = _tokens(inputs)
            positions = inputs.get("position_ids") if isinstance(inputs, dict) else None
            positions = torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), -1) if positions is None else positions
            return self.ask(model, inputs, tokens, position_ids=positions + amount)

        return ask

    def in_pieces(self, size: int, step: Step | None) -> Ask:
        """Gives the model `size` tokens at a time, with the cache or state of the tokens before."""

        def ask(model: torch.nn.Module, inputs: Any) -> Any:
            tokens, kept, outputs, place = _tokens(inputs), None, [], 0
            pieces = tokens.split(size, 1)
            mask = inputs.get("attention_mask") if isinstance(inputs, dict) else None
            for piece in pieces:
                place += piece.shape[1]
                if step is not None:
                    out, kept = step(model, piece, kept)
                else:
                    more = {self.cache: kept, "use_cache": True} | ({} if mask is None else {"attention_mask": mask[:, :place]})
                    rest = {name: value for name, value in inputs.items() if name != "labels"} if isinstance(inputs, dict) else inputs
                    out = self.ask(model, rest, piece, **more)
                    kept = getattr(out, self.cache, None)
                    if kept is None:
                        raise InputError(f"the model returned no {self.cache}; pass step=, a function of model, tokens and state")
                outputs.append(out)
            return joined(outputs, [piece.shape[1] for piece in pieces], 1, [0.0] * len(pieces))

        return ask


def cropped(output: Any, long: int, length: int, left: bool) -> Any:
    """Removes the positions that were added, from all tensors that have them."""

    def crop(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() < 2 or tensor.shape[1] != long:
            return tensor
        return tensor[:, long - length :] if left else tensor[:, :length]

    return mapped(output, crop)


def _tokens(inputs: Any) -> torch.Tensor:
    found: torch.Tensor = inputs["input_ids"] if isinstance(inputs, dict) else inputs[0] if isinstance(inputs, tuple) else inputs
    return found
