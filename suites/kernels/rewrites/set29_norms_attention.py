"""The twenty-ninth frozen set of healthy kernels, first part: norms, softmax, attention, losses, steps. Committed before any was tried."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole, wide

F = torch.nn.functional


@rewrite("layer norm, mean and squares joined as numbers come", wide(lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b)),
         shapes((4, 11), (11,), (11,)))  # fmt: skip
@wide
def joined_as_numbers_come(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.shape == b.shape == x.shape[1:], x.shape[1] > 0)
    mean, squares = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
    for count, column in enumerate(x.unbind(1), 1):
        apart = column - mean
        mean = mean + apart / count
        squares = squares + apart * (column - mean)
    return (x - mean[:, None]) / (squares[:, None] / x.shape[1] + 1e-5).sqrt() * w + b


@rewrite("rms norm, sums of squares by halves", wide(lambda x, w: F.rms_norm(x, x.shape[1:], w, 1e-5)), shapes((4, 16), (16,)))
@wide
def sums_of_squares_by_halves(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, w.shape == x.shape[1:], x.shape[1] > 0)
    total = x.square()
    while total.shape[1] > 1:
        total = F.pad(total, (0, total.shape[1] % 2))
        total = total[:, 0::2] + total[:, 1::2]
    return x / torch.sqrt(total / x.shape[1] + 1e-5) * w


def _added(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
    return wide(lambda both, w: F.rms_norm(both, both.shape[1:], w, 1e-5))(x + r, w), x + r


@rewrite("sum with what was before and its norm, both at once", _added, shapes((3, 8), (3, 8), (8,)))
def sum_and_its_norm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
    need(x.dim() == 2, x.shape == r.shape, w.shape == x.shape[1:], x.shape[1] > 0)
    both = x + r
    up = both.float()
    return (up * torch.rsqrt(torch.linalg.vecdot(up, up)[:, None] / x.shape[1] + 1e-5) * w.float()).to(x.dtype), both


@rewrite("norm of a batch, its way back by hand", wide(lambda x: F.batch_norm(x, None, None, training=True, eps=1e-4)), shapes((8, 5)))
def norm_of_a_batch(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, len(x) > 1)

    def forward(x: torch.Tensor) -> Any:
        variance, mean = torch.var_mean(x.float(), 0, correction=0)
        inverse = (variance + 1e-4).rsqrt()
        unit = (x.float() - mean) * inverse
        return unit.to(x.dtype), (unit, inverse)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        unit, inverse = saved
        up = g.float()
        return (inverse * (up - up.mean(0) - unit * (up * unit).mean(0))).to(g.dtype)

    return function(forward, backward)(x)


@rewrite("norm of two groups, one at a time", wide(lambda x, w, b: F.group_norm(x, 2, w, b)), shapes((3, 4, 6), (4,), (4,)))
@wide
def one_at_a_time(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.shape == b.shape == x.shape[1:2], x.shape[1] > 0, x.shape[1] % 2 == 0, x.shape[2] > 0)
    half, out = x.shape[1] // 2, []
    for part, own, more in zip(x.split(half, 1), w.split(half), b.split(half), strict=True):
        rows = part.flatten(1)
        apart = rows - rows.mean(1, keepdim=True)
        unit = apart / (apart.square().mean(1, keepdim=True) + 1e-5).sqrt()
        out.append(unit.view_as(part) * own[:, None] + more[:, None])
    return torch.cat(out, 1)


@rewrite("softmax, columns in parts joined by their largest", wide(lambda x: x.softmax(1)), shapes((5, 11)))
@wide
def joined_by_their_largest(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    parts = [(part.amax(1, keepdim=True).detach(), part) for part in x.split(4, 1)]
    top = torch.stack([each for each, _ in parts]).amax(0)
    total = sum((part - own).exp().sum(1, keepdim=True) * (own - top).exp() for own, part in parts)
    return (x - top).exp() / total


@rewrite("logarithms of shares, the largest taken out in float64", wide(lambda x: x.log_softmax(1)), shapes((4, 9)))
def taken_out_in_float64(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 0)
    up = x.double()
    apart = up - up.amax(1, keepdim=True).detach()
    return (apart - apart.exp().sum(1, keepdim=True).log()).to(x.dtype)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 3, len(q) == len(k) == len(v), q.shape[2] == k.shape[2] > 0, k.shape[1] == v.shape[1] > 0)
    return (q @ k.mT / q.shape[2] ** 0.5).softmax(2) @ v


@rewrite("attention, keys in tiles of four with a running largest", wide(_attention), shapes((2, 3, 4), (2, 9, 4), (2, 9, 5)))
@wide
def tiles_of_four(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 3, len(q) == len(k) == len(v), q.shape[2] == k.shape[2] > 0, k.shape[1] == v.shape[1] > 0)
    q = q * q.shape[2] ** -0.5
    top = q.new_full((*q.shape[:2], 1), -math.inf)
    total, out = torch.zeros_like(top), q.new_zeros(*q.shape[:2], v.shape[2])
    for keys, values in zip(k.split(4, 1), v.split(4, 1), strict=True):
        scores = torch.bmm(q, keys.mT)
        new = torch.maximum(top, scores.amax(2, keepdim=True).detach())
        powers, fade = (scores - new).exp(), (top - new).exp()
        total = total * fade + powers.sum(2, keepdim=True)
        out, top = out * fade + torch.bmm(powers, values), new
    return out / total


@rewrite("attention, its way back by hand, one batch after the other", wide(_attention), shapes((2, 4, 3), (2, 6, 3), (2, 6, 4)))
def its_way_back_by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 3, len(q) == len(k) == len(v), q.shape[2] == k.shape[2] > 0, k.shape[1] == v.shape[1] > 0)

    def forward(*inputs: torch.Tensor) -> Any:
        q, k, v = (each.float() for each in inputs)
        shares = (q @ k.mT * q.shape[2] ** -0.5).softmax(2)
        return (shares @ v).to(inputs[0].dtype), (q, k, v, shares)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        q, k, v, shares = saved
        up = g.float()
        inner = up @ v.mT
        scores = shares * (inner - (inner * shares).sum(2, keepdim=True)) * q.shape[2] ** -0.5
        return tuple(each.to(g.dtype) for each in (scores @ k, scores.mT @ q, shares.mT @ up))

    return function(forward, backward)(q, k, v)


def _windowed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A token sees itself and the two before."""
    need(q.dim() == 2, q.shape == k.shape, len(v) == len(k), v.dim() == 2, q.shape[1] > 0)
    away = torch.arange(len(q))[:, None] - torch.arange(len(q))
    return (q @ k.T / q.shape[1] ** 0.5).masked_fill((away < 0) | (away > 2), -math.inf).softmax(1) @ v


