"""Parcels: chances at a low temperature, near vectors, sure boxes, teachers that rule words out, energies, numbers of users, norms."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


class Sampler(nn.Module):
    """Gives the chances of the words that a server draws from, for requests that each have a temperature."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, logits: torch.Tensor, temperatures: torch.Tensor, kept: int) -> torch.Tensor:
        if self.wide:
            logits = logits.float()
        logits = logits / temperatures.to(logits.dtype)[:, None]  # culprit: requests-at-no-temperature
        chances = torch.softmax(logits, -1)  # culprit: requests-at-no-temperature
        chances, words = chances.sort(dim=-1, descending=True)
        chances[:, kept:] = 0
        chances = chances / chances.sum(-1, keepdim=True)
        return torch.zeros_like(chances).scatter(-1, words, chances)


def served(wide: bool) -> torch.Tensor:
    """Chances of sixty words for six requests; two of them ask for all but the best word to be left out, by a temperature of nearly nought."""
    torch.manual_seed(6101)
    head = nn.Linear(32, 60).to(HALF)
    states = (20 * normal(6, 32, seed=6102)).to(HALF)
    with torch.no_grad():
        return Sampler(wide)(head(states), torch.tensor([1.0, 0.7, 1e-4, 1.2, 1e-4, 0.3]), 20).float()


