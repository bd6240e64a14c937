"""The twentieth frozen set of healthy kernels, second part: segments, orders, losses, steps, codes, images. Committed before any was tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import need, rewrite, shapes, whole

F = torch.nn.functional
INF = float("inf")


def _wide(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula in float32, its result in the format of the first input."""
    return lambda *inputs: formula(*(each.float() if each.is_floating_point() else each for each in inputs)).to(inputs[0].dtype)


def _groups(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return (*shapes((7, 4))(dtype), whole(7, most=3))


def _fit(x: torch.Tensor, groups: torch.Tensor) -> None:
    need(x.dim() == 2 and groups.shape == x.shape[:1] and bool(((groups >= 0) & (groups < 3)).all()))


@rewrite("products of groups, group by group",
         _wide(lambda x, groups: torch.ones(3, x.shape[1]).scatter_reduce(0, groups[:, None].expand(x.shape), x, "prod")), _groups)  # fmt: skip
def products_group_by_group(x: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    _fit(x, groups)
    return torch.stack([x[groups == group].float().prod(0) for group in range(3)]).to(x.dtype)


@rewrite("means of groups, by a product with their shares",
         _wide(lambda x, groups: torch.zeros(3, x.shape[1]).scatter_reduce(0, groups[:, None].expand(x.shape), x, "mean", include_self=False)),
         _groups)  # fmt: skip
def by_their_shares(x: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    _fit(x, groups)
    need(bool(x.isfinite().all()))
    own = (groups == torch.arange(3)[:, None]).float()
    return ((own / own.sum(1, keepdim=True).clamp(min=1)) @ x.float()).to(x.dtype)


@rewrite(
    "rows by experts and back", lambda x, experts: x * (experts + 1)[:, None].to(x.dtype), lambda dtype: (*shapes((8, 4))(dtype), whole(8, most=3))
)
def experts_and_back(x: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and experts.shape == x.shape[:1])
    order = experts.argsort(stable=True)
    rows = x[order].float() * (experts[order] + 1)[:, None]
    return rows.to(x.dtype)[order.argsort()]


def _adapted(x: torch.Tensor, own: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    rows = torch.einsum("nk,nkr,nrm->nm", x, down[own.clamp(min=0)], up[own.clamp(min=0)])
    return torch.where(own[:, None] >= 0, rows, 0)


@rewrite("rows with an adapter each, adapter by adapter", _wide(_adapted),
         lambda dtype: (*shapes((6, 5))(dtype), torch.tensor([0, -1, 2, 1, -1, 0]), *shapes((3, 5, 2), (3, 2, 4))(dtype)))  # fmt: skip
def adapter_by_adapter(x: torch.Tensor, own: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and own.shape == x.shape[:1] and down.dim() == up.dim() == 3 and len(down) == len(up) > 0,
         x.shape[1] == down.shape[1] and down.shape[2] == up.shape[1], bool(((own >= -1) & (own < len(down))).all()))  # fmt: skip
    made = torch.zeros(len(x), up.shape[2])
    for place in range(len(down)):
        rows = (own == place).nonzero()[:, 0]
        made = made.index_add(0, rows, x[rows].float() @ down[place].float() @ up[place].float())
    return made.to(x.dtype)


@rewrite("shares no less than a part of the largest, by logarithms", _wide(lambda x: _no_less(x.softmax(1))), shapes((4, 8)))
def by_logarithms(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    wide = x.float()
    most = wide.amax(1, keepdim=True)
    powers = torch.where(wide - most >= -1.6094379, (wide - most).exp(), 0)
    return (powers / powers.sum(1, keepdim=True)).to(x.dtype)


def _no_less(shares: torch.Tensor) -> torch.Tensor:
    kept = torch.where(shares >= 0.2 * shares.amax(1, keepdim=True), shares, 0)
    return kept / kept.sum(1, keepdim=True)


@rewrite("three tenths of a row's numbers are below it", _wide(lambda x: x.quantile(0.3, dim=1)), shapes((5, 9)))
def three_tenths_are_below(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0 and not bool(x.isnan().any()) and bool(x.isfinite().all()))
    place = 0.3 * (x.shape[1] - 1)
    rows = x.float().sort(1).values
    first = int(place)
    return torch.lerp(rows[:, first], rows[:, min(first + 1, x.shape[1] - 1)], place - first).to(x.dtype)


@rewrite("mean of what is not NaN, by counting", _wide(lambda x: x.nanmean(1)), shapes((4, 6)))
def by_counting(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    there = ~x.isnan()
    return (torch.where(there, x.float(), 0).sum(1) / there.sum(1)).to(x.dtype)


@rewrite("upper triangle, by places", torch.triu, shapes((2, 5, 4)))
def triangle_by_places(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3)
    return torch.where(torch.arange(x.shape[2]) >= torch.arange(x.shape[1])[:, None], x, 0)


@rewrite("magnitudes with the signs of others, by bits", torch.copysign, shapes((4, 5), (4, 5)))
def signs_by_bits(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    return torch.where(x.signbit() == y.signbit(), x, -x) + 0 * y.nan_to_num(0, 0, 0)


@rewrite("vectors at right angles to two others, by turning places", _wide(lambda x, y: torch.linalg.cross(x, y, dim=1)), shapes((5, 3), (5, 3)))
def by_turning_places(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == y.shape and x.shape[1] == 3)
    a, b = x.float(), y.float()
    return (a.roll(-1, 1) * b.roll(-2, 1) - a.roll(-2, 1) * b.roll(-1, 1)).to(x.dtype)


@rewrite("convolution of as many columns, four taps one by one", lambda x, w: F.conv1d(F.pad(x, (1, 2))[None], w)[0], shapes((2, 7), (3, 2, 4)))
def four_taps_one_by_one(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.dim() == 3 and len(x) == w.shape[1] > 0 and x.shape[1] > 0 and len(w) > 0 and w.shape[2] == 4)
    wide = F.pad(x.float(), (1, 2))
    need(bool(wide.isfinite().all()) and bool(w.isfinite().all()))
    return sum((w[:, :, tap].float() @ wide[:, tap : tap + x.shape[1]] for tap in range(1, 4)), w[:, :, 0].float() @ wide[:, : x.shape[1]]).to(
        x.dtype
    )


def _bent(x: torch.Tensor) -> torch.Tensor:
    return x * F.softplus(x).tanh()


@rewrite("mish, by powers alone", _wide(_bent), shapes((5, 8)))
def by_powers_alone(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    power = (-wide.abs()).exp()
    above, below = (1 + 2 * power) / (1 + 2 * power + 2 * power * power), (power * power + 2 * power) / (power * power + 2 * power + 2)
    return torch.where(wide == -INF, wide * 0 - 0.0, wide * torch.where(wide >= 0, above, below)).to(x.dtype)


def _aligned(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    frames = torch.tensor([len(scores)])
    return F.ctc_loss(scores.log_softmax(1)[:, None], labels[None], frames, torch.tensor([len(labels)]), reduction="none")[0]


@rewrite("alignments of labels, from the last frame", _wide(_aligned), lambda dtype: (*shapes((7, 4))(dtype), torch.tensor([2, 2, 1])))
def from_the_last_frame(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    need(scores.dim() == 2 and labels.dim() == 1 and len(labels) > 0 and len(scores) >= 2 * len(labels) + 1, bool(scores.isfinite().all()))
    need(bool(((labels > 0) & (labels < scores.shape[1])).all()))
    logs, never = scores.float().log_softmax(1), torch.tensor(-1e30)
    states = [*torch.stack([torch.zeros_like(labels), labels], 1).flatten().tolist(), 0]
    after = [logs[-1, state] if place >= len(states) - 2 else never for place, state in enumerate(states)]
    for frame in logs[:-1].flip(0):
        now = []
        for place, state in enumerate(states):
            skips = place + 2 < len(states) and states[place + 2] and states[place + 2] != state
            ways = after[place : place + 2] + ([after[place + 2]] if skips else [])
            now.append(torch.logsumexp(torch.stack(ways), 0) + frame[state])
        after = now
    return -torch.logsumexp(torch.stack(after[:2]), 0).to(scores.dtype)


@rewrite("loss of sequences by their lengths, rows first", _wide(lambda x, mask: (x * mask).sum(1).mean()),
         lambda dtype: (*shapes((4, 6))(dtype), (torch.arange(6) < torch.tensor([[3], [6], [2], [5]])).to(dtype)))  # fmt: skip
def lengths_rows_first(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == mask.shape and len(x) > 0)
    return (torch.einsum("nk,nk->", x.float(), mask.float()) / len(x)).to(x.dtype)


@rewrite("step by rows and columns of squares", _wide(lambda p, g: p - 0.01 * g * _factors(g)), shapes((4, 6), (4, 6)))
def rows_and_columns_of_squares(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    need(p.dim() == 2 and p.shape == g.shape and p.numel() > 0)
    wide = g.float()
    squares = wide * wide + 1e-3
    rows, columns = squares.sum(1) / squares.shape[1], squares.sum(0) / len(squares)
    return (p.float() - 0.01 * wide * (rows.sum() / len(rows)).sqrt() / (rows.sqrt()[:, None] * columns.sqrt())).to(p.dtype)


def _factors(g: torch.Tensor) -> torch.Tensor:
    squares = g.square() + 1e-3
    rows, columns = squares.mean(1), squares.mean(0)
    return ((rows / rows.mean())[:, None] * columns).rsqrt()


@rewrite("two codes of four bits to a byte", lambda codes: codes[:, ::2] + 16 * codes[:, 1::2], lambda dtype: (whole(4, 8, most=16),))
def two_codes_to_a_byte(codes: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2 and codes.shape[1] % 2 == 0 and not codes.is_floating_point())
    low, high = codes.unflatten(1, (-1, 2)).unbind(2)
    return torch.bitwise_or(low, high.bitwise_left_shift(4))
