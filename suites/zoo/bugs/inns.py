"""Inns: what is served in few bits, from places and turns to scores, codes and the next token."""

from __future__ import annotations

import math

import torch
from torch import nn

from bugs.bug import Bug, normal

HALF, LOW = torch.float16, torch.bfloat16


def windows_of_places(long: bool, length: int = 2304, window: int = 128) -> torch.Tensor:
    """What a word near the end of a long text sees of its window and the one before. It sees a word after itself."""
    words = normal(length, 16, seed=3001).to(HALF)
    places = torch.arange(length, dtype=torch.int64 if long else words.dtype)  # culprit: places-of-a-local-window
    own = places.view(-1, window)
    seen = torch.cat([torch.cat([own[:1] * 0 - 1, own[:-1]]), own], dim=-1)
    rows = words.view(-1, window, 16)
    others = torch.cat([torch.cat([rows[:1] * 0, rows[:-1]]), rows], dim=1)
    scores = (rows.float() @ others.float().transpose(1, 2)) / 4
    barred = (own[:, :, None] < seen[:, None, :]) | (seen[:, None, :] == -1)
    return torch.softmax(scores.masked_fill(barred, -torch.inf), -1)[-1]


class Turns(nn.Module):
    """Rotates queries by their place."""

    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.register_buffer("speeds", 10_000.0 ** (-torch.arange(0, size, 2).float() / size))

    def forward(self, words: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        angles = places.to(self.speeds.dtype)[:, None] * self.speeds  # culprit: turns-in-the-models-format
        cosine, sine = angles.cos().to(words.dtype), angles.sin().to(words.dtype)
        even, odd = words[..., 0::2], words[..., 1::2]
        return torch.cat([even * cosine - odd * sine, even * sine + odd * cosine], -1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3011)
        self.query, self.turns = nn.Linear(32, 32, bias=False), Turns()

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.turns(self.query(words), torch.arange(len(words)))


def turned(wide: bool) -> torch.Tensor:
    """Queries of nine hundred words, after a trainer has made the whole model bfloat16. They are turned too far."""
    model = Block()
    speeds = model.turns.speeds.clone()
    model = model.to(LOW)  # culprit: turns-in-the-models-format
    if wide:
        model.turns.speeds = speeds
    with torch.no_grad():
        return model(normal(900, 32, seed=3012).to(LOW)).float()


def cold_token(shifted: bool, heat: float = 2e-4) -> torch.Tensor:
    """Chances of the next token at a very low temperature, where it should be the likeliest one."""
    logits = (6 * normal(4, 200, seed=3021) + 12).to(HALF)
    if shifted:
        logits = logits - logits.amax(-1, keepdim=True)
    warm = torch.full((4, 1), heat, dtype=HALF)
    return torch.softmax((logits / warm).float(), -1)  # culprit: token-at-nearly-no-heat


class Coded(nn.Module):
    """A layer whose weights are eight bits and a scale for each row."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        scale = weight.abs().amax(-1) / 127
        self.register_buffer("codes", torch.round(weight / scale[:, None]).to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return (words @ self.codes.to(words.dtype).T) * self.scale.to(words.dtype)  # culprit: products-before-their-scale


def coded_layer(kind: torch.dtype) -> torch.Tensor:
    """What a coded layer makes of a picture's words; the products of words and codes come before the scale."""
    layer = Coded(0.05 * normal(48, 320, seed=3031) + 0.02)
    with torch.no_grad():
        return layer((12 * normal(24, 320, seed=3032) + 6).to(kind)).float()


class Rounder:
    """Rounds each row of a weight to four bits."""

    LEAST = 1e-5

    def __init__(self, bounded: bool) -> None:
        self.bounded = bounded

    def rounded(self, weight: torch.Tensor) -> torch.Tensor:
        low, high = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
        scale = (high - low) / 15  # culprit: step-of-a-narrow-row
        kept = scale.clamp(min=self.LEAST, max=1e4)
        if not self.bounded:
            kept = scale
        zero = -torch.round(low / kept)  # culprit: step-of-a-narrow-row
        return (torch.clamp(torch.round(weight / kept) + zero, 0, 15) - zero) * kept


def rounded_rows(bounded: bool) -> torch.Tensor:
    """A weight in four bits, one of whose rows hardly varies. That row is not a number."""
    weight = 0.1 * normal(8, 64, seed=3041)
    weight[3] = 1.7e-7 * torch.sign(weight[3])
    return Rounder(bounded).rounded(weight.to(HALF)).float()


def scaled_attention(late: bool) -> torch.Tensor:
    """Attention by powers of two, whose scale is multiplied into the queries first. Scores are in the hundreds."""
    query, key = (14 * normal(64, 64, seed=3051)).to(HALF), (14 * normal(4096, 64, seed=3052)).to(HALF)
    value, scale = normal(4096, 16, seed=3053).to(HALF), math.log2(math.e) / 8
    if late:
        scores = (query.float() @ key.float().T) * scale
    else:
        scores = (query * scale).float() @ key.float().T  # culprit: scale-into-the-query
    shares = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return (shares / shares.sum(-1, keepdim=True)) @ value.float()


BUGS = (
    Bug("places-of-a-local-window", "lucidrains/local-attention#12", ("integer-rounding", "decision-flip"),
        "aten.arange.start_step or aten.arange.default", lambda: windows_of_places(long=False), lambda: windows_of_places(long=True)),
    Bug("turns-in-the-models-format", "huggingface/optimum-habana#746", ("integer-rounding", "amplified-rounding", "local-drift"),
        "aten._to_copy.default", lambda: turned(wide=False), lambda: turned(wide=True), module="turns"),
    Bug("token-at-nearly-no-heat", "dphnAI/sonar#814", ("overflow",), "aten.div.Tensor",
        lambda: cold_token(shifted=False), lambda: cold_token(shifted=True)),
    Bug("products-before-their-scale", "huggingface/diffusion-fast#1", ("overflow",), "aten.mm.default",
        lambda: coded_layer(HALF), lambda: coded_layer(LOW), module="Coded"),
    Bug("step-of-a-narrow-row", "OpenGVLab/OmniQuant#33", ("underflow", "nan", "overflow"), "aten.div.Tensor",
        lambda: rounded_rows(bounded=False), lambda: rounded_rows(bounded=True)),
    Bug("scale-into-the-query", "InfiniTensor/ninetoothed#203", ("amplified-rounding", "local-drift"), "aten.mul.Tensor",
        lambda: scaled_attention(late=False), lambda: scaled_attention(late=True), harm=0.01,
        wrong_line="queries and keys are rounded on one line, which makes two thirds of the error; the scale's rounding makes the last third",
        twin_accused="scores in the hundreds are off by 0.02 to begin with, since queries and keys are half: 2.5 % of the result, as is said"),
)  # fmt: skip
