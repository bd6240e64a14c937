"""Heads: draws of a token, margins of a reward, pairs of pictures and captions, classes of a face, and what a mask writes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, SINGLE = torch.float16, torch.bfloat16, torch.float32


class GumbelSampler:
    """Draws a token by the largest of logits and noise."""

    def __init__(self, temperature: float, noise: torch.dtype) -> None:
        self.temperature, self.noise = temperature, noise

    def scores(self, logits: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        u = (1e-7 + draws * (0.999 - 1e-7)).to(self.noise)  # culprit: draws-of-a-token
        noise = -torch.log(-torch.log(u))  # culprit: draws-of-a-token
        return logits.to(self.noise) / self.temperature + noise


def drawn(noise: torch.dtype) -> torch.Tensor:
    """Scores of 4 rows of 600 tokens: the largest draws are one in bfloat16, and their noise has no end."""
    return GumbelSampler(0.8, noise).scores((2 * normal(4, 600)).to(LOW), uniform(4, 600, seed=1)).float()


class RewardModel(nn.Module):
    """A trunk in bfloat16 and a head that gives one number."""

    def __init__(self, width: int, head: torch.dtype) -> None:
        super().__init__()
        self.trunk = nn.Linear(width, width).to(LOW)
        self.head = nn.Linear(width, 1).to(head)
        nn.init.constant_(self.head.bias, 24.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.trunk(x)).to(self.head.weight.dtype)).squeeze(-1)  # culprit: margins-of-a-reward


def preferences(head: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses of 24 pairs of answers whose rewards lie about 24, a few tenths apart. Off by 45 %."""
    torch.manual_seed(3)
    model = RewardModel(32, head)
    answers = normal(24, 32)
    with torch.no_grad():
        chosen, rejected = model(answers.to(LOW)), model((answers + 0.3 * normal(24, 32, seed=1)).to(LOW))
    margin = (chosen - rejected).float()  # culprit: margins-of-a-reward
    return -functional.logsigmoid(margin), margin


class Captions(nn.Module):
    """A model that tells which caption belongs to which picture."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.logit_scale = nn.Parameter(torch.tensor(11.4))
        self.picture, self.text = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, picture: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        picture = functional.normalize(self.picture(picture), dim=-1).to(self.dtype)
        text = functional.normalize(self.text(text), dim=-1).to(self.dtype)
        scale = self.logit_scale.to(self.dtype).exp()  # culprit: scale-of-captions
        return scale * (picture @ text.T)


def matched(dtype: torch.dtype) -> torch.Tensor:
    """What a batch of twelve gives, whose scale was left to grow; its exponential has no place in half."""
    torch.manual_seed(1)
    model = Captions(16, dtype)
    with torch.no_grad():
        return model(normal(12, 16), normal(12, 16, seed=1)).float().softmax(-1)


class PartialClasses(nn.Module):
    """Classes of faces of which a batch sees a part; what it gives are cosines."""

    def __init__(self, classes: int, width: int, wide: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter((1.5e-4 * normal(classes, width)).to(dtype))
        self.wide = wide

    def unit(self, x: torch.Tensor) -> torch.Tensor:
        kept = x.dtype
        x = x.float() if self.wide else x
        norm = (x * x).sum(-1, keepdim=True).sqrt()  # culprit: cosines-of-new-classes
        return (x / norm.clamp_min(1e-12 if self.wide else 1e-6)).to(kept)

    def forward(self, features: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        return self.unit(features) @ self.unit(self.weight[part]).T


def faces(wide: bool, dtype: torch.dtype = HALF) -> torch.Tensor:
    """Cosines of eight faces with twelve classes that have just been made. Off by a third."""
    classes = PartialClasses(40, 24, wide, dtype)
    with torch.no_grad():
        return classes(normal(8, 24, seed=1).to(dtype), torch.arange(0, 36, 3)).float()


class LinearAttention(nn.Module):
    """Attention over projected keys, in which padding is written over."""

    def __init__(self, keys: int, kept: int, filling: float) -> None:
        super().__init__()
        self.project = nn.Linear(keys, kept, bias=False)
        self.filling = filling

    def forward(self, q: torch.Tensor, k: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        scores = q @ self.project(k.mT) / q.shape[-1] ** 0.5
        return scores.masked_fill(padding, self.filling).softmax(-1)  # culprit: padding-of-a-projection


def attended(filling: float) -> torch.Tensor:
    torch.manual_seed(2)
    attention = LinearAttention(10, 6, filling).to(HALF)
    with torch.no_grad():
        return attention(normal(2, 5, 8).to(HALF), normal(2, 10, 8, seed=1).to(HALF), torch.arange(6) > 3).float()


BUGS = (
    Bug("draws-of-a-token", "huggingface/candle#2928", ("amplified-rounding", "overflow", "nan"), "aten.log.default",
        lambda: drawn(LOW), lambda: drawn(SINGLE)),
    Bug("margins-of-a-reward", "NVIDIA/NeMo-Aligner#361", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: preferences(LOW), lambda: preferences(SINGLE)),
    Bug("scale-of-captions", "openai/CLIP#530", ("overflow",), "aten.exp.default", lambda: matched(HALF), lambda: matched(SINGLE)),
    Bug("cosines-of-new-classes", "PaddlePaddle/PLSC#131", ("underflow",), "aten.mul.Tensor", lambda: faces(False),
        lambda: faces(True), module="PartialClasses"),
    Bug("padding-of-a-projection", "tatp22/linformer-pytorch#19", ("overflow",), "aten.masked_fill.Scalar", lambda: attended(-1e10),
        lambda: attended(-float("inf")), raises=RuntimeError),
)  # fmt: skip
