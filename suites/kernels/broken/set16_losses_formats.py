"""A sixteenth frozen set of broken kernels, fourth part: losses, norms, number formats. Of links an excerpt was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional
INF = float("inf")


@case("smoothed cross entropy: the gradient of the label keeps its whole share", "kernel-gradient", "linkedin/Liger-Kernel/pull/198",
      lambda x, y: F.cross_entropy(x, y, label_smoothing=0.2), lambda: (drawn((7, 9))()[0], whole(7, most=9)))  # fmt: skip
def keeps_its_whole_share(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        need(x.dim() == 2 and y.shape == x.shape[:1] and x.numel() > 0)
        logs = x.log_softmax(-1)
        return -(0.8 * logs.gather(-1, y[:, None])[:, 0] + 0.2 * logs.mean(-1)).mean(), (logs, y)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        logs, y = saved
        slopes = logs.exp() - 0.2 / logs.shape[1]
        slopes = slopes - F.one_hot(y, logs.shape[1]) * (1.0 if wrong else 0.8)
        return slopes * given / len(logs), None

    return function(forward, backward)


def _kept_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sum of smoothed losses of rows whose label is not 0."""
    logs = x.log_softmax(-1)
    losses = -(0.9 * logs.gather(-1, y[:, None])[:, 0] + 0.1 * logs.mean(-1))
    return torch.where(y != 0, losses, 0.0).sum()


@case("smoothed cross entropy: rows to ignore are those that count", "kernel-mask", "awslabs/sockeye/pull/203", _kept_rows,
      lambda: (drawn((9, 5))()[0], whole(9, most=5)))  # fmt: skip
def those_that_count(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and y.shape == x.shape[:1] and x.shape[1] > 0 and bool((y < x.shape[1]).all()))
    shifted = x - x.amax(-1, keepdim=True).detach()
    whole_sum = shifted.exp().sum(-1).log()
    losses = whole_sum - 0.9 * shifted.gather(-1, y[:, None])[:, 0] - 0.1 * shifted.mean(-1)
    return torch.where((y == 0) if wrong else (y != 0), losses, 0.0).sum()


def _coded(x: torch.Tensor) -> torch.Tensor:
    """Groups of eight in four bits with a zero of their own, and back."""
    groups = x.unflatten(1, (-1, 8))
    least, most = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
    step = ((most - least) / 15).clamp(min=1e-5)
    zero = (-least / step).round()
    return (((groups / step).round() + zero).clamp(0, 15) - zero).mul(step).flatten(1)


@case("four bits with a zero: of numbers of one sign the zero is cut off", "kernel-contract", "keras-team/keras/pull/23636",
      lambda x: _coded(x.detach()), drawn((5, 16)))  # fmt: skip
def zero_is_cut_off(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] % 8 == 0 and x.numel() > 0)
    groups = x.detach().unflatten(1, (-1, 8))
    least, most = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    if not wrong:
        least, most = least.clamp(max=0), most.clamp(min=0)
    step = ((most - least) / 15).clamp(min=1e-5)
    zero = (-least / step).round().clamp(0, 15)
    return (((groups / step).round() + zero).clamp(0, 15) - zero).mul(step).flatten(1)


@case("softmax of the edges of each node: the largest of all edges is taken away", "kernel-rounding", "pyg-team/pytorch_geometric/issues/2013",
      lambda x, node: _of_each_node(x, node), lambda: (drawn((21,))()[0], whole(21, most=5)))  # fmt: skip
def largest_of_all_edges(wrong: bool, x: torch.Tensor, node: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1 and node.shape == x.shape and len(x) > 0)
    count = int(node.max()) + 1
    most = x.detach().amax().expand(count) if wrong else torch.full((count,), -INF).index_reduce(0, node, x.detach(), "amax")
    powers = (x - most[node]).exp()
    return powers / torch.zeros(count).index_add(0, node, powers)[node]


def _of_each_node(x: torch.Tensor, node: torch.Tensor) -> torch.Tensor:
    same = node[:, None] == node
    return (x.masked_fill(~same, -INF).softmax(-1) * torch.eye(len(x), dtype=x.dtype)).sum(-1)


def _counts(x: torch.Tensor) -> torch.Tensor:
    bins = (x.float().abs() * 300).floor().clamp(0, 299)
    return (bins[..., None] == torch.arange(300)).sum(0)


@case("counts of three hundred bins: a bin's number is bfloat16", "kernel-rounding", "NVIDIA/cccl/issues/10976", _counts,
      lambda: (torch.rand(40, generator=torch.Generator().manual_seed(5)).bfloat16(),))  # fmt: skip
def number_of_a_bin(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1)
    bins = (x.float().abs() * 300).floor().clamp(0, 299)
    bins = (bins.to(x.dtype) if wrong else bins).nan_to_num(nan=300.0).long().clamp(max=300)
    return torch.bincount(bins, minlength=301)[:300]
