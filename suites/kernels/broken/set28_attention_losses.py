"""The twenty-eighth frozen set of broken kernels, first part: attention, losses, formulas, gradients. Of links an excerpt was read."""

from __future__ import annotations

from typing import Any

import torch
from cases import case, drawn, function, need, whole

F = torch.nn.functional


def _heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of three heads, whose columns lie one head after another."""
    need(q.dim() == 2, q.shape == k.shape == v.shape, q.shape[1] > 0, q.shape[1] % 3 == 0)
    one, two, three = (each.unflatten(1, (3, -1)).transpose(0, 1) for each in (q, k, v))
    return ((one @ two.mT / one.shape[2] ** 0.5).softmax(2) @ three).transpose(0, 1).flatten(1)


@case("attention of three heads: the scale is that of all columns", "kernel-contract", "lucidrains/vit-pytorch/issues/65", _heads,
      drawn((5, 12), (5, 12), (5, 12)))  # fmt: skip
def scale_of_all_columns(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, q.shape == k.shape == v.shape, q.shape[1] > 0, q.shape[1] % 3 == 0)
    width = q.shape[1] if wrong else q.shape[1] // 3
    parts = []
    for one, two, three in zip(q.chunk(3, 1), k.chunk(3, 1), v.chunk(3, 1), strict=True):
        parts.append(torch.softmax(one @ two.T * width**-0.5, 1) @ three)
    return torch.cat(parts, 1)


@case("results of heads, joined: tokens and heads are not turned before", "kernel-contract", "jsbaan/transformer-from-scratch/pull/6",
      lambda x: x.transpose(0, 1).flatten(1), drawn((3, 5, 4)))  # fmt: skip
def not_turned_before(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3)
    heads, tokens, width = x.shape
    return x.reshape(tokens, heads * width) if wrong else torch.cat(list(x.unbind(0)), 1).clone() if heads else x.new_empty(tokens, 0)


def _merged(x: torch.Tensor) -> torch.Tensor:
    """Batches of two heads each lie behind one another. A token's row has its heads side by side."""
    need(x.dim() == 3, len(x) % 2 == 0)
    return x.unflatten(0, (-1, 2)).transpose(1, 2).flatten(2)


@case("heads of a batch, back to rows: heads are taken to lie around batches", "kernel-contract",
      "gazelle93/Transformer-Various-Positional-Encoding/issues/1", _merged, drawn((6, 4, 3)))  # fmt: skip
