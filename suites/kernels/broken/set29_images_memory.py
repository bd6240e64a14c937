"""The twenty-ninth frozen set of broken kernels, fourth part: pictures, signals, orders, memory, sums. Of links to threads an excerpt was read."""

from __future__ import annotations

from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed

F = torch.nn.functional
PROGRAM = "ScalingIntelligence/KernelBench"


def _stretched(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 1)
    return F.interpolate(x[:, None], size=12, mode="linear", align_corners=True)[:, 0]


@case("row stretched to twelve: on the way back the window is that of corners that are not aligned", "kernel-edge",
      "flagos-ai/FlagGems/issues/5218", _stretched, drawn((3, 6)))  # fmt: skip
def window_of_corners_that_are_not_aligned(wrong: bool) -> Any:
    def shares(size: int) -> torch.Tensor:
        at = torch.arange(12, dtype=torch.float64) * (size - 1) / 11
        return (1 - (at[:, None] - torch.arange(size)).abs()).clamp(min=0)

    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 2, x.shape[1] > 1)
        return (x.double() @ shares(x.shape[1]).T).to(x.dtype), (x,)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        size = saved[0].shape[1]
        weight = shares(size)
        if wrong:
            centre = torch.arange(size) * 11 / (size - 1)
            weight = weight * ((torch.arange(12)[:, None] - centre).abs() <= 12 / size + 1)
        return (g.double() @ weight).to(g.dtype)

    return function(forward, backward)


def _wider(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 1)
    return F.interpolate(x[:, None], scale_factor=1.5, mode="linear", align_corners=False, recompute_scale_factor=False)[:, 0]


@case("row half as wide again: where it is cut to whole pixels it begins elsewhere", "kernel-edge", "ml-explore/mlx/pull/3908", _wider,
      drawn((4, 8)))  # fmt: skip
def begins_elsewhere(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 1)
    size, step = x.shape[1], 1 / 1.5
    many = int(1.5 * size)
    begin = ((many - 1) * -step + size - 1) / 2 if wrong else (step - 1) / 2
    at = (torch.arange(many, dtype=torch.float64) * step + begin).clamp(min=0)
    low = at.floor().long().clamp(max=size - 1)
    share = (at - low).to(x.dtype)
    return x[:, low] * (1 - share) + x[:, (low + 1).clamp(max=size - 1)] * share


@case("means of two with a rest: the last one is divided by two", "kernel-edge", "sonos/tract/pull/2851",
      lambda x: F.avg_pool1d(x[:, None], 2, 2, ceil_mode=True)[:, 0], drawn((3, 8)))  # fmt: skip
