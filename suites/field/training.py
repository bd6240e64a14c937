"""A training of the field report: a trainer or a way to train with a setting that few use, on a small model and made-up data."""

from __future__ import annotations

import importlib
import importlib.metadata
import random
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

FOLDER = Path(__file__).parent / "trainings"
PRECISIONS = ("bf16-mixed", "16-mixed", "bf16-true")
AUTOCAST = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
STEPS, ROWS, WIDTH, CLASSES = 3, 16, 32, 4


@dataclass
class Left:
    """What a training leaves: all of it is compared bit for bit.

    Attributes:
        model: Its weights, buffers and gradients.
        more: Further tensors, such as losses.
        measured: The first arguments of `measure`, if it can be asked about this: a model or function, and its inputs.
        asked: Its other arguments, but the precision.
    """

    model: nn.Module | None = None
    more: dict[str, torch.Tensor] = field(default_factory=dict)
    measured: tuple[Any, ...] = ()
    asked: dict[str, Any] = field(default_factory=dict)

    def tensors(self) -> dict[str, torch.Tensor]:
        kept = {name: value.detach().clone() for name, value in self.more.items()}
        if self.model is not None:
            kept |= {f"weight {name}": value.detach().clone() for name, value in self.model.state_dict().items() if isinstance(value, torch.Tensor)}
            kept |= {f"gradient {name}": value.grad.clone() for name, value in self.model.named_parameters() if value.grad is not None}
        return kept | {"random state": torch.get_rng_state()}


@dataclass(frozen=True)
class Training:
    name: str
    package: str
    kind: str
    run: Callable[[Low], Left]
    precisions: tuple[str, ...] = PRECISIONS

    def left(self, precision: str) -> Left:
        """The same weights, data and random numbers at each call."""
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        return self.run(Low(precision))

    def installed(self) -> bool:
        try:
            return bool(importlib.metadata.version(self.package))
        except importlib.metadata.PackageNotFoundError:
            return False


TRAININGS: dict[str, Training] = {}


def training(package: str, precisions: tuple[str, ...] = PRECISIONS, name: str = "") -> Callable[[Callable[[Low], Left]], Callable[[Low], Left]]:
    """Makes a function a training. The file that it is in is its kind."""

    def kept(run: Callable[[Low], Left]) -> Callable[[Low], Left]:
        called = name or run.__name__
        assert called not in TRAININGS, f"two trainings are called {called}"
        TRAININGS[called] = Training(called, package, Path(run.__code__.co_filename).stem, run, precisions)
        return run

    return kept


def loaded() -> dict[str, Training]:
    """All trainings. Their files import a package only when a training runs."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    for path in sorted(FOLDER.glob("*.py")):
        importlib.import_module(path.stem)
    return TRAININGS


class Low:
    """How a plain loop trains in a precision."""

    def __init__(self, precision: str) -> None:
        self.precision = precision
        self.dtype = AUTOCAST.get(precision)
        self.true = precision == "bf16-true"
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=precision == "16-mixed")

    def cast(self, given: Any) -> Any:
        """A model, or a tensor of it, in the format that its weights have."""
        return given.to(torch.bfloat16) if self.true else given

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast("cpu", dtype=self.dtype) if self.dtype else nullcontext()

    def step(self, loss: torch.Tensor, *optimizers: torch.optim.Optimizer) -> None:
        """Backward pass and steps."""
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        for optimizer in optimizers:
            self.scaler.step(optimizer)
        self.scaler.update()


def data(rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of standard normal numbers, and the class of each: where the largest of its first four is."""
    x = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(0))
    return x, x[:, :CLASSES].argmax(-1)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, CLASSES))


def square(out: Any) -> torch.Tensor:
    return out.float().square().mean()  # type: ignore[no-any-return]


def looped(low: Low, model: nn.Module, make: Callable[..., torch.optim.Optimizer], steps: int = STEPS) -> Left:
    """A plain loop, and what may be measured of it."""
    model = low.cast(model)
    optimizer, (x, y), left = make(model.parameters()), data(), {}
    for step in range(steps):
        with low.autocast():
            loss = nn.functional.cross_entropy(model(low.cast(x)).float(), y)
        low.step(loss, optimizer)
        left[f"loss {step}"] = loss
    return Left(model, left, (model, x), {"loss": lambda out: nn.functional.cross_entropy(out.float(), y)})
