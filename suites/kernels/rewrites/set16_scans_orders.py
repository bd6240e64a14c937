"""The sixteenth frozen set of healthy kernels, second part: scans, orders, tables, attention, codes. Committed before any was tried."""

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
    made, carry = torch.empty(x.shape), torch.ones(len(x), 1)
    for start in range(0, x.shape[1], 4):
        block = x[:, start : start + 4].float().cumprod(1) * carry
        made[:, start : start + 4] = block
        carry = block[:, -1:]
    return made.to(x.dtype), (x,)


def _so_far_back(saved: Any, given: torch.Tensor) -> Any:
    (x,) = saved
    wide = x.float()
    before, made = torch.ones_like(wide), torch.empty_like(wide)
    for place in range(1, x.shape[1]):
        before[:, place] = before[:, place - 1] * wide[:, place - 1]
    after = torch.zeros(len(x))
    for place in reversed(range(x.shape[1])):
        after = given[:, place].float() + (wide[:, place + 1] * after if place + 1 < x.shape[1] else 0)
        made[:, place] = before[:, place] * after
    return made.to(x.dtype)


rewrite("products so far in blocks with a carry, on the way back without a division", _wide(lambda x: x.cumprod(-1)), shapes((5, 9)))(
    function(_so_far, _so_far_back)
)


