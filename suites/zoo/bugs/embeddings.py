"""Embeddings, states and norms of low networks: turned queries, a timestep, waves of pixels, a state with decay, norms of images and of groups."""

from __future__ import annotations

import math

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class RotaryEmbedding(nn.Module):
    """Angles of a sequence's places; the frequencies are a buffer."""

    inv_freq: torch.Tensor

    def __init__(self, size: int, base: float = 10_000.0) -> None:
        super().__init__()
        self.size, self.base = size, base
        self.register_buffer("inv_freq", self.frequencies(), persistent=False)

    def frequencies(self) -> torch.Tensor:
        return 1.0 / self.base ** (torch.arange(0, self.size, 2, dtype=WIDE) / self.size)

    def forward(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.arange(length, dtype=WIDE)
        angles = torch.outer(places, self.inv_freq.to(WIDE))  # culprit: frequencies-cast-with-the-model
        angles = torch.cat([angles, angles], -1)
        return angles.cos(), angles.sin()  # culprit: frequencies-cast-with-the-model


class RotatedAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.rotary = heads, RotaryEmbedding(width // heads)
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        with torch.no_grad():
            self.query.weight.copy_(normal(width, width) / width**0.5)
            self.key.weight.copy_(normal(width, width, seed=1) / width**0.5)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        length, width = hidden.shape
        query = self.query(hidden).view(length, self.heads, -1).transpose(0, 1)
        key = self.key(hidden).view(length, self.heads, -1).transpose(0, 1)
        cosine, sine = self.rotary(length)
        query, key = self.turn(query, cosine, sine), self.turn(key, cosine, sine)
        return torch.softmax((query[:, -64:] @ key.transpose(1, 2)).float() / (width // self.heads) ** 0.5, -1)

    @staticmethod
    def turn(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return (x * cosine + turned * sine).to(x.dtype)


def attended(recomputed: bool) -> torch.Tensor:
    """Attention of the last queries of 1536 tokens, by a model that was cast to bfloat16 as a whole."""
    model = RotatedAttention(128, 4).to(LOW)  # culprit: frequencies-cast-with-the-model
    if recomputed:
        model.rotary.inv_freq = model.rotary.frequencies()
    with torch.no_grad():
        return model((2 * normal(1536, 128, seed=2)).to(LOW))


def embed_timestep(timestep: torch.Tensor, size: int = 256) -> torch.Tensor:
    """Waves of a timestep, in float32."""
    half = size // 2
    frequencies = torch.exp(-math.log(10_000) * torch.arange(half, dtype=WIDE) / half)
    angles = timestep.to(WIDE)[:, None] * frequencies  # culprit: timestep-in-the-models-format
    return torch.cat([angles.cos(), angles.sin()], -1)  # culprit: timestep-in-the-models-format


def conditioned(through: torch.dtype) -> torch.Tensor:
    """What an embedder in bfloat16 makes of the four timesteps of a fast schedule."""
    first, second = normal(512, 256, seed=3) / 16, normal(384, 512, seed=4) / 22
    schedule = torch.tensor([999, 937, 833, 625])
    timesteps = schedule.to(through)  # culprit: timestep-in-the-models-format
    hidden = embed_timestep(timesteps).to(LOW) @ first.to(LOW).T
    return (nn.functional.silu(hidden) @ second.to(LOW).T).float()


class FourierFeatures(nn.Module):
    """Fast waves of each pixel beside the pixel, for an encoder of videos."""

    def __init__(self, start: int, stop: int) -> None:
        super().__init__()
        self.octaves = range(start, stop)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        waves = torch.tensor([2.0**octave * 2 * math.pi for octave in self.octaves], dtype=inputs.dtype)
        angles = inputs[:, :, None] * waves[:, None, None, None]  # culprit: waves-of-pixels
        angles = angles.flatten(1, 2)
        return torch.cat([inputs, angles.sin(), angles.cos()], 1)  # culprit: waves-of-pixels


def encoded(dtype: torch.dtype) -> torch.Tensor:
    """The first convolution of an encoder in bfloat16 over two frames, whose waves are of that dtype."""
    features, stem = FourierFeatures(6, 8), nn.Conv3d(15, 12, 1).to(LOW)
    with torch.no_grad():
        stem.weight.copy_(normal(12, 15, 1, 1, 1) / 4)
        stem.bias.zero_()
        frames = (uniform(1, 3, 2, 24, 24, seed=1) * 2 - 1).to(dtype)  # culprit: waves-of-pixels
        return stem(features(frames).to(LOW)).float()


def delta_rule(keys: torch.Tensor, values: torch.Tensor, queries: torch.Tensor, beta: torch.Tensor, log_decay: torch.Tensor,
               dtype: torch.dtype) -> torch.Tensor:  # fmt: skip
    """A gated delta rule, token by token; the state of keys by values is kept in that dtype."""
    state = torch.zeros(keys.shape[-1], values.shape[-1], dtype=dtype)
    outputs = []
    for key, value, query, rate, gate in zip(keys.to(dtype), values.to(dtype), queries.to(dtype), beta.to(dtype), log_decay.to(dtype), strict=True):
        state = state * gate.exp()  # culprit: state-in-half
        change = (value - key @ state) * rate
        state = state + key[:, None] * change[None]  # culprit: state-in-half
        outputs.append(query @ state)
    return torch.stack(outputs).to(keys.dtype)


def decoded(dtype: torch.dtype) -> torch.Tensor:
    """The last outputs of 450 tokens; a head that forgets slowly."""
    keys = nn.functional.normalize(normal(450, 24), dim=-1).to(HALF)
    queries = nn.functional.normalize(normal(450, 24, seed=1), dim=-1).to(HALF)
    values, beta = normal(450, 16, seed=2).to(HALF), (0.02 * torch.sigmoid(normal(450, seed=3))).to(HALF)
    log_decay = -7e-4 * torch.sigmoid(normal(450, seed=4))
    return delta_rule(keys, values, queries, beta, log_decay, dtype)[-64:].float()


class ChannelsFirstNorm(nn.Module):
    """A layer norm over the channels of each pixel."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = images.to(self.dtype)
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)  # culprit: variance-of-channels
        return ((x - mean) * torch.rsqrt(variance + 1e-6)).to(images.dtype)


def classified(dtype: torch.dtype) -> torch.Tensor:
    """Features of a last stage under autocast in half, some channels of which are a few hundred."""
    convolution = nn.Conv2d(3, 8, 3, padding=1)
    with torch.no_grad():
        convolution.weight.copy_(normal(8, 3, 3, 3) * torch.logspace(0, 2.3, 8)[:, None, None, None])
        convolution.bias.zero_()
        with torch.autocast("cpu", HALF):
            return ChannelsFirstNorm(dtype)(convolution(normal(2, 3, 24, 24, seed=1))).float()


class SpatialGroupwiseEnhance(nn.Module):
    """Gates of groups of channels by how well each place agrees with the mean of its group."""

    def __init__(self, groups: int, at_least_single: bool) -> None:
        super().__init__()
        self.groups, self.at_least_single = groups, at_least_single
        self.weight, self.bias = nn.Parameter(torch.ones(1, groups, 1, 1)), nn.Parameter(torch.zeros(1, groups, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        grouped = x.view(batch * self.groups, -1, height, width)
        grouped = grouped.float() if self.at_least_single else grouped
        agreement = (grouped * grouped.mean((2, 3), keepdim=True)).sum(1, keepdim=True)  # culprit: agreement-of-groups
        agreement = agreement.view(batch * self.groups, -1)
        agreement = agreement - agreement.mean(1, keepdim=True)  # culprit: agreement-of-groups
        agreement = agreement / (agreement.std(1, keepdim=True) + 1e-5)
        agreement = agreement.view(batch, self.groups, height, width) * self.weight + self.bias
        gates = torch.sigmoid(agreement.view(batch * self.groups, 1, height, width)).to(x.dtype)
        return (x.view(batch * self.groups, -1, height, width) * gates).view(batch, channels, height, width)


def enhanced(at_least_single: bool) -> torch.Tensor:
    """Activations of a late layer in half, of which some channels are some hundred."""
    x = (torch.relu(normal(2, 128, 10, 10)) * torch.logspace(0, 2.4, 128)[None, :, None, None]).to(HALF)
    with torch.no_grad(), torch.autocast("cpu", HALF):
        return SpatialGroupwiseEnhance(2, at_least_single)(x).float()


BUGS = (
    Bug("frequencies-cast-with-the-model", "okoge-kaz/llm-recipes#6", ("amplified-rounding",), "aten._to_copy.default",
        lambda: attended(False), lambda: attended(True)),
    Bug("timestep-in-the-models-format", "utensils/mold#786", ("integer-rounding", "amplified-rounding"), "aten._to_copy.default",
        lambda: conditioned(LOW), lambda: conditioned(WIDE)),
    Bug("waves-of-pixels", "genmoai/mochi#78", ("amplified-rounding",), "aten.mul.Tensor", lambda: encoded(LOW), lambda: encoded(WIDE),
        module="FourierFeatures"),
    Bug("state-in-half", "NVIDIA/TensorRT-Model-Connect#725", ("absorption", "accumulated-drift", "amplified-rounding"), "aten.mul.Tensor",
        lambda: decoded(HALF), lambda: decoded(WIDE)),
    Bug("variance-of-channels", "facebookresearch/ConvNeXt#80", ("overflow",), "aten.pow.Tensor_Scalar", lambda: classified(HALF),
        lambda: classified(WIDE), module="ChannelsFirstNorm"),
    Bug("agreement-of-groups", "implus/PytorchInsight#32", ("overflow", "nan"), "aten.mul.Tensor", lambda: enhanced(False),
        lambda: enhanced(True), module="SpatialGroupwiseEnhance"),
)  # fmt: skip
