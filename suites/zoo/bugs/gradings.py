"""What a model is judged by: answers of a benchmark, members of an ensemble, pairs of a ranking, the style of a picture."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def answered(wide: bool) -> torch.Tensor:
    """The probability mass of the true answers to eight questions with four answers of 24 tokens each, as a harness adds it up."""
    embedding, head = (0.5 * normal(2000, 32)).to(LOW), (0.15 * normal(2000, 32, seed=1)).to(LOW)
    masses = []
    for question in range(8):
        scores = []
        for answer in range(4):
            tokens = (torch.arange(25) * 37 + 101 * question + 13 * answer) % 2000
            logits = embedding[tokens[:-1]] @ head.T
            log_probs = functional.log_softmax(logits, -1, dtype=WIDE if wide else None)  # culprit: answer-scores
            scores.append(log_probs.gather(-1, tokens[1:, None]).sum().float())  # culprit: answer-scores
        masses.append(torch.stack(scores).softmax(0)[:2].sum())  # culprit: answer-scores
    return torch.stack(masses)


class Member(nn.Module):
    """One estimator of an ensemble, on its own choice of the features."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.places = torch.randperm(12, generator=torch.Generator().manual_seed(seed))[:9]
        self.first, self.second = nn.Linear(9, 32), nn.Linear(32, 3)
        with torch.no_grad():
            self.first.weight.copy_(normal(32, 9, seed=seed))
            self.second.weight.copy_(0.1 * normal(3, 32, seed=seed + 50))
            self.second.bias.copy_(torch.tensor([8.0, 0.0, 0.5]))
            self.first.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x[:, self.places]).relu())


def log_loss(wide: bool) -> torch.Tensor:
    """The log loss of an ensemble that is sure of its answers: logits under autocast, a temperature, a softmax, and a mean of eight."""
    x, labels, outputs = normal(120, 12), torch.zeros(120).long(), []
    with torch.no_grad(), torch.autocast("cpu", dtype=LOW):
        for seed in range(8):
            output = Member(seed)(x)
            outputs.append(output.float() if wide else output)
    probabilities = torch.stack([torch.softmax(output / 0.9, -1) for output in outputs]).mean(0)  # culprit: averaged-members
    return functional.nll_loss(probabilities.float().log(), labels)  # culprit: averaged-members


def ranked(stable: bool) -> list[torch.Tensor]:
    """Three steps of a pairwise ranking with a sigmoid that is written out, for users who were very wrong about an item."""
    users, items = nn.Embedding(20, 16), nn.Embedding(30, 16)
    with torch.no_grad():
        users.weight.copy_(4 * normal(20, 16))
        items.weight.copy_(4 * normal(30, 16, seed=1))
    optimizer = torch.optim.SGD([*users.parameters(), *items.parameters()], lr=0.05)
    for step in range(3):
        who, liked, other = torch.arange(20), (torch.arange(20) + step) % 30, (torch.arange(20) * 7 + 11) % 30
        margin = (users(who) * (items(liked) - items(other))).sum(-1)
        likely = torch.sigmoid(margin) if stable else 1.0 / (1.0 + torch.exp(-margin))  # culprit: ranked-pairs
        optimizer.zero_grad()
        (1.0 - likely).mean().backward()
        optimizer.step()
    return [users.weight.detach(), items.weight.detach()]


class Features(nn.Module):
    """The first layers of a network for pictures whose colours are 0 to 255 less a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 12, 3, padding=1)
        for layer, seed in ((self.first, 0), (self.second, 1)):
            with torch.no_grad():
                layer.weight.copy_(normal(*layer.weight.shape, seed=seed) / layer.weight[0].numel() ** 0.5)
                layer.bias.zero_()

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(picture).relu()).relu()


def gram(features: torch.Tensor, wide: bool) -> torch.Tensor:
    flat = features.flatten(2)[0]
    if wide:
        flat = flat.float()
    return (flat @ flat.T) / flat.numel()  # culprit: style-gram


def styled(wide: bool) -> torch.Tensor:
    """The losses of two steps of a picture towards a painting's style, with features in half."""
    model = Features().half().requires_grad_(False)
    painting = (255 * uniform(1, 3, 24, 24) - 118).half()
    picture = (255 * uniform(1, 3, 24, 24, seed=1) - 118).requires_grad_()
    target, optimizer, losses = gram(model(painting), wide), torch.optim.Adam([picture], lr=1.0), []
    for _ in range(2):
        optimizer.zero_grad()
        loss = functional.mse_loss(gram(model(picture.half()), wide).float(), target.float())
        (1e-4 * loss).backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


BUGS = (
    Bug("answer-scores", "EleutherAI/lm-evaluation-harness#2921", ("amplified-rounding", "cancellation"), "aten.sum.default",
        lambda: answered(False), lambda: answered(True)),
    Bug("averaged-members", "PriorLabs/TabPFN#1122", ("amplified-rounding", "cancellation"), "aten.mean.dim", lambda: log_loss(False),
        lambda: log_loss(True)),
    Bug("ranked-pairs", "maciejkula/triplet_recommendations_keras#1", ("overflow", "nan"), "aten.exp.default", lambda: ranked(False),
        lambda: ranked(True), precision="32-true"),
    Bug("style-gram", "ProGamerGov/neural-style-pt#97", ("overflow",), "aten.mm.default", lambda: styled(False), lambda: styled(True)),
)  # fmt: skip
