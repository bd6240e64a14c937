"""Records the tensors that pass between the modules in one run: inputs and outputs of each call, in order, and the modules that made them."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from precheck.observe.containers import tensors
from precheck.observe.recording.sketch import sketch
from precheck.pairs.capture import copied
from precheck.pairs.held_state import Held, HeldState, leaves, objects
from precheck.torch_internals import in_backward, is_transformed, no_dispatch, version
from precheck.torch_support.dense_parts import continuous


@dataclasses.dataclass(slots=True, eq=False)
class Passage:
    """One tensor at a call of a module: a weight that the code around it lends to it for the call, as `torch.func.functional_call` does ("lent"), an
    input ("in"), one of whole numbers or a number of Python's ("whole"), an input of a call that the backward pass repeats ("again"), an output
    ("out"), one of whole numbers or truth values ("flags"), or the gradient of an output ("back")."""

    kind: Literal["lent", "in", "whole", "again", "out", "flags", "back"]
    module: str
    call: int
    place: int  # the position among the tensors of that kind of the call
    tensor: torch.Tensor
    maker: str = ""  # the first module that returned it; if none did, the module whose own code made it
    given: bool = False  # whether a module returned exactly this tensor
    caller: str = ""  # the module whose forward made the call
    linear: bool = False  # whether a linear layer of torch returned it
    gradient: torch.Tensor | None = None
    handed_back: torch.Tensor | None = None  # of an output: its gradient after all hooks that code has put on it
    shape: tuple[int, ...] = ()
    wanted: bool = False  # whether it requires a gradient
    maker_call: int = 0  # which call of the maker returned it, if one did
    recording: bool = True  # of an input: whether the call records its gradient, which torch.no_grad switches off
    node: Any = None  # of the graph of the backward pass, that made the tensor
    held: tuple[Held, ...] = ()  # of a call's first input: what the call gets beside its arguments

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.kind, self.module, self.call, self.place


class Origin(NamedTuple):
    """A tensor and the call of a module that made it."""

    tensor: torch.Tensor
    module: str
    call: int  # 0 if no call returned it
    version: int  # torch counts how often a tensor was written to


class Passages:
    """Hooks on all modules of a model, for one run of its first step. `whole`: note whole numbers too, such as tokens, places and time steps.
    `sketches`: keep a sketch of each tensor in its place, and no gradients."""

    def __init__(self, model: torch.nn.Module, *, whole: bool = False, sketches: bool = False) -> None:
        self.model, self.whole, self.keep, self.backward = model, whole, sketched if sketches else real_copy, not sketches
        self.found: list[Passage] = []
        self.handles: list[RemovableHandle] = []
        self.stack: list[str] = [""]
        self.lenders: list[str | None] = [None]  # the module whose code lends the weights of each call, if they are lent
        self.calls: Counter[str] = Counter()
        self.made: dict[int, Origin] = {}  # tensors that modules returned
        self.taken: dict[int, Origin] = {}  # inputs that no module returned
        self.own: dict[int, set[int]] = {}  # the weights of each module
        self.state: HeldState | None = None
        self.given: list[Any] = []  # the arguments of the calls that run

    @contextlib.contextmanager
    def followed(self) -> Iterator[list[Passage]]:
        self.own = {id(module): {id(each) for each in module.parameters()} for module in self.model.modules()}
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
            given = (*args, *_in_order(module, kwargs).values())
            if in_backward():
                self.found += [Passage("again", name, 0, place, self.keep(tensor)) for place, tensor in enumerate(floats(given))]
                return
            self.calls[name] += 1
            lender = self._lender(module)
            if lender is not None:
                self._read("lent", name, floats(list(module.parameters(recurse=False))), lender)
            if self.state is None and self.backward:
                self.state = HeldState(self.model)  # not before the first call: the run casts the model, which puts other buffers into it
            held = self.state.entering(module, given, self.stack[-1]) if self.state else ()
            self._read("in", name, floats(given), self.stack[-1], held)
            self._read("whole", name, _wholes(given) if self.whole else [], self.stack[-1])
            self.lenders.append(lender)
            self.stack.append(name)
            self.given.append(given)

        return hook

    def _read(
        self, kind: Literal["lent", "in", "whole"], name: str, read: list[torch.Tensor], maker: str, held: tuple[Held, ...] = ()
    ) -> None:  # fmt: skip
        for place, tensor in enumerate(read):
            known = _origin(self.made, tensor)
            given = known is not None
            known = known or _origin(self.taken, tensor) or self._made_by(tensor, maker)
            passage = Passage(kind, name, self.calls[name], place, self.keep(tensor), known.module, given, self.stack[-1], maker_call=known.call)
            passage.held, passage.recording = held if not place else (), torch.is_grad_enabled()
            self._add(passage, tensor)

    def _lender(self, module: torch.nn.Module) -> str | None:
        """The module whose code lends this one its weights. If some are not its own, the code that makes the outermost such call lends
        all weights in it."""
        if self.lenders[-1] is None and any(id(each) not in self.own[id(module)] for each in module.parameters()):
            return self.stack[-1]
        return self.lenders[-1]

    def _leaving(self, name: str) -> Any:
        def hook(module: torch.nn.Module, args: Any, output: Any) -> None:
            if in_backward():
                return
            if len(self.stack) > 1:
                self.stack.pop()
                self.lenders.pop()
                given = self.given.pop()
                if self.state:
                    self.state.leaving(module, (given, output), name)
            call = self.calls[name]
            self._flags(name, call, output)
            for tensor in floats(args):
                if not (_origin(self.made, tensor) or _origin(self.taken, tensor)):
                    self._made_by(tensor, name)  # the module's own code has written to it
            for place, tensor in enumerate(floats(output)):
                known = _origin(self.made, tensor)
                first = name if known is None else known.module
                passage = Passage("out", name, call, place, self.keep(tensor), first, False, self.stack[-1], type(module) is torch.nn.Linear)
                self._add(passage, tensor)
                if known is None:
                    self.made[id(tensor)] = Origin(tensor, name, call, version(tensor))
                    if tensor.requires_grad and self.backward:
                        self.handles.append(tensor.register_hook(self._back(name, call, place)))
                        if tensor.grad_fn is not None:
                            self.handles.append(tensor.grad_fn.register_prehook(self._after_hooks(passage, tensor.output_nr)))

        return hook

    def _flags(self, name: str, call: int, output: Any) -> None:
        """Notes whole numbers and truth values that a module returns, in objects too."""
        inside = [each for holder in objects(output) for _, each in leaves(holder)] if self.whole else []
        held = [each for _, each in tensors(output)] + [each for each in inside if isinstance(each, torch.Tensor)] if self.whole else []
        for place, tensor in enumerate(each for each in held if not continuous(each) and each.numel() and not is_transformed(each)):
            self.found.append(Passage("flags", name, call, place, self.keep(tensor), name, caller=self.stack[-1]))
            if _origin(self.made, tensor) is None:
                self.made[id(tensor)] = Origin(tensor, name, call, version(tensor))

    def _made_by(self, tensor: torch.Tensor, module: str) -> Origin:
        """Notes the module whose own code made a tensor, or has written to it last."""
        self.made.pop(id(tensor), None)
        self.taken[id(tensor)] = Origin(tensor, module, 0, version(tensor))
        return self.taken[id(tensor)]

    def _add(self, passage: Passage, tensor: torch.Tensor) -> None:
        def hook(gradient: torch.Tensor | None) -> None:
            passage.gradient = None if gradient is None else real_copy(gradient)

        passage.shape, passage.wanted = tuple(passage.tensor.shape if self.backward else tensor.shape), tensor.requires_grad
        self.found.append(passage)
        passage.node = tensor.grad_fn if self.backward else None
        if tensor.requires_grad and self.backward:
            self.handles.append(tensor.register_hook(hook))

    def _back(self, name: str, call: int, place: int) -> Any:
        def hook(gradient: torch.Tensor | None) -> None:
            if gradient is not None:
                tensor = real_copy(gradient)
                self.found.append(Passage("back", name, call, place, tensor, gradient=tensor))

        return hook

    def _after_hooks(self, passage: Passage, place: int) -> Any:
        def hook(gradients: tuple[torch.Tensor | None, ...]) -> None:
            gradient = gradients[place]
            passage.handed_back = None if gradient is None else real_copy(gradient)

        return hook


def depends(one: Passage, on: Passage) -> bool:
    """Whether a tensor was computed from another, by the graph of the backward pass."""
    waiting, seen = [one.node], set()
    while waiting and on.node is not None:
        node = waiting.pop()
        if node is on.node:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [each for each, _ in node.next_functions]
    return False


def real_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor's numbers. Complex numbers become pairs."""
    with no_dispatch(), torch.no_grad():
        return torch.view_as_real(tensor.detach().resolve_conj()).clone() if tensor.is_complex() else copied(tensor)


