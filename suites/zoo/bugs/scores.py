"""Scores of tokens and experts: distributions that are computed twice, routers, and losses."""

from __future__ import annotations

import torch
from torch.nn import functional

from bugs.bug import Bug, normal

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def emitted(widened: bool, temperature: float = 0.7) -> torch.Tensor:
    """What speculative decoding emits on average. The draft draws from one distribution, and its tokens are accepted by another."""
    logits, target = (22 + normal(6, 48)).to(LOW), (22 + normal(6, 48) + 0.3 * normal(6, 48, seed=1)).to(LOW)
    if widened:
        logits = logits.float()
    drawn = torch.softmax(logits / temperature, -1).float()  # culprit: draft-distribution
    draft, wanted = (torch.softmax(each.float() / temperature, -1) for each in (logits, target))
    accepted = drawn * (wanted / draft).clamp(max=1)
    residual = (wanted - draft).clamp(min=0)
    return accepted + (1 - accepted.sum(-1, keepdim=True)) * residual / residual.sum(-1, keepdim=True)


def rollout_log_probs(widened: bool) -> torch.Tensor:
    """Log-probabilities of tokens that are nearly certain: a logit less the logarithm of the sum, both about thirty."""
    hidden, head = normal(24, 64).to(LOW), (0.5 * normal(200, 64, seed=1)).to(LOW)
    tokens = (hidden.float() @ head.float().T).argmax(-1, keepdim=True)
    if widened:
        hidden, head = hidden.float(), head.float()
    logits = 2 * hidden @ head.T  # culprit: positive-log-probs
    total = torch.logsumexp(logits, -1)  # culprit: positive-log-probs
    return (logits.gather(-1, tokens).squeeze(-1) - total).float()  # culprit: positive-log-probs


def routed(widened: bool) -> torch.Tensor:
    """The best eight of 128 experts by their scores and a correction, where the scores are stored in bfloat16 first."""
    tokens, gate = normal(256, 64).to(LOW), (0.1 * normal(128, 64, seed=1)).to(LOW)
    correction, experts = 1e-3 * normal(128, seed=2), normal(128, 16, seed=3)
    if widened:
        tokens, gate = tokens.float(), gate.float()
    logits = functional.linear(tokens, gate)  # culprit: rounded-router
    scores = torch.sigmoid(logits.float())
    chosen = (scores + correction).topk(8, -1).indices  # culprit: rounded-router
    shares = scores.gather(-1, chosen)
    return torch.einsum("tk,tkd->td", shares / shares.sum(-1, keepdim=True), experts[chosen])


def balanced(widened: bool) -> torch.Tensor:
    """Experts that are chosen though they are unlikely, since the likely one is overloaded: their shares are tiny, and are normalised later."""
    flat, gate = normal(40, 32).to(HALF), (0.2 * normal(12, 32, seed=1)).to(HALF)
    bias = torch.zeros(12)
    logits = functional.linear(flat, gate).float()
    logits[:, 0] += 14.0
    bias[0] = -40.0
    chosen = (logits + bias).topk(3, -1).indices
    scores = torch.softmax(logits, -1)
    if not widened:
        scores = scores.to(flat.dtype)  # culprit: router-shares
    shares = scores.gather(-1, chosen)
    shares = shares / shares.sum(-1, keepdim=True).clamp_min(1e-9)  # culprit: router-shares
    return torch.einsum("tk,tkd->td", shares.float(), normal(12, 8, seed=2)[chosen])


def perplexity(widened: bool) -> torch.Tensor:
    """The loss of each of eight batches by a model whose weights are bfloat16 without autocast: its loss is as well."""
    hidden, head = normal(8, 30, 32).to(LOW), (0.6 * normal(400, 32, seed=1)).to(LOW)
    labels = (torch.arange(240).view(8, 30) * 17) % 400
    losses = []
    for states, words in zip(hidden, labels, strict=True):
        logits = states @ head.T
        loss = functional.cross_entropy(logits.float() if widened else logits, words)  # culprit: language-loss
        losses.append(loss.float())
    return torch.exp(torch.stack(losses))


BUGS = (
    Bug("draft-distribution", "deepseek-ai/DeepSpec#31", ("amplified-rounding", "cancellation"), "aten.div.Tensor", lambda: emitted(False),
        lambda: emitted(True)),
    Bug("positive-log-probs", "AI-Hypercomputer/maxtext#5231", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: rollout_log_probs(False), lambda: rollout_log_probs(True)),
    Bug("rounded-router", "wtdcode/vllm-backport#65", ("decision-flip",), "aten.topk.default", lambda: routed(False), lambda: routed(True),
        expected_miss="each score is right to a rounding; a correction in float32 decides between those that the format has made equal"),
    Bug("router-shares", "kyegomez/OpenMythos#41", ("underflow", "vanished-constant", "nan", "overflow"), "aten._to_copy.default",
        lambda: balanced(False), lambda: balanced(True)),
    Bug("language-loss", "Modalities/modalities#464", ("amplified-rounding", "cancellation", "local-drift"), "aten.nll_loss_forward.default",
        lambda: perplexity(False), lambda: perplexity(True)),
)  # fmt: skip
