"""Tracks where a watched run is: the module, the optimizer step, the loss scale.

It uses torch's global hooks, so that the user does not have to name models, optimizers or loops.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from precheck import interrupts
from precheck.observe.models.adapters import named_modules, named_parameters, symbolic
from precheck.observe.models.stack_depth import room
from precheck.observe.shadow.memory.stable_ids import Identities, WeakReference
from precheck.observe.shadow.operations import Phase

_WRAPPED = "_orig_mod"  # the attribute in which torch.compile keeps the original module


@contextlib.contextmanager
def _unwarned() -> Iterator[None]:
    """Ignores the warning of compiled modules about global hooks, since these are precheck's. Filters that the block sets stay."""
    warnings.filterwarnings("ignore", message=r"Using `torch.compile\(module\)` when there are global hooks")
    ours = warnings.filters[0]
    try:
        yield
    finally:
        if ours in warnings.filters:
            warnings.filters.remove(ours)  # type: ignore[attr-defined]


class ModuleTracker:
    """The module stack, the depth of optimizer steps, the number of the training step, and the loss scale of a backward pass."""

    def __init__(self, model: torch.nn.Module | None = None) -> None:
        self.stack: list[str] = []
        self._shipped: list[bool] = []  # for each module of the stack, whether its class is in torch.nn
        self._recurrent: Counter[tuple[str, int]] = Counter()  # calls of torch's own recurrent layers, by name and training step
        self.optimizing = 0
        self.stepping: Any = None  # the optimizer whose step is running
        self.shipped = False  # whether that optimizer is torch's own
        self.step = 1
        self.turns = 0  # calls of root modules, backward passes and optimizer steps so far
        self.backward = False  # whether the latest op was one of a backward pass
        self.scale = 1.0
        self.entered = False  # whether any module has run
        self.compiled = False  # whether one of them was torch.compile's
        self.parameters: dict[int, tuple[WeakReference, Any]] = {}
        self.parameter_names: dict[int, str] = {}
        self.frozen: set[int] = set()  # identities of the parameters that were seen with requires_grad=False
        self.identity = Identities()  # the numbers that stand for parameters everywhere
        self.on_gradient: Callable[[str, torch.Tensor], None] = lambda name, parameter: None
        self.on_step: list[Callable[[Any], None]] = []  # called before each optimizer step; `after_step` after it
        self.after_step: list[Callable[[Any], None]] = []
        self.on_call: Callable[[], None] = lambda: None  # before each call of a root module
        self.on_write: Callable[[], None] = lambda: None  # before each op that writes into a tensor
        self.belongs: Callable[[], bool] = lambda: True  # whether the calling thread is watched: global hooks run in all threads
        self._names: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._rooted = model is not None
        self._stepped: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        if model is not None:
            self._name(model, "")

    @property
    def module(self) -> str:
        return self.stack[-1] if self.stack else ""

    @property
    def plain(self) -> bool:
        """Whether the running module is one of torch's own, which rounds only as the precision demands."""
        return bool(self._shipped) and self._shipped[-1]

    def one_kernel(self, module: str) -> bool:
        """Whether a GPU runs all of a module's ops of this training step in one kernel, as a recurrent layer of torch's own that is called once.

        Its kernel adds up the gradients of a weight in float32. On a CPU, autograd adds them step by step in the low format.
        """
        return self._recurrent[module, self.step] == 1

    @interrupts.whole
    def saw(self, parameter: torch.nn.Parameter) -> None:
        """Notes a parameter and hooks the accumulation of its gradient."""
        number = self.identity(parameter)
        if not parameter.requires_grad:
            self.frozen.add(number)
        elif number not in self.parameters and parameter.is_leaf:
            handle = parameter.register_post_accumulate_grad_hook(self._gradient)
            self.parameters[number] = (self.identity.refer(parameter), handle)
            if parameter.layout is torch.strided:
                self.identity.keep(parameter)

    def name_of(self, parameter: torch.Tensor) -> str:
        return self.parameter_names.get(self.identity(parameter), "")

    def trainable(self) -> set[int]:
        """Identities of the parameters with requires_grad=True. For freed parameters, their last known state counts."""
        held = ((number, refer()) for number, (refer, _) in self.parameters.items())
        return {number for number, parameter in held if (number not in self.frozen if parameter is None else parameter.requires_grad)}

    def _gradient(self, parameter: torch.Tensor) -> None:
        self.on_gradient(self.name_of(parameter), parameter)

    def phase(self, backward: bool) -> Phase:
        """The phase of the op that comes now. What is computed beside a model's calls, without gradients, are data."""
        self.turns += backward and not self.backward
        self.backward = backward
        if backward or self.optimizing:
            return "backward" if backward else "optimizer"
        return "data" if self.entered and not self.stack and not torch.is_grad_enabled() else "forward"

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        handles = [
            modules.register_module_forward_pre_hook(self._enter),
            modules.register_module_forward_hook(self._leave, always_call=True),
            optimizers.register_optimizer_step_pre_hook(self._begin),
            optimizers.register_optimizer_step_post_hook(self._end),
        ]
        try:
            with room(), _unwarned(), self.identity.swapping():
                yield
        finally:
            for handle in (*handles, *(handle for _, handle in self.parameters.values())):
                handle.remove()

    def _name(self, root: torch.nn.Module, prefix: str) -> None:
        def named(path: str) -> str:
            path = ".".join(part for part in path.split(".") if part != _WRAPPED)
            return f"{prefix}.{path}" if prefix and path else prefix or path

        for path, module in named_modules(root):
            self._names.setdefault(module, named(path))
        for path, parameter in named_parameters(root):
            self.parameter_names.setdefault(self.identity(parameter), named(path))

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        if not self.belongs():
            return
        if module not in self._names and symbolic(args):
            self.stack.append("")
            self._shipped.append(False)
            return
        if not self.stack:
            self.on_call()
            self.turns += 1
        self.entered = True
        self.compiled |= _WRAPPED in module._modules or module._compiled_call_impl is not None
        if module not in self._names:  # the first root is the model; others, mostly losses, are named by their class
            has_children = next(module.children(), None) is not None
            self._name(module, "" if has_children and not self._rooted else type(module).__name__)
            self._rooted |= has_children
        self.stack.append(self._names[module])
        self._shipped.append(type(module).__module__.startswith("torch.nn."))
        if isinstance(module, torch.nn.RNNBase):
            self._recurrent[self.module, self.step] += 1

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self.stack and self.belongs():
            self.stack.pop()
            self._shipped.pop()

    def _begin(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self.belongs():
            return
        for tell in self.on_step:
            tell(optimizer)
        self.optimizing += 1
        self.stepping = optimizer
        self.shipped = str(getattr(type(optimizer).step, "__module__", "")).startswith("torch.optim.")

    def _end(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self.belongs():
            return
        self.optimizing = max(0, self.optimizing - 1)
        self.turns += 1
        self.stepping = None
        for tell in self.after_step:
            tell(optimizer)
        self._stepped[optimizer] = self._stepped.get(optimizer, 0) + 1
        self.step = 1 + max(self._stepped.values())
