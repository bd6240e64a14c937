"""A twenty-first frozen set of broken kernels, third part: adapters, recurrent units, signals, images, memory. Of links an excerpt was read."""

from __future__ import annotations

import random
from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional
F16 = torch.float16


def _adapted(x: torch.Tensor, down: torch.Tensor, up: torch.Tensor, scales: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, down.dim() == up.dim() == 3, len(down) == len(up) == len(scales), which.shape == x.shape[:1], down.shape[2] == x.shape[1],
         up.shape[2] == down.shape[1], bool(((which >= 0) & (which < len(down))).all()))  # fmt: skip
    return (up[which] @ (down[which] @ x[:, :, None])).squeeze(2) * scales[which, None]


def _adapters() -> tuple[torch.Tensor, ...]:
    return *drawn((5, 6), (3, 2, 6), (3, 4, 2))(), torch.tensor([0.5, 2.0, 1.25]), torch.tensor([2, 0, 1, 1, 2])


@case("rows with an adapter each: the adapter's scale counts twice", "kernel-contract", "sgl-project/sgl-kernel-npu/pull/676", _adapted, _adapters)
def scale_counts_twice(wrong: bool, x: torch.Tensor, down: torch.Tensor, up: torch.Tensor, scales: torch.Tensor,
                       which: torch.Tensor) -> torch.Tensor:  # fmt: skip
    need(len(scales) == len(down))
    return _adapted(x, down * scales[:, None, None], up, scales if wrong else torch.ones_like(scales), which)


@case("rows with an adapter of some length each: what pads a shorter one counts", "kernel-mask", "sgl-project/sgl-kernel-npu/pull/805",
      lambda x, down, lengths, which: torch.where(torch.arange(down.shape[1]) < lengths[which, None], (down[which] @ x[:, :, None]).squeeze(2), 0),
      lambda: (*drawn((5, 6), (3, 4, 6))(), torch.tensor([2, 4, 3]), torch.tensor([2, 0, 1, 1, 2])))  # fmt: skip
def what_pads_a_shorter_one(wrong: bool, x: torch.Tensor, down: torch.Tensor, lengths: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, down.dim() == 3, len(down) == len(lengths), which.shape == x.shape[:1], down.shape[2] == x.shape[1],
         bool(((which >= 0) & (which < len(down))).all()))  # fmt: skip
    found = torch.einsum("nri,ni->nr", down[which], x)
    return found if wrong else found.masked_fill(torch.arange(down.shape[1]) >= lengths[which, None], 0)


