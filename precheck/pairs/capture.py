"""Copies the tensors of one run that are compared: results, the loss, gradients, updates of weights, and buffers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from precheck.observe.containers import tensors
from precheck.observe.recording.recorder import Moved
from precheck.torch_internals import no_dispatch, without_modes

Key = tuple[str, str, int]
"""Kind, name and step: ("result", "[logits]", 1), ("parameter-gradient", "head.weight", 1)."""
COMPARED = frozenset({"result", "loss", "buffer", "input-gradient", "parameter-gradient", "update"})


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor's numbers that no mode sees being made."""
    with no_dispatch(), torch.no_grad():
        return tensor.detach().clone()


def written_out(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that has all numbers one by one, also of a sparse tensor, such as the gradient of a table of embeddings, and of a ragged one."""
    if tensor.layout is torch.strided and not tensor.is_nested:
        return copied(tensor)
    if tensor.is_nested:  # torch's jagged tensors are a class of Python, whose ops must be dispatched to it
        with without_modes(), torch.no_grad():
            padded: torch.Tensor = torch.nested.to_padded_tensor(tensor.detach(), 0.0)
            return padded
    with no_dispatch(), torch.no_grad():
        return tensor.detach().to_dense()


@dataclasses.dataclass(slots=True)
class Captured:
    """Copies of the tensors of one run, in the order of the run."""

    tensors: dict[Key, torch.Tensor] = dataclasses.field(default_factory=dict)
    without: set[str] = dataclasses.field(default_factory=set)  # inputs that require a gradient and received none

    def of(self, kind: str) -> dict[tuple[str, int], torch.Tensor]:
        return {(name, step): tensor for (each, name, step), tensor in self.tensors.items() if each == kind}


class Capture:
    """A witness of a run (`observe.recording.recorder.Witness`) that copies the tensors to compare."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.found = Captured()
        self.buffers: dict[str, torch.Tensor] = {}  # as they were before the call
        self.inputs: list[tuple[str, torch.Tensor]] = []

    def entering(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """A hook of the whole model. It keeps the inputs, whose gradients are copied later, and the buffers that the call may change."""
        with no_dispatch(), torch.no_grad():  # kernels of norms change them without raising autograd's version counter
            self.buffers = {name: buffer.detach().clone() for name, buffer in self.model.named_buffers() if buffer.layout is torch.strided}
        if not self.found.of("parameter-gradient"):
            given = kwargs if kwargs and not args else args[0] if len(args) == 1 and not kwargs else (*args, *kwargs.values())
            self.inputs = [(path, tensor) for path, tensor in tensors(given) if tensor.requires_grad and tensor.is_leaf]

    def boundary(self, kind: str, name: str, step: int, tensor: torch.Tensor) -> None:
        if kind == "parameter-gradient":
            self._inputs()
        if kind == "result":
            self._moved(step)
        if kind in COMPARED:
            self.found.tensors[kind, name, step] = written_out(tensor)

    def moves(self, step: int, moved: Sequence[Moved]) -> None:
        """Does nothing, since each update also arrives at `boundary`."""

    def finish(self, scale: float) -> Captured:
        """The copies. Gradients are divided by the loss scale."""
        self._inputs()
        for (kind, name, step), tensor in self.found.tensors.items():
            if scale != 1.0 and "gradient" in kind:
                self.found.tensors[kind, name, step] = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64) / scale
        return self.found

    def _moved(self, step: int) -> None:
        """Copies the buffers that the forward pass has changed: statistics, counts, caches."""
        for name, buffer in self.model.named_buffers():
            before = self.buffers.get(name)
            with no_dispatch(), torch.no_grad():
                if before is not None and not torch.equal(before, buffer):
                    self.found.tensors["buffer", name, step] = buffer.detach().clone()

    def _inputs(self) -> None:
        """Copies the gradients of inputs at the end of the first step's backward pass."""
        for path, tensor in self.inputs:
            if tensor.grad is None:
                self.found.without.add(path)
            else:
                self.found.tensors["input-gradient", path, 1] = written_out(tensor.grad)
        self.inputs = []
