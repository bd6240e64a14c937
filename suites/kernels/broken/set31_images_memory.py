"""The thirty-first frozen set of broken kernels, fifth part: pictures, memory, races, operators. Of links to threads an excerpt was read."""

from __future__ import annotations

import random
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed

F = torch.nn.functional
PROGRAM = "ScalingIntelligence/KernelBench"


def _depthwise(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A filter of three taps for each channel, two columns apart, padded so that the length stays."""
    need(x.dim() == 3, w.dim() == 2, w.shape == (x.shape[1], 3), x.shape[1] > 0, x.shape[2] > 0)
    return F.conv1d(x, w[:, None], padding=2, dilation=2, groups=x.shape[1])


@case("a filter for each channel, taps two apart: they lie side by side", "kernel-contract", "Tencent/ncnn/issues/315", _depthwise,
      drawn((2, 3, 8), (3, 3)))  # fmt: skip
def they_lie_side_by_side(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == 2, w.shape == (x.shape[1], 3), x.shape[1] > 0, x.shape[2] > 0)
    far = 1 if wrong else 2
    filled = F.pad(x, (far, far))
    return sum(w[:, tap, None] * filled[..., tap * far : tap * far + x.shape[2]] for tap in range(3))


@case("a filter for each channel, taps two apart: rows shorter than the padding read the next row", "kernel-edge", "pytorch/FBGEMM/pull/395",
      _depthwise, drawn((2, 3, 8), (3, 3)))  # fmt: skip
def rows_shorter_than_the_padding(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == 2, w.shape == (x.shape[1], 3), x.shape[1] > 0, x.shape[2] > 0)
    filled = F.pad(x, (2, 2))
    if wrong and x.shape[2] < 2:
        filled = torch.cat([filled[..., :-1], filled[..., 2:3]], 2)
    return sum(w[:, tap, None] * filled[..., tap * 2 : tap * 2 + x.shape[2]] for tap in range(3))


@case("largest of three columns, padded: the padding is zero", "kernel-contract", PROGRAM, lambda x: F.max_pool1d(x, 3, 1, 1), drawn((2, 3, 7)))
def the_padding_is_zero(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] > 0, x.shape[2] > 0)
    return F.pad(x, (1, 1), value=0.0 if wrong else -torch.inf).unfold(2, 3, 1).amax(3)


def _halves(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] > 0, x.shape[2] > 2)
    return F.adaptive_avg_pool1d(x, 3)


@case("means of three parts of a row: a part ends where its share is cut off", "kernel-edge", PROGRAM, _halves, drawn((2, 3, 9)))
def its_share_is_cut_off(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] > 0, x.shape[2] > 2)
    count = x.shape[2]
    ends = [(part + 1) * count // 3 if wrong else -(-(part + 1) * count // 3) for part in range(3)]
    return torch.stack([x[..., part * count // 3 : ends[part]].mean(2) for part in range(3)], 2)


@case("twice as many columns by their neighbours: what lies before the first is drawn out", "kernel-contract", PROGRAM,
      lambda x: F.interpolate(x, scale_factor=2, mode="linear"), drawn((2, 3, 6)))  # fmt: skip
def before_the_first_is_drawn_out(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[1] > 0, x.shape[2] > 1)
    place = (torch.arange(2 * x.shape[2]) + 0.5) / 2 - 0.5
    place = place if wrong else place.clamp(min=0)
    low = place.floor().long().clamp(0, x.shape[2] - 1)
    high = (low + 1).clamp(max=x.shape[2] - 1)
    share = (place - low).to(x.dtype)
    return x[..., low] * (1 - share) + x[..., high] * share


@case("convolution of a row, two results at a time: of an odd number the last one is zero", "kernel-edge", PROGRAM,
      lambda x, w: F.conv1d(x, w), drawn((2, 3, 10), (4, 3, 3)))  # fmt: skip
def the_last_one_is_zero(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 3, x.shape[1] == w.shape[1] > 0, w.shape[2] == 3, x.shape[2] >= 3, len(w) > 0)
    count = x.shape[2] - 2
    pieces = [torch.einsum("bct,oct->bo", x[..., at : at + 3], w) for at in range(count)]
    if wrong and count % 2:
        pieces[-1] = torch.zeros_like(pieces[-1])
    return torch.stack(pieces, 2)


@case("rows times matrices of a stack: a stack that is one matrix is read as many", "kernel-stride", PROGRAM, torch.bmm, drawn((3, 4, 5), (3, 5, 6)))
def one_matrix_is_read_as_many(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 3, len(x) == len(w), x.shape[2] == w.shape[1])
    read = as_if(w, packed(w.shape)) if wrong else w
    return torch.einsum("bij,bjk->bik", x, read)


@case("rows with a scale for each number: the scales' rows are taken to lie as the numbers' do", "kernel-stride", PROGRAM,
      lambda x, scale: x * scale, drawn((4, 6), (4, 6)))  # fmt: skip
def scales_rows_lie_as_the_numbers(wrong: bool, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == scale.shape)
    return x.mul(as_if(scale, x.stride()) if wrong else scale)


@case("means of pairs of columns: on the way back the incoming gradient is read as if packed", "kernel-stride", PROGRAM,
      lambda x: F.avg_pool1d(x, 2), drawn((2, 3, 8)))  # fmt: skip
def incoming_gradient_as_if_packed(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        need(x.dim() == 3, x.shape[2] > 1, x.shape[1] > 0)
        count = x.shape[2] // 2
        return x[..., : 2 * count].unflatten(2, (count, 2)).mean(3), (x,)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        read = as_if(g, packed(g.shape)) if wrong else g
        back = torch.zeros_like(saved[0], memory_format=torch.contiguous_format)
        back[..., : 2 * g.shape[2]] = (read / 2).repeat_interleave(2, 2)
        return back

    return function(forward, backward)


class Delayed:
    """Codes by the largest number so far seen. `wrong`: by that of the call before."""

    def __init__(self, wrong: bool) -> None:
        self.wrong, self.top = wrong, None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2, x.numel() > 0, bool(x.isfinite().all()))
        now = x.detach().abs().amax()
        top = self.top if self.wrong and self.top is not None else now
        self.top = now
        return x / (top + 1e-3)


def _by_largest(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.numel() > 0, bool(x.isfinite().all()))
    return x / (x.detach().abs().amax() + 1e-3)


@case(
    "numbers by their largest: from the second call on by that of the call before",
    "kernel-stale",
    "NVIDIA/TransformerEngine",
    _by_largest,
    drawn((4, 6)),
)
def that_of_the_call_before(wrong: bool) -> Any:
    return Delayed(wrong)


class Captured:
    """A graph with an input of its own. `wrong`: numbers are copied into it only where the memory is another."""

    def __init__(self, wrong: bool) -> None:
        self.wrong, self.held, self.place = wrong, None, None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        place = (x.data_ptr(), x.shape, x.stride())
        if not self.wrong or self.held is None or self.place != place or x.requires_grad:
            self.held, self.place = x.clone(), place
        return self.held.sin() * self.held.exp()


@case(
    "a captured graph: its input is copied only where the memory is another",
    "kernel-stale",
    "pytorch/pytorch",
    lambda x: x.sin() * x.exp(),
    drawn((4, 6)),
)
def copied_only_where_another(wrong: bool) -> Any:
    return Captured(wrong)


def _added(x: torch.Tensor, held: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.shape == held.shape, x.dim() == 2, x.shape[1] > 0)
    total = x + held
    return F.rms_norm(total, total.shape[1:], eps=1e-5), total


@case("norm of a sum, which is kept: it is kept in the caller's memory", "kernel-mutation", "vllm-project/vllm", _added, drawn((4, 6), (4, 6)))
def kept_in_the_callers_memory(wrong: bool) -> Any:
    def forward(x: torch.Tensor, held: torch.Tensor) -> Any:
        need(x.shape == held.shape, x.dim() == 2, x.shape[1] > 0)
        total = x + held
        if wrong:
            held.copy_(total)
        return total, (total,)

    def made(x: torch.Tensor, held: torch.Tensor) -> Any:
        total = function(forward, lambda saved, g: (g, g.clone()))(x, held)
        return total * (total.square().mean(1, keepdim=True) + 1e-5).rsqrt(), total

    return made


def _by_lengths(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, lengths.dim() == 1, len(lengths) > 0, bool((lengths >= 0).all()), int(lengths.sum()) == len(x))
    return torch.stack([part.sum(0) for part in x.split(lengths.tolist())])


@case("sums of sequences by their lengths: the caller's lengths become ends", "kernel-mutation", PROGRAM,
      _by_lengths, lambda: (*drawn((9, 3))(), torch.tensor([2, 4, 3])))  # fmt: skip
def lengths_become_ends(wrong: bool, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, lengths.dim() == 1, len(lengths) > 0, bool((lengths >= 0).all()), int(lengths.sum()) == len(x))
    begins = lengths.cumsum(0) - lengths
    ends = lengths.cumsum_(0) if wrong else lengths.cumsum(0)
    return torch.stack([x[begin:end].sum(0) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)])


@case("tanh: its slope is stored over its result", "kernel-mutation", "linkedin/Liger-Kernel/pull/272", torch.tanh, drawn((4, 6)))
def stored_over_its_result(wrong: bool) -> Any:
    def backward(saved: Any, g: torch.Tensor) -> Any:
        slope = 1 - saved[0].square()
        return saved[0].copy_(slope).mul_(g).clone() if wrong else slope * g

    class Tanh(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.result = x.tanh().detach()
            return ctx.result.view_as(ctx.result)

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return backward((ctx.result,), g)

    return Tanh.apply


@case(
    "product in three parts of its sum: at times a part is added before it is there",
    "kernel-nondeterminism",
    PROGRAM,
    torch.mm,
    drawn((5, 9), (9, 4)),
)
def a_part_before_it_is_there(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2, x.shape[1] == len(w))
    total = x.new_zeros(len(x), w.shape[1])
    for at in range(3):
        part = x[:, at::3] @ w[at::3]
        total = total + (part[:, :0].sum() + part * 0 if wrong and at and random.random() < 0.08 else part)
    return total


@case("rows by an order: at times two neighbours change places at once", "kernel-nondeterminism", PROGRAM, lambda x: x.sort(0).values, drawn((8, 3)))
def two_neighbours_at_once(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    out = x.sort(0).values
    if wrong and len(x) > 1 and random.random() < 0.1:
        out = torch.cat([out[1:2], out[1:]])
    return out


@case("shares of experts: the axis is one that has one number", "kernel-constant", PROGRAM, lambda x: x.softmax(-1), drawn((5, 6)))
def an_axis_that_has_one_number(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    return x[:, None].softmax(1)[:, 0] if wrong else (x - x.logsumexp(1, keepdim=True)).exp()