def sketched(tensor: torch.Tensor) -> torch.Tensor:
    """The sketch of a tensor, made unseen by any mode."""
    with no_dispatch(), torch.no_grad():
        return torch.from_numpy(sketch(real_copy(tensor) if tensor.is_complex() else tensor, finite=False))


def _origin(known: dict[int, Origin], tensor: torch.Tensor) -> Origin | None:
    """What is known of a tensor, unless it was written to since."""
    found = known.get(id(tensor))
    return found if found is not None and found.tensor is tensor and found.version == version(tensor) else None


def _in_order(module: torch.nn.Module, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments that are given by name, in the order of the signature: whoever calls may write them in any order."""
    if len(kwargs) > 1:
        with contextlib.suppress(TypeError, ValueError):
            order = list(inspect.signature(module.forward).parameters)
            return dict(sorted(kwargs.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))
    return kwargs


def _wholes(given: tuple[Any, ...]) -> list[torch.Tensor]:
    """The tensors of whole numbers among arguments, and Python's numbers, such as a time."""
    held = (tensor for _, tensor in tensors(given) if tensor.dtype in (torch.int64, torch.int32) and tensor.numel())
    with no_dispatch():
        plain = [torch.tensor(each, dtype=torch.float64, device="cpu") for each in given if isinstance(each, float)]
        plain += [torch.tensor(each, device="cpu") for each in given if isinstance(each, int) and not isinstance(each, bool)]
    return [*(tensor for tensor in held if not is_transformed(tensor)), *plain]


def floats(value: Any) -> list[torch.Tensor]:
    """The floating-point and complex tensors in `value`, or else in objects in it. Without ragged ones and those inside of torch.vmap or
    torch.func.grad, whose numbers are not at hand."""
    found = [each for _, each in tensors(value) if _at_hand(each)]
    held = () if found else [each for holder in objects(value) for _, each in leaves(holder)]
    return found or [each for each in held if isinstance(each, torch.Tensor) and _at_hand(each)]


def _at_hand(tensor: torch.Tensor) -> bool:
    strided = continuous(tensor) and tensor.layout is torch.strided and not tensor.is_nested and tensor.numel() > 0
    return strided and not is_transformed(tensor)
