"""The set of pairs: healthy ones, each the same function written in two ways, and broken ones, each with a fault that people have shipped."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Made = tuple[Any, Any, Any, dict[str, Any]]
"""model, other, inputs, and what else `precheck.compare` is given."""
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "bf16-true")
MEAN: dict[str, Any] = {"loss": lambda out: out.float().square().mean()}


@dataclasses.dataclass(frozen=True)
class Case:
    """`modules` are those of `other` of which any may be named as the first that differs; `said` a pattern that the first error's words match."""

    name: str
    make: Callable[[], Made]
    modules: tuple[str, ...] = ()
    said: str = ""

    @property
    def healthy(self) -> bool:
        return not self.modules

    @property
    def batch(self) -> str:
        """The Python module that makes the pair. Its name begins with that of the batch."""
        made = self.make.func if isinstance(self.make, functools.partial) else self.make
        return str(made.__module__)


CASES: dict[str, Case] = {}


def healthy(family: str, name: str, make: Callable[[], Made]) -> None:
    _added(Case(f"{family}/{name}", make))


def broken(family: str, name: str, make: Callable[[], Made], *modules: str, said: str = "") -> None:
    _added(Case(f"{family}/{name}", make, modules, said))


def _added(case: Case) -> None:
    assert case.name not in CASES, case.name
    CASES[case.name] = case


def spread(model: nn.Module, std: float = 0.3) -> nn.Module:
    """Weights as of a trained model, whose biases and norms are no zeros and ones."""
    with torch.no_grad():
        for value in model.parameters():
            if value.dim() > 1:
                value.normal_(std=std)
            else:
                value.add_(torch.randn_like(value) * 0.2)
    return model


def language_loss(given: torch.Tensor) -> Callable[[Any], torch.Tensor]:
    """Next-token cross-entropy of logits, (batch, length, vocabulary), or of an output that begins with them."""

    def loss(out: Any) -> torch.Tensor:
        logits = out.logits if hasattr(out, "logits") else out[0] if isinstance(out, tuple) else out
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), given[:, 1:].flatten())

    return loss
