"""A twenty-second frozen set of broken kernels, first part: losses and activations. Of links an excerpt was read."""

from __future__ import annotations

from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed, whole

F = torch.nn.functional


def _huber(e: torch.Tensor) -> torch.Tensor:
    return torch.where(e.abs() <= 1, e * e / 2, e.abs() - 0.5)


@case("huber loss of errors: large ones below zero cost nothing", "kernel-contract", "marlbenchmark/on-policy/issues/47", _huber, drawn((5, 8)))
def below_zero_cost_nothing(wrong: bool, e: torch.Tensor) -> torch.Tensor:
    near, far = (e.abs() <= 1).to(e.dtype), ((e if wrong else e.abs()) > 1).to(e.dtype)
    return torch.where(near > 0, e * e / 2, torch.where(far > 0, e.abs() - 0.5, e * 0))


def _modified(scores: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
    d = scores * signs
    return torch.where(d >= -1, (1 - d).clamp(min=0).square(), -4 * d)


@case("huber loss of two classes: on the way back a two is lost", "kernel-gradient", "stdlib-js/stdlib/pull/15317", _modified,
      lambda: (drawn((24,))()[0].requires_grad_(), torch.tensor([1.0, -1.0, -1.0, 1.0] * 6)))  # fmt: skip
def a_two_is_lost(wrong: bool) -> Any:
    def backward(saved: Any, g: torch.Tensor) -> Any:
        scores, signs = saved
        d = scores * signs
        middle = (d - 1).clamp(max=0) * signs * (1 if wrong else 2)
        return g * torch.where(d >= -1, middle, -4 * signs), None

    def forward(scores: torch.Tensor, signs: torch.Tensor) -> Any:
        need(scores.shape == signs.shape)
        return _modified(scores, signs), (scores, signs)

    return function(forward, backward)


@case("huber loss of rows: on the way back the incoming gradient is left out", "kernel-gradient", "chainer/chainer/pull/1178",
      lambda x, t: F.huber_loss(x, t.detach(), reduction="none").sum(1),
      lambda: (drawn((5, 7))()[0].requires_grad_(), drawn((2, 5, 7))()[0][1]))  # fmt: skip
def incoming_left_out(wrong: bool) -> Any:
    def forward(x: torch.Tensor, t: torch.Tensor) -> Any:
        need(x.shape == t.shape, x.dim() == 2)
        return _huber(x - t).sum(1), (x, t)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        slope = (saved[0] - saved[1]).clamp(-1, 1)
        return (slope if wrong else g[:, None] * slope), None

    return function(forward, backward)


def _giou(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    shared = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(1)
    around = (torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])).prod(1)
    both = (a[:, 2:] - a[:, :2]).prod(1) + (b[:, 2:] - b[:, :2]).prod(1) - shared
    return shared / both - (around - both) / around


def _boxes() -> tuple[torch.Tensor, torch.Tensor]:
    one, other = drawn((6, 4), (6, 4))()
    return tuple(torch.cat([each[:, :2], each[:, :2] + each[:, 2:].abs() + 0.5], 1) for each in (one, other))  # type: ignore[return-value]


@case("likeness of boxes by what is around both: less what they share", "kernel-contract", "noahcao/OC_SORT/issues/64", _giou, _boxes)
def less_what_they_share(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2, a.shape == b.shape, a.shape[1] == 4)
    low, high = torch.maximum(a[:, :2], b[:, :2]), torch.minimum(a[:, 2:], b[:, 2:])
    sides, outer = (high - low).clamp(min=0), torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])
    shared, around = sides[:, 0] * sides[:, 1], outer[:, 0] * outer[:, 1]
    size = [(each[:, 2] - each[:, 0]) * (each[:, 3] - each[:, 1]) for each in (a, b)]
    both = size[0] + size[1] - shared
    return shared / both - (around - (shared if wrong else both)) / around


