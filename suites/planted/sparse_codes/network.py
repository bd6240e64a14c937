"""A sparse autoencoder of another model's states, some of which are huge: latents with thresholds, counts of those that are dead, a second
try for what was left over."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

PRECISIONS = ("bf16-mixed", "16-mixed")  # states with huge entries are inputs, which a conversion of everything would round
STEPS = 12
STATES, WIDTH, LATENTS, AUXILIARY, BANDWIDTH, DECAY = 384, 48, 256, 16, 0.02, 0.998


def low_dtype(like: torch.Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else like.dtype


def scaled(states: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """States of length one each, times the root of their width."""
    states = states.float()
    return states * torch.rsqrt(states.square().mean(-1, keepdim=True) + 1e-6)


def left_over(states: torch.Tensor, decoded: torch.Tensor, middle: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """What the latents do not explain. The middle of the states is large and is taken off first."""
    return ((states - middle) - decoded.float()).float()


def unexplained(left: torch.Tensor, states: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """The share of the variance that is not explained, for each entry."""
    centred = states - states.mean(0)
    return (left.square().mean(0) / centred.square().mean(0)).float()


def since_fired(since: torch.Tensor, fired: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How many steps each latent has not fired for."""
    return torch.where(fired, 0.0, since + 1).float()


def used(usage: torch.Tensor, share: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How often each latent fires, on average over many steps."""
    return usage.float() * DECAY + (1 - DECAY) * share.float()


class Jump(torch.autograd.Function):
    """A unit that passes what is above its threshold. Its threshold learns from what comes near."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, threshold)
        return x * (x > threshold)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, threshold = ctx.saved_tensors
        near = (x.float() - threshold.float()) / BANDWIDTH
        weight = (1 - near.abs()).clamp_min(0)
        grad_threshold = -(threshold / BANDWIDTH * weight * grad.float()).sum(0)
        return grad * (x > threshold), grad_threshold.to(threshold.dtype)


class SparseCodes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(WIDTH, LATENTS), nn.Linear(LATENTS, WIDTH, bias=False)
        self.middle, self.threshold = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.full((LATENTS,), 0.4))
        self.register_buffer("since", torch.full((LATENTS,), 256.0))
        self.register_buffer("usage", torch.full((LATENTS,), 0.75))

    def forward(self, states: torch.Tensor) -> dict[str, torch.Tensor]:
        low = low_dtype(self.encoder.weight)
        with torch.autocast(states.device.type, enabled=False):
            centred = states - self.middle
            whole = scaled(states, low)
        before = self.encoder(centred) + 0.1 * whole.mean(-1, keepdim=True)
        with torch.autocast(states.device.type, enabled=False):
            latents = Jump.apply(before.float(), self.threshold)
            fired = latents > 0
        decoded = self.decoder(latents)
        with torch.autocast(states.device.type, enabled=False):
            left = left_over(states, decoded, self.middle, low)
            share = unexplained(left, states, low)
            with torch.no_grad():
                self.since.copy_(since_fired(self.since, fired.any(0), low))
                self.usage.copy_(used(self.usage, fired.float().mean(0), low))
                dead = self.since > 250
        tried = self.decoder(torch.relu(before) * dead * 0.1)
        with torch.autocast(states.device.type, enabled=False):
            second = (left.detach() - tried.float()).square().mean()
            loss = left.square().mean() + 0.03 * second + 1e-3 * torch.tanh(4 * latents).sum(-1).mean()
        return {"decoded": decoded, "left": left, "share": share, "whole": whole, "loss": loss}


def make() -> nn.Module:
    """The middle has been learnt."""
    torch.manual_seed(0)
    model = SparseCodes()
    with torch.no_grad():
        model.middle.copy_(_middle())
        model.encoder.bias.fill_(-0.05)
        model.encoder.bias[:40] = -20.0
        model.decoder.weight.copy_(functional.normalize(model.encoder.weight.T, dim=0) * 0.3)
    return model


def _middle() -> torch.Tensor:
    middle = 0.1 * torch.randn(WIDTH, generator=torch.Generator().manual_seed(3))
    middle[7], middle[31] = 412.0, -291.0
    return middle


def batch() -> torch.Tensor:
    return _middle() + torch.randn(STATES, WIDTH, generator=torch.Generator().manual_seed(1))


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


def optimizer(params) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=1e-3)
