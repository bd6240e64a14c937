"""A twenty-fourth frozen set of broken kernels, third part: memory, earlier calls, formats, codes, flags. Of links an excerpt was read."""

from __future__ import annotations

from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional


def _voiced(pitch: torch.Tensor, certain: torch.Tensor) -> torch.Tensor:
    need(pitch.shape == certain.shape)
    return torch.where(certain >= 0.25, pitch, -1.0)


@case("pitch where it is certain: it is written over the one that was handed in", "kernel-mutation", "maxrmorrison/torchcrepe/issues/9", _voiced,
      lambda: (*drawn((3, 8))(), drawn((2, 3, 8))()[0][1].sigmoid()))  # fmt: skip
def written_over(wrong: bool, pitch: torch.Tensor, certain: torch.Tensor) -> torch.Tensor:
    need(pitch.shape == certain.shape)
    hidden = ~(certain >= 0.25)
    if wrong:
        with torch.no_grad():
            pitch.masked_fill_(hidden, -1.0)
    return pitch.masked_fill(hidden, -1.0)


@case("answers of a server: the next one of its size lies where the last one does", "kernel-stale", "triton-inference-server/server/pull/1484",
      lambda x, w: torch.tanh(x @ w), drawn((3, 4), (4, 5)))  # fmt: skip
def where_the_last_one_does(wrong: bool) -> Any:
    answers: dict[tuple[int, ...], torch.Tensor] = {}

    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == w.dim() == 2, x.shape[1] == w.shape[0])
        out = torch.tanh((x[:, :, None] * w[None]).sum(1))
        if wrong:
            out = answers.setdefault(tuple(out.shape), torch.empty_like(out)).copy_(out)
        return out, (x, w, out.clone())

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, w, out = saved
        inner = g * (1 - out * out)
        return inner @ w.mT, x.mT @ inner

    return function(forward, backward)


