"""Looms: models in half that pool, mask, measure, align and pass messages, and find numbers beyond its end, or none between two scores."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW = torch.float16, torch.bfloat16


class Letters(nn.Module):
    """Where letters are in a picture, by a layer whose numbers are large before they are normed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4001)
        self.first, self.norm, self.last = nn.Conv2d(4, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.Conv2d(8, 1, 1)
        with torch.no_grad():
            self.first.weight.mul_(2e4)
            self.norm.running_mean.copy_(2e3 * normal(8, seed=4002))
            self.norm.running_var.copy_(1e8 * (1 + uniform(8, seed=4003)))
        self.eval()

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.last(torch.relu(self.norm(self.first(picture)))))  # culprit: letters-in-half


def read(smaller: bool) -> torch.Tensor:
    """How sure a half model is of letters. It sees none, since the spreads it divides by are infinite."""
    model = Letters()
    with torch.no_grad():
        if smaller:
            model.first.weight.div_(1e2)
            model.norm.running_mean.div_(1e2)
            model.norm.running_var.div_(1e4)
        model.half()  # culprit: letters-in-half
        return model((0.5 * normal(2, 4, 12, 12, seed=4004)).half()).float()


class Judge(nn.Module):
    """What a picture is like for the words that it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4011)
        self.body, self.words = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 48)), nn.Linear(24, 48)

    def forward(self, pictures: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        seen, asked = functional.normalize(self.body(pictures), dim=-1), functional.normalize(self.words(words), dim=-1)
        return (seen @ asked.T)[:, 0]  # culprit: scores-that-are-alike


def compared(cast: bool) -> torch.Tensor:
    """How many of thirty pictures of one scene each picture is better than."""
    model = Judge()
    pictures = normal(1, 32, seed=4012) + 3e-3 * normal(30, 32, seed=4013)
    with torch.no_grad(), torch.autocast("cpu", HALF, enabled=cast):
        scores = model(pictures, normal(1, 24, seed=4014))
    return (scores[:, None] > scores).sum(1).float()  # culprit: scores-that-are-alike


class Squeeze(nn.Module):
    """Weights channels of speech by what all of its time has in them."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(4021)
        self.wide = wide
        self.layers = nn.Sequential(nn.Linear(64, 8, bias=False), nn.ReLU(), nn.Linear(8, 64, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", HALF, enabled=not self.wide):
            pooled = (x.float() if self.wide else x).mean(-1)
            return (x * torch.sigmoid(self.layers(pooled))[..., None]).to(x.dtype)  # culprit: weights-of-channels


def recognised(wide: bool) -> torch.Tensor:
    """What a block of a recogniser makes of loud features. Not a number."""
    block = Squeeze(wide)
    with torch.no_grad():
        block.layers[0].weight.mul_(40)
        features = (4e3 * (1 + uniform(2, 64, 50, seed=4022))).to(HALF)
        return (block(features).float() / 4e3).log1p()


def normed(smaller: bool) -> torch.Tensor:
    """Frames of an encoder of speech in half, normed by hand. Those that are loudest come out as nothing."""
    frames = (normal(12, 1280, seed=4031) * (1 + 1.2 * torch.arange(12.0))[:, None]).to(HALF)
    apart = frames - frames.mean(-1, keepdim=True)
    if smaller:
        spread = (0.25 * apart).square().sum(-1, keepdim=True) / 1280 * 16
    else:
        spread = apart.square().sum(-1, keepdim=True) / 1280  # culprit: frames-of-an-encoder
    return (apart * torch.rsqrt(spread + 1e-5)).float()


class Depths(nn.Module):
    """The last layers of a model of depth."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(4041)
        self.wide, self.first, self.last = wide, nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 1, 1)
        with torch.no_grad():
            self.first.weight.mul_(9)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", HALF, enabled=not self.wide):
            inner = torch.relu(self.first(features.float() if self.wide else features))  # culprit: depths-of-a-film
            return self.last(inner).float()[:, 0] / 1e4


def filmed(wide: bool) -> torch.Tensor:
    """Depths of four parts of a film, each fitted to the one before by what both show. From one part on all is dark."""
    model, parts = Depths(wide), []
    with torch.no_grad():
        for part in range(4):
            features = (1e4 * (1 + 0.25 * part) * uniform(3, 8, 6, 6, seed=4042 + part)).to(HALF)
            depths = model(features)
            if parts:
                over, last = depths[0].flatten(), parts[-1][-1].flatten()
                slope = ((over - over.mean()) * (last - last.mean())).mean() / over.var()
                depths = slope * (depths - over.mean()) + last.mean()
            parts.append(depths)
    return torch.cat(parts)


class Outer(nn.Module):
    """What two places of a protein have in common, over all sequences that are like it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4051)
        self.left, self.right, self.last, self.norm = nn.Linear(16, 6), nn.Linear(16, 6), nn.Linear(36, 8), nn.LayerNorm(8)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        left, right = self.left(rows), self.right(rows)
        both = torch.einsum("sic,sje->ijce", left, right)  # culprit: places-of-a-protein
        return self.norm(self.last(both.flatten(-2)) / len(rows))


def folded(kind: torch.dtype) -> torch.Tensor:
    """Pairs of places of a protein under autocast. Not a number."""
    with torch.no_grad(), torch.autocast("cpu", kind):
        return Outer()(60 * normal(400, 1, 16, seed=4052) + normal(400, 9, 16, seed=4053)).float()


class Lanes(nn.Module):
    """Lanes of a map hear of those that they meet."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4061)
        self.own, self.other, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.GroupNorm(1, 8)

    def forward(self, lanes: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        told = self.own(lanes)
        told.index_add_(0, pairs[0], self.other(lanes[pairs[1]]))  # culprit: lanes-that-meet
        return torch.relu(self.norm(told.float()))


def planned(cast: bool) -> torch.Tensor:
    """What a planner knows of a crossing of three hundred lanes. Not a number."""
    places = torch.tensor([600.0, 300, 0, 0, 1, 1, 0, 0]) + 40 * normal(300, 8, seed=4062)
    pairs = torch.stack([torch.cat([torch.zeros(299), torch.arange(1, 300)]), torch.cat([torch.arange(1, 300), torch.zeros(299)])]).long()
    with torch.no_grad(), torch.autocast("cpu", HALF, enabled=cast):
        return Lanes()(places, pairs)


BUGS = (
    Bug("letters-in-half", "WenmuZhou/PytorchOCR#221", ("overflow",), "aten._to_copy.default",
        lambda: read(smaller=False), lambda: read(smaller=True)),
    Bug("scores-that-are-alike", "tgxs002/HPSv2#26", ("decision-flip", "cancellation", "amplified-rounding", "local-drift"), "aten.gt.Tensor",
        lambda: compared(cast=True), lambda: compared(cast=False),
        expected_miss="the scores of one scene differ by a few roundings of half; one row of thirty is few, and either of two such may be larger"),
    Bug("weights-of-channels", "NVIDIA-NeMo/Speech#2030", ("overflow",), "aten.mm.default",
        lambda: recognised(wide=False), lambda: recognised(wide=True), module="layers.0"),
    Bug("frames-of-an-encoder", "SKaiNET-developers/SKaiNET#1281", ("overflow",), "aten.sum.dim_IntList",
        lambda: normed(smaller=False), lambda: normed(smaller=True)),
    Bug("depths-of-a-film", "DepthAnything/Video-Depth-Anything#92", ("overflow",), "aten.convolution.default",
        lambda: filmed(wide=False), lambda: filmed(wide=True), module="first"),
    Bug("places-of-a-protein", "ogchen/nanofold#31", ("overflow",), "aten.bmm.default",
        lambda: folded(HALF), lambda: folded(LOW)),
    Bug("lanes-that-meet", "motional/nuplan-devkit#91", ("overflow",), "aten.index_add_.default",
        lambda: planned(cast=True), lambda: planned(cast=False)),
)  # fmt: skip
