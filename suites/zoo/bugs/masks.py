"""Masks whose infinity is float16's, and products that meet one."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal


def padded(fill_last: bool) -> torch.Tensor:
    """Left padding: the first query may look at nothing. The lowest number plus a negative score is -Inf, and the row NaN."""
    scores = torch.full((2, 4), -18.0).half()
    hidden = torch.tensor([[True] * 4, [False, False, True, True]])
    lowest = torch.finfo(torch.float16).min
    if fill_last:
        return torch.softmax(scores.masked_fill(hidden, lowest), -1)
    bias = torch.zeros(2, 4).half().masked_fill(hidden, lowest)
    return torch.softmax(scores + bias, -1)  # culprit: lowest-plus-score


class Masked(nn.Module):
    """A mask of zeros and ones times a constant that float16 does not hold: 0 x -Inf wherever nothing is masked."""

    def __init__(self, constant: float) -> None:
        super().__init__()
        self.register_buffer("constant", torch.tensor(constant))

    def forward(self, scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        return torch.softmax(scores + (1 - keep) * self.constant, -1)


def scores_and_keep() -> tuple[torch.Tensor, torch.Tensor]:
    return normal(2, 4), torch.tensor([[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]])


def masked(constant: float) -> torch.Tensor:
    model = Masked(constant).half()  # culprit: constant-buffer
    return model(*(each.half() for each in scores_and_keep()))


def eager_attention(fill: float) -> torch.Tensor:
    """A fill chosen for bfloat16, in a model that someone runs in float16."""
    scores, seen = normal(4, 4).half(), torch.ones(4, 4, dtype=torch.bool).tril()
    seen[0] = False
    return torch.softmax(torch.where(seen, scores, fill), -1)  # culprit: fill-beyond-half


def tempered(large: float) -> torch.Tensor:
    """Scores less a large number where padded, times log(length): a sentence of one token multiplies -Inf by 0."""
    scores = normal(2, 3, 4).half()
    keep = torch.tensor([[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]]).half()
    scores = scores - (1 - keep[:, None]) * large  # culprit: length-times-infinity
    return torch.softmax(scores * keep.sum(-1)[:, None, None].log() / 6, -1)


def near_infinity(fill: float) -> torch.Tensor:
    """Filled in place, where torch looks whether the number fits: it raises, and says neither which number nor where."""
    weights = torch.bmm(normal(2, 5, 8).half(), normal(2, 8, 1, seed=1).half())[..., 0]
    weights.masked_fill_(torch.arange(5) > 2, fill)  # culprit: refused-fill
    return torch.softmax(weights, -1)


def clipped_by_the_rest(filled: bool) -> list[torch.Tensor]:
    """The norm of one group of gradients overflowed on another rank; it is to be left out, and the others are clipped by theirs."""
    gradients = [normal(8).half(), normal(8, seed=1).half()]
    norms = torch.stack([*(each.float().norm() for each in gradients), torch.tensor(float("inf"))])
    usable = norms.isfinite()
    norm = (norms.masked_fill(~usable, 0.0) if filled else norms * usable).sum()  # culprit: multiplied-away
    return [each / (norm + 1e-6).clamp(min=1.0) for each in gradients]


BUGS = (
    Bug("multiplied-away", "deepspeedai/DeepSpeed#7171", ("nan",), "aten.mul.Tensor", lambda: clipped_by_the_rest(False),
        lambda: clipped_by_the_rest(True)),
    Bug("lowest-plus-score", "huggingface/transformers#17306", ("overflow",), "aten.add.Tensor", lambda: padded(False), lambda: padded(True)),
    Bug("constant-buffer", "NVIDIA/apex#93", ("overflow", "nan"), "aten._to_copy.default", lambda: masked(-1e9), lambda: masked(-1e4),
        measured=lambda fixed: {"model": Masked(-1e4 if fixed else -1e9), "inputs": scores_and_keep(), "precision": "16-true"}),
    Bug("fill-beyond-half", "huggingface/lerobot#710", ("overflow",), "aten.scalar_tensor.default", lambda: eager_attention(-2.4e38),
        lambda: eager_attention(-1e4)),
    Bug("length-times-infinity", "JunnYu/GAU-alpha-pytorch#1", ("overflow", "nan"), "aten.mul.Tensor", lambda: tempered(1e12), lambda: tempered(1e4)),
    Bug("refused-fill", "facebookresearch/ParlAI#2536", ("overflow",), "aten.masked_fill_.Scalar", lambda: near_infinity(-1e20),
        lambda: near_infinity(-6e4), raises=RuntimeError),
)  # fmt: skip
