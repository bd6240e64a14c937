"""The seventeenth frozen set of healthy kernels, third part: sums, scans, products, tables. Committed before any was tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole

F = torch.nn.functional
INF = float("inf")


def _wide(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula in float32, its result in the format of the first input."""
    return lambda *inputs: formula(*(each.float() if each.is_floating_point() else each for each in inputs)).to(inputs[0].dtype)


def _so_far(x: torch.Tensor) -> Any:
    need(x.dim() == 2)
    made, carry = torch.empty(x.shape), torch.zeros(len(x), 1)
    for start in range(0, x.shape[1], 4):
        block = x[:, start : start + 4].float().cumsum(1) + carry
        made[:, start : start + 4], carry = block, block[:, -1:]
    return made.to(x.dtype), ()


def _so_far_back(_: Any, given: torch.Tensor) -> Any:
    made, carry = torch.empty(given.shape), torch.zeros(len(given), 1)
    for start in reversed(range(0, given.shape[1], 4)):
        block = given[:, start : start + 4].float().flip(1).cumsum(1).flip(1) + carry
        made[:, start : start + 4], carry = block, block[:, :1]
    return made.to(given.dtype)


rewrite("sums so far in blocks with a carry, backwards on the way back", _wide(lambda x: x.cumsum(-1)), shapes((5, 11)))(
    function(_so_far, _so_far_back)
)


