"""Workshops: tokens at a low temperature, groups of tiny weights, scores of a painter, gates of experts, weights without a tail, unscaled caches."""

from __future__ import annotations

import math

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


class Sampler:
    """Draws tokens from what a model gives, at a temperature."""

    def __init__(self, temperature: float, stable: bool) -> None:
        self.temperature, self.stable = temperature, stable

    def chances(self, logits: torch.Tensor) -> torch.Tensor:
        logits = logits / self.temperature
        if self.stable:
            logits = logits - logits.amax(-1, keepdim=True)
        weights = torch.exp(logits)  # culprit: token-at-a-low-temperature
        return weights / weights.sum(-1, keepdim=True)  # culprit: token-at-a-low-temperature


def sampled(stable: bool) -> torch.Tensor:
    """How likely each of two hundred tokens is, for six texts. Not a number."""
    return Sampler(0.15, stable).chances(14 + 2 * normal(6, 200, seed=471))


class Quantizer:
    """Four bits for each weight, with a scale and a zero for each group."""

    def __init__(self, group: int, keep: torch.dtype) -> None:
        self.group, self.keep = group, keep

    def fit(self, weight: torch.Tensor) -> torch.Tensor:
        """What the weights are once they are codes."""
        groups = weight.view(-1, self.group)
        low, high = groups.amin(-1, keepdim=True).clamp_max(0), groups.amax(-1, keepdim=True).clamp_min(0)
        scale = (high.to(self.keep) - low.to(self.keep)) / 15  # culprit: group-of-tiny-weights
        if self.keep is SINGLE:
            scale = torch.where(scale == 0, 1e-8, scale)
        zero = (-low / scale).round()  # culprit: group-of-tiny-weights
        codes = (groups / scale + zero).round().clamp(0, 15)  # culprit: group-of-tiny-weights
        return (scale * (codes - zero)).view_as(weight)


def coded(keep: torch.dtype) -> torch.Tensor:
    """A layer's answers, some of whose inputs are hardly used. Not a number."""
    weight = 0.05 * normal(24, 64, seed=472)
    weight[:, 16:32] *= 3e-6
    return wider(normal(10, 64, seed=473).to(keep) @ Quantizer(16, keep).fit(weight.to(HALF)).to(keep).T)


class CrossAttention(nn.Module):
    """How a painter's picture looks at the words of its prompt."""

    def __init__(self, size: int, words: int, exact: bool) -> None:
        super().__init__()
        torch.manual_seed(474)
        self.exact, self.size = exact, size
        self.query, self.key, self.value = nn.Linear(size, size), nn.Linear(words, size), nn.Linear(words, size)

    def forward(self, picture: torch.Tensor, prompt: torch.Tensor) -> torch.Tensor:
        query, key, value = self.query(picture), self.key(prompt), self.value(prompt)
        if self.exact:
            query, key = query.float(), key.float()
        scores = query @ key.T  # culprit: scores-of-a-late-step
        return torch.softmax(scores * self.size**-0.5, -1).to(value.dtype) @ value


def painted(exact: bool) -> torch.Tensor:
    """A picture after six steps, whose numbers grow with each. Not a number."""
    attention = CrossAttention(64, 48, exact).to(HALF)
    picture, prompt = (8 * normal(30, 64, seed=475)).to(HALF), (90 * normal(9, 48, seed=476)).to(HALF)
    with torch.no_grad():
        for _ in range(6):
            picture = picture * 1.9 + 0.1 * attention(picture, prompt)
    return wider(picture)


class Gate(nn.Module):
    """Chooses four of the experts for each token, and how much each says."""

    def __init__(self, size: int, experts: int, exact: bool) -> None:
        super().__init__()
        self.exact = exact
        self.weight = nn.Parameter(normal(experts, size, seed=477) / math.sqrt(size))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.exact:
            logits = hidden.float() @ self.weight.T
        else:
            logits = hidden @ self.weight.to(hidden.dtype).T  # culprit: gate-of-many-experts
        chances = torch.sigmoid(logits.float())
        chosen = chances.topk(4, -1)
        shares = chosen.values / chosen.values.sum(-1, keepdim=True)
        return torch.zeros_like(chances).scatter(-1, chosen.indices, shares)


