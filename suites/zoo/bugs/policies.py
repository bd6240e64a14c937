"""Log-probabilities of one policy taken twice, once rounded: their ratio, which is 1, is off before any step is made."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal

ACTIONS = torch.arange(48)[:, None] * 211 % 9973
RATIO = 0.01
"""An importance ratio is clipped at 0.2, or at 3e-4 for sequences; 1 % by rounding alone is harm."""


def log_probability(logits: torch.Tensor) -> torch.Tensor:
    return functional.log_softmax(logits, -1).gather(1, ACTIONS)  # culprit: trainer-ratio, beyond-autocast


def ratio(wide: bool) -> torch.Tensor:
    """The sampler works in float32, the trainer on the same bfloat16 logits without widening them."""
    logits = (3 * normal(48, 10_000)).to(torch.bfloat16)
    old = log_probability(logits.float())
    new = log_probability(logits.float() if wide else logits)  # culprit: trainer-ratio
    return torch.exp(new - old)  # culprit: trainer-ratio


def outside(wide: bool) -> torch.Tensor:
    """Under CUDA's autocast log_softmax is widened, and beyond the block's end it is not. `.float()` stands for that here."""
    head = nn.Linear(48, 10_000)
    with torch.no_grad():
        head.weight.copy_(normal(10_000, 48) / 3)
        head.bias.zero_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = head(normal(48, 48, seed=1))
        old = log_probability(logits.float()).detach()
    new = log_probability(logits.float() if wide else logits)  # culprit: beyond-autocast
    return torch.exp(new - old).detach()  # culprit: beyond-autocast


MECHANISM = "compute dtype"
BUGS = (
    Bug("trainer-ratio", "OpenRLHF/OpenRLHF#634", ("cancellation", "amplified-rounding"), "aten._log_softmax.default", lambda: ratio(False),
        lambda: ratio(True), harm=RATIO),
    Bug("beyond-autocast", "jingyaogong/minimind#812", ("cancellation", "amplified-rounding"), "aten._log_softmax.default", lambda: outside(False),
        lambda: outside(True), harm=RATIO),
)  # fmt: skip
