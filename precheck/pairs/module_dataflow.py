"""Records the tensors that pass between the modules in one run: inputs and outputs of each call, in order, and the modules that made them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch.utils.hooks import RemovableHandle

from precheck.observe.containers import tensors
from precheck.observe.recording.sketch import sketch
from precheck.pairs.capture import copied
from precheck.torch_internals import in_backward, is_transformed, no_dispatch


@dataclasses.dataclass(slots=True, eq=False)
class Passage:
    """One tensor at a call of a module: an input ("in"), one of whole numbers ("whole"), an input of a call that the backward pass repeats ("again"),
    an output ("out"), or the gradient of an output ("back")."""

    kind: Literal["in", "whole", "again", "out", "back"]
    module: str
    call: int
    place: int  # the position among the tensors of that kind of the call
    tensor: torch.Tensor
    maker: str = ""  # the first module that returned it; if none did, the module whose own code made it
    given: bool = False  # whether a module returned exactly this tensor
    caller: str = ""  # the module whose forward made the call
    linear: bool = False  # whether a linear layer of torch returned it
    gradient: torch.Tensor | None = None
    shape: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.kind, self.module, self.call, self.place


class Passages:
    """Hooks on all modules of a model, for one run of its first step. `whole`: note whole numbers too, such as tokens, places and time steps.
    `sketches`: keep a sketch of each tensor in its place, and no gradients."""

    def __init__(self, model: torch.nn.Module, *, whole: bool = False, sketches: bool = False) -> None:
        self.model, self.whole, self.keep, self.backward = model, whole, sketched if sketches else copied, not sketches
        self.found: list[Passage] = []
        self.handles: list[RemovableHandle] = []
        self.stack: list[str] = [""]
        self.calls: Counter[str] = Counter()
        self.made: dict[int, tuple[torch.Tensor, str]] = {}
        self.taken: dict[int, tuple[torch.Tensor, str]] = {}  # inputs that no module returned, with the module whose own code made them

    @contextlib.contextmanager
    def followed(self) -> Iterator[list[Passage]]:
        for name, module in self.model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                self.handles.append(module.register_forward_pre_hook(self._entering(name), with_kwargs=True))
                self.handles.append(module.register_forward_hook(self._leaving(name), always_call=True))
        try:
            yield self.found
        finally:
            for handle in self.handles:
                handle.remove()
            self.made.clear()
            self.taken.clear()

    def _entering(self, name: str) -> Any:
        def hook(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            given_ = (*args, *kwargs.values())
            if in_backward():
                self.found += [Passage("again", name, 0, place, self.keep(tensor)) for place, tensor in enumerate(_floats(given_))]
                return
            self.calls[name] += 1
            read: dict[Literal["in", "whole"], list[torch.Tensor]] = {"in": _floats(given_), "whole": _wholes(given_) if self.whole else []}
            for kind, place, tensor in ((kind, *each) for kind, some in read.items() for each in enumerate(some)):
                known = self.made.get(id(tensor))
                given = known is not None and known[0] is tensor
                if known is None or not given:
                    known = self.taken.get(id(tensor))
                    if known is None or known[0] is not tensor:
                        known = self.taken[id(tensor)] = tensor, self.stack[-1]
                maker = known[1]
                self._add(Passage(kind, name, self.calls[name], place, self.keep(tensor), maker, given, self.stack[-1]), tensor)
            self.stack.append(name)

        return hook

    def _leaving(self, name: str) -> Any:
        def hook(module: torch.nn.Module, args: Any, output: Any) -> None:
            if in_backward():
                return
            if len(self.stack) > 1:
                self.stack.pop()
            call = self.calls[name]
            for place, tensor in enumerate(_floats(output)):
                known = self.made.get(id(tensor))
                first = known[1] if known is not None and known[0] is tensor else name
                self._add(Passage("out", name, call, place, self.keep(tensor), first, linear=type(module) is torch.nn.Linear), tensor)
                if known is None or known[0] is not tensor:
                    self.made[id(tensor)] = (tensor, name)
                    if tensor.requires_grad and self.backward:
                        self.handles.append(tensor.register_hook(self._back(name, call, place)))

        return hook

    def _add(self, passage: Passage, tensor: torch.Tensor) -> None:
        def hook(gradient: torch.Tensor | None) -> None:
            passage.gradient = None if gradient is None else copied(gradient)

        passage.shape = tuple(tensor.shape)
        self.found.append(passage)
        if tensor.requires_grad and self.backward:
            self.handles.append(tensor.register_hook(hook))

    def _back(self, name: str, call: int, place: int) -> Any:
        def hook(gradient: torch.Tensor | None) -> None:
            if gradient is not None:
                self.found.append(Passage("back", name, call, place, copied(gradient)))

        return hook


def sketched(tensor: torch.Tensor) -> torch.Tensor:
    """The sketch of a tensor, made unseen by any mode."""
    with no_dispatch(), torch.no_grad():
        return torch.from_numpy(sketch(tensor, finite=False))


def _wholes(value: Any) -> list[torch.Tensor]:
    """The tensors of whole numbers in `value`."""
    held = (tensor for _, tensor in tensors(value) if tensor.dtype in (torch.int64, torch.int32) and tensor.numel())
    return [tensor for tensor in held if not is_transformed(tensor)]


def _floats(value: Any) -> list[torch.Tensor]:
    """The floating-point tensors in `value`, but for ragged ones and those inside of torch.vmap or torch.func.grad, whose numbers are not at hand."""
    held = (tensor for _, tensor in tensors(value) if tensor.is_floating_point() and tensor.layout is torch.strided and tensor.numel())
    return [tensor for tensor in held if not is_transformed(tensor) and not tensor.is_nested]
