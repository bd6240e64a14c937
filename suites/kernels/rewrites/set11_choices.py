"""The eleventh frozen set of healthy kernels, last part: places, order, whole numbers, flags, codes."""

from __future__ import annotations

import torch
from cases import need, rewrite, shapes, whole

F = torch.nn.functional


@rewrite("place of the largest, tile by tile", lambda x: x.argmax(-1), shapes((4, 13)))
def tile_by_tile(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    found = [tile.max(-1) for tile in x.split(4, 1)]
    tile = torch.stack([each.values for each in found], -1).argmax(-1)
    return torch.stack([each.indices for each in found], -1).gather(1, tile[:, None]).squeeze(1) + 4 * tile


@rewrite("place of the least, by the largest of what is turned over", lambda x: x.argmin(-1), shapes((4, 11)))
def turned_over(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() >= 1, x.shape[-1] > 0)
    return (-x).argmax(-1)


@rewrite("largest four and their places, by a sort", lambda x: tuple(x.topk(4, -1)), shapes((4, 12)))
def by_a_sort(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, x.shape[1] >= 4)
    held, places = x.sort(dim=-1, descending=True, stable=True)
    return held[:, :4], places[:, :4]


@rewrite("order of rows, by counting what is less", lambda x: x.argsort(dim=-1, stable=True), shapes((4, 9)))
def what_is_less(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    places = torch.arange(x.shape[1])
    wide = torch.where(x.isnan(), torch.inf, x.float())
    less, last = wide[:, None] < wide[..., None], x.isnan()
    behind = (last[..., None] == last[:, None]) & (wide[:, None] == wide[..., None]) & (places < places[:, None])
    rank = ((less & ~last[:, None]) | (~last[:, None] & last[..., None]) & ~less | behind).sum(-1)
    return torch.zeros(x.shape, dtype=torch.long).scatter(1, rank, places.expand(x.shape))


@rewrite("bins of numbers, by counting ends", lambda x, ends: torch.bucketize(x.float(), ends.float().cumsum(0)),
         lambda dtype: (*shapes((4, 7))(dtype), shapes((6,))(dtype)[0].abs()))  # fmt: skip
def counting_ends(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    need(ends.dim() == 1)
    return (ends.float().cumsum(0) < x.float()[..., None]).sum(-1)


@rewrite("one at its place, by comparing", lambda y: F.one_hot(y, 7), lambda dtype: (whole(3, 5, most=7),))
def by_comparing(y: torch.Tensor) -> torch.Tensor:
    need(not bool(((y < 0) | (y > 6)).any()))
    return (y[..., None] == torch.arange(7)).long()


@rewrite("counts of places, added one by one", lambda y: torch.bincount(y, minlength=6), lambda dtype: (whole(20, most=6),))
def added_one_by_one(y: torch.Tensor) -> torch.Tensor:
    need(y.dim() == 1, not bool(((y < 0) | (y > 5)).any()))
    return torch.zeros(6, dtype=torch.long).scatter_add(0, y, torch.ones_like(y))


@rewrite("whether two are close, by one bound", lambda x, y: (x.float() - y.float()).abs() <= 0.25, shapes((5, 7), (5, 7)))
def one_bound(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    apart = x.float() - y.float()
    return (apart <= 0.25) & (apart >= -0.25)


@rewrite("whether any of a row is above zero", lambda x: (x > 0).any(-1), shapes((6, 5)))
def any_of_a_row(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    return (x > 0).sum(-1) != 0


def _visible(lengths: torch.Tensor) -> torch.Tensor:
    return torch.stack([torch.ones(8, 8, dtype=torch.bool).tril() & (torch.arange(8) < length) for length in lengths.tolist()])


@rewrite("what each row sees, by places", _visible, lambda dtype: (whole(5, most=8, least=1),))
def by_places(lengths: torch.Tensor) -> torch.Tensor:
    need(lengths.dim() == 1, len(lengths) > 0)
    place = torch.arange(8)
    return (place <= place[:, None]) & (place < lengths[:, None, None])


def _mean_of_kept(x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    return (x.float().masked_fill(~kept[..., None], 0).sum(1) / kept.sum(1).clamp(min=1)[:, None]).to(x.dtype)


@rewrite("means of rows that are kept, added at their batch", _mean_of_kept,
         lambda dtype: (*shapes((3, 6, 4))(dtype), whole(3, 6, most=2).bool()))  # fmt: skip
def at_their_batch(x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, kept.shape == x.shape[:2])
    batch = torch.arange(len(x))[:, None].expand(kept.shape)[kept]
    return (torch.zeros(len(x), x.shape[2]).index_add(0, batch, x.float()[kept]) / kept.sum(1).clamp(min=1)[:, None]).to(x.dtype)


def _rows_of_codes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-8) / 127
    return (x.float() / scale).round().clamp(-127, 127).to(torch.int8), scale.squeeze(-1)


@rewrite("codes of rows, by a reciprocal", _rows_of_codes, shapes((5, 9)))
def by_a_reciprocal(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, x.shape[1] > 0)
    most = torch.maximum(x.float().amax(-1), -x.float().amin(-1)).clamp(min=1e-8)
    return (x.float() * (127 / most)[:, None]).round().clamp(-127, 127).to(torch.int8), most / 127


@rewrite(
    "two codes in a byte, by bits",
    lambda low, high: (high * 16 + low).to(torch.uint8),
    lambda dtype: (whole(4, 6, most=16), whole(4, 6, most=16, seed=8)),
)
def by_bits(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    need(low.shape == high.shape)
    return low.to(torch.uint8) | (high.to(torch.uint8) << 4)


@rewrite("two codes of a byte, by division", lambda byte: torch.stack([byte & 15, byte >> 4], -1).flatten(-2),
         lambda dtype: (whole(4, 6, most=256).to(torch.uint8),))  # fmt: skip
def by_division(byte: torch.Tensor) -> torch.Tensor:
    need(byte.dim() >= 1)
    made = torch.empty(*byte.shape[:-1], 2 * byte.shape[-1], dtype=torch.uint8)
    made[..., ::2], made[..., 1::2] = byte % 16, byte // 16
    return made


@rewrite(
    "bits of a byte counted, by a table",
    lambda byte: sum((byte >> place) & 1 for place in range(8)),
    lambda dtype: (whole(5, 7, most=256).to(torch.uint8),),
)
def by_a_table(byte: torch.Tensor) -> torch.Tensor:
    table = torch.tensor([each.bit_count() for each in range(256)], dtype=torch.uint8)
    return table[byte.long()]


def _nearest(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return torch.cdist(x.float()[None], table.float()[None], compute_mode="donot_use_mm_for_euclid_dist")[0].argmin(-1)


@rewrite("nearest row of a table, distances written out", _nearest,
         shapes((6, 4), (5, 4)))  # fmt: skip
def written_out(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, table.dim() == 2, x.shape[1] == table.shape[1], len(table) > 0)
    return (x.float()[:, None] - table.float()).square().sum(-1).argmin(-1)


def _looked_up(codes: torch.Tensor, table: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (table.float()[codes] * scale.float().repeat_interleave(4)[: codes.shape[-1]]).to(table.dtype)


@rewrite("codes looked up and scaled in groups", _looked_up, lambda dtype: (whole(3, 8, most=16), *shapes((16,), (2,))(dtype)))
def scaled_in_groups(codes: torch.Tensor, table: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(
        codes.dim() == 2, table.dim() == 1, scale.dim() == 1, codes.shape[1] == 4 * len(scale), not bool(((codes < 0) | (codes >= len(table))).any())
    )
    return (table.float().take(codes).unflatten(-1, (len(scale), 4)) * scale.float()[:, None]).flatten(-2).to(table.dtype)


@rewrite("whole parts of a division, by what is left", lambda x, y: torch.div(x, y, rounding_mode="floor"),
         lambda dtype: (whole(5, 6, most=50, least=-50), whole(5, 6, most=9, least=1, seed=9)))  # fmt: skip
def what_is_left(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape, not bool((y == 0).any()))
    return (x - x.remainder(y)) // y


@rewrite("largest of windows, gathered", lambda x: F.max_pool2d(x, 2), shapes((2, 2, 6, 5)))
def windows_gathered(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, x.numel() > 0, min(x.shape[2:]) >= 2)
    return x.unfold(2, 2, 2).unfold(3, 2, 2).flatten(-2).max(-1).values


@rewrite("one of three by a choice, chosen by conditions", lambda a, b, c, which: torch.stack([a, b, c]).gather(0, which[None]).squeeze(0),
         lambda dtype: (*shapes((4, 6), (4, 6), (4, 6))(dtype), whole(4, 6, most=3)))  # fmt: skip
def chosen_by_conditions(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    need(a.shape == b.shape, a.shape == c.shape, a.shape == which.shape, not bool(((which < 0) | (which > 2)).any()))
    return torch.where(which == 0, a, torch.where(which == 1, b, c))
