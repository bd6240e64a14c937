"""Models that are served or exported: drawing tokens, rotations of late frames, experts under autocast, codes of four bits."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def drawn(wide: bool) -> torch.Tensor:
    """How many of 40 tokens are not among the five that a server lets through: a race of exponential numbers, in the format of the logits."""
    head, state, excluded = (0.3 * normal(4096, 32)).to(HALF), normal(1, 32, seed=1).to(HALF), 0
    with torch.random.fork_rng():
        torch.manual_seed(20)
        for _ in range(40):
            logits = state @ head.T / 0.8
            kept, places = torch.topk(logits, 5)
            logits = torch.full_like(logits, float("-inf")).scatter_(-1, places, kept)
            probabilities = torch.softmax(logits, -1)
            if wide:
                probabilities = probabilities.float()
            race = torch.empty_like(probabilities).exponential_(1)  # culprit: excluded-token
            token = torch.argmax(probabilities / race, -1, keepdim=True)  # culprit: excluded-token
            excluded += int(not bool((token == places).any()))
            state = (0.9 * state.float() + 0.4 * head[token[0, 0]].float()[None]).to(HALF)
    return torch.tensor([float(excluded)])


class Rotary(nn.Module):
    """Rotations by position, at frequencies that are a parameter, and so are cast with the model."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.freqs = nn.Parameter(1.0 / 10000 ** (torch.arange(0, width, 2) / width), requires_grad=False)

    def forward(self, x: torch.Tensor, first: int) -> torch.Tensor:
        places = torch.arange(first, first + x.shape[-2]).type(self.freqs.dtype)
        angles = (places[:, None] * self.freqs).repeat_interleave(2, -1)  # culprit: rotary-halved
        turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        return x * angles.cos().to(x.dtype) + turned * angles.sin().to(x.dtype)


class Separator(nn.Module):
    """Attention of a spectrogram's frames to each other."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.rotary, self.project = Rotary(width), nn.Linear(width, 3 * width, bias=False)
        with torch.no_grad():
            self.project.weight.copy_(2.0 * normal(3 * width, width) / width**0.5)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(frames).chunk(3, -1)
        query, key = self.rotary(query[-24:], len(key) - 24), self.rotary(key, 0)
        return torch.softmax(query @ key.T / query.shape[-1] ** 0.5, -1) @ value


def separated(kept: bool) -> torch.Tensor:
    """A model is made half, and its rotary frequencies with it."""
    model = Separator()
    frequencies = model.rotary.freqs.detach().float().clone()
    model.half()  # culprit: rotary-halved
    if kept:
        model.rotary.freqs.data = frequencies
    with torch.no_grad():
        return model(normal(1400, 32, seed=1).half()).float()


class Experts(nn.Module):
    """Two of 48 experts for each token, and the loss that keeps them balanced."""

    def __init__(self, wide: bool, width: int = 32, experts: int = 48) -> None:
        super().__init__()
        self.wide, self.norm, self.router = wide, nn.LayerNorm(width), nn.Linear(width, experts, bias=False)
        self.experts = nn.Parameter(normal(experts, width, width, seed=7) / width**0.5)
        with torch.no_grad():
            self.router.weight.copy_(0.1 * normal(experts, width, seed=8))

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.norm(tokens)
        with torch.autocast("cpu", enabled=not self.wide):
            scores = self.router(x)  # culprit: switch-router
        scores = scores.float().softmax(-1)
        shares, chosen = scores.topk(2, -1)  # culprit: switch-router
        load = functional.one_hot(chosen, scores.shape[-1]).float().sum((0, 1)) / len(tokens)
        answers = torch.einsum("td,ekd->tek", x, self.experts).gather(1, chosen[..., None].expand(-1, -1, x.shape[-1]))
        return tokens + (shares[..., None] * answers).sum(1), (load * scores.mean(0)).sum() * scores.shape[-1]


def routed(wide: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """A layer of experts under autocast, forward."""
    layer = Experts(wide)
    with torch.no_grad(), torch.autocast("cpu", dtype=LOW):
        out, balance = layer(normal(400, 32, seed=9))
    return out.float(), balance


class Tuned(nn.Module):
    """A layer whose weight plus adapter is rounded to sixteen levels in each forward pass, as the exported one will be."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide
        self.weight = nn.Parameter((0.1 * normal(48, 64)).to(LOW), requires_grad=False)
        self.down, self.up = (nn.Parameter((0.05 * normal(*shape, seed=4)).to(LOW)) for shape in ((4, 64), (48, 4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, down, up = (each.float() if self.wide else each for each in (self.weight, self.down, self.up))
        weight = weight + up @ down
        least, largest = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
        step = (largest - least) / 15
        codes = torch.round((weight - least) / step).clamp(0, 15)  # culprit: tuned-codes
        levels = weight + (codes * step + least - weight).detach()
        return functional.linear(x, levels.to(x.dtype))


def tuned(wide: bool) -> torch.Tensor:
    """What a layer of four-bit weights gives while it is tuned in bfloat16."""
    return Tuned(wide)(normal(16, 64, seed=5).to(LOW)).float()


BUGS = (
    Bug("excluded-token", "Lightning-AI/litgpt#2323", ("underflow", "nan", "overflow"), "aten.exponential_.default", lambda: drawn(False),
        lambda: drawn(True)),
    Bug("rotary-halved", "nomadkaraoke/python-audio-separator#298", ("amplified-rounding", "integer-rounding"), "aten.mul.Tensor",
        lambda: separated(False), lambda: separated(True), module="rotary"),
    Bug("switch-router", "databricks/megablocks#91", ("decision-flip",), "aten.topk.default", lambda: routed(False), lambda: routed(True),
        expected_miss="two of 400 tokens choose otherwise: so many do with any router whose scores are right to a rounding"),
    Bug("tuned-codes", "openvinotoolkit/nncf#3493", ("decision-flip", "amplified-rounding"), "aten.round.default", lambda: tuned(False),
        lambda: tuned(True), expected_miss="3 % of the codes differ by one: their weights lie half-way, and either code is as near"),
)  # fmt: skip