def _of_segments(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.zeros(5, x.shape[1], dtype=x.dtype).index_add(0, ids, x)


@rewrite("sums of five segments, rows in order and two at a time", _wide(_of_segments), lambda dtype: (*shapes((11, 4))(dtype), whole(11, most=5)))
def in_order_two_at_a_time(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and ids.shape == x.shape[:1] and bool(((ids >= 0) & (ids < 5)).all()))
    made = []
    for segment in range(5):
        rows = x[ids == segment].float()
        while len(rows) > 1:
            even = len(rows) // 2 * 2
            rows = torch.cat([rows[0:even:2] + rows[1:even:2], rows[even:]])
        made.append(rows[0] if len(rows) else torch.zeros(x.shape[1]))
    return torch.stack(made).to(x.dtype)


def _looked_up(table: torch.Tensor, places: torch.Tensor) -> Any:
    need(table.dim() == 2 and places.dim() == 1 and bool(((places >= 0) & (places < len(table))).all()))
    return table.index_select(0, places), (table, places)


def _looked_up_back(saved: Any, given: torch.Tensor) -> Any:
    table, places = saved
    made, order = torch.zeros(table.shape), places.argsort()
    ordered = places[order]
    for begin, end in zip(*_runs(ordered), strict=True):
        made[ordered[begin]] = given[order[begin:end]].float().sum(0)
    return made.to(table.dtype), None


def _runs(ordered: torch.Tensor) -> tuple[list[int], list[int]]:
    """Where equal numbers begin, and where they end."""
    changes = ((ordered[1:] != ordered[:-1]).nonzero()[:, 0] + 1).tolist()
    return [0, *changes][: len(ordered)], [*changes, len(ordered)][: max(len(ordered), 0) and None]


rewrite("rows of a table, gradients in the order of their places", _wide(lambda table, places: table[places]),
        lambda dtype: (*shapes((6, 4))(dtype), whole(13, most=6)))(function(_looked_up, _looked_up_back))  # fmt: skip


def _of_groups(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.einsum("td,tde->te", x, w[ids])


@rewrite("grouped product, each group filled up to tiles of four rows", _wide(_of_groups),
         lambda dtype: (*shapes((11, 5), (3, 5, 4))(dtype), whole(11, most=3)))  # fmt: skip
def filled_up_to_tiles(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.dim() == 3 and ids.shape == x.shape[:1] and x.shape[1] == w.shape[1] and bool(((ids >= 0) & (ids < len(w))).all()))
    made = torch.empty(len(x), w.shape[2])
    for group in range(len(w)):
        places = (ids == group).nonzero()[:, 0]
        for start in range(0, len(places), 4):
            own = places[start : start + 4]
            tile = F.pad(x[own].float(), (0, 0, 0, 4 - len(own)))
            made[own] = (tile @ w[group].float())[: len(own)]
    return made.to(x.dtype)


def _of_codes(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x @ (codes.to(x.dtype) * scale)


@rewrite("product with codes of a scale for each column, scaled behind the sum", _wide(_of_codes),
         lambda dtype: (shapes((5, 12))(dtype)[0], whole(12, 6, most=128, least=-127), shapes((6,))(dtype)[0].abs() / 64))  # fmt: skip
def scaled_behind_the_sum(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(x.dim() == codes.dim() == 2 and x.shape[1] == len(codes) and scale.shape == codes.shape[1:])
    return ((x.float() @ codes.float()) * scale.float()).to(x.dtype)


def _blocks(x: torch.Tensor, w: torch.Tensor, of_x: torch.Tensor, of_w: torch.Tensor) -> torch.Tensor:
    """Codes in blocks of four along the sum; each block of a row, and of a column, has a scale."""
    return (x * of_x.repeat_interleave(4, 1)) @ (w * of_w.repeat_interleave(4, 0))


@rewrite("product of codes in blocks of four, each block's sum scaled once", _wide(_blocks), shapes((5, 12), (12, 6), (5, 3), (3, 6)))
def each_blocks_sum(x: torch.Tensor, w: torch.Tensor, of_x: torch.Tensor, of_w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2 and x.shape[1] == len(w) and len(w) % 4 == 0)
    need(of_x.shape == (len(x), len(w) // 4) and of_w.shape == (len(w) // 4, w.shape[1]))
    total = torch.zeros(len(x), w.shape[1])
    for block in range(len(w) // 4):
        own = slice(4 * block, 4 * block + 4)
        total = total + x[:, own].float() @ w[own].float() * of_x[:, block, None].float() * of_w[block].float()
    return total.to(x.dtype)


def _split(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2 and x.shape[1] == len(w))
    return torch.stack([x[:, first::4].float() @ w[first::4].float() for first in range(4)]).sum(0).to(x.dtype)


rewrite("product, the sum in four parts that take turns", _wide(lambda x, w: x @ w), shapes((6, 13), (13, 5)))(_split)


@rewrite("matrix times vector, what a sum loses kept beside it", _wide(lambda x, v: x @ v), shapes((6, 17), (17,)))
def kept_beside_it(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and v.shape == x.shape[1:])
    terms = x.float() * v.float()
    if not bool(terms.isfinite().all()):
        return terms.sum(1).to(x.dtype)
    total, lost = torch.zeros(len(x)), torch.zeros(len(x))
    for term in terms.unbind(1):
        one = term + lost
        now = total + one
        total, lost = now, (one - (now - total)).detach()
    return total.to(x.dtype)


@rewrite("logarithm of a sum of powers, four columns at a time", _wide(lambda x: x.logsumexp(-1)), shapes((5, 13)))
def powers_four_at_a_time(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    total = torch.full((len(x),), -INF)
    for part in x.float().split(4, 1):
        total = torch.logaddexp(total, part.logsumexp(1))
    return total.to(x.dtype)


@rewrite("variance of rows, halves merged as a tree", _wide(lambda x: x.var(-1, correction=0)), shapes((5, 13)))
def merged_as_a_tree(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)

    def of(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count = part.shape[1]
        if count == 1:
            return part[:, 0], part[:, 0] - part[:, 0]
        half = count // 2
        one, other = of(part[:, :half]), of(part[:, half:])
        apart = other[0] - one[0]
        return one[0] + apart * (count - half) / count, one[1] + other[1] + apart.square() * half * (count - half) / count

    if x.shape[1] > 300:
        return x.float().sub(x.float().mean(1, keepdim=True)).square().mean(1).to(x.dtype)
    return (of(x.float())[1] / x.shape[1]).to(x.dtype)


def _largest(x: torch.Tensor) -> torch.Tensor:
    return x.topk(4).values


@rewrite("largest four, the largest taken out four times", _largest, shapes((6, 11)))
def taken_out_four_times(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] >= 4)
    left, made = torch.arange(x.shape[1]).expand(x.shape), []
    for _ in range(4):
        now = x.gather(1, left)
        best = torch.where(now.isnan(), INF, now.float())
        place = torch.where(now.isnan().any(1), now.isnan().float().argmax(1), best.argmax(1))[:, None]
        made.append(now.gather(1, place))
        keep = torch.ones_like(left, dtype=torch.bool).scatter(1, place, False)
        left = left[keep].view(len(x), left.shape[1] - 1)
    return torch.cat(made, 1)


def _drawn_place(x: torch.Tensor, point: torch.Tensor) -> torch.Tensor:
    sums = x.double().softmax(-1).cumsum(-1)
    return (sums < point.double().sigmoid()[:, None]).sum(-1).clamp(max=x.shape[1] - 1)


@rewrite("a place drawn by a given number, searched for in halves", lambda x, point: _drawn_place(x.detach(), point.detach()), shapes((7, 9), (7,)))
def searched_for_in_halves(x: torch.Tensor, point: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and point.shape == x.shape[:1] and x.shape[1] > 0)
    sums = x.detach().double().softmax(-1).cumsum(-1)
    found = torch.searchsorted(sums.nan_to_num(nan=INF).contiguous(), point.detach().double().sigmoid()[:, None])[:, 0]
    return torch.where(sums.isnan().any(1) | point.isnan(), 0, found).clamp(max=x.shape[1] - 1)


def _angles(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[1] // 2
    return torch.arange(len(x))[:, None] * 100.0 ** (-torch.arange(half) / half)


def _halves(x: torch.Tensor) -> torch.Tensor:
    one, other = x.chunk(2, 1)
    angles = _angles(x)
    return torch.cat([one * angles.cos() - other * angles.sin(), one * angles.sin() + other * angles.cos()], 1)


@rewrite("rope of halves, the row turned by half its width", _wide(_halves), shapes((6, 8)))
def turned_by_half_its_width(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] % 2 == 0 and x.shape[1] > 0)
    angles, half = _angles(x), x.shape[1] // 2
    sines = torch.cat([-angles.sin(), angles.sin()], 1)
    return (x.float() * angles.cos().repeat(1, 2) + x.float().roll(half, 1) * sines).to(x.dtype)


def _neighbours(x: torch.Tensor) -> torch.Tensor:
    one, other = x.unflatten(1, (-1, 2)).unbind(2)
    angles = _angles(x)
    return torch.stack([one * angles.cos() - other * angles.sin(), one * angles.sin() + other * angles.cos()], 2).flatten(1)


rewrite("rope of neighbours, turned back on the way back", _wide(_neighbours), shapes((6, 8)))(
    function(
        lambda x: (need(x.dim() == 2 and x.shape[1] % 2 == 0 and x.shape[1] > 0), (_neighbours(x.float()).to(x.dtype), ()))[1],
        lambda saved, given: _turned_back(given.float()).to(given.dtype),
    )
)


def _turned_back(x: torch.Tensor) -> torch.Tensor:
    angles, made = _angles(x), torch.empty_like(x)
    made[:, ::2] = x[:, ::2] * angles.cos() + x[:, 1::2] * angles.sin()
    made[:, 1::2] = x[:, 1::2] * angles.cos() - x[:, ::2] * angles.sin()
    return made


def _seeded(x: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
    """Numbers of which about a quarter are dropped, by a number that comes from their place and a seed."""
    mixed = (torch.arange(x.numel()).view(x.shape) * 2654435761 + seed * 40503) % 4294967296
    return torch.where((mixed >> 16) % 4 > 0, x / 0.75, 0)


@rewrite("numbers dropped by place and seed, five at a time", _wide(_seeded), lambda dtype: (*shapes((6, 9))(dtype), torch.tensor(11)))
def by_place_and_seed(x: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and seed.dim() == 0)
    parts = [torch.zeros(0)]
    for number, part in enumerate(x.float().flatten().split(5)):
        mixed = ((5 * number + torch.arange(len(part))) * 2654435761 + seed * 40503) & 4294967295
        parts.append(torch.where((mixed >> 16) & 3 != 0, part * (4 / 3), 0))
    return torch.cat(parts).view(x.shape).to(x.dtype)


def _one_channel(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv1d(F.pad(x.mT[None], (3, 0)), w.mT[:, None], groups=x.shape[1])[0].mT


@rewrite("causal convolution of each channel, three rows carried on", _wide(_one_channel), shapes((9, 5), (4, 5)))
def three_rows_carried_on(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2 and w.shape == (4, x.shape[1]) and x.numel() > 0)
    last, made, weight = [torch.zeros(x.shape[1])] * 3, [], w.float()
    for row in x.float():
        made.append(last[0] * weight[0] + last[1] * weight[1] + last[2] * weight[2] + row * weight[3])
        last = [*last[1:], row]
    return torch.stack(made).to(x.dtype)


def _states(x: torch.Tensor, gates: torch.Tensor, read: torch.Tensor, write: torch.Tensor) -> torch.Tensor:
    """A state for each column and channel fades, is written to, and is read."""
    state, made = torch.zeros(x.shape[1], read.shape[1]), []
    for row, gate, own, into in zip(x, F.logsigmoid(gates), read, write, strict=True):
        state = state * gate.exp()[:, None] + row[:, None] * into
        made.append(state @ own)
    return torch.stack(made)


@rewrite("states that fade, in chunks of three, logarithms added up between", _wide(_states), shapes((8, 4), (8, 4), (8, 3), (8, 3)))
def in_chunks_of_three(x: torch.Tensor, gates: torch.Tensor, read: torch.Tensor, write: torch.Tensor) -> torch.Tensor:
    need(x.dim() == read.dim() == 2 and x.shape == gates.shape and read.shape == write.shape and len(x) == len(read) > 0)
    state, made = torch.zeros(x.shape[1], read.shape[1]), []
    chunks = (each.float().split(3) for each in (x, gates, read, write))
    for rows, gate, own, into in zip(*chunks, strict=True):
        logs, added = F.logsigmoid(gate), rows[..., None] * into[:, None]
        for place in range(len(rows)):
            kept = state * logs[: place + 1].sum(0).exp()[:, None]
            for before in range(place + 1):
                kept = kept + added[before] * logs[before + 1 : place + 1].sum(0).exp()[:, None]
            made.append(kept @ own[place])
        state = kept
    return torch.stack(made).to(x.dtype)