def _tversky(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    hit = (p * t).sum(1)
    return hit / (hit + 0.3 * (p * (1 - t)).sum(1) + 0.7 * ((1 - p) * t).sum(1) + 1e-6)


@case("overlap with two weights: they are exchanged", "kernel-contract", "keras-team/keras/pull/23333", _tversky,
      lambda: (drawn((4, 9))()[0].sigmoid(), (drawn((4, 9))()[0] > 0.2).float()))  # fmt: skip
def weights_are_exchanged(wrong: bool, p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(p.dim() == 2, p.shape == t.shape)
    hit = (p * t).sum(1)
    false, missed = p.sum(1) - hit, t.sum(1) - hit
    if wrong:
        false, missed = missed, false
    return hit / (hit + 0.3 * false + 0.7 * missed + 1e-6)


def _dice(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return (1 - (2 * (p * t).sum(2) + 1) / (p.sum(2) + t.sum(2) + 1)).mean(1)


@case("dice loss of classes: all classes are added up first", "kernel-contract", "fastai/fastai/pull/3439", _dice,
      lambda: (drawn((3, 4, 6))()[0].softmax(1), (drawn((3, 4, 6))()[0] > 0).float()))  # fmt: skip
def classes_added_up_first(wrong: bool, p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(p.dim() == 3, p.shape == t.shape)
    hit, size = torch.einsum("nci,nci->nc", p, t), p.sum(2) + t.sum(2)
    if wrong:
        return 1 - (2 * hit.sum(1) + 1) / (size.sum(1) + 1)
    return 1 - ((2 * hit + 1) / (size + 1)).mean(1)


def _neighbours(x: torch.Tensor) -> torch.Tensor:
    squares = F.pad(x.square(), (0, 0, 1, 1))
    return x / (2 + 0.5 * (squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:])) ** 0.75


@case("channels normed by their neighbours: as many channels as there are pictures", "kernel-edge", "onnx/onnx/pull/8391", _neighbours,
      drawn((7, 4, 5)))  # fmt: skip
def as_many_as_pictures(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.numel() > 0)
    done = [x[:, max(c - 1, 0) : c + 2].square().sum(1) if c < len(x) or not wrong else torch.zeros_like(x[:, 0]) for c in range(x.shape[1])]
    return x / (2 + 0.5 * torch.stack(done, 1)) ** 0.75


@case("channels normed by their neighbours: on the way back the power is left out", "kernel-gradient", "xingdi-eric-yuan/conv-net-version-3/pull/5",
      _neighbours, drawn((3, 5, 4)))  # fmt: skip
def the_power_is_left_out(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 3)
        return _neighbours(x), (x,)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        (x,) = saved
        squares = F.pad(x.square(), (0, 0, 1, 1))
        base = 2 + 0.5 * (squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:])
        inner = F.pad(g * x * base**-1.75, (0, 0, 1, 1))
        return g * base**-0.75 - (1 if wrong else 0.75) * x * (inner[:, :-2] + inner[:, 1:-1] + inner[:, 2:])

    return function(forward, backward)


def _focal(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    yes, no = F.logsigmoid(x), F.logsigmoid(-x)
    return -(0.5 * no).exp() * t.detach() * yes - (0.5 * yes).exp() * (1 - t.detach()) * no


@case("focal loss with a root: where a chance is one the gradient is NaN", "kernel-rounding", "kornia/kornia/pull/924", _focal,
      lambda: (drawn((5, 6))()[0].requires_grad_(), (drawn((5, 6))()[0] > 0.3).float()))  # fmt: skip
def where_a_chance_is_one(wrong: bool, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(x.shape == t.shape)
    yes, no = F.logsigmoid(x), F.logsigmoid(-x)
    p = torch.sigmoid(x)
    high, low = ((1 - p) ** 0.5, p**0.5) if wrong else ((no / 2).exp(), (yes / 2).exp())
    return -high * t.detach() * yes - low * (1 - t.detach()) * no


def _hardest(p: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    eye = torch.eye(len(s), dtype=torch.bool)
    return F.relu((1 - p) - (1 - s).masked_fill(eye, -torch.inf).amax(1) + 0.5)


@case("margin to the farthest of the others: each row itself is farther than all", "kernel-constant", "jinnnju/PaAno/issues/1", _hardest,
      lambda: (drawn((6,))()[0] - 2, *drawn((6, 6))()))  # fmt: skip
def itself_farther_than_all(wrong: bool, p: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(s.dim() == 2, s.shape[0] == s.shape[1] == len(p), p.dim() == 1, len(s) > 0)
    eye = torch.eye(len(s), dtype=torch.bool)
    near = s.masked_fill(eye, -torch.inf if wrong else torch.inf)
    return F.relu((1 - p) - (1 - near).amax(1) + 0.5)


@case("divergence of shares: a share of zero is none times a logarithm", "kernel-contract", "deeplearning4j/nd4j/pull/1340",
      lambda lp, t: F.kl_div(lp, t.detach(), reduction="none").sum(1),
      lambda: (drawn((5, 7))()[0].log_softmax(1).requires_grad_(), drawn((5, 7))()[0].mul(2).softmax(1)))  # fmt: skip
def none_times_a_logarithm(wrong: bool, lp: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(lp.dim() == 2, lp.shape == t.shape)
    t = t.detach()
    own = t * t.log() if wrong else torch.special.xlogy(t, t)
    return (own - t * lp).sum(1)


@case("negative logarithm of shares, gradients at once: a second way back scales them again", "kernel-mutation", "Dao-AILab/quack/pull/209",
      lambda x: x.logsumexp(1) - x[:, 0], drawn((6, 8)))  # fmt: skip
def scales_them_again(wrong: bool) -> Any:
    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> Any:
            need(x.dim() == 2, x.shape[1] > 0)
            ctx.slope = x.softmax(1)
            ctx.slope[:, 0] -= 1
            return x.logsumexp(1) - x[:, 0]

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> Any:
            return ctx.slope.mul_(g[:, None]) if wrong else ctx.slope * g[:, None]

    return Loss.apply


@case("logarithms of shares of tokens: incoming gradients are read as if packed", "kernel-stride", "verl-project/verl/pull/6960",
      lambda x: x.log_softmax(1)[:, 0], drawn((6, 8)))  # fmt: skip
def incoming_as_if_packed(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 2, x.shape[1] > 0)
        logs = x.log_softmax(1)
        return logs[:, 0].clone(), (logs,)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        g = as_if(g, packed(g.shape)) if wrong else g
        slope = -saved[0].exp()
        slope[:, 0] += 1
        return g[:, None] * slope

    return function(forward, backward)


@case("scores and their loss in chunks: on the way back gradients lie over the scores", "kernel-mutation", "modelscope/ms-swift/pull/10130",
      lambda x, labels: F.cross_entropy(x, labels, reduction="none"), lambda: (*drawn((6, 7))(), whole(6, most=7)))  # fmt: skip
def gradients_over_the_scores(wrong: bool) -> Any:
    def forward(x: torch.Tensor, labels: torch.Tensor) -> Any:
        need(x.dim() == 2, labels.shape == x.shape[:1], bool(((labels >= 0) & (labels < x.shape[1])).all()))
        return F.cross_entropy(x, labels, reduction="none"), (x, labels)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, labels = saved
        slope = (x.softmax(1) - F.one_hot(labels, x.shape[1])) * g[:, None]
        if wrong:
            x.detach().copy_(slope)
            return x.detach(), None
        return slope, None

    return function(forward, backward)


@case("scaled exponential unit: below zero it is a line", "kernel-contract", "jax-ml/jax/pull/1446", F.selu, drawn((5, 8)))
def below_zero_a_line(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    return scale * torch.where(x > 0, x, alpha * (x if wrong else torch.expm1(x.clamp(max=0))))


@case("scaled exponential unit: on the way back below zero it is scaled twice", "kernel-gradient", "RubixML/ML/pull/427", F.selu, drawn((5, 8)))
def below_zero_scaled_twice(wrong: bool) -> Any:
    scale, alpha = 1.0507009873554805, 1.6732632423543772

    def backward(saved: Any, g: torch.Tensor) -> Any:
        (y,) = saved
        return g * torch.where(y > 0, scale, scale * (y + alpha) if wrong else y + scale * alpha)

    return function(lambda x: (y := F.selu(x), (y,)), backward)


@case("softplus: far below zero it is divided by zero", "kernel-rounding", "rushter/MLAlgorithms/pull/31", F.softplus, drawn((5, 8)))
def far_below_divided_by_zero(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    return x + (1 + 1 / x.exp()).log() if wrong else torch.logaddexp(x, torch.zeros_like(x))
