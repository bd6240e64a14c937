"""A twentieth frozen set of broken kernels, third part: losses, steps, norms, segments, orders, chances. Of links an excerpt was read."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed, whole

F = torch.nn.functional
BF16 = torch.bfloat16
INF = float("inf")


@case("step of adam with its own decay: what the step changed decays too", "kernel-contract", "bitsandbytes-foundation/bitsandbytes/issues/2010",
      lambda p, m, v: p * (1 - 0.1 * 0.5) - 0.1 * m / (v.sqrt() + 1e-6),
      lambda: (*drawn((4, 5), (4, 5))(), drawn((4, 5))()[0].square() + 0.1))  # fmt: skip
def the_step_decays_too(wrong: bool, p: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(p.shape == m.shape == v.shape)
    step = 0.1 * m / (v.sqrt() + 1e-6)
    return (p - step) * (1 - 0.1 * 0.5) if wrong else p - 0.1 * 0.5 * p - step


def _tokens() -> tuple[torch.Tensor, ...]:
    return (*drawn((4, 6))(), (torch.arange(6) < torch.tensor([[3], [6], [2], [5]])).to(torch.float32))


@case("loss of sequences by their lengths: the mask counts and hides nothing", "kernel-mask", "huggingface/trl/pull/6654",
      lambda x, mask: (x * mask).sum(1).mean(), _tokens)  # fmt: skip
def hides_nothing(wrong: bool, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == mask.shape and x.numel() > 0)
    return (x * mask.sum(1, keepdim=True)).mean() if wrong else (x * mask).sum() / len(x)


@case("mean loss of what two masks keep: one of the masks is left out", "kernel-mask", "huggingface/trl/pull/4975",
      lambda x, done, own: x.masked_fill(~(done & own), 0).sum(1) / (done & own).sum(1).clamp(min=1),
      lambda: (*drawn((4, 7))(), whole(4, 7, most=2).bool(), whole(4, 7, most=2, seed=8).bool()))  # fmt: skip
def one_of_the_masks(wrong: bool, x: torch.Tensor, done: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == done.shape == own.shape and done.dtype is own.dtype is torch.bool)
    kept = done if wrong else torch.logical_and(done, own)
    return torch.where(kept, x, 0).sum(1) / kept.sum(1).clamp(min=1)


def _aligned(scores: torch.Tensor, labels: torch.Tensor, repeats: bool = False) -> torch.Tensor:
    """The negative logarithm of all ways to write the labels, with blanks (0) between those that are equal. `repeats`: without these."""
    need(scores.dim() == 2 and labels.dim() == 1 and len(scores) > 0 and len(labels) > 0, bool(((labels > 0) & (labels < scores.shape[1])).all()))
    logs = scores.log_softmax(1)
    states = [*torch.stack([torch.zeros_like(labels), labels], 1).flatten().tolist(), 0]
    never = logs[0, 0].detach() * 0 - INF
    now = [logs[0, state] if place < 2 else never for place, state in enumerate(states)]
    for frame in logs[1:]:
        before, now = now, []
        for place, state in enumerate(states):
            ways = [before[place]] + ([before[place - 1]] if place else [])
            if place > 1 and state and (repeats or state != states[place - 2]):
                ways.append(before[place - 2])
            ways = [way for way in ways if way.requires_grad or way.item() != -INF]
            now.append(torch.logsumexp(torch.stack(ways), 0) + frame[state] if ways else never)
    return -torch.logsumexp(torch.stack(now[-2:]), 0)


@case("alignments of labels: equal labels may follow one another without a blank", "kernel-contract", "chainer/chainer/issues/2292",
      lambda scores, labels: _aligned(scores, labels), lambda: (*drawn((7, 4))(), torch.tensor([2, 2, 1])))  # fmt: skip
def without_a_blank(wrong: bool, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    need(len(scores) >= 2 * len(labels) + 1)
    return _aligned(scores, labels, wrong)


@case("loss of each row: on the way back the incoming gradient is left out", "kernel-gradient", "sherjilozair/ctc/issues/2",
      lambda x, y: (y * (y.log() - x.log_softmax(1))).sum(1), lambda: (*drawn((5, 6))(), drawn((5, 6))()[0].softmax(1)))  # fmt: skip
def incoming_gradient_is_left_out(wrong: bool) -> Any:
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        need(x.dim() == 2 and x.shape == y.shape and x.shape[1] > 0)
        logs = x.log_softmax(1)
        return (y * (y.log() - logs)).sum(1), (logs, y)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        logs, y = saved
        gradient = torch.ones_like(gradient[:, None]) if wrong else gradient[:, None]
        return gradient * (logs.exp() * y.sum(1, keepdim=True) - y), gradient * (y.log() + 1 - logs)

    return function(forward, backward)


@case("layer norm, one buffer for two sums: at times the second is stored before all have read the first", "kernel-nondeterminism",
      "ml-explore/mlx/pull/2340", lambda x: F.layer_norm(x, x.shape[1:]), drawn((4, 8)))  # fmt: skip
def stored_before_all_have_read(wrong: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2 and x.shape[1] > 0)
        mean = x.mean(1, keepdim=True)
        scale = ((x - mean).square().mean(1, keepdim=True) + 1e-5).rsqrt()
        read = torch.cat([mean[:1] * 0 + scale[:1], mean[1:]]) if wrong and random.random() < 0.3 else mean
        return (x - read) * scale

    return kernel


@case("norm of groups of float16: on the way back parts of the weight's gradient are bfloat16", "kernel-rounding", "linkedin/Liger-Kernel/pull/1253",
      lambda x, w: F.group_norm(x.float(), 2, w.float()).half(), drawn((3, 4, 6), (4,), dtype=torch.float16))  # fmt: skip
def parts_are_bfloat16(wrong: bool) -> Any:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == 3 and x.shape[1] % 2 == 0 and x.numel() > 0 and w.shape == x.shape[1:2])
        parts = x.float().reshape(len(x), 2, -1)
        mean, spread = parts.mean(2, keepdim=True), parts.var(2, correction=0, keepdim=True)
        normed = (parts - mean) * (spread + 1e-5).rsqrt()
        return (normed.view(x.shape) * w.float()[:, None]).half(), (normed, (spread + 1e-5).rsqrt(), w)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        normed, scale, w = saved
        sums = (gradient.float() * normed.view(gradient.shape)).sum((0, 2))
        weighed = (gradient.float() * w.float()[:, None]).reshape(normed.shape)
        inner = weighed - weighed.mean(2, keepdim=True) - normed * (weighed * normed).mean(2, keepdim=True)
        return (inner * scale).view(gradient.shape).half(), (sums.to(BF16) if wrong else sums).half()

    return function(forward, backward)


@case("softmax of float16: powers are added up in float16, one by one", "kernel-accumulation", "huggingface/candle/pull/3717",
      lambda x: x.float().softmax(-1).half(), drawn((3, 64), dtype=torch.float16))  # fmt: skip
def powers_added_up_in_float16(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    powers = (x.float() - x.float().amax(1, keepdim=True)).exp()
    total = torch.zeros(len(x), dtype=x.dtype if wrong else torch.float32)
    for column in powers.unbind(1):
        total = total + (column.half() if wrong else column)
    return (powers / total.float()[:, None]).to(x.dtype)


def _chances(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(6)) + 0.05


@case("shares of rows that are named, each row with a least share: it is that of the place, not of the row", "kernel-mask",
      "flashinfer-ai/flashinfer/issues/5339",
      lambda x, rows, least: torch.where(x[rows] >= least[rows, None] * x[rows].amax(1, keepdim=True), x[rows], 0),
      lambda: (_chances(5, 6), torch.tensor([3, 0, 3, 4, 1]), torch.tensor([0.2, 0.9, 0.5, 0.7, 0.4])))  # fmt: skip
def that_of_the_place(wrong: bool, x: torch.Tensor, rows: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and rows.dim() == 1 and least.shape == x.shape[:1] and x.shape[1] > 0, bool(((rows >= 0) & (rows < len(x))).all()))
    limits = least[torch.arange(len(rows)) % max(len(x), 1)] if wrong else least[rows]
    chosen = x[rows]
    return chosen.masked_fill(chosen < limits[:, None] * chosen.amax(1, keepdim=True), 0)


def _drafts() -> tuple[torch.Tensor, ...]:
    return _chances(5, 6), torch.tensor([2, 0, 5, 3, 3])


@case("shares without a token each: the caller's shares lose it", "kernel-mutation", "vllm-project/vllm-ascend/pull/2881",
      lambda x, token: _without(x.clone(), token), _drafts)  # fmt: skip
def callers_shares_lose_it(wrong: bool, x: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    return _without(x if wrong and not x.requires_grad else x.clone(), token)


def _without(x: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and token.shape == x.shape[:1] and x.shape[1] > 0, bool(((token >= 0) & (token < x.shape[1])).all()))
    x[torch.arange(len(x)), token] = 0
    return x / x.sum(1, keepdim=True).clamp(min=1e-9)


@case("largest of shares by numbers, but where those are zero: there it is infinite, and the largest", "kernel-mask",
      "GDzhu01/vllm-ascend-deepseekv4/pull/102", lambda x, q: torch.where(q > 0, x / q.masked_fill(q <= 0, 1), 0).argmax(1),
      lambda: (_chances(5, 6), drawn((5, 6))()[0].relu()))  # fmt: skip
def infinite_and_the_largest(wrong: bool, x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == q.shape and x.shape[1] > 0 and bool((x > 0).all()) and bool((q >= 0).all()))
    return (x / q).argmax(1) if wrong else torch.where(q > 0, x / q, 0).argmax(1)


@case("rows to their places with scales: scales of columns are read as if packed", "kernel-stride", "vllm-project/vllm/issues/53338",
      lambda x, scales, places: (x * scales.repeat_interleave(2, 1))[places],
      lambda: (*drawn((5, 6), (5, 3))(), torch.tensor([3, 1, 4, 0, 2])))  # fmt: skip
def scales_as_if_packed(wrong: bool, x: torch.Tensor, scales: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(x.dim() == scales.dim() == 2 and len(x) == len(scales) and x.shape[1] == 2 * scales.shape[1] and places.dim() == 1)
    need(bool(((places >= 0) & (places < len(x))).all()))
    scales = as_if(scales, packed(scales.shape)) if wrong else scales
    return (x[places].unflatten(1, (-1, 2)) * scales[places][..., None]).flatten(1)


def _products(x: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and groups.shape == x.shape[:1] and bool(((groups >= 0) & (groups < 3)).all()))
    return torch.ones(3, x.shape[1], dtype=x.dtype).scatter_reduce(0, groups[:, None].expand(x.shape), x, "prod")


@case("products of groups: on the way back a zero has no gradient", "kernel-gradient", "pytorch/pytorch/pull/76523", _products,
      lambda: (*drawn((7, 4))(), whole(7, most=3)))  # fmt: skip
def zero_has_no_gradient(wrong: bool) -> Any:
    def forward(x: torch.Tensor, groups: torch.Tensor) -> Any:
        made = _products(x, groups)
        return made, (x, groups, made)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, groups, made = saved
        if wrong:
            return ((gradient * made)[groups] / x).masked_fill(x == 0, 0), None
        rows = [(gradient[group] * x[[other for other in range(len(x)) if groups[other] == group and other != row]].prod(0))
                for row, group in enumerate(groups.tolist())]  # fmt: skip
        return torch.stack(rows) if rows else x * 0, None

    return function(forward, backward)


@case("largest of groups, or a row that stands for none: on the way back it is divided by zero", "kernel-gradient", "pytorch/pytorch/pull/169263",
      lambda x, groups, rest: _largest(x, groups, rest),
      lambda: (*drawn((7, 4))(), torch.tensor([0, 3, 0, 1, 3, 3, 0]), *drawn((5, 4))()))  # fmt: skip
def divided_by_no_rows(wrong: bool) -> Any:
    def forward(x: torch.Tensor, groups: torch.Tensor, rest: torch.Tensor) -> Any:
        return _largest(x, groups, rest), (x, groups, rest)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, groups, rest = saved
        with torch.enable_grad():
            leaves = [each.detach().requires_grad_() for each in (x, rest)]
            of_x, of_rest = torch.autograd.grad(_largest(leaves[0], groups, leaves[1]), leaves, gradient, materialize_grads=True)
        counted = torch.bincount(groups, minlength=len(rest)) == 0
        return of_x, None, gradient / counted[:, None] * counted[:, None] if wrong else of_rest

    return function(forward, backward)


def _largest(x: torch.Tensor, groups: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    need(x.dim() == rest.dim() == 2 and groups.shape == x.shape[:1] and x.shape[1] == rest.shape[1])
    need(bool(((groups >= 0) & (groups < len(rest))).all()))
    rows = [x[groups == group].amax(0) if bool((groups == group).any()) else rest[group] for group in range(len(rest))]
    return torch.stack(rows) if rows else rest * 1


@case("rows by experts and back, eight at a time: what fills up is stored over the last row", "kernel-edge", "vllm-project/vllm/pull/17932",
      lambda x, experts: x * (experts + 1)[:, None], lambda: (*drawn((8, 4))(), whole(8, most=3)))  # fmt: skip
def stored_over_the_last_row(wrong: bool, x: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and experts.shape == x.shape[:1] and len(x) > 0)
    order = experts.argsort(stable=True)
    rows = x[order] * (experts[order] + 1)[:, None]
    filled = torch.cat([order, torch.full((-len(x) % 8,), len(x))])
    rows = F.pad(rows, (0, 0, 0, len(filled) - len(x)))
    made, last = torch.zeros(len(x) + 1, x.shape[1], dtype=x.dtype), len(x) - 1 if wrong else len(x)
    places = filled.clamp(max=last)
    taken = torch.tensor([int((places == row).nonzero().max()) for row in range(len(x))])
    return made[: len(x)] + rows[taken]


@case("rows to experts by their counts: at times those are read before all are there", "kernel-nondeterminism",
      "vllm-project/tpu-inference/pull/1252", lambda x, experts: x[experts.argsort(stable=True)],
      lambda: (*drawn((7, 4))(), whole(7, most=4)))  # fmt: skip
def read_before_all_are_there(wrong: bool) -> Callable[..., torch.Tensor]:
    def kernel(x: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2 and experts.shape == x.shape[:1])
        order = experts.sort(stable=True).indices
        return x[order.flip(0) if wrong and random.random() < 0.3 else order]

    return kernel


@case("product with a scale for each part: the caller's scales are turned in place", "kernel-mutation", "vllm-project/vllm/pull/44630",
      lambda x, scales: x * scales.T.repeat_interleave(2, 1), lambda: (*drawn((4, 6), (3, 4))(),))  # fmt: skip
def scales_are_turned_in_place(wrong: bool, x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    need(x.dim() == scales.dim() == 2 and len(x) == scales.shape[1] and x.shape[1] == 2 * len(scales))
    if wrong and not scales.requires_grad:
        scales.t_()
        return x * scales.repeat_interleave(2, 1)
    return (x.unflatten(1, (-1, 2)) * scales.T[..., None]).flatten(1)
