"""Diffusion: timesteps, noise schedules and what is made of them where the model's dtype is at hand."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn

from bugs.bug import Bug, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def exact(*shape: int, seed: int = 0) -> torch.Tensor:
    """Numbers that bfloat16 holds."""
    return torch.round(32 * uniform(*shape, seed=seed)) / 32 - 0.5


def flow_sample(dtype: torch.dtype) -> torch.Tensor:
    """A shifted flow schedule of 120 sigmas of which neighbours share a value: the nearest timestep is the first of them, its step zero."""
    data, noise = exact(64), exact(64, seed=1)
    ramp = torch.linspace(1.0, 0.0, 121).to(dtype)  # culprit: colliding-sigmas
    sigmas = 5.0 * ramp / (1 + 4.0 * ramp)  # culprit: colliding-sigmas
    timesteps, sample = sigmas[:-1] * 1000, noise.clone()
    for now in timesteps:
        place = torch.argmin((timesteps - now).abs())
        step = sigmas[place + 1] - sigmas[place]  # culprit: colliding-sigmas
        sample = sample + (noise - data) * step.float()
    return sample


class AddNoise(nn.Module):
    """sqrt(1 - alpha) where alpha is 0.999 and was rounded to one: the first timesteps get no noise."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide
        self.alphas = [torch.cumprod(1 - torch.linspace(0.03, 0.11, 1000) ** 2, 0)]  # out of reach of .to()

    def forward(self, samples: torch.Tensor, noise: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        alpha = self.alphas[0][timesteps]
        alpha = alpha if self.wide else alpha.to(samples.dtype)  # culprit: unnoised-start
        rest = (1 - alpha).sqrt().to(samples.dtype)  # culprit: unnoised-start
        return alpha.sqrt().to(samples.dtype)[:, None] * samples + rest[:, None] * noise


def early(wide: bool) -> dict[str, Any]:
    given = (torch.zeros(4, 16), exact(4, 16), torch.arange(4))
    return {"model": AddNoise(wide), "inputs": given, "precision": "bf16-true"}


def noised(wide: bool) -> torch.Tensor:
    samples, noise, timesteps = early(wide)["inputs"]
    return AddNoise(wide)(samples.to(LOW), noise.to(LOW), timesteps)


class Terminal(nn.Module):
    """A buffer of cumulative alphas whose last is 2e-8, for a sigma that the sampler derives in float32."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        alphas = torch.cumprod(1 - torch.linspace(0.03, 0.11, 1000) ** 2, 0)
        alphas[-1] = 2e-8
        self.register_buffer("alphas", alphas)
        self.plain = [alphas.clone()] if kept else None

    def forward(self, latent: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        alpha = (self.plain[0] if self.plain else self.alphas.float())[-1]
        sigma = ((1 - alpha) / alpha).sqrt()
        return (latent.float() + noise.float() * sigma) / (sigma**2 + 1).sqrt()


def terminal(kept: bool) -> torch.Tensor:
    model = Terminal(kept).half()  # culprit: halved-alphas
    return model(exact(2, 16).half(), exact(2, 16, seed=1).half())


def text_ids(careless: bool) -> torch.Tensor:
    """A batch goes to the training dtype, and so do the ids that a rotary table is made of."""
    batch = {"hidden": torch.zeros(8), "ids": torch.arange(512)}
    batch = {name: each.to(LOW) if careless or each.is_floating_point() else each for name, each in batch.items()}  # culprit: cast-batch
    angles = batch["ids"].double()[:, None] * 2000.0 ** (-torch.arange(0, 32, 2, dtype=torch.float64) / 32)
    return torch.stack([angles.cos(), angles.sin()], -1).float()


def conditioned(mask_dtype: torch.dtype) -> torch.Tensor:
    """Frames that are given stay; the others are denoised from the start, if t - 1e-6 is below one in the mask's format."""
    latents, velocity = torch.zeros(4, 16).to(LOW), torch.ones(4, 16).to(LOW)
    mask = torch.zeros(4, 16).to(mask_dtype)
    mask[0] = 1.0
    ramp = torch.linspace(1.0, 0.0, 61)
    sigmas = 9.8 * ramp / (1 + 8.8 * ramp)
    for now, after in itertools.pairwise(sigmas[:3]):
        moved = latents + (after - now).to(LOW) * velocity
        latents = torch.where(now - 1e-6 < 1 - mask, moved, latents)  # culprit: conditioned-frames
    return latents


def beta_times(dtype: torch.dtype) -> torch.Tensor:
    """Times from Beta(1.5, 1) as a ratio of powers of two uniform draws: bfloat16 draws an exact zero for both, once in 2**16."""
    draws = torch.Generator().manual_seed(0)
    first = torch.empty(200_000, dtype=dtype).uniform_(generator=draws).pow(1 / 1.5)  # culprit: beta-times
    second = torch.empty(200_000, dtype=dtype).uniform_(generator=draws)  # culprit: beta-times
    return (first / (first + second)).float()  # culprit: beta-times


BUGS = (
    Bug("colliding-sigmas", "Comfy-Org/ComfyUI#16001", ("amplified-rounding", "cancellation"), "aten.div.Tensor", lambda: flow_sample(LOW),
        lambda: flow_sample(WIDE)),
    Bug("unnoised-start", "huggingface/diffusers#9004", ("amplified-rounding", "cancellation"), "aten._to_copy.default", lambda: noised(False),
        lambda: noised(True), module="AddNoise", measured=early),
    Bug("halved-alphas", "AUTOMATIC1111/stable-diffusion-webui#14071", ("underflow",), "aten._to_copy.default", lambda: terminal(False),
        lambda: terminal(True)),
    Bug("cast-batch", "Nerogar/OneTrainer#1177", ("integer-rounding",), "aten._to_copy.default", lambda: text_ids(True), lambda: text_ids(False)),
    Bug("conditioned-frames", "NVlabs/Sana#423", ("vanished-constant", "decision-flip"), "aten.lt.Tensor", lambda: conditioned(LOW),
        lambda: conditioned(WIDE)),
    Bug("beta-times", "huggingface/lerobot#1096", ("underflow", "nan"), "aten.uniform_.default", lambda: beta_times(LOW),
        lambda: beta_times(WIDE)),
)  # fmt: skip
