"""Five small models trained from scratch in recipes: the loss after 300 steps, and what `measure` says after 3 of them.

`python suites/quantised/trained_models.py` prints the tables of docs/formats.md; names of recipes after it choose among them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import precheck
from precheck.precisions import resolve

RECIPES = (
    "bf16-mixed", "Float8CurrentScaling", "DelayedScaling", "Float8BlockScaling", "MXFP8BlockScaling", "mxfp6-e2m3", "mxfp4", "NVFP4BlockScaling",
    "Float8CurrentScaling-E4M3", "DelayedScaling-E4M3", "mxfp6-e3m2", "tensorwise", "rowwise", "rowwise_with_gw_hp",
)  # fmt: skip
STEPS = 300
ROWS = 128
Data = Callable[[int], tuple[torch.Tensor, torch.Tensor]]
TRAINED = 0.9
"""Share of what bfloat16 takes off the loss, below which a recipe has failed."""


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Reader(nn.Module):
    """A transformer that finds the token that came after the last one's earlier place."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(16, 32), nn.Parameter(0.1 * torch.randn(24, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(x.long()) + self.place)[:, -1])


TEACHER = draw(7, 32, 8)


def regression(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = draw(step, ROWS, 32)
    return x, torch.tanh(x @ TEACHER / 3)


def uneven(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of different sizes, all of which matter alike."""
    x = draw(step, ROWS, 32)
    return x * torch.where(torch.arange(32) < 2, 100.0, 1.0), torch.tanh(x @ TEACHER / 3)


def perceptron(*, uneven: bool = False) -> nn.Sequential:
    made = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))
    if uneven:  # as training leaves it: large features have small weights
        with torch.no_grad():
            made[0].weight[:, :2] /= 100
    return made


def digits(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    return draw(step, ROWS, 8) @ draw(11, 8, 32), torch.empty(0)


def copied(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of tokens, and one of the first ones again at the end."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randint(0, 16, (ROWS, 24), generator=generator)
    return x, x.sum(1) % 2 * 0 + x[:, 3]


def mean_square(made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return (made.float() - wanted).square().mean()


MODELS: dict[str, tuple[Callable[[], nn.Module], Data, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "MLP": (perceptron, regression, mean_square),
    "uneven features": (lambda: perceptron(uneven=True), uneven, mean_square),
    "residual, 8 blocks": (lambda: nn.Sequential(*(Residual(32) for _ in range(8)), nn.Linear(32, 8)), regression, mean_square),
    "autoencoder": (lambda: nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8), nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 32)), digits,
                    mean_square),
    "transformer": (Reader, copied, lambda made, wanted: functional.cross_entropy(made.float(), wanted)),
}  # fmt: skip


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=2e-3)


def trained(name: str, precision: str, steps: int = STEPS) -> tuple[float, float]:
    """The loss in float32 on new data, before and after."""
    make, data, loss = MODELS[name]
    torch.manual_seed(0)
    model, chosen = make(), resolve(precision)
    steps_taken = optimizer(model.parameters())
    before = tested(name, model)
    with chosen.step():
        for step in range(steps):
            x, wanted = data(step)
            with chosen.autocast():
                value = loss(model(x), wanted if wanted.numel() else x)
            steps_taken.zero_grad()
            value.backward()
            steps_taken.step()
    return before, tested(name, model)


def tested(name: str, model: nn.Module) -> float:
    _, data, loss = MODELS[name]
    x, wanted = data(10**6)
    with torch.no_grad():
        return float(loss(model(x), wanted if wanted.numel() else x))


def verdict(name: str, precision: str) -> precheck.Report:
    """What `measure` says of three steps."""
    make, data, loss = MODELS[name]
    torch.manual_seed(0)
    x, wanted = data(0)
    return precheck.measure(
        make(), x, precision=precision, loss=lambda made: loss(made, wanted if wanted.numel() else x), optimizer=optimizer, steps=3
    )


def table(recipes: tuple[str, ...]) -> None:
    for name in MODELS:
        before, reference = trained(name, "32-true")
        print(f"{name}: before {before:.4g}, float32 {reference:.4g}")
        best = trained(name, "bf16-mixed")[1]
        for precision in recipes:
            after, report = trained(name, precision)[1], verdict(name, precision)
            failed = not (before - after) / (before - best) >= TRAINED
            worst = max((row.drift for row in report.boundaries if row.kind == "parameter-gradient"), default=0.0)
            said = ", ".join(sorted({f"{each.rule} ({each.severity})" for each in report.findings})) or "passed"
            agrees = "" if bool(report.errors) is failed else "  (DISAGREES)"
            print(f"  {precision:24s} {after:9.4g} {'FAILED' if failed else 'trained':8s} worst gradient {worst:.2g} {said}{agrees}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    table(tuple(sys.argv[1:]) or RECIPES)