@rewrite("attention to the last three tokens, each a row of three", wide(_windowed), shapes((7, 4), (7, 4), (7, 3)))
@wide
def each_a_row_of_three(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, q.shape == k.shape, len(v) == len(k), v.dim() == 2, q.shape[1] > 0)
    rows = []
    for at in range(len(q)):
        begin = max(0, at - 2)
        rows.append((q[at] @ k[begin : at + 1].T * q.shape[1] ** -0.5).softmax(0) @ v[begin : at + 1])
    return torch.stack(rows) if rows else v.clone()


@rewrite("attention of four heads to two of keys, by views",
         wide(lambda q, k, v: _attention(q, *(each.repeat_interleave(2, 0) for each in (k, v)))),
         shapes((4, 3, 4), (2, 5, 4), (2, 5, 4)))  # fmt: skip
@wide
def by_views(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == k.dim() == v.dim() == 3, len(q) == 2 * len(k) == 2 * len(v), q.shape[2] == k.shape[2] > 0, k.shape[1] == v.shape[1] > 0)
    grouped = q.unflatten(0, (-1, 2)) if len(q) else q.reshape(0, 2, *q.shape[1:])
    scores = torch.einsum("ghtd,gsd->ghts", grouped, k) * q.shape[2] ** -0.5
    return torch.einsum("ghts,gsd->ghtd", scores.softmax(3), v).flatten(0, 1)


