"""What is drawn, ranked and scored from a language model's logits, and losses written out by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def nucleus(dtype: torch.dtype) -> torch.Tensor:
    """Top-p of 0.001: tokens whose cumulative probability exceeds 1 - p, which is one. No token does."""
    log_p = functional.log_softmax(3 * normal(4, 512), -1).to(LOW)
    order = log_p.argsort(-1)
    reached = log_p.to(dtype).exp().gather(-1, order).cumsum(-1)
    keep = torch.zeros_like(reached, dtype=torch.bool).scatter(-1, order, reached > torch.tensor(0.999).to(dtype))  # culprit: empty-nucleus
    return torch.softmax(log_p.masked_fill(~keep, float("-inf")), -1)


def inverse_transform(dtype: torch.dtype) -> torch.Tensor:
    """4000 equal probabilities add up to 0.998 in bfloat16; a draw beyond that gives the first token, which is all but impossible."""
    logits, draws = torch.zeros(6, 4000), torch.tensor([[0.05], [0.5], [0.93], [0.9985], [0.999], [0.9995]])
    logits[:, 0] = -20.0
    p = torch.softmax(logits.to(LOW).to(dtype), -1)  # culprit: short-probabilities
    return (p.float().cumsum(-1) >= draws).float().argmax(-1)


def ratios(wide: bool) -> torch.Tensor:
    """Importance ratios of a policy whose trainer divides by the temperature in bfloat16, and whose sampler did not."""
    logits = (24 + 3 * normal(64, 200)).to(LOW)
    best = logits.argmax(-1, keepdim=True)
    scaled = (logits.float() if wide else logits) / 0.7  # culprit: low-temperature
    ours = functional.log_softmax(scaled.float(), -1).gather(1, best)
    return (ours - functional.log_softmax(logits.float() / 0.7, -1).gather(1, best)).exp()


def entropy(wide: bool) -> torch.Tensor:
    """Entropy of logits that are 80000 apart: log-probabilities of -Inf, times zero."""
    logits = normal(4, 50)
    logits[:, 0], logits[:, 1] = 40000.0, -40000.0
    logits = logits.half()
    log_p = functional.log_softmax(logits.float() if wide else logits, -1)  # culprit: distant-logits
    return -(log_p.exp() * log_p).sum(-1)


def weighted_loss(wide: bool) -> torch.Tensor:
    """Loss over pixels by sums of losses and of weights: 90000 of them are Inf, and so are their losses."""
    log_p = functional.log_softmax(normal(90_000, 3).half(), 1)
    log_p = log_p.float() if wide else log_p
    label = torch.arange(90_000) % 3
    weight = torch.ones(3).to(log_p.dtype)[label]
    picked = -log_p.gather(1, label[:, None]).squeeze(1)
    return (picked * weight).sum() / weight.sum()  # culprit: pixel-weights


def preference(stable: bool) -> torch.Tensor:
    """A reward model's loss as the log of a sigmoid, zero in half from a margin of -17 on."""
    weight = nn.Parameter((7 * normal(8)).half())
    margin = (normal(32, 8, seed=1).half() * weight).sum(-1) - 4
    loss = -functional.logsigmoid(margin) if stable else -torch.log(torch.sigmoid(margin))  # culprit: log-of-sigmoid
    return loss.mean()


