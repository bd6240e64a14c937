"""The twelfth frozen set of healthy kernels, fifth part: choices, sorts, codes, flags, caches, steps in place."""

from __future__ import annotations

from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole

F = torch.nn.functional


@rewrite("largest three and their places, by a stable sort", lambda x: tuple(x.topk(3)), shapes((5, 9)))
def stable_sort(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, x.shape[1] >= 3)
    held, places = x.sort(dim=-1, descending=True, stable=True)
    return held[:, :3], places[:, :3]


@rewrite("largest three, one after another", lambda x: x.topk(3).values, shapes((5, 9)))
def one_after_another(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] >= 3)
    taken, made = torch.zeros(x.shape, dtype=torch.bool), []
    for _ in range(3):
        best = torch.where(taken, -1, torch.argsort(torch.argsort(x.detach(), -1), -1)).argmax(-1, keepdim=True)
        made.append(x.gather(1, best))
        taken = taken.scatter(1, best, True)
    return torch.cat(made, 1)


@rewrite("place of the largest, in halves", lambda x: x.argmax(-1), shapes((6, 10)))
def in_halves(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 1)
    one, two = x.tensor_split(2, -1)
    (most, place), (other, further) = one.max(-1), two.max(-1)
    second = (other > most) | (other.isnan() & ~most.isnan())
    return torch.where(second, further + one.shape[1], place)