@rewrite("latent keys, the product joined to the queries", wide(lambda q, c, w: (q @ (c @ w).T).softmax(1) @ c), shapes((3, 5), (6, 4), (4, 5)))
@wide
def joined_to_the_queries(q: torch.Tensor, c: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(q.dim() == c.dim() == w.dim() == 2, q.shape[1] == w.shape[1], c.shape[1] == len(w), len(c) > 0)
    return torch.softmax(torch.mm(torch.mm(q, w.T), c.T), 1) @ c


@rewrite("rope of halves, turned in place on a copy", wide(lambda x, c, s: torch.cat([x.chunk(2, 1)[0] * c - x.chunk(2, 1)[1] * s,
                                                                                    x.chunk(2, 1)[1] * c + x.chunk(2, 1)[0] * s], 1)),
         shapes((5, 8), (5, 4), (5, 4)))  # fmt: skip
@wide
def turned_in_place_on_a_copy(x: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, c.shape == s.shape == (len(x), x.shape[1] // 2), x.shape[1] % 2 == 0)
    out, half = torch.empty_like(x, memory_format=torch.contiguous_format), c.shape[1]
    out[:, :half] = x[:, :half] * c
    out[:, :half] -= x[:, half:] * s
    out[:, half:] = torch.addcmul(x[:, half:] * c, x[:, :half], s)
    return out


@rewrite("cross entropy, gradients in a Function from shares", lambda x, y: F.cross_entropy(x.float(), y, reduction="none").to(x.dtype),
         lambda dtype: (*shapes((5, 7))(dtype), whole(5, most=7)))  # fmt: skip
def gradients_from_shares(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, y.shape == x.shape[:1], bool(((y >= 0) & (y < x.shape[1])).all()))

    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        top = x.float().logsumexp(1)
        return (top - x.float().gather(1, y[:, None])[:, 0]).to(x.dtype), (x, y, top)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        x, y, top = saved
        shares = (x.float() - top[:, None]).exp()
        shares[torch.arange(len(x)), y] -= 1
        return (shares * g.float()[:, None]).to(g.dtype), None

    return function(forward, backward)(x, y)


@rewrite("focal loss, from a softplus", wide(lambda x, y: -(1 - x.sigmoid()).square() * F.logsigmoid(x) * y), shapes((4, 6), (4, 6)))
@wide
def focal_from_a_softplus(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    return torch.sigmoid(-x) ** 2 * F.softplus(-x, threshold=60.0) * y


@rewrite(
    "divergence of rows, entropies taken apart",
    wide(lambda x, y: (y.softmax(1) * (y.log_softmax(1) - x.log_softmax(1))).sum(1)),
    shapes((4, 6), (4, 6)),
)
@wide
def entropies_taken_apart(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == y.shape, x.shape[1] > 0)
    return torch.linalg.vecdot(y.softmax(1), (y - y.logsumexp(1, keepdim=True)) - (x - x.logsumexp(1, keepdim=True)))


@rewrite("loss of three with a margin, by relu", wide(lambda a, p, n: (0.3 + (a - p).square().sum(1) - (a - n).square().sum(1)).clamp(min=0)),
         shapes((5, 4), (5, 4), (5, 4)))  # fmt: skip
@wide
def margin_by_relu(a: torch.Tensor, p: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2, a.shape == p.shape == n.shape)
    return torch.relu(((n - p) * (2 * a - p - n)).sum(1) + 0.3)


def _lion(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(p.shape == g.shape == m.shape)
    return p * (1 - 0.001) - 0.01 * (0.9 * m + 0.1 * g).tanh(), 0.99 * m + 0.01 * g


@rewrite("step with a soft sign, in its own buffers", wide(_lion), shapes((4, 5), (4, 5), (4, 5)), gradients=False)
@wide
def soft_sign_in_its_own_buffers(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(p.shape == g.shape == m.shape)
    step = m.clone().mul_(0.9).add_(g, alpha=0.1).tanh_()
    return p.clone().mul_(0.999).sub_(step, alpha=0.01), m.clone().mul_(0.99).add_(g, alpha=0.01)


@rewrite(
    "gradients cut to a length, by a root of a dot product", wide(lambda g: g * (1 / (g.norm() + 1e-6)).clamp(max=1)), shapes((6, 5)), gradients=False
)
@wide
def cut_to_a_length(g: torch.Tensor) -> torch.Tensor:
    flat = g.reshape(-1)
    return g * torch.minimum(1 / (torch.dot(flat, flat).sqrt() + 1e-6), torch.ones(()))


@rewrite("two layers and a root, compiled", wide(lambda x, a, b: (F.relu(x @ a) @ b).square().sum(1).add(1).sqrt()), shapes((4, 5), (5, 6), (6, 3)))
def two_layers_compiled(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _compiled()(x, a, b)


@functools.cache
def _compiled() -> Any:
    @wide
    def made(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (torch.linalg.vecdot(F.relu(x @ a) @ b, F.relu(x @ a) @ b) + 1).sqrt()

    return torch.compile(made, backend="aot_eager", dynamic=True)


@rewrite("gelu by its tanh, through a sigmoid", wide(lambda x: F.gelu(x, approximate="tanh")), shapes((4, 8)))
@wide
def through_a_sigmoid(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(2 * (2 / math.pi) ** 0.5 * x * (1 + 0.044715 * x * x))


@functools.cache
def _operator() -> Any:
    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2, w.shape == x.shape[1:])
        return (x.float() * w.float().sigmoid()).to(x.dtype)

    def backward(ctx: Any, g: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        share = w.float().sigmoid()
        return (g.float() * share).to(x.dtype), (((g.float() * x.float()).sum(0)) * share * (1 - share)).to(w.dtype)

    made = torch.library.custom_op("set29::gated", forward, mutates_args=())
    made.register_fake(lambda x, w: torch.empty(x.shape, dtype=x.dtype))
    made.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
    return made


@rewrite("columns through a gate, an operator with its way back", wide(lambda x, w: x * w.sigmoid()), shapes((5, 6), (6,)))
def an_operator_with_its_way_back(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return _operator()(x, w)
