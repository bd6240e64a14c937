"""Quarries: losses of what is quite sure, constants that half does not hold, tokens that are put in their places."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF = torch.float16
EXACT = "32-true"


def mined(own: bool) -> torch.Tensor:
    """How hard the hardest pair of each picture is, among pictures of its kind and among others. torch refuses it."""
    torch.manual_seed(1201)
    trunk, kinds = nn.Linear(24, 16), torch.arange(20) % 4
    with torch.no_grad(), torch.autocast("cpu", HALF):
        places = functional.normalize(trunk(normal(20, 24, seed=1202)).float())
        likeness = places @ places.T
        same = (kinds[:, None] == kinds) & ~torch.eye(20, dtype=torch.bool)
        most = torch.finfo(likeness.dtype if own else places.dtype).max
        near, far = likeness.clone(), likeness.clone()
        near.masked_fill_(~same, most)  # culprit: pairs-that-are-left-out
        far.masked_fill_(kinds[:, None] == kinds, -most)  # culprit: pairs-that-are-left-out
        return (near.amin(-1) - far.amax(-1)).float()


def focal_by_hand(chances: torch.Tensor, true: torch.Tensor, eps: float, gamma: float = 2.0, share: float = 0.25) -> torch.Tensor:
    """The focal loss as it is written in its paper."""
    yes = torch.where(true == 1, chances, torch.ones_like(chances))
    no = torch.where(true == 0, chances, torch.zeros_like(chances))
    found = share * (1 - yes).pow(gamma) * torch.log(yes + eps)
    left = (1 - share) * no.pow(gamma) * torch.log(1 - no + eps)  # culprit: chances-that-are-certain
    return -found.sum() - left.sum()


def focused(eps: float) -> torch.Tensor:
    """The loss of sixty boxes, of some of which a model is quite sure and wrong. Infinite."""
    scores = 6 * normal(60, seed=1211)
    scores[7], scores[31] = 19.0, 22.0
    true = (uniform(60, seed=1212) < 0.3).float()
    true[7] = true[31] = 0.0
    return focal_by_hand(torch.sigmoid(scores), true, eps)


class Focal(torch.autograd.Function):
    """The focal loss with a gradient of its own, as a kernel has it."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, true: torch.Tensor, gamma: float) -> torch.Tensor:
        ctx.save_for_backward(scores, true)
        ctx.gamma = gamma
        right = torch.sigmoid(scores) * true + (1 - torch.sigmoid(scores)) * (1 - true)
        loss = functional.binary_cross_entropy_with_logits(scores, true, reduction="none")
        return (loss * (1 - right) ** gamma).sum()

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> Any:
        scores, true = ctx.saved_tensors
        chance = torch.sigmoid(scores)
        right = chance * true + (1 - chance) * (1 - true)
        loss = functional.binary_cross_entropy_with_logits(scores, true, reduction="none")
        sign = 2 * true - 1
        steep = (1 - right) ** (ctx.gamma - 1)  # culprit: presence-without-focus
        inner = ctx.gamma * steep * right * (1 - right) * loss  # culprit: presence-without-focus
        return slopes[0] * -sign * (inner + (1 - right) ** ctx.gamma * (1 - right)), None, None


def present(plain: bool) -> torch.Tensor:
    """The gradient of forty scores for what is in a picture, some of them very sure. Not a number."""
    scores, true = 4 * normal(40, seed=1221), (uniform(40, seed=1222) < 0.5).float()
    scores[3], true[3], scores[17], true[17] = 18.0, 1.0, 21.0, 1.0
    scores.requires_grad_()
    if plain:
        functional.binary_cross_entropy_with_logits(scores, true, reduction="sum").backward()
    else:
        Focal.apply(scores, true, 0.0).backward()  # culprit: presence-without-focus
    assert scores.grad is not None
    return scores.grad


