"""Decoding of tokens: what a target has left when a draft is refused, and the nucleus of a distribution."""

from __future__ import annotations

import torch

from bugs.bug import Bug, normal, wider

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def left_over(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """The distribution that a token is drawn from when the draft's was refused: where the target's is above the draft's."""
    left = (target - draft).clamp_min(0)  # culprit: left-of-a-refused-draft
    total = left.sum(-1, keepdim=True)
    return torch.where(total > 0, left / total, target)


def refused(dtype: torch.dtype, widened: bool, apart: float = 0.03) -> torch.Tensor:
    """What is left of twelve targets whose drafts are within a few per cent, as those of a distilled model are. Off by 6 %."""
    target = (1.5 * normal(12, 80)).to(LOW)
    draft = (target.float() + apart * normal(12, 80, seed=1)).to(LOW)
    target, draft = target.to(dtype), draft.to(dtype)
    if widened:
        target, draft = wider(target), wider(draft)
    return wider(left_over(torch.softmax(target, -1), torch.softmax(draft, -1)))


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
    Bug("left-of-a-refused-draft", "duoan/TorchCode#16", ("cancellation", "amplified-rounding"), "aten.sub.Tensor", lambda: refused(LOW, False),
        lambda: refused(LOW, True)),
    Bug("nucleus-of-a-flat-distribution", "guoqingbao/attention.rs#9", ("absorption",), "aten.add_.Tensor", lambda: sampled(LOW, LOW),
        lambda: sampled(LOW, WIDE)),
)  # fmt: skip
