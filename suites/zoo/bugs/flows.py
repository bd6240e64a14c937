"""Strong noise, slots of experts, gates and scans of slow states, spreads of neighbours, and series that are read as levels."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class Preconditioned(nn.Module):
    """A network between factors that depend on the noise (EDM)."""

    def __init__(self, dtype: torch.dtype, widened: bool) -> None:
        super().__init__()
        self.inner, self.widened = nn.Linear(12, 12, bias=False), widened
        with torch.no_grad():
            self.inner.weight.copy_((normal(12, 12) / 12**0.5).to(LOW))
        self.to(dtype)

    def forward(self, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        sigma = wider(sigma) if self.widened else sigma
        both = sigma**2 + 0.25  # culprit: factors-of-strong-noise
        skip, outside, inside = 0.25 / both, 0.5 * sigma / both.sqrt(), 1 / both.sqrt()
        inner = self.inner((inside * x).to(x.dtype))
        return (skip * x + outside * inner).to(x.dtype)


def denoised(dtype: torch.dtype, widened: bool, strongest: float = 440.0) -> torch.Tensor:
    """What a network in half makes of pictures at sixteen noises up to 440; beyond 255 a square is infinite, and the picture nought. Off by 100 %."""
    sigma = torch.linspace(1, strongest, 16).to(LOW).to(dtype)[:, None]
    return wider(Preconditioned(dtype, widened)(sigma * normal(16, 12, seed=1).to(LOW).to(dtype), sigma))


class Experts(nn.Module):
    """Two experts with room for so many tokens each; a token's slot is the number of those before it that chose the same expert."""

    def __init__(self, width: int, room: int, counted: torch.dtype | None) -> None:
        super().__init__()
        self.room, self.counted = room, counted
        self.experts = nn.Parameter((normal(2, width, width, seed=3) / width**0.5).to(LOW))

    def forward(self, x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        share, chosen = torch.softmax(wider(scores), -1).max(-1)
        mask = functional.one_hot(chosen, 2).to(self.counted or x.dtype)
        slots = mask.cumsum(0) - 1  # culprit: slots-of-an-expert
        slot = slots.gather(1, chosen[:, None])[:, 0].long()
        kept = slot < self.room
        held = x.new_zeros(2, self.room, x.shape[1])
        held[chosen[kept], slot[kept]] = x[kept]
        out = torch.zeros_like(x)
        done = held @ self.experts.to(x.dtype)
        out[kept] = (share[kept, None] * wider(done[chosen[kept], slot[kept]])).to(x.dtype)
        return out


def dispatched(dtype: torch.dtype, counted: torch.dtype | None, length: int = 900) -> torch.Tensor:
    """What nine hundred tokens get of two experts; slots above 256 are even in bfloat16, so that some tokens get others' answers. Off by 136 %."""
    x, scores = normal(length, 8).to(LOW).to(dtype), normal(length, 2, seed=1).to(LOW).to(dtype)
    return wider(Experts(8, length, counted)(x, scores))


class GatedRecurrence(nn.Module):
    """A state that keeps a share `a` of itself and lets in the rest, so that its size stays: sqrt(1 - a^2) of what comes."""

    def __init__(self, width: int, low: float, high: float, split: bool) -> None:
        super().__init__()
        share = low + (high - low) * uniform(width, seed=5).double()
        self.forget = nn.Parameter(torch.log(torch.expm1(-torch.log(share) / 8)).float())
        self.split = split

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        logarithm = -8 * gate * functional.softplus(self.forget.to(gate.dtype))
        kept = torch.exp(wider(logarithm))
        if self.split:
            let_in = torch.sqrt(-torch.expm1(2 * wider(logarithm)))
        else:
            share = torch.exp(logarithm)  # culprit: kept-and-let-in
            let_in = wider(torch.sqrt(1 - share.square()))  # culprit: kept-and-let-in
        state, states = torch.zeros_like(kept[0]), []
        for step in range(len(x)):
            state = kept[step] * state + let_in[step] * wider(x[step])
            states.append(state)
        return torch.stack(states)


def recurrent(dtype: torch.dtype, split: bool, low: float = 0.996, high: float = 0.9995) -> torch.Tensor:
    """Eight slow states after sixty steps: what they let in comes of a share near one that is bfloat16. Off by 29 %."""
    x, gate = normal(60, 8).to(LOW).to(dtype), (0.5 + 0.5 * uniform(60, 8, seed=1)).to(LOW).to(dtype)
    return GatedRecurrence(8, low, high, split)(x, gate)[-10:]


def scanned(x: torch.Tensor, logarithms: torch.Tensor, widened: bool) -> torch.Tensor:
    """States h = a h + x of all steps at once, by two cumulative sums."""
    if widened:
        x, logarithms = wider(x), wider(logarithms)
    total = logarithms.cumsum(0)
    return total.exp() * (x * (-total).exp()).cumsum(0)  # culprit: scan-by-two-sums


def decays(dtype: torch.dtype, widened: bool, steps: int = 48) -> torch.Tensor:
    """States of six channels after 48 steps in half, whose decays add up to twenty: what is divided by them is infinite."""
    x, logarithms = normal(steps, 6).to(LOW).to(dtype), (-0.6 * uniform(steps, 6, seed=1) - 0.1).to(LOW).to(dtype)
    return wider(scanned(x, logarithms, widened))


class PrincipalNeighbourhood(nn.Module):
    """Mean and spread of the features of each node's neighbours."""

    def __init__(self, centred: bool) -> None:
        super().__init__()
        self.centred = centred

    def mean(self, x: torch.Tensor, to: torch.Tensor, nodes: int) -> torch.Tensor:
        count = torch.bincount(to, minlength=nodes).clamp(min=1)
        total = torch.zeros(nodes, x.shape[1], dtype=torch.promote_types(x.dtype, WIDE)).index_add_(0, to, wider(x))
        return (total / count[:, None]).to(x.dtype)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        here, to = x[edges[0]], edges[1]
        mean = self.mean(here, to, len(x))
        if self.centred:
            variance = self.mean((wider(here) - self.mean(wider(here), to, len(x))[to]).square(), to, len(x))
        else:
            variance = self.mean(here.square(), to, len(x)) - mean.square()  # culprit: spread-of-neighbours
        return mean, torch.sqrt(functional.relu(variance) + 1e-5)


def aggregated(dtype: torch.dtype, centred: bool, level: float = 2.0) -> tuple[torch.Tensor, ...]:
    """Mean and spread of neighbours' features near two with a spread of a tenth, which is a hundredth of their squares. Off by 82 %."""
    x = (level + 0.1 * normal(30, 6) * (1 if level else 10)).to(LOW).to(dtype)
    edges = (30 * uniform(2, 240, seed=1)).long()
    return tuple(wider(each) for each in PrincipalNeighbourhood(centred)(x, edges))


class NLinear(nn.Module):
    """A forecast of moves from a series' last value, by one layer."""

    def __init__(self, past: int, ahead: int, dtype: torch.dtype, early: bool) -> None:
        super().__init__()
        self.layer, self.early = nn.Linear(past, ahead, bias=False), early
        with torch.no_grad():
            self.layer.weight.copy_((normal(ahead, past) / past**0.5).to(LOW))
        self.to(dtype)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        dtype = self.layer.weight.dtype
        if self.early:
            series = series.to(dtype)  # culprit: moves-read-as-levels
            return wider(self.layer(series - series[:, -1:]))  # culprit: moves-read-as-levels
        return wider(self.layer((series - series[:, -1:]).to(dtype)))


def forecast(dtype: torch.dtype, early: bool, level: float = 180.0) -> torch.Tensor:
    """Moves of twenty prices near 180 that move by a tenth a day; bfloat16 has a step of one there. Off by 119 %."""
    series = level + (0.1 * normal(20, 24)).cumsum(-1)
    return NLinear(24, 6, dtype, early)(series)


BUGS = (
    Bug("factors-of-strong-noise", "", ("overflow",), "aten.pow.Tensor_Scalar", lambda: denoised(HALF, False), lambda: denoised(HALF, True)),
    Bug("slots-of-an-expert", "", ("integer-rounding", "absorption", "accumulated-drift"), "aten.cumsum.default",
        lambda: dispatched(LOW, None), lambda: dispatched(LOW, torch.int64), module="Experts"),
    Bug("kept-and-let-in", "", ("cancellation", "amplified-rounding"), "aten.rsub.Scalar", lambda: recurrent(LOW, False),
        lambda: recurrent(LOW, True), module="GatedRecurrence"),
    Bug("scan-by-two-sums", "johnma2006/mamba-minimal#18", ("overflow", "nan", "underflow"), "aten.exp.default", lambda: decays(HALF, False),
        lambda: decays(HALF, True)),
    Bug("spread-of-neighbours", "", ("cancellation", "amplified-rounding"), "aten.sub.Tensor", lambda: aggregated(LOW, False),
        lambda: aggregated(LOW, True), module="PrincipalNeighbourhood"),
    Bug("moves-read-as-levels", "", ("amplified-rounding", "cancellation"), "aten._to_copy.default", lambda: forecast(LOW, True),
        lambda: forecast(LOW, False)),
)  # fmt: skip
