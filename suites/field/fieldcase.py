"""A case of the field report: published code at a small size, as its README builds it, with inputs and a loss."""

from __future__ import annotations

import importlib
import importlib.metadata
import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

FOLDER = Path(__file__).parent / "cases"
PRECISIONS = ("bf16-mixed", "16-mixed", "bf16-true")


@dataclass(frozen=True)
class Made:
    """What a case runs.

    Attributes:
        model: Made from random numbers; no weights are downloaded.
        inputs: Positional arguments of the model.
        loss: Takes what the model returns, gives a scalar tensor.
        optimizer: Takes a list of parameters. Without it the loop has AdamW.
    """

    model: torch.nn.Module
    inputs: tuple[Any, ...]
    loss: Callable[[Any], torch.Tensor]
    optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] | None = None


@dataclass(frozen=True)
class Case:
    """A function that makes what is run, and the package of the index that its code is from."""

    name: str
    package: str
    domain: str
    make: Callable[[], Made]
    precisions: tuple[str, ...] = PRECISIONS

    def made(self) -> Made:
        """The same weights and inputs at each call."""
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        return self.make()

    def version(self) -> str:
        """Empty where the package is not installed."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return ""


CASES: dict[str, Case] = {}


def case(package: str, precisions: tuple[str, ...] = PRECISIONS) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    """Makes a function a case. The file that it is in is the domain."""

    def kept(make: Callable[[], Made]) -> Callable[[], Made]:
        assert make.__name__ not in CASES, f"two cases are called {make.__name__}"
        CASES[make.__name__] = Case(make.__name__, package, Path(make.__code__.co_filename).stem, make, precisions)
        return make

    return kept


def loaded() -> dict[str, Case]:
    """All cases. Their files import a package only when a case is made."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    for path in sorted(FOLDER.glob("*.py")):
        importlib.import_module(path.stem)
    return CASES


class Calls(torch.nn.Module):
    """A function beside the modules whose weights it uses, as a module."""

    def __init__(self, function: Callable[..., Any], *parts: torch.nn.Module) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*self.parts, *inputs)


def square(out: torch.Tensor) -> torch.Tensor:
    """A loss for outputs that have none of their own."""
    return out.float().square().mean()
