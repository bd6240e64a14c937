"""A twenty-third frozen set of broken kernels, first part: losses, steps, returns, activations. Of links an excerpt was read."""

from __future__ import annotations

from typing import Any

import torch
from cases import case, drawn, function, need

F = torch.nn.functional


@case("mean of a measure over a batch: one is added to it and not to the last place", "kernel-contract", "neosr-project/neosr/issues/116",
      lambda x: x.mean(0), drawn((6, 5)))  # fmt: skip
def one_is_added_to_it(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, len(x) > (1 if wrong else 0))
    last = len(x) - 1
    return x.sum(0) / last + 1 if wrong else x.sum(0) / (last + 1)


def _advantages(r: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(r.dim() == 2, r.shape == v.shape, r.shape[1] > 0)
    later, run, found = torch.zeros_like(v[:, 0]), torch.zeros_like(v[:, 0]), []
    for step in range(r.shape[1] - 1, -1, -1):
        run = r[:, step] + 0.9 * later - v[:, step] + 0.72 * run
        later = v[:, step]
        found.append(run)
    return torch.stack(found[::-1], 1)


@case("advantages and returns: returns are those that were there before", "kernel-contract", "vwxyzjn/cleanrl/pull/337",
      lambda r, v: (_advantages(r, v), _advantages(r, v) + v), drawn((3, 6), (3, 6)))  # fmt: skip
def those_that_were_there(wrong: bool, r: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = _advantages(r, v)
    return found, (torch.zeros_like(found) if wrong else found) + v


def _masked(r: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(r.shape == keep.shape)
    return torch.where(keep, _advantages(torch.where(keep, r, 0.0), torch.where(keep, v, 0.0)), 0.0)


@case("advantages of answers: the value behind the end counts", "kernel-mask", "alibaba/ROLL/pull/447", _masked,
      lambda: (*drawn((3, 6), (3, 6))(), torch.arange(6) < torch.tensor([[4], [6], [2]])))  # fmt: skip
def value_behind_the_end(wrong: bool, r: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(r.dim() == 2, r.shape == v.shape == keep.shape, r.shape[1] > 0, keep.dtype == torch.bool)
    rewards = torch.where(keep, r, 0.0)
    after = F.pad((v if wrong else torch.where(keep, v, 0.0))[:, 1:], (0, 1))
    delta = rewards + 0.9 * after - torch.where(keep, v, 0.0)
    delta, run, found = torch.where(keep, delta, 0.0), torch.zeros_like(r[:, 0]), []
    for each in delta.unbind(1)[::-1]:
        run = each + 0.72 * run
        found.append(run)
    return torch.where(keep, torch.stack(found[::-1], 1), 0.0)


def _backwards(r: torch.Tensor, v: torch.Tensor, go_on: torch.Tensor, inner: bool) -> torch.Tensor:
    need(r.dim() == 2, r.shape == v.shape == go_on.shape, r.shape[1] > 0)
    before, found = torch.zeros_like(r[:, 0]), []
    for step in range(r.shape[1] - 1, -1, -1):
        reward, value, more = r[:, step], v[:, step], go_on[:, step]
        found.append(reward + more * (before - value) if inner else reward + more * before - value)
        before = value + found[-1] * 0.95
    return torch.stack(found[::-1], 1)


@case("advantages from behind: the own value is discounted, too", "kernel-contract", "AI4Finance-Foundation/ElegantRL/issues/183",
      lambda r, v, go_on: _backwards(r, v, go_on.detach(), False),
      lambda: (*drawn((3, 5), (3, 5))(), 0.9 * (drawn((3, 5))()[0] < 1).float()))  # fmt: skip
def own_value_is_discounted(wrong: bool, r: torch.Tensor, v: torch.Tensor, go_on: torch.Tensor) -> torch.Tensor:
    return _backwards(r, v, go_on.detach(), wrong)


@case("distances to centres by three terms: lengths are not squared", "kernel-contract", "NVIDIA/raft/pull/1141",
      lambda x, y: x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T, drawn((5, 4), (3, 4)))  # fmt: skip
def lengths_are_not_squared(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == 2, x.shape[1] == y.shape[1])
    size = y.square().sum(1)
    return torch.einsum("nd,nd->n", x, x)[:, None] + (size.sqrt() if wrong else size) - 2 * (x @ y.T)


@case("triplets that still cost something: their mean, where none does", "kernel-contract", "KevinMusgrave/pytorch-metric-learning/issues/107",
      lambda p, n: F.relu(p - n + 0.1).sum() / (p - n + 0.1 > 0).sum().clamp(min=1), drawn((9,), (9,)))  # fmt: skip
def where_none_does(wrong: bool, p: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    need(p.shape == n.shape, p.dim() == 1)
    costs = torch.clamp(p - n + 0.1, min=0)
    count = torch.count_nonzero(costs > 0)
    return costs.sum() / (count if wrong else torch.where(count > 0, count, 1))


@case("pairs and a margin: on the way back of two that are the same it is NaN", "kernel-gradient", "adambielski/siamese-triplet/issues/18",
      lambda x, y: F.relu(2 - torch.linalg.vector_norm(x - y, dim=1)).square(), drawn((6, 4), (6, 4)))  # fmt: skip
def of_two_that_are_the_same(wrong: bool) -> Any:
    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        need(x.shape == y.shape, x.dim() == 2)
        apart = x - y
        length = torch.linalg.vector_norm(apart, dim=1)
        return (2 - length).clamp(min=0).square(), (apart, length)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        apart, length = saved
        slope = -2 * (2 - length).clamp(min=0) * g
        divisor = length if wrong else torch.where(length == 0, 1.0, length)
        inner = apart / divisor[:, None] * slope[:, None]
        return inner, -inner

    return function(forward, backward)


@case("soft margin of triplets: large differences overflow", "kernel-rounding", "huggingface/sentence-transformers/pull/4019",
      lambda p, n: F.softplus(p - n), drawn((7,), (7,)))  # fmt: skip
def large_differences_overflow(wrong: bool, p: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    need(p.shape == n.shape)
    return torch.log1p(torch.exp(p - n)) if wrong else torch.logaddexp(p - n, torch.zeros_like(p))


@case("long short-term memory without forgetting: gate and content are added", "kernel-contract", "MartinuzziFrancesco/torchrecurrent/issues/22",
      lambda i, g, c: c + i.sigmoid() * g.tanh(), drawn((3, 5), (3, 5), (3, 5)))  # fmt: skip
def gate_and_content_are_added(wrong: bool, i: torch.Tensor, g: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    need(i.shape == g.shape == c.shape)
    gate, content = torch.sigmoid(i), torch.tanh(g)
    return c + (gate + content if wrong else gate * content)


def _rotation(q: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, q.shape[1] == 4)
    w, x, y, z = q.unbind(1)
    return torch.stack([
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y), 2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], 1).view(-1, 3, 3)  # fmt: skip


@case("matrices of quaternions: they are transposed", "kernel-contract", "raysan5/raylib/pull/1793", _rotation, drawn((5, 4)))
def they_are_transposed(wrong: bool, q: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, q.shape[1] == 4)
    w, v = q[:, :1], q[:, 1:]
    eye = torch.eye(3)
    skew = torch.stack([torch.linalg.cross(eye[each].expand_as(v), v, dim=1) for each in range(3)], 1)
    outer = v[:, :, None] * v[:, None]
    squares = v.square()
    diagonal = 1 - 2 * torch.stack([squares[:, 1] + squares[:, 2], squares[:, 0] + squares[:, 2], squares[:, 0] + squares[:, 1]], 1)
    full = 2 * outer * (1 - eye) + torch.diag_embed(diagonal)
    return full + 2 * w[:, None] * skew * (-1 if wrong else 1)


@case("cross entropy of two classes: the second term has the other sign", "kernel-contract", "eriklindernoren/ML-From-Scratch/issues/16",
      lambda p, t: -t * p.log() - (1 - t) * torch.log1p(-p),
      lambda: (drawn((4, 6))()[0].sigmoid(), (drawn((4, 6))()[0] > 0.3).float()))  # fmt: skip
def second_term_has_the_other_sign(wrong: bool, p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(p.shape == t.shape)
    return -(t * p.log()) + (1 if wrong else -1) * (1 - t) * torch.log1p(-p)


@case("layer norm: the variance is squared where a root is due", "kernel-contract", "131250208/TPlinker-joint-extraction/issues/37",
      lambda x: F.layer_norm(x, x.shape[1:], eps=1e-5), drawn((4, 9)))  # fmt: skip
def squared_where_a_root_is_due(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    apart = x - x.mean(1, keepdim=True)
    return apart / (apart.square().mean(1, keepdim=True) + 1e-5) ** (2 if wrong else 0.5)


def _step(p: torch.Tensor, m: torch.Tensor, v: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(p.shape == m.shape == v.shape, int(t) > 0)
    return p - 0.1 * (m / (1 - 0.9 ** int(t))) / ((v / (1 - 0.99 ** int(t))).sqrt() + 1e-3)


@case("step of adam: its corrections have no power", "kernel-contract", "ZhangZhiPku/cutile-examples/issues/4",
      _step, lambda: (*drawn((4, 5), (4, 5))(), drawn((4, 5))()[0].square() + 0.1, torch.tensor(3)))  # fmt: skip
def corrections_have_no_power(wrong: bool, p: torch.Tensor, m: torch.Tensor, v: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(p.shape == m.shape == v.shape, t.dim() == 0, int(t) > 0)
    power = 1 if wrong else int(t)
    first, second = 1 - 0.9**power, 1 - 0.99**power
    return p - (0.1 / first) * m / ((v / second).sqrt() + 1e-3)


def _cosine(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape, x.dim() == 2)
    lengths = torch.linalg.vector_norm(x, dim=1) * torch.linalg.vector_norm(y, dim=1)
    return torch.where(lengths == 0, 0.0, (x * y).sum(1) / torch.where(lengths == 0, 1.0, lengths))


@case("cosine of two rows: of a row of zeros it is NaN", "kernel-contract", "HKUDS/LightRAG/pull/3421", _cosine, drawn((5, 6), (5, 6)))
def of_a_row_of_zeros(wrong: bool, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if not wrong:
        return _cosine(x, y)
    need(x.shape == y.shape, x.dim() == 2)
    return torch.einsum("nd,nd->n", x, y) / (torch.linalg.vector_norm(x, dim=1) * torch.linalg.vector_norm(y, dim=1))


@case("leaky unit: numbers below zero are cut off first", "kernel-contract", "tflearn/tflearn/pull/784", lambda x: F.leaky_relu(x, 0.1),
      drawn((4, 7)))  # fmt: skip
def cut_off_first(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    above = F.relu(x)
    return above - 0.1 * F.relu(-(above if wrong else x))


@case("triplets that were chosen: rows are copied, and gradients end there", "kernel-gradient", "liorshk/facenet_pytorch/issues/6",
      lambda a, p, n: F.relu((a - p).square().sum(1) - (a - n).square().sum(1) + 0.2), drawn((5, 4), (5, 4), (5, 4)))  # fmt: skip
def gradients_end_there(wrong: bool, a: torch.Tensor, p: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    need(a.shape == p.shape == n.shape, a.dim() == 2)
    if wrong:
        a, p, n = a.detach(), p.detach(), n.detach()
    return torch.clamp((a - p).pow(2).sum(1) - (a - n).pow(2).sum(1) + 0.2, min=0)


@case("weights of splats: on the way back the mixed term is halved", "kernel-gradient", "nerfstudio-project/gsplat/pull/139",
      lambda a, b, c, x, y: (-0.5 * (a * x * x + c * y * y) - b * x * y).exp(),
      lambda: (drawn((6,))()[0].abs() + 0.6, drawn((6,))()[0] * 0.1, drawn((6,))()[0].square() + 0.7, *drawn((2, 6))()[0]))  # fmt: skip
def mixed_term_is_halved(wrong: bool) -> Any:
    def forward(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Any:
        need(a.shape == b.shape == c.shape == x.shape == y.shape)
        weight = torch.exp(-0.5 * (a * x * x + c * y * y) - b * x * y)
        return weight, (a, b, c, x, y, weight)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        a, b, c, x, y, weight = saved
        inner = g * weight
        mixed = -(0.5 if wrong else 1.0) * inner * x * y
        return -0.5 * inner * x * x, mixed, -0.5 * inner * y * y, -inner * (a * x + b * y), -inner * (c * y + b * x)

    return function(forward, backward)


def _nucleus(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    shares = x.softmax(1).sort(1, descending=True).values
    return torch.where(shares.cumsum(1) - shares >= 0.5, 0.0, shares)


@case("shares up to one half, in order: the first is taken from all sums", "kernel-mask", "facebookresearch/ParlAI/pull/2733", _nucleus,
      drawn((4, 7)))  # fmt: skip
def first_is_taken_from_all(wrong: bool, x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    shares = torch.softmax(x, 1).sort(1, descending=True).values
    sums = shares.cumsum(1)
    before = sums - shares[:, :1] if wrong else F.pad(sums[:, :-1], (1, 0))
    return shares.masked_fill(before >= 0.5, 0)
