"""The twenty-fifth frozen set of healthy kernels, third part: attention, scans, pictures, operators. Committed before any was tried."""

from __future__ import annotations

import math
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole, wide

F = torch.nn.functional


def _heads(*tensors: torch.Tensor) -> None:
    need(all(each.dim() == 4 for each in tensors), len({each.shape for each in tensors}) == 1, tensors[0].shape[2] * tensors[0].shape[3] > 0)


@rewrite("attention, two queries and three keys at a time", F.scaled_dot_product_attention, shapes((2, 2, 7, 8), (2, 2, 7, 8), (2, 2, 7, 8)))
@wide
def two_queries_three_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _heads(q, k, v)
    out = []
    for rows in q.split(2, 2) if q.shape[2] else ():
        most, total, mean = rows.new_full((*rows.shape[:3], 1), -math.inf), rows.new_zeros(*rows.shape[:3], 1), torch.zeros_like(rows)
        for keys, values in zip(k.split(3, 2), v.split(3, 2), strict=True):
            scores = rows @ keys.transpose(2, 3) / math.sqrt(q.shape[3])
            later = torch.maximum(most, scores.amax(3, keepdim=True)).detach()
            old, new = torch.exp(most - later), torch.exp(scores - later)
            total, mean, most = total * old + new.sum(3, keepdim=True), mean * old + new @ values, later
        out.append(mean / total)
    return torch.cat(out, 2) if out else torch.zeros_like(q)


@rewrite("causal attention, rows before heads", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
         shapes((1, 2, 6, 8), (1, 2, 6, 8), (1, 2, 6, 8)))  # fmt: skip
@wide
def rows_before_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _heads(q, k, v)
    q, k, v = (each.transpose(1, 2).contiguous() for each in (q, k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q * q.shape[3] ** -0.5, k)
    hidden = torch.arange(q.shape[1])[:, None] < torch.arange(q.shape[1])
    return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(hidden, -math.inf).softmax(3), v).transpose(1, 2)


@rewrite("one step of attention, keys in two halves", wide(lambda q, k, v: (torch.einsum("hd,hkd->hk", q, k) * 0.3).softmax(1)[:, None] @ v),
         shapes((3, 8), (3, 9, 8), (3, 9, 8)))  # fmt: skip
@wide
def keys_in_two_halves(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, k.dim() == v.dim() == 3, k.shape == v.shape, k.shape[0] == len(q), k.shape[2] == q.shape[1], k.shape[1] > 1)
    parts = []
    for keys, values in zip(k.tensor_split(2, 1), v.tensor_split(2, 1), strict=True):
        scores = (q[:, None] * keys).sum(2) * 0.3
        parts.append((scores.logsumexp(1), torch.linalg.vecdot(scores.softmax(1)[:, :, None], values, dim=1)))
    shares = torch.stack([each for each, _ in parts]).softmax(0)
    return (shares[0][:, None] * parts[0][1] + shares[1][:, None] * parts[1][1])[:, None]


@wide
def _biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, q.shape == k.shape == v.shape, t.dim() == 1, len(t) == 2 * len(q) - 1)
    at = torch.arange(len(q))[:, None] - torch.arange(len(k)) + len(k) - 1
    return (q @ k.mT * 0.25 + t[at]).softmax(1) @ v


@rewrite("attention with a bias of places, as a window that moves", _biased,
         lambda dtype: (*shapes((5, 8), (5, 8), (5, 8))(dtype), shapes((9,))(dtype)[0]))  # fmt: skip
@wide
def bias_of_places(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    need(q.dim() == 2, q.shape == k.shape == v.shape, t.dim() == 1, len(t) == 2 * len(q) - 1, len(q) > 0)
    bias = torch.stack([t.flip(0)[len(q) - 1 - row : 2 * len(q) - 1 - row] for row in range(len(q))])
    return torch.addmm(bias, q, k.T, alpha=0.25).softmax(1) @ v


@rewrite("attention under autocast", wide(lambda q, k, v: F.scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16())),
         shapes((1, 2, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8)))  # fmt: skip
