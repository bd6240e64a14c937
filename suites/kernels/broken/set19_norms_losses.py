"""A nineteenth frozen set of broken kernels, third part: norms, losses, steps of optimizers, distances. Of links an excerpt was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional


@case("norm of two groups of channels: on the way back a channel's group is its number modulo two", "kernel-gradient",
      "tenstorrent/tt-metal/pull/56202", lambda x, w, b: F.group_norm(x, 2, w, b), drawn((3, 8, 5), (8,), (8,)))  # fmt: skip
def number_modulo_two(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        need(x.dim() == 3 and x.shape[1] % 2 == 0 and x.shape[1] * x.shape[2] > 0 and w.shape == b.shape == x.shape[1:2])
        parts = x.reshape(len(x), 2, x.shape[1] // 2 * x.shape[2])
        mean, scale = parts.mean(2), (parts.var(2, correction=0) + 1e-5).rsqrt()
        normed = ((parts - mean[..., None]) * scale[..., None]).view(x.shape)
        return normed * w[:, None] + b[:, None], (x, w, mean, scale, normed)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, w, mean, scale, normed = saved
        channels = torch.arange(x.shape[1])
        group = channels % 2 if wrong else channels // (x.shape[1] // 2)
        again = (x - mean[:, group, None]) * scale[:, group, None]
        shape = (len(x), 2, x.shape[1] // 2 * x.shape[2])
        weighed, parts = (gradient * w[:, None]).reshape(shape), normed.reshape(shape)
        inner = weighed - weighed.mean(2, keepdim=True) - parts * (weighed * parts).mean(2, keepdim=True)
        return (inner * scale[..., None]).view(x.shape), (gradient * again).sum((0, 2)), gradient.sum((0, 2))

    return function(forward, backward)


class _Normed(torch.autograd.Function):
    """A layer norm whose way back takes its scale from memory that is written where the input has a gradient alone."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, wrong: bool) -> torch.Tensor:
        mean, scale = x.mean(-1, keepdim=True), (x.var(-1, keepdim=True, correction=0) + 1e-5).rsqrt()
        ctx.save_for_backward((x - mean) * scale, scale, w)
        ctx.wrong = wrong
        return (x - mean) * scale * w + b

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        normed, scale, w = ctx.saved_tensors
        weighed = gradient * w
        dx = scale * (weighed - weighed.mean(-1, keepdim=True) - normed * (weighed * normed).mean(-1, keepdim=True))
        held = torch.empty_like(normed)
        if ctx.needs_input_grad[0] or not ctx.wrong:
            held.copy_(normed)
        return dx, (gradient * held).sum(0), gradient.sum(0), None


@case("layer norm: where the input has no gradient, the weight's is read from memory that is not written", "kernel-stale",
      "pytorch/pytorch/issues/183825", lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), drawn((4, 6), (6,), (6,)))  # fmt: skip
