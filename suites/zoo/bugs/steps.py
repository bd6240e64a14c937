"""What optimizers keep: averages of weights, factors that whiten gradients, moments, an eps."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from bugs.bug import Bug, normal

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def layer(narrow: int, broad: int, seed: int = 0) -> nn.Linear:
    made = nn.Linear(narrow, broad, bias=False)
    with torch.no_grad():
        made.weight.copy_(normal(broad, narrow, seed=seed) / narrow**0.5)
    return made


def averaged_weights(dtype: torch.dtype) -> torch.Tensor:
    """How far an average of weights has come through 120 steps of a diffusion model, by torch's own averaging of models."""
    model = layer(24, 24)
    kept = AveragedModel(model.to(dtype), multi_avg_fn=get_ema_multi_avg_fn(0.999))  # culprit: shadow-weights
    start = model.weight.detach().float().clone()
    kept.update_parameters(model)
    for step in range(120):
        with torch.no_grad():
            model.weight.copy_(start + 0.3 * (step + 1) / 120 * (1 + 0.1 * normal(24, 24, seed=1)))
        kept.update_parameters(model)  # culprit: shadow-weights
    return kept.module.weight.detach().float() - start


def whitened(dtype: torch.dtype) -> torch.Tensor:
    """The directions in which Shampoo's factor whitens, after 200 gradients of which one direction is strong."""
    weak, strong = 0.05 + 0.2 * torch.rand(12, generator=torch.Generator().manual_seed(5)), normal(12, seed=9)
    factor = torch.zeros(12, 12, dtype=dtype)
    for step in range(200):
        gradient = (weak[:, None] * normal(12, 20, seed=step) + strong[:, None]).to(dtype)
        factor.lerp_(gradient @ gradient.T, 0.01)  # culprit: whitening-factors
    powers = torch.linalg.eigvalsh(factor.float())  # culprit: whitening-factors
    return powers[:-1].clamp(min=1e-6) ** -0.25


def speech_moments(dtype: torch.dtype) -> torch.Tensor:
    """Weights in float32 of a recogniser, stepped by Adam whose moments are kept in the format of its activations."""
    weight, first, second = normal(16, 16) / 4, torch.zeros(16, 16, dtype=dtype), torch.zeros(16, 16, dtype=dtype)
    start = weight.clone()
    for step in range(1, 241):
        x = normal(32, 16, seed=step)
        size = 1.0 if step < 20 else 0.1
        gradient = size * (1 + 0.2 * (x.T @ x) / 32).to(dtype)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient * gradient  # culprit: speech-moments
        corrected = (first.float() / (1 - 0.9**step)) / ((second.float() / (1 - 0.999**step)).sqrt() + 1e-8)
        weight = weight - 1e-3 * corrected
    return weight - start


def sparse_steps(eps: float) -> torch.Tensor:
    """Two steps of Adam on a network in half, some of whose gradients are small."""
    model = layer(12, 6).to(HALF)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=eps)
    for step in range(2):
        optimizer.zero_grad()
        x = torch.cat([normal(8, 9, seed=step), torch.zeros(8, 3)], -1).half()
        functional.mse_loss(model(x).float(), normal(8, 6, seed=7)).backward()
        optimizer.step()  # culprit: sparse-adam
    return model.weight.detach().float()


BUGS = (
    Bug("shadow-weights", "PaddlePaddle/PaddleMIX#515", ("absorption", "accumulated-drift", "lost-update"), "aten._foreach_lerp_.Scalar",
        lambda: averaged_weights(LOW), lambda: averaged_weights(WIDE)),
    Bug("whitening-factors", "HomebrewML/HeavyBall#2", ("amplified-rounding", "absorption", "accumulated-drift"), "aten.lerp_.Scalar",
        lambda: whitened(LOW), lambda: whitened(WIDE)),
    Bug("speech-moments", "sanchit-gandhi/seq2seq-speech#12", ("accumulated-drift", "absorption"), "aten.add.Tensor",
        lambda: speech_moments(LOW), lambda: speech_moments(WIDE)),
    Bug("sparse-adam", "traveller59/spconv#513", ("vanished-constant", "underflow", "nan"), "aten.add_.Tensor", lambda: sparse_steps(1e-8),
        lambda: sparse_steps(1e-4), phase="optimizer"),
)  # fmt: skip
