"""Kernels that count, add up or guard in the format of their inputs, torch's own on a CPU among them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

DERIVED = "so many terms may err by 46 unit roundoffs where a kernel adds up low, and this one errs by 37"


def group_means(dtype: torch.dtype) -> torch.Tensor:
    """Means of 2048 values each: the kernel counts them in bfloat16, where 256 + 1 is 256."""
    groups = torch.arange(8192) % 4
    values = torch.round(64 * uniform(8192)) / 64  # bfloat16 holds them exactly
    start = torch.zeros(4).to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "in beta"
        return start.index_reduce(0, groups, values.to(dtype), "mean", include_self=False)  # culprit: counted-mean


def node_sums(dtype: torch.dtype) -> torch.Tensor:
    """One number an edge, added to its node: a hub has 2048 of them."""
    hubs = torch.arange(4096) % 2
    edges = torch.round(64 * uniform(4096)) / 64
    return torch.zeros(2).to(dtype).index_add(0, hubs, edges.to(dtype))  # culprit: hub-node


def ragged_sums(dtype: torch.dtype) -> torch.Tensor:
    """Sums over segments of a flat batch: beyond 128 a term of a half is less than half a spacing."""
    values = torch.round(64 * uniform(6000)) / 64
    return torch.segment_reduce(values.to(dtype), "sum", lengths=torch.tensor([2000, 4000]))  # culprit: ragged-batch


def gradient(of: Callable[[torch.Tensor], torch.Tensor], weight: torch.Tensor) -> torch.Tensor:
    weight = weight.clone().requires_grad_()
    of(weight).backward()
    assert weight.grad is not None
    return weight.grad.float()


def frequent_words(dtype: torch.dtype) -> torch.Tensor:
    """A vocabulary of eight and 100 times as many tokens: the rows of the table's gradient stop growing."""
    tokens = torch.arange(8192) % 8
    return gradient(lambda table: (0.01 * functional.embedding(tokens, table)).float().sum(), normal(8, 4).to(dtype))  # culprit: frequent-words


def norm_weight(dtype: torch.dtype) -> torch.Tensor:
    """A layer norm's weight collects its gradient over 8192 tokens, in bfloat16."""
    x, upstream = normal(8192, 8).to(dtype), (1 + 0.1 * normal(8192, 8, seed=1)).to(dtype)
    return gradient(lambda weight: (functional.layer_norm(x, (8,), weight) * upstream).float().sum(), torch.ones(8).to(dtype))  # culprit: norm-weight


class Gate(nn.Module):
    """Probabilities for the loss that takes probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.5]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x * self.scale)


def saturated(wide: bool) -> torch.Tensor:
    """Right answers given with certainty: p (1 - p) is 0, its bound 1e-12 is 0 in half, and so is what is divided by it."""
    gate = Gate().half()
    x = torch.tensor([-2.0, 0.5, 1.0, 9.0]).half()
    p = gate(x)
    p = p.float() if wide else p
    functional.binary_cross_entropy(p, (x > 0).to(p.dtype)).backward()  # culprit: certain-answers
    return gate.scale.grad.float()


def mask_probabilities(wide: bool) -> torch.Tensor:
    """Masks of a segmentation, half of them settled; each pixel has a weight."""
    logits = torch.linspace(-4.0, 20.0, 64).half().requires_grad_()
    p = logits.sigmoid()
    p = p.float() if wide else p
    weight = torch.linspace(0.5, 1.5, 64).to(p.dtype)
    functional.binary_cross_entropy(p, torch.ones_like(p), weight, reduction="sum").backward()  # culprit: settled-masks
    return logits.grad


LOW, WIDE = torch.bfloat16, torch.float32
BUGS = (
    Bug("counted-mean", "pytorch/pytorch#139242", ("local-drift",), "aten.index_reduce.default", lambda: group_means(LOW),
        lambda: group_means(WIDE), kernel=True),
    Bug("hub-node", "intel/torch-xpu-ops#3530", ("local-drift",), "aten.index_add.default", lambda: node_sums(LOW), lambda: node_sums(WIDE),
        kernel=True, note="on this CPU only the kernel for one dimension adds in bfloat16"),
    Bug("ragged-batch", "", ("local-drift",), "aten.segment_reduce.default", lambda: ragged_sums(LOW), lambda: ragged_sums(WIDE), kernel=True),
    Bug("frequent-words", "apache/mxnet#17703", ("local-drift",), "aten.embedding_dense_backward.default", lambda: frequent_words(LOW),
        lambda: frequent_words(WIDE), phase="backward", kernel=True),
    Bug("norm-weight", "karpathy/llm.c#476", ("local-drift",), "aten.native_layer_norm_backward.default", lambda: norm_weight(LOW),
        lambda: norm_weight(WIDE), phase="backward", kernel=True, expected_miss=DERIVED),
    Bug("certain-answers", "Oneflow-Inc/oneflow#7476", ("nan",), "aten.binary_cross_entropy_backward.default", lambda: saturated(False),
        lambda: saturated(True), phase="backward", kernel=True),
    Bug("settled-masks", "PaddlePaddle/Paddle#50930", ("nan",), "aten.binary_cross_entropy_backward.default",
        lambda: mask_probabilities(False), lambda: mask_probabilities(True), phase="backward", kernel=True),
)  # fmt: skip
