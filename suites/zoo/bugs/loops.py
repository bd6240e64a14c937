"""Small float16 trainings under a GradScaler, and pieces to write others from; a line at fault ends in `# at fault`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import precheck
from bugs.bug import Bug, normal
from precheck.findings import Finding, Report

SCALE = 1024.0
MARK = "# at fault"


@dataclasses.dataclass
class Loop:
    """A linear regression, its optimizer and its scaler. What a test does with them stands in the test."""

    seed: int = 0
    scale: float = SCALE
    growth: int = 2000
    optimizer: Any = dataclasses.field(default_factory=lambda: lambda parameters: torch.optim.SGD(parameters, lr=0.05))
    model: Any = None
    scaler: Any = None

    def __post_init__(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.model = self.model or nn.Linear(4, 1)
        self.optimizer = self.optimizer(self.model.parameters())
        self.scaler = self.scaler or torch.amp.GradScaler("cpu", init_scale=self.scale, growth_interval=self.growth)
        self.start = self.weight.clone()
        self.x, self.y = normal(16, 4, seed=self.seed + 1), normal(16, 1, seed=self.seed + 2)

    def loss(self, part: slice = slice(None)) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            out = self.model(self.x[part])
        return functional.mse_loss(out.float(), self.y[part])

    def backward(self) -> None:
        """A fresh gradient of the scaled loss."""
        self.optimizer.zero_grad()
        self.scaler.scale(self.loss()).backward()

    def step(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()

    @property
    def gradients(self) -> list[torch.Tensor]:
        return [each.grad for each in self.model.parameters() if each.grad is not None]

    @property
    def weight(self) -> torch.Tensor:
        return next(self.model.parameters()).detach()

    @property
    def moved(self) -> torch.Tensor:
        """What the weight has moved so far."""
        return self.weight - self.start


@dataclasses.dataclass(frozen=True)
class Fault:
    code: Callable[[bool], Any]
    says: str  # a pattern of what the message must say
    severity: str = "error"
    rule: str = "scaler-order"
    raises: type[Exception] | None = None  # what torch itself makes of it
    link: str = ""
    harm: float | None = 0.0  # as in Bug; None where the code returns what its user gets

    @property
    def name(self) -> str:
        return self.code.__name__.replace("_", "-")

    def bug(self) -> Bug:
        return Bug(self.name, self.link, (self.rule,), "", lambda: self.code(True), lambda: self.code(False), phase="scaler",
                   severity=self.severity, raises=self.raises, harm=self.harm)  # fmt: skip


def watched(code: Callable[..., Any], *given: Any, raises: type[Exception] | None = None) -> Report:
    """The report on a block, which is to end by that exception if one is named."""
    ended: type[Exception] | None = None
    report = precheck.Report()
    try:
        with precheck.watch() as report:
            code(*given)
    except Exception as error:
        if raises is None or type(error) is not raises:
            raise
        ended = raises
    assert ended is raises
    return report


def told(report: Report) -> list[Finding]:
    """Errors and warnings."""
    return [finding for finding in report.findings if finding.severity != "note"]


def marked(code: Callable[..., Any]) -> set[tuple[Path, int]]:
    """The lines of `code` that are at fault."""
    lines, first = inspect.getsourcelines(code)
    path = Path(inspect.getsourcefile(code) or "").resolve()
    return {(path, first + place) for place, line in enumerate(lines) if line.rstrip().endswith(MARK)}


def line_of(finding: Finding) -> tuple[Path, int]:
    path, _, number = finding.source.rpartition(":")
    return Path(path).resolve(), int(number)