def where_the_input_has_no_gradient(wrong: bool, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    need(x.dim() == 2 and x.shape[1] > 0 and w.shape == b.shape == x.shape[1:])
    return _Normed.apply(x, w, b, wrong)


def _layer_norm(x: torch.Tensor, w: torch.Tensor) -> Any:
    need(x.dim() == 3 and x.numel() > 0 and w.shape == x.shape[2:])
    mean, scale = x.mean(-1, keepdim=True), (x.var(-1, keepdim=True, correction=0) + 1e-5).rsqrt()
    return (x - mean) * scale * w, (x, scale, w)


@case("layer norm of sequences: on the way back all rows of a sequence are one", "kernel-gradient", "flagos-ai/FlagGems/issues/5392",
      lambda x, w: F.layer_norm(x, x.shape[-1:], w), drawn((2, 3, 6), (6,)))  # fmt: skip
def rows_of_a_sequence_are_one(wrong: bool) -> Any:
    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, scale, w = saved
        axes = (1, 2) if wrong else (2,)
        normed, weighed = (x - x.mean(-1, keepdim=True)) * scale, gradient * w
        inner = weighed - weighed.mean(axes, keepdim=True) - normed * (weighed * normed).mean(axes, keepdim=True)
        return inner * scale, (gradient * normed).sum((0, 1))

    return function(_layer_norm, backward)


@case("rms norm of the sum of two, rows scaled: the second one's gradient is not scaled", "kernel-gradient", "state-spaces/mamba/pull/1023",
      lambda x, more, scale: F.rms_norm((x + more) * scale[:, None], x.shape[-1:], eps=1e-5), drawn((4, 6), (4, 6), (4,)))  # fmt: skip
def second_is_not_scaled(wrong: bool) -> Any:
    def forward(x: torch.Tensor, more: torch.Tensor, scale: torch.Tensor) -> Any:
        need(x.dim() == 2 and x.shape == more.shape and scale.shape == x.shape[:1] and x.shape[1] > 0)
        total = (x + more) * scale[:, None]
        root = (total.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        return total * root, (x + more, total, root, scale)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        both, total, root, scale = saved
        inner = root * (gradient - total * root * (gradient * total * root).mean(-1, keepdim=True))
        scaled = inner * scale[:, None]
        return scaled, inner if wrong else scaled, (inner * both).sum(-1)

    return function(forward, backward)


@case("given numbers dropped: on the way back the result divided by the number", "kernel-gradient", "kaldi-asr/kaldi/issues/3890",
      lambda x, keep: torch.where(keep, x / 0.75, 0), lambda: (*drawn((5, 6))(), whole(5, 6, most=2).bool()))  # fmt: skip
def divided_by_the_number(wrong: bool) -> Any:
    def forward(x: torch.Tensor, keep: torch.Tensor) -> Any:
        need(x.shape == keep.shape and keep.dtype is torch.bool)
        made = torch.where(keep, x / 0.75, 0)
        return made, (x, keep, made)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, keep, made = saved
        share = torch.where(x == 0, 1.0, made / torch.where(x == 0, 1, x)) if wrong else torch.where(keep, 1 / 0.75, 0)
        return gradient * share, None

    return function(forward, backward)


@case("product of what is kept: on the way back what is dropped has a gradient", "kernel-mask", "ddbourgin/numpy-ml/issues/94",
      lambda x, keep, w: torch.where(keep, x * 2, 0) @ w, lambda: (*drawn((5, 6))(), whole(5, 6, most=2).bool(), *drawn((6, 3))()))  # fmt: skip
def what_is_dropped_has_a_gradient(wrong: bool) -> Any:
    def forward(x: torch.Tensor, keep: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == w.dim() == 2 and x.shape == keep.shape and x.shape[1] == len(w) and keep.dtype is torch.bool)
        kept = torch.where(keep, x * 2, 0)
        return kept @ w, (kept, keep, w)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        kept, keep, w = saved
        back = gradient @ w.T * 2
        return back if wrong else torch.where(keep, back, 0), None, kept.T @ gradient

    return function(forward, backward)


def _divergence(x: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    p, q = x.log_softmax(-1), teacher.log_softmax(-1)
    middle = torch.logaddexp(p, q) - 0.6931471805599453
    return 0.5 * (p.exp() * (p - middle) + q.exp() * (q - middle)).sum(-1)


def _labelled() -> tuple[torch.Tensor, ...]:
    return (*drawn((6, 7), (6, 7))(), torch.tensor([3, -100, 0, 5, -100, 2]))


@case("divergence of two, tokens to ignore: they count", "kernel-mask", "linkedin/Liger-Kernel/pull/974",
      lambda x, teacher, labels: _divergence(x, teacher)[labels != -100].sum() / (labels != -100).sum().clamp(min=1), _labelled)  # fmt: skip
def tokens_to_ignore_count(wrong: bool, x: torch.Tensor, teacher: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == teacher.shape and labels.shape == x.shape[:1] and x.shape[1] > 0)
    seen = torch.ones_like(labels, dtype=torch.bool) if wrong else labels != -100
    return torch.where(seen, _divergence(x, teacher), 0).sum() / seen.sum().clamp(min=1)


@case("preference loss, smoothed: it is not smoothed", "kernel-contract", "huggingface/trl/pull/7062",
      lambda x, y: -(0.9 * F.logsigmoid(0.5 * (x - y)) + 0.1 * F.logsigmoid(0.5 * (y - x))).mean(), drawn((6,), (6,)))  # fmt: skip
def preference_is_not_smoothed(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1 and x.shape == y.shape and len(x) > 0)
    apart = 0.5 * (x - y)
    return (F.softplus(-apart) + (0 if wrong else 0.1) * apart).mean()


@case("soft margin: the exponential comes before the logarithm", "kernel-rounding", "tracel-ai/burn/issues/5373",
      lambda x, y: torch.logaddexp(-5 * x * y, torch.zeros(())) / 5, drawn((4, 6), (4, 6)))  # fmt: skip
def exponential_before_the_logarithm(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    apart = -5 * x * y
    return (apart.exp() + 1).log() / 5 if wrong else F.softplus(apart) / 5


@case("softplus: on the way back an exponential divided by one and itself", "kernel-rounding", "tenstorrent/tt-metal/pull/56397",
      lambda x: torch.logaddexp(x, torch.zeros(())), drawn((4, 6)))  # fmt: skip
def divided_by_one_and_itself(wrong: bool) -> Any:
    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        power = saved[0].exp()
        return gradient * (power / (1 + power) if wrong else saved[0].sigmoid())

    return function(lambda x: (x.clamp(min=0) + (-x.abs()).exp().log1p(), (x,)), backward)


@case("loss of sequences of some lengths: gradients behind their end are not written", "kernel-stale", "tensorflow/tensorflow/issues/41280",
      lambda x, lengths: -torch.stack([(x[b, :n].log_softmax(-1)[:, 0]).sum() for b, n in enumerate(lengths.tolist())]),
      lambda: (*drawn((3, 6, 4))(), torch.tensor([6, 4, 2])))  # fmt: skip
def behind_their_end(wrong: bool) -> Any:
    def forward(x: torch.Tensor, lengths: torch.Tensor) -> Any:
        need(x.dim() == 3 and lengths.shape == x.shape[:1] and len(x) > 0 and x.shape[2] > 0 and bool((lengths >= 0).all()))
        seen = torch.arange(x.shape[1]) < lengths[:, None]
        return -torch.where(seen, x.log_softmax(-1)[..., 0], 0).sum(1), (x, seen)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x, seen = saved
        made = (torch.empty_like if wrong else torch.zeros_like)(x)
        right = x.softmax(-1) - F.one_hot(torch.zeros(x.shape[:2], dtype=torch.long), x.shape[2])
        made[seen] = (right * gradient[:, None, None])[seen]
        return made, None

    return function(forward, backward)


def _adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor, decay: float, apart: float) -> tuple[torch.Tensor, ...]:
    g = g + decay * p
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p * (1 - 0.1 * apart) - 0.1 * (m / 0.5) / ((v / 0.3).sqrt() + 1e-6), m, v


@case("adam with a decay: it shrinks the weight, and is no part of the gradient", "kernel-contract", "flagos-ai/FlagGems/issues/4988",
      lambda p, g, m, v: _adam(p, g, m, v, 0.1, 0.0), lambda: (*drawn((4, 5), (4, 5), (4, 5))(), drawn((4, 5))()[0].square() + 0.1))  # fmt: skip
def decay_shrinks_the_weight(wrong: bool, p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> Any:
    need(p.shape == g.shape == m.shape == v.shape)
    return _adam(p, g, m, v, 0.0 if wrong else 0.1, 0.1 if wrong else 0.0)


@case("steps of two weights: both are corrected by the steps of the last one", "kernel-contract", "deepspeedai/DeepSpeed/pull/8471",
      lambda x, y, steps: (x / (1 - 0.5 ** steps[0]), y / (1 - 0.5 ** steps[1])), lambda: (*drawn((4,), (3, 2))(), torch.tensor([1, 4])))  # fmt: skip
def steps_of_the_last_one(wrong: bool, x: torch.Tensor, y: torch.Tensor, steps: torch.Tensor) -> Any:
    need(steps.shape == (2,) and bool((steps > 0).all()))
    first, second = (-1.0 / (0.5**steps - 1)).unbind()
    return x * (second if wrong else first), y * second


@case("distances by magnitudes: on the way back they are taken for those by squares", "kernel-gradient", "flagos-ai/FlagGems/issues/5023",
      lambda x, y: torch.cdist(x, y, p=1.0), drawn((4, 5), (3, 5)))  # fmt: skip
def taken_for_squares(wrong: bool) -> Any:
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        need(x.dim() == y.dim() == 2 and x.shape[1] == y.shape[1])
        apart = x[:, None] - y
        return apart.abs().sum(-1), (apart,)

    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        slope = saved[0] / (saved[0].norm(dim=-1, keepdim=True) + 1e-12) if wrong else saved[0].sign()
        made = slope * gradient[..., None]
        return made.sum(1), -made.sum(0)

    return function(forward, backward)


@case("distance of two rows: of equal ones the slope is NaN", "kernel-gradient", "PaddlePaddle/Paddle/pull/32448",
      lambda x, y: (x - y).norm(dim=-1), drawn((4, 5), (4, 5)))  # fmt: skip
def equal_rows_have_nan(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == y.shape)
    apart = x - y
    most = apart.detach().abs().amax(-1, keepdim=True) if x.shape[1] else apart.new_ones(len(x), 1)
    most = torch.where((most == 0) | ~most.isfinite(), 1, most)
    total = (apart / most).square().sum(-1)
    return (total.sqrt() if wrong else torch.where(total == 0, 0, torch.where(total == 0, 1, total).sqrt())) * most[:, 0]


@case("logarithm of odds within limits: beyond them there is a slope", "kernel-gradient", "flagos-ai/Torch-FL/pull/283",
      lambda x: torch.logit(x, eps=0.1), lambda: (torch.rand(4, 6, generator=torch.Generator().manual_seed(2)),))  # fmt: skip
def beyond_limits_there_is_a_slope(wrong: bool) -> Any:
    def backward(saved: Any, gradient: torch.Tensor) -> Any:
        x = saved[0]
        held = x.clamp(0.1, 0.9)
        return gradient / (held * (1 - held)) if wrong else torch.where(x == held, gradient / (held * (1 - held)), 0)

    return function(lambda x: (torch.logit(x.clamp(0.1, 0.9)), (x,)), backward)
