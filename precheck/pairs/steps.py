"""What an optimizer makes of the gradients that it was given: its steps again, in float64, without the model.

A normalised step (Adam's, Lion's, a sign's) is a function of the gradient with a jump at zero: where rounding decides the sign of a gradient, the
step turns round, by any distance from what an exact run gives. So a run's update is not compared with that of an exact run, whose gradients are
others. It is compared with what the optimizer makes, exactly, of the run's own gradients. These are judged as gradients. Of two exact runs those
elements are compared whose gradients agree.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence

import torch

from precheck.observe.job import Job
from precheck.pairs.capture import Captured
from precheck.torch_internals import no_dispatch

LATER = "later-gradient"
"""The kind of a gradient after the first step, which is captured and not compared."""


class Steps:
    """The weights that the optimizer of one run began with, and the gradients of each of its steps, in the order of the weights.

    Without `whole` the gradients after the first step alone are kept, which nothing else captures.
    """

    def __init__(self, job: Job, *, whole: bool = True) -> None:
        self.job, self.whole = job, whole
        self.start: list[torch.Tensor] = []
        self.gradients: list[list[torch.Tensor | None]] = []

    def followed(self) -> Job:
        """The job whose optimizer is followed."""
        make = self.job.optimizer
        if make is None or not (self.whole or self.job.steps > 1):
            return self.job

        def made(held: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
            optimizer = make(held)
            if isinstance(optimizer, torch.optim.Optimizer):
                self._follow(optimizer, held)
            return optimizer

        return dataclasses.replace(self.job, optimizer=made)

    def _follow(self, optimizer: torch.optim.Optimizer, held: Sequence[torch.nn.Parameter]) -> None:
        self.start = [_kept(each) for each in held] if self.whole else []
        original = optimizer.step

        def step(*args: object, **kwargs: object) -> object:
            scale = getattr(optimizer, "grad_scale", None)  # of a fused optimizer, which takes it off itself
            wanted = self.whole or bool(self.gradients)
            given = [None if each.grad is None or not wanted else _kept(each.grad) for each in held]
            self.gradients.append(given if scale is None else [None if each is None else each / scale for each in given])
            return original(*args, **kwargs)  # type: ignore[arg-type]

        optimizer.step = step  # type: ignore[method-assign, assignment]

    def later(self) -> Captured:
        """The gradients of all steps but the first, which is captured anyway."""
        found = Captured()
        for step, given in enumerate(self.gradients[1:], 2):
            named = zip(self._names(), given, strict=True)
            found.tensors |= {(LATER, name, step): each for name, each in named if each is not None and each.layout is torch.strided}
        return found

    def again(self, *, gradients: Mapping[str, torch.Tensor] | None = None) -> Captured | None:
        """The updates by name, as in a run that was captured; None where the optimizer cannot step so. `gradients` replace the first step's."""
        make = self.job.optimizer
        if make is None or not self.gradients:
            return None
        names = self._names()
        if len(names) != len(self.start):
            return None
        copies = [torch.nn.Parameter(_wide(each)) for each in self.start]
        with contextlib.suppress(Exception), torch.random.fork_rng(devices=()), torch.enable_grad():
            optimizer = make(copies)
            for number, given in enumerate(self.gradients):
                for name, copy, gradient in zip(names, copies, given, strict=True):
                    own = gradients.get(name, gradient) if gradients is not None and number == 0 else gradient
                    copy.grad = None if own is None else _wide(own)
                optimizer.step()
            moved = Captured()
            for name, copy, start in zip(names, copies, self.start, strict=True):
                moved.tensors["update", name, len(self.gradients)] = copy.detach() - _wide(start)
            return moved
        return None

    def _names(self) -> list[str]:
        return [name for name, each in self.job.model.named_parameters() if each.requires_grad]


def undirected(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Of which elements two sides' gradients have no binary digit in common: rounding decides their signs, or the gradients are to be blamed."""
    return ((ours - theirs).abs() >= 0.5 * torch.maximum(ours.abs(), theirs.abs())) & ((ours != 0) | (theirs != 0))


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    with no_dispatch(), torch.no_grad():
        return tensor.detach().clone()


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    value = tensor.detach()
    return value.to(torch.complex128 if value.is_complex() else torch.float64, copy=True)
