"""Healthy code that looks like the faults of the eleventh batch, frozen before precheck was run on it."""

from __future__ import annotations

from typing import Any

import torch
from casts_by_hand import to_float8, to_int8
from eleventh_layers import swizzled
from eleventh_recipes import NIBBLES, Both, Kept, trained
from float8_by_hand import E4M3, E5M2, LOW, channels, normal, rows
from torch import nn


class Product(torch.autograd.Function):
    """A product in float8. `own` makes the gradients, of the incoming one, the input and the weight."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, own: Any, bias: torch.Tensor | None = None) -> torch.Tensor:
        (qx, sx), (qw, sw) = rows(x), rows(w)
        ctx.save_for_backward(x, w)
        ctx.own = own
        y = qx.float() @ qw.float().t() * sx * sw.t()
        return y if bias is None else y + bias

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        dx, dw = ctx.own(g, *ctx.saved_tensors)
        return (dx, dw, None, g.flatten(0, -2).sum(0))[: len(ctx.needs_input_grad)]


def gradient(g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = g.abs().amax(-1, keepdim=True) / 57344
    return (g / scale).to(E5M2), scale


def exact(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    qg, sg = gradient(g)
    (qw, sw), (qx, sx) = rows(w, 0), rows(x.flatten(0, -2), 0)
    return qg.float() @ qw.float() * sg * sw, g.flatten(0, -2).t() @ (qx.float() * sx)


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    return normal(32, 64), normal(48, 64, seed=1) / 8


def unit_scaled() -> torch.Tensor:
    """Unit scaling: each gradient has a factor of its own, which the optimizer does not see."""
    return trained(Product, *operands(), lambda g, x, w: tuple(each * a for each, a in zip(exact(g, x, w), (48**-0.5, 32**-0.5), strict=True)))


def reversed_gradient() -> torch.Tensor:
    """A layer before a domain classifier turns the gradient of its input round."""
    return trained(Product, *operands(), lambda g, x, w: (-0.3 * exact(g, x, w)[0], exact(g, x, w)[1]))


def clamped_gradient() -> torch.Tensor:
    """Each number of the incoming gradient is limited before it is rounded."""
    return trained(Product, *operands(), lambda g, x, w: exact(g.clamp(-1, 1), x, w))


def sampled_rows(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    kept = torch.randperm(len(g), generator=torch.Generator().manual_seed(1))[: len(g) // 2]
    (qg, sg), (qx, sx) = to_int8(2 * g[kept], 0), to_int8(x[kept], 0)
    return exact(g, x, w)[0], qg.float().t() @ qx.float() * sg.t() * sx


def rows_by_chance() -> torch.Tensor:
    """The weight's gradient is that of half of the rows, twice as large, in int8."""
    return trained(Product, *operands(), sampled_rows)


