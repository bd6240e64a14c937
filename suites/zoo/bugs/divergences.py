"""Losses between distributions and of labels: what is rounded before it is subtracted, and what is clamped by a number that half has not."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from bugs.bug import Bug, normal

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def jensen_shannon(in_logs: bool) -> torch.Tensor:
    """Distillation at a temperature of 0.05: the loss, and the gradient of the student's logits."""
    student, teacher = (0.4 * normal(6, 24)).half().requires_grad_(), (0.4 * normal(6, 24, seed=1)).half()
    if in_logs:
        log_s, log_t = torch.log_softmax(student.float() / 0.05, -1), torch.log_softmax(teacher.float() / 0.05, -1)
        log_m = torch.logsumexp(torch.stack([log_s, log_t]), 0) - math.log(2)
        loss = 0.5 * ((log_s.exp() * (log_s - log_m)).sum(-1) + (log_t.exp() * (log_t - log_m)).sum(-1)).mean()
    else:
        p_s, p_t = torch.softmax(student / 0.05, -1), torch.softmax(teacher / 0.05, -1)  # culprit: clamped-mixture
        m = 0.5 * (p_s + p_t)
        log_m = m.clamp(min=1e-12).log()  # culprit: clamped-mixture
        loss = 0.5 * (functional.kl_div(log_m, p_s, reduction="batchmean") + functional.kl_div(log_m, p_t, reduction="batchmean"))
    loss.backward()
    assert student.grad is not None
    return torch.cat([loss.detach().float()[None], student.grad.float().flatten()])


def generalised_divergence(promoted: bool) -> torch.Tensor:
    """The gradient of a student, in float32, that has nearly learnt what its teacher, in bfloat16, says."""
    teacher = (2 * normal(8, 512)).to(LOW)
    student = (teacher.float() + 0.02 * normal(8, 512, seed=1)).requires_grad_()
    wide = teacher.float() if promoted else teacher
    log_student = functional.log_softmax(student / 0.9, -1)
    log_teacher = functional.log_softmax(wide / 0.9, -1)  # culprit: teacher-scores
    beta = 0.5
    mixture = torch.logsumexp(torch.stack([log_student + math.log(1 - beta), log_teacher + math.log(beta)]), 0)
    towards = functional.kl_div(mixture, log_teacher, reduction="sum", log_target=True)
    away = functional.kl_div(mixture, log_student, reduction="sum", log_target=True)
    (beta * towards + (1 - beta) * away).div(8).backward()
    assert student.grad is not None
    return student.grad


class FusedCrossEntropy(torch.autograd.Function):
    """The loss of logits, in whose memory the gradient is left, so that no second matrix of tokens by words is needed."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, target: torch.Tensor, own_buffer: bool) -> torch.Tensor:
        rows = torch.arange(len(target))
        wide = logits.float()
        largest = wide.amax(-1, keepdim=True)
        total = (wide - largest).exp().sum(-1, keepdim=True)
        loss = (total.log() + largest)[:, 0] - wide[rows, target]
        gradient = torch.empty_like(wide) if own_buffer else logits
        gradient.copy_((wide - largest).exp() / total)  # culprit: reused-logits
        gradient[rows, target] -= 1.0  # culprit: reused-logits
        ctx.save_for_backward(gradient)
        ctx.dtype = logits.dtype
        return loss.mean()

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return (gradient * (given / len(gradient))).to(ctx.dtype), None, None


def fused(own_buffer: bool) -> torch.Tensor:
    """The gradient of the hidden states of tokens that are predicted well."""
    hidden, words = normal(16, 32).to(LOW).requires_grad_(), normal(64, 32, seed=1).to(LOW)
    target = torch.arange(16)
    with torch.no_grad():
        hidden.copy_(words[:16].float() * 0.4)
    logits = hidden @ words.T
    FusedCrossEntropy.apply(logits, target, own_buffer).backward()
    assert hidden.grad is not None
    return hidden.grad.float()


def integer_labels(wide: bool) -> torch.Tensor:
    """Cross entropy of each image, of a classifier that is sure of most."""
    logits, labels = normal(32, 100), torch.arange(32)
    logits[labels, labels] += 21 + normal(32, seed=1)
    logits[labels[::4], labels[::4] + 40] = 20
    scores = logits.to(LOW)
    scores = scores.float() if wide else scores
    log_normalizers = torch.logsumexp(scores, -1)  # culprit: quantised-losses
    return (log_normalizers - scores[labels, labels]).float()  # culprit: quantised-losses


def supervised_contrast(others: bool) -> torch.Tensor:
    """The loss of pairs of views, of features that no one has normalised: one row is nearest to itself by far."""
    features, labels = normal(12, 32), torch.arange(6).repeat(2)
    features[3] *= 9
    itself = torch.eye(12, dtype=torch.bool)
    mask = ((labels[:, None] == labels) & ~itself).float()
    scores = features @ features.T / 0.2
    largest = (scores.masked_fill(itself, -torch.inf) if others else scores).amax(1, keepdim=True)
    logits = scores - largest.detach()
    exp_logits = logits.exp() * (~itself).float() if not others else logits.masked_fill(itself, -torch.inf).exp()  # culprit: contrast-of-itself
    log_prob = logits - torch.log(exp_logits.sum(1, keepdim=True))  # culprit: contrast-of-itself
    return -((mask * log_prob.masked_fill(itself, 0)).sum(1) / mask.sum(1))


BUGS = (
    Bug("clamped-mixture", "MakazhanAlpamys/Soup#719", ("vanished-constant", "underflow", "nan", "overflow"), "aten.clamp.default",
        lambda: jensen_shannon(False), lambda: jensen_shannon(True)),
    Bug("teacher-scores", "modelscope/ms-swift#10175", ("cancellation", "amplified-rounding"), "aten._log_softmax.default",
        lambda: generalised_divergence(False), lambda: generalised_divergence(True)),
    Bug("reused-logits", "NVIDIA/TransformerEngine#3193", ("amplified-rounding", "cancellation"), "aten.copy_.default", lambda: fused(False),
        lambda: fused(True)),
    Bug("quantised-losses", "google-deepmind/optax#1020", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: integer_labels(False), lambda: integer_labels(True)),
    Bug("contrast-of-itself", "emadeldeen24/TS-TCC#25", ("underflow", "nan", "overflow"), "aten.exp.default", lambda: supervised_contrast(False),
        lambda: supervised_contrast(True), precision="32-true"),
)  # fmt: skip
