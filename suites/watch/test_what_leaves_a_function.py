"""Errors that a function makes itself, by how its result leaves it: widened at the end, copied into a low buffer, read by its own backward pass."""

from __future__ import annotations

from typing import Any

import torch

import precheck
from precheck.findings import Report


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def losses(scores: torch.Tensor, *, wide: bool) -> torch.Tensor:
    """Cross entropy of classes that are certain to 1 %."""
    scores = scores.float() if wide else scores
    rows = torch.arange(len(scores))
    return (torch.logsumexp(scores, -1) - scores[rows, rows]).float()


def certain(*, wide: bool) -> Report:
    scores = seeded(32, 64)
    scores[torch.arange(32), torch.arange(32)] += 9
    given = scores.bfloat16()
    with precheck.watch() as report:
        result = losses(given, wide=wide)
    assert result.shape == (32,)
    return report


def test_a_result_that_is_widened_where_it_is_given_out_is_judged() -> None:
    (finding,) = certain(wide=False).errors
    assert finding.rule == "cancellation"
    assert not certain(wide=True).errors


class Shares(torch.autograd.Function):
    """A loss whose gradient is left in a buffer: the logits' own, or one that is wide."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, in_place: bool) -> torch.Tensor:
        rows, wide = torch.arange(len(logits)), torch.log_softmax(logits.float(), -1)
        buffer = logits if in_place else torch.empty_like(wide)
        buffer.copy_(wide.exp())
        buffer[rows, rows] -= 1.0
        ctx.save_for_backward(buffer)
        ctx.dtype = logits.dtype
        return -wide[rows, rows].mean()

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> Any:
        return (ctx.saved_tensors[0] * given).to(ctx.dtype), None


def trained(*, in_place: bool) -> Report:
    hidden, words = (0.5 * seeded(24, 32)).bfloat16().requires_grad_(), seeded(24, 32).bfloat16()
    with precheck.watch() as report:
        Shares.apply(hidden @ words.T, in_place).backward()
    return report


def test_a_share_that_is_copied_into_a_low_buffer_before_one_is_taken_off_is_named() -> None:
    (finding,) = trained(in_place=True).errors
    assert finding.op in ("aten.copy_.default", "aten.sub_.Tensor")
    assert not trained(in_place=False).errors


def weight(noise: torch.Tensor, low: torch.dtype) -> torch.Tensor:
    """How much a guess counts at a noise: the odds not to be hidden."""
    return noise.exp() / (noise.exp().to(low) - 1).float().clamp_min(1e-3)


class Bound(torch.nn.Module):
    """The loss of what is hidden. Of the row with the least noise nothing is."""

    def __init__(self, low: torch.dtype) -> None:
        super().__init__()
        self.low, self.scale = low, torch.nn.Parameter(torch.ones(()))

    def forward(self, noise: torch.Tensor, losses: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return (losses * weight(noise * self.scale, self.low)[:, None] * hidden).sum() / losses.numel()


def bounded(low: torch.dtype) -> Report:
    noise = torch.tensor([0.006, 0.9, 1.3, 1.7, 2.2, 2.9, 3.6, 4.7])
    hidden = torch.ones(8, 48)
    hidden[0] = 0
    with precheck.watch() as report:
        result = Bound(low)(noise, seeded(8, 48).abs(), hidden)
    assert result.isfinite()
    return report


def test_what_a_function_returns_is_judged_there_though_a_mask_hides_it_in_this_run() -> None:
    (finding,) = bounded(torch.bfloat16).errors
    assert (finding.rule, "weight() is off by" in finding.message) == ("amplified-rounding", True)
    assert not bounded(torch.float32).errors
