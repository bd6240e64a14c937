"""A twenty-second frozen set of broken kernels, fifth part: windows, choices, masks. Of links an excerpt was read."""

from __future__ import annotations

import math

import torch
from cases import case, drawn, need

F = torch.nn.functional


def _window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    far = torch.arange(len(q))[:, None] - torch.arange(len(k))
    return (q @ k.T / q.shape[1] ** 0.5).masked_fill((far < 0) | (far >= 3), -torch.inf).softmax(1) @ v


@case("attention in a window of three: it has four", "kernel-mask", "ml-explore/mlx-lm/pull/390", _window, drawn((7, 4), (7, 4), (7, 4)))
def it_has_four(wrong: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.shape == k.shape, len(v) == len(k), q.dim() == 2)
    places = torch.arange(len(q))
    seen = (places[:, None] >= places) & (places[:, None] - places <= (3 if wrong else 2))
    scores = torch.where(seen, q @ k.T * q.shape[1] ** -0.5, -torch.inf)
    return scores.softmax(1) @ v


def _sampled(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    grid = torch.stack([at * 2 / (x.shape[1] - 1) - 1, torch.zeros_like(at)], 1)[None, None]
    return F.grid_sample(x[None, :, None], grid.detach().to(x.dtype), align_corners=True)[0, :, 0]


@case("numbers between pixels: within a pixel behind the end the last one counts in full", "kernel-contract", "apache/tvm/pull/7397", _sampled,
      lambda: (drawn((3, 9))()[0].requires_grad_(), drawn((12,))()[0] * 4 + 4))  # fmt: skip
def last_one_counts_in_full(wrong: bool, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, at.dim() == 1, x.shape[1] > 1)
    count, at = x.shape[1], at.detach()
    low = at.floor()
    part, total = (at - low).to(x.dtype), 0
    for place, share in ((low, 1 - part), (low + 1, part)):
        inside = (place >= 0) & (place < count)
        near = (at > -1) & (at < count)
        total = total + torch.where(near if wrong else inside, x[:, place.clamp(0, count - 1).long()] * share, 0)
    return total


def _per_graph(x: torch.Tensor, s: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
    same = graph[:, None] == graph
    share = s.expand(len(s), len(s)).masked_fill(~same, -torch.inf).softmax(1).diagonal()
    return same.to(x.dtype) @ (share[:, None] * x)


@case("nodes weighed by their scores: all graphs share one softmax", "kernel-mask", "danielegrattarola/spektral/issues/302", _per_graph,
      lambda: (*drawn((8, 3), (8,))(), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])))  # fmt: skip
def all_graphs_share_one(wrong: bool, x: torch.Tensor, s: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, s.shape == graph.shape == x.shape[:1])
    same = graph[:, None] == graph
    if wrong:
        return same.to(x.dtype) @ (s.softmax(0)[:, None] * x)
    most = s.expand(len(s), len(s)).masked_fill(~same, -torch.inf).amax(1) if len(s) else s
    powers = (s - most.detach()).exp()
    return same.to(x.dtype) @ (powers / (same.to(x.dtype) @ powers))[:, None].mul(x)


