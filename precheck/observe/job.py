"""What a user asks to have run, and the error for what cannot be."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import torch

from precheck.observe.structure import tensors

EXAMPLE = "lambda params: torch.optim.AdamW(params, lr=1e-3)"


class InputError(ValueError):
    """Something the user passed cannot be measured; the message says what, what is accepted and what to type."""


@dataclasses.dataclass(slots=True)
class Job:
    """What the user asked to have measured."""

    model: torch.nn.Module
    inputs: Any
    loss: Callable[[Any], torch.Tensor] | None = None
    optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer] | None = None
    steps: int = 1
    seed: int = 0
    sampled: frozenset[str] = frozenset()  # records of which a sample is folded: those that a golden found even

    @property
    def device(self) -> str:
        held = itertools.chain(self.model.parameters(), self.model.buffers(), (tensor for _, tensor in tensors(self.inputs)))
        return next((tensor.device.type for tensor in held), "cpu")
