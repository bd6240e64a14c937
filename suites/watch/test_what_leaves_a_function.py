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
