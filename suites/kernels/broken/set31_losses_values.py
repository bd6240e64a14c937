"""The thirty-first frozen set of broken kernels, second part: losses and functions of numbers. Of links to threads an excerpt was read."""

from __future__ import annotations

from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional
PROGRAM = "ScalingIntelligence/KernelBench"


def _penalised(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, y.shape == x.shape[:1], x.shape[1] > 0, bool(((y >= 0) & (y < x.shape[1])).all()))
    total = x.logsumexp(1)
    return total - x.gather(1, y[:, None])[:, 0] + 0.1 * total.square()


@case("cross entropy with a penalty for large totals: on the way back the penalty is linear", "kernel-gradient", PROGRAM, _penalised,
      lambda: (*drawn((5, 6))(), whole(5, most=6)))  # fmt: skip
def penalty_is_linear(wrong: bool) -> Any:
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        need(x.dim() == 2, y.shape == x.shape[:1], x.shape[1] > 0, bool(((y >= 0) & (y < x.shape[1])).all()))
        total = x.logsumexp(1)
        return total - x.gather(1, y[:, None])[:, 0] + 0.1 * total * total, (x, y, total)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, y, total = saved
        shares = (x - total[:, None]).exp() * (1 + 0.2 * (torch.ones_like(total) if wrong else total))[:, None]
        return g[:, None] * shares.scatter_add(1, y[:, None], -torch.ones_like(total)[:, None]), None

    return function(forward, backward)


