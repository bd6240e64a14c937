"""Repeats an optimizer's steps in float64 from the recorded gradients, without the model.

A normalised step (Adam's, Lion's, a sign's) is a function of the gradient with a jump at zero. If rounding decides the sign of a gradient, the step
is reversed, at any distance from that of an exact run. So an update is judged by three questions. Are the gradients right? They are judged as
gradients. Do both optimizers make the same step from the same gradients? Does the update of a side's weights equal the step that its optimizer makes
from its gradients?
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from precheck.observe.exact import Exact
from precheck.observe.job import Job
from precheck.pairs.capture import Captured, copied
from precheck.pairs.layouts import Link

Gradients = Mapping[str, torch.Tensor]
"""The gradients of one step, by weight name. Weights without a gradient are absent."""


class Steps:
    """The weights before a run's first step, and the gradients of each step, in the order of the weights."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.start: list[torch.Tensor] = []
        self.gradients: list[Gradients] = []

    def followed(self) -> Job:
        """The job, with an optimizer whose gradients are recorded."""
        make = self.job.optimizer
        if make is None:
            return self.job

        def made(held: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
            optimizer = make(held)
            if isinstance(optimizer, torch.optim.Optimizer):
                self._follow(optimizer, held)
            return optimizer

        return dataclasses.replace(self.job, optimizer=made)

    def _follow(self, optimizer: torch.optim.Optimizer, held: Sequence[torch.nn.Parameter]) -> None:
        self.start, names = [copied(each) for each in held], self.names()
        original = optimizer.step

        def step(*args: Any, **kwargs: Any) -> Any:
            scale = getattr(optimizer, "grad_scale", None)  # a fused optimizer divides by the loss scale itself
            given = {name: copied(each.grad) for name, each in zip(names, held, strict=False) if each.grad is not None}
            self.gradients.append(given if scale is None else {name: each / scale for name, each in given.items()})
            return original(*args, **kwargs)

        optimizer.step = step  # type: ignore[method-assign]

    def exactly(self, gradients: Sequence[Gradients] | None = None) -> Captured | None:
        """The same without the formats that the optimizer itself casts to, as Muon does to bfloat16."""
        with Exact():  # type: ignore[no-untyped-call]
            return self.again(gradients)

    def again(self, gradients: Sequence[Gradients] | None = None) -> Captured | None:
        """The updates by name, as in a captured run, or None if the optimizer cannot step so. `gradients` replaces the recorded ones, if given."""
        make, names = self.job.optimizer, self.names()
        if make is None or not self.gradients or len(names) != len(self.start):
            return None
        copies = [torch.nn.Parameter(_wide(each)) for each in self.start]
        with contextlib.suppress(Exception), torch.random.fork_rng(devices=()), torch.enable_grad():
            optimizer = make(copies)
            for given in gradients or self.gradients:
                for name, copy in zip(names, copies, strict=True):
                    copy.grad = _laid_out(_wide(given[name]), copy) if name in given else None
                optimizer.step()
            return self._moved(names, copies)
        return None

    def _moved(self, names: Sequence[str], copies: Sequence[torch.Tensor]) -> Captured:
        moved = Captured()
        with torch.no_grad():
            for name, copy, start in zip(names, copies, self.start, strict=True):
                moved.tensors["update", name, len(self.gradients)] = copy.detach().sub_(start)
        return moved

    def names(self) -> list[str]:
        return [name for name, each in self.job.model.named_parameters() if each.requires_grad]


def handed_on(model: Steps, other: Steps, links: Sequence[Link]) -> list[Gradients]:
    """The gradients of `model` as gradients of `other`'s weights. A weight whose counterpart has no gradient gets none. A weight without a
    counterpart keeps its own."""
    found: list[Gradients] = []
    shapes = {name: start.shape for name, start in zip(other.names(), other.start, strict=True)}
    zeros = dict(zip(model.names(), model.start, strict=True))
    for ours, theirs in zip(model.gradients, other.gradients, strict=True):
        given = dict(theirs)
        for link in links:
            if not set(link.models) <= set(zeros) or not set(link.others) <= set(shapes):
                continue
            common = link.of_model({name: ours[name] if name in ours else torch.zeros_like(zeros[name]) for name in link.models})
            parts = link.placed(common, {name: shapes[name] for name in link.others}) if common is not None else {}
            given |= {name: part for name, part in parts.items() if name in theirs}
        found.append(given)
    return found


def _laid_out(gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """With the strides of the weight, as backward passes make gradients and fused optimizers need them."""
    return torch.empty_like(weight, requires_grad=False).copy_(gradient) if gradient.layout is torch.strided else gradient


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    value = tensor.detach()
    return value.to(torch.complex128 if value.is_complex() else torch.float64, copy=True)
