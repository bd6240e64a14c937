"""Finds whose code reads a weight in the forward pass: that of the module that holds it, or of another one, as a head on the table of words."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from precheck.observe.profiling import UncompiledMode
from precheck.torch_internals import in_backward, storage_key


class Readers(UncompiledMode):
    """Notes which module's code calls an op on one of the named weights."""

    def __init__(self, model: torch.nn.Module, weights: Collection[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model, self.weights = model, frozenset(weights)
        self.places: set[int] = set()
        self.stack: list[str] = [""]
        self.found: dict[str, None] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def during(self, ran: Callable[[], object]) -> list[str]:
        """The modules whose code reads the weights while `ran` runs, in order."""
        handles = []
        for name, module in self.model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                handles.append(module.register_forward_pre_hook(self._entering(name)))
                handles.append(module.register_forward_hook(self._leaving, always_call=True))
        try:
            with self:
                ran()
        finally:
            for handle in handles:
                handle.remove()
        return list(self.found)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if self.places and not in_backward():
            for each in args:
                if isinstance(each, torch.Tensor) and each.layout is torch.strided and storage_key(each) in self.places:
                    self.found[self.stack[-1]] = None
        return func(*args, **(kwargs or {}))

    def _entering(self, name: str) -> Callable[..., None]:
        def hook(module: torch.nn.Module, args: Any) -> None:
            if not in_backward():
                held = {} if self.places else dict(self.model.named_parameters(remove_duplicate=False))  # in the format of this run
                self.places |= {storage_key(held[each]) for each in self.weights if each in held}
                self.stack.append(name)

        return hook

    def _leaving(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if not in_backward() and len(self.stack) > 1:
            self.stack.pop()