def _huber(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    return F.huber_loss(x, y, delta=0.7, reduction="none")


def _smooth(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    return F.smooth_l1_loss(x, y, reduction="none")


@case("huber's loss: its straight part lacks what is taken away", "kernel-contract", PROGRAM, _huber,
      drawn((4, 7), (4, 7)))  # fmt: skip
def straight_part_lacks(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    far = (x - y).abs()
    return torch.where(far < 0.7, 0.5 * far * far, 0.7 * (far - (0 if wrong else 0.35)))


@case("smooth distance: on the way back a large difference counts as it is", "kernel-gradient", PROGRAM, _smooth,
      drawn((4, 7), (4, 7)))  # fmt: skip
def large_difference_counts_as_it_is(wrong: bool) -> Any:
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        need(x.shape == y.shape)
        far = x - y
        return torch.where(far.abs() < 1, 0.5 * far * far, far.abs() - 0.5), (far,)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        slope = g * (saved[0] if wrong else saved[0].clamp(-1, 1))
        return slope, -slope

    return function(forward, backward)


def _policy(ratio: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    need(ratio.shape == advantage.shape)
    return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)


@case("loss of a policy: the ratio is always the cut one", "kernel-contract", PROGRAM, _policy, lambda: (drawn((6, 5))()[0].exp(), *drawn((6, 5))()))
def always_the_cut_one(wrong: bool, ratio: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    need(ratio.shape == advantage.shape)
    cut = ratio.clamp(0.8, 1.2)
    return -(cut * advantage) if wrong else torch.maximum(-(ratio * advantage), -(cut * advantage))


def _preferred(chosen: torch.Tensor, other: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    need(chosen.shape == other.shape == base.shape)
    return -F.logsigmoid(0.3 * (chosen - other - base))


@case("loss of preferences: what the first model prefers is added", "kernel-contract", PROGRAM, _preferred, drawn((9,), (9,), (9,)))
def what_the_first_model_prefers(wrong: bool, chosen: torch.Tensor, other: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    need(chosen.shape == other.shape == base.shape)
    return F.softplus(-0.3 * (chosen - other + base if wrong else chosen - other - base))


def _between(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A divergence of shares from a mixture that has three tenths of the first."""
    need(x.dim() == 2, x.shape == y.shape, x.shape[1] > 0)
    one, two = x.log_softmax(1), y.log_softmax(1)
    middle = (0.3 * one.exp() + 0.7 * two.exp()).log()
    return (0.3 * one.exp() * (one - middle) + 0.7 * two.exp() * (two - middle)).sum(1)


@case("divergence from a mixture: its shares are exchanged", "kernel-contract", "linkedin/Liger-Kernel", _between, drawn((4, 6), (4, 6)))
def its_shares_are_exchanged(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape, x.shape[1] > 0)
    one, two = x - x.logsumexp(1, keepdim=True), y - y.logsumexp(1, keepdim=True)
    share = 0.7 if wrong else 0.3
    middle = (share * one.exp() + (1 - share) * two.exp()).log()
    return (0.3 * one.exp() * (one - middle)).sum(1) + (0.7 * two.exp() * (two - middle)).sum(1)


@case("disorder of rows: the logarithm of a share", "kernel-rounding", PROGRAM, lambda x: torch.special.entr(x.softmax(1)).sum(1), drawn((5, 7)))
def logarithm_of_a_share(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    shares = x.softmax(1)
    return -(shares * shares.log() if wrong else torch.xlogy(shares, shares)).sum(1)


def _cosh(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    far = (x - y).abs()
    return far + F.softplus(-2 * far) - 0.6931471805599453


@case("logarithm of a hyperbolic cosine: the cosine itself", "kernel-rounding", PROGRAM, _cosh, drawn((4, 6), (4, 6)))
def the_cosine_itself(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    far = x - y
    return far.cosh().log() if wrong else torch.logaddexp(far, -far) - 0.6931471805599453


@case("mish: one and a power, squared", "kernel-rounding", "pytorch/pytorch", F.mish, drawn((5, 8)))
def one_and_a_power_squared(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    if not wrong:
        return x * F.softplus(x).tanh()
    squared = (1 + x.exp()).square()
    return x * (squared - 1) / (squared + 1)


@case("lengths of two sides: their squares overflow", "kernel-rounding", PROGRAM, torch.hypot, drawn((4, 9), (4, 9)))
def their_squares_overflow(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    return (x * x + y * y).sqrt() if wrong else torch.complex(x, y).abs()


@case("what a thin sample hides: one less a power", "kernel-rounding", PROGRAM, lambda x: -torch.expm1(-x), lambda: drawn((4, 8))()[0].abs())
def one_less_a_power(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    return 1 - (-x).exp() if wrong else -((-x).expm1())


@case("middle of a row by its product", "kernel-rounding", PROGRAM, lambda x: x.log().mean(1).exp(), lambda: drawn((5, 6))()[0].exp())
def by_its_product(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    return x.prod(1) ** (1 / x.shape[1]) if wrong else x.log2().mean(1).exp2()


def _angle(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape, x.shape[1] == 3)
    one, two = (each / (each.square().sum(1, keepdim=True) + 1e-12).sqrt() for each in (x, y))
    return 2 * torch.atan2((one - two).norm(dim=1), (one + two).norm(dim=1))


@case("angle between two directions: the arc of their product", "kernel-rounding", PROGRAM, _angle, drawn((6, 3), (6, 3)))
def the_arc_of_their_product(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape, x.shape[1] == 3)
    one, two = (each * (each.square().sum(1, keepdim=True) + 1e-12).rsqrt() for each in (x, y))
    if wrong:
        return (one * two).sum(1).clamp(-1, 1).acos()
    return 2 * torch.atan2((two - one).norm(dim=1), (two + one).norm(dim=1))


def _merged(one: torch.Tensor, first: torch.Tensor, two: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    need(one.dim() == 2, one.shape == two.shape, first.shape == second.shape == one.shape[:1])
    shares = torch.stack([first, second]).softmax(0)
    return one * shares[0, :, None] + two * shares[1, :, None]


@case("two parts of attention joined by their sums: the powers of these sums", "kernel-rounding", "sgl-project/sglang", _merged,
      drawn((5, 4), (5,), (5, 4), (5,)))  # fmt: skip
def powers_of_these_sums(wrong: bool, one: torch.Tensor, first: torch.Tensor, two: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    need(one.dim() == 2, one.shape == two.shape, first.shape == second.shape == one.shape[:1])
    if wrong:
        shares = first.exp(), second.exp()
        return (one * shares[0][:, None] + two * shares[1][:, None]) / (shares[0] + shares[1])[:, None]
    top = torch.maximum(first, second).detach()
    shares = (first - top).exp(), (second - top).exp()
    return one * (shares[0] / (shares[0] + shares[1]))[:, None] + two * (shares[1] / (shares[0] + shares[1]))[:, None]