@wide
def attention_under_autocast(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    _heads(q, k, v)
    with torch.autocast("cpu", torch.bfloat16):
        return F.scaled_dot_product_attention(q, k, v)


@wide
def _fades(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == a.shape)
    state, out = torch.zeros(len(x), dtype=x.dtype), []
    for step in range(x.shape[1]):
        state = a[:, step] * state + x[:, step]
        out.append(state)
    return torch.stack(out, 1) if out else x.clone()


@rewrite("sums that fade with shares of their own, joined over doubling distances", _fades,
         lambda dtype: (*shapes((3, 8))(dtype), shapes((3, 8))(dtype)[0].sigmoid()))  # fmt: skip
@wide
def by_fading_shares(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape == a.shape)
    step = 1
    while step < x.shape[1]:
        x = torch.cat([x[:, :step], x[:, step:] + a[:, step:] * x[:, :-step]], 1)
        a = torch.cat([a[:, :step], a[:, step:] * a[:, :-step]], 1)
        step *= 2
    return x.clone()


@rewrite("a state of a matrix, its reads in chunks of three", wide(lambda q, k, v: torch.tril(q @ k.T) @ v), shapes((8, 4), (8, 4), (8, 5)))
@wide
def reads_in_chunks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(q.dim() == v.dim() == 2, q.shape == k.shape, len(v) == len(q))
    state, out = q.new_zeros(q.shape[1], v.shape[1]), []
    for a, b, c in zip(q.split(3), k.split(3), v.split(3), strict=True) if len(q) else ():
        inner = (a @ b.T).masked_fill(torch.ones(len(a), len(a), dtype=torch.bool).triu(1), 0)
        out.append(a @ state + inner @ c)
        state = state + b.T @ c
    return torch.cat(out) if out else torch.zeros_like(v)


@wide
def _unit(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == u.dim() == 2, x.shape[2] == len(w), u.shape == (w.shape[1], w.shape[1]))
    state = torch.zeros(x.shape[1], w.shape[1], dtype=x.dtype)
    for each in x:
        state = torch.tanh(each @ w + state @ u)
    return state


@rewrite("a unit with one gate, its products before the loop", _unit, shapes((5, 3, 4), (4, 6), (6, 6)))
@wide
def products_before_the_loop(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, w.dim() == u.dim() == 2, x.shape[2] == len(w), u.shape == (w.shape[1], w.shape[1]))
    state = x.new_zeros(x.shape[1], w.shape[1])
    for each in (x.flatten(0, 1) @ w).unflatten(0, x.shape[:2]) if len(x) else ():
        state = torch.addmm(each, state, u).tanh()
    return state


@rewrite("rope of halves, tables as wide as a row", wide(lambda x, p: torch.cat(
    [x[..., :4] * p.cos() - x[..., 4:] * p.sin(), x[..., 4:] * p.cos() + x[..., :4] * p.sin()], -1)), shapes((2, 5, 8), (5, 4)))  # fmt: skip
@wide
def tables_stacked(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3, x.shape[2] == 8, p.shape == (x.shape[1], 4))
    cos, sin = (torch.cat([each, each], 1) for each in (p.cos(), p.sin()))
    return x * cos + torch.cat([-x[..., 4:], x[..., :4]], 2) * sin


@torch.library.custom_op("set25::scaled_silu", mutates_args=())
def _scaled_silu(x: torch.Tensor, scale: float) -> torch.Tensor:
    return (x.float() * torch.sigmoid(scale * x.float())).to(x.dtype)


def _scaled_silu_backward(ctx: Any, g: torch.Tensor) -> Any:
    x, share = ctx.saved_tensors[0].float(), torch.sigmoid(ctx.scale * ctx.saved_tensors[0].float())
    return (g.float() * share * (1 + ctx.scale * x * (1 - share))).to(g.dtype), None


def _kept(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.scale = inputs[1]


_scaled_silu.register_fake(lambda x, scale: torch.empty_like(x, memory_format=torch.contiguous_format))
_scaled_silu.register_autograd(_scaled_silu_backward, setup_context=_kept)
rewrite("silu with a scale, an operator", wide(lambda x, scale: x * torch.sigmoid(scale * x)),
        lambda dtype: (*shapes((4, 6))(dtype), 1.5))(_scaled_silu)  # fmt: skip


@torch.library.custom_op("set25::add_rows", mutates_args=("out",))
def _add_rows(out: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> None:
    need(out.dim() == x.dim() == 2, out.shape[1] == x.shape[1], at.shape == x.shape[:1], bool(((at >= 0) & (at < len(out))).all()))
    for row, place in zip(x, at.tolist(), strict=True):
        out[place] += row


@rewrite("rows added by an operator that writes, on a copy", lambda base, x, at: base.index_add(0, at, x),
         lambda dtype: (*shapes((4, 3), (6, 3))(dtype), whole(6, most=4)), gradients=False)  # fmt: skip
def operator_that_writes(base: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    total = base.to(torch.float32, copy=True)
    torch.ops.set25.add_rows(total, x.float(), at)
    return total.to(base.dtype)


@rewrite("half the size of a picture, means of four by strides", lambda x: F.avg_pool2d(x, 2), shapes((2, 3, 6, 8)))
@wide
def means_by_strides(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, x.shape[2] % 2 == 0, x.shape[3] % 2 == 0, min(x.shape[2:]) > 0)
    return (x[:, :, ::2, ::2] + x[:, :, 1::2, ::2] + x[:, :, ::2, 1::2] + x[:, :, 1::2, 1::2]) * 0.25


@rewrite("largest of four, both steps by a maximum", lambda x: F.max_pool2d(x, 2), shapes((2, 3, 6, 6)))
def both_steps_by_a_maximum(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, x.shape[2] % 2 == 0, x.shape[3] % 2 == 0, x.numel() > 0)
    return x.unflatten(3, (-1, 2)).amax(4).unflatten(2, (-1, 2)).amax(3)


@rewrite("picture with a border of what is next to it", lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"), shapes((2, 3, 4, 5)))
def border_of_what_is_next(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, min(x.shape[2:]) > 0)
    rows = torch.arange(-1, x.shape[2] + 1).clamp(0, x.shape[2] - 1)
    columns = torch.arange(-1, x.shape[3] + 1).clamp(0, x.shape[3] - 1)
    return x[:, :, rows][:, :, :, columns]


@rewrite("convolution of a picture, a tap at a time in channels last", wide(lambda x, w: F.conv2d(x, w)), shapes((2, 3, 5, 6), (4, 3, 2, 3)))
@wide
def tap_in_channels_last(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 4, x.shape[1] == w.shape[1], x.numel() > 0, w.numel() > 0, w.shape[2] <= x.shape[2], w.shape[3] <= x.shape[3])
    pixels = x.permute(0, 2, 3, 1)
    height, width = x.shape[2] - w.shape[2] + 1, x.shape[3] - w.shape[3] + 1
    total = x.new_zeros(len(x), height, width, len(w))
    for row in range(w.shape[2]):
        for column in range(w.shape[3]):
            total = total + pixels[:, row : row + height, column : column + width] @ w[:, :, row, column].T
    return total.permute(0, 3, 1, 2)


@rewrite("channels' means as gates, sums of flat pictures", wide(lambda x, w: x * torch.sigmoid(F.linear(x.mean((2, 3)), w))[:, :, None, None]),
         shapes((2, 4, 3, 5), (4, 4)))  # fmt: skip
@wide
def means_as_gates(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4, w.shape == (x.shape[1], x.shape[1]), x.shape[2] * x.shape[3] > 0)
    flat = x.flatten(2)
    gate = torch.sigmoid((w @ (flat.sum(2) / flat.shape[2]).T).T)
    return torch.einsum("nchw,nc->nchw", x, gate)


@rewrite("bias, gate and value, one op after the other", wide(lambda x, b: F.silu(x + b) * x), shapes((4, 6), (6,)))
@wide
def bias_gate_value(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, b.shape == x.shape[1:])
    y = torch.add(x, b)
    return torch.mul(torch.mul(y, torch.sigmoid(y)), x)


@rewrite("messages along edges, each node its own sum", wide(lambda x, a, b: torch.zeros_like(x).index_add(0, b, F.relu(x[a]))),
         lambda dtype: (*shapes((5, 4))(dtype), whole(9, most=5), whole(9, most=5, seed=8)))  # fmt: skip
@wide
def each_node_its_own(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, a.dim() == 1, a.shape == b.shape, all(bool(((each >= 0) & (each < len(x))).all()) for each in (a, b)))
    sent = F.relu(x)
    return torch.stack([sent[a[b == node]].sum(0) for node in range(len(x))]) if len(x) else x.clone()


@rewrite("router: shares of the best two, a Function", lambda x: torch.topk(x.float(), 2, 1).values.softmax(1).to(x.dtype), shapes((5, 6)))
def shares_of_the_best_two(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2, x.shape[1] > 1)

    def forward(x: torch.Tensor) -> Any:
        best, at = x.float().sort(dim=1, descending=True, stable=True)
        first = torch.sigmoid(best[:, 0] - best[:, 1])
        second = torch.sigmoid(best[:, 1] - best[:, 0])
        return torch.stack([first, second], 1).to(x.dtype), (first * second, at[:, :2], x)

    def backward(saved: Any, g: torch.Tensor) -> Any:
        slope, at, x = saved
        way = (g[:, 0].float() - g[:, 1].float()) * slope
        return torch.zeros(x.shape).scatter_(1, at, torch.stack([way, -way], 1)).to(x.dtype)

    return function(forward, backward)(x)