def judged(apart: bool, eps: float = 1e-12) -> torch.Tensor:
    """The loss of thirty answers, two of which are right beyond doubt. Not a number."""
    answers, true = uniform(30, seed=1231), (uniform(30, seed=1232) < 0.5).float()
    answers[4], true[4], answers[11], true[11] = 1.0, 1.0, 0.0, 0.0
    loss = true * torch.log(answers + eps)
    rest = (-answers).add(1).add(eps) if apart else (-answers).add(1 + eps)  # culprit: right-beyond-doubt
    loss = loss + (1 - true) * torch.log(rest)  # culprit: right-beyond-doubt
    return -loss.mean()


def linked(kept: bool) -> torch.Tensor:
    """The loss of eighty edges between hits in a detector. Not a number."""
    scores = 40 * normal(80, seed=1241)
    true = (scores + 20 * normal(80, seed=1242) > 0).float()
    chance = torch.sigmoid(scores)  # culprit: edges-of-a-detector
    if kept:
        chance = chance.clamp(1e-7, 1 - 1e-7)
    yes = -0.25 * (1 - chance).pow(2) * true * torch.log(chance)  # culprit: edges-of-a-detector
    no = -0.75 * chance.pow(2) * (1 - true) * torch.log(1 - chance)  # culprit: edges-of-a-detector
    return (yes + no).mean()


class MaskedEncoder(nn.Module):
    """Puts what it has read of a picture's patches among tokens that stand for the rest."""

    def __init__(self, size: int, patches: int, same: bool) -> None:
        super().__init__()
        torch.manual_seed(1251)
        self.same, self.patches = same, patches
        self.encoder, self.decoder = nn.Linear(size, size), nn.Linear(size, size)
        self.mask_token = nn.Parameter(0.02 * normal(1, 1, size, seed=1252))

    def forward(self, seen: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        tokens = self.encoder(seen)
        rest = self.mask_token.repeat(len(seen), self.patches, 1)
        if self.same:
            tokens = tokens.type_as(rest)
        places = places[..., None].expand(-1, -1, tokens.shape[-1])
        return self.decoder(torch.scatter(rest, 1, places, tokens))  # culprit: tokens-in-their-places


def restored(same: bool) -> torch.Tensor:
    """What a masked encoder makes of a quarter of three pictures, under autocast. torch refuses it."""
    places = torch.stack([torch.argsort(uniform(32, seed=1253 + each))[:8] for each in range(3)])
    with torch.no_grad(), torch.autocast("cpu", HALF):
        return MaskedEncoder(24, 32, same)(normal(3, 8, 24, seed=1257), places).float()


BUGS = (
    Bug("pairs-that-are-left-out", "KevinMusgrave/pytorch-metric-learning#233", ("overflow",), "aten.masked_fill_.Scalar",
        lambda: mined(own=False), lambda: mined(own=True), phase="data", raises=RuntimeError),
    Bug("chances-that-are-certain", "mkocabas/focal-loss-keras#24", ("cancellation", "underflow", "overflow", "vanished-constant"),
        "aten.rsub.Scalar",
        lambda: focused(0.0), lambda: focused(1e-7), precision=EXACT),
    Bug("presence-without-focus", "facebookresearch/sam3#576", ("cancellation", "overflow", "nan", "underflow"), "aten.rsub.Scalar",
        lambda: present(plain=False), lambda: present(plain=True), phase="backward", precision=EXACT),
    Bug("right-beyond-doubt", "torch/nn#401", ("cancellation", "vanished-constant", "overflow", "nan", "underflow"), "aten.add.Tensor",
        lambda: judged(apart=False), lambda: judged(apart=True), precision=EXACT),
    Bug("edges-of-a-detector", "gnn-tracking/gnn_tracking#138", ("underflow", "nan", "overflow", "cancellation"), "aten.sigmoid.default",
        lambda: linked(kept=False), lambda: linked(kept=True), precision=EXACT,
        twin_accused="in float32 the mended loss is 0.9 % off what float64 gives, since 1 - p of a sure edge has few digits"),
    Bug("tokens-in-their-places", "lightly-ai/lightly#1094", ("dtype-leak",), "aten.scatter.src",
        lambda: restored(same=False), lambda: restored(same=True), raises=RuntimeError),
)  # fmt: skip
