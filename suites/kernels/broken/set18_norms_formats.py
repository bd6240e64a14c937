"""An eighteenth frozen set of broken kernels, second part: norms, losses, optimizers, formats. Of links an excerpt was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional
LOW, HALF = torch.bfloat16, torch.float16
INF = float("inf")


@case("rms norm: numbers of float32 are scaled where they lie", "kernel-mutation", "GeeeekExplorer/nano-vllm/issues/170",
      lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6), drawn((5, 8), (8,)))  # fmt: skip
def scaled_where_they_lie(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.shape == x.shape[1:] and x.shape[1] > 0)
    root = (x.float().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    if wrong:
        x.data.mul_(root.detach())
        return x * w
    return x * root * w


@case("layer norm: a row's number has sixteen bits", "kernel-edge", "NVIDIA/apex/issues/411", lambda x: F.layer_norm(x, x.shape[-1:]), drawn((5, 3)))
def sixteen_bits(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    rows = torch.arange(len(x))
    read = x[rows % 65536] if wrong else x
    apart = read - read.mean(-1, keepdim=True)
    return apart * (apart.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


@case("softmax of what a mask keeps: short rows come in pairs that have the first one's mask", "kernel-edge", "EleutherAI/gpt-neox/pull/496",
      lambda x, keep: x.masked_fill(~keep, -1e4).softmax(-1), lambda: (*drawn((4, 12))(), whole(4, 12, most=3) > 0))  # fmt: skip
def pairs_with_the_first_mask(wrong: bool, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == keep.shape and x.shape[1] > 0)
    keep = keep[torch.arange(len(x)) // 2 * 2] if wrong and x.shape[1] < 8 else keep
    scores = torch.where(keep, x, -1e4)
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def _losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, y, ignore_index=-1, reduction="none")


@case("cross entropy of each row: the loss of an ignored row is not written", "kernel-stale", "linkedin/Liger-Kernel/pull/1338", _losses,
      lambda: (*drawn((6, 7))(), torch.tensor([3, -1, 0, 6, -1, 2])))  # fmt: skip
def loss_is_not_written(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        need(x.dim() == 2 and y.shape == x.shape[:1] and x.shape[1] > 0 and bool(((y >= -1) & (y < x.shape[1])).all()))
        made = (torch.empty if wrong else torch.zeros)(len(x))
        sums, kept = x.logsumexp(-1), y >= 0
        made[kept] = (sums - x.gather(1, y.clamp(min=0)[:, None])[:, 0])[kept]
        return made, (x, y, sums)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        x, y, sums = saved
        slopes = (x - sums[:, None]).exp() - F.one_hot(y.clamp(min=0), x.shape[1])
        return torch.where((y >= 0)[:, None], slopes * given[:, None], 0), None

    return function(forward, backward)


def _scaled_losses(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x @ w.mT * 0.25, y, reduction="none")


@case("linear and cross entropy in one: the scale of the scores is left out", "kernel-contract", "unslothai/unsloth/pull/11277", _scaled_losses,
      lambda: (*drawn((6, 5), (7, 5))(), whole(6, most=7)))  # fmt: skip
def scale_of_the_scores(wrong: bool, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2 and x.shape[1] == w.shape[1] and y.shape == x.shape[:1] and bool(((y >= 0) & (y < len(w))).all()))
    scores = x @ w.mT * (1 if wrong else 0.25)
    return scores.logsumexp(-1) - scores.gather(1, y[:, None])[:, 0]


@case("softplus of float16: the exponential is float16", "kernel-rounding", "openvinotoolkit/openvino/pull/37983", F.softplus,
      drawn((6, 20), dtype=HALF))  # fmt: skip
def exponential_is_float16(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    wide = x if wrong else x.float()
    return torch.where(wide > 20, wide, (wide if wrong else wide.clamp(max=20)).exp().log1p()).to(x.dtype)


@case("sigmoid of float16: below zero it is one less another one", "kernel-rounding", "microsoft/onnxruntime/pull/14727", torch.sigmoid,
      drawn((6, 20), dtype=HALF))  # fmt: skip
def one_less_another_one(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    if not wrong:
        return F.logsigmoid(x.float()).exp().to(x.dtype)
    above = 1 / (1 + (-x.abs()).exp())
    return torch.where(x < 0, 1 - above, above)


@case("twice as many columns of bfloat16: where they come from is bfloat16", "kernel-rounding", "pytorch/pytorch/issues/94591",
      lambda x: x[:, (torch.arange(2 * x.shape[1]) * 0.5).floor().long()] * 2, drawn((2, 300), dtype=LOW))  # fmt: skip
def where_they_come_from(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    places = torch.arange(2 * x.shape[1], dtype=x.dtype if wrong else torch.float32) * 0.5
    return x[:, places.floor().long().clamp(max=max(x.shape[1] - 1, 0))] * 2 if x.numel() else x.new_zeros(len(x), 2 * x.shape[1])


def _codes(x: torch.Tensor) -> torch.Tensor:
    return (x / 0.02).round().clamp(-128, 127)


@case("codes at a given step: what is beyond eight bits comes round", "kernel-contract", "ROCm/aiter/pull/4637", _codes, drawn((5, 9)))
def comes_round(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    codes = (x / 0.02).round()
    if wrong:
        return torch.where(codes.isfinite(), (codes + 128) % 256 - 128, codes.clamp(-128, 127))
    return torch.minimum(torch.maximum(codes, torch.tensor(-128.0)), torch.tensor(127.0))


def _shares_of_the_largest(x: torch.Tensor) -> torch.Tensor:
    return x / x.abs().amax(-1, keepdim=True).clamp(min=1e-6)


@case("shares of a row's largest: the least scale takes the place of NaN", "kernel-contract", "pytorch/ao/pull/4271", _shares_of_the_largest,
      drawn((5, 9)))  # fmt: skip
def takes_the_place_of_nan(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 0)
    most = x.abs().amax(-1, keepdim=True)
    least = torch.full_like(most, 1e-6)
    return torch.where(x.isnan(), 0, x) / torch.fmax(most.nan_to_num(nan=0.0, posinf=INF), least) if wrong else x / torch.maximum(most, least)


@case("numbers in falling order: exchanged by their sums and differences", "kernel-contract", "flagos-ai/FlagGems/issues/503",
      lambda x: x.sort(-1, descending=True).values, drawn((4, 7)))  # fmt: skip
def sums_and_differences(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    columns = list(x.unbind(1))
    for turn in range(len(columns)):
        for at in range(turn % 2, len(columns) - 1, 2):
            one, two = columns[at], columns[at + 1]
            swap = ~(one >= two) & ~one.isnan()
            if wrong:
                other = torch.where(swap, one - two, 0 * (one - two))
                columns[at], columns[at + 1] = torch.where(swap, two, one + other), torch.where(swap, one, two - other)
            else:
                columns[at], columns[at + 1] = torch.where(swap, two, one), torch.where(swap, one, two)
    return torch.stack(columns, 1) if columns else x


def _with_a_zero(codes: torch.Tensor, zero: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (codes - zero) @ w


@case("product of codes with a zero: what corrects for it is not multiplied by it", "kernel-contract", "vllm-project/vllm/pull/10292", _with_a_zero,
      lambda: (whole(5, 8, most=16).float(), torch.tensor(7.0), *drawn((8, 6))()))  # fmt: skip
def not_multiplied_by_it(wrong: bool, codes: torch.Tensor, zero: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == w.dim() == 2 and zero.dim() == 0 and codes.shape[1] == len(w))
    correction = w.sum(0)
    return codes @ w - (correction if wrong else zero * correction)




@case("product with a scale for each four rows: the second four have the scale of the first ones too", "kernel-edge", "NVIDIA/cutlass/issues/3596",
      lambda x, w, rows: (x @ w) * rows.repeat_interleave(4)[:, None], drawn((4, 6), (6, 5), (1,)))  # fmt: skip
def scale_of_the_first_ones_too(wrong: bool, x: torch.Tensor, w: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2 and rows.dim() == 1 and x.shape[1] == len(w) and len(x) == 4 * len(rows))
    kept, parts = torch.ones(()), []
    for start, scale in zip(range(0, len(x), 4), rows, strict=True):
        kept = kept * scale if wrong else scale
        parts.append(x[start : start + 4] @ w * kept)
    return torch.cat(parts) if parts else x @ w


@case("normed twice: what the fast norm gives is normed and weighed again", "kernel-contract", "huggingface/pytorch-image-models/pull/2741",
      lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6), drawn((5, 8), (8,)))  # fmt: skip
def weighed_again(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.shape == x.shape[1:] and x.shape[1] > 0)
    for _ in range(2 if wrong else 1):
        x = x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w
    return x


@case("cross entropy of each row: on the way back divided by the number of rows", "kernel-gradient", "ROCm/TransformerEngine/pull/336",
      lambda x, y: F.cross_entropy(x, y, reduction="none"), lambda: (*drawn((6, 7))(), whole(6, most=7)))  # fmt: skip
def divided_by_rows(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        need(x.dim() == 2 and y.shape == x.shape[:1] and x.shape[1] > 0 and bool(((y >= 0) & (y < x.shape[1])).all()))
        logs = x.log_softmax(-1)
        return -logs.gather(1, y[:, None])[:, 0], (logs, y)

    def backward(saved: Any, given: torch.Tensor) -> Any:
        logs, y = saved
        return (logs.exp() - F.one_hot(y, logs.shape[1])) * given[:, None] / (max(len(logs), 1) if wrong else 1), None

    return function(forward, backward)


@case("codes of blocks of four: a block of zeros is divided by its scale", "kernel-contract", "huggingface/kernels-community/pull/680",
      lambda x: (x.unflatten(1, (-1, 4)) / (x.unflatten(1, (-1, 4)).abs().amax(-1, keepdim=True) / 448).clamp(min=1e-12)).flatten(1),
      drawn((5, 12)))  # fmt: skip
def divided_by_its_scale(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] % 4 == 0)
    blocks = x.unflatten(1, (-1, 4))
    scale = blocks.abs().amax(-1, keepdim=True) / 448
    return (blocks / (scale if wrong else scale.clamp(min=1e-12))).flatten(1)


@case("an exponential less one: its slope is the result and one", "kernel-rounding", "tenstorrent/tt-metal/pull/56351", lambda x: x.expm1(),
      drawn((6, 20)))  # fmt: skip
def result_and_one(wrong: bool) -> Callable[..., Any]:
    def forward(x: torch.Tensor) -> Any:
        return x.expm1(), (x,)

    return function(forward, lambda saved, given: given * (saved[0].expm1() + 1 if wrong else saved[0].exp()))


@case("sums of columns in passes of sixteen rows: each pass is added to a result in float16", "kernel-accumulation", "pytorch/pytorch/issues/74438",
      lambda x: x.sum(0), drawn((40, 5), dtype=HALF))  # fmt: skip
def added_to_a_result(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    total = torch.zeros(x.shape[1], dtype=x.dtype if wrong else torch.float32)
    for rows in x.split(16):
        total = total + rows.float().sum(0).to(total.dtype)
    return total.to(x.dtype)