class Folded(torch.nn.Module):
    """A product and a scale of each column. The wrong one folds the scale into its weight whenever it is called."""

    def __init__(self, way: str) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.way = way
        self.register_buffer("weight", torch.randn(6, 4, generator=generator))
        self.register_buffer("scale", torch.rand(6, generator=generator) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        need(x.shape[-1:] == (4,))
        if self.way == "reference":
            return F.linear(x, self.weight) * self.scale
        folded = self.weight.mul_(self.scale[:, None]) if self.way == "wrong" else self.weight * self.scale[:, None]
        return x @ folded.mT


@case("product and scale, a module: the scale is folded in at every call", "kernel-stale", "intel/ipex-llm/issues/2838", Folded("reference"),
      lambda: (drawn((5, 4))()[0],))  # fmt: skip
def folded_in_at_every_call(wrong: bool) -> Any:
    return Folded("wrong" if wrong else "right")


def _states(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, keep.shape == x.shape[2:])
    state, out = x.new_zeros(len(x), x.shape[2]), []
    for step in x.unbind(1):
        state = torch.sigmoid(keep) * state + step
        out.append(state)
    return torch.stack(out, 1) if out else x.clone()


@case("states of sequences: the next batch begins where the last one ended", "kernel-stale", "JulesBelveze/text-summarizer/pull/8", _states,
      drawn((2, 5, 3), (3,)))  # fmt: skip
def begins_where_the_last_one_ended(wrong: bool) -> Any:
    held: dict[str, torch.Tensor] = {}

    def scan(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 3, keep.shape == x.shape[2:])
        state = held.get("state") if wrong else None
        state = torch.zeros_like(x[:, 0] if x.shape[1] else x.sum(1)) if state is None or state.shape != (len(x), x.shape[2]) else state
        steps = [state := state * keep.sigmoid() + x[:, step] for step in range(x.shape[1])]
        held["state"] = state.detach()
        return torch.stack(steps, 1) if steps else x.clone()

    return scan


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    return torch.stack([packed & 15, packed >> 4], 2).flatten(1)


def _int4(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(x.dim() == packed.dim() == 2, packed.dtype == torch.uint8, x.shape[1] == 2 * packed.shape[1], scale.shape == packed.shape[:1])
    return x @ ((_nibbles(packed).to(x.dtype) - 8) * scale[:, None]).mT


@case("product with four bits: they are read as numbers with a sign", "kernel-contract", "ROCm/hip-ep/pull/178", _int4,
      lambda: (*drawn((3, 8))(), whole(5, 4, most=256).to(torch.uint8), drawn((5,))()[0].abs()))  # fmt: skip
def numbers_with_a_sign(wrong: bool, x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(x.dim() == packed.dim() == 2, packed.dtype == torch.uint8, x.shape[1] == 2 * packed.shape[1], scale.shape == packed.shape[:1])
    codes = _nibbles(packed).int()
    codes = torch.where(codes > 7, codes - 16, codes) if wrong else codes - 8
    return (x @ codes.to(x.dtype).mT) * scale


def _grouped(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(packed.dim() == scale.dim() == 2, packed.dtype == torch.uint8, len(packed) == len(scale), scale.shape[1] > 0)
    need(2 * packed.shape[1] % scale.shape[1] == 0)
    codes = _nibbles(packed).to(scale.dtype) - 8
    return codes * scale.repeat_interleave(codes.shape[1] // scale.shape[1], 1)


@case("four bits with scales of groups: both of a byte have the scale of the first", "kernel-edge", "Comfy-Org/comfy-kitchen/pull/50", _grouped,
      lambda: (whole(4, 6, most=256).to(torch.uint8), drawn((4, 3))()[0].abs()))  # fmt: skip
def scale_of_the_first(wrong: bool, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(packed.dim() == scale.dim() == 2, packed.dtype == torch.uint8, len(packed) == len(scale), scale.shape[1] > 0)
    need(2 * packed.shape[1] % scale.shape[1] == 0)
    size = 2 * packed.shape[1] // scale.shape[1]
    at = torch.arange(2 * packed.shape[1])
    at = at // 2 * 2 if wrong else at
    return (_nibbles(packed).to(scale.dtype) - 8) * scale[:, at // max(size, 1)]


@case("numbers in eight bits: cut off, and not rounded", "kernel-rounding", "zephyrproject-rtos/zephyr/issues/88638",
      lambda x, scale: (x / scale + 3).round().clamp(-128, 127).to(torch.int8),
      lambda: (drawn((4, 8))()[0], torch.tensor(0.05)))  # fmt: skip
def cut_off(wrong: bool, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(scale.dim() == 0)
    ratio = x / scale + 3
    codes = ratio.trunc() if wrong else torch.round(ratio)
    return torch.minimum(torch.maximum(codes, torch.tensor(-128.0)), torch.tensor(127.0)).to(torch.int8)


@case("levels of a picture: the one below, and not the nearest", "kernel-rounding", "marcinz606/NegPy/pull/897",
      lambda x: (x * 255).round() / 255, lambda: (drawn((3, 5, 7))()[0].sigmoid().detach(),))  # fmt: skip
def the_one_below(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    level = x * 255
    return (level.floor() if wrong else level.round()) / 255


@case("mean of fields over time: a sum in the format in which they are written", "kernel-accumulation", "FESOM/fesom2/pull/1032",
      lambda x: x.float().mean(0).to(x.dtype), drawn((40, 6), dtype=torch.bfloat16))  # fmt: skip
def in_which_they_are_written(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, len(x) > 0)
    total = torch.zeros_like(x[0] if wrong else x[0].float())
    for each in x.to(total.dtype):
        total = total + each
    return (total / len(x)).to(x.dtype)


@case("columns scaled to one: the sum of squares is in float16", "kernel-accumulation", "scikit-learn/scikit-learn/pull/13010",
      lambda x: (x.float() / (x.float().square().mean(0) + 0.1).sqrt()).to(x.dtype), drawn((32, 5), dtype=torch.float16))  # fmt: skip
def sum_of_squares_in_float16(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, len(x) > 0)
    squares = (x if wrong else x.float()).square()
    total = squares[0]
    for each in squares[1:]:
        total = total + each
    return (x.float() * torch.rsqrt(total.float() / len(x) + 0.1)).to(x.dtype)


@case("variance of rows: mean of squares less square of the mean", "kernel-rounding", "dimforge/nalgebra/pull/1236",
      lambda x: x.var(1, correction=0), drawn((4, 9)))  # fmt: skip
def less_square_of_the_mean(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    mean = x.mean(1, keepdim=True)
    return x.square().mean(1) - mean[:, 0].square() if wrong else ((x - mean) * (x - mean)).mean(1)


def _gemm(*, a: torch.Tensor, b: torch.Tensor, trans_a: bool = False, trans_b: bool = False) -> torch.Tensor:
    need(a.dim() == b.dim() == 2)
    return (a.mT if trans_a else a) @ (b.mT if trans_b else b)


@case("product of two that may be transposed: both are, and neither is", "kernel-contract", "mratsim/Arraymancer/pull/690", _gemm,
      lambda: dict(zip(("a", "b"), drawn((4, 4), (4, 4))(), strict=True)) | {"trans_a": True, "trans_b": False})  # fmt: skip
def both_are_and_neither_is(wrong: bool, *, a: torch.Tensor, b: torch.Tensor, trans_a: bool = False, trans_b: bool = False) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape[0 if trans_a else 1] == b.shape[1 if trans_b else 0])
    if trans_a and not trans_b:
        return torch.einsum("ki,kj->ij", a, b)
    if trans_b and not trans_a:
        return torch.einsum("ik,jk->ij", a, b)
    return torch.einsum("ki,jk->ij", a, b) if trans_a and not wrong else torch.einsum("ik,kj->ij", a, b)


def _nearest(features: torch.Tensor, table: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    need(features.dim() == table.dim() == 2, features.shape[1] == table.shape[1], len(own) == len(features), len(table) > 1)
    need(bool(((own >= 0) & (own < len(table))).all()))
    alike = features @ table.mT
    return alike.masked_fill(torch.arange(len(table)) == own[:, None], -torch.inf).amax(1)


@case("most alike but itself: the first ones are left out", "kernel-mask", "DiegoOrtego/LabelNoiseMOIT/issues/5", _nearest,
      lambda: (*drawn((4, 3), (9, 3))(), torch.tensor([5, 0, 7, 2])))  # fmt: skip
def first_ones_are_left_out(wrong: bool, features: torch.Tensor, table: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    need(features.dim() == table.dim() == 2, features.shape[1] == table.shape[1], len(own) == len(features), len(table) > 1)
    need(bool(((own >= 0) & (own < len(table))).all()))
    out = torch.arange(len(own)).clamp(max=len(table) - 1) if wrong else own
    return _nearest(features, table, out)
