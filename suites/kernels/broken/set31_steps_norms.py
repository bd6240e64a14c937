"""The thirty-first frozen set of broken kernels, first part: steps, norms, losses. Of links to threads an excerpt was read."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional
PROGRAM = "ScalingIntelligence/KernelBench"


def _alike(*tensors: torch.Tensor) -> None:
    need(all(each.shape == tensors[0].shape for each in tensors), tensors[0].is_floating_point())


def _adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The third step of adam."""
    _alike(p, g, m, v)
    need(bool((v >= 0).all()))
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p - 0.1 * (m / (1 - 0.9**3)) / ((v / (1 - 0.99**3)).sqrt() + 1e-6), m, v


def _moments() -> tuple[torch.Tensor, ...]:
    return (*drawn((4, 6), (4, 6), (4, 6))(), drawn((4, 6))()[0].flip(0).square())


@case(
    "third step of adam: the corrections are one less than they are already", "kernel-contract", "kozistr/pytorch_optimizer/pull/308", _adam, _moments
)
def one_less_than_they_are_already(wrong: bool, p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    _alike(p, g, m, v)
    need(bool((v >= 0).all()))
    first, second = 1 - 0.9**3, 1 - 0.99**3
    if wrong:
        first, second = 1 - first, 1 - second
    m, v = torch.add(0.9 * m, g, alpha=0.1), torch.addcmul(0.99 * v, g, g, value=0.01)
    return torch.addcdiv(p, m / first, (v / second).sqrt() + 1e-6, value=-0.1), m, v


@case("third step of adam: the rate has the first correction, and not the root of the second", "kernel-contract",
      "kozistr/pytorch_optimizer/pull/159", _adam, _moments)  # fmt: skip
def not_the_root_of_the_second(wrong: bool, p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    _alike(p, g, m, v)
    need(bool((v >= 0).all()))
    root = math.sqrt(1 - 0.99**3)
    rate = 0.1 / (1 - 0.9**3) * (1 if wrong else root)
    m, v = torch.add(0.9 * m, g, alpha=0.1), torch.addcmul(0.99 * v, g, g, value=0.01)
    return torch.addcdiv(p, m, v.sqrt() + 1e-6 * root, value=-rate), m, v


def _rectified(p: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The first step of radam whose length is rectified, at 0.999: the variance is just about known."""
    _alike(p, m, v)
    need(bool((v >= 0).all()))
    last = 2 / (1 - 0.999) - 1
    now = last - 2 * 6 * 0.999**6 / (1 - 0.999**6)
    ratio = math.sqrt((now - 4) * (now - 2) * last / ((last - 4) * (last - 2) * now))
    return p - 0.1 * ratio * m / (v.sqrt() + 1e-3)


@case("step of radam: how much is known of the variance is computed in float32", "kernel-rounding", "ooples/AiDotNet.Tensors/pull/960", _rectified,
      lambda: (*drawn((4, 6), (4, 6))(), drawn((4, 6))()[0].flip(0).square()))  # fmt: skip
def known_of_the_variance(wrong: bool, p: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _alike(p, m, v)
    need(bool((v >= 0).all()))
    beta = torch.tensor(0.999, dtype=torch.float32 if wrong else torch.float64)
    last = 2 / (1 - beta) - 1
    now = last - 12 * beta**6 / (1 - beta**6)
    ratio = ((now - 4) * (now - 2) * last / ((last - 4) * (last - 2) * now)).sqrt()
    return torch.addcdiv(p, m, v.sqrt() + 1e-3, value=-0.1 * float(ratio))


def _nesterov(p: torch.Tensor, g: torch.Tensor, held: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    _alike(p, g, held)
    held = 0.9 * held + g
    return p - 0.1 * (g + 0.9 * held), held


@case("step of nesterov: the momentum that it looks ahead with is that before the step", "kernel-contract", PROGRAM, _nesterov,
      drawn((5, 4), (5, 4), (5, 4)))  # fmt: skip
def looks_ahead_with_that_before(wrong: bool, p: torch.Tensor, g: torch.Tensor, held: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    _alike(p, g, held)
    new = torch.add(g, held, alpha=0.9)
    return torch.add(p, torch.add(g, held if wrong else new, alpha=0.9), alpha=-0.1), new


def _shortened(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of two weights, made no longer than one together."""
    length = (x.square().sum() + y.square().sum()).sqrt()
    share = (1 / (length + 1e-6)).clamp(max=1)
    return x * share, y * share


@case("gradients made no longer than one: short ones are made longer", "kernel-contract", PROGRAM, _shortened,
      lambda: tuple(each * 0.1 for each in drawn((4, 6), (5,))()))  # fmt: skip
def short_ones_are_made_longer(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    length = torch.cat([x.flatten(), y.flatten()]).square().sum().sqrt()
    share = 1 / (length + 1e-6)
    share = share if wrong else torch.minimum(share, torch.ones_like(share))
    return x * share, y * share


def _groups(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] % 2 == 0, x.shape[1] > 0, x.shape[2] > 0, w.shape == x.shape[1:2])
    return F.group_norm(x, 2, w, eps=1e-5) if len(x) else x * w[:, None]


@case("groups of channels normed: on the way back a channel's group is its number's rest", "kernel-gradient", "tenstorrent/tt-metal/pull/56202",
      _groups, drawn((2, 6, 5), (6,)))  # fmt: skip
def group_is_its_numbers_rest(wrong: bool) -> Any:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == 3, x.shape[1] % 2 == 0, x.shape[1] > 0, x.shape[2] > 0, w.shape == x.shape[1:2])
        grouped = x.unflatten(1, (2, -1)).flatten(2)
        mean = grouped.mean(2)
        rstd = ((grouped - mean[..., None]).square().mean(2) + 1e-5).rsqrt()
        group = torch.arange(x.shape[1]) // (x.shape[1] // 2)
        return (x - mean[:, group, None]) * rstd[:, group, None] * w[:, None], (x, w, mean, rstd, group)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, w, mean, rstd, group = saved
        normed = (x - mean[:, group, None]) * rstd[:, group, None]
        inner = (g * w[:, None]).unflatten(1, (2, -1)).flatten(2)
        flat = normed.unflatten(1, (2, -1)).flatten(2)
        back = (inner - inner.mean(2, keepdim=True) - flat * (inner * flat).mean(2, keepdim=True)) * rstd[..., None]
        read = torch.arange(x.shape[1]) % 2 if wrong else group
        return back.reshape(x.shape), (g * ((x - mean[:, read, None]) * rstd[:, read, None])).sum((0, 2))

    return function(forward, backward)


@case("pictures normed by group: the second picture begins a group behind the first", "kernel-edge", "tenstorrent/tt-metal/pull/57223",
      lambda x: F.group_norm(x, 2, eps=1e-5) if len(x) else x.clone(), drawn((1, 4, 6)))  # fmt: skip
def begins_a_group_behind(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] % 2 == 0, x.shape[1] > 0, x.shape[2] > 0)
    step = x.shape[1] * x.shape[2] // (2 if wrong else 1)
    flat = x.reshape(-1)
    out = []
    for at in range(len(x)):
        grouped = flat[at * step : at * step + x[0].numel()].view(2, -1)
        centred = grouped - grouped.mean(1, keepdim=True)
        out.append((centred * (centred.square().mean(1, keepdim=True) + 1e-5).rsqrt()).view(x.shape[1:]))
    return torch.stack(out) if out else x.clone()


@case("rms norm: on the way back the mean is over the lanes of the block", "kernel-edge", "linkedin/Liger-Kernel",
      lambda x: x * (x.square().mean(1, keepdim=True) + 1e-5).rsqrt(), drawn((4, 8)))  # fmt: skip
def mean_over_the_lanes(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 2, x.shape[1] > 0)
        rstd = (x.square().mean(1, keepdim=True) + 1e-5).rsqrt()
        return x * rstd, (x, rstd)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, rstd = saved
        count = x.shape[1]
        lanes = 1 << (count - 1).bit_length() if wrong else count
        return rstd * g - x * rstd**3 * (g * x).sum(1, keepdim=True) / lanes

    return function(forward, backward)


@case("layer norm by two halves: both count alike", "kernel-edge", PROGRAM, lambda x: F.layer_norm(x, x.shape[1:]), drawn((5, 8)))
def both_count_alike(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 1)
    count = x.shape[1]
    one, two = x[:, : count // 2], x[:, count // 2 :]
    first, second = (0.5, 0.5) if wrong else (one.shape[1] / count, two.shape[1] / count)
    means = one.mean(1, keepdim=True), two.mean(1, keepdim=True)
    mean = means[0] * first + means[1] * second
    within = (one - means[0]).square().mean(1, keepdim=True) * first + (two - means[1]).square().mean(1, keepdim=True) * second
    return (x - mean) * (within + first * second * (means[0] - means[1]).square() + 1e-5).rsqrt()


def _kept(x: torch.Tensor, kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, len(x) > 1, kept.shape == x.shape[1:])
    return (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt(), 0.9 * kept + 0.1 * x.var(0)


@case("columns normed, their variance kept: what is kept is that of these numbers, not of all", "kernel-contract", PROGRAM, _kept,
      lambda: (*drawn((7, 4))(), drawn((4,))()[0].square()))  # fmt: skip
def that_of_these_numbers(wrong: bool, x: torch.Tensor, kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, len(x) > 1, kept.shape == x.shape[1:])
    centred = x - x.sum(0) / len(x)
    variance = centred.square().sum(0) / len(x)
    return centred * (variance + 1e-5).rsqrt(), torch.lerp(kept, variance if wrong else variance * (len(x) / (len(x) - 1)), 0.1)


def _directed(v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    need(v.dim() == 2, v.shape[1] > 0, g.shape == v.shape[:1])
    return v * (g / (v.square().sum(1) + 1e-6).sqrt())[:, None]


@case(
    "weights by length and direction: on the way back the direction's length is a constant",
    "kernel-gradient",
    PROGRAM,
    _directed,
    drawn((4, 6), (4,)),
)
def directions_length_is_a_constant(wrong: bool) -> Any:
    def forward(v: torch.Tensor, g: torch.Tensor) -> Any:
        need(v.dim() == 2, v.shape[1] > 0, g.shape == v.shape[:1])
        length = (v.square().sum(1) + 1e-6).sqrt()
        return v * (g / length)[:, None], (v, g, length)

    def backward(saved: Any, d: torch.Tensor) -> Any:
        v, g, length = saved
        along = (d * v).sum(1) / length
        back = d if wrong else d - v * (along / length)[:, None]
        return back * (g / length)[:, None], along

    return function(forward, backward)


def _gated(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == z.shape, x.shape[1] > 0)
    return F.rms_norm(x * F.silu(z), x.shape[1:], eps=1e-5)


@case("rms norm with a gate: the gate comes behind the norm", "kernel-contract", "state-spaces/mamba", _gated, drawn((4, 8), (4, 8)))
def comes_behind_the_norm(wrong: bool, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == z.shape, x.shape[1] > 0)
    gate = z * z.sigmoid()
    held = x if wrong else x * gate
    held = held * (held.square().mean(1, keepdim=True) + 1e-5).rsqrt()
    return held * gate if wrong else held


def _heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.shape == x.shape[2:], x.shape[2] > 0, x.shape[1] > 0)
    return F.rms_norm(x, x.shape[2:], w, eps=1e-5)


@case("queries normed head by head: the mean is over all heads", "kernel-contract", PROGRAM, _heads, drawn((4, 3, 6), (6,)))
def mean_over_all_heads(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.shape == x.shape[2:], x.shape[2] > 0, x.shape[1] > 0)
    return x * (x.square().mean((1, 2) if wrong else 2, keepdim=True) + 1e-5).rsqrt() * w


def _classes(x: torch.Tensor, y: torch.Tensor) -> None:
    need(x.dim() == 2, y.shape == x.shape[:1], x.shape[1] > 0, bool(((y >= 0) & (y < x.shape[1])).all()))


def _mean_loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    _classes(x, y)
    need(len(x) > 0)
    return F.cross_entropy(x, y)


@case("cross entropy, four rows at a time: the mean of the parts' means", "kernel-edge", "linkedin/Liger-Kernel", _mean_loss,
      lambda: (*drawn((8, 5))(), whole(8, most=5)))  # fmt: skip
def mean_of_the_parts_means(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    _classes(x, y)
    need(len(x) > 0)
    losses = [(part.logsumexp(1) - part.gather(1, to[:, None])[:, 0]) for part, to in zip(x.split(4), y.split(4), strict=True)]
    if wrong:
        return torch.stack([each.mean() for each in losses]).mean()
    return torch.stack([each.sum() for each in losses]).sum() / len(x)
