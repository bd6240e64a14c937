"""Masks, positions and streams of attention, as they are done well."""

from __future__ import annotations

import math

import torch
from bugs.bug import normal
from torch.nn import functional

LOW = torch.bfloat16


def causal_mask() -> torch.Tensor:
    """-Inf above the diagonal, added: each row has a key left, and exp(-Inf) is the zero that is meant."""
    mask = torch.full((12, 12), float("-inf")).triu(1).to(LOW)
    return torch.softmax(normal(12, 12).to(LOW) + mask, -1)


def large_negative_mask() -> torch.Tensor:
    """-10000, which float16 holds as -10000: a lone whole number beyond 2048."""
    keep = torch.tensor([[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]]).half()
    return torch.softmax(normal(2, 4).half() + (1 - keep) * -10000.0, -1)


def rows_without_keys() -> torch.Tensor:
    """Rows that are masked whole are opened before the softmax, and zeroed after it."""
    seen = torch.ones(6, 6, dtype=torch.bool).tril()
    seen[:2] = False
    some = seen.any(-1, keepdim=True)
    scores = normal(6, 6).half().masked_fill(~(seen | ~some), float("-inf"))
    return torch.where(some, torch.softmax(scores, -1), torch.zeros((), dtype=scores.dtype))


def padded_queries() -> torch.Tensor:
    """A padded query attends to nothing; half adds -10000 to its scores and they are gone, where float32 would keep them. Nobody reads it."""
    scores, seen = 5 * normal(4, 8, 8), torch.ones(4, 8, 8)
    seen[2:, 6:], seen[:, :, 7] = 0, 0
    out = torch.softmax(scores.half() - 10_000 * (1 - seen.half()), -1) @ normal(4, 8, 16, seed=1).half()
    return out[:2]


def gradient_differences() -> torch.Tensor:
    """The part of one gradient that is orthogonal to another nearly like it: a small difference, of what autocast computed in bfloat16."""
    layer = torch.nn.Linear(16, 16, bias=False)
    with torch.no_grad():
        layer.weight.copy_(normal(16, 16))
    found = []
    for seed in (1, 2):
        with torch.autocast("cpu", dtype=LOW):
            loss = (layer(normal(64, 16, seed=1) + 0.01 * normal(64, 16, seed=seed)) ** 2).mean()
        found.append(torch.autograd.grad(loss.float(), [layer.weight])[0])
    return found[0] - (found[0] * found[1]).sum() / found[1].square().sum() * found[1]


def streaming_softmax() -> torch.Tensor:
    """The running maximum starts at -Inf, the running sum at zero; both are float32."""
    q, k, v = (normal(16, 8, seed=seed).to(LOW) for seed in range(3))
    top, total, out = torch.full((16, 1), float("-inf")), torch.zeros(16, 1), torch.zeros(16, 8)
    for start in range(0, 16, 4):
        scores = (q @ k[start : start + 4].T).float() / math.sqrt(8)
        peak = torch.maximum(top, scores.amax(-1, keepdim=True))
        shrink, p = torch.exp(top - peak), torch.exp(scores - peak)
        total, out, top = total * shrink + p.sum(-1, keepdim=True), out * shrink + (p.to(LOW) @ v[start : start + 4]).float(), peak
    return (out / total).to(LOW)


def rotary_in_float32() -> torch.Tensor:
    """Positions to 3000, far beyond bfloat16's whole numbers, and never in bfloat16."""
    angles = torch.outer(torch.arange(3000.0), 10_000.0 ** (-torch.arange(0, 16, 2) / 16))
    a, b = normal(3000, 16).to(LOW).chunk(2, -1)
    cosine, sine = angles.cos().to(LOW), angles.sin().to(LOW)
    return torch.cat([a * cosine - b * sine, a * sine + b * cosine], -1)


def distance_bias() -> torch.Tensor:
    """ALiBi: distances to 320 in bfloat16, rounded only where their weight is nothing."""
    gaps = torch.arange(320)[None] - torch.arange(320)[:, None]
    bias = (0.5 * gaps.clamp(max=0)).to(LOW)
    scores = (0.2 * normal(320, 320)).to(LOW) + bias
    return torch.softmax(scores.masked_fill(gaps > 0, float("-inf")).float(), -1)


def position_buckets() -> torch.Tensor:
    """Logarithmic buckets, truncated to integers in float32; only the table is low."""
    gaps = torch.arange(80)
    far = 8 + (torch.log(gaps.clamp_min(1) / 8) / math.log(16) * 8).long()
    return functional.embedding(torch.where(gaps < 8, gaps, far.clamp(max=15)), normal(16, 4).to(LOW))


def fused_attention() -> torch.Tensor:
    q, k, v = (normal(1, 2, 32, 16, seed=seed).half() for seed in range(3))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def beams() -> torch.Tensor:
    """Dead beams carry -Inf through additions and top-k."""
    beam = torch.tensor([0.0, float("-inf"), float("-inf")])
    for step in range(5):
        scores = functional.log_softmax(normal(3, 40, seed=step).to(LOW).float(), -1)
        beam = (beam[:, None] + scores).flatten().topk(3).values
    return beam


def nucleus() -> torch.Tensor:
    """Tokens beyond the nucleus are -Inf on purpose; the sum that decides is float32."""
    logits = (3 * normal(4, 200)).to(LOW).float()
    ordered, order = torch.softmax(logits, -1).sort(-1, descending=True)
    dropped = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, ordered.cumsum(-1) - ordered >= 0.9)
    return torch.softmax(logits.masked_fill(dropped, float("-inf")), -1)


def masks_handed_out() -> tuple[torch.Tensor, ...]:
    """-1e9 is -Inf in float16, which masks as well; nothing reads these here, in whatever dtype they are returned."""
    hidden = (1 - torch.ones(6, 6).tril()) * -1e9
    padded = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, -1e9])
    both = (hidden + padded).half()
    return both, hidden.half().float(), padded.half().clone(), (normal(6, 6).half() + both).float()


def logged_copies() -> torch.Tensor:
    """The scores are softened by a softmax that sees the mask; copies of them are kept for a plot and for the CPU."""
    scores = normal(6, 6).half() + ((1 - torch.ones(6, 6).tril()) * -1e9).half()
    log = [scores.float(), scores.cpu(), scores.clone(), scores.to(torch.bfloat16)]
    return torch.softmax(scores.float(), -1) + 0 * torch.softmax(log[0], -1)


def capped_energies() -> torch.Tensor:
    """Squares that overflow are capped at once, by a clamp that float32 would reach as well; a copy from before goes to a log."""
    energies = (400 * normal(8, 8)).half().square()
    return torch.stack([energies.clamp(max=1000.0) for _log in (energies.float(), energies.cpu())])


IDIOMS = (causal_mask, large_negative_mask, rows_without_keys, padded_queries, gradient_differences, streaming_softmax, rotary_in_float32,
          distance_bias, position_buckets, fused_attention, beams, nucleus, masks_handed_out, logged_copies, capped_energies)  # fmt: skip