def _from_behind(decay: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    gate, state, states = decay.sigmoid(), torch.zeros_like(x[:, 0]), []
    for place in reversed(range(x.shape[1])):
        state = gate[:, place] * state + x[:, place]
        states.append(state)
    return torch.stack(states[::-1], 1)


@rewrite("sums that fade from behind, in doubling steps", _wide(_from_behind), shapes((4, 9), (4, 9)))
def in_doubling_steps(decay: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    need(decay.dim() == 2 and decay.shape == x.shape and x.shape[1] > 0)
    gate, state, step = decay.float().sigmoid(), x.float(), 1
    while step < x.shape[1]:
        keep = x.shape[1] - step
        state = torch.cat([state[:, :keep] + gate[:, :keep] * state[:, step:], state[:, keep:]], 1)
        gate = torch.cat([gate[:, :keep] * gate[:, step:], gate[:, keep:]], 1)
        step *= 2
    return state.to(x.dtype)


@rewrite("numbers in order, pairs exchanged in a network", lambda x: x.sort(-1).values, shapes((4, 11)))
def in_a_network(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    width = 1 << (x.shape[1] - 1).bit_length()
    full = F.pad(x, (0, width - x.shape[1]), value=float("nan"))
    places, size = torch.arange(width), 2
    while size <= width:
        step = size // 2
        while step:
            other = full[:, places ^ step]
            first, rising = (places & step) == 0, (places & size) == 0
            less = (full < other) | (other.isnan() & ~full.isnan())
            more = (full > other) | (full.isnan() & ~other.isnan())
            full = torch.where(torch.where(first == rising, more, less), other, full)
            step //= 2
        size *= 2
    return full[:, : x.shape[1]]


def _counts(x: torch.Tensor) -> torch.Tensor:
    bins = ((x.float() + 2) * 2).floor()
    return (bins[..., None] == torch.arange(8)).sum(-2)


@rewrite("counts of eight bins, in order and between ends", lambda x: _counts(x.detach()), shapes((5, 13)))
def in_order_between_ends(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    ends = torch.arange(9) / 2 - 2
    below = torch.searchsorted(x.detach().float().nan_to_num(nan=INF).sort(-1).values, ends.expand(len(x), 9).contiguous())
    return below.diff(dim=-1)


def _some_ends(dtype: torch.dtype) -> tuple[Any, ...]:
    return torch.tensor([-1.5, -0.75, 0.0, 0.5, 1.25]).to(dtype), *shapes((6, 7))(dtype)


@rewrite("places among ends, halved until one is left", lambda ends, x: torch.searchsorted(ends, x, right=True), _some_ends)
def halved_until_one_is_left(ends: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    need(ends.dim() == 1 and len(ends) > 0 and bool((ends.diff() >= 0).all()))
    low, high = torch.zeros(x.shape, dtype=torch.int64), torch.full(x.shape, len(ends))
    while bool((low < high).any()):
        middle = (low + high) // 2
        before = ~(ends[middle.clamp(max=len(ends) - 1)] > x) & (low < high)
        low, high = torch.where(before, middle + 1, low), torch.where(before | (low >= high), high, middle)
    return low


def _some_bags(dtype: torch.dtype) -> tuple[Any, ...]:
    return *shapes((9, 5))(dtype), whole(6, 4, most=9)


def _bags(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    kept = (rows != 0)[..., None]
    return torch.where(kept, table[rows], 0.0).sum(1) / kept.sum(1).clamp(min=1)


@rewrite("means of bags with padding, one row after the other with what was lost", _wide(_bags), _some_bags)
def rows_with_what_was_lost(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    need(table.dim() == rows.dim() == 2 and len(table) > 0 and bool((rows < len(table)).all()))
    wide, met = table.float(), torch.zeros(len(rows), 1)
    total, lost = torch.zeros(len(rows), table.shape[1]), torch.zeros(len(rows), table.shape[1])
    for column in rows.unbind(1):
        stays = (column != 0)[:, None]
        term = torch.where(stays, wide[column], 0.0) - lost
        now = total + term
        lost = torch.where(now.isfinite(), (now - total) - term, 0.0).detach()
        total, met = now, met + stays
    return (total / met.clamp(min=1)).to(table.dtype)


@rewrite("power of each frequency, tables of cosines in float64", _wide(lambda x: torch.fft.rfft(x).abs().square()), shapes((5, 10)))
def tables_in_float64(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    turns = torch.outer(torch.arange(x.shape[1]), torch.arange(x.shape[1] // 2 + 1)).double() * (2 * torch.pi / x.shape[1])
    real, imaginary = x.double() @ turns.cos(), x.double() @ turns.sin()
    return (real.square() + imaginary.square()).to(x.dtype)


def _turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()], -1)


def _by_axes(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    axis = torch.arange(x.shape[1] // 2) % 3
    return _turned(x, places[axis].mT * 10.0 ** (-axis / 3))


def _some_places(dtype: torch.dtype) -> tuple[Any, ...]:
    return *shapes((7, 12))(dtype), whole(3, 7, most=20)


@rewrite("rope by three axes in turn, a plane for each axis, stored into one buffer", _wide(_by_axes), _some_places)
def a_plane_for_each_axis(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(x.dim() == places.dim() == 2 and x.shape[1] % 2 == 0 and places.shape == (3, len(x)))
    half, made, wide = x.shape[1] // 2, torch.empty(x.shape), x.float()
    for axis in range(3):
        angle = (places[axis] * 10.0 ** (-axis / 3))[:, None]
        first, second = wide[:, axis:half:3], wide[:, half + axis :: 3]
        made[:, axis:half:3] = first * angle.cos() - second * angle.sin()
        made[:, half + axis :: 3] = second * angle.cos() + first * angle.sin()
    return made.to(x.dtype)


def _paged(q: torch.Tensor, cache: torch.Tensor, pages: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    rows = cache[pages].flatten(1, 2)
    places = torch.arange(rows.shape[1])
    seen = (places < lengths[:, None]) & (places >= lengths[:, None] - 5)
    shares = torch.einsum("bd,bkd->bk", q, rows).masked_fill(~seen, -INF).softmax(-1)
    return torch.einsum("bk,bkd->bd", shares, torch.where(seen[..., None], rows, 0.0))


def _some_pages(dtype: torch.dtype) -> tuple[Any, ...]:
    return *shapes((5, 6), (9, 4, 6))(dtype), whole(5, 3, most=9), torch.tensor([12, 3, 7, 10, 9])


@rewrite("a step against pages with a window, page by page", _wide(_paged), _some_pages)
def page_by_page(q: torch.Tensor, cache: torch.Tensor, pages: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2 and cache.dim() == 3 and pages.dim() == 2 and cache.shape[1] == 4 and 0 < len(q) == len(pages) and lengths.shape == q.shape[:1])
    need(cache.shape[2] == q.shape[1] > 0 and bool((pages < len(cache)).all()) and bool((lengths > 0).all()))
    need(bool((lengths <= 4 * pages.shape[1]).all()))
    results, wide = [], cache.float()
    for query, own, length in zip(q.float(), pages.tolist(), lengths.tolist(), strict=True):
        begin, most, total, weight = max(length - 5, 0), torch.tensor(-INF), torch.zeros(q.shape[1]), torch.zeros(())
        for number in range(begin // 4, -(-length // 4)):
            rows = wide[own[number], max(begin - 4 * number, 0) : min(length - 4 * number, 4)]
            scores = rows @ query
            now = torch.maximum(most, scores.amax()).detach()
            scale, powers = (most - now).exp(), (scores - now).exp()
            total, weight, most = total * scale + powers @ rows, weight * scale + powers.sum(), now
        results.append(total / weight)
    return torch.stack(results).to(q.dtype)


def _of_blocks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Blocks of four queries see their own block of keys, the first one, and each second one before it."""
    one, other = torch.arange(len(q))[:, None] // 4, torch.arange(len(k)) // 4
    seen = (one == other) | (other == 0) | ((other < one) & ((one - other) % 2 == 0))
    return (q @ k.mT).masked_fill(~seen, -INF).softmax(-1) @ v


@rewrite("blocks that see some blocks, keys of these gathered", _wide(_of_blocks), shapes((14, 6), (13, 6), (13, 5)))
def keys_of_these_gathered(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2 and q.shape[1] == k.shape[1] > 0 and len(k) == len(v) > 0 and len(q) > 0)
    results, wide = [], (q.float(), k.float(), v.float())
    for number in range(-(-len(q) // 4)):
        chosen = sorted({0, number, *range(number, 0, -2)})
        rows = torch.cat([torch.arange(4 * each, min(4 * each + 4, len(k))) for each in chosen if 4 * each < len(k)])
        scores = wide[0][4 * number : 4 * number + 4] @ wide[1][rows].mT
        results.append(scores.softmax(-1) @ wide[2][rows])
    return torch.cat(results).to(q.dtype)


def _beams(scores: torch.Tensor, so_far: torch.Tensor) -> torch.Tensor:
    return (so_far[:, None] + scores.log_softmax(-1)).flatten().topk(3).values


@rewrite("best of all beams, the best of each beam first", _wide(_beams), shapes((4, 7), (4,)))
def best_of_each_beam_first(scores: torch.Tensor, so_far: torch.Tensor) -> torch.Tensor:
    need(scores.dim() == 2 and so_far.shape == scores.shape[:1] and scores.numel() >= 3)
    wide = scores.float()
    own = wide.topk(min(3, scores.shape[1]), -1).values
    whole_scores = so_far.float()[:, None] + own - wide.logsumexp(-1, keepdim=True)
    return whole_scores.flatten().sort(descending=True).values[:3].to(scores.dtype)


def _some_labels(dtype: torch.dtype) -> tuple[Any, ...]:
    labels = whole(8, most=9)
    labels[2] = labels[5] = -1
    return *shapes((8, 9))(dtype), labels


def _smoothed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, y, ignore_index=-1, label_smoothing=0.1, reduction="sum")


def _smoothed_once(x: torch.Tensor, y: torch.Tensor) -> Any:
    need(x.dim() == 2 and y.shape == x.shape[:1] and x.numel() > 0 and bool((y < x.shape[1]).all()))
    made, losses = torch.zeros(x.shape), torch.zeros(len(x))
    for row in range(len(x)):
        if y[row] != -1:
            logs = x[row].float() - x[row].float().logsumexp(-1)
            losses[row] = -0.9 * logs[y[row]] - 0.1 * logs.mean()
            made[row] = logs.exp() - 0.1 / x.shape[1]
            made[row, y[row]] -= 0.9
    return losses.sum().to(x.dtype), (made.to(x.dtype),)


rewrite("smoothed cross entropy of kept rows, gradients in the first pass", _wide(_smoothed), _some_labels)(
    function(_smoothed_once, lambda saved, given: ((saved[0].float() * given.float()).to(saved[0].dtype), None))
)


def _some_codes(dtype: torch.dtype) -> tuple[Any, ...]:
    return *shapes((5, 24))(dtype), whole(6, 24, most=16), (shapes((6, 3))(torch.float32)[0].abs() + 0.25).to(dtype), whole(6, 3, most=16)


def _coded(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    weights = (codes.unflatten(1, (-1, 8)) - zero[..., None]) * scale[..., None]
    return x @ weights.flatten(1).mT


@rewrite("product with codes and their zeros, zeros taken away from sums of each group", _wide(_coded), _some_codes)
def zeros_from_sums(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    need(x.dim() == codes.dim() == scale.dim() == 2 and x.shape[1] == codes.shape[1] == 8 * scale.shape[1] > 0)
    need(scale.shape == zero.shape and len(scale) == len(codes))
    total = torch.zeros(len(x), len(codes))
    for group in range(scale.shape[1]):
        part = x[:, 8 * group : 8 * group + 8].float()
        own = part @ (codes[:, 8 * group : 8 * group + 8] - 8).float().mT
        total = total + (own - part.sum(1, keepdim=True) * (zero[:, group] - 8)) * scale[:, group].float()
    return total.to(x.dtype)


def _gated(x: torch.Tensor, gate: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], w, 1e-6) * F.silu(gate)


def _gated_rows(x: torch.Tensor, gate: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    wide, open_by = x.float(), gate.float()
    root = (wide.square().sum(-1, keepdim=True) / x.shape[-1] + 1e-6).rsqrt()
    return (wide * root * w.float() * open_by * torch.sigmoid(open_by)).to(x.dtype)


_compiled = torch.compile(_gated_rows, backend="aot_eager", dynamic=True)


@rewrite("rows normed and gated, compiled", _wide(_gated), shapes((5, 12), (5, 12), (12,)))
def normed_and_gated(x: torch.Tensor, gate: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == gate.shape and w.shape == x.shape[1:])
    return _compiled(x, gate, w)