def heads_around_batches(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, len(x) % 2 == 0)
    if wrong:
        return torch.cat([x[: len(x) // 2], x[len(x) // 2 :]], 2)
    return torch.cat([x[0::2], x[1::2]], 2)


def _attended(q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, keys.dim() == 3, q.shape == keys.shape[::2], keys.shape[1] > 0)
    return (keys @ q[:, :, None]).squeeze(2).softmax(1)


@case("weights of one query for each batch: softmax over the batch", "kernel-contract", "PetrochukM/PyTorch-NLP/issues/2", _attended,
      drawn((3, 4), (3, 5, 4)))  # fmt: skip
def softmax_over_the_batch(wrong: bool, q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, keys.dim() == 3, q.shape == keys.shape[::2], keys.shape[1] > 0)
    return torch.einsum("bk,btk->bt", q, keys).softmax(0 if wrong else 1)


def _of_graphs(scores: torch.Tensor, x: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
    need(scores.shape == (len(x), len(x)), x.dim() == 2, graph.shape == (len(x),))
    return scores.masked_fill(graph[:, None] != graph, -torch.inf).softmax(1) @ x


@case("attention of nodes, several graphs in a batch: nodes of other graphs count in the sum", "kernel-mask", "leffff/graphormer-pyg/issues/14",
      _of_graphs, lambda: (*drawn((7, 7), (7, 3))(), torch.tensor([0, 0, 0, 1, 1, 2, 2])))  # fmt: skip
def other_graphs_count(wrong: bool, scores: torch.Tensor, x: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
    need(scores.shape == (len(x), len(x)), x.dim() == 2, graph.shape == (len(x),))
    same = graph[:, None] == graph
    if wrong:
        return torch.where(same, scores.softmax(1), 0) @ x
    rows = [(scores[at, same[at]].softmax(0)[:, None] * x[same[at]]).sum(0) for at in range(len(x))]
    return torch.stack(rows) if rows else x.clone()


def _tagged(x: torch.Tensor, tags: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, tags.shape == x.shape[:2], lengths.shape == x.shape[:1], bool(((tags >= 0) & (tags < x.shape[2])).all()))
    lost = -x.log_softmax(2).gather(2, tags[:, :, None]).squeeze(2)
    return torch.where(torch.arange(x.shape[1]) < lengths[:, None], lost, 0).sum(1)


@case("loss of tags of sentences: what fills a sentence up costs, too", "kernel-mask", "kaiyinzhou/BERT-NER/issues/3", _tagged,
      lambda: (*drawn((3, 6, 4))(), whole(3, 6, most=4), torch.tensor([6, 2, 4])))  # fmt: skip
def what_fills_up_costs(wrong: bool, x: torch.Tensor, tags: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, tags.shape == x.shape[:2], lengths.shape == x.shape[:1], bool(((tags >= 0) & (tags < x.shape[2])).all()))
    sums = []
    for row, own, length in zip(x, tags, lengths.tolist(), strict=True):
        upto = len(own) if wrong else max(0, min(length, len(own)))
        sums.append((row[:upto].logsumexp(1) - row[:upto].gather(1, own[:upto, None])[:, 0]).sum())
    return torch.stack(sums) if sums else x.new_zeros(0)


def _repeated(scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Scores of two heads for each batch. A head of a batch sees what the batch keeps."""
    need(scores.dim() == 4, scores.shape[1] == 2, keep.shape == scores.shape[::3])
    return torch.where(keep[:, None, None], scores, -1e30).softmax(3)


@case("mask of batches, two heads each: it is repeated head by head where batches lie side by side", "kernel-mask",
      "lsdefine/attention-is-all-you-need-keras/issues/36", _repeated,
      lambda: (*drawn((3, 2, 4, 5))(), torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1], [1, 1, 1, 1, 0]], dtype=torch.bool)))  # fmt: skip
def repeated_head_by_head(wrong: bool, scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(scores.dim() == 4, scores.shape[1] == 2, keep.shape == scores.shape[::3])
    flat = scores.transpose(0, 1).flatten(0, 1)
    mask = keep.repeat_interleave(2, 0) if wrong else keep.repeat(2, 1)
    shares = flat.masked_fill(~mask[:, None], -1e30).softmax(2)
    return shares.unflatten(0, (2, len(scores))).transpose(0, 1).contiguous()


def _padded(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Rows that are all zero are padding, and have no share."""
    need(x.dim() == v.dim() == 2, len(x) == len(v))
    shares = torch.where((x != 0).any(1), x.mean(1), -1e9).softmax(0)
    return shares[:, None] * v


@case("rows of zeros are padding: so are rows whose sum is zero", "kernel-mask", "Kyubyong/transformer/pull/69", _padded,
      lambda: (torch.tensor([[1.0, -1, 2], [1, 1, -2], [0, 0, 0], [2, 1, -1], [-1, 0, 1]]), *drawn((5, 4))()))  # fmt: skip
def rows_whose_sum_is_zero(wrong: bool, x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(x.dim() == v.dim() == 2, len(x) == len(v), x.shape[1] > 0)
    used = x.sum(1) if wrong else x.abs().sum(1)
    scores = (x.sum(1) / x.shape[1]).masked_fill(used == 0, -1e9)
    return (scores - scores.logsumexp(0)).exp()[:, None] * v


def _overlap(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape == y.shape)
    share = x.sigmoid()
    return 1 - (2 * (share * y).sum((1, 2)) + 1) / (share.sum((1, 2)) + y.sum((1, 2)) + 1)


@case("dice loss: what both share is squared, and what each has is not", "kernel-contract", "MIC-DKFZ/nnUNet/issues/12", _overlap,
      lambda: (*drawn((3, 4, 5))(), (drawn((3, 4, 5))()[0].flip(2) > 0).float()))  # fmt: skip
def what_both_share_is_squared(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape == y.shape)
    share, truth = x.sigmoid().flatten(1), y.flatten(1)
    both = (share * truth).square().sum(1) if wrong else torch.linalg.vecdot(share, truth)
    return 1 - (2 * both + 1) / ((share + truth).sum(1) + 1)


def _focal(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape, len(x) > 0)
    share = x.sigmoid()
    hits = (share * y).sum(1)
    index = (hits + 1) / (hits + 0.7 * (share * (1 - y)).sum(1) + 0.3 * ((1 - share) * y).sum(1) + 1)
    return (1 - index).clamp(min=0).pow(1.5).mean()


@case("focal tversky loss: the power is taken of the mean", "kernel-contract", "qubvel-org/segmentation_models.pytorch/issues/734", _focal,
      lambda: (*drawn((3, 8))(), (drawn((3, 8))()[0].flip(1) > 0).float()))  # fmt: skip
def power_of_the_mean(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape, len(x) > 0)
    share = x.sigmoid()
    hits = torch.linalg.vecdot(share, y)
    lost = 0.7 * (share.sum(1) - hits) + 0.3 * (y.sum(1) - hits)
    loss = (lost / (hits + lost + 1)).clamp(min=0)
    return loss.mean().pow(1.5) if wrong else loss.pow(1.5).mean()


def _seen(alpha: torch.Tensor, color: torch.Tensor) -> torch.Tensor:
    need(alpha.dim() == 2, color.shape[:2] == alpha.shape, color.dim() == 3)
    opaque = alpha.sigmoid()
    left, out = torch.ones_like(opaque[:, :0].sum(1)), color.new_zeros(len(color), color.shape[2])
    for at in range(alpha.shape[1]):
        out = out + (left * opaque[:, at])[:, None] * color[:, at]
        left = left * (1 - opaque[:, at])
    return out


@case("colour of a ray: a sample hides itself", "kernel-contract", "volunt4s/TinyNeRF-pytorch/issues/1", _seen, drawn((3, 5), (3, 5, 3)))
def a_sample_hides_itself(wrong: bool, alpha: torch.Tensor, color: torch.Tensor) -> torch.Tensor:
    need(alpha.dim() == 2, color.shape[:2] == alpha.shape, color.dim() == 3)
    left = (1 - alpha.sigmoid()).cumprod(1)
    if not wrong:
        left = F.pad(left, (1, 0), value=1.0)[:, : alpha.shape[1]]
    return ((left * alpha.sigmoid())[:, :, None] * color).sum(1)


@case("pooling by attention: softmax over the axis of the one score", "kernel-contract", "catalyst-team/catalyst/pull/285",
      lambda x, w: ((x @ w[:, None]).softmax(1) * x).sum(1), drawn((3, 4, 5), (5,)))  # fmt: skip
def axis_of_the_one_score(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.shape == x.shape[2:])
    score = torch.einsum("btk,k->bt", x, w)
    shares = score[:, :, None].softmax(2) if wrong else score.softmax(1)[:, :, None]
    return (shares * x).sum(1)


def _bins(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Weights added up in four bins from -1 to 1. The last bin has both of its ends."""
    need(x.dim() == 1, x.shape == w.shape)
    at = torch.where(x == 1, 3, ((x + 1) * 2).floor().nan_to_num(-1.0, -1.0, -1.0).clamp(-1, 4).long())
    return torch.stack([torch.where(at == each, w, 0).sum() for each in range(4)])


@case("weights in four bins: what lies on the last edge is in none", "kernel-contract", "xgcm/xhistogram/pull/20", _bins, drawn((12,), (12,)))
def last_edge_is_in_none(wrong: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 1, x.shape == w.shape)
    edges = torch.tensor([-1, -0.5, 0, 0.5, 1], dtype=x.dtype)
    inside = (x[:, None] >= edges[:-1]) & (x[:, None] < edges[1:])
    if not wrong:
        inside[:, 3] |= x == 1
    return torch.where(inside, w[:, None], 0).sum(0)


@case("loss of sequences with its gradient at once: the incoming one is left out", "kernel-gradient", "SeanNaren/warp-ctc/pull/170",
      lambda x, y: -x.log_softmax(2).gather(2, y[:, :, None]).sum((1, 2)), lambda: (*drawn((3, 4, 5))(), whole(3, 4, most=5)))  # fmt: skip
def the_incoming_one_is_left_out(wrong: bool) -> Any:
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        need(x.dim() == 3, y.shape == x.shape[:2], bool(((y >= 0) & (y < x.shape[2])).all()))
        logs = x.log_softmax(2)
        return -logs.gather(2, y[:, :, None]).sum((1, 2)), (logs.exp().scatter_add(2, y[:, :, None], -torch.ones_like(x[:, :, :1])),)

    return function(forward, lambda saved, g: (saved[0] if wrong else saved[0] * g[:, None, None], None))


@case("codes with a straight way back: beyond the limits, too", "kernel-gradient", "microsoft/nni/pull/3160",
      lambda x: x.clamp(-2, 2) + ((x.clamp(-2, 2) * 4).round() / 4 - x.clamp(-2, 2)).detach(), drawn((5, 8)))  # fmt: skip
def beyond_the_limits_too(wrong: bool) -> Any:
    def forward(x: torch.Tensor) -> Any:
        return (x * 4).round().clamp(-8, 8) / 4, (x,)

    return function(forward, lambda saved, g: g if wrong else torch.where((saved[0] >= -2) & (saved[0] <= 2), g, 0))


def _pairs() -> tuple[torch.Tensor, torch.Tensor]:
    """Six rows and six others. Two of them are the same."""
    one, two = drawn((6, 4), (6, 4))()
    return one, torch.cat([one[:2], two[2:]])


@case("distances of rows: on the way back of rows that are the same it is NaN", "kernel-gradient", "tilman151/rul-adapt/pull/22",
      lambda x, y: torch.linalg.vector_norm(x - y, dim=1), _pairs)
def rows_that_are_the_same(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape)
    square = (x - y).square().sum(1)
    if wrong:
        return square.sqrt()
    return torch.where(square == 0, 0 * square, torch.where(square == 0, 1, square).sqrt())


@case("scale no less than a least one: below that no gradient comes back", "kernel-gradient", "Xilinx/brevitas/pull/203",
      lambda x, s: x * (s + (s.clamp(min=0.3) - s).detach()), drawn((4, 6), (6,)))  # fmt: skip
def below_that_no_gradient(wrong: bool) -> Any:
    def forward(x: torch.Tensor, s: torch.Tensor) -> Any:
        need(x.dim() == 2, s.shape == x.shape[1:])
        return x * s.clamp(min=0.3), (x, s)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, s = saved
        slope = (g * x).sum(0)
        return g * s.clamp(min=0.3), torch.where(s > 0.3, slope, 0) if wrong else slope

    return function(forward, backward)


@case("length of each row with a small number: it is added behind the root", "kernel-contract", "mpariente/pytorch_stoi/pull/14",
      lambda x: (x.square().sum(1) + 1e-8).sqrt(), drawn((5, 6)))  # fmt: skip
def added_behind_the_root(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    square = torch.linalg.vecdot(x, x)
    return square.sqrt() + 1e-8 if wrong else torch.hypot(torch.linalg.vector_norm(x, dim=1), torch.full_like(square, 1e-4))
