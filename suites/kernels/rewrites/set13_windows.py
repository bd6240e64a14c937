"""The thirteenth frozen set of healthy kernels, third part: convolutions, frequencies, pictures."""

from __future__ import annotations

import math

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional


@rewrite("convolution turned round in two dimensions, patches folded",
         lambda x, w: F.conv_transpose2d(x.float(), w.float(), stride=2).to(x.dtype), shapes((2, 3, 3, 4), (3, 2, 3, 3)))  # fmt: skip
def patches_folded(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, w.dim() == 4, x.shape[1] == len(w), min(*x.shape, *w.shape) > 0)
    patches = w.float().flatten(1).T @ x.float().flatten(2)
    size = [2 * (one - 1) + two for one, two in zip(x.shape[2:], w.shape[2:], strict=True)]
    return F.fold(patches, size, w.shape[2:], stride=2).to(x.dtype)


@rewrite("each channel's convolution turned round, every other place added to",
         lambda x, w: F.conv_transpose1d(x.float(), w.float()[:, None], stride=2, groups=len(w)).to(x.dtype), shapes((2, 3, 6), (3, 4)))  # fmt: skip
def every_other_place(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == 2, x.shape[1] == len(w), min(*x.shape, *w.shape) > 0)
    made = torch.zeros(*x.shape[:2], 2 * (x.shape[2] - 1) + w.shape[1])
    for tap in range(w.shape[1]):
        made = made.index_add(-1, tap + 2 * torch.arange(x.shape[2]), x.float() * w[:, tap, None].float())
    return made.to(x.dtype)


@rewrite("each channel's picture filtered with holes, a tap at a time",
         lambda x, w: F.conv2d(x.float(), w.float()[:, None], dilation=2, groups=len(w)).to(x.dtype), shapes((2, 3, 6, 7), (3, 3, 2)))  # fmt: skip
def with_holes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, w.dim() == 3, x.shape[1] == len(w), x.numel() > 0, w.numel() > 0)
    high, wide = x.shape[2] - 2 * (w.shape[1] - 1), x.shape[3] - 2 * (w.shape[2] - 1)
    need(high > 0, wide > 0)
    total = torch.zeros(*x.shape[:2], high, wide)
    for row in range(w.shape[1]):
        for column in range(w.shape[2]):
            total = total + x[..., 2 * row : 2 * row + high, 2 * column : 2 * column + wide].float() * w[:, row, column, None, None].float()
    return total.to(x.dtype)


