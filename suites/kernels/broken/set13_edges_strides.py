"""A thirteenth frozen set of broken kernels, and their twins: written and committed before any of them was tried. Of links an excerpt was read."""

from __future__ import annotations

import torch
from cases import as_if, case, drawn, need, packed, whole

F = torch.nn.functional


@case("sums so far: columns of a wider buffer are taken to be packed", "kernel-stride", "tile-ai/tilelang/issues/2523", lambda x: x.cumsum(-1),
      drawn((5, 9)))  # fmt: skip
def wider_buffer(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    read = as_if(x, packed(x.shape)) if wrong else x
    return torch.where(torch.ones(x.shape[1], x.shape[1]).tril().bool(), read[:, None], 0.0).sum(-1)


@case("sums so far: columns behind the sixteenth begin anew", "kernel-edge", "Jittor/jittor/pull/330", lambda x: x.cumsum(-1), drawn((4, 11)))
def begin_anew(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    carry, made = torch.zeros(len(x), 1), []
    for block in x.split(16, 1):
        made.append(block.cumsum(1) + (0 if wrong else carry))
        carry = carry + block.sum(1, keepdim=True)
    return torch.cat(made, 1)


@case("smallest four: zeros where there are no more than four", "kernel-edge", "sony/nnabla-ext-cuda/pull/485",
      lambda x: x.topk(4, largest=False).values, drawn((5, 9)))  # fmt: skip
def no_more_than_four(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] >= 4)
    made = x.sort(-1).values[:, :4]
    return 0 * made if wrong and x.shape[1] == 4 else made


@case("largest three: rows longer than one block and shorter than two are zero", "kernel-edge", "microsoft/onnxruntime/pull/3176",
      lambda x: x.topk(3).values, drawn((4, 10)))  # fmt: skip
def longer_than_one_block(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] >= 3)
    made = x.sort(-1, descending=True).values[:, :3]
    return torch.zeros(made.shape) if wrong and 16 < x.shape[1] < 32 else made


def _ends(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[begin:end].sum(0) for begin, end in zip(ends.tolist(), ends[1:].tolist(), strict=False)])


@case("sums of sequences: empty ones at the end are left out", "kernel-edge", "dmlc/dgl/pull/2228", _ends,
      lambda: (*drawn((10, 3))(), torch.tensor([0, 3, 7, 10])))  # fmt: skip
def empty_at_the_end(wrong: bool, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, ends.dim() == 1, len(ends) > 1, int(ends[0]) == 0, int(ends[-1]) == len(x), bool((ends.diff() >= 0).all()))
    places = torch.repeat_interleave(torch.arange(len(ends) - 1), ends.diff())
    count = int(places[-1]) + 1 if wrong and len(places) else len(ends) - 1
    return torch.zeros(count, x.shape[1]).index_add(0, places, x)


