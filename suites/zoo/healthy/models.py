"""Small models as they are meant to be in a low format; each is watched, and most are measured as well."""

from __future__ import annotations

import math
from typing import Any

import torch
from bugs.bug import normal
from torch import nn
from torch.nn import functional

from healthy.trainings import Experts, Language, ids, next_word, seeded

LOW = torch.bfloat16


class Saturating(nn.Module):
    """Clips at float16's ends, and gates that are flat: elements that stand still are meant to."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = x.clip(-65504, 65504)
        return functional.relu6(held / 2000) * functional.hardsigmoid(held / 2000) / 8 + x / 65536


class Embedded(nn.Module):
    """Embeddings times √size, the root rounded to the format of the embeddings as the released weights were trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(24, 1500)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        held = self.table(words)
        return held * torch.tensor(math.sqrt(1500), dtype=held.dtype)


class Island(nn.Module):
    """A norm in float32 in the midst of a stream in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.norm, self.after = nn.Linear(32, 48), nn.LayerNorm(48), nn.Linear(48, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.gelu(self.before(x))
        calm = functional.layer_norm(hidden.float(), (48,), self.norm.weight.float(), self.norm.bias.float())
        return x + self.after(calm.to(hidden.dtype))


class Causal(nn.Module):
    """Attention by hand, the future masked with -Inf; each query may look at itself."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.mix(x).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = ((q / 4) @ k.mT).masked_fill(future, float("-inf"))
        return self.out((torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2))


def perceptron(*more: nn.Module) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(32, 64), nn.GELU(), *more, nn.LayerNorm(64), nn.Linear(64, 32)))


def images() -> torch.Tensor:
    return normal(8, 3, 12, 12, seed=3)


def convolutional() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3),
                                        nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)))  # fmt: skip


def head() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 300, bias=False)))


def x() -> torch.Tensor:
    return normal(12, 32, seed=1)


def run(model: nn.Module, given: torch.Tensor, dtype: torch.dtype = LOW) -> torch.Tensor:
    return model.to(dtype)(given.to(dtype) if given.is_floating_point() else given).detach()


def ordinary_drift() -> torch.Tensor:
    """Half a percent off, as anything in bfloat16 is."""
    return run(perceptron(), x())


def saturation() -> torch.Tensor:
    return run(Saturating(), 8000 * normal(4, 32), torch.float16)


def rounded_root() -> torch.Tensor:
    return run(seeded(Embedded), torch.tensor([1, 5, 7]))


def dropout() -> torch.Tensor:
    """Random masks need not be the same in two formats."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return run(perceptron(nn.Dropout(0.5)).train(), x())


def float32_island() -> torch.Tensor:
    return run(seeded(Island), x())


def causal_attention() -> torch.Tensor:
    model = seeded(Causal).to(LOW)
    out = model(normal(2, 12, 32).to(LOW))
    out.float().square().mean().backward()
    return model.mix.weight.grad


def widened_loss() -> torch.Tensor:
    """All in bfloat16 but the loss."""
    model = head().to(LOW)
    functional.cross_entropy(model(x().to(LOW)).float(), torch.arange(12)).backward()
    return model[1].weight.grad


def chaos() -> torch.Tensor:
    """A logistic map: float32 has no digit of it either after 60 steps, and any state is as good as another."""
    state = torch.tensor([0.31, 0.31 + 1e-7]).to(LOW)
    for _ in range(60):
        state = 3.99 * state * (1 - state)
    return state


IDIOMS = (ordinary_drift, saturation, rounded_root, dropout, float32_island, causal_attention, widened_loss, chaos)


def squared(out: torch.Tensor) -> torch.Tensor:
    return out.float().square().mean()


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def asked(model: nn.Module, inputs: torch.Tensor, precision: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "inputs": (inputs,), "precision": precision, **more}


def stored_low() -> dict[str, Any]:
    return asked(perceptron(), x(), "bf16-true")


def trained_without_scaler() -> dict[str, Any]:
    """bfloat16 has float32's range, and needs no loss scale."""
    return asked(perceptron(), x(), "bf16-mixed", loss=squared, optimizer=momentum, steps=5)


def trained_with_scaler() -> dict[str, Any]:
    return asked(perceptron(), x(), "16-mixed", loss=squared, optimizer=momentum, steps=5)


def trained_with_masters() -> dict[str, Any]:
    return asked(seeded(lambda: nn.Linear(32, 8, bias=False)), x(), "bf16-master", loss=squared, optimizer=adamw, steps=8)


def saturating() -> dict[str, Any]:
    return asked(Saturating(), 8000 * normal(4, 32), "16-true")


def scaled_embeddings() -> dict[str, Any]:
    return asked(seeded(Embedded), torch.tensor([1, 5, 7]), "bf16-true")


def dropping_out() -> dict[str, Any]:
    return asked(perceptron(nn.Dropout(0.5)).train(), x(), "bf16-true")


def wide_norm() -> dict[str, Any]:
    return asked(seeded(Island), x(), "bf16-true")


def masked_attention() -> dict[str, Any]:
    return asked(seeded(Causal), normal(2, 12, 32), "bf16-true", loss=squared)


def decoder() -> dict[str, Any]:
    return asked(seeded(Language), ids(), "bf16-mixed", loss=next_word, optimizer=adamw, steps=3)


def mixture() -> dict[str, Any]:
    return asked(seeded(Experts), normal(48, 16, seed=1), "bf16-mixed", loss=lambda out: squared(out[0]) + 0.01 * out[1])


def word_head() -> dict[str, Any]:
    return asked(head(), x(), "bf16-true", loss=lambda out: functional.cross_entropy(out.float(), torch.arange(12)))


def convolutions() -> dict[str, Any]:
    return asked(convolutional().train(), images(), "16-mixed", loss=lambda out: functional.cross_entropy(out.float(), torch.arange(8) % 5),
                 optimizer=momentum, steps=3)  # fmt: skip


MEASURED = (stored_low, trained_without_scaler, trained_with_scaler, trained_with_masters, saturating, scaled_embeddings, dropping_out, wide_norm,
            masked_attention, decoder, mixture, word_head, convolutions)  # fmt: skip