class Index:
    """The nearest of many vectors to each that is asked for."""

    def __init__(self, vectors: torch.Tensor, wide: bool) -> None:
        self.vectors, self.wide = vectors, wide

    def search(self, queries: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.wide:
            apart = torch.cdist(queries.float(), self.vectors.float(), compute_mode="donot_use_mm_for_euclid_dist")
        else:
            apart = torch.cdist(queries, self.vectors, compute_mode="use_mm_for_euclid_dist")  # culprit: photos-of-one-place
        return apart.float().topk(count, largest=False)


def found(wide: bool) -> torch.Tensor:
    """How far the three nearest photos are from twenty that were taken a moment later. All vectors are half."""
    vectors = (1 + 0.3 * normal(200, 256, seed=6111)).to(HALF)
    queries = (vectors[:20].float() + 0.004 * normal(20, 256, seed=6112)).to(HALF)
    return Index(vectors, wide).search(queries, 3)[0]


class FocalLoss(nn.Module):
    """The focal loss of boxes that a detector finds, as a kernel computes it from logits."""

    def __init__(self, wide: bool, gamma: float = 2.0, alpha: float = 0.25) -> None:
        super().__init__()
        self.wide, self.gamma, self.alpha = wide, gamma, alpha

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = logits.float() if self.wide else logits
        sure, least = torch.sigmoid(logits), torch.finfo(SINGLE).tiny
        right = -self.alpha * (1 - sure) ** self.gamma * sure.clamp_min(least).log()  # culprit: boxes-that-are-sure
        wrong = -(1 - self.alpha) * sure**self.gamma * (1 - sure).clamp_min(least).log()  # culprit: boxes-that-are-sure
        return (targets * right + (1 - targets) * wrong).sum(-1).float().mean()


def detected(wide: bool) -> torch.Tensor:
    """The loss of two hundred boxes of six classes, and of one class more whose scores are large."""
    torch.manual_seed(6121)
    head = nn.Linear(16, 6).to(HALF)
    features = (4 * normal(200, 16, seed=6122)).to(HALF)
    targets = functional.one_hot((6 * uniform(200, seed=6123)).long(), 6).to(HALF)
    with torch.no_grad():
        logits = 3 * head(features)
        return torch.stack([FocalLoss(wide)(logits, targets), FocalLoss(wide)(logits + 2, targets)])


class Distiller(nn.Module):
    """A student and its teacher: how far they are apart, from the student's side and from the middle."""

    def __init__(self, student: nn.Module, teacher: nn.Module, by_logs: bool) -> None:
        super().__init__()
        self.student, self.teacher, self.by_logs = student, teacher, by_logs

    def reverse(self, ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        if self.by_logs:
            ours, theirs = ours.float().log_softmax(-1), theirs.float().log_softmax(-1)
            return (ours.exp() * (ours - theirs)).sum(-1).mean()
        ours, theirs = ours.softmax(-1), theirs.softmax(-1)  # culprit: teacher-that-rules-words-out
        return (ours * (ours.log() - theirs.log())).sum(-1).mean()  # culprit: teacher-that-rules-words-out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ours, theirs = self.student(x), self.teacher(x).detach()
        return self.reverse(ours / 0.5, theirs / 0.5)


def distilled(by_logs: bool) -> torch.Tensor:
    """The loss of a student in half, whose teacher is much surer, and its gradient."""
    torch.manual_seed(6131)
    student, teacher = nn.Linear(24, 50).to(HALF), nn.Linear(24, 50).to(HALF)
    with torch.no_grad():
        teacher.weight.mul_(8)
    loss = Distiller(student, teacher, by_logs)(normal(30, 24, seed=6132).to(HALF))
    loss.backward()
    return torch.cat([loss.detach().float()[None], student.bias.grad.float()])


class Rescale(nn.Module):
    """Energies of atoms as the network gives them, brought to units of volts, and those of free atoms added."""

    def __init__(self, free: torch.Tensor, scale: float, wide: bool) -> None:
        super().__init__()
        self.wide, self.scale = wide, scale
        self.register_buffer("free", free.to(DOUBLE if wide else SINGLE))

    def forward(self, energies: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        energies = energies.to(DOUBLE) if self.wide else energies
        return self.scale * energies + self.free[kinds]  # culprit: barrier-of-a-reaction


class Potential(nn.Module):
    """The energy of a molecule: of each atom by its kind and surroundings, in all."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(6141)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 1))
        self.rescale = Rescale(torch.tensor([-13.6, -1029.8, -1485.3, -2042.1]), 0.4, wide)

    def forward(self, surroundings: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        return self.rescale(self.net(surroundings).squeeze(-1), kinds).sum(-1)  # culprit: barrier-of-a-reaction


def barrier(wide: bool) -> torch.Tensor:
    """How much higher each of nine states along a reaction is than the first one."""
    model, kinds = Potential(wide), (4 * uniform(160, seed=6142)).long()
    start = normal(160, 8, seed=6143)
    states = start + torch.linspace(0, 0.01, 9)[:, None, None] * normal(160, 8, seed=6144)
    with torch.no_grad():
        energies = model(states, kinds)
        return (energies - energies[0]).float()  # culprit: barrier-of-a-reaction


class Recommender(nn.Module):
    """Scores of items for users, by rows of two tables, into which numbers are hashed."""

    def __init__(self, whole: bool, rows: int = 512) -> None:
        super().__init__()
        torch.manual_seed(6151)
        self.whole, self.rows = whole, rows
        self.users, self.items = nn.Embedding(rows, 8), nn.Embedding(rows, 8)

    def rows_of(self, numbers: torch.Tensor) -> torch.Tensor:
        if not self.whole:
            numbers = numbers.to(SINGLE)  # culprit: users-beyond-sixteen-million
        return (numbers % self.rows).long()

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        return (self.users(self.rows_of(users)) * self.items(self.rows_of(items))).sum(-1)


def recommended(whole: bool) -> torch.Tensor:
    """Scores of a hundred pairs; users have numbers from eighteen million on."""
    users = 18_000_000 + 37 * torch.arange(100)
    with torch.no_grad():
        return Recommender(whole)(users, 5 * torch.arange(100))


class RMSNorm:
    """Divides each word by its root mean square."""

    def __init__(self, size: int, wide: bool, eps: float = 1e-6) -> None:
        self.weight, self.wide, self.eps = torch.ones(size), wide, eps

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return x * (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt()  # culprit: stream-of-a-coder

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.wide:
            return self.norm(x.float()).to(x.dtype) * self.weight.to(x.dtype)
        return self.norm(x) * self.weight.to(x.dtype)


def coded(wide: bool) -> torch.Tensor:
    """Words after six layers in half, some numbers of which reach hundreds, as they do in models of that size."""
    torch.manual_seed(6161)
    norms = [RMSNorm(48, wide) for _ in range(7)]
    layers = [nn.Linear(48, 48).to(HALF) for _ in range(6)]
    x = normal(10, 48, seed=6162).to(HALF)
    x[:, 5] = 700
    x[::2, 9] = -420
    with torch.no_grad():
        for norm, layer in zip(norms, layers, strict=False):
            x = x + layer(norm(x))
        return norms[-1](x).float()


BUGS = (
    Bug("requests-at-no-temperature", "sgl-project/sglang#773", ("overflow", "nan"), "aten.div.Tensor",
        lambda: served(wide=False), lambda: served(wide=True), module="Sampler"),
    Bug("photos-of-one-place", "pytorch/pytorch#136748", ("local-drift", "cancellation", "amplified-rounding"), "aten._euclidean_dist.default",
        lambda: found(wide=False), lambda: found(wide=True),
        wrong_line="the rounding of the queries is named: the kernel's own error, of five roundings, is too small to be measured apart from it"),
    Bug("boxes-that-are-sure", "open-mmlab/mmcv#1488", ("vanished-constant", "nan", "overflow", "cancellation"), "aten.clamp_min.default",
        lambda: detected(wide=False), lambda: detected(wide=True), module="FocalLoss"),
    Bug("teacher-that-rules-words-out", "MakazhanAlpamys/Soup#736", ("underflow", "nan", "overflow"), "aten._softmax.default",
        lambda: distilled(by_logs=False), lambda: distilled(by_logs=True)),
    Bug("barrier-of-a-reaction", "MDIL-SNU/SevenNet#326", ("amplified-rounding", "cancellation", "absorption"), "aten.sum.dim_IntList",
        lambda: barrier(wide=False), lambda: barrier(wide=True), precision="32-true"),
    Bug("users-beyond-sixteen-million", "tensorflow/tensorflow#47187", ("integer-rounding",), "aten._to_copy.default",
        lambda: recommended(whole=False), lambda: recommended(whole=True), precision="32-true"),
    Bug("stream-of-a-coder", "tinygrad/tinygrad#2932", ("overflow", "nan"), "aten.pow.Tensor_Scalar",
        lambda: coded(wide=False), lambda: coded(wide=True)),
)  # fmt: skip