def _fading(x: torch.Tensor, decay: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    states, state = [], first
    for place in range(x.shape[1]):
        state = state * decay[:, place].sigmoid() + x[:, place]
        states.append(state)
    return torch.stack(states, 1) if states else x * 1


@case("sums that fade from a first state: with one sequence it is left out", "kernel-edge", "vllm-project/vllm/pull/22034", _fading,
      drawn((3, 5, 4), (3, 5, 4), (3, 4)))  # fmt: skip
def with_one_it_is_left_out(wrong: bool, x: torch.Tensor, decay: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape == decay.shape, first.shape == (x.shape[0], x.shape[2]))
    return _fading(x, decay, first * 0 if wrong and len(first) == 1 else first)


@case("sums up and down a sequence: on the way back the first direction's gradient lies over the incoming one", "kernel-gradient",
      "apache/mxnet/pull/18203", lambda x, a: torch.stack([_one_way(x, a), _one_way(x.flip(1), a).flip(1)]).sum(0),
      lambda: (*drawn((3, 6))(), torch.tensor([0.5, 0.25, 0.75])))  # fmt: skip
def lies_over_the_incoming_one(wrong: bool) -> Any:
    def forward(x: torch.Tensor, a: torch.Tensor) -> Any:
        need(x.dim() == 2, a.shape == x.shape[:1])
        up, down = _one_way(x, a), _one_way(x.flip(1), a).flip(1)
        return up + down, (a, up, down)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        a, up, down = saved
        first = _one_way(g.flip(1), a).flip(1)
        second = _one_way(first if wrong else g, a)
        earlier, later = F.pad(up[:, :-1], (1, 0)), F.pad(down[:, 1:], (0, 1))
        return first + second, (first * earlier).sum(1) + (second * later).sum(1)

    return function(forward, backward)


def _one_way(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    states, state = [], torch.zeros_like(x[:, 0]) if x.shape[1] else None
    for column in x.unbind(1):
        state = state * a + column
        states.append(state)
    return torch.stack(states, 1) if states else x * 1


def _gated(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """A step of a gated unit whose reset gate lies on the state, before the product."""
    need(x.dim() == h.dim() == 2, len(x) == len(h), w.shape == (3 * h.shape[1], x.shape[1]), u.shape == (3 * h.shape[1], h.shape[1]))
    (wr, wz, wn), (ur, uz, un) = w.chunk(3), u.chunk(3)
    reset, update = (x @ wr.T + h @ ur.T).sigmoid(), (x @ wz.T + h @ uz.T).sigmoid()
    return (1 - update) * (x @ wn.T + (reset * h) @ un.T).tanh() + update * h


@case("a step of a gated unit: all of the state is reset by the result's own gate", "kernel-contract", "ooples/AiDotNet/pull/722", _gated,
      drawn((3, 5), (3, 4), (12, 5), (12, 4)))  # fmt: skip
def by_its_own_gate(wrong: bool, x: torch.Tensor, h: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    need(x.dim() == h.dim() == 2, len(x) == len(h), w.shape == (3 * h.shape[1], x.shape[1]), u.shape == (3 * h.shape[1], h.shape[1]))
    size = h.shape[1]
    both = x @ w[: 2 * size].T + h @ u[: 2 * size].T
    reset, update = both[:, :size].sigmoid(), both[:, size:].sigmoid()
    inner = reset * (h @ u[2 * size :].T) if wrong else (reset * h) @ u[2 * size :].T
    new = (x @ w[2 * size :].T + inner).tanh()
    return new + update * (h - new)


def _cell(gates: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(gates.dim() == c.dim() == 2, gates.shape == (len(c), 4 * c.shape[1]))
    i, f, n, o = gates.chunk(4, 1)
    new = f.sigmoid() * c + i.sigmoid() * n.tanh()
    return o.sigmoid() * new.tanh(), new


@case("cell with a memory: columns behind the eighth are never computed", "kernel-edge", "flagos-ai/FlagGems/pull/5015", _cell,
      drawn((3, 24), (3, 6)))  # fmt: skip
def never_computed(wrong: bool, gates: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h, new = _cell(gates, c)
    if wrong and c.shape[1] > 8:
        left = torch.arange(c.shape[1]) < 8
        return torch.where(left, h, torch.empty_like(h)), torch.where(left, new, torch.empty_like(new))
    return h, new


@case("cell with a memory: for the way back gates are kept before they are squashed", "kernel-gradient", "flagos-ai/FlagGems/issues/5014", _cell,
      drawn((3, 24), (3, 6)))  # fmt: skip
def before_they_are_squashed(wrong: bool) -> Any:
    def forward(gates: torch.Tensor, c: torch.Tensor) -> Any:
        h, new = _cell(gates, c)
        i, f, n, o = gates.chunk(4, 1)
        return (h, new), (i, f, n, o, c, new) if wrong else (i.sigmoid(), f.sigmoid(), n.tanh(), o.sigmoid(), c, new)

    class Cell(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, gates: torch.Tensor, c: torch.Tensor) -> Any:
            results, saved = forward(gates, c)
            ctx.save_for_backward(*saved)
            return results

        @staticmethod
        def backward(ctx: Any, gh: torch.Tensor, gc: torch.Tensor) -> Any:
            i, f, n, o, c, new = ctx.saved_tensors
            inner = gc + gh * o * (1 - new.tanh() ** 2)
            slopes = inner * n * i * (1 - i), inner * c * f * (1 - f), inner * i * (1 - n * n), gh * new.tanh() * o * (1 - o)
            return torch.cat(slopes, 1), inner * f

    return Cell.apply


@case("two layers: on the way back the second layer's bias is stored behind the end of the first one's", "kernel-gradient",
      "apache/mxnet/pull/17872", lambda x, w, b: ((x @ w[0].T + b[0]).tanh() @ w[1].T + b[1]).tanh(), drawn((4, 5), (2, 5, 5), (2, 5)))  # fmt: skip
def behind_the_end(wrong: bool) -> Any:
    def forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        need(x.dim() == 2, w.dim() == 3, len(w) == len(b) == 2, w.shape[1:] == (b.shape[1], x.shape[1]), w.shape[1] == w.shape[2])
        first = (x @ w[0].T + b[0]).tanh()
        second = (first @ w[1].T + b[1]).tanh()
        return second, (x, w, first, second)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, w, first, second = saved
        inner = g * (1 - second * second)
        outer = inner @ w[1] * (1 - first * first)
        bias = torch.stack([outer.sum(0), inner.sum(0) * 0 if wrong else inner.sum(0)])
        return outer @ w[0], torch.stack([outer.T @ x, inner.T @ first]), bias

    return function(forward, backward)


@case("convolution in groups with steps of two: on the way back each group has the first one's filters", "kernel-gradient",
      "ml-explore/mlx/pull/3800", lambda x, w: F.conv1d(x, w, stride=2, groups=2), drawn((2, 4, 9), (6, 2, 3)))  # fmt: skip
def each_has_the_first_ones(wrong: bool) -> Any:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        need(x.dim() == w.dim() == 3, x.shape[1] == 2 * w.shape[1], len(w) % 2 == 0, x.shape[2] >= w.shape[2] > 0, len(w) > 0, x.numel() > 0)
        return F.conv1d(x, w, stride=2, groups=2), (x, w)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, w = saved
        read = torch.cat([w[: len(w) // 2]] * 2) if wrong else w
        back = torch.nn.grad.conv1d_input(x.shape, read, g.contiguous(), stride=2, groups=2)
        return back, torch.nn.grad.conv1d_weight(x, w.shape, g.contiguous(), stride=2, groups=2)

    return function(forward, backward)


def _frames(x: torch.Tensor) -> torch.Tensor:
    return F.pad(x[None], (4, 4), mode="reflect")[0].unfold(1, 8, 3)


@case("frames of a signal mirrored at its ends: those at the beginning are one too few", "kernel-contract", "librosa/librosa/pull/1568",
      lambda x: torch.fft.rfft(_frames(x)).abs().square(), drawn((2, 24)))  # fmt: skip
def one_too_few(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape[1] > 4)
    frames, head = _frames(x), 1 if wrong else 2
    inside = torch.cat([frames[:, :head], F.pad(x, (4, 4))[:, 3 * head :].unfold(1, 8, 3)], 1) if x.shape[1] > 12 else frames
    mixed = torch.where((torch.arange(frames.shape[1]) * 3 + 8 <= 4 + x.shape[1])[:, None], inside, frames)
    parts = torch.view_as_real(torch.fft.rfft(mixed))
    return parts.square().sum(-1)


def _between(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Numbers of a row between columns; what is beyond the last column counts as zero."""
    places = places.detach().clamp(0, max(x.shape[1] - 1e-3, 0))
    left = places.floor().long()
    share = (places - left).to(x.dtype)
    padded = F.pad(x, (0, 1))
    return padded.gather(1, left) * (1 - share) + padded.gather(1, left + 1) * share


@case("numbers between columns: on the way back a share beyond the last column goes to the next row", "kernel-gradient", "open-mmlab/mmcv/pull/2174",
      _between, lambda: (*drawn((4, 6))(), torch.rand(4, 5, generator=torch.Generator().manual_seed(5)) * 6))  # fmt: skip
def goes_to_the_next_row(wrong: bool) -> Any:
    def forward(x: torch.Tensor, places: torch.Tensor) -> Any:
        need(x.dim() == places.dim() == 2, len(x) == len(places), x.shape[1] > 0)
        return _between(x, places), (x, places)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, places = saved
        places = places.clamp(0, max(x.shape[1] - 1e-3, 0))
        left = places.floor().long()
        share = (places - left).to(x.dtype)
        flat, first = x.new_zeros(x.numel() + 1), (torch.arange(len(x)) * x.shape[1])[:, None] + left
        flat.index_add_(0, first.flatten(), (g * (1 - share)).flatten())
        kept = share if wrong else torch.where(left + 1 < x.shape[1], share, 0)
        flat.index_add_(0, (first + 1).flatten(), (g * kept).flatten())
        return flat[:-1].view(x.shape), None

    return function(forward, backward)


@case("means of two by three samples of each part: rows have as many as columns", "kernel-contract", "openvinotoolkit/openvino/pull/24429",
      lambda x: F.adaptive_avg_pool2d(x[:, ::3, ::2], 2), drawn((2, 12, 8)))  # fmt: skip
def as_many_as_columns(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and x.numel() > 0)
    return F.adaptive_avg_pool2d(x[:, :: 2 if wrong else 3, ::2], (2, 2))


@case("attention with a bias on queries: it is added to the caller's queries", "kernel-mutation", "microsoft/onnxruntime/pull/20555",
      lambda q, k, v, b: F.scaled_dot_product_attention(q + b, k, v), drawn((2, 4, 6), (2, 5, 6), (2, 5, 6), (6,)))  # fmt: skip
def added_to_the_callers(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == 3, k.shape == v.shape, q.shape[2] == k.shape[2], len(q) == len(k), b.shape == q.shape[2:], k.numel() > 0)
    if wrong:
        with torch.no_grad():
            q.add_(b)
        return (q @ k.mT * q.shape[2] ** -0.5).softmax(2) @ v
    return ((q + b) @ k.mT * q.shape[2] ** -0.5).softmax(2) @ v


@case("sums so far in blocks: at times a block's sum is read before it is there", "kernel-nondeterminism", "ggml-org/llama.cpp/pull/18448",
      lambda x: x.cumsum(1), drawn((4, 12)))  # fmt: skip
def read_before_it_is_there(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    carry, found = torch.zeros_like(x[:, :1]), [x[:, :0]]
    for block in (each.cumsum(1) for each in x.split(4, 1) if x.shape[1]):
        found.append(block + carry)
        carry = carry + block[:, -1:] if not (wrong and random.random() < 0.15) else carry
    return torch.cat(found, 1)


@case("rows of a table of codes: numbers beyond the table leave what was there", "kernel-stale", "XPU-Forces/mojo_opset/pull/385",
      lambda ids, table: torch.where((ids < len(table))[:, None], table[ids.clamp(max=len(table) - 1)], 0),
      lambda: (torch.tensor([3, 7, 0, 6, 2]), *drawn((6, 4))()))  # fmt: skip
def leave_what_was_there(wrong: bool, ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    need(ids.dim() == 1, table.dim() == 2, len(table) > 0, bool((ids >= 0).all()))
    inside = (ids < len(table))[:, None]
    other = table.new_empty(len(ids), table.shape[1]) if wrong else table.new_zeros(len(ids), table.shape[1])
    return torch.where(inside, table[ids.clamp(max=len(table) - 1)], other)


@case("mean over a batch: kept by whether four divide the batch, not by the batch", "kernel-stale", "facebookexperimental/triton/pull/2869",
      lambda x: x.mean(0), drawn((8, 5)))  # fmt: skip
def kept_by_whether_four_divide(wrong: bool) -> Any:
    made: dict[Any, float] = {}

    def kernel(x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2 and len(x) > 0)
        count = made.setdefault(len(x) % 4 == 0 if wrong else len(x), float(len(x)))
        return x.sum(0) / count

    return kernel


@case("means of absolute differences of float16: added up in float16", "kernel-accumulation", "ROCm/AMDMIGraphX/issues/1497",
      lambda x, y: (x.float() - y.float()).abs().mean(1).half(), drawn((4, 32), (4, 32), dtype=F16))  # fmt: skip
def added_up_in_float16(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and x.shape == y.shape and x.shape[1] > 0)
    apart = (x.float() - y.float()).abs()
    if not wrong:
        return (apart.sum(1) / x.shape[1]).half()
    total = torch.zeros(len(x), dtype=F16)
    for column in apart.unbind(1):
        total = total + column.half()
    return (total.float() / x.shape[1]).half()


@case("counts of each of six labels, by blocks: at times a block is not counted yet", "kernel-nondeterminism", "NVIDIA/cccl/pull/10627",
      lambda labels: (labels[:, None] == torch.arange(6)).sum(0), lambda: (whole(24, most=6),))  # fmt: skip
def not_counted_yet(wrong: bool, labels: torch.Tensor) -> torch.Tensor:
    need(labels.dim() == 1, labels.numel() == 0 or 0 <= int(labels.min()) <= int(labels.max()) < 6)
    counts = torch.zeros(6, dtype=torch.int64)
    for block in labels.split(6):
        if not (wrong and random.random() < 0.1):
            counts = counts + block.bincount(minlength=6)
    return counts