def _padded(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv1d(x, w[:, None], padding=3, groups=len(w))


@case("each channel's convolution: rows shorter than the padding are skipped", "kernel-edge", "robertknight/rten/pull/336", _padded,
      drawn((2, 3, 8), (3, 7)))  # fmt: skip
def shorter_than_the_padding(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == 2, x.shape[1] == len(w), min(*x.shape, *w.shape) > 0, x.shape[2] + 6 >= w.shape[1])
    size = x.shape[2] + 7 - w.shape[1]
    wide, made = F.pad(x, (3, 3)), torch.zeros(*x.shape[:2], size)
    for tap in range(w.shape[1]):
        if not (wrong and size < 3 and tap != 3):
            made = made + wide[..., tap : tap + size] * w[:, tap, None]
    return made


@case("convolution in tiles: the tile that ends a row pads as the first one does", "kernel-edge", "modular/modular/pull/6788",
      lambda x, w: F.conv1d(x, w, padding=1), drawn((2, 3, 9), (4, 3, 3)))  # fmt: skip
def ends_a_row(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == 3, x.shape[1] == w.shape[1], w.shape[2] == 3, min(*x.shape, *w.shape) > 0)
    behind = x[..., -1:] if wrong and x.shape[2] % 8 == 0 else torch.zeros(*x.shape[:2], 1)
    wide = torch.cat([torch.zeros(*x.shape[:2], 1), x, behind], -1)
    return torch.einsum("bint,oit->bon", wide.unfold(-1, 3, 1), w)


@case("convolution turned round: columns that are added at the end are zero", "kernel-contract", "llvm/torch-mlir/pull/2026",
      lambda x, w: F.conv_transpose1d(x, w, stride=2, padding=1, output_padding=1), drawn((2, 3, 5), (3, 4, 4)))  # fmt: skip
def added_at_the_end(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == 3, x.shape[1] == len(w), w.shape[2] == 4, min(*x.shape, *w.shape) > 0)
    patches = torch.einsum("bin,iot->botn", x, w)
    made = torch.zeros(len(x), w.shape[1], 2 * x.shape[2] + 2)
    for tap in range(4):
        made = made + F.pad(torch.stack([patches[:, :, tap], 0 * patches[:, :, tap].detach().nan_to_num(0, 0, 0)], -1).flatten(-2),
                            (tap, 2 - tap) if tap < 3 else (3, -1))  # fmt: skip
    inner = made[..., 1:]
    return F.pad(inner[..., :-1], (0, 1)) if wrong else inner


@case("correlation by frequencies: of an odd length one number is lost", "kernel-edge", "thuml/Autoformer/issues/133",
      lambda q, k: torch.fft.irfft(torch.fft.rfft(q) * torch.fft.rfft(k).conj(), q.shape[-1]), drawn((3, 8), (3, 8)))  # fmt: skip
def odd_length(wrong: bool, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, q.shape == k.shape, q.shape[1] > 1)
    product = torch.fft.rfft(q) * torch.fft.rfft(k).conj()
    return torch.fft.irfft(product) if wrong else torch.fft.irfft(product, q.shape[1])


@case("multiplied and summed: a factor that is repeated is walked as if whole", "kernel-stride", "sonots/cumo/pull/215",
      lambda x, y: (x * y).sum(-1), drawn((5, 6), (5, 6)))  # fmt: skip
def walked_as_if_whole(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape)
    return torch.einsum("rc,rc->r", x, as_if(y, packed(y.shape)) if wrong else y)


@case("sums of columns: a view is read in the order of its memory", "kernel-stride", "flagos-ai/FlagGems/pull/1786", lambda x: x.sum(0),
      drawn((6, 5)))  # fmt: skip
def order_of_its_memory(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    read = as_if(x, packed(x.shape)) if wrong else x
    return torch.ones(len(x)) @ read


@case("rows in order: the row is found by the middle stride alone", "kernel-stride", "ml-explore/mlx/pull/4137", lambda x: x.sort(-1).values,
      drawn((2, 3, 7)))  # fmt: skip
def middle_stride_alone(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3)
    read = as_if(x, (x.shape[1] * x.stride(1), x.stride(1), x.stride(2))) if wrong else x
    return read.gather(-1, read.argsort(-1))


def _turned(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.arange(len(q))[:, None] * 0.5 ** torch.arange(q.shape[1] // 2)
    halves = ((each[:, : q.shape[1] // 2], each[:, q.shape[1] // 2 :]) for each in (q, k))
    made = [torch.cat([one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin()], -1) for one, two in halves]
    return made[0], made[1]


@case("rope of queries and keys: second halves of keys are found by the stride of queries", "kernel-stride", "hpcaitech/ColossalAI/pull/6444",
      _turned, drawn((5, 6), (5, 6)))  # fmt: skip
def stride_of_queries(wrong: bool, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(q.dim() == 2, q.shape == k.shape, q.shape[1] % 2 == 0)
    half, made = q.shape[1] // 2, []
    angle = torch.outer(torch.arange(len(q)).float(), 0.5 ** torch.arange(half).float())
    for each in (q, k):
        other = as_if(each, (q.stride(0), each.stride(1))) if wrong else each
        rows = torch.complex(each[:, :half], other[:, half:]) * torch.polar(torch.ones_like(angle), angle)
        made.append(torch.cat([rows.real, rows.imag], -1))
    return made[0], made[1]


@case("shares of the best two: with sixteen experts those of another function", "kernel-edge", "MetaX-MACA/vLLM-metax/issues/270",
      lambda x: x.sigmoid().topk(2).values, drawn((5, 6)))  # fmt: skip
def with_sixteen_experts(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] >= 2)
    best = x.topk(2).indices
    shares = x.softmax(-1) if wrong and x.shape[1] == 16 else x.sigmoid()
    return shares.gather(1, best)


@case("product with a scale for each group: where a group is longer than a tile its scale is the first", "kernel-edge",
      "sgl-project/sglang/pull/20819", lambda x, w, s: x @ (w * s.repeat_interleave(len(w) // len(s), 0)), drawn((4, 8), (8, 5), (2, 5)))  # fmt: skip
def longer_than_a_tile(wrong: bool, x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.dim() == 2, s.dim() == 2, x.shape[1] == len(w), w.shape[1] == s.shape[1], len(s) > 0, len(w) > 0, len(w) % len(s) == 0)
    group, total = len(w) // len(s), torch.zeros(len(x), w.shape[1])
    for place in range(len(s)):
        rows = slice(place * group, (place + 1) * group)
        total = total + (x[:, rows] @ w[rows]) * s[0 if wrong and group > 4 else place]
    return total


@case("a row times codes: columns behind the first eight have the first zeros", "kernel-edge", "robertknight/rten/pull/539",
      lambda x, w, zero: x @ (w - zero).float(), lambda: (*drawn((6,))(), whole(6, 5, most=16), whole(5, most=16, seed=4)))  # fmt: skip
def first_zeros(wrong: bool, x: torch.Tensor, w: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1, w.dim() == 2, len(x) == len(w), zero.shape == w.shape[1:])
    places = torch.arange(len(zero)) % 8 if wrong else torch.arange(len(zero))
    return torch.einsum("k,kc->c", x, (w - zero[places]).float())


def _wider(x: torch.Tensor) -> torch.Tensor:
    return F.interpolate(x[None], scale_factor=1.5, mode="linear")[0]


@case("half as many columns more: places by the ratio of sizes", "kernel-edge", "Tencent/ncnn/issues/6836", _wider, drawn((3, 6)))
def ratio_of_sizes(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.numel() > 0)
    size = x.shape[1] * 3 // 2
    at = ((torch.arange(size) + 0.5) * (x.shape[1] / size if wrong else 2 / 3) - 0.5).clamp(min=0)
    low = at.floor().long().clamp(max=x.shape[1] - 1)
    share = at - low
    return x[:, low] * (1 - share) + x[:, (low + 1).clamp(max=x.shape[1] - 1)] * share


def _filtered(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    return torch.cat([state, x], -1)[..., x.shape[-1] :]


@case("state of a convolution: a short piece leaves zeros, not what was there", "kernel-edge", "vllm-project/vllm-ascend/pull/8561", _filtered,
      drawn((2, 3, 6), (2, 3, 3)))  # fmt: skip
def short_piece(wrong: bool, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, state.dim() == 3, x.shape[:2] == state.shape[:2])
    kept = max(state.shape[2] - x.shape[2], 0)
    before = state[..., state.shape[2] - kept :]
    return torch.cat([torch.zeros(before.shape) if wrong else before, x[..., x.shape[2] - (state.shape[2] - kept) :]], -1)
