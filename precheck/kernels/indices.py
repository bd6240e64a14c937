"""Keeps whole numbers that the reference refuses on a CPU away from a device.

On a CPU an index out of range is an error. On a CUDA device it trips an assertion that ends the process's use of the device, whoever caught the
error. So the reference is first asked on a CPU whether it takes the whole numbers of a trial.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from precheck.kernels.examples import Example, Leaf
from precheck.observe.containers import call
from precheck.torch_internals import without_modes


class Indices:
    """Asks once for each set of whole numbers and shapes. A reference that does not run on a CPU cannot be asked, and nothing is refused then."""

    def __init__(self, reference: Callable[..., Any], example: Example) -> None:
        self.example = Example(example.inputs, tuple(Leaf(each.path, each.tensor.cpu(), wanted=False) for each in example.leaves))
        self.whole = [place for place, each in enumerate(self.example.leaves) if not each.tensor.is_floating_point() and not each.tensor.is_complex()]
        self.answers: dict[Any, Exception | None] = {}
        self.reference: Callable[..., Any] | None = _on_a_cpu(reference) if self.whole else None
        if self.refusal([each.tensor for each in self.example.leaves], {}) is not None:
            self.reference = None

    def refusal(self, values: Sequence[torch.Tensor], numbers: Mapping[int, int]) -> Exception | None:
        """The error that the reference raises on a CPU. None if it takes these whole numbers. `values`: tensors in the order of leaves."""
        if self.reference is None:
            return None
        shapes = tuple(tuple(each.shape) for each in values)
        key = (shapes, tuple(sorted(numbers.items())), *(values[place].cpu().numpy().tobytes() for place in self.whole))
        if key not in self.answers:
            self.answers[key] = self._asked(values, numbers)
        return self.answers[key]

    def _asked(self, values: Sequence[torch.Tensor], numbers: Mapping[int, int]) -> Exception | None:
        assert self.reference is not None
        with without_modes(), torch.no_grad():
            try:
                call(self.reference, self.example.filled([each.detach().cpu().clone() for each in values], numbers))
            except Exception as error:
                return error
        return None


def _on_a_cpu(reference: Callable[..., Any]) -> Callable[..., Any] | None:
    """A module's copy on a CPU; another function itself. None if the module cannot be copied, or for a function of an extension that is called as
    it is: it may read the memory of a CPU's tensors as a device's."""
    if isinstance(reference, types.BuiltinFunctionType) and not (reference.__module__ or "torch").startswith("torch"):
        return None
    if not isinstance(reference, torch.nn.Module):
        return reference
    try:
        return copy.deepcopy(reference).cpu()
    except Exception:  # whatever a module's own classes raise
        return None


def asked(reference: Callable[..., Any], example: Example) -> Indices | None:
    """Who has to be asked before a call on the example's device. None on a CPU."""
    return None if example.device.type == "cpu" else Indices(reference, example)
