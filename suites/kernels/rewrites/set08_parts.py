"""The eighth frozen set of healthy kernels, fourth part: quantised ones, windows, optimizers, masks that are given, codes.

One was mended, which was accused rightly: where its length is NaN, a row was given back as it was.
"""

from __future__ import annotations

from typing import Any

import torch
from cases import need, rewrite, shapes

F = torch.nn.functional


def _coded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-4) / 127
    return (x.float() / scale).round().clamp(-127, 127).to(torch.int8), scale.detach()


@rewrite("eight bits for each row, by both ends", _coded, shapes((6, 17)))
def both_ends(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(x.dim() and x.shape[-1])
    low, high = x.detach().float().aminmax(dim=-1, keepdim=True)
    scale = torch.maximum(high, -low).clamp(min=1e-4) / 127
    return (x.detach().float() / scale).round().clamp(-127, 127).to(torch.int8), scale


def _groups(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Weights of eight bits, a scale for each four. Shapes (rows, in), (out, in), (out, in / 4)."""
    return (x.float() @ (codes.float() * scales.float().repeat_interleave(4, 1)).T).to(x.dtype)


def _group_inputs(dtype: torch.dtype) -> tuple[Any, ...]:
    x, scales = shapes((5, 12), (7, 3))(dtype)
    return x, torch.randint(-127, 128, (7, 12), generator=torch.Generator().manual_seed(3), dtype=torch.int8), scales


@rewrite("product with codes of eight bits, codes transposed, a group at a time", _groups, _group_inputs)
def codes_transposed(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and codes.dim() == 2 and x.shape[1] == codes.shape[1] and scales.shape == (len(codes), codes.shape[1] / 4))
    turned, total = codes.T.contiguous(), torch.zeros(len(x), len(codes))
    for group in range(scales.shape[1]):
        some = slice(4 * group, 4 * group + 4)
        total = total + (x[:, some].float() @ turned[some].float()) * scales[:, group].float()
    return total.to(x.dtype)


_LEVELS = torch.tensor([-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0, 0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0])


def _levels(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (_LEVELS[codes] * scale.float()[:, None]).to(scale.dtype)


@rewrite("sixteen levels, chosen one by one", _levels, lambda dtype: (
    torch.randint(0, 16, (5, 9), generator=torch.Generator().manual_seed(3)), shapes((5,))(dtype)[0]))  # fmt: skip
def levels(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    need(codes.dim() == 2 and scale.shape == codes.shape[:1])
    made = torch.zeros(codes.shape)
    for number, level in enumerate(_LEVELS.tolist()):
        made.masked_fill_(codes == number, level)
    return (made * scale.float()[:, None]).to(scale.dtype)


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        need(x.dim() == 2 and x.shape[1])
        scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-4) / 7
        ctx.dtype = x.dtype
        return ((x.float() / scale).round() * scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.clone()


def _straight(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-4) / 7
        apart = (x.float() / scale).round() * scale - x.float()
    return (x.float() + apart).to(x.dtype)


rewrite("four bits and back, gradients straight through", _straight, shapes((6, 14)))(_Through.apply)


@rewrite("codes packed in pairs, by shifts", lambda x: (x[..., ::2] + 16 * x[..., 1::2]).to(torch.uint8),
         lambda dtype: (torch.randint(0, 16, (5, 12), generator=torch.Generator().manual_seed(3)),))  # fmt: skip
def packed(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() and not (x.shape[-1] % 2))
    return ((x[..., 1::2] << 4) | x[..., ::2]).to(torch.uint8)


@rewrite("convolution with steps of two, a tap at a time",
         lambda x, w: F.conv1d(x.float(), w.float(), stride=2, padding=1).to(x.dtype), shapes((2, 4, 11), (5, 4, 3)))  # fmt: skip
def tap_at_a_time(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and w.dim() == 3 and x.shape[1] == w.shape[1] and w.shape[2] == 3 and x.shape[1] and x.shape[2])
    wide, places = F.pad(x.float(), (1, 1)), (x.shape[2] - 1) // 2 + 1
    total = torch.zeros(len(x), len(w), places)
    for tap in range(3):
        total = total + torch.einsum("bcl,oc->bol", wide[:, :, tap : tap + 2 * places - 1 : 2], w[:, :, tap].float())
    return total.to(x.dtype)


@rewrite("places in between, by shares", lambda x: F.interpolate(x.float(), scale_factor=2, mode="linear").to(x.dtype), shapes((2, 3, 9)))
def in_between(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 3 and x.shape[2] and x.shape[1])
    wide = x.float()
    left, right = torch.cat([wide[..., :1], wide[..., :-1]], -1), torch.cat([wide[..., 1:], wide[..., -1:]], -1)
    return torch.stack([0.75 * wide + 0.25 * left, 0.75 * wide + 0.25 * right], -1).flatten(-2).to(x.dtype)


@rewrite("largest of pairs and their places' gradients, by masks", lambda x: x.unflatten(-1, (-1, 2)).amax(-1), shapes((5, 14)))
def by_masks(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() and not (x.shape[-1] % 2) and x.shape[-1])
    return torch.maximum(x[..., ::2], x[..., 1::2])


@rewrite("averages that move, by lerp", lambda old, new: (0.9 * old.float() + 0.1 * new.float()).to(old.dtype), shapes((5, 9), (5, 9)))
def by_lerp(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    need(old.shape == new.shape)
    return torch.lerp(old.float(), new.float(), 0.1).to(old.dtype)


def _momentum(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    kept = 0.9 * m.float() + g.float() + 0.01 * p.float()
    return (p.float() - 0.1 * (g.float() + 0.01 * p.float() + 0.9 * kept)).to(p.dtype), kept.to(m.dtype)


@rewrite("a step with momentum, in buffers of its own", _momentum, shapes((4, 7), (4, 7), (4, 7)))
def own_buffers(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    need(p.shape == g.shape == m.shape)
    decayed = g.float().clone()
    decayed.add_(p.float(), alpha=0.01)
    kept = m.float().clone().mul_(0.9)
    kept.add_(decayed)
    ahead = decayed.clone().add_(kept, alpha=0.9)
    return p.float().clone().sub_(ahead, alpha=0.1).to(p.dtype), kept.to(m.dtype)


def _cut(x: torch.Tensor) -> torch.Tensor:
    return (x.float() * (1 / (x.float().norm(dim=-1, keepdim=True) + 1e-6)).clamp(max=1)).to(x.dtype)


@rewrite("rows cut to length one, by a smaller of two", _cut, shapes((6, 13)))
def cut_to_length(x: torch.Tensor) -> torch.Tensor:
    need(x.dim())
    wide = x.float()
    length = wide.norm(dim=-1, keepdim=True) + 1e-6
    return (wide / length.clamp(min=1)).to(x.dtype)


@rewrite("given places dropped, the rest scaled", lambda x, keep: (x.float() * keep / 0.8).to(x.dtype), lambda dtype: (
    shapes((5, 12))(dtype)[0], torch.rand(5, 12, generator=torch.Generator().manual_seed(3)) < 0.8))  # fmt: skip
def dropped(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    need(x.shape == keep.shape)
    return ((x.float() * 1.25) * keep).to(x.dtype)


def _two_experts(x: torch.Tensor, w: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    return torch.einsum("ri,rio->ro", x.float(), w.float()[to]).to(x.dtype)


@rewrite(
    "one expert for each row, put back by index", _two_experts, lambda dtype: (*shapes((7, 6), (3, 6, 5))(dtype), torch.tensor([0, 2, 2, 1, 0, 2, 1]))
)
def put_back(x: torch.Tensor, w: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and w.dim() == 3 and to.shape == x.shape[:1] and x.shape[1] == w.shape[1])
    made = torch.zeros(len(x), w.shape[2])
    for number, each in enumerate(w):
        rows = (to == number).nonzero()[:, 0]
        made = made.index_add(0, rows, x[rows].float() @ each.float())
    return made.to(x.dtype)


@rewrite(
    "products of all elements of two matrices, by broadcasting", lambda a, b: torch.kron(a.float(), b.float()).to(a.dtype), shapes((3, 4), (2, 5))
)
def all_products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    need(a.dim() == 2 and b.dim() == 2)
    return (a.float()[:, None, :, None] * b.float()[None, :, None]).reshape(len(a) * len(b), a.shape[1] * b.shape[1]).to(a.dtype)


_BUFFERS: dict[tuple[int, ...], torch.Tensor] = {}


@rewrite(
    "rows less their middle, by a buffer that is kept and cleared",
    lambda x: (x.float() - x.float().mean(-1, keepdim=True)).to(x.dtype),
    shapes((6, 10)),
)
def kept_buffer(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2)
    held = _BUFFERS.setdefault(tuple(x.shape), torch.zeros(x.shape))
    held.zero_().add_(x.detach().float())
    apart = held - held.mean(-1, keepdim=True)
    return (x.float() - x.float().mean(-1, keepdim=True)).to(x.dtype) if x.requires_grad else apart.to(x.dtype)


@rewrite("every other row against the one before, by a view", lambda x: (x[1::2].float() - x[::2].float()).to(x.dtype), shapes((8, 6)))
def by_view(x: torch.Tensor) -> torch.Tensor:
    need(x.dim() == 2 and not (len(x) % 2))
    both = x.float().reshape(len(x) // 2, 2, x.shape[1])
    return (both[:, 1] - both[:, 0]).to(x.dtype)
