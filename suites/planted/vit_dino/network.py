"""Self-distillation of a vision transformer, as DINO does it: a student follows a teacher, which is a moving average of the student."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, PATCH, ROWS, COLUMNS = 32, 2, 8, 4, 96  # strips of 32 by 768 pixels, as of a panorama
STUDENT_TEMPERATURE, TEACHER_TEMPERATURE = 0.1, 0.04
STEPS = 1
optimizer = None


def positions(rows: int, columns: int, width: int, like: torch.Tensor) -> torch.Tensor:
    """Fixed sinusoids of where the middle of every patch lies, in pixels down and along the image."""
    down, along = torch.arange(rows, device=like.device), torch.arange(columns, device=like.device)
    place = torch.stack([down.repeat_interleave(columns), along.repeat(rows)])
    rates = 10000 ** (-torch.arange(0, width // 4, device=like.device, dtype=torch.float32) / (width // 4))
    angles = (place.float() + 0.5)[..., None] * PATCH * rates
    table = torch.cat([angles[0].sin(), angles[0].cos(), angles[1].sin(), angles[1].cos()], dim=-1)
    return table.to(like.dtype)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Backbone(nn.Module):
    """Turns images into the embedding of each, and the scores of its rows of patches against the prototypes."""

    def __init__(self, prototypes: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, PATCH, stride=PATCH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
        self.prototypes = nn.Parameter(torch.randn(prototypes, WIDTH))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = x + positions(ROWS, COLUMNS, WIDTH, x)
        for block in self.blocks:
            x = block(x)
        x = self.head(self.norm(x))
        rows = row_means(x)
        embedding = pooled(x)
        return embedding, self.scores(embedding), self.scores(rows).flatten(0, 1)

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return F.normalize(x.float(), dim=-1) @ F.normalize(self.prototypes.float(), dim=-1).T


def pooled(x: torch.Tensor) -> torch.Tensor:
    """The mean of all patches."""
    return x.mean(1)


def row_means(x: torch.Tensor) -> torch.Tensor:
    return x.view(len(x), ROWS, COLUMNS, WIDTH).mean(2)


def centred(scores: torch.Tensor, center: torch.Tensor) -> torch.Tensor:
    """The teacher's targets for whole images."""
    return F.softmax((scores.float() - center.float()) / TEACHER_TEMPERATURE, dim=-1)


def sinkhorn(scores: torch.Tensor, rounds: int = 3) -> torch.Tensor:
    """The teacher's targets for rows of patches: every prototype is used about as often."""
    q = torch.exp(scores.float() / TEACHER_TEMPERATURE)
    for _ in range(rounds):
        q = q / q.sum(0, keepdim=True) / q.shape[1]
        q = q / q.sum(1, keepdim=True) / q.shape[0]
    return q * q.shape[0]


def cross_entropy(target: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    log_q = F.log_softmax(scores.float() / STUDENT_TEMPERATURE, dim=-1)
    return -(target * log_q).sum(-1)


def nearest(embedding: torch.Tensor) -> torch.Tensor:
    """How far each embedding is from its nearest neighbour; embeddings that spread out evenly are far from theirs."""
    unit = F.normalize(embedding.float(), dim=-1)
    with torch.no_grad(), torch.autocast(unit.device.type, enabled=False):
        neighbour = (unit @ unit.T).fill_diagonal_(-1).argmax(-1)
    return (unit - unit[neighbour]).norm(dim=-1)


def moving_average(average: torch.Tensor, weight: torch.Tensor, decay: float = 0.996) -> torch.Tensor:
    return decay * average + (1 - decay) * weight.detach().float()


def distance_moved(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """How far a step has moved a weight of the teacher, for the training log."""
    return (after.float() - before.float()).norm()


class Dino(nn.Module):
    """The student, and the teacher's weights, which are kept in float32 whatever the student is stored in."""

    def __init__(self) -> None:
        super().__init__()
        self.student = Backbone()
        self.register_buffer("center", torch.zeros(1, 64))
        self.teacher = {name: weight.detach() * (1 + 0.01 * torch.randn_like(weight)) for name, weight in self.student.named_parameters()}

    @torch.no_grad()
    def follow(self) -> dict[str, torch.Tensor]:
        """One step of the teacher towards the student, and the teacher's weights as the student stores its own."""
        student = dict(self.student.named_parameters())
        before, self.teacher = self.teacher, {name: moving_average(self.teacher[name], weight) for name, weight in student.items()}
        self.moved = {name: distance_moved(before[name], weight) for name, weight in self.teacher.items()}
        return {name: weight.to(student[name].dtype) for name, weight in self.teacher.items()}

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            _, whole, rows = torch.func.functional_call(self.student, self.follow(), (first,))
            targets, row_targets = centred(whole, self.center), sinkhorn(rows)
            self.center.copy_(0.9 * self.center.float() + 0.1 * whole.float().mean(0, keepdim=True))
        embedding, student, student_rows = self.student(second)
        distillation = cross_entropy(targets, student).mean() + cross_entropy(row_targets, student_rows).mean()
        return distillation - 0.1 * torch.log(nearest(embedding) + 1e-8).mean()


def make() -> nn.Module:
    """The prototypes lie near rows of patches, as they come to do in training."""
    torch.manual_seed(0)
    model = Dino()
    with torch.no_grad():
        x = model.student.patches(batch()[0]).flatten(2).transpose(1, 2) + positions(ROWS, COLUMNS, WIDTH, torch.zeros(()))
        for block in model.student.blocks:
            x = block(x)
        rows = row_means(model.student.head(model.student.norm(x))).flatten(0, 1)
        chosen = rows[torch.randint(len(rows), (64,))]
        model.student.prototypes.copy_(chosen + 0.3 * rows.std() * torch.randn_like(chosen))
        model.teacher["prototypes"] = model.student.prototypes * (1 + 0.01 * torch.randn_like(chosen))
    return model


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    images = torch.randn(6, 1, ROWS * PATCH, COLUMNS * PATCH, generator=g)
    images = images + torch.linspace(-1, 1, 6).view(-1, 1, 1, 1) * math.pi
    return images, images + 0.1 * torch.randn(images.shape, generator=g)


def loss(output: torch.Tensor) -> torch.Tensor:
    return output