def routed(exact: bool) -> torch.Tensor:
    """How much each of a hundred and sixty experts says of each of two hundred tokens."""
    hidden = (3 * normal(200, 96, seed=478)).to(LOW)
    with torch.no_grad():
        return Gate(96, 160, exact)(hidden)


class Descent:
    """Steps of one size along what an optimizer has made of a gradient, for weights in bfloat16."""

    def __init__(self, weight: torch.Tensor, rate: float, tail: bool) -> None:
        self.weight, self.rate = weight, rate
        self.tail = torch.zeros(weight.shape, dtype=torch.int32) if tail else None

    def step(self, direction: torch.Tensor) -> None:
        if self.tail is None:
            self.weight.add_(direction.to(self.weight.dtype), alpha=-self.rate)  # culprit: weights-without-a-tail
            return
        wide = ((self.weight.view(torch.int16).to(torch.int32) << 16) | self.tail).view(SINGLE)
        bits = (wide - self.rate * direction).view(torch.int32)
        self.weight.copy_((bits >> 16).to(torch.int16).view(LOW))
        self.tail = bits & 0xFFFF

    def value(self) -> torch.Tensor:
        if self.tail is None:
            return self.weight.float()
        return ((self.weight.view(torch.int16).to(torch.int32) << 16) | self.tail).view(SINGLE)


def descended(tail: bool) -> torch.Tensor:
    """How far weights have gone after forty small steps to one side. Nowhere."""
    start = (0.4 + 0.5 * uniform(32, 32, seed=479)).to(LOW)
    descent = Descent(start.clone(), 4e-4, tail)
    for seed in range(480, 520):
        descent.step(1 + 0.2 * normal(32, 32, seed=seed))
    return descent.value() - start.float()


class Cache:
    """Keys and values of the words so far, in eight bits."""

    def __init__(self, scaled: bool) -> None:
        self.scaled, self.scale = scaled, torch.tensor(1.0)

    def keep(self, keys: torch.Tensor) -> torch.Tensor:
        if self.scaled:
            self.scale = keys.float().abs().amax() / 448
        return (keys.float() / self.scale).to(torch.float8_e4m3fn)  # culprit: keys-without-a-scale

    def read(self, kept: torch.Tensor) -> torch.Tensor:
        return (kept.float() * self.scale).to(LOW)


def remembered(scaled: bool) -> torch.Tensor:
    """Scores of twelve questions with forty words, one of whose channels is always huge."""
    keys = normal(40, 32, seed=521)
    keys[:, 5] = 900 + 60 * normal(40, seed=522)
    cache, asked = Cache(scaled), normal(12, 32, seed=523)
    asked[:, 5] *= 0.1
    return wider(asked.to(LOW) @ cache.read(cache.keep(keys.to(LOW))).T)


BUGS = (
    Bug("token-at-a-low-temperature", "intel/xFasterTransformer#326", ("overflow", "nan"), "aten.exp.default",
        lambda: sampled(stable=False), lambda: sampled(stable=True), precision="32-true"),
    Bug("group-of-tiny-weights", "ModelCloud/GPTQModel#1531", ("underflow", "nan", "overflow"), "aten.div.Tensor",
        lambda: coded(HALF), lambda: coded(SINGLE)),
    Bug("scores-of-a-late-step", "apple/coreai-models#239", ("overflow",), "aten.mm.default",
        lambda: painted(exact=False), lambda: painted(exact=True)),
    Bug("gate-of-many-experts", "vllm-project/vllm-ascend#9617", ("decision-flip", "amplified-rounding"), "aten.mm.default",
        lambda: routed(exact=False), lambda: routed(exact=True), module="Gate",
        expected_miss="the precision asks for the low result of a product, and the code widens it before it chooses, as healthy routers do"),
    Bug("weights-without-a-tail", "KellerJordan/modded-nanogpt#190", ("absorption", "lost-update"), "aten.add_.Tensor",
        lambda: descended(tail=False), lambda: descended(tail=True)),
    Bug("keys-without-a-scale", "huggingface/text-generation-inference#2628", ("clipping", "overflow"), "",
        lambda: remembered(scaled=False), lambda: remembered(scaled=True)),
)  # fmt: skip
