"""Losses with differences that are zero or tiny because they should be."""

from __future__ import annotations

import torch
from bugs.bug import normal
from torch import nn
from torch.nn import functional

LOW = torch.bfloat16


def logits() -> torch.Tensor:
    head = nn.Linear(16, 60)
    with torch.no_grad():
        head.weight.copy_(normal(60, 16) / 4)
        head.bias.zero_()
    with torch.autocast("cpu", dtype=LOW):
        return head(normal(24, 16, seed=1))


def cross_entropy() -> torch.Tensor:
    """Upcast first, and smoothed."""
    loss = functional.cross_entropy(logits().float(), torch.arange(24), label_smoothing=0.1)
    loss.backward()
    return loss.detach()


def focal() -> torch.Tensor:
    """(1 - p)² of an easy example is tiny on purpose; p comes from the logits in float32."""
    score, target = 4 * logits().float(), functional.one_hot(torch.arange(24), 60).float()
    plain, p = functional.binary_cross_entropy_with_logits(score, target, reduction="none"), torch.sigmoid(score)
    loss = ((1 - p * target - (1 - p) * (1 - target)) ** 2 * plain).mean()
    loss.backward()
    return loss.detach()


def first_epoch_ratio() -> torch.Tensor:
    """Policy optimisation before its first step: the log-ratio is exactly zero, and its gradient is not."""
    new = functional.log_softmax(logits().float(), -1)[:, 0]
    ratio = torch.exp(new - new.detach())
    advantage = torch.linspace(-1, 1, 24)
    loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    loss.backward()
    return loss.detach()


def preference() -> torch.Tensor:
    """The policy is its own reference at first."""
    chosen, rejected = functional.log_softmax(logits().float(), -1)[:, 3:5].unbind(-1)
    loss = -functional.logsigmoid(0.1 * ((chosen - chosen.detach()) - (rejected - rejected.detach())) + 0.05 * (chosen - rejected)).mean()
    loss.backward()
    return loss.detach()


def equal_distributions() -> torch.Tensor:
    """The divergence of a teacher from itself: the exact answer is zero."""
    low = (3 * normal(8, 100)).to(LOW)
    student, teacher = functional.log_softmax(low.float(), -1), functional.log_softmax(low.clone().float(), -1)
    return functional.kl_div(student, teacher, reduction="batchmean", log_target=True)


def margin() -> torch.Tensor:
    """1 - cosine of nearly parallel vectors loses digits in float32 too, below a margin."""
    a = normal(8, 32).to(LOW)
    b = (a.float() + 0.02 * normal(8, 32, seed=1)).to(LOW)
    return functional.relu(1 - functional.cosine_similarity(a.float(), b.float(), dim=-1) - 0.01)


def transport() -> torch.Tensor:
    """Sinkhorn in log space: exponents of ±25 stay logarithms; in float16 most of the plan is tiny."""
    score = (0.25 * normal(8, 24)).half().float() / 0.04
    for _ in range(4):
        score = score - torch.logsumexp(score, 0, keepdim=True)
        score = score - torch.logsumexp(score, 1, keepdim=True)
    return torch.exp(score).half()


def connectionist() -> torch.Tensor:
    """CTC's forward variables start at -Inf inside the kernel."""
    scores = functional.log_softmax(logits().float()[:, None, :20].expand(24, 2, 20), -1)
    loss = functional.ctc_loss(scores, torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([24, 24]), torch.tensor([3, 2]), zero_infinity=True)
    loss.backward()
    return loss.detach()


def saturated_gates() -> torch.Tensor:
    """1 - sigmoid is zero for half of the gates, and their gradient in float32 as well; logits are capped softly."""
    gate = (40 * normal(8, 16)).half().requires_grad_()
    out = 30 * torch.tanh((torch.sigmoid(gate) * normal(8, 16, seed=1).half()).sum(-1) / 30)
    out.float().square().mean().mul(1024).backward()
    return out.detach()


def overlap_of_masks() -> torch.Tensor:
    """Tversky's score of segmentations: the size of each mask, rounded once, is added to a sum of chances, which is rounded as coarsely."""
    chances = torch.softmax(2 * normal(3, 4096), 0).to(LOW).requires_grad_()
    target = functional.one_hot(normal(3, 4096, seed=1).argmax(0), 3).T.to(LOW)
    guessed, true = chances.sum(1), target.sum(1)
    overlap = (guessed + true - torch.linalg.vector_norm(chances - target, ord=1, dim=1)) / 2
    loss = (1 - overlap / (overlap + 0.5 * (guessed - overlap) + 0.5 * (true - overlap))).mean()
    loss.backward()
    return loss.detach()


IDIOMS = (cross_entropy, focal, first_epoch_ratio, preference, equal_distributions, margin, transport, connectionist, saturated_gates,
          overlap_of_masks)  # fmt: skip
