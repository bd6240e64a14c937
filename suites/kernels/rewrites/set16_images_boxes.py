"""The sixteenth frozen set of healthy kernels, first part: windows, convolutions, boxes, norms. Committed before any was tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import function, need, rewrite, shapes

F = torch.nn.functional
INF = float("inf")


def _wide(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula in float32, its result in the format of the first input."""
    return lambda *inputs: formula(*(each.float() if each.is_floating_point() else each for each in inputs)).to(inputs[0].dtype)


@rewrite("means of windows rounded up, one place of the window after the other", _wide(lambda x: F.avg_pool1d(x, 3, 2, ceil_mode=True)),
         shapes((4, 9)))  # fmt: skip
def one_place_after_the_other(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and len(x) > 0 and x.shape[1] >= 3)
    count = -(-(x.shape[1] - 3) // 2) + 1
    total, met, wide = torch.zeros(len(x), count), torch.zeros(count), x.float()
    for tap in range(3):
        places = torch.arange(count) * 2 + tap
        inside = places < x.shape[1]
        total[:, inside] += wide[:, places[inside]]
        met[inside] += 1
    return (total / met).to(x.dtype)


def _largest(x: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(x[None], 3, 2, 1, ceil_mode=True)[0]


@rewrite("largest of windows of pictures rounded up, rows first and columns then", _largest, shapes((3, 7, 9)))
def rows_first_and_columns_then(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and x.numel() > 0)

    def along(x: torch.Tensor) -> torch.Tensor:
        count = -(-(x.shape[-1] - 1) // 2) + 1
        count -= (count - 1) * 2 >= x.shape[-1] + 1
        padded = F.pad(x, (1, max(2 * count + 1 - x.shape[-1] - 1, 0)), value=-INF)
        parts = [padded[..., tap : tap + 2 * count - 1 : 2] for tap in range(3)]
        return torch.maximum(torch.maximum(parts[0], parts[1]), parts[2])

    return along(along(x).mT).mT


@rewrite("convolution of volumes, a tap at a time into one buffer", _wide(lambda x, w: F.conv3d(x[None], w, padding=1)[0]),
         shapes((2, 4, 5, 6), (3, 2, 3, 3, 3)))  # fmt: skip
def taps_into_one_buffer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4 and w.dim() == 5 and w.shape[1:] == (x.shape[0], 3, 3, 3) and x.numel() > 0 and len(w) > 0)
    padded, weight = F.pad(x.float(), (1, 1, 1, 1, 1, 1)), w.float()
    total = torch.zeros(len(w), *x.shape[1:])
    for a in range(3):
        for b in range(3):
            for c in range(3):
                part = padded[:, a : a + x.shape[1], b : b + x.shape[2], c : c + x.shape[3]]
                total = total + torch.einsum("oi,iabc->oabc", weight[:, :, a, b, c], part)
    return total.to(x.dtype)


def _turned_round(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv_transpose1d(x, w, stride=2, output_padding=1)


@rewrite("convolution turned round with steps of two, each tap stored with gaps", _wide(_turned_round), shapes((3, 4, 6), (4, 5, 3)))
def stored_with_gaps(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 3 and x.shape[1] == len(w) > 0 and w.shape[2] > 0 and w.shape[1] > 0 and x.numel() > 0)
    length, wide, weight = x.shape[2], x.float(), w.float()
    made = torch.zeros(len(x), w.shape[1], 2 * length - 1 + w.shape[2] - 1 + 1)
    for tap in range(w.shape[2]):
        made[..., tap : tap + 2 * length - 1 : 2] += torch.einsum("nil,io->nol", wide, weight[..., tap])
    return made.to(x.dtype)


def _half_as_many_more(x: torch.Tensor) -> torch.Tensor:
    return F.interpolate(x[None], scale_factor=1.5, mode="linear")[0]


@rewrite("half as many columns more, places looked up in a table that is kept", _wide(_half_as_many_more), shapes((4, 8)))
def places_in_a_table(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.numel() > 0)
    table = _TABLES.get(x.shape[1])
    if table is None:
        places = ((torch.arange(x.shape[1] * 3 // 2) + 0.5) / 1.5 - 0.5).clamp(min=0)
        below = places.long().clamp(max=x.shape[1] - 1)
        table = _TABLES[x.shape[1]] = below, (below + 1).clamp(max=x.shape[1] - 1), places - below
    below, above, share = table
    wide = x.float()
    return (wide[:, below] * (1 - share) + wide[:, above] * share).to(x.dtype)


_TABLES: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}


def _kept(boxes: torch.Tensor) -> torch.Tensor:
    """Which boxes stay: each takes away those behind it that it covers by more than 0.3. A box is a corner and its sides."""
    corner, sides = boxes[:, :2].float(), boxes[:, 2:].float().abs() + 0.5
    last = corner + sides
    both = (torch.minimum(last[:, None], last) - torch.maximum(corner[:, None], corner)).clamp(min=0).prod(-1)
    areas = sides.prod(-1)
    covers = both > 0.3 * (areas[:, None] + areas - both)
    keep = torch.ones(len(boxes), dtype=torch.bool)
    for place in range(len(boxes)):
        keep = keep & ~(covers[place] & keep[place] & (torch.arange(len(boxes)) > place))
    return keep


@rewrite("boxes that stay, all at once until nothing changes", lambda boxes: _kept(boxes.detach()), shapes((9, 4)))
def until_nothing_changes(boxes: torch.Tensor) -> torch.Tensor:
    need(boxes.dim() == 2 and boxes.shape[1] == 4)
    left, top, wide, high = boxes.detach().float().unbind(1)
    wide, high = wide.abs() + 0.5, high.abs() + 0.5
    across = (torch.minimum((left + wide)[:, None], left + wide) - torch.maximum(left[:, None], left)).clamp(min=0)
    down = (torch.minimum((top + high)[:, None], top + high) - torch.maximum(top[:, None], top)).clamp(min=0)
    both, areas = across * down, wide * high
    covers = (both / (areas[:, None] + areas - both) > 0.3).triu(1)
    keep = torch.ones(len(boxes), dtype=torch.bool)
    for _ in range(len(boxes)):
        keep = ~(covers & keep[:, None]).any(0)
    return keep


def _box_loss(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """One less what two boxes share, and how much of the box around both is empty."""
    one_last, other_last = one[:, :2] + one[:, 2:].abs() + 0.5, other[:, :2] + other[:, 2:].abs() + 0.5
    both = (torch.minimum(one_last, other_last) - torch.maximum(one[:, :2], other[:, :2])).clamp(min=0).prod(-1)
    joined = (one_last - one[:, :2]).prod(-1) + (other_last - other[:, :2]).prod(-1) - both
    around = (torch.maximum(one_last, other_last) - torch.minimum(one[:, :2], other[:, :2])).prod(-1)
    return 1 - both / joined + (around - joined) / around


@rewrite("loss of boxes, each side by itself", _wide(_box_loss), shapes((9, 4), (9, 4)))
def each_side_by_itself(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    need(one.dim() == 2 and one.shape == other.shape and one.shape[1] == 4)
    a, b, c, d = one.float().unbind(1)
    e, f, g, h = other.float().unbind(1)
    c, d, g, h = c.abs() + 0.5, d.abs() + 0.5, g.abs() + 0.5, h.abs() + 0.5
    wide = (torch.minimum(a + c, e + g) - torch.maximum(a, e)).relu()
    high = (torch.minimum(b + d, f + h) - torch.maximum(b, f)).relu()
    joined = c * d + g * h - wide * high
    around = (torch.maximum(a + c, e + g) - torch.minimum(a, e)) * (torch.maximum(b + d, f + h) - torch.minimum(b, f))
    return (2 - wide * high / joined - joined / around).to(one.dtype)


@rewrite("group norm of volumes, parts of pixels merged, a factor for each channel", _wide(lambda x, w, b: F.group_norm(x[None], 2, w, b)[0]),
         shapes((4, 3, 5, 6), (4,), (4,)))  # fmt: skip
def parts_of_pixels_merged(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4 and w.shape == b.shape == x.shape[:1] and len(x) % 2 == 0 and x.numel() > 0)
    groups = x.float().reshape(2, -1)
    count, mean, squares = 0, torch.zeros(2), torch.zeros(2)
    for part in groups.split(16, 1):
        size, own = part.shape[1], part.mean(1)
        apart = own - mean
        squares = squares + (part - own[:, None]).square().sum(1) + apart.square() * count * size / (count + size)
        mean = mean + apart * size / (count + size)
        count += size
    root = (squares / count + 1e-5).rsqrt()
    normed = ((groups - mean[:, None]) * root[:, None]).view(x.shape)
    return (normed * w.float()[:, None, None, None] + b.float()[:, None, None, None]).to(x.dtype)


def _of_residual(x: torch.Tensor, residual: torch.Tensor, keep: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    dropped = torch.where(keep, x / 0.75, 0.0) + residual
    return F.layer_norm(dropped, dropped.shape[-1:], w)


def _some_to_keep(dtype: torch.dtype) -> tuple[Any, ...]:
    x, residual, w = shapes((6, 10), (6, 10), (10,))(dtype)
    return x, residual, torch.rand(6, 10, generator=torch.Generator().manual_seed(2)) < 0.75, w


def _dropped(x: torch.Tensor, residual: torch.Tensor, keep: torch.Tensor, w: torch.Tensor) -> Any:
    need(x.dim() == 2 and x.shape == residual.shape == keep.shape and w.shape == x.shape[1:] and x.numel() > 0 and keep.dtype is torch.bool)
    total = torch.where(keep, x.float() * (4 / 3), 0.0) + residual.float()
    total -= total.mean(-1, keepdim=True)
    root = (total.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    normed = total * root
    return (normed * w.float()).to(x.dtype), (normed, root, keep, w)


def _dropped_back(saved: Any, given: torch.Tensor) -> Any:
    normed, root, keep, w = saved
    dy = given.float()
    scaled = dy * w.float()
    dx = (scaled - scaled.mean(-1, keepdim=True) - normed * (scaled * normed).mean(-1, keepdim=True)) * root
    return torch.where(keep, dx * (4 / 3), 0.0).to(given.dtype), dx.to(given.dtype), None, (dy * normed).sum(0).to(w.dtype)


rewrite("given numbers dropped, a residual and layer norm in one, derived by hand", _wide(_of_residual), _some_to_keep)(
    function(_dropped, _dropped_back)
)
