"""A diffusion transformer over the frames of a sound, trained by flow matching: adaptive norms from the time, attention to a text, and a
preview of the clean sound by a few Euler steps."""

from __future__ import annotations

import math

import torch
from torch import nn

PRECISIONS = ("bf16-mixed", "16-mixed", "bf16-true")
STEPS = 1
WIDTH, HEADS, FRAMES, CHANNELS, WORDS, VOCABULARY = 32, 2, 320, 6, 7, 40
TIMES, SHIFT, PREVIEW = 1000, 3.0, 60


def schedule(count: int, low: torch.dtype) -> torch.Tensor:
    """How much noise there is at each step of a preview, from all to none, shifted to the noisy end."""
    even = torch.linspace(1.0, 0.0, count + 1)
    return SHIFT * even / (1 + (SHIFT - 1) * even)


def step_sizes(count: int, low: torch.dtype) -> torch.Tensor:
    """How much noise each step takes away."""
    noise = schedule(count, low)
    return (noise[:-1] - noise[1:]).float()


def time_features(sigma: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Sines and cosines of the time, of 0 to 1000."""
    rates = torch.exp(-math.log(10000.0) * torch.arange(WIDTH // 2, device=like.device) / (WIDTH // 2))
    times = sigma.float() * TIMES
    angles = times.unsqueeze(-1).float() * rates
    return torch.cat([torch.cos(angles), torch.sin(angles)], -1).to(like.dtype)


def place_features(frames: int, like: torch.Tensor) -> torch.Tensor:
    """Sines and cosines of where a frame is."""
    rates = torch.exp(-math.log(10000.0) * torch.arange(WIDTH // 2, device=like.device) / (WIDTH // 2))
    angles = torch.arange(frames, device=like.device).float().unsqueeze(-1) * rates
    return torch.cat([torch.cos(angles), torch.sin(angles)], -1).to(like.dtype)


def time_weights(sigma: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The density of logit-normal times, by which losses are weighed: its peak is late, where little of the sound is left."""
    sigma = sigma.float()
    logit = torch.log(sigma / (1 - sigma))
    density = torch.exp(-0.5 * (logit - 5.0).square()) / (math.sqrt(2 * math.pi) * sigma * (1 - sigma))
    return density.float()


def text_mask(words: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """What is added to the scores of a text's words: nothing, or, for padding, as good as minus infinity. Some samples have no text."""
    padding = (words == 0)[:, None, None, :]
    return torch.zeros(padding.shape, dtype=like.dtype, device=like.device).masked_fill(padding, torch.finfo(like.dtype).min)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (q, k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.float() + mask.float()
    return (torch.softmax(scores.float(), -1).to(v.dtype) @ v).transpose(1, 2).flatten(-2)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, elementwise_affine=False) for _ in range(3))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 6 * WIDTH))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.query, self.key_value, self.read = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(approximate="tanh"), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, hidden: torch.Tensor, time: torch.Tensor, text: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = self.modulation(time).unsqueeze(1).chunk(6, -1)
        now = self.norms[0](hidden) * (1 + scale) + shift
        hidden = hidden + gate * self.out(attention(*self.qkv(now).chunk(3, -1), None))
        key, value = self.key_value(text).chunk(2, -1)
        hidden = hidden + self.read(attention(self.query(self.norms[1](hidden)), key, value, mask))
        return hidden + mlp_gate * self.mlp(self.norms[2](hidden) * (1 + mlp_scale) + mlp_shift)


class DiffusionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.words = nn.Linear(CHANNELS, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        self.time = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.outof = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CHANNELS)

    def velocity(self, noisy: torch.Tensor, sigma: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        hidden = self.into(noisy)
        hidden = hidden + place_features(hidden.shape[1], hidden)
        time, text = self.time(time_features(sigma, hidden)), self.words(words).to(hidden.dtype)
        mask = text_mask(words, hidden)
        for block in self.blocks:
            hidden = block(hidden, time, text, mask)
        return self.outof(self.norm(hidden))

    def forward(self, sound: torch.Tensor, noise: torch.Tensor, index: torch.Tensor, words: torch.Tensor) -> dict[str, torch.Tensor]:
        sigma = (index.float() + 0.5) / TIMES
        mix = sigma[:, None, None]
        noisy = ((1 - mix) * sound.float() + mix * noise.float()).to(sound.dtype)
        found = self.velocity(noisy, sigma, words)
        errors = (found.float() - (noise.float() - sound.float())).square().mean((1, 2))
        with torch.no_grad():
            left = (step_sizes(PREVIEW, found.dtype)[:, None] * torch.arange(1, PREVIEW + 1)[:, None]).sum()
            preview = noisy.float() - found.float() * mix * left / left.ceil()
        return {"loss": (time_weights(sigma, found) * errors).mean(), "preview": preview}


def make() -> nn.Module:
    torch.manual_seed(0)
    return DiffusionTransformer()


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(1, VOCABULARY, (4, WORDS), generator=generator)
    words[1, 4:], words[3, :] = 0, 0
    return {
        "sound": torch.randn(4, FRAMES, CHANNELS, generator=generator),
        "noise": torch.randn(4, FRAMES, CHANNELS, generator=generator),
        "index": torch.tensor([995, 987, 991, 301]),
        "words": words,
    }


def loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["loss"]


optimizer = None