def largest_tenth(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    dx, dw = exact(g, x, w)
    bound = dw.abs().flatten().kthvalue(dw.numel() * 9 // 10).values
    return dx, dw * (dw.abs() > bound)


def sparse_gradient() -> torch.Tensor:
    """Only the largest tenth of a gradient is returned."""
    return trained(Product, *operands(), largest_tenth)


def three_dimensions_and_a_bias() -> torch.Tensor:
    w, bias = normal(48, 64, seed=1) / 8, normal(48, seed=2).requires_grad_()
    x = normal(4, 16, 64).requires_grad_()
    Product.apply(x, w.requires_grad_(), exact, bias).square().mean().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert w.grad is not None
    return torch.cat([x.grad.flatten(), w.grad.flatten()])


def added_to_a_main_gradient() -> torch.Tensor:
    """As in Megatron: the weight's gradient is added to a buffer in float32, and the Function returns none."""
    w = operands()[1]
    main = torch.zeros(48, 64)

    def own(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, None]:
        dx, dw = exact(g, x, w)
        main.add_(dw)
        return dx, None

    for step in range(3):
        trained(Product, normal(32, 64, seed=step), w, own)
    return main.to(LOW)


def frozen_base_and_adapter() -> torch.Tensor:
    """QLoRA: a base of four bits gets no gradient, and its input does."""
    w, a, b = channels(), normal(4, 64, seed=4) / 8, (normal(64, 4, seed=5) / 8).requires_grad_()
    blocks = w.view(64, 4, 16)
    step = blocks.abs().amax(-1, keepdim=True) / 7
    dense = (torch.round(blocks / step).to(torch.int8).float() * step).view(64, 64)

    def own(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, None]:
        return g @ dense, None

    x = normal(16, 64).requires_grad_()
    (Product.apply(x, w, own) + x @ a.t() @ b.t()).square().mean().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert b.grad is not None
    return torch.cat([x.grad.flatten(), b.grad.flatten()])


def both_made_again() -> torch.Tensor:
    """A weight in float8 is made again for both passes after each step."""
    w = channels()
    for step in range(3):
        got = trained(Kept, normal(32, 64, seed=step), w.detach(), Both(w))
        w = w.detach() - 1e-4 * got[-64 * 64 :].view(64, 64)
    return w.to(LOW)


def bytes_of_two_formats() -> torch.Tensor:
    """Gradients in e5m2 and activations in e4m3 lie in one buffer of bytes, each read as its own format."""
    g, x = normal(32, 48, seed=1) * torch.exp2(3 * normal(32, 1, seed=2)), normal(32, 64)
    (qg, sg), (qx, sx) = gradient(g), to_float8(x, (0, 1))
    buffer = torch.cat([qg.view(torch.uint8).flatten(), qx.view(torch.uint8).flatten()])
    left, right = buffer[: g.numel()].view(E5M2).view(g.shape), buffer[g.numel() :].view(E4M3).view(x.shape)
    return ((left.float() * sg).t() @ (right.float() * sx)).to(LOW)


def inside_of_a_learned_range() -> torch.Tensor:
    """What lies beyond the range gets no gradient, and the range gets one."""
    w, scale = channels().requires_grad_(), (channels().std(1, keepdim=True) * 2 / 7).requires_grad_()
    scaled = (w / scale).clamp(-7, 7)
    codes = scaled + (torch.round(scaled) - scaled).detach()
    (normal(32, 64) @ (codes * scale).t()).square().mean().backward()
    assert w.grad is not None
    return w.grad.to(LOW)


def one_second_scale() -> torch.Tensor:
    """nvfp4: gate and up are quantised again under the greater of their second scales."""
    x, both = normal(16, 64), torch.cat([normal(32, 64, seed=1), 2.5 * normal(32, 64, seed=2)])
    second, blocks = both.abs().amax() / (448 * 6), both.view(64, 4, 16)
    scale = (blocks.abs().amax(-1, keepdim=True) / 6 / second).to(E4M3)
    codes = torch.round(2 * blocks / (scale.float() * second)).clamp(-12, 12) / 2
    gate, up = (x @ (codes * scale.float()).view(64, 64).t() * second).chunk(2, 1)
    return (nn.functional.silu(gate) * up).to(LOW)


def scores_without_a_descale() -> torch.Tensor:
    """Queries and keys are normalised, so that float8 holds them as they are."""
    q, k = (nn.functional.normalize(normal(4, 16, 32, seed=seed), dim=-1) * 32**0.5 for seed in range(2))
    return torch.softmax(q.to(E4M3).float() @ k.to(E4M3).float().mT / 32**0.5, -1).to(LOW)


def exponents_alone() -> torch.Tensor:
    """The mantissa of scales is cut before anything is rounded under them, and what is beyond the end is cut off."""
    x = normal(16, 4, 32) * torch.exp2(normal(16, 4, 1, seed=3))
    scale = ((2 * x.abs().amax(-1, keepdim=True) / 448).view(torch.int32) & 0x7F800000).view(torch.float32)
    codes = (x / scale).clamp(-448, 448).to(E4M3)
    return ((codes.float() * scale).view(16, 128) @ normal(128, 48, seed=1)).to(LOW)


def one_scale_for_keys_and_values() -> torch.Tensor:
    k, v, q = 3 * normal(4, 24, 32, seed=1), normal(4, 24, 32, seed=2), normal(4, 16, 32)
    scale = torch.maximum(k.abs().amax(), v.abs().amax()) / 448
    k8, v8 = (k / scale).to(E4M3), (v / scale).to(E4M3)
    return (torch.softmax(q @ (k8.float() * scale).mT / 32**0.5, -1) @ v8.float() * scale).to(LOW)


def zeros_less_one_round_the_corner() -> torch.Tensor:
    """Zero points less one in four bits, where the reader knows that 15 stands for 0."""
    w = channels().abs().view(64, 2, 32)
    scale = w.amax(-1, keepdim=True) / 15
    codes = torch.round(w / scale).to(torch.uint8)
    packed = ((torch.full((16, 8), -1) & 15) << NIBBLES).sum(1)
    read = ((packed[:, None] >> NIBBLES & 15) + 1 & 15).view(64, 2, 1)
    return (normal(8, 64) @ ((codes.int() - read).float() * scale).view(64, 64).t()).to(LOW)


def cut_for_each_rank() -> torch.Tensor:
    """Each rank quantises its own columns, whose scales lie in its own buffer."""
    x, w, parts = normal(16, 128), normal(48, 128, seed=1), []
    for rank in range(2):
        local = w[:, 64 * rank : 64 * rank + 64]
        codes, scale = to_float8(local, 1)
        parts.append((x[:, 64 * rank : 64 * rank + 64] @ codes.float().t()) * scale.t())
    return (parts[0] + parts[1]).to(LOW)


def interleaved_and_back() -> torch.Tensor:
    w = normal(128, 8, 32) * torch.exp2(2 * normal(128, 8, 1, seed=2))
    byte = (torch.ceil(torch.log2(w.abs().amax(-1) / 448)) + 127).to(torch.uint8)
    codes = (w / torch.exp2(byte.float() - 127)[..., None]).to(E4M3)
    read = swizzled(byte).flatten().view(2, 32, 4, 4).permute(2, 1, 0, 3).reshape(128, 8)
    return (normal(8, 256, seed=4) @ (codes.float() * torch.exp2(read.float() - 127)[..., None]).view(128, 256).t()).to(LOW)


def moments_begin_again() -> torch.Tensor:
    """Some rows of a moment in uint8 become zero, and begin again."""
    w, codes, scale = normal(32, 16), torch.full((32, 16), 128, dtype=torch.uint8), torch.ones(32, 1)
    for step in range(6):
        m = 0.9 * (codes.float() - 128) * scale + 0.1 * normal(32, 16, seed=step + 1)
        scale = m.abs().amax(1, keepdim=True) / 127
        codes = (torch.round(m / scale) + 128).to(torch.uint8)
        codes[step::8] = 128
        w = w - 0.1 * (codes.float() - 128) * scale
    return w.to(LOW)


def calibrated_with_room() -> torch.Tensor:
    """A calibrated range with half as much again, as inputs to come may be larger."""
    top, outs = 1.5 * normal(256, 64, seed=9).abs().amax(), []
    for step in range(4):
        x = normal(16, 64, seed=step)
        codes = torch.round(x / (top / 127)).clamp(-127, 127).to(torch.int8)
        outs.append(codes.float() * (top / 127) @ channels().t())
    return torch.stack(outs).to(LOW)


HEALTHY = (unit_scaled, reversed_gradient, clamped_gradient, rows_by_chance, sparse_gradient, three_dimensions_and_a_bias, added_to_a_main_gradient,
           frozen_base_and_adapter, both_made_again, bytes_of_two_formats, inside_of_a_learned_range, one_second_scale, scores_without_a_descale,
           exponents_alone, one_scale_for_keys_and_values, zeros_less_one_round_the_corner, cut_for_each_rank, interleaved_and_back,
           moments_begin_again, calibrated_with_room)  # fmt: skip
