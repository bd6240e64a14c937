"""The nineteenth frozen set of healthy kernels, second part: norms, losses, steps, images, products. Committed before any was tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import function, need, rewrite, shapes, whole

F = torch.nn.functional


def _wide(formula: Callable[..., Any]) -> Callable[..., Any]:
    """The formula in float32, its result in the format of the first input."""
    return lambda *inputs: formula(*(each.float() if each.is_floating_point() else each for each in inputs)).to(inputs[0].dtype)


@rewrite("norm of groups, as a layer norm of each group", lambda x, w, b: F.group_norm(x, 2, w, b), shapes((3, 6, 5), (6,), (6,)))
def layer_norm_of_each_group(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and x.shape[1] % 2 == 0 and x.numel() > 0 and w.shape == b.shape == x.shape[1:2])
    parts = x.float().reshape(len(x), 2, -1)
    normed = F.layer_norm(parts, parts.shape[-1:]).view(x.shape)
    return (normed * w.float()[:, None] + b.float()[:, None]).to(x.dtype)


@rewrite("norm of each channel of a picture, rows first", lambda x: F.instance_norm(x), shapes((2, 3, 4, 5)))
def channel_rows_first(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4 and x.shape[2] * x.shape[3] > 1 and x.numel() > 0)
    wide = x.float()
    apart = wide - wide.mean(3, keepdim=True).mean(2, keepdim=True)
    return (apart * (apart.square().mean(3, keepdim=True).mean(2, keepdim=True) + 1e-5).rsqrt()).to(x.dtype)


@rewrite("weight with a length of its own, scaled by its largest number first", _wide(lambda v, g: v * (g / v.norm(dim=1))[:, None]),
         shapes((4, 6), (4,)))  # fmt: skip
def scaled_by_its_largest(v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    need(v.dim() == 2 and g.shape == v.shape[:1] and v.shape[1] > 0 and bool((v != 0).any(1).all()))
    wide = v.float()
    most = wide.detach().abs().amax(1, keepdim=True)
    unit = wide / most
    return (unit / unit.square().sum(1, keepdim=True).sqrt() * g.float()[:, None]).to(v.dtype)


def _adamw(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    return p - 0.01 * 0.1 * p - 0.01 * (m / (1 - 0.9**3)) / ((v / (1 - 0.99**3)).sqrt() + 1e-6)


@rewrite("step of adamw, corrections drawn together", _wide(_adamw),
         lambda dtype: (*shapes((4, 5), (4, 5), (4, 5))(dtype), (shapes((4, 5))(dtype)[0].square() + 0.1).to(dtype)))  # fmt: skip
def corrections_drawn_together(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    need(p.shape == g.shape == m.shape == v.shape)
    wide, slope, first, second = (each.float() for each in (p, g, m, v))
    first, second = torch.lerp(first, slope, 0.1), torch.lerp(second, slope * slope, 0.01)
    share = (1 - 0.99**3) ** 0.5
    return (wide * (1 - 0.001) - 0.01 * share / (1 - 0.9**3) * first / (second.sqrt() + 1e-6 * share)).to(p.dtype)


@rewrite("step with a look ahead, in one formula", _wide(lambda p, g, m: p - 0.1 * (g + 0.9 * (0.9 * m + g))), shapes((4, 5), (4, 5), (4, 5)))
def look_ahead(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    need(p.shape == g.shape == m.shape)
    wide, slope, moment = p.float(), g.float(), m.float()
    return torch.add(torch.add(wide, slope, alpha=-0.19), moment, alpha=-0.081).to(p.dtype)


@rewrite("given numbers dropped, as a choice, the way back too", lambda x, keep: x * keep / 0.75,
         lambda dtype: (*shapes((5, 6))(dtype), whole(5, 6, most=2).bool()))  # fmt: skip
def dropped_as_a_choice(x: torch.Tensor, keep: torch.Tensor) -> Any:
    def forward(x: torch.Tensor, keep: torch.Tensor) -> Any:
        need(x.shape == keep.shape and keep.dtype is torch.bool and bool(x.isfinite().all()))
        return torch.where(keep, x.float() / 0.75, 0).to(x.dtype), (keep,)

    return function(forward, lambda saved, gradient: (torch.where(saved[0], gradient.float() / 0.75, 0).to(gradient.dtype), None))(x, keep)


@rewrite("cross entropy of each row, four columns at a time", lambda x, labels: F.cross_entropy(x, labels, reduction="none"),
         lambda dtype: (*shapes((5, 11))(dtype), whole(5, most=11)))  # fmt: skip
def four_columns_at_a_time(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and labels.shape == x.shape[:1] and x.shape[1] > 0 and bool(((labels >= 0) & (labels < x.shape[1])).all()))
    parts = torch.stack([part.logsumexp(1) for part in x.float().split(4, 1)], 1)
    return (parts.logsumexp(1) - x.float().gather(1, labels[:, None])[:, 0]).to(x.dtype)


@rewrite("focal loss, by shares of the other label", _wide(lambda x, y: -(1 - (x * y).sigmoid()).square() * F.logsigmoid(x * y)),
         lambda dtype: (*shapes((4, 6))(dtype), (whole(4, 6, most=2) * 2 - 1).to(dtype)))  # fmt: skip
def shares_of_the_other_label(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.shape == y.shape)
    apart = x.float() * y.float()
    return ((-apart).sigmoid().square() * F.softplus(-apart)).to(x.dtype)


@rewrite("distances of rows, one number at a time", lambda x, y: torch.cdist(x.float(), y.float(), p=1.0).to(x.dtype), shapes((4, 5), (3, 5)))
def one_number_at_a_time(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == y.dim() == 2 and x.shape[1] == y.shape[1])
    total = torch.zeros(len(x), len(y)) + 0 * (x[:, :1].float().sum(1)[:, None] + y[:, :1].float().sum(1))
    for a, b in zip(x.float().unbind(1), y.float().unbind(1), strict=True):
        total = total + (a[:, None] - b).abs()
    return total.to(x.dtype)


@rewrite("triplets, by the larger of zero and a difference", _wide(lambda a, p, n: F.relu((a - p).square().sum(1) - (a - n).square().sum(1) + 1)),
         shapes((5, 4), (5, 4), (5, 4)))  # fmt: skip
def larger_of_zero(a: torch.Tensor, p: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and a.shape == p.shape == n.shape)
    near, far = (a.float() - p.float()), (a.float() - n.float())
    return ((near * near).sum(1) - (far * far).sum(1) + 1).clamp(min=0).to(a.dtype)


@rewrite("convolution turned round, as one of a row with zeros between", lambda x, w: F.conv_transpose1d(x[None], w, stride=2)[0],
         shapes((2, 6), (2, 3, 3)))  # fmt: skip
def zeros_between(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.dim() == 3 and len(x) == len(w) > 0 and x.shape[1] > 0 and w.shape[1] * w.shape[2] > 0)
    need(bool(x.isfinite().all()) and bool(w.isfinite().all()))
    apart = torch.stack([x.float(), torch.zeros(x.shape)], -1).flatten(-2)[:, :-1]
    taps = w.shape[2] - 1
    return F.conv1d(F.pad(apart, (taps, taps))[None], w.float().transpose(0, 1).flip(2))[0].to(x.dtype)


@rewrite("convolution of pictures, as a product of windows", F.conv2d, shapes((2, 3, 5, 6), (4, 3, 2, 3)))
def product_of_windows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 4 and x.shape[1] == w.shape[1] and x.shape[2] >= w.shape[2] > 0 and x.shape[3] >= w.shape[3] > 0)
    windows = x.float().unfold(2, w.shape[2], 1).unfold(3, w.shape[3], 1)
    return torch.einsum("nchwab,ocab->nohw", windows, w.float()).to(x.dtype)


@rewrite("largest of windows, rows before columns", lambda x: F.max_pool2d(x, 2, 2), shapes((2, 3, 6, 7)))
def rows_before_columns(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4 and x.shape[2] > 1 and x.shape[3] > 1 and len(x) > 0 and x.shape[1] > 0)
    rows = x.unfold(2, 2, 2).amax(-1)
    return rows.unfold(3, 2, 2).amax(-1)


@rewrite("pixels out of channels, by a view", lambda x: F.pixel_shuffle(x, 2), shapes((2, 8, 3, 5)))
def out_of_channels(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 4 and x.shape[1] % 4 == 0)
    return x.unflatten(1, (-1, 2, 2)).permute(0, 1, 4, 2, 5, 3).flatten(2, 3).flatten(3, 4) * 1


@rewrite("product of numbers with two parts, part by part",
         _wide(lambda x, y: torch.view_as_real(torch.view_as_complex(x) * torch.view_as_complex(y))),
         shapes((4, 5, 2), (4, 5, 2)))  # fmt: skip
def part_by_part(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and x.shape == y.shape and x.shape[2] == 2)
    (a, b), (c, d) = x.float().unbind(2), y.float().unbind(2)
    return torch.stack([a * c - b * d, a * d + b * c], 2).to(x.dtype)


@rewrite("codes times codes with a zero, corrected behind the product", lambda x, w: ((x - 7.0) @ (w - 7.0)).float(),
         lambda dtype: (whole(3, 10, most=16).to(dtype), whole(10, 4, most=16).to(dtype)))  # fmt: skip
def corrected_behind_the_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == w.dim() == 2 and x.shape[1] == len(w))
    a, b = x.float(), w.float()
    return a @ b - 7 * a.sum(1, keepdim=True) - 7 * b.sum(0) + 49 * len(w)


@rewrite("four bits by a table, group by group",
         lambda x, codes, scales: (x.float() @ ((codes - 8) * scales.float().repeat_interleave(4, 0))).to(x.dtype),
         lambda dtype: (*shapes((3, 12))(dtype), whole(12, 5, most=16), *shapes((3, 5))(dtype)))  # fmt: skip
def bits_by_a_table(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    need(x.dim() == codes.dim() == scales.dim() == 2 and x.shape[1] == len(codes) == 4 * len(scales) and codes.shape[1] == scales.shape[1])
    table, total = torch.arange(16.0) - 8, torch.zeros(len(x), codes.shape[1])
    for group, scale in enumerate(scales.float()):
        rows = slice(4 * group, 4 * group + 4)
        total = total + (x[:, rows].float() @ table[codes[rows]]) * scale
    return total.to(x.dtype)


@rewrite("a step of a gated state, gates in one product", _wide(lambda x, h, w, u: _gated(x @ w, h @ u, h)), shapes((4, 3), (4, 5), (3, 15), (5, 15)))
def gates_in_one_product(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    need(x.dim() == h.dim() == 2 and len(x) == len(h) and w.shape == (x.shape[1], 3 * h.shape[1]) and u.shape == (h.shape[1], 3 * h.shape[1]))
    wide, state, size = x.float(), h.float(), h.shape[1]
    both = torch.cat([wide, state], 1) @ torch.cat([w[:, : 2 * size], u[:, : 2 * size]]).float()
    reset, update = both.sigmoid().split(size, 1)
    new = torch.addmm(reset * (state @ u[:, 2 * size :].float()), wide, w[:, 2 * size :].float()).tanh()
    return torch.lerp(new, state, update).to(x.dtype)


def _gated(x: torch.Tensor, h: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    (r, z, n), (hr, hz, hn) = x.chunk(3, 1), h.chunk(3, 1)
    update = (z + hz).sigmoid()
    return (1 - update) * (n + (r + hr).sigmoid() * hn).tanh() + update * state
