"""Decoding of tokens: what a target has left when a draft is refused, and the nucleus of a distribution."""

from __future__ import annotations

import torch

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def left_over(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """The distribution that a token is drawn from when the draft's was refused: where the target's is above the draft's."""
    left = (target - draft).clamp_min(0)  # culprit: left-of-a-refused-draft
    total = left.sum(-1, keepdim=True)
    return torch.where(total > 0, left / total, target)


def refused(dtype: torch.dtype, widened: bool) -> torch.Tensor:
    """What is left of twelve targets whose drafts are within one step of a thirty-second, which bfloat16 holds. Off by 10 %."""
    target = (48 * normal(12, 80)).round().clamp(-128, 128)
    draft = target + (2 * uniform(12, 80, seed=1) - 1).round()
    target, draft = (target / 32).to(LOW).to(dtype), (draft / 32).to(LOW).to(dtype)
    if widened:
        target, draft = wider(target), wider(draft)
    return wider(left_over(torch.softmax(target, -1), torch.softmax(draft, -1)))  # culprit: left-of-a-refused-draft


def nucleus(probabilities: torch.Tensor, share: float, counted: torch.dtype) -> torch.Tensor:
    """The likeliest tokens that hold `share` of the distribution together, as a distribution."""
    likeliest, order = probabilities.sort(descending=True)
    total, kept = torch.zeros((), dtype=counted), 0
    for each in likeliest:
        total += each  # culprit: nucleus-of-a-flat-distribution
        kept += 1
        if total >= share:
            break
    out = torch.zeros_like(probabilities, dtype=WIDE if counted != torch.float64 else counted)
    out[order[:kept]] = likeliest[:kept].to(out.dtype)
    return out / out.sum()


def sampled(dtype: torch.dtype, counted: torch.dtype, size: int = 900, spread: float = 0.2) -> torch.Tensor:
    """The nucleus of nine tenths among nine hundred like tokens; their sum stands still in bfloat16 at a half, and all are kept. Off by 32 %."""
    return nucleus(torch.softmax(wider((spread * normal(size)).to(LOW).to(dtype)), -1), 0.9, counted)


BUGS = (
    Bug("left-of-a-refused-draft", "duoan/TorchCode#16", ("amplified-rounding", "cancellation"), "aten._softmax.default", lambda: refused(LOW, False),
        lambda: refused(LOW, True)),
    Bug("nucleus-of-a-flat-distribution", "guoqingbao/attention.rs#9", ("absorption",), "aten.add_.Tensor", lambda: sampled(LOW, LOW),
        lambda: sampled(LOW, WIDE)),
)  # fmt: skip