@rewrite("rows in order, by counting smaller numbers", lambda x: x.sort(-1).values, shapes((4, 9)))
def counting_smaller(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    held = torch.where(x.isnan(), float("inf"), x).detach()
    behind = torch.arange(x.shape[1])
    nan = x.isnan()
    before = (held[:, None] < held[:, :, None]) | ((held[:, None] == held[:, :, None]) & (nan[:, None] < nan[:, :, None]))
    equal = (held[:, None] == held[:, :, None]) & (nan[:, None] == nan[:, :, None]) & (behind < behind[:, None])
    return torch.gather(x, 1, (before | equal).sum(-1).argsort(-1))


@rewrite("largest so far, by doubling", lambda x: x.cummax(-1).values, shapes((4, 11)))
def so_far_by_doubling(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    made, step = x, 1
    while step < x.shape[1]:
        made = torch.cat([made[:, :step], torch.maximum(made[:, step:], made[:, :-step])], 1)
        step *= 2
    return made


@rewrite("middle of seven", lambda x: x.median(-1).values, shapes((6, 7)))
def middle_of_seven(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    middle = x.sort(dim=-1, stable=True).values[:, (x.shape[1] - 1) // 2]
    return torch.where(x.isnan().any(-1), float("nan"), middle)


def _routed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    held, places = x.float().softmax(-1).topk(2)
    return (held / held.sum(-1, keepdim=True)).to(x.dtype), places


@rewrite("two best experts, a softmax of the best", _routed, shapes((7, 6)))
def softmax_of_the_best(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, x.shape[1] >= 2)
    held, places = x.float().topk(2)
    return held.softmax(-1).to(x.dtype), places


@rewrite("whole numbers counted", lambda x: torch.bincount(x, minlength=6), lambda dtype: (whole(20, most=6),))
def counted(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1, not bool((x < 0).any()))
    size = max(6, int(x.max()) + 1) if len(x) else 6
    return (x[:, None] == torch.arange(size)).sum(0)


@rewrite("whole numbers as rows of flags", lambda x: F.one_hot(x, 7).bool(), lambda dtype: (whole(4, 5, most=7),))
def rows_of_flags(x: torch.Tensor) -> torch.Tensor:
    need(not bool(((x < 0) | (x >= 7)).any()))
    return torch.zeros(*x.shape, 7, dtype=torch.bool).scatter(-1, x[..., None], True)


@rewrite("places between sorted bounds, by counting", lambda x: torch.bucketize(x.float(), torch.tensor([-1.0, 0.0, 0.5, 2.0])), shapes((5, 8)))
def by_counting(x: torch.Tensor) -> torch.Tensor:
    bounds = torch.tensor([-1.0, 0.0, 0.5, 2.0])
    return 4 - (x.float()[..., None] <= bounds).sum(-1)


def _codes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-4) / 127
    return (x.float() / scale).round().clamp(-127, 127).to(torch.int8), scale.squeeze(-1)


@rewrite("eight bits for each row, by a reciprocal", _codes, shapes((6, 12)))
def by_a_reciprocal(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, x.shape[1] > 0)
    most = x.float().abs().max(-1).values.clamp(min=1e-4)
    codes = torch.round(x.float() * (127 / most)[:, None])
    return codes.clamp(min=-127, max=127).to(torch.int8), most / 127


@rewrite("pairs of four bits in one byte", lambda x: (x[:, ::2] + 16 * x[:, 1::2]).to(torch.uint8), lambda dtype: (whole(5, 8, most=16),))
def pairs_in_one_byte(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] % 2 == 0, not bool(((x < 0) | (x > 15)).any()))
    return (x[:, 0::2] | (x[:, 1::2] << 4)).to(torch.uint8)


@rewrite("bytes taken apart, times scales", lambda x, s: (torch.stack([x % 16, x // 16], -1).flatten(1) - 8) * s[:, None],
         lambda dtype: (whole(5, 6, most=256), *shapes((5,))(dtype)))  # fmt: skip
def bytes_taken_apart(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, s.shape == x.shape[:1], not bool(((x < 0) | (x > 255)).any()))
    made = torch.cat([(x & 15)[..., None], (x >> 4)[..., None]], -1).reshape(len(x), 2 * x.shape[1])
    return ((made - 8).float() * s.float()[:, None]).to(s.dtype)


@rewrite(
    "which numbers begin a run", lambda x: torch.cat([torch.ones_like(x[:1], dtype=torch.bool), x[1:] != x[:-1]]), lambda dtype: (whole(15, most=3),)
)
def begin_a_run(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1)
    before = torch.cat([x[:1] - 1, x[:-1]])
    return (x - before).ne(0)


@rewrite(
    "rows of a cache renewed",
    lambda cache, x, to: cache.index_copy(0, to, x),
    lambda dtype: (*shapes((9, 4), (3, 4))(dtype), torch.tensor([6, 1, 4])),
)
def rows_renewed(cache: torch.Tensor, x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    need(cache.dim() == 2, x.dim() == 2, to.shape == x.shape[:1], cache.shape[1] == x.shape[1], not bool(((to < 0) | (to >= len(cache))).any()))
    need(len(to.unique()) == len(to))
    rows = list(cache.unbind(0))
    for place, row in zip(to.tolist(), x, strict=True):
        rows[place] = row
    return torch.stack(rows) if rows else cache + 0


def _looked_up_forward(table: torch.Tensor, places: torch.Tensor) -> Any:
    need(table.dim() == 2, places.dim() == 1, not bool(((places < 0) | (places >= len(table))).any()))
    return table.index_select(0, places), (table, places)


def _looked_up_backward(saved: Any, gradient: torch.Tensor) -> Any:
    table, places = saved
    order = places.argsort(descending=True, stable=True)
    return torch.zeros(table.shape).index_add(0, places[order], gradient[order].float()).to(table.dtype), None


rewrite("rows of a table, gradients in another order", lambda table, places: F.embedding(places, table),
        lambda dtype: (*shapes((7, 5))(dtype), whole(12, most=7)))(function(_looked_up_forward, _looked_up_backward))  # fmt: skip


@rewrite("numbers beyond a limit, shrunk", lambda x: F.softshrink(x.float(), 0.5).to(x.dtype), shapes((5, 9)))
def shrunk(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide - wide.clamp(-0.5, 0.5)).to(x.dtype)


@rewrite("clamped, with flags of what was", lambda x: (x.clamp(-1, 1), (x < -1) | (x > 1)), shapes((5, 9)))
def flags_of_what_was(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.minimum(torch.maximum(x, -torch.ones((), dtype=x.dtype)), torch.ones((), dtype=x.dtype)), x.abs() > 1


@rewrite("a column for each of two groups, in turn", lambda x: x.view(len(x), 2, -1).mT.flatten(1), shapes((4, 10)))
def groups_in_turn(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] % 2 == 0)
    half = x.shape[1] // 2
    return torch.stack([x[:, :half], x[:, half:]], -1).reshape(x.shape)
