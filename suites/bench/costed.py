"""Small whole networks, healthy and with a fault, on which it is measured what a verdict costs beside the steps that it is about."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from sized import GPT, loss_of
from torch import nn
from torch.nn import functional


@dataclasses.dataclass(frozen=True, slots=True)
class Network:
    """`make` gives the arguments of `precheck.measure`, seeded, but for the precision. `fails`: whether the verdict is an error."""

    name: str
    precision: str
    make: Callable[[], dict[str, Any]]
    fails: bool


class Variational(nn.Module):
    """An autoencoder that draws from what it encodes."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(196, 128), nn.GELU(), nn.Linear(128, 32))
        self.decode = nn.Sequential(nn.Linear(16, 128), nn.GELU(), nn.Linear(128, 196))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, spread = self.encode(x).float().chunk(2, -1)
        drawn = mean + torch.randn_like(mean) * (spread / 2).exp()
        return self.decode(drawn), mean, spread


class Recurrent(nn.Module):
    def __init__(self, *, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 48)
        self.lstm = nn.LSTM(48, 48, num_layers=layers, batch_first=True)
        self.head = nn.Linear(48, 96)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(ids))[0])


class Stepwise(nn.Module):
    """An LSTM written by hand, one step after another."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(24, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = memory = x.new_zeros(len(x), 32)
        seen = []
        for each in x.unbind(1):
            hidden, memory = self.cell(each, (hidden, memory))
            seen.append(hidden)
        return self.head(torch.stack(seen, 1))


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = ((3, 16), (16, 32), (32, 64))
        self.body = nn.Sequential(*(nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in sizes))
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


class SquaredNorm(nn.Module):
    """An RMS norm that squares what it has multiplied by 300, which float16 cannot hold."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = x * 300
        return scaled * torch.rsqrt(scaled.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class SubtractedNorm(nn.Module):
    """A norm whose variance is a mean of squares less a squared mean."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shifted = x + 30
        variance = (shifted * shifted).mean(-1, keepdim=True) - shifted.mean(-1, keepdim=True) ** 2
        return (shifted - shifted.mean(-1, keepdim=True)) * torch.rsqrt(variance.clamp(min=0) + 1e-3) * self.weight


class OverflowingLoss(nn.Module):
    """Its last product leaves float16's range at any loss scale."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head((self.body(x) * 1000).square().mean(-1, keepdim=True).expand(-1, -1, 64))


def blocks(norm: Callable[[int], nn.Module], count: int = 4) -> Callable[[], nn.Module]:
    def block() -> nn.Module:
        return nn.Sequential(norm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    return lambda: nn.Sequential(nn.Linear(64, 64), *(block() for _ in range(count)))


def adamw(rate: float) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.AdamW(parameters, lr=rate)


def evidence(output: tuple[torch.Tensor, ...], x: torch.Tensor) -> torch.Tensor:
    decoded, mean, spread = output
    return functional.mse_loss(decoded.float(), x) + 1e-3 * (mean.square() + spread.exp() - 1 - spread).mean()


def squared(output: torch.Tensor) -> torch.Tensor:
    return output.float().square().mean()


def trained(make: Callable[[], nn.Module], draw: Callable[[], torch.Tensor], loss: Any = squared, rate: float = 1e-2) -> Callable[[], dict[str, Any]]:
    """`loss` takes the output, and what was drawn if `evidence` or `loss_of` needs it."""

    def arguments() -> dict[str, Any]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model, inputs = make(), draw()
        judged = loss_of(inputs) if loss is loss_of else (lambda output: evidence(output, inputs)) if loss is evidence else loss
        return {"model": model, "inputs": inputs, "loss": judged, "optimizer": adamw(rate)}

    return arguments


def ids(batch: int, length: int, vocabulary: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(0, vocabulary, (batch, length))


def drawn(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(*shape)


GPT_SMALL = (lambda: GPT(96, 2), ids(2, 128, 4096), loss_of)
LSTM_LONG = (lambda: Recurrent(layers=1), ids(4, 301, 96), loss_of)
LSTM_BY_HAND = (Stepwise, drawn(8, 301, 24))
AUTOENCODER = (Variational, lambda: torch.rand(64, 196), evidence)
IMAGES = (Convolutional, drawn(8, 3, 32, 32))
LAYERED = (blocks(nn.LayerNorm), drawn(4, 128, 64))

NETWORKS = (
    Network("GPT", "bf16-mixed", trained(*GPT_SMALL), fails=False),
    Network("GPT", "16-mixed", trained(*GPT_SMALL), fails=False),
    Network("GPT", "bf16-true", trained(*GPT_SMALL), fails=False),
    Network("LSTM, 301 steps", "bf16-mixed", trained(*LSTM_LONG), fails=False),
    Network("LSTM, 301 steps", "bf16-true", trained(*LSTM_LONG), fails=False),
    Network("LSTM by hand, 301 steps", "bf16-mixed", trained(*LSTM_BY_HAND), fails=False),
    Network("VAE", "bf16-mixed", trained(*AUTOENCODER), fails=False),
    Network("VAE", "16-mixed", trained(*AUTOENCODER), fails=False),
    Network("convolutions", "bf16-mixed", trained(*IMAGES), fails=False),
    Network("convolutions", "16-mixed", trained(*IMAGES), fails=False),
    Network("layers", "bf16-true", trained(*LAYERED), fails=False),
    Network("layers", "16-mixed", trained(*LAYERED), fails=False),
    Network("GPT, updates lost", "bf16-true", trained(*GPT_SMALL, rate=1e-5), fails=True),
    Network("layers, updates lost", "bf16-true", trained(*LAYERED, rate=1e-5), fails=True),
    Network("norm that overflows", "16-true", trained(blocks(SquaredNorm), drawn(4, 128, 64)), fails=True),
    Network("norm that cancels", "bf16-mixed", trained(blocks(SubtractedNorm), drawn(4, 128, 64)), fails=True),
    Network("norm that cancels", "bf16-true", trained(blocks(SubtractedNorm), drawn(4, 128, 64)), fails=True),
    Network("loss that overflows", "16-mixed", trained(OverflowingLoss, drawn(8, 64, 64)), fails=True),
)
