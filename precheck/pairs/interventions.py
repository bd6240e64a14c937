"""Tries a change that may explain a difference: model's result is put in the place of other's, and what is made of it has to be model's too.

Two tensors may differ by a factor or a shift without any fault, where two ways of writing differ. Only a change whose reversal makes the models agree
explains anything.
"""

from __future__ import annotations

import contextlib
import dataclasses

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from precheck.pairs.backward_difference import PARTED
from precheck.pairs.comparison import REFUSALS, Comparison
from precheck.pairs.first_difference import FLOAT32, Place
from precheck.pairs.intermediates import ALIKE, Intermediates, Marks, alike


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """What may explain a difference, in words: it made result `number` of `other` out of this `tensor` of `model`. None if no op did."""

    words: str
    number: int | None = None
    tensor: torch.Tensor | None = None


class _Replaced(Intermediates):
    """Puts a tensor in the place of one result."""

    def __init__(self, model: torch.nn.Module, module: str, change: Change) -> None:
        super().__init__(model, {module}, own=False)
        self.change = change

    def meet(self, output: torch.Tensor) -> None:
        wanted = self.change.tensor
        if len(self.made) == self.change.number and wanted is not None and wanted.numel() == output.numel():
            output.copy_(wanted.reshape(output.shape))


def cures(comparison: Comparison, place: Place, change: Change) -> bool:
    """Whether the module's last result is then that of model's module, or all that is made of the replaced one occurs in model."""
    follower = _Replaced(comparison.other.job.model, place.module, change)
    with contextlib.suppress(*REFUSALS):
        with follower.followed(), sdpa_kernel(SDPBackend.MATH):
            comparison.other.once(place.dtype)
        within = ALIKE if place.dtype is torch.float64 else PARTED * FLOAT32
        known = Marks([each.signature for each in place.ours], within)
        moved, readers = {change.number}, []  # the replaced result as it is moved on, and what is made of it
        for number, each in enumerate(follower.made):
            if moved.intersection(each.reads):
                if alike(each.signature, follower.made[change.number or 0].signature, within):
                    moved.add(number)
                else:
                    readers.append(each)
        last = alike(follower.made[-1].signature, place.ours[-1].signature, within)
        return last or (bool(readers) and all(each.signature in known for each in readers))
    return False
