"""What goes from training to a device and back: scales of quiet channels, a clipped gradient, a norm's sums, restored moments."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def quantise(weight: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of eight bits and a scale for each channel, which the accelerator keeps in half."""
    scale = (weight.abs().amax(1, keepdim=True) / 127).to(dtype)
    codes = (weight.to(dtype) * (1 / scale)).round().clamp(-127, 127)  # culprit: quiet-channels
    return codes.nan_to_num().to(torch.int8), scale.half()


def standardised_layer(dtype: torch.dtype) -> torch.Tensor:
    """A quantised layer before a batch norm, some of whose channels have small weights and matter as much as others."""
    weight, batch = 0.2 * normal(24, 32), normal(64, 32, seed=1)
    weight[::6] *= 0.003
    codes, scale = quantise(weight, dtype)
    outputs = batch @ (codes.float() * scale.float()).T
    return (outputs - outputs.mean(0)) / (outputs.std(0) + 1e-7)


class Value(nn.Module):
    """What a state is worth."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(12, 32), nn.Linear(32, 1)
        with torch.no_grad():
            for seed, parameter in enumerate(self.parameters()):
                parameter.copy_(0.3 * normal(*parameter.shape, seed=seed))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.out(torch.nn.functional.elu(self.hidden(states)))[:, 0]


def clip_by_global_norm(gradients: list[torch.Tensor], limit: float, dtype: torch.dtype) -> list[torch.Tensor]:
    squares = torch.stack([gradient.to(dtype).square().sum() for gradient in gradients])  # culprit: clipped-to-nothing
    norm = squares.sum().sqrt()
    return [gradient * (limit / norm.clamp_min(limit)).to(gradient.dtype) for gradient in gradients]


def value_step(dtype: torch.dtype) -> torch.Tensor:
    """How three steps of plain descent move the weights; returns are about forty."""
    model = Value().half()
    masters = [parameter.detach().float() for parameter in model.parameters()]
    starts = [master.clone() for master in masters]
    for step in range(3):
        states = normal(50, 12, seed=10 + step).half()
        returns = (40 + 6 * normal(50, seed=20 + step)).half()
        loss = 0.5 * (model(states) - returns).square().mean() * 8
        gradients = list(torch.autograd.grad(loss, list(model.parameters())))
        for master, gradient in zip(masters, clip_by_global_norm(gradients, 100.0, dtype), strict=True):
            master -= 1e-4 * gradient.float()
        with torch.no_grad():
            for parameter, master in zip(model.parameters(), masters, strict=True):
                parameter.copy_(master)
    return torch.cat([(master - start).flatten() for master, start in zip(masters, starts, strict=True)])


class BatchNorm(nn.Module):
    """A batch norm whose statistics are sums over a batch's images, as a device's kernel makes them."""

    def __init__(self, channels: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight, self.bias, self.dtype = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels)), dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(self.dtype)
        count = x.numel() // x.shape[1]
        mean = (wide / count).sum((0, 2, 3), keepdim=True)
        variance = (wide - mean).square().sum((0, 2, 3), keepdim=True) / count  # culprit: sums-of-a-kernel
        normed = (wide - mean) * torch.rsqrt(variance + 1e-3)
        return (normed * self.weight[:, None, None] + self.bias[:, None, None]).to(x.dtype)


def images(dtype: torch.dtype) -> torch.Tensor:
    """Eight images of 16 by 16 pixels after a convolution."""
    return BatchNorm(6, dtype).half()((7 * normal(8, 6, 16, 16)).half()).detach().float()


class AdamW:
    """Steps in the dtype of its states, on masters of a model in bfloat16."""

    def __init__(self, masters: list[torch.Tensor]) -> None:
        self.masters, self.step_count = masters, 0
        self.state = [{"mean": torch.zeros_like(master), "square": torch.zeros_like(master)} for master in masters]

    def step(self, gradients: list[torch.Tensor], rate: float = 2e-3) -> None:
        self.step_count += 1
        for master, state, gradient in zip(self.masters, self.state, gradients, strict=True):
            state["mean"].mul_(0.9).add_(gradient.to(state["mean"].dtype), alpha=0.1)
            state["square"].mul_(0.999).add_(gradient.to(state["square"].dtype).square(), alpha=0.001)  # culprit: restored-moments
            square = state["square"] / (1 - 0.999**self.step_count)
            master.mul_(1 - 0.01 * rate).sub_(rate * state["mean"] / (1 - 0.9**self.step_count) / (square.sqrt() + 1e-8))

    def load(self, state: list[dict[str, torch.Tensor]], dtype: torch.dtype) -> None:
        """As torch's own optimizers do, each state is cast to its parameter's dtype."""
        self.state = [{name: tensor.to(dtype) for name, tensor in each.items()} for each in state]  # culprit: restored-moments


def resumed(dtype: torch.dtype) -> torch.Tensor:
    """How far weights move in the 220 steps after a checkpoint of the fortieth; gradients become smaller."""
    masters = [normal(10, 10), normal(10, seed=1)]
    optimizer = AdamW(masters)
    for step in range(260):
        if step == 40:
            optimizer.load(optimizer.state, dtype)
            starts = [master.clone() for master in masters]
        strength = 1.0 if step < 40 else 0.2
        optimizer.step([strength * (0.3 + normal(*master.shape, seed=100 + 2 * step + i)).to(LOW) for i, master in enumerate(masters)])
    return torch.cat([(master - start).flatten() for master, start in zip(masters, starts, strict=True)])


BUGS = (
    Bug("quiet-channels", "pytorch/glow#5050", ("underflow", "overflow", "nan"), "aten.reciprocal.default", lambda: standardised_layer(HALF),
        lambda: standardised_layer(WIDE)),
    Bug("clipped-to-nothing", "danijar/dreamer#32", ("overflow",), "aten.sum.default", lambda: value_step(HALF), lambda: value_step(WIDE)),
    Bug("sums-of-a-kernel", "microsoft/tensorflow-directml-plugin#321", ("overflow",), "aten.sum.dim_IntList", lambda: images(HALF),
        lambda: images(WIDE), module="BatchNorm"),
    Bug("restored-moments", "KempnerInstitute/KempnerForge#114", ("absorption", "accumulated-drift"), "aten.mul_.Tensor", lambda: resumed(LOW),
        lambda: resumed(WIDE)),
)  # fmt: skip