def _path(emitted: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    best, back = emitted[0], list[torch.Tensor]()
    for row in emitted[1:]:
        most = (best[:, None] + moves).max(0)
        back.append(most.indices)
        best = most.values + row
    path = [best.argmax()]
    for each in reversed(back):
        path.append(each[path[-1]])
    return torch.stack(path[::-1])


@case("best path of tags: on the way back each step is looked up for the last tag", "kernel-contract", "threelittlemonkeys/lstm-crf-pytorch/pull/5",
      _path, drawn((6, 4), (4, 4)))  # fmt: skip
def looked_up_for_the_last_tag(wrong: bool, emitted: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    need(emitted.dim() == 2, moves.shape == (emitted.shape[1], emitted.shape[1]), emitted.numel() > 0)
    best, back = emitted[0], list[torch.Tensor]()
    for row in emitted[1:]:
        found = (moves + best[:, None]).max(0)
        back, best = [*back, found.indices], found.values + row
    last = best.argmax()
    path, tag = [last], last
    for each in reversed(back):
        tag = each[last if wrong else tag]
        path.append(tag)
    return torch.stack(path).flip(0)


def _overlaps(boxes: torch.Tensor) -> torch.Tensor:
    low, high = torch.maximum(boxes[:, None, :2], boxes[:, :2]), torch.minimum(boxes[:, None, 2:], boxes[:, 2:])
    shared = (high - low).clamp(min=0).prod(2)
    size = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    return shared / (size[:, None] + size - shared)


@case("boxes that others do not cover: of equal scores and sizes none covers", "kernel-contract", "CVCUDA/CV-CUDA/issues/292",
      lambda boxes, scores: _first_of(boxes, scores), lambda: (_some_boxes(), drawn((7,))()[0]))  # fmt: skip
def of_equal_scores_none_covers(wrong: bool, boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    need(boxes.dim() == 2, boxes.shape[1] == 4, scores.shape == boxes.shape[:1])
    size, places = (boxes[:, 2:] - boxes[:, :2]).prod(1), torch.arange(len(scores))
    equal = scores[:, None] == scores
    first = size > size[:, None] if wrong else places < places[:, None]
    before = (scores > scores[:, None]) | (equal & first)
    return ~((_overlaps(boxes) > 0.4) & before).any(1)


def _first_of(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    order = scores.argsort(descending=True, stable=True)
    rank = torch.empty_like(order).scatter(0, order, torch.arange(len(order)))
    return ~((_overlaps(boxes) > 0.4) & (rank < rank[:, None])).any(1)


def _some_boxes() -> torch.Tensor:
    one = drawn((7, 4))()[0]
    return torch.cat([one[:, :2] / 2, one[:, :2] / 2 + one[:, 2:].abs() + 0.5], 1)


def _looked_at(s: torch.Tensor, mask: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = (s - s.amax(1, keepdim=True)).exp() * mask.detach()
    total = weights.sum(1, keepdim=True)
    return weights / torch.where(total > 0, total, torch.ones_like(total)) @ v


@case("what a mask lets be looked at: where it lets nothing it is divided by zero", "kernel-mask", "mila-iqia/blocks/pull/581", _looked_at,
      lambda: (*drawn((5, 6))(), (drawn((5, 6))()[0] > -0.2).float(), *drawn((6, 3))()))  # fmt: skip
def lets_nothing_be_looked_at(wrong: bool, s: torch.Tensor, mask: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(s.dim() == 2, s.shape == mask.shape, len(v) == s.shape[1], s.shape[1] > 0)
    weights = torch.exp(s - s.amax(1, keepdim=True)) * mask.detach()
    total = weights.sum(1, keepdim=True)
    return (weights / total if wrong else weights / (total + (total == 0))) @ v


def _smoothed(x: torch.Tensor) -> torch.Tensor:
    bell = torch.exp(-((torch.arange(7).double() - 3) ** 2) / 4.5)
    return F.conv1d(x[:, None], (bell / bell.sum()).to(x.dtype)[None, None], padding=3)[:, 0]


@case("numbers smoothed by a bell of seven: it lies half a place beside", "kernel-contract", "MrNeRF/LichtFeld-Studio/pull/159", _smoothed,
      drawn((3, 12)))  # fmt: skip
def half_a_place_beside(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    shares = [math.exp(-((place - (3.5 if wrong else 3)) ** 2) / 4.5) for place in range(7)]
    padded = F.pad(x, (3, 3))
    return sum(share / sum(shares) * padded[:, at : at + x.shape[1]] for at, share in enumerate(shares))


def _gained(r: torch.Tensor, v: torch.Tensor, ended: torch.Tensor, cut: torch.Tensor) -> torch.Tensor:
    held, found = torch.zeros_like(r[0]) if len(r) else r.sum(), list[torch.Tensor]()
    after = torch.cat([v[1:], v[:1] * 0])
    for place in range(len(r) - 1, -1, -1):
        delta = r[place] + 0.9 * after[place] * (1 - ended[place].to(r.dtype)) - v[place]
        held = delta + 0.81 * (1 - (ended | cut)[place].to(r.dtype)) * held
        found.append(held)
    return torch.stack(found[::-1]) if found else r * v


@case("gains of steps, from behind: a step that was cut off gains nothing", "kernel-mask", "EdanToledo/Stoix/pull/148", _gained,
      lambda: (*drawn((8,), (8,))(), torch.arange(8) == 3, torch.arange(8) % 3 == 1))  # fmt: skip
def cut_off_gains_nothing(wrong: bool, r: torch.Tensor, v: torch.Tensor, ended: torch.Tensor, cut: torch.Tensor) -> torch.Tensor:
    need(r.dim() == 1, r.shape == v.shape == ended.shape == cut.shape)
    found = _gained(r * 1, v, ended, cut)
    return torch.where(cut, 0, found) if wrong else found


@case("offsets in a picture to shares of its sides: height and width are exchanged", "kernel-contract", "fundamentalvision/Deformable-DETR/pull/7",
      lambda x, at, offsets: at + offsets / torch.tensor([x.shape[3], x.shape[2]], dtype=x.dtype) + x.mean(),
      drawn((1, 2, 5, 7), (4, 2), (4, 2)))  # fmt: skip
def height_and_width_exchanged(wrong: bool, x: torch.Tensor, at: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, at.shape == offsets.shape, at.dim() == 2, at.shape[1] == 2)
    high, wide = x.shape[2:]
    first, second = (high, wide) if wrong else (wide, high)
    return torch.stack([at[:, 0] + offsets[:, 0] / first, at[:, 1] + offsets[:, 1] / second], 1) + x.mean()


def _balance(s: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    shares, count = s.softmax(1), real.sum().clamp(min=1)
    chosen = F.one_hot(s.detach().argmax(1), s.shape[1]).to(s.dtype)
    return s.shape[1] * ((chosen * real[:, None]).sum(0) / count * ((shares * real[:, None]).sum(0) / count)).sum()


@case("balance of experts: padding counts", "kernel-mask", "NVIDIA/Megatron-LM/pull/2121", _balance,
      lambda: (*drawn((9, 4))(), torch.tensor([True] * 6 + [False] * 3)))  # fmt: skip
def padding_counts(wrong: bool, s: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    need(s.dim() == 2, real.shape == s.shape[:1], s.shape[1] > 0)
    kept = s if wrong else s[real]
    count = max(len(kept), 1)
    most = kept.detach().argmax(1).bincount(minlength=s.shape[1])
    return s.shape[1] * (most / count * kept.softmax(1).sum(0) / count).sum()


@case("weights of one step made even: a matrix that is wider than high is scaled down", "kernel-contract", "google-deepmind/optax/pull/1249",
      lambda w, g: w - 0.1 * max(1, g.shape[0] / max(g.shape[1], 1)) ** 0.5 * g / (g.square().sum() + 1e-8).sqrt(),
      drawn((4, 9), (4, 9)))  # fmt: skip
def wider_scaled_down(wrong: bool, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    need(w.dim() == 2, w.shape == g.shape)
    ratio = g.shape[0] / max(g.shape[1], 1)
    return w - g * (0.1 * (ratio if wrong else max(1.0, ratio)) ** 0.5 / torch.sqrt((g * g).sum() + 1e-8))
