"""Glades: numbers that float32, half and eight bits do not hold: codes of a sound, heights of air, and words that are padding."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, SINGLE, DOUBLE, CODES = torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn


class Sound(nn.Module):
    """A coder of sound that rounds each of nine numbers to one of eight levels, and names all nine by one number."""

    def __init__(self, exact: bool) -> None:
        super().__init__()
        torch.manual_seed(5401)
        self.exact, self.inward, self.outward = exact, nn.Linear(24, 9), nn.Linear(9, 24)
        self.register_buffer("places", 8 ** torch.arange(9))

    def named(self, sound: torch.Tensor) -> torch.Tensor:
        levels = torch.round(3.5 * torch.tanh(self.inward(sound)) + 3.5)
        if self.exact:
            return (levels.long() * self.places).sum(-1)
        return (levels * self.places.float()).sum(-1).long()  # culprit: names-of-a-sound

    def heard(self, names: torch.Tensor) -> torch.Tensor:
        levels = names[..., None] // self.places % 8
        return self.outward((levels.float() - 3.5) / 3.5)


def coded(exact: bool) -> torch.Tensor:
    """What is heard of a hundred pieces of sound after they were named."""
    coder = Sound(exact)
    with torch.no_grad():
        return coder.heard(coder.named(2 * normal(100, 24, seed=5402)))


GRAVITY, RADIUS, MASS = 6.67408e-11, 6371008.7714, 5.9722e24


def thickness(plain: bool) -> torch.Tensor:
    """How thick thin layers of air are, two metres each, by heights that are made of their geopotential."""
    heights = 12000 + 2 * torch.arange(200.0, dtype=DOUBLE) + 0.3 * uniform(200, seed=5411).double()
    potential = (GRAVITY * MASS * (1 / RADIUS - 1 / (RADIUS + heights))).float()
    if plain:
        raised = 1 / (1 / RADIUS - potential / (GRAVITY * MASS)) - RADIUS  # culprit: heights-of-air
    else:
        pull = GRAVITY * MASS / RADIUS
        raised = potential * RADIUS / (pull - potential)
    return raised.diff()  # culprit: heights-of-air


class EightBitLinear(nn.Module):
    """A layer whose words are given in eight bits, by blocks of 32, and whose weights are bfloat16."""

    def __init__(self, least: float) -> None:
        super().__init__()
        torch.manual_seed(5421)
        self.least, self.layer = least, nn.Linear(128, 16).to(LOW)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        blocks = words.float().unflatten(-1, (4, 32))
        scale = blocks.abs().amax(-1, keepdim=True) / 448
        if self.least:
            scale = scale.clamp_min(self.least)
        codes = (blocks / scale).to(CODES)  # culprit: words-that-are-padding
        return self.layer((codes.float() * scale).flatten(-2).to(LOW))  # culprit: words-that-are-padding


def padded(least: float) -> torch.Tensor:
    """What a layer in eight bits makes of four texts, of which the shorter are filled up with nought. Not a number."""
    lengths = torch.tensor([12, 7, 9, 4])
    texts = normal(4, 12, 128, seed=5422) * (torch.arange(12) < lengths[:, None])[..., None]
    layer = EightBitLinear(least)
    with torch.no_grad():
        return layer(torch.relu(texts).to(LOW)).float()


class BitLinear(nn.Module):
    """A layer of weights minus one, nought and one, and of words of eight bits, by how large each word is."""

    def __init__(self, inputs: int, outputs: int, least: float) -> None:
        super().__init__()
        self.least, self.weight = least, nn.Parameter(torch.empty(outputs, inputs))
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        size = self.weight.abs().mean()
        trits = (self.weight / size).round().clamp(-1, 1)
        weight = self.weight + (trits * size - self.weight).detach()
        scale = 127 / (words.abs().amax(-1, keepdim=True) + self.least)  # culprit: words-of-nothing
        codes = (words * scale).round().clamp(-128, 127)  # culprit: words-of-nothing
        return functional.linear(words + (codes / scale - words).detach(), weight)  # culprit: words-of-nothing


def ternary(least: float) -> torch.Tensor:
    """How far two ternary layers go in four steps; a quarter of the patches that they are given are black. Not a number."""
    torch.manual_seed(5431)
    model = nn.Sequential(BitLinear(24, 48, least), nn.ReLU(), BitLinear(48, 8, least))
    start = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(4):
        patches = normal(32, 24, seed=5432 + step) * (torch.arange(32) % 4 != 3)[:, None]
        with torch.autocast("cpu", LOW):
            loss = functional.mse_loss(model(patches).float(), torch.sin(patches[:, :8]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach() - start


class Places(nn.Module):
    """Waves of the place of each piece of a sound, added to what is known of the piece."""

    def __init__(self, width: int, wide: bool) -> None:
        super().__init__()
        self.width, self.wide = width, wide

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        kind = SINGLE if self.wide else sound.dtype
        places = torch.arange(1, sound.shape[1] + 1, dtype=kind)
        step = torch.log(torch.tensor([10000.0], dtype=kind)) / (self.width / 2 - 1)  # culprit: places-in-a-sound
        slowness = torch.exp(torch.arange(self.width // 2, dtype=kind) * -step)  # culprit: places-in-a-sound
        angles = places[:, None] * slowness  # culprit: places-in-a-sound
        waves = torch.cat([torch.sin(angles), torch.cos(angles)], -1)  # culprit: places-in-a-sound
        return sound + waves.to(sound.dtype)


def transcribed(wide: bool) -> torch.Tensor:
    """What a listener in half makes of four hundred pieces of a sound, of which each looks for those that are near it."""
    torch.manual_seed(5441)
    layers = nn.Sequential(nn.Linear(24, 64), Places(64, wide), nn.LayerNorm(64)).to(HALF)
    query, key, value = (nn.Linear(64, 64).to(HALF) for _ in range(3))
    with torch.no_grad():
        known = layers((0.2 * normal(1, 400, 24, seed=5442)).to(HALF))
        return functional.scaled_dot_product_attention(3 * query(known), 3 * key(known), value(known)).float()


BUGS = (
    Bug("names-of-a-sound", "Stability-AI/stable-audio-tools#171", ("integer-rounding",), "aten.sum.dim_IntList",
        lambda: coded(exact=False), lambda: coded(exact=True), precision="32-true", phase="data"),
    Bug("heights-of-air", "Unidata/MetPy#1075", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: thickness(plain=True), lambda: thickness(plain=False), precision="32-true"),
    Bug("words-that-are-padding", "huggingface/kernels-community#680", ("wrong-scale", "nan"), "aten._to_copy.default",
        lambda: padded(0.0), lambda: padded(1e-12)),
    Bug("words-of-nothing", "microsoft/BitNet#123", ("wrong-scale", "nan"), "aten.round.default",
        lambda: ternary(0.0), lambda: ternary(1e-10), module="0"),
    Bug("places-in-a-sound", "vllm-project/vllm#54620", ("amplified-rounding", "integer-rounding"), "aten.mul.Tensor",
        lambda: transcribed(wide=False), lambda: transcribed(wide=True), module="1"),
)  # fmt: skip
