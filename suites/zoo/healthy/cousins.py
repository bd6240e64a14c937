"""Scores, distances and areas that look like the bugs of scores and distances."""

from __future__ import annotations

import torch
from bugs.bug import normal, uniform
from torch.nn import functional

HALF, LOW = torch.float16, torch.bfloat16


def drafted_and_accepted() -> torch.Tensor:
    """A draft's logits are bfloat16; both the draws and their acceptance use one distribution of them, widened before it is tempered."""
    logits, target = (22 + normal(6, 48)).to(LOW), (22 + normal(6, 48) + 0.3 * normal(6, 48, seed=1)).to(LOW)
    drawn, wanted = (torch.softmax(each.float() / 0.7, -1) for each in (logits, target))
    residual = (wanted - drawn).clamp(min=0)
    accepted = drawn * (wanted / drawn).clamp(max=1)
    return accepted + (1 - accepted.sum(-1, keepdim=True)) * residual / residual.sum(-1, keepdim=True)


def log_probs_of_a_young_model() -> torch.Tensor:
    """Log-probabilities from bfloat16 logits about zero, by float32's log-softmax: a logit is a rounding off, and so is its logarithm."""
    hidden, head = normal(24, 64).to(LOW), (0.02 * normal(200, 64, seed=1)).to(LOW)
    logits = (hidden @ head.T).float()
    return torch.log_softmax(logits, -1).gather(-1, (torch.arange(24) * 7 % 200)[:, None]).squeeze(-1)


def router_in_float32() -> torch.Tensor:
    """Tokens and gate in bfloat16, widened for the scores; only the shares of the chosen experts are bfloat16 again."""
    tokens, gate = normal(256, 64).to(LOW), (0.1 * normal(128, 64, seed=1)).to(LOW)
    shares, chosen = torch.softmax(functional.linear(tokens.float(), gate.float()), -1).topk(8, -1)
    shares = (shares / shares.sum(-1, keepdim=True)).to(LOW)
    return torch.einsum("tk,tkd->td", shares, normal(128, 16, seed=3).to(LOW)[chosen]).float()


def shares_of_unlikely_experts() -> torch.Tensor:
    """Tiny scores of chosen experts, normalised in float32 before they are half: what is left out was not chosen."""
    flat, gate = normal(40, 32).to(HALF), (0.2 * normal(12, 32, seed=1)).to(HALF)
    logits = functional.linear(flat, gate).float()
    logits[:, 0] += 14.0
    shares = torch.softmax(logits, -1)[:, 1:].topk(3, -1)
    kept = (shares.values / shares.values.sum(-1, keepdim=True).clamp_min(1e-9)).to(HALF)
    return torch.einsum("tk,tkd->td", kept, normal(11, 8, seed=2).to(HALF)[shares.indices]).float()


def loss_of_a_classifier() -> torch.Tensor:
    """A loss of two thirds from bfloat16 logits, and its gradient: both are a rounding off."""
    states, head = normal(64, 32).to(LOW), (0.1 * normal(2, 32, seed=1)).to(LOW).requires_grad_()
    loss = functional.cross_entropy((states @ head.T).float(), torch.arange(64) % 2)
    loss.backward()
    return head.grad.float()


def distances_of_unit_vectors() -> torch.Tensor:
    """Squared distances of normalised embeddings in half that point anywhere, as two less twice the product."""
    query, base = (functional.normalize(normal(n, 256, seed=n), dim=-1).to(HALF) for n in (4, 40))
    return (2 - 2 * (query @ base.T)).float().topk(5, largest=False).values


def squares_of_scaled_rows() -> torch.Tensor:
    """A root mean square in half of rows about forty, each divided by its largest number first."""
    rows = (40 * normal(6, 1024)).to(HALF)
    largest = rows.abs().amax(-1, keepdim=True)
    scaled = rows / largest
    mean = (scaled * scaled).mean(-1, keepdim=True, dtype=torch.float32)
    return scaled.float() * torch.rsqrt(mean + 1e-6)


def overlap_of_relative_boxes() -> torch.Tensor:
    """The generalised overlap of boxes in half whose corners are shares of the picture, as detectors with queries have them."""
    corners = 0.5 * uniform(10, 2)
    truth = torch.cat([corners, corners + 0.2 + 0.3 * uniform(10, 2, seed=1)], -1).to(HALF)
    boxes = (truth.float() + 0.05 * normal(10, 4, seed=2)).to(HALF)
    shared = (torch.minimum(boxes[:, 2:], truth[:, 2:]) - torch.maximum(boxes[:, :2], truth[:, :2])).clamp(min=0).prod(-1)
    around = (torch.maximum(boxes[:, 2:], truth[:, 2:]) - torch.minimum(boxes[:, :2], truth[:, :2])).prod(-1)
    union = (boxes[:, 2:] - boxes[:, :2]).prod(-1) + (truth[:, 2:] - truth[:, :2]).prod(-1) - shared
    return (shared / union - (around - union) / around).float()


def shares_of_the_picture() -> torch.Tensor:
    """Seven numbers of a region in half: corners, sizes and area, divided by the picture's width and height before they are half."""
    corners, sizes = 200 * uniform(12, 2) / 640, (100 + 350 * uniform(12, 2, seed=1)) / 640
    features = torch.cat([corners, corners + sizes, sizes, sizes.prod(-1, keepdim=True)], -1).to(HALF)
    return (features @ (0.4 * normal(7, 5, seed=2)).to(HALF)).float()


def warped_by_a_wide_grid(width: int = 2560) -> torch.Tensor:
    """A frame moved by its flow, which is half; the coordinates it is added to are float32."""
    frame = torch.sin(torch.arange(width) * 1.3).expand(1, 1, 4, width) + 0.2 * normal(1, 1, 4, width)
    flow = 3 * torch.tanh(normal(1, 2, 4, width, seed=1)).to(HALF)
    across, down = torch.linspace(-1.0, 1.0, width), torch.linspace(-1.0, 1.0, 4)
    grid = torch.stack([across.expand(4, width), down[:, None].expand(4, width)])[None]
    moved = torch.stack([flow[:, 0].float() / ((width - 1) / 2), flow[:, 1].float() / 1.5], 1)
    return functional.grid_sample(frame, (grid + moved).permute(0, 2, 3, 1), padding_mode="border", align_corners=True)


IDIOMS = (drafted_and_accepted, log_probs_of_a_young_model, router_in_float32, shares_of_unlikely_experts, loss_of_a_classifier,
          distances_of_unit_vectors, squares_of_scaled_rows, overlap_of_relative_boxes, shares_of_the_picture, warped_by_a_wide_grid)  # fmt: skip
