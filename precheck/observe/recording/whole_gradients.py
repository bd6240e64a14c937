"""Runs one training step and keeps its loss and gradients whole, since the error of a recipe cannot be computed from sketches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch

from precheck.observe.job import Job
from precheck.observe.recording.recorder import Moved
from precheck.observe.run import run
from precheck.observe.setting import Setting


class WholeGradients:
    """A witness that keeps the loss and the gradients of parameters, in float64."""

    def __init__(self) -> None:
        self.loss = math.nan
        self.of: dict[str, torch.Tensor] = {}

    def boundary(self, kind: str, name: str, step: int, tensor: torch.Tensor) -> None:
        if kind == "loss":
            self.loss = float(tensor.detach())
        elif kind == "parameter-gradient":
            self.of[name] = tensor.detach().double()

    def moves(self, step: int, moved: Sequence[Moved]) -> None:
        """Ignores optimizer steps."""

    def off(self, other: WholeGradients) -> float:
        """The relative error |these - other| / |other| over all parameters. A missing gradient is zero.
        Infinite if a gradient is not finite, or if all of the other's are zero and these are not.
        """
        error = sum(float((self.of.get(name, 0.0) - gradient).square().sum()) for name, gradient in other.of.items())
        whole = sum(float(gradient.square().sum()) for gradient in other.of.values())
        if error == 0:
            return 0.0
        return math.sqrt(error / whole) if math.isfinite(error) and whole else math.inf


def gradients(job: Job, setting: Setting) -> WholeGradients:
    """The gradients of the job's first step, run as `setting` says."""
    seen = WholeGradients()
    run(dataclasses.replace(job, optimizer=None, steps=1), dataclasses.replace(setting, witness=seen))
    return seen
