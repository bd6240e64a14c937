"""Follows gradients that kernels derive from a stored result: attention reads its result again, for the sum in its softmax's gradient."""

from __future__ import annotations

import torch

from precheck.kernels.memory import address as _memory


class StoredResults:
    """The errors that gradients from products have if results were stored in the inputs' format. Views and casts of a gradient have them too.

    Tensors are known by their memory, and kept, so that no other tensor gets it.
    """

    def __init__(self) -> None:
        self.errors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.softmaxes: dict[int, torch.Tensor] = {}  # results of softmaxes
        self.attention: set[int] = set()  # those that are the weights of torch's attention

    def softmax(self, result: torch.Tensor, *, attention: bool) -> None:
        """Notes a softmax. `attention`: whether its results are the weights of torch's attention."""
        self.softmaxes[_memory(result)] = result
        if attention:
            self.attention.add(_memory(result))

    def weighs(self, result: torch.Tensor) -> bool:
        """Whether the result of a softmax is the weights of torch's attention."""
        return _memory(result) in self.attention

    def awaited(self, gradient: torch.Tensor) -> bool:
        """Whether a gradient has as many elements as the result of a softmax."""
        return any(each.numel() == gradient.numel() for each in self.softmaxes.values())

    def note(self, gradient: torch.Tensor, error: torch.Tensor) -> None:
        """Notes the error of a gradient."""
        self.errors[_memory(gradient)] = gradient, torch.empty_like(gradient, dtype=torch.float64).copy_(error)

    def copied(self, source: torch.Tensor, copy: torch.Tensor) -> None:
        """Notes that one tensor is a cast or a copy of another one."""
        error = self.error(source)
        if error is not None and error.shape == copy.shape:
            self.note(copy, error)

    def error(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """The error of a gradient or of a view of it, of its shape. None if there is none."""
        found = self.errors.get(_memory(gradient))
        return None if found is None else found[1].as_strided(gradient.shape, gradient.stride(), gradient.storage_offset())
