"""The twenty-fourth frozen set of healthy kernels, third part: places, scans, tables, pictures, codes, steps. Committed before any was tried."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole

F = torch.nn.functional


def _wide(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula in float32, its results in the format of the first tensor."""

    @functools.wraps(formula)
    def made(*inputs: Any, **named: Any) -> Any:
        up = {name: each.float() if isinstance(each, torch.Tensor) and each.is_floating_point() else each for name, each in named.items()}
        out = formula(*(each.float() if each.is_floating_point() else each for each in inputs), **up)
        dtype = (inputs or tuple(named.values()))[0].dtype
        return tuple(each.to(dtype) for each in out) if isinstance(out, tuple) else out.to(dtype)

    return made


# Places


def _turned(x: torch.Tensor, phase: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[2] % 2 == 0, phase.shape == (x.shape[1], x.shape[2] // 2))
    (one, two), cos, sin = x.chunk(2, 2), phase.cos(), phase.sin()
    return torch.cat([one * cos - two * sin, two * cos + one * sin], 2)


@rewrite("rotation by complex numbers", _wide(_turned), shapes((2, 5, 8), (5, 4)))
@_wide
def by_complex_numbers(x: torch.Tensor, phase: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[2] % 2 == 0, phase.shape == (x.shape[1], x.shape[2] // 2))
    pairs = torch.complex(*(each.contiguous() for each in x.chunk(2, 2))) * torch.complex(phase.cos(), phase.sin())
    return torch.cat([pairs.real, pairs.imag], 2)


@rewrite("rotation that turns back on the way back", _wide(lambda x, phase: _turned(x, phase.detach())), shapes((2, 5, 8), (5, 4)))
def turns_back(x: torch.Tensor, phase: torch.Tensor) -> torch.Tensor:
    up = phase.float().detach()
    return function(lambda x: (_turned(x.float(), up).to(x.dtype), ()), lambda saved, g: _turned(g.float(), -up).to(g.dtype))(x)


# Scans


def _recurrence(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape == keep.shape)
    state, out = torch.zeros_like(x[:, :1].sum(1)), []
    for step in range(x.shape[1]):
        state = keep[:, step].sigmoid() * state + x[:, step]
        out.append(state)
    return torch.stack(out, 1) if out else x.clone()


@rewrite("states by doubling", _wide(_recurrence), shapes((2, 7, 3), (2, 7, 3)))
@_wide
def by_doubling(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape == keep.shape)
    share, step = keep.sigmoid(), 1
    while step < x.shape[1]:
        x = torch.cat([x[:, :step], x[:, step:] + share[:, step:] * x[:, :-step]], 1)
        share = torch.cat([share[:, :step], share[:, step:] * share[:, :-step]], 1)
        step *= 2
    return x.clone()


@rewrite("states, their backward as a scan", _wide(_recurrence), shapes((2, 5, 4), (2, 5, 4)))
@_wide
def backward_as_a_scan(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape == keep.shape)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        share, states = saved
        carry, by_x = torch.zeros_like(g[:, :1].sum(1)), []
        for step in range(g.shape[1] - 1, -1, -1):
            carry = g[:, step] + carry
            by_x.append(carry)
            carry = carry * share[:, step]
        slope = torch.stack(by_x[::-1], 1) if by_x else g.clone()
        before = F.pad(states, (0, 0, 1, 0))[:, : states.shape[1]]
        return slope, slope * before * share * (1 - share)

    def forward(x: torch.Tensor, keep: torch.Tensor) -> Any:
        states = _recurrence(x, keep)
        return states, (keep.sigmoid(), states)

    return function(forward, backward)(x, keep)


def _linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 3, q.shape == k.shape, v.dim() == 3, v.shape[:2] == k.shape[:2])
    state, out = q.new_zeros(len(q), q.shape[2], v.shape[2]), []
    for step in range(q.shape[1]):
        state = state + k[:, step, :, None] * v[:, step, None]
        out.append((q[:, step, :, None] * state).sum(1))
    return torch.stack(out, 1) if out else v.clone()


@rewrite("attention without a softmax, chunks of three", _wide(_linear_attention), shapes((2, 7, 4), (2, 7, 4), (2, 7, 5)))
@_wide
def chunks_of_three(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 3, q.shape == k.shape, v.dim() == 3, v.shape[:2] == k.shape[:2])
    state, out = q.new_zeros(len(q), q.shape[2], v.shape[2]), []
    for one, two, three in zip(q.split(3, 1), k.split(3, 1), v.split(3, 1), strict=True):
        out.append(one @ state + (one @ two.mT).tril() @ three)
        state = state + two.mT @ three
    return torch.cat(out, 1) if out else v.clone()


@rewrite("returns, discounted, last first", _wide(lambda r: (r[:, None] * torch.triu(0.9 ** (
    torch.arange(len(r)) - torch.arange(len(r))[:, None]).clamp(min=0).to(r.dtype)).T).sum(0)), shapes((8,)))  # fmt: skip
@_wide
def last_first(r: torch.Tensor) -> torch.Tensor:
    need(r.dim() == 1)
    out: list[torch.Tensor] = []
    for each in r.flip(0).unbind():
        out.append(each + 0.9 * out[-1] if out else each)
    return torch.stack(out[::-1]) if out else r.clone()


# Tables


def _index(at: torch.Tensor, most: int) -> None:
    need(bool(((at >= 0) & (at < most)).all()))


@rewrite("rows of a table, their gradient sorted", lambda table, at: F.embedding(at, table),
         lambda dtype: (*shapes((6, 4))(dtype), whole(3, 5, most=6)))  # fmt: skip
def their_gradient_sorted(table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(table.dim() == 2)
    _index(at, len(table))

    def backward(saved: Any, g: torch.Tensor) -> Any:
        flat, rows = saved[0].flatten(), g.flatten(0, -2).float()
        order = flat.argsort(stable=True)
        return torch.zeros(len(table), rows.shape[1]).index_add(0, flat[order], rows[order]).to(g.dtype), None

    return function(lambda table, at: (table.index_select(0, at.flatten()).reshape(*at.shape, table.shape[1]), (at,)), backward)(table, at)


@rewrite("sums of rows of a table, one slot at a time", lambda table, at: F.embedding(at, table).sum(1),
         lambda dtype: (*shapes((6, 4))(dtype), whole(3, 5, most=6)))  # fmt: skip
@_wide
def one_slot_at_a_time(table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(table.dim() == at.dim() == 2)
    _index(at, len(table))
    return functools.reduce(torch.add, (table[column] for column in at.unbind(1)), table.new_zeros(len(at), table.shape[1]))


@rewrite("experts, tokens sorted by theirs", lambda x, w, at: torch.stack([row @ w[one] for row, one in zip(x, at.tolist(), strict=True)]),
         lambda dtype: (*shapes((7, 4), (3, 4, 5))(dtype), whole(7, most=3)))  # fmt: skip
@_wide
def sorted_by_theirs(x: torch.Tensor, w: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.dim() == 3, x.shape[1] == w.shape[1], at.shape == x.shape[:1], len(x) > 0)
    _index(at, len(w))
    order = at.argsort(stable=True)
    parts = x[order].split(at.bincount(minlength=len(w)).tolist())
    return torch.cat([part @ one for part, one in zip(parts, w, strict=True)])[order.argsort()]


@rewrite("results of experts put together, slots behind one another", lambda y, share, at: torch.zeros(5, y.shape[2], dtype=y.dtype).index_add(
    0, at.flatten(), (y * share[:, :, None]).flatten(0, 1)), lambda dtype: (*shapes((6, 2, 4), (6, 2))(dtype), whole(6, 2, most=5)))  # fmt: skip
@_wide
def slots_behind_one_another(y: torch.Tensor, share: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(y.dim() == 3, share.shape == at.shape == y.shape[:2])
    _index(at, 5)
    out = y.new_zeros(5, y.shape[2])
    for slot in range(y.shape[1]):
        out = torch.index_add(out, 0, at[:, slot], y[:, slot] * share[:, slot, None])
    return out


@rewrite("tokens packed without what fills up", lambda x, lengths: x[torch.arange(x.shape[1]) < lengths[:, None]],
         lambda dtype: (*shapes((3, 5, 4))(dtype), torch.tensor([5, 2, 3])))  # fmt: skip
def without_what_fills_up(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, lengths.shape == x.shape[:1], bool((lengths >= 0).all()))
    return torch.cat([row[:size] for row, size in zip(x, lengths.tolist(), strict=True)]) if len(x) else x.new_zeros(0, x.shape[2])


# Pictures


@rewrite("filter of sequences, shifted products", _wide(lambda x, w: F.conv1d(x, w, padding=1)), shapes((2, 3, 8), (4, 3, 3)))
@_wide
def shifted_products(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 3, x.shape[1] == w.shape[1], w.shape[2] == 3, x.numel() > 0)
    return sum(torch.einsum("nct,oc->not", F.pad(x, (1, 1))[:, :, tap : tap + x.shape[2]], w[:, :, tap]) for tap in range(3))


@rewrite("filter of each channel that looks back", lambda x, w: F.conv1d(F.pad(x, (3, 0)), w[:, None], groups=x.shape[1]), shapes((2, 3, 9), (3, 4)))
@_wide
def looks_back(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.shape == (x.shape[1], 4), x.numel() > 0)
    return (F.pad(x, (3, 0)).unfold(2, 4, 1) * w[:, None]).sum(3)


@rewrite("filter of pictures, by columns of patches", _wide(lambda x, w, b: F.conv2d(x, w, b)), shapes((2, 3, 5, 6), (4, 3, 2, 3), (4,)))
@_wide
def columns_of_patches(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 4, x.shape[1] == w.shape[1], b.shape == w.shape[:1], w.numel() > 0)
    need(x.shape[2] >= w.shape[2], x.shape[3] >= w.shape[3])
    patches = x.unfold(2, w.shape[2], 1).unfold(3, w.shape[3], 1)
    return torch.tensordot(patches, w, dims=([1, 4, 5], [1, 2, 3])).permute(0, 3, 1, 2) + b[:, None, None]


@rewrite("mixture of channels, pixels as rows", _wide(lambda x, w: F.conv2d(x, w[:, :, None, None])), shapes((2, 4, 3, 5), (6, 4)))
@_wide
def pixels_as_rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, w.dim() == 2, x.shape[1] == w.shape[1], x.numel() > 0)
    return (x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]) @ w.T).reshape(len(x), *x.shape[2:], len(w)).movedim(3, 1).contiguous()


@rewrite("filter turned round, by adding", _wide(lambda x, w: F.conv_transpose1d(x, w, stride=2) if w.shape[2] < 65 else need(False)),
         shapes((2, 3, 5), (3, 4, 3)))  # fmt: skip
@_wide
def by_adding(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 3, x.shape[1] == len(w), x.numel() > 0, w.numel() > 0)
    taps, size, each = w.shape[2], x.shape[2], torch.einsum("nct,cok->nokt", x, w)
    apart = torch.stack([each, torch.zeros_like(each)], 4).flatten(3)[..., : 2 * size - 1]
    return sum(F.pad(apart[:, :, k], (k, taps - 1 - k)) for k in range(taps))


@rewrite("largest of windows, shifted", lambda x: F.max_pool1d(x, 3, 1), shapes((2, 3, 8)))
def shifted(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[2] >= 3, x.shape[1] > 0)
    return torch.stack([x[:, :, :-2], x[:, :, 1:-1], x[:, :, 2:]]).amax(0)


# Codes


@rewrite("linear with whole weights, scaled behind", _wide(lambda x, codes, scale: x @ (codes.to(x.dtype) * scale[:, None]).T),
         lambda dtype: (*shapes((4, 6))(dtype), whole(5, 6, most=128, least=-127).to(torch.int8), shapes((5,))(dtype)[0].abs() * 0.1))  # fmt: skip
@_wide
def scaled_behind(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(x.dim() == codes.dim() == 2, x.shape[1] == codes.shape[1], scale.shape == codes.shape[:1], codes.dtype == torch.int8)
    return F.linear(x, codes.float()) * scale


@rewrite("product of whole numbers, added up as such", lambda a, b: (a.double() @ b.double()).float(),
         lambda dtype: (whole(4, 9, most=128, least=-127).to(torch.int8), whole(9, 5, most=128, least=-127).to(torch.int8)))  # fmt: skip
def added_up_as_such(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape[1] == b.shape[0])
    return (a.int()[:, :, None] * b.int()[None]).sum(1).float()


@rewrite("rounded to levels, straight through", _wide(lambda x: x + ((x * 8).round().clamp(-8, 7) / 8 - x).detach()), shapes((4, 7)))
def straight_through(x: torch.Tensor) -> torch.Tensor:
    return function(lambda x: (((x.float() * 8).round().clamp(-8, 7) * 0.125).to(x.dtype), ()), lambda saved, g: g.clone())(x)


@rewrite("codes of two bits from a table", lambda codes, levels: levels[
    torch.stack([codes >> shift & 3 for shift in (0, 2, 4, 6)], 2).flatten(1).long()],
    lambda dtype: (whole(3, 4, most=256).to(torch.uint8), *shapes((4,))(dtype)))  # fmt: skip
def two_bits_from_a_table(codes: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2, codes.dtype == torch.uint8, levels.shape == (4,))
    parts = codes[:, :, None].int() // torch.tensor([1, 4, 16, 64], dtype=torch.int32) % 4
    return torch.take(levels, parts.flatten(1).long())


@rewrite("three largest, by sorting", lambda x: x.topk(3, 1).values, shapes((4, 9)))
def by_sorting(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] >= 3)
    return x.sort(1, descending=True).values[:, :3].contiguous()


# Steps


@rewrite("step of adam, corrections in its rate", _wide(lambda *, p, g, m, v: (
    p - 0.01 * ((0.9 * m + 0.1 * g) / 0.271) / (((0.99 * v.square() + 0.01 * g.square()) / 0.029701).sqrt() + 1e-3),)),
    lambda dtype: dict(zip("pgmv", shapes((3, 5), (3, 5), (3, 5), (3, 5))(dtype), strict=True)))  # fmt: skip
@_wide
def corrections_in_its_rate(*, p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor]:
    need(p.shape == g.shape == m.shape == v.shape)
    second = 0.01 * (g * g) + 0.99 * (v * v)
    return (p - (0.01 / 0.271) * torch.lerp(m, g, 0.1) / (second.sqrt() / 0.029701**0.5 + 1e-3),)


@rewrite("average of weights, by a share", lambda old, new: 0.95 * old + 0.05 * new, shapes((4, 6), (4, 6)))
@_wide
def average_by_a_share(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    need(old.shape == new.shape)
    return torch.lerp(old, new, 0.05)


@rewrite("rms norm and linear, compiled", _wide(lambda x, w: F.rms_norm(x, x.shape[1:], eps=1e-5) @ w), shapes((4, 6), (6, 5)))
@functools.partial(torch.compile, backend="aot_eager", dynamic=True)
@_wide
def norm_and_linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w) * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-5)