def _long(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    size = 2 * x.shape[-1]
    return torch.fft.irfft(torch.fft.rfft(x.float(), size) * torch.fft.rfft(k.float(), size), size)[..., : x.shape[-1]].to(x.dtype)


@rewrite("long convolution of channels, complex frequencies", _long, shapes((2, 3, 10), (3, 10)))
def complex_frequencies(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, k.shape == x.shape[1:], x.numel() > 0)
    size = 2 * x.shape[-1] - 1
    return torch.fft.ifft(torch.fft.fft(x.float(), size) * torch.fft.fft(k.float(), size)).real[..., : x.shape[-1]].to(x.dtype)


@rewrite("long convolution of channels, summed place by place", _long, shapes((2, 3, 9), (3, 9)))
def summed_place_by_place(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, k.shape == x.shape[1:], x.numel() > 0)
    size, total = x.shape[-1], torch.zeros(x.shape)
    for place in range(size):
        total = total + F.pad(x[..., : size - place].float(), (place, 0)) * k[:, place, None].float()
    return total.to(x.dtype)


@rewrite("power of each frequency, by two products", lambda x: torch.fft.rfft(x.float()).abs().square().to(x.dtype), shapes((3, 12)))
def two_products(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.numel() > 0)
    size = x.shape[1]
    turns = torch.arange(size)[:, None] * torch.arange(size // 2 + 1) % size
    angles = turns.double() * (2 * math.pi / size)
    return ((x.float() @ angles.cos().float()).square() + (x.float() @ angles.sin().float()).square()).to(x.dtype)


@rewrite("one pixel's products of channels, channels last", lambda x, w: F.conv2d(x.float(), w.float()[..., None, None]).to(x.dtype),
         shapes((2, 4, 3, 5), (6, 4)))  # fmt: skip
def channels_last(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, w.dim() == 2, x.shape[1] == w.shape[1], min(*x.shape, *w.shape) > 0)
    return F.linear(x.float().movedim(1, -1), w.float()).movedim(-1, 1).contiguous().to(x.dtype)


@rewrite("convolution whose edges are mirrored, places gathered",
         lambda x, w: F.conv1d(F.pad(x.float(), (2, 2), mode="reflect"), w.float()).to(x.dtype), shapes((2, 3, 8), (4, 3, 5)))  # fmt: skip
def mirrored(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == 3, x.shape[1] == w.shape[1], x.shape[2] > 2, 0 < w.shape[2] <= x.shape[2] + 4, min(*x.shape, *w.shape) > 0)
    last = x.shape[2] - 1
    places = (torch.arange(-2, x.shape[2] + 2)).abs()
    places = last - (last - places).abs()
    windows = x.float()[..., places].unfold(-1, w.shape[2], 1)
    return torch.einsum("bint,oit->bon", windows, w.float()).to(x.dtype)


@rewrite("convolution round a ring, rolls added", lambda x, w: F.conv1d(F.pad(x.float(), (1, 1), mode="circular"), w.float()).to(x.dtype),
         shapes((2, 3, 7), (4, 3, 3)))  # fmt: skip
def rolls_added(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == 3, x.shape[1] == w.shape[1], w.shape[2] == 3, min(*x.shape, *w.shape) > 0)
    rolled = [torch.einsum("bin,oi->bon", x.float().roll(1 - tap, -1), w[..., tap].float()) for tap in range(3)]
    return (rolled[0] + rolled[1] + rolled[2]).to(x.dtype)


@rewrite("convolution in two groups, groups as a batch of products", lambda x, w: F.conv1d(x.float(), w.float(), groups=2).to(x.dtype),
         shapes((2, 4, 9), (6, 2, 3)))  # fmt: skip
def groups_as_a_batch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == 3, x.shape[1] == 2 * w.shape[1], len(w) % 2 == 0, 0 < w.shape[2] <= x.shape[2], min(*x.shape, *w.shape) > 0)
    windows = x.float().unflatten(1, (2, -1)).unfold(-1, w.shape[2], 1)
    return torch.einsum("bgint,goit->bgon", windows, w.float().unflatten(0, (2, -1))).flatten(1, 2).to(x.dtype)


@rewrite("means of cubes, an axis at a time", lambda x: F.avg_pool3d(x.float(), 2).to(x.dtype), shapes((2, 4, 5, 6)))
def an_axis_at_a_time(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, len(x) > 0, min(x.shape[1:]) > 1)
    made = x.float()
    for axis in (1, 2, 3):
        even = made.narrow(axis, 0, made.shape[axis] // 2 * 2).unflatten(axis, (-1, 2))
        made = 0.5 * even.select(axis + 1, 0) + 0.5 * even.select(axis + 1, 1)
    return made.to(x.dtype)


def _cubic(apart: torch.Tensor) -> torch.Tensor:
    size, a = apart.abs(), -0.75
    near = ((a + 2) * size - (a + 3)) * size * size + 1
    return torch.where(size <= 1, near, ((a * size - 5 * a) * size + 8 * a) * size - 4 * a)


@rewrite("columns seven for each row's own, by cubes", lambda x: F.interpolate(
    x.float()[None, None], size=(len(x), 7), mode="bicubic")[0, 0].to(x.dtype), shapes((4, 5)))  # fmt: skip
def by_cubes(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.numel() > 0)
    place = (torch.arange(7) + 0.5) * (x.shape[1] / 7) - 0.5
    first, total = place.floor(), torch.zeros(len(x), 7)
    for step in range(-1, 3):
        total = total + x.float()[:, (first.long() + step).clamp(0, x.shape[1] - 1)] * _cubic(place - first - step)
    return total.to(x.dtype)


@rewrite("means of four uneven parts, a part at a time", lambda x: F.adaptive_avg_pool1d(x.float(), 4).to(x.dtype), shapes((2, 3, 10)))
def a_part_at_a_time(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.numel() > 0)
    size = x.shape[2]
    parts = [x[..., place * size // 4 : -(-(place + 1) * size // 4)].float() for place in range(4)]
    return torch.stack([part.sum(-1) / part.shape[-1] for part in parts], -1).to(x.dtype)


def _sampled(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Numbers between pixels, at places in pixels. Outside there is zero."""
    at = places.float()
    low = at.detach().floor()
    total = torch.zeros(len(at))
    for row in (0, 1):
        for column in (0, 1):
            corner = low + torch.tensor([row, column])
            inside = ((corner >= 0) & (corner < torch.tensor(x.shape))).all(-1)
            index = corner.nan_to_num().clamp(min=0).minimum(torch.tensor(x.shape) - 1.0).long()
            weight = (1 - (at - corner).abs()).prod(-1)
            total = total + weight * torch.where(inside, x.float()[index[:, 0], index[:, 1]], 0.0)
    return total.to(x.dtype)


@rewrite("numbers between pixels, columns first and then rows", _sampled, shapes((5, 6), (9, 2)))
def columns_first(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, places.dim() == 2, places.shape[1] == 2, x.numel() > 0)
    at = places.float()
    low = at.detach().floor()
    part, padded = at - low, F.pad(x.float(), (1, 1, 1, 1)).flatten()
    wide = x.shape[1] + 2

    def row(step: int) -> torch.Tensor:
        line = (low[:, 0].nan_to_num() + step + 1).clamp(0, len(x) + 1).long() * wide
        left, right = (padded[line + (low[:, 1].nan_to_num() + each).clamp(0, wide - 1).long()] for each in (1, 2))
        return (1 - part[:, 1]) * left + part[:, 1] * right

    return ((1 - part[:, 0]) * row(0) + part[:, 0] * row(1)).to(x.dtype)


def _line(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    at = places.float().clamp(0, x.shape[1] - 1)
    low = at.detach().floor().nan_to_num()
    high = (low + 1).clamp(max=x.shape[1] - 1)
    share = at - low
    return ((1 - share) * x.float()[:, low.long()] + share * x.float()[:, high.long()]).to(x.dtype)


@rewrite("rows read at places between columns, by the difference", _line, shapes((3, 8), (6,)))
def by_the_difference(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, places.dim() == 1, x.numel() > 0)
    at = places.float().clamp(min=0).clamp(max=x.shape[1] - 1)
    low = at.detach().nan_to_num().long()
    pair = torch.stack([x.float().index_select(1, low), x.float().index_select(1, (low + 1).clamp(max=x.shape[1] - 1))])
    return torch.einsum("src,sc->rc", pair, torch.stack([1 - (at - low), at - low])).to(x.dtype)


def _with_state(x: torch.Tensor, state: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    whole = torch.cat([state, x], -1)
    made = F.conv1d(whole.float(), w.float()[:, None], groups=len(w))
    return F.silu(made).to(x.dtype), whole[..., x.shape[-1] :]


@rewrite("causal convolution with a state, step by step", _with_state, shapes((2, 3, 6), (2, 3, 3), (3, 4)))
def with_a_state(x: torch.Tensor, state: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 3, w.dim() == 2, state.shape == (*x.shape[:2], w.shape[1] - 1), x.shape[1] == len(w), min(*x.shape, *w.shape) > 0)
    made = []
    for step in x.unbind(-1):
        window = torch.cat([state, step[..., None]], -1)
        made.append((window.float() * w.float()).sum(-1))
        state = window[..., 1:]
    rows = torch.stack(made, -1)
    return (rows * rows.sigmoid()).to(x.dtype), state + 0
