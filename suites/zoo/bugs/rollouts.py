"""Rewards, importance ratios and log-probabilities of policies, rerankers and particles."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bugs.bug import Bug, normal

LOW, WIDE = torch.bfloat16, torch.float32


def group_advantages(dtype: torch.dtype) -> torch.Tensor:
    """Rewards of four answers to a prompt, less their mean, over their deviation. The mean of 1, 1, 1 and 1.0078 is 1 in bfloat16."""
    head, hidden = (0.02 * normal(64)).to(LOW), normal(32, 1, 64) + 0.05 * normal(32, 4, 64, seed=1)
    rewards = (2 + (hidden.to(LOW) @ head).float()).to(LOW).to(dtype)  # culprit: group-baseline
    baseline = rewards.mean(-1, keepdim=True)  # culprit: group-baseline
    return (rewards - baseline) / (rewards.std(-1, keepdim=True) + 1e-9)  # culprit: group-baseline


def mean_ratio(dtype: torch.dtype, parts: int = 512) -> torch.Tensor:
    """The mean importance ratio of a step, for the log: 512 micro-batches of about one each, added up in bfloat16."""
    weight, total = (0.1 * normal(16, 50)).to(LOW), torch.zeros((), dtype=dtype)
    old = torch.log_softmax((normal(parts, 8, 16, seed=1).to(LOW) @ weight).float(), -1)
    new = torch.log_softmax(old + 0.05 * normal(parts, 8, 50, seed=2), -1)
    for part in range(parts):
        ratio = torch.exp(new[part, :, 3] - old[part, :, 3]).to(dtype)
        total += ratio.mean()  # culprit: ratio-sum
    return total / parts


def mismatch(dtype: torch.dtype) -> torch.Tensor:
    """How far trainer and engine are apart in log-probability; what the engine sends are Python's numbers, read into bfloat16."""
    logits = 2 * normal(64, 200)
    ours = torch.log_softmax(logits, -1)[:, 7]
    sent = (ours + 1e-3 * normal(64, seed=1)).tolist()
    theirs = torch.tensor(sent, dtype=dtype)  # culprit: rollout-logs
    return (ours - theirs).abs().mean()


class Reranker(nn.Module):
    """The logit of "yes" less that of "no", each rounded to bfloat16 where both are near 18."""

    def __init__(self, one_row: bool) -> None:
        super().__init__()
        self.one_row = one_row
        common = 0.3 * normal(64)
        self.head = nn.Parameter(common + 0.01 * normal(40, 64, seed=1))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.one_row:
            weight = self.head[3].float() - self.head[5].float()
            return hidden.float() @ weight
        logits = hidden @ self.head.T  # culprit: yes-less-no
        return (logits[:, 3] - logits[:, 5]).float()  # culprit: yes-less-no


def pairs(one_row: bool) -> dict[str, Any]:
    given = ((3 * normal(64).sign() * (0.3 * normal(64)).abs().clamp_min(0.1) + 0.5 * normal(16, 64, seed=2)),)
    return {"model": Reranker(one_row), "inputs": given, "precision": "bf16-true"}


def margins(one_row: bool) -> torch.Tensor:
    arguments = pairs(one_row)
    return arguments["model"].to(LOW)(arguments["inputs"][0].to(LOW))


def allowed_shares(dtype: torch.dtype) -> torch.Tensor:
    """The shares of twelve tokens that a grammar allows, none of them likely, by log-probabilities that bfloat16 rounds at 30."""
    logits = (1.5 * normal(16, 400)).to(LOW)
    logits[:, 0] = 30.0
    log_p = torch.log_softmax(logits.to(dtype), -1)  # culprit: tail-probabilities
    return torch.softmax(log_p[:, 100:112].double(), -1)


BUGS = (
    Bug("group-baseline", "OpenRLHF/OpenRLHF#1334", ("amplified-rounding", "cancellation"), "aten._to_copy.default",
        lambda: group_advantages(LOW), lambda: group_advantages(WIDE)),
    Bug("ratio-sum", "PrimeIntellect-ai/prime-rl#568", ("absorption",), "aten.add_.Tensor", lambda: mean_ratio(LOW), lambda: mean_ratio(WIDE)),
    Bug("rollout-logs", "THUDM/slime#245", ("amplified-rounding", "cancellation"), "aten._to_copy.default", lambda: mismatch(LOW),
        lambda: mismatch(WIDE)),
    Bug("yes-less-no", "RBLN-SW/vllm-rbln#846", ("cancellation", "amplified-rounding"), "aten.mm.default", lambda: margins(False),
        lambda: margins(True), module="Reranker", measured=pairs),
    Bug("tail-probabilities", "genlm/genlm-backend#66", ("amplified-rounding",), "aten._log_softmax.default", lambda: allowed_shares(LOW),
        lambda: allowed_shares(WIDE), expected_miss="right to a rounding; what exp makes of it, 17 times as much, sharp softmaxes do as well"),
)  # fmt: skip