class FusedLoss(torch.autograd.Function):
    """Cross entropy that leaves its gradient in the logits' place; one is taken from the right word's probability afterwards."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, words: torch.Tensor, first: bool) -> torch.Tensor:
        p, places = torch.softmax(logits.float(), -1), torch.arange(len(words))
        if first:
            p[places, words] -= 1
            slope = p.to(logits.dtype)
        else:
            slope = p.to(logits.dtype)  # culprit: right-word
            slope[places, words] = slope[places, words] - 1  # culprit: right-word
        ctx.save_for_backward(slope)
        return (logits.float().logsumexp(-1) - logits.float()[places, words]).mean()

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.saved_tensors[0] * upstream[0], None, None


def confident(first: bool) -> torch.Tensor:
    logits, words = normal(8, 50), torch.arange(8)
    logits[words, words] = 12.0
    logits = logits.to(LOW).requires_grad_()
    FusedLoss.apply(logits, words, first).backward()
    assert logits.grad is not None
    return logits.grad[words, words]


def distilled(dtype: torch.dtype) -> torch.Tensor:
    """Cross entropy with a teacher as log-sum-exp less the expected logit: two numbers near 60 in steps of a quarter."""
    teacher = 3 * normal(64, 500)
    teacher[:, 7], teacher[:, 9] = teacher[:, 7] + 55, teacher[:, 9] + 54.5
    student = (teacher + 0.05 * normal(64, 500, seed=1)).to(LOW).to(dtype)
    expected = (torch.softmax(teacher.to(LOW).to(dtype), -1) * student).sum(-1)  # culprit: expected-logit
    return (torch.logsumexp(student, -1) - expected).float()  # culprit: expected-logit


def divergence(dtype: torch.dtype) -> torch.Tensor:
    """KL of two Gaussians, one of them narrow: (0.5 / 0.001)² is 250000."""
    mean = normal(16, 4).half().to(dtype)
    ratio, apart = (torch.full((16, 4), 0.5).half().to(dtype) / 0.001) ** 2, (mean / 0.001) ** 2  # culprit: narrow-prior
    return 0.5 * (ratio.float() + apart.float() - 1 - ratio.float().log()).mean()


class MaskCost(nn.Module):
    """Costs of every mask with every label, summed over 40000 points by a product, and divided by their number afterwards."""

    def __init__(self, before: bool) -> None:
        super().__init__()
        self.before = before

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        points = logits.shape[1]
        yes, no = functional.softplus(-logits), functional.softplus(logits)
        if self.before:
            return (yes / points * 1024) @ labels.T / 1024 + (no / points * 1024) @ (1 - labels).T / 1024
        return (yes @ labels.T + no @ (1 - labels).T) / points  # culprit: mask-costs


def matched(before: bool) -> dict[str, Any]:
    given = (normal(4, 40_000) - 2, (uniform(3, 40_000) > 0.02).float())
    return {"model": MaskCost(before), "inputs": given, "precision": "16-mixed"}


def costs(before: bool) -> torch.Tensor:
    with torch.autocast("cpu", dtype=HALF):
        return MaskCost(before)(*matched(before)["inputs"])


BUGS = (
    Bug("empty-nucleus", "ml-explore/mlx-lm#1912", ("vanished-constant", "nan", "decision-flip"), "aten.gt.Tensor", lambda: nucleus(LOW),
        lambda: nucleus(WIDE)),
    Bug("short-probabilities", "InternLM/lmdeploy#1239", ("decision-flip",), "aten._softmax.default", lambda: inverse_transform(LOW),
        lambda: inverse_transform(WIDE),
        expected_miss="each probability is right to a rounding, and so is their sum; which draws pass it is followed"),
    Bug("low-temperature", "radixark/miles#1554", ("cancellation",), "aten.div.Tensor", lambda: ratios(False), lambda: ratios(True),
        expected_miss="one rounding of a logit, and a wide difference of what was computed from it: as in a healthy policy's ratio"),
    Bug("distant-logits", "huggingface/trl#7252", ("overflow", "nan"), "aten._log_softmax.default", lambda: entropy(False), lambda: entropy(True)),
    Bug("pixel-weights", "pytorch/pytorch#29429", ("overflow",), "aten.sum.default", lambda: weighted_loss(False), lambda: weighted_loss(True)),
    Bug("log-of-sigmoid", "deepspeedai/DeepSpeedExamples#501", ("underflow",), "aten.sigmoid.default", lambda: preference(False),
        lambda: preference(True)),
    Bug("right-word", "linkedin/Liger-Kernel#1329", ("amplified-rounding", "cancellation"), "aten._to_copy.default", lambda: confident(False),
        lambda: confident(True)),
    Bug("expected-logit", "erfanzar/EasyDeL#267", ("cancellation",), "aten.sub.Tensor", lambda: distilled(LOW), lambda: distilled(WIDE)),
    Bug("narrow-prior", "NVIDIA/apex#812", ("overflow",), "aten.pow.Tensor_Scalar", lambda: divergence(HALF), lambda: divergence(WIDE)),
    Bug("mask-costs", "huggingface/transformers#25938", ("overflow",), "aten.mm.default", lambda: costs(False), lambda: costs(True),
        module="MaskCost", measured=matched),
)  # fmt: skip
