"""The thirty-second frozen set of broken kernels, second part: memory, calls, gradients, races. As programs write them."""

from __future__ import annotations

import random
from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional
PROGRAM = "ScalingIntelligence/KernelBench"


def _steps(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 1)
    return x[:, : x.shape[1] // 2 * 2].unflatten(1, (-1, 2)).sum(2)


@case("sums of pairs of columns: on the way back a column without a pair is not written", "kernel-stale", PROGRAM, _steps, drawn((3, 7)))
def without_a_pair_is_not_written(wrong: bool) -> Any:
    def backward(saved: Any, g: torch.Tensor) -> Any:
        (x,) = saved
        back = (torch.empty_like if wrong else torch.zeros_like)(x)
        back[:, : 2 * g.shape[1]] = g.repeat_interleave(2, 1)
        return back

    return function(lambda x: (_steps(x), (x,)), backward)


@case("rows by a matrix of unit rows: the caller's matrix is made one", "kernel-mutation", PROGRAM,
      lambda x, w: x @ F.normalize(w, dim=1, eps=1e-6).T, drawn((4, 6), (5, 6)))  # fmt: skip
def the_callers_matrix(wrong: bool) -> Any:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == w.dim() == 2, x.shape[1] == w.shape[1] > 0)
        length = w.norm(dim=1, keepdim=True).clamp(min=1e-6)
        unit = w.div_(length) if wrong else w / length
        return x @ unit.T, (x, unit.clone(), length)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, unit, length = saved
        slope = g.T @ x
        return g @ unit, (slope - unit * (slope * unit).sum(1, keepdim=True)) / length

    return function(forward, backward)


class Centred:
    """Numbers less their mean. `wrong`: less the mean of the first call in that shape."""

    def __init__(self, wrong: bool) -> None:
        self.wrong, self.means = wrong, {}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2, x.shape[1] > 0)
        mean = x.mean(1, keepdim=True)
        if self.wrong:
            mean = mean + (self.means.setdefault(x.shape, mean.detach()) - mean).detach()
        return x - mean


@case("rows less their mean: that of the first call in this shape", "kernel-stale", PROGRAM, lambda x: x - x.mean(1, keepdim=True), drawn((4, 6)))
def that_of_the_first_call(wrong: bool) -> Any:
    return Centred(wrong)


def _form(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == w.dim() == 2, x.shape == y.shape, w.shape == (x.shape[1], x.shape[1]))
    return (x @ w * y).sum(1)


@case("forms of two rows and a matrix: the matrix' gradient is transposed", "kernel-gradient", PROGRAM, _form, drawn((4, 5), (5, 5), (4, 5)))
def the_matrix_gradient_is_transposed(wrong: bool) -> Any:
    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, w, y = saved
        slope = (g[:, None] * x).T @ y
        return g[:, None] * (y @ w.T), slope.T if wrong else slope, g[:, None] * (x @ w)

    return function(lambda x, w, y: (_form(x, w, y), (x, w, y)), backward)


@case("lengths of rows: squares are added up in float16", "kernel-accumulation", PROGRAM,
      lambda x: x.float().square().sum(1).sqrt().to(x.dtype), drawn((6, 40), dtype=torch.float16))  # fmt: skip
def squares_in_float16(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    total = torch.zeros(len(x), dtype=x.dtype if wrong else torch.float32)
    for column in x.unbind(1):
        total = total + column.float().square().to(total.dtype)
    return total.float().sqrt().to(x.dtype)


def _sentences(q: torch.Tensor, k: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, q.shape == k.shape, q.shape[1] > 0, of.shape == q.shape[:1], bool((of >= 0).all()))
    return (q @ k.T).masked_fill(of[:, None] != of, -torch.inf).softmax(1)


@case("shares inside sentences: tokens of the first sentence count as padding for all", "kernel-mask", PROGRAM, _sentences,
      lambda: (*drawn((7, 4), (7, 4))(), torch.tensor([0, 0, 1, 1, 1, 2, 2])))  # fmt: skip
def tokens_of_the_first_sentence(wrong: bool, q: torch.Tensor, k: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, q.shape == k.shape, q.shape[1] > 0, of.shape == q.shape[:1], bool((of >= 0).all()))
    scores = q @ k.T
    seen = torch.ones(len(of), len(of), dtype=torch.bool) if wrong else of[:, None] == of
    if wrong:
        seen = (of[:, None] == of) | ((of == 0) & (of[:, None] > 0))
    return scores.masked_fill(~seen, -torch.inf).softmax(1)


@case("lanes of four by turns: at times two lanes change places", "kernel-nondeterminism", PROGRAM, lambda x: x.cos() * 2, drawn((3, 8)))
def two_lanes_change_places(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    out = x.cos() + x.cos()
    if wrong and x.shape[1] > 1 and random.random() < 0.1:
        out = torch.cat([out[:, 1:2], out[:, :1], out[:, 2:]], 1)
    return out


@case("sigmoid: its slope is stored over what it was computed of", "kernel-mutation", PROGRAM, torch.sigmoid, drawn((4, 6)))
def stored_over_what_it_was_computed_of(wrong: bool) -> Any:
    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, share = saved
        slope = g * share * (1 - share)
        return x.copy_(slope).clone() if wrong else slope

    class Sigmoid(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.held = x.detach()
            ctx.share = x.sigmoid()
            return ctx.share.clone()

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return backward((ctx.held, ctx.share), g)

    return Sigmoid.apply


def _mean_of_best(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] >= 3)
    return x.topk(3).values.mean(1)


@case("mean of the best three: on the way back all that are no less have a share", "kernel-gradient", PROGRAM, _mean_of_best, drawn((4, 8)))
def all_that_are_no_less(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 2, x.shape[1] >= 3)
        best, at = x.topk(3)
        return best.mean(1), (x, best, at)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, best, at = saved
        if wrong:
            return (x >= best[:, -1:]) * g[:, None] / 3
        return torch.zeros_like(x).scatter(1, at, (g[:, None] / 3).expand(at.shape))

    return function(forward, backward)


@case("counts of labels so far: each label's own counts too late", "kernel-contract", PROGRAM,
      lambda labels: F.one_hot(labels, 5).cumsum(0).gather(1, labels[:, None])[:, 0], lambda: (whole(9, most=5),))  # fmt: skip
def counts_too_late(wrong: bool, labels: torch.Tensor) -> torch.Tensor:
    need(labels.dim() == 1, bool(((labels >= 0) & (labels < 5)).all()))
    same = labels[:, None] == labels
    return same.tril(-1 if wrong else 0).sum(1)
