"""The twenty-sixth frozen set of broken kernels, second part: masks, memory, layouts, calls. Of links an excerpt was read."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import as_if, case, drawn, function, need, packed, whole

F = torch.nn.functional


def _padded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2, q.shape == k.shape, len(k) == len(v), real.shape == (len(k),), bool(real.any()))
    return (q @ k.T).masked_fill(~real, -10000.0).softmax(1) @ v


@case("attention with padding: queries are hidden, not keys", "kernel-mask", "hyunwoongko/transformer/pull/40", _padded,
      lambda: (*drawn((6, 4), (6, 4), (6, 3))(), torch.tensor([True, True, True, True, False, False])))  # fmt: skip
def queries_are_hidden(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 2, q.shape == k.shape, len(k) == len(v), real.shape == (len(k),), bool(real.any()))
    scores = torch.einsum("id,jd->ij", q, k)
    scores = torch.where(real[:, None] if wrong else real[None], scores, -10000.0)
    return (scores - scores.logsumexp(1, keepdim=True)).exp() @ v


def _mean(x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, real.shape == x.shape[:2])
    kept = real[:, :, None].to(x.dtype)
    return torch.where(real[:, :, None], x, 0).sum(1) / kept.sum(1).clamp(min=1)


def _real(*lengths: int, most: int) -> torch.Tensor:
    return torch.arange(most) < torch.tensor(lengths)[:, None]


@case("mean of tokens: the mask of padding is made of ones", "kernel-mask", "yg211/bert_nli/pull/3", _mean,
      lambda: (drawn((3, 6, 4))()[0], _real(6, 2, 4, most=6)))  # fmt: skip
def made_of_ones(wrong: bool, x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, real.shape == x.shape[:2])
    keep = torch.ones_like(real) if wrong else real
    total = x.masked_fill(~keep[:, :, None], 0).sum(1)
    return total / keep.sum(1, keepdim=True).clamp(min=1)


def _lengths(scores: torch.Tensor, v: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    need(scores.dim() == v.dim() == 3, scores.shape[::2] == v.shape[:2], length.shape == scores.shape[:1])
    need(bool(((length > 0) & (length <= scores.shape[2])).all()))
    real = torch.arange(scores.shape[2]) < length[:, None]
    return scores.masked_fill(~real[:, None], -1e9).softmax(2) @ v


@case("attention of sentences: padding begins one behind its place", "kernel-mask", "ajhalthor/Transformer-Neural-Network/issues/15", _lengths,
      lambda: (*drawn((3, 4, 6), (3, 6, 2))(), torch.tensor([6, 2, 4])))  # fmt: skip
def one_behind_its_place(wrong: bool, scores: torch.Tensor, v: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    need(scores.dim() == v.dim() == 3, scores.shape[::2] == v.shape[:2], length.shape == scores.shape[:1], min(scores.shape) > 0)
    need(bool(((length > 0) & (length <= scores.shape[2])).all()))
    out = []
    for row, values, end in zip(scores, v, length.tolist(), strict=True):
        end = min(end + (1 if wrong else 0), len(values))
        out.append(row[:, :end].softmax(1) @ values[:end])
    return torch.stack(out)


def _token(token: torch.Tensor, x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    need(token.dim() == 1, x.dim() == 3, x.shape[2:] == token.shape, real.shape == x.shape[:2], bool(real.any(1).all()))
    return (F.softmax((x @ token).masked_fill(~real, -math.inf), 1)[:, None] @ x)[:, 0]


@case("pooling by a token: its mask hides nothing", "kernel-mask", "theislab/CellFlow/issues/226", _token,
      lambda: (*drawn((4,), (3, 5, 4))(), _real(5, 3, 1, most=5)))  # fmt: skip
def hides_nothing(wrong: bool, token: torch.Tensor, x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    need(token.dim() == 1, x.dim() == 3, x.shape[2:] == token.shape, real.shape == x.shape[:2], bool(real.any(1).all()), x.shape[1] > 0)
    scores = torch.einsum("btd,d->bt", x, token)
    if not wrong:
        scores = scores.masked_fill(~real, -math.inf)
    powers = (scores - scores.amax(1, keepdim=True).detach()).exp()
    seen = x if wrong else torch.where(real[:, :, None], x, 0)
    return torch.einsum("bt,btd->bd", powers / powers.sum(1, keepdim=True), seen)


def _active(loss: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    need(loss.dim() == 2, mask.shape == loss.shape)
    return torch.where(mask, loss, 0).sum() / mask.sum().clamp(min=1)


@case("mean loss of tokens: a sample that is hidden counts as one token", "kernel-mask", "radixark/miles/pull/2796", _active,
      lambda: (drawn((4, 5))()[0], _real(5, 0, 3, 0, most=5)))  # fmt: skip
def counts_as_one_token(wrong: bool, loss: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    need(loss.dim() == 2, mask.shape == loss.shape)
    total = loss.masked_fill(~mask, 0).sum(1).sum()
    count = mask.sum(1).clamp(min=1).sum() if wrong else mask.sum()
    return total / count.clamp(min=1)


def _hidden(logits: torch.Tensor, label: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    need(logits.dim() == 2, label.shape == hidden.shape == logits.shape[:1], bool(((label >= 0) & (label < logits.shape[1])).all()))
    each = F.cross_entropy(logits, label, reduction="none")
    return torch.where(hidden, each, 0).sum() / hidden.sum().clamp(min=1)


@case("loss of hidden tokens: it is that of all tokens", "kernel-mask", "lucidrains/mlm-pytorch/pull/3", _hidden,
      lambda: (drawn((7, 5))()[0], whole(7, most=5), torch.tensor([True, False, False, True, False, True, False])))  # fmt: skip
def that_of_all_tokens(wrong: bool, logits: torch.Tensor, label: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    need(logits.dim() == 2, label.shape == hidden.shape == logits.shape[:1], bool(((label >= 0) & (label < logits.shape[1])).all()))
    need(logits.shape[1] > 0)
    each = logits.logsumexp(1) - logits.gather(1, label[:, None])[:, 0]
    if wrong:
        return each.sum() / max(len(each), 1)
    return each[hidden].sum() / hidden.sum().clamp(min=1)


@case("two products one behind the other: the second is added to memory", "kernel-stale", "cavazos-lab/PolyBench-ACC/pull/13",
      lambda a, b, c: (a @ b) @ c, drawn((4, 5), (5, 3), (3, 6)))  # fmt: skip
def added_to_memory(wrong: bool, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == c.dim() == 2, a.shape[1] == len(b), b.shape[1] == len(c))

    def forward(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        size = (len(a), c.shape[1])
        out = torch.empty(size, dtype=a.dtype) if wrong else torch.zeros(size, dtype=a.dtype)
        out += a @ b @ c
        return out, (a, b, c)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        a, b, c = saved
        return g @ c.T @ b.T, a.T @ g @ c.T, (a @ b).T @ g

    return function(forward, backward)(a, b, c)


@case("products of columns, split: the space for parts is cleared when it is made", "kernel-stale", "NervanaSystems/ngraph/pull/1095",
      lambda x, y: (x * y).sum(0), drawn((6, 4), (6, 4)))  # fmt: skip
def cleared_when_it_is_made(wrong: bool) -> Any:
    spaces: dict[Any, torch.Tensor] = {}

    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        need(x.dim() == 2, x.shape == y.shape)
        space = spaces.setdefault((x.shape[1], x.dtype), torch.zeros(2, x.shape[1], dtype=x.dtype))
        if not wrong:
            space.zero_()
        for part in range(2):
            space[part] += torch.einsum("nd,nd->d", x[part::2], y[part::2])
        return space.sum(0), (x, y)

    return function(forward, lambda saved, g: (g * saved[1], g * saved[0]))


@case("numbers behind a length are cleared: from memory that nobody cleared", "kernel-stale", "NVIDIA-RTX/NRI/pull/174",
      lambda x, length: torch.where(torch.arange(x.shape[1]) < length[:, None], x, 0),
      lambda: (drawn((4, 6))()[0], torch.tensor([6, 2, 0, 4])))  # fmt: skip
def nobody_cleared(wrong: bool, x: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, length.shape == x.shape[:1])
    keep = torch.arange(x.shape[1])[None] < length[:, None]

    def forward(x: torch.Tensor) -> Any:
        clear = torch.empty_like(x) if wrong else x.new_zeros(x.shape)
        out = x.clone()
        out[~keep] = clear[~keep]
        return out, ()

    return function(forward, lambda saved, g: g * keep)(x)


@case("sum of a vector by halves: a half is read before it is written", "kernel-nondeterminism", "Mantevo/miniFE/issues/13",
      lambda x, y: (x * y).sum(), drawn((16,), (16,)))  # fmt: skip
def read_before_it_is_written(wrong: bool) -> Any:
    draw = torch.Generator().manual_seed(11)

    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 1, x.shape == y.shape)
        part = x * y
        while len(part) > 1:
            half = (len(part) + 1) // 2
            tail = F.pad(part[half:], (0, 2 * half - len(part)))
            early = wrong and len(part) <= 8 and float(torch.rand((), generator=draw)) < 0.25
            part = part[:half] if early else part[:half] + tail
        return part.sum()

    return kernel


@case("numbers above a limit: the others are cleared where they are", "kernel-mutation", "spinalcordtoolbox/spinalcordtoolbox/issues/3500",
      lambda x: torch.where(x > 0.2, x, 0), drawn((4, 7)))  # fmt: skip
def cleared_where_they_are(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    low = x.detach() <= 0.2
    if wrong:
        with torch.no_grad():
            x[low] = 0
    return x * ~low if wrong else torch.where(low, torch.zeros_like(x), x)


def _timed(x: torch.Tensor, normalize: bool, mean_time: bool) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 1)
    if normalize:
        x = (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-2)
    return x - x.mean(0, keepdim=True) if mean_time else x * 1


@case("rows without their mean over time: it is taken from the rows given", "kernel-mutation", "MouseLand/rastermap/issues/39", _timed,
      lambda: (drawn((5, 8))()[0], False, True))  # fmt: skip
def from_the_rows_given(wrong: bool, x: torch.Tensor, normalize: bool, mean_time: bool) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 1)
    made = x
    if normalize:
        even = torch.sub(x, x.mean(1, keepdim=True))
        made = even / (even.square().sum(1, keepdim=True).div(x.shape[1] - 1).sqrt() + 1e-2)
    if not mean_time:
        return made.clone()
    mean = torch.mean(made, 0, keepdim=True)
    if wrong:
        with torch.no_grad():
            made -= mean
        return made.clone()
    return made - mean


@case("crops as scores: what is in float32 already is changed", "kernel-mutation", "ScrollPrize/villa/pull/1446",
      lambda x: (x - x.mean()) / (x.std(correction=0) + 1e-3), drawn((3, 5, 4)))  # fmt: skip
def is_changed(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        made = x.to(torch.float32, copy=not wrong)
        made -= made.mean()
        spread = made.square().mean().sqrt()
        made /= spread + 1e-3
        return made.clone(), (made.clone(), spread)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        made, spread = saved
        count = max(g.numel(), 1)
        over = (spread + 1e-3) * torch.where(spread > 0, 1 / spread, 0)  # of equal numbers there is no spread
        along = (g * made).sum() * over / count
        even = made * over
        return (g - g.mean()) / (spread + 1e-3) - even * along / (spread + 1e-3) * spread / (spread + 1e-3)

    return function(forward, backward)


@case("counts that are few: they are set to one limit in the table given", "kernel-mutation", "BioThinkLab/SCYN/issues/7",
      lambda y: torch.log(y.clamp(min=20) / 20).sum(1), lambda: (drawn((4, 6))()[0].abs() * 40 + 1,))  # fmt: skip
def in_the_table_given(wrong: bool, y: torch.Tensor) -> torch.Tensor:
    need(y.dim() == 2)
    few = y.detach() < 20
    if wrong:
        with torch.no_grad():
            y[few] = 20
    return torch.where(few, torch.full_like(y, 20), y).log().sum(1) - y.shape[1] * math.log(20)


@case("columns with a scale each, of a table that is turned: rows are read as they lie", "kernel-stride", "crystal-data/num.cr/issues/33",
      lambda a, s: a @ torch.diag(s), drawn((3, 4), (4,)))  # fmt: skip
def as_they_lie(wrong: bool, a: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2, s.shape == a.shape[1:])
    return (as_if(a, packed(a.shape)) if wrong else a) * s


@case("part of a table: its offset counts twice", "kernel-stride", "Deep-Learning-Profiling-Tools/triton-viz/pull/370", lambda x: x * 2,
      drawn((5, 6)))  # fmt: skip
def counts_twice(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    begin = 2 * x.storage_offset()
    last = begin + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    if wrong and x.numel() and last < x.untyped_storage().nbytes() // x.element_size():
        x = x.as_strided(x.shape, x.stride(), begin)
    return torch.add(x, x)


@case("rows that are chosen by a step: they are taken one behind the other", "kernel-stride", "meta-pytorch/monarch/pull/533",
      lambda x: x.square().sum(1), drawn((4, 5)))  # fmt: skip
def one_behind_the_other(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    if wrong:
        x = as_if(x, (x.shape[1] * x.stride(1), x.stride(1)))
    return torch.linalg.vecdot(x, x)


@case("product of a table that is turned: its index is that of one that is not", "kernel-stride", "Jianqoq/Hpt/pull/162", torch.mm,
      drawn((5, 4), (4, 6)))  # fmt: skip
def of_one_that_is_not(wrong: bool, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == b.dim() == 2, a.shape[1] == len(b))
    if wrong and a.stride(0) == 1 and a.stride(1) != 1:
        a = as_if(a, (a.shape[1], 1))
    return torch.einsum("ik,kj->ij", a, b)