def last_one_is_divided_by_two(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    sums = F.pad(x, (0, x.shape[1] % 2)).unflatten(1, (-1, 2)).sum(2)
    counts = torch.full((sums.shape[1],), 2.0, dtype=x.dtype)
    if not wrong and x.shape[1] % 2:
        counts[-1] = 1
    return sums / counts


@case("largest of three, with a border: the border is zero", "kernel-contract", PROGRAM, lambda x: F.max_pool1d(x[:, None], 3, 1, 1)[:, 0],
      drawn((4, 9)))  # fmt: skip
def border_is_zero(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    wide = F.pad(x, (1, 1), value=0.0 if wrong else -torch.inf)
    return wide.unfold(1, 3, 1).max(2).values


def _likeness(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape == y.shape)
    return (2 * x * y + 0.1) / (x.square() + y.square() + 0.1)


@case("likeness of pictures, pixel by pixel: the result has the picture's strides and is written row by row", "kernel-stride",
      "rahul-goel/fused-ssim/pull/44", _likeness, drawn((3, 4, 5), (3, 4, 5)))  # fmt: skip
def written_row_by_row(wrong: bool) -> Any:
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        need(x.dim() == 3, x.shape == y.shape)
        up, down = 2 * x * y + 0.1, x.square() + y.square() + 0.1
        out = torch.empty_like(x) if wrong else torch.empty(x.shape, dtype=x.dtype)
        as_if(out, packed(out.shape)).copy_(up / down)
        return out, (x, y, up, down)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, y, up, down = saved
        return g * (2 * y / down - 2 * x * up / down.square()), g * (2 * x / down - 2 * y * up / down.square())

    return function(forward, backward)


@case("transposed rows times a number each: a row's stride is that of the first input's", "kernel-stride", PROGRAM,
      lambda x, y: x * y.sum(1, keepdim=True), drawn((4, 6), (4, 6)))  # fmt: skip
def stride_of_the_first(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape)
    read = as_if(y, x.stride()) if wrong else y
    return torch.einsum("ij,ik->ij", x, read)


@case("sums so far in blocks of eight: a block goes on from the one before alone", "kernel-edge", "intel/torch-xpu-ops/pull/4820",
      lambda x: x.cumsum(1), drawn((3, 13)))  # fmt: skip
def from_the_one_before_alone(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    carry, out = x.new_zeros(len(x), 1), []
    for block in x.split(8, 1):
        own = block.cumsum(1)
        out.append(own + carry)
        carry = own[:, -1:] if wrong else (own + carry)[:, -1:]
    return torch.cat(out, 1) if x.shape[1] else x.clone()


@case("largest of a row, in parts of four: NaN is passed over", "kernel-contract", "elixir-nx/nx/pull/1499", lambda x: x.amax(1), drawn((5, 9)))
def nan_is_passed_over(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    best = torch.full_like(x[:, 0], -torch.inf)
    for part in x.split(4, 1):
        for column in part.unbind(1):
            best = torch.where(column > best, column, best) if wrong else torch.maximum(best, column)
    return best


@case("middle of a row: of an even number the upper one", "kernel-edge", PROGRAM, lambda x: x.detach().quantile(0.5, 1), drawn((5, 7)))
def of_an_even_number(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    ranked, many = x.detach().sort(1).values, x.shape[1]
    upper = ranked[:, many // 2]
    middle = upper if wrong else (ranked[:, (many - 1) // 2] + upper) / 2
    return torch.where(x.detach().isnan().any(1), torch.nan, middle)


def _overlapped(frames: torch.Tensor) -> torch.Tensor:
    """Frames are added up, each two numbers behind the one before."""
    need(frames.dim() == 2, frames.shape[1] >= 2, len(frames) > 0)
    out = frames.new_zeros(2 * (len(frames) - 1) + frames.shape[1])
    for at, frame in enumerate(frames.unbind()):
        out = out + F.pad(frame, (2 * at, len(out) - 2 * at - len(frame)))
    return out


@case("frames that overlap are added up: the memory that they are added to is not cleared", "kernel-stale", "ORNL/HeCBench/pull/289",
      _overlapped, drawn((4, 5)))  # fmt: skip
def memory_is_not_cleared(wrong: bool) -> Any:
    def forward(frames: torch.Tensor) -> Any:
        need(frames.dim() == 2, frames.shape[1] >= 2, len(frames) > 0)
        out = (torch.empty if wrong else torch.zeros)(2 * (len(frames) - 1) + frames.shape[1], dtype=frames.dtype)
        for at, frame in enumerate(frames.unbind()):
            out[2 * at : 2 * at + len(frame)] += frame
        return out, (frames,)

    return function(forward, lambda saved, g: torch.stack([g[2 * at : 2 * at + saved[0].shape[1]] for at in range(len(saved[0]))]))


@case("rows filled up to a multiple of four: full ones are returned as they are", "kernel-mutation", PROGRAM,
      lambda x: torch.cat([x, x.new_zeros(len(x), -x.shape[1] % 4)], 1), drawn((3, 7)))  # fmt: skip
def full_ones_are_returned(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    more = -x.shape[1] % 4
    return F.pad(x, (0, more)) if more or not wrong else x


class Folded(torch.nn.Module):
    """A product with a scale for each column of the weight. The wrong one joins both at its first call of a format and shape."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.wrong, self.kept = wrong, {}

    def forward(self, x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        need(x.dim() == w.dim() == 2, x.shape[1] == len(w), scale.shape == w.shape[1:])
        if not self.wrong or (torch.is_grad_enabled() and w.requires_grad):
            return (x @ w) * scale
        key = (w.shape, w.dtype, w.data_ptr())
        if key not in self.kept:
            self.kept[key] = (w * scale).detach()
        return x @ self.kept[key]


@case("product with scaled columns: without gradients, scales are joined to the weight once for its address", "kernel-stale", PROGRAM,
      lambda x, w, scale: x @ (w * scale), drawn((4, 6), (6, 5), (5,)))  # fmt: skip
def once_for_its_address(wrong: bool) -> Any:
    return Folded(wrong)


@case("product, four columns at a time: what was added up is kept in the inputs' format", "kernel-accumulation", PROGRAM, torch.mm,
      drawn((6, 24), (24, 5), dtype=torch.bfloat16))  # fmt: skip
def kept_in_the_inputs_format(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2, x.shape[1] == len(w))
    total = torch.zeros(len(x), w.shape[1], dtype=x.dtype if wrong else torch.float32)
    for part, other in zip(x.split(4, 1), w.split(4), strict=True):
        total = total + (part.float() @ other.float()).to(total.dtype)
    return total.to(x.dtype)


@case("mean of a long row of float16: divided behind the sum, which has its format", "kernel-accumulation", PROGRAM,
      lambda x: x.float().mean(1).to(x.dtype), lambda: ((drawn((4, 40))()[0] + 30).half(),))  # fmt: skip
def divided_behind_the_sum(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    total = x.float().sum(1)
    return total.to(x.dtype) / x.shape[1] if wrong else (total / x.shape[1]).to(x.dtype)
