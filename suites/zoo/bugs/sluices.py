"""Sluices: what is too small for a scale or a guard, places that were made low too early, attention and a field in low formats."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

HALF, LOW, SINGLE, CODES = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn


def in_blocks(least: float) -> torch.Tensor:
    """Slopes in eight bits, by blocks, of which some are next to nothing. Not a number."""
    slopes = normal(12, 32, seed=4501) * torch.where(torch.arange(12) % 4 == 3, 1e-39, 1.0)[:, None]
    slopes = torch.where(uniform(12, 32, seed=4502) < 0.1, 0.0, slopes)
    scales = 448 / slopes.abs().amax(1, keepdim=True).clamp_min(least)  # culprit: blocks-of-quiet-slopes
    return (slopes * scales).to(CODES).float() / scales  # culprit: blocks-of-quiet-slopes


class Hits(nn.Module):
    """Hits of a detector by waves of their places, and a layer in bfloat16."""

    def __init__(self, early: bool) -> None:
        super().__init__()
        torch.manual_seed(4511)
        self.early, self.layer = early, nn.Linear(32, 8).to(LOW)
        self.register_buffer("waves", 2.0 ** torch.arange(8))

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        if self.early:
            places = places.to(LOW)  # culprit: hits-of-a-detector
        angles = (places[..., None] * self.waves).flatten(-2)  # culprit: hits-of-a-detector
        return self.layer(torch.cat([torch.sin(angles), torch.cos(angles)], -1).to(LOW))  # culprit: hits-of-a-detector


def tracked(early: bool) -> torch.Tensor:
    """What a model makes of angles and lengths of hits, up to three."""
    with torch.no_grad():
        return Hits(early)(3 * (2 * uniform(80, 2, seed=4512) - 1)).float()


class Lexicon(nn.Module):
    """How like words of a question and words of a page are, summed over what they share."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(4521)
        self.wide, self.layer = wide, nn.Linear(32, 64)

    def forward(self, question: torch.Tensor, page: torch.Tensor) -> torch.Tensor:
        asked, told = 60 * self.layer(question), 60 * self.layer(page)
        with torch.autocast("cpu", HALF, enabled=not self.wide):
            both = asked.float() @ told.float().T  # culprit: words-of-a-question
        return torch.log_softmax(both.float() / 1000, -1)  # culprit: words-of-a-question


def sought(wide: bool) -> torch.Tensor:
    """How sure a seeker is of each word. Not a number."""
    shared = 2 * normal(1, 32, seed=4522)
    with torch.no_grad(), torch.autocast("cpu", HALF):
        return Lexicon(wide)(shared + normal(6, 32, seed=4523), shared + normal(20, 32, seed=4524))


class Latents(nn.Module):
    """Latents look at all of a film; what they look for has grown while they were taught."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(4531)
        self.wide, self.query, self.key, self.value = wide, nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        with torch.no_grad():
            self.query.bias.copy_(3 * normal(32, seed=4534))
            self.key.bias.copy_(self.query.bias)

    def forward(self, latents: torch.Tensor, film: torch.Tensor) -> torch.Tensor:
        query, key, value = self.query(latents), self.key(film), self.value(film)
        if self.wide:
            query, key, value = query.float(), key.float(), value.float()
        with torch.autocast("cpu", LOW, enabled=not self.wide):
            scores = query @ key.T / 32**0.5  # culprit: latents-that-look
            return (torch.softmax(scores, -1) @ value).to(LOW)  # culprit: latents-that-look


def looked(wide: bool) -> torch.Tensor:
    """What eight latents see in sixty pictures of a film, under autocast in bfloat16."""
    with torch.no_grad(), torch.autocast("cpu", LOW):
        return Latents(wide)(normal(8, 32, seed=4532), normal(60, 32, seed=4533)).float()


def merged(least: float) -> torch.Tensor:
    """The middles of flocks of flat splats, weighed by how large they are, where spreads are kept in half. Not a number."""
    places, thin = normal(12, 5, 3, seed=4541), torch.full((12, 5), 1e-4)
    spreads = torch.stack([0.05 * (0.5 + uniform(12, 5, seed=4542)), 0.04 * (0.5 + uniform(12, 5, seed=4543)), thin], -1)
    kept = spreads.square().to(HALF)  # culprit: splats-that-are-flat
    weights = kept.float().clamp_min(least).prod(-1).sqrt()
    return (weights[..., None] * places).sum(1) / weights.sum(1, keepdim=True)  # culprit: splats-that-are-flat


class Colours(nn.Module):
    """Colours of a field by a small net with two hidden layers, whose features have grown."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4551)
        self.first, self.second, self.last = nn.Linear(16, 64, bias=False), nn.Linear(64, 64, bias=False), nn.Linear(64, 3, bias=False)
        with torch.no_grad():
            self.last.weight.mul_(1e-4)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.last(torch.relu(self.second(torch.relu(self.first(features))))))  # culprit: colours-of-a-field


def coloured(kind: torch.dtype) -> torch.Tensor:
    """What a field looks like at forty points. In half a hidden layer is beyond the end. Not a number."""
    with torch.no_grad():
        return Colours().to(kind)((6e4 * (2 * uniform(40, 16, seed=4552) - 1)).to(kind)).float()


BUGS = (
    Bug("blocks-of-quiet-slopes", "ROCm/TransformerEngine#737", ("underflow", "overflow", "nan"), "aten.reciprocal.default",
        lambda: in_blocks(0.0), lambda: in_blocks(1e-4), precision="32-true"),
    Bug("hits-of-a-detector", "samvanstroud/hepattn#63", ("amplified-rounding", "rounded-position"), "aten._to_copy.default",
        lambda: tracked(early=True), lambda: tracked(early=False)),
    Bug("words-of-a-question", "facebookresearch/dpr-scale#12", ("overflow",), "aten.mm.default",
        lambda: sought(wide=False), lambda: sought(wide=True)),
    Bug("latents-that-look", "fac2003/perceiver-multi-modality-pytorch#8", ("amplified-rounding", "local-drift"), "aten.div.Tensor",
        lambda: looked(wide=False), lambda: looked(wide=True)),
    Bug("splats-that-are-flat", "drsnuggles8/OloEngineBase#1040", ("underflow", "amplified-rounding"), "aten._to_copy.default",
        lambda: merged(0.0), lambda: merged(6e-8)),
    Bug("colours-of-a-field", "NVlabs/tiny-cuda-nn#219", ("overflow",), "aten.mm.default",
        lambda: coloured(HALF), lambda: coloured(SINGLE), module="first"),
)  # fmt: skip
