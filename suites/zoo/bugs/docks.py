"""Docks: half and bfloat16 in models: turns, means, masks, adapters, a picture's encoder, a router's plan and a step under a loss scale."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW = torch.float16, torch.bfloat16


def turned(wide: bool) -> torch.Tensor:
    """Keys of a chat of three thousand words, turned by their places."""
    kind = torch.float32 if wide else HALF
    places = torch.arange(3000).to(kind)  # culprit: places-of-a-chat
    angles = places[:, None] * (10_000.0 ** (-torch.arange(0, 16, 2) / 16)).to(kind)
    keys = normal(3000, 16, seed=3801).to(HALF).to(kind)
    first, second = keys.chunk(2, -1)
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1).to(HALF).float()


def mean_of_channels(parts: bool) -> torch.Tensor:
    """Means of maps in half. They are infinite."""
    maps = (1 + 0.2 * normal(3, 400, 400, seed=3811)).to(HALF)
    if parts:
        return (maps / 160_000).sum((1, 2), dtype=torch.float32)
    return (maps.sum((1, 2)) / 160_000).float()  # culprit: mean-of-large-maps


def masked(bottom: float) -> torch.Tensor:
    """What a half model sees of the words before each word. Torch refuses the mask's number."""
    query, key, value = (normal(12, 16, seed=3821 + each).to(HALF) for each in range(3))
    later = torch.ones(12, 12).triu(1).bool()
    scores = (query @ key.T).masked_fill(later, bottom)  # culprit: words-that-come-later
    return (torch.softmax(scores, -1) @ value).float()


class Adapted(nn.Module):
    """A layer of a large model with a small one beside it."""

    def __init__(self, like: bool) -> None:
        super().__init__()
        torch.manual_seed(3831)
        self.layer = nn.Linear(24, 24).to(LOW)
        self.down, self.up = nn.Linear(24, 4), nn.Linear(4, 24)
        if like:
            self.down, self.up = self.down.to(LOW), self.up.to(LOW)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        words = self.layer(words)
        return words + self.up(torch.relu(self.down(words)))  # culprit: adapter-of-another-kind


def adapted(like: bool) -> torch.Tensor:
    """What an adapter that was added in float32 makes of a bfloat16 model's words. Torch refuses it."""
    with torch.no_grad():
        return Adapted(like)(normal(6, 24, seed=3832).to(LOW)).float()


class Encoder(nn.Module):
    """The encoder of pictures of a painter, whose features grow."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3841)
        self.first, self.second, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16)
        with torch.no_grad():
            self.first.weight.mul_(400)
            self.second.weight.mul_(500)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        features = self.second(functional.silu(self.first(picture)))  # culprit: picture-to-be-filled
        return functional.silu(self.norm(features))


def encoded(apart: bool) -> torch.Tensor:
    """Latents of a picture part of which is to be painted anew, under autocast. Not a number."""
    model = Encoder()
    with torch.no_grad(), torch.autocast("cpu", HALF), torch.autocast("cpu", HALF, enabled=not apart):
        return model(normal(1, 3, 16, 16, seed=3842)).float()  # culprit: picture-to-be-filled


def planned(logs: bool, turns: int = 8) -> torch.Tensor:
    """Which expert takes which token, by turns over rows and columns. Not a number."""
    scores = 40 * normal(16, 8, seed=3851) / 0.3
    if logs:
        for _ in range(turns):
            scores = scores - torch.logsumexp(scores, 1, keepdim=True)
            scores = scores - torch.logsumexp(scores, 0, keepdim=True)
        return torch.exp(scores)
    plan = torch.exp(scores)  # culprit: plan-of-a-router
    for _ in range(turns):
        plan = plan / plan.sum(1, keepdim=True)
        plan = plan / plan.sum(0, keepdim=True)
    return plan


def trained(unscaled: bool) -> torch.Tensor:
    """How far a small language model goes in five steps whose gradients are cut."""
    torch.manual_seed(3861)
    model = nn.Sequential(nn.Embedding(20, 12), nn.Linear(12, 20))
    start = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.5), torch.amp.GradScaler("cpu", init_scale=65536.0 / 8)
    for turn in range(5):
        words = (20 * uniform(8, 9, seed=3862 + turn)).long()
        with torch.autocast("cpu", HALF):
            loss = functional.cross_entropy(model(words[:, :-1]).flatten(0, 1).float(), words[:, 1:].flatten())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if unscaled:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # culprit: limit-of-an-example
        scaler.step(optimizer)  # culprit: limit-of-an-example
        scaler.update()
    return nn.utils.parameters_to_vector(model.parameters()).detach() - start


BUGS = (
    Bug("places-of-a-chat", "mlc-ai/mlc-llm#2449", ("integer-rounding", "amplified-rounding"), "aten._to_copy.default",
        lambda: turned(wide=False), lambda: turned(wide=True)),
    Bug("mean-of-large-maps", "JuliaStats/Statistics.jl#140", ("overflow",), "aten.sum.dim_IntList",
        lambda: mean_of_channels(parts=False), lambda: mean_of_channels(parts=True)),
    Bug("words-that-come-later", "dotnet/TorchSharp#1135", ("overflow",), "aten.masked_fill.Scalar",
        lambda: masked(-3.4028234663852886e38), lambda: masked(float("-inf")), raises=RuntimeError),
    Bug("adapter-of-another-kind", "adapter-hub/adapters#766", ("dtype-leak",), "aten.addmm.default",
        lambda: adapted(like=False), lambda: adapted(like=True), raises=RuntimeError, module="down"),
    Bug("picture-to-be-filled", "kohya-ss/sd-scripts#2322", ("overflow",), "aten.convolution.default",
        lambda: encoded(apart=False), lambda: encoded(apart=True), module="second"),
    Bug("plan-of-a-router", "borisdayma/dalle-mini#155", ("overflow",), "aten.exp.default",
        lambda: planned(logs=False), lambda: planned(logs=True), precision="32-true"),
    Bug("limit-of-an-example", "pytorch/examples#1196", ("scaler-order",), "",
        lambda: trained(unscaled=False), lambda: trained(unscaled=True), phase="scaler"),
)  # fmt: skip
