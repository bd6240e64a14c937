"""Eight ways to train one small GPT with AdamW, side by side: what each stores, what of its updates arrives, how it learns.

`python suites/recipes/recipes.py` prints the table of README.md; `--rate 1e-3` and `--steps 50` change it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import time
from collections.abc import Callable

import torch
from gpt2layers import GPT, Batches
from rounded import AdamW16, Remembered
from torch import nn

BETAS, EPS = (0.9, 0.999), 1e-8
Weights = list[nn.Parameter]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What weights are stored in, what the forward computes in if not that, and the optimizer."""

    name: str
    weights: torch.dtype
    autocast: torch.dtype | None = None
    optimizer: Callable[[Weights, float], torch.optim.Optimizer] = lambda weights, rate: torch.optim.AdamW(
        weights, lr=rate, betas=BETAS, eps=EPS, weight_decay=0.0
    )
    master: bool = False
    scaled: bool = False


RECIPES = [
    Recipe("fp32", torch.float32),
    Recipe("bf16 autocast, fp32 weights", torch.float32, autocast=torch.bfloat16),
    Recipe("bf16 weights, fp32 master", torch.bfloat16, master=True),
    Recipe("bf16, rounded by chance", torch.bfloat16, optimizer=lambda weights, rate: AdamW16(weights, rate, chance=True)),
    Recipe("bf16, Kahan remainder", torch.bfloat16, optimizer=lambda weights, rate: AdamW16(weights, rate, chance=False)),
    Recipe("bf16", torch.bfloat16),
    Recipe("fp16 autocast, GradScaler", torch.float32, autocast=torch.float16, scaled=True),
    Recipe("fp16", torch.float16),
]
BY_NAME = {recipe.name: recipe for recipe in RECIPES}


class Training:
    """A recipe at work: `step()` is one step, `arrived` what came of the moves that AdamW meant."""

    def __init__(self, recipe: Recipe, rate: float) -> None:
        self.recipe = recipe
        self.model, self.batches = GPT.seeded().to(recipe.weights), Batches()
        self.own = list(self.model.parameters())
        self.stepped = [nn.Parameter(weight.detach().float()) for weight in self.own] if recipe.master else self.own
        self.optimizer = recipe.optimizer(self.stepped, rate)
        self.scaler = torch.amp.GradScaler("cpu", enabled=recipe.scaled)
        self.arrived = Remembered(self.stepped, rate, BETAS, EPS)
        self.seconds: list[float] = []
        self.losses: list[float] = []

    def step(self, *, counted: bool = True) -> None:
        """Forward, backward, update; `counted` keeps the books of what arrived."""
        began = time.perf_counter()
        self._backward()
        before = self.arrived.before(self.stepped) if counted else None
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.recipe.master:
            with torch.no_grad():
                for weight, master in zip(self.own, self.stepped, strict=True):
                    weight.copy_(master)
        self.seconds.append(time.perf_counter() - began)
        if before is not None:
            self.arrived.after(self.stepped, before)

    def _backward(self) -> None:
        self.model.zero_grad()
        ids, targets = self.batches.next()
        with torch.autocast("cpu", self.recipe.autocast) if self.recipe.autocast else contextlib.nullcontext():
            logits = self.model(ids)
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        for weight, stepped in zip(self.own, self.stepped, strict=True):
            stepped.grad = weight.grad if stepped is weight or weight.grad is None else weight.grad.float()
        self.losses.append(loss.item())

    def stored(self) -> tuple[int, int, int]:
        """Bytes of weights, of gradients, of what the optimizer keeps between steps, masters among it."""
        kept = [value for state in self.optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
        masters = self.stepped if self.recipe.master else []
        gradients = [weight.grad for weight in self.own if weight.grad is not None]
        weights, grads, state = (sum(each.nbytes for each in tensors) for tensors in (self.own, gradients, [*kept, *masters]))
        return weights, grads, state

    @property
    def loss(self) -> float:
        """Mean of the last ten steps'."""
        last = self.losses[-10:]
        return sum(last) / len(last)


def trained(recipe: Recipe, rate: float, steps: int) -> Training:
    training = Training(recipe, rate)
    for _ in range(steps):
        training.step()
    return training


def table(rate: float, steps: int) -> str:
    """Markdown: one row a recipe."""
    columns = ["recipe", "loss", "EDQ_n norm weights", "EDQ_n matrices", "bytes a parameter: weight + gradient + state", "ms a step"]
    head = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return "\n".join([*head, *(_row(trained(recipe, rate, steps)) for recipe in RECIPES)])


def _row(training: Training) -> str:
    count = sum(weight.numel() for weight in training.own)
    weights, gradients, state = (bytes_ / count for bytes_ in training.stored())
    seconds = sorted(training.seconds)[len(training.seconds) // 2]
    edq = training.arrived.edq
    return (
        f"| {training.recipe.name} | {training.loss:.3f} | {_share(edq('norm'))} | {_share(edq('matrix'))} "
        f"| {weights:.0f} + {gradients:.0f} + {state:.0f} | {1e3 * seconds:.0f} |"
    )


def _share(edq: float) -> str:
    return f"{edq:.2f}" if math.isfinite(edq) else "–"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--steps", type=int, default=150)
    chosen = parser.parse_args()
    print(table(chosen.rate, chosen.steps))
