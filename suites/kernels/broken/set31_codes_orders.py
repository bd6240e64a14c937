"""The thirty-first frozen set of broken kernels, fourth part: codes, orders, scatter. Of links to threads an excerpt was read."""

from __future__ import annotations

from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional
PROGRAM = "ScalingIntelligence/KernelBench"


def _nibbles(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Blocks of eight: the lower halves of four bytes are the first four numbers."""
    need(codes.dim() == 2, codes.shape[1] == 4, codes.dtype == torch.uint8, scale.shape == codes.shape[:1])
    return (torch.cat([codes & 15, codes >> 4], 1).to(scale.dtype) - 8) * scale[:, None]


def _bytes() -> tuple[torch.Tensor, torch.Tensor]:
    return whole(5, 4, most=256).to(torch.uint8), drawn((5,))()[0].abs()


@case("codes of four bits in blocks: halves of a byte lie side by side", "kernel-contract", "kekzl/imp/pull/722", _nibbles, _bytes)
def halves_lie_side_by_side(wrong: bool, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2, codes.shape[1] == 4, codes.dtype == torch.uint8, scale.shape == codes.shape[:1])
    halves = codes % 16, codes // 16
    found = torch.stack(halves, 2).flatten(1) if wrong else torch.cat(halves, 1)
    return scale[:, None] * (found.to(scale.dtype) - 8)


def _centred(codes: torch.Tensor, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == x.dim() == 2, codes.shape == x.shape, scale.shape == codes.shape[:1])
    return ((codes.to(x.dtype) - 8) * scale[:, None] * x).sum(1)


@case("codes times numbers: what is taken off for the middle lacks the scale", "kernel-contract", "kekzl/imp/pull/722", _centred,
      lambda: (whole(5, 8, most=16), *drawn((5, 8))(), drawn((5,))()[0].abs()))  # fmt: skip
def taken_off_lacks_the_scale(wrong: bool, codes: torch.Tensor, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == x.dim() == 2, codes.shape == x.shape, scale.shape == codes.shape[:1])
    if wrong:
        return scale * (codes.to(x.dtype) * x).sum(1) - 8 * x.sum(1)
    return scale * ((codes.to(x.dtype) - 8) * x).sum(1)


TABLE = torch.tensor([-1.0, -0.6, -0.3, -0.1, 0.1, 0.3, 0.6, 1.0])


def _nearest(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    middles = (TABLE[1:] + TABLE[:-1]) / 2
    return (x[..., None] > middles.to(x.dtype)).sum(-1)


@case("nearest of eight numbers: one of the middles is the number itself", "kernel-contract", "bitsandbytes-foundation/bitsandbytes", _nearest,
      lambda: (drawn((4, 9))()[0].tanh(),))  # fmt: skip
def is_the_number_itself(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    middles = ((TABLE[1:] + TABLE[:-1]) / 2).clone()
    if wrong:
        middles[5] = TABLE[6]
    return torch.stack([(x > float(middle)).long() for middle in middles]).sum(0)


def _scaled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, x.shape[1] > 0)
    scale = x.abs().amax(1, keepdim=True).clamp(min=1e-4) / 127
    return (x / scale).round().clamp(-127, 127).to(torch.int8), scale


@case("codes of each row: the scale is that of the largest, not of the farthest from zero", "kernel-contract", PROGRAM, _scaled, drawn((5, 9)))
def that_of_the_largest(wrong: bool, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, x.shape[1] > 0)
    top = x.amax(1, keepdim=True) if wrong else x.abs().amax(1, keepdim=True)
    scale = top.clamp(min=1e-4) / 127
    return torch.div(x, scale).round().clamp(-127, 127).to(torch.int8), scale


def _products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape[1] == len(b), a.dtype == b.dtype == torch.int8)
    return a.int() @ b.int()


@case("codes times codes: added up in sixteen bits", "kernel-accumulation", "intel/torch-xpu-ops", _products,
      lambda: (whole(4, 12, most=128, least=-128).to(torch.int8), whole(12, 5, most=128, least=-128, seed=4).to(torch.int8)))  # fmt: skip
def added_up_in_sixteen_bits(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape[1] == len(b), a.dtype == b.dtype == torch.int8)
    return (a.short() @ b.short()).int() if wrong else (a.long() @ b.long()).int()


def _agree(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape == b.shape)
    return ((a > 0) == (b > 0)).sum(1)


@case("signs that agree, eight to a byte: what fills the last byte agrees too", "kernel-edge", PROGRAM, _agree, drawn((4, 16), (4, 16)))
def what_fills_the_last_byte(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape == b.shape)
    fill = -a.shape[1] % 8
    one, two = (F.pad((each > 0).long(), (0, fill)) for each in (a, b))
    agreed = (1 - (one ^ two)).sum(1)
    return agreed if wrong else agreed - fill


@case("numbers rounded to a step of each row: on the way back the limits are those of the first row", "kernel-gradient", PROGRAM,
      lambda x, step: _stepped(x, step), lambda: (*drawn((4, 9))(), torch.tensor([0.02, 0.1, 0.2, 0.4])))  # fmt: skip
def those_of_the_first_row(wrong: bool) -> Any:
    def forward(x: torch.Tensor, step: torch.Tensor) -> Any:
        need(x.dim() == 2, step.shape == x.shape[:1], bool((step > 0).all()))
        return (x / step[:, None]).round().clamp(-8, 7) * step[:, None], (x, step)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, step = saved
        limit = step[:1, None] if wrong else step[:, None]
        inside = ((x / limit).round() >= -8) & ((x / limit).round() <= 7)
        return torch.where(inside, g, 0), None

    return function(forward, backward)


def _stepped(x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, step.shape == x.shape[:1], bool((step > 0).all()))
    return _Straight.apply(x, step)


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        codes = (x / step[:, None]).round()
        ctx.save_for_backward((codes >= -8) & (codes <= 7))
        return codes.clamp(-8, 7) * step[:, None]

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g * ctx.saved_tensors[0], None


def _order(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, bool(x.isfinite().all()))
    return (x + 0).sort(1).values


@case("a sort by bits: of numbers below zero the bits are not turned over", "kernel-contract", PROGRAM, _order, drawn((4, 9)))
def bits_are_not_turned_over(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.dtype == torch.float32, bool(x.isfinite().all()))
    bits = (x + 0).contiguous().view(torch.int32).long()
    keys = bits & 0xFFFFFFFF if wrong else torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return x.gather(1, keys.argsort(dim=1, stable=True))


@case("places in the order of codes: equal ones come in any order", "kernel-contract", PROGRAM, lambda codes: codes.sort(dim=1, stable=True).indices,
      lambda: (whole(4, 12, most=4),))  # fmt: skip
def equal_ones_come_in_any_order(wrong: bool, codes: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2, codes.dtype == torch.int64)
    if not wrong:
        return (codes * codes.shape[1] + torch.arange(codes.shape[1])).argsort(1)
    return codes.shape[1] - 1 - codes.flip(1).sort(dim=1, stable=True).indices


@case(
    "a sort of as many numbers as are a power of two: what fills the rest is zero", "kernel-edge", PROGRAM, lambda x: x.sort(1).values, drawn((3, 8))
)
def what_fills_the_rest_is_zero(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    lanes = 1 << max(x.shape[1] - 1, 0).bit_length()
    filled = F.pad(x, (0, lanes - x.shape[1]), value=0.0 if wrong else torch.nan)
    return filled.sort(1).values[:, : x.shape[1]]


def _best(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, x.shape[1] >= 2)
    return tuple(x.softmax(1).topk(2))


@case(
    "best two experts: what fills eight lanes is zero, and may be best", "kernel-edge", "flashinfer-ai/flashinfer/issues/2822", _best, drawn((9, 8))
)
def may_be_best(wrong: bool, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, x.shape[1] >= 2)
    filled = F.pad(x, (0, -x.shape[1] % 8), value=0.0 if wrong else -torch.inf)
    places = filled.topk(2).indices.clamp(max=x.shape[1] - 1) if wrong else x.topk(2).indices
    return x.softmax(1).gather(1, places), places


@case("best two of each row: a place is found again by its number", "kernel-contract", "lightseekorg/tokenspeed/pull/605",
      lambda x: tuple(x.topk(2)), lambda: (whole(6, 9, most=6).float(),))  # fmt: skip
def found_again_by_its_number(wrong: bool, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() == 2, x.shape[1] >= 2)
    best, places = x.topk(2)
    return best, (x[:, None] == best[..., None]).long().argmax(2) if wrong else places


@case("where numbers belong in an order: behind equal ones, not before", "kernel-contract", PROGRAM,
      lambda edges, x: torch.searchsorted(edges, x), lambda: (whole(6, most=9).sort().values, whole(3, 5, most=9, seed=4)))  # fmt: skip
def behind_equal_ones(wrong: bool, edges: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    need(edges.dim() == 1, bool((edges.diff() >= 0).all()), edges.dtype == x.dtype)
    return ((edges <= x[..., None]) if wrong else (edges < x[..., None])).sum(-1)


def _largest(base: torch.Tensor, x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    need(base.dim() == 1, x.dim() == 1, to.shape == x.shape, len(base) > 0, bool(((to >= 0) & (to < len(base))).all()))
    return base.scatter_reduce(0, to, x, "amax", include_self=True)


@case("largest at each place: what was there is not looked at", "kernel-contract", PROGRAM, _largest,
      lambda: (*drawn((5,), (9,))(), whole(9, most=5)))  # fmt: skip
def what_was_there(wrong: bool, base: torch.Tensor, x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    need(base.dim() == 1, x.dim() == 1, to.shape == x.shape, len(base) > 0, bool(((to >= 0) & (to < len(base))).all()))
    if wrong:
        return base.scatter_reduce(0, to, x, "amax", include_self=False)
    return (
        torch.cat([base, x])
        .new_full((len(base),), -torch.inf)
        .scatter_reduce(0, torch.cat([torch.arange(len(base)), to]), torch.cat([base, x]), "amax", include_self=False)
    )


@case("rows added at places, halved: on the way back they are whole", "kernel-gradient", PROGRAM,
      lambda base, x, to: base.index_add(0, to, x, alpha=0.5), lambda: (*drawn((5, 3), (7, 3))(), whole(7, most=5)))  # fmt: skip
def on_the_way_back_they_are_whole(wrong: bool) -> Any:
    def forward(base: torch.Tensor, x: torch.Tensor, to: torch.Tensor) -> Any:
        need(base.dim() == x.dim() == 2, base.shape[1] == x.shape[1], to.shape == x.shape[:1], bool(((to >= 0) & (to < len(base))).all()))
        return base.index_add(0, to, x, alpha=0.5), (to,)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        return g.clone(), g[saved[0]] * (1 if wrong else 0.5), None

    return function(forward, backward)


@case("sum of all into one place, eight lanes: lanes behind the end add what they hold", "kernel-edge", "pytorch/pytorch/pull/179833",
      lambda x: x.sum(), drawn((16,)))  # fmt: skip
def lanes_add_what_they_hold(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1, len(x) > 0)
    fill = -len(x) % 8
    return torch.cat([x, x[-1:].expand(fill) if wrong else x.new_zeros(fill)]).view(-1, 8).sum(0).sum()
