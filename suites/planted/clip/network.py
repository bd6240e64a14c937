"""Contrastive training of an image tower and a text tower, as CLIP does it, against a bank of texts gathered from other machines."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, TOKENS, VOCABULARY, PATCH, BANK = 48, 2, 24, 200, 8, 768
STEPS = 1
optimizer = None


def masked_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """Attention to the tokens that are there; all are attended to evenly where none is."""
    scores = (q @ k.transpose(-2, -1)).float() / math.sqrt(q.shape[-1])
    scores = scores + (1 - present.float())[:, None, None] * -1e9
    return F.softmax(scores, dim=-1).to(v.dtype) @ v


def unit(x: torch.Tensor, eps: float = 1e-8) -> torch.Tensor:
    """Vectors of length 1; what is all zero stays so."""
    x = x.float()
    return x / (x.square().sum(-1, keepdim=True).sqrt() + eps)


def scale_of(logit_scale: torch.Tensor) -> torch.Tensor:
    return logit_scale.float().exp().clamp(max=100)


def similarities(images: torch.Tensor, texts: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    with torch.autocast(images.device.type, enabled=False):
        return scale * (images.float() @ texts.float().T)


def log_partition(logits: torch.Tensor) -> torch.Tensor:
    """The logarithm of the sum of exponentials over the whole bank, block by block, as the blocks arrive."""
    largest = logits.amax(-1)
    total = torch.zeros_like(largest)
    for block in logits.split(2, dim=-1):
        total = total + torch.exp(block - largest[:, None]).sum(-1)
    return largest + torch.log(total)


def contrastive(logits: torch.Tensor) -> torch.Tensor:
    """The cross entropy of each image, whose own text is the one of its number."""
    logits = logits.float()
    return log_partition(logits) - logits.diagonal()


def squared_distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, b = a.float(), b.float()
    return (a[:, None] - b[None]).square().sum(-1)


def margins(images: torch.Tensor, texts: torch.Tensor, margin: float = 0.2) -> torch.Tensor:
    """The triplet loss of each image with the hardest of the other texts of the batch."""
    distances = squared_distances(images, texts)
    own = distances.diagonal()
    hardest = (distances + 10 * torch.eye(len(own), device=own.device)).amin(-1)
    return F.relu(own - hardest + margin)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        x = x + self.out(masked_attention(q, k, v, present).transpose(1, 2).reshape(b, n, WIDTH))
        return x + self.mlp(self.norm2(x))


class Tower(nn.Module):
    """Blocks over patches or tokens, and the projection of their mean."""

    def __init__(self, enter: nn.Module) -> None:
        super().__init__()
        self.enter, self.blocks = enter, nn.ModuleList(Block() for _ in range(2))
        self.norm, self.project = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        nn.init.normal_(self.project.weight, std=2.0)

    def forward(self, x: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x, present)
        return self.project(self.norm(x).mean(1))


class CLIP(nn.Module):
    """Returns the contrastive losses and the triplet losses of every image."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = Tower(nn.Linear(3 * PATCH * PATCH, WIDTH)), Tower(nn.Embedding(VOCABULARY, WIDTH))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(90.0)))

    def forward(self, patches: torch.Tensor, tokens: torch.Tensor, bank: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        images = self.image(patches, torch.ones(patches.shape[:2], device=patches.device, dtype=torch.bool))
        texts = self.text(tokens, tokens > 0)
        everything = unit(torch.cat([texts, bank.to(texts.dtype)]))
        logits = similarities(unit(images), everything, scale_of(self.logit_scale))
        return contrastive(logits), margins(unit(images), everything[: len(texts)])


def make() -> nn.Module:
    """Both towers look in about the same direction, as they do in training."""
    torch.manual_seed(0)
    model = CLIP()
    with torch.no_grad():
        direction = torch.randn(WIDTH)
        for tower in (model.image, model.text):
            tower.norm.bias.fill_(2.0)
            tower.project.weight.add_(2.0 * direction[:, None] / math.sqrt(WIDTH) * 4)
    return model


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Patches, tokens (0 where a caption has ended; one caption is empty), and the bank, whose last places are not filled yet."""
    g = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, VOCABULARY, (16, TOKENS), generator=g)
    tokens[torch.arange(TOKENS) >= torch.randint(4, TOKENS, (16, 1), generator=g)] = 0
    tokens[5] = 0
    torch.manual_seed(0)
    bank = 40 * (torch.randn(WIDTH) + 0.15 * torch.randn(BANK, WIDTH, generator=g))
    bank[-8:] = 0
    return torch.randn(16, 36, 3 * PATCH * PATCH, generator=g), tokens, bank


def loss(output: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    own, triplet = output
    return own.mean() + triplet.mean()
