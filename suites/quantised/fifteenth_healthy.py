"""Healthy code that looks like the faults of the fifteenth batch, frozen before precheck was run on it."""

from __future__ import annotations

from typing import Any

import torch
from casts_by_hand import asymmetric, to_float8, to_int8
from fifteenth_layers import SIGNED, SwitchBack, passed, three_values, to_state
from fifteenth_recipes import experts, outliers, turned
from float8_by_hand import E4M3, LOW, channels, normal
from torch import nn
from twelfth_layers import four_bits, uneven


def factors_to_a_power() -> torch.Tensor:
    """SmoothQuant with another exponent, folded into the norm before."""
    x, w = outliers(), normal(48, 64, seed=1)
    factors = x.abs().amax(0).pow(0.75) / w.abs().amax(0).pow(0.25)
    h = nn.functional.rms_norm(x, (64,), torch.ones(64) / factors)
    (qx, sx), (qw, sw) = to_int8(h, 1), to_int8(w * factors, 1)
    return ((qx.float() @ qw.float().t()) * sx * sw.t()).to(LOW)


def tokens_under_half_of_their_range() -> torch.Tensor:
    """A scale of a token that leaves room for a sum of two."""
    x, w = normal(16, 64), normal(48, 64, seed=1)
    scale = 2 * x.abs().amax(1, keepdim=True) / 127
    (qw, sw) = to_int8(w, 1)
    return (torch.round(x / scale) @ qw.float().t() * scale * sw.t()).to(LOW)


def searched_range() -> torch.Tensor:
    """The range that costs least is searched for, and its scale is stored."""
    x, groups = normal(16, 128), uneven(48, 4, 32)
    whole = groups.abs().amax(-1, keepdim=True) / 7
    tried = torch.stack([whole * share for share in (1.0, 0.9, 0.8, 0.7)])
    made = torch.round(groups / tried).clamp(-7, 7) * tried
    best = (made - groups).square().sum(-1, keepdim=True).argmin(0, keepdim=True)
    scale = tried.gather(0, best)[0]
    codes = torch.round(groups / scale).clamp(-7, 7).to(torch.int8)
    return (x @ (codes.float() * scale).view(48, 128).t()).sigmoid().to(LOW)


def factors_folded_into_the_input() -> torch.Tensor:
    """AWQ as a simulation: the input is divided by the factors, and the weight keeps them."""
    factors = torch.exp2(1.5 * normal(64, seed=3))
    codes, step = to_int8(normal(64, 64, seed=1) * factors, 1)
    return ((normal(16, 64) / factors) @ (codes.float() * step).t()).to(LOW)


def order_kept_by_the_input() -> torch.Tensor:
    """GPTQ with an order of columns, in which the input is put as well."""
    x, w = normal(16, 128), uneven(48, 4, 32).view(48, 128)
    order = torch.randperm(128, generator=torch.Generator().manual_seed(3))
    codes, scale = four_bits(w[:, order].view(48, 4, 32))
    return (x[:, order] @ (codes.float() * scale).view(48, 128).t()).to(LOW)


def groups_by_their_index() -> torch.Tensor:
    x, w = normal(16, 128), uneven(48, 4, 32).view(48, 128)
    order = torch.randperm(128, generator=torch.Generator().manual_seed(3))
    codes, scale = four_bits(w[:, order].view(48, 4, 32))
    back = torch.argsort(order)
    used = scale[:, :, 0].index_select(1, back // 32)
    return (x @ (codes.view(48, 128)[:, back].float() * used).t()).to(LOW)


def one_table_for_two_rows() -> torch.Tensor:
    """Two rows share a table, which is made of both."""
    x, w = normal(16, 64), normal(32, 64, seed=1) * torch.exp2(normal(16, 1, seed=4)).repeat_interleave(2, 0)
    tables = torch.quantile(w.view(16, 128), torch.linspace(0.03, 0.97, 16), 1).t().contiguous()
    codes = (w.view(16, 128)[:, :, None] - tables[:, None]).abs().argmin(-1)
    return (x @ torch.gather(tables, 1, codes).view(32, 64).t()).to(LOW)


def heads_tiled_as_the_keys() -> torch.Tensor:
    q, k = normal(4, 8, 16), normal(2, 24, 16, seed=4) * torch.tensor([1.0, 6.0]).view(2, 1, 1)
    codes, scale = to_int8(k, (1, 2))
    scores = q @ codes.float().repeat(2, 1, 1).transpose(1, 2) * scale.repeat(2, 1, 1) / 4
    return torch.softmax(scores, -1).to(LOW)


def slots_of_both() -> torch.Tensor:
    q, k = normal(8, 32), uneven(24, 32, seed=4)
    slots = torch.randperm(32, generator=torch.Generator().manual_seed(5))[:24]
    codes, scale = to_int8(k, 1)
    pages, scales = torch.zeros(32, 32, dtype=torch.int8), torch.ones(32, 1)
    pages.index_copy_(0, slots, codes)
    scales.index_copy_(0, slots, scale)
    keys = (pages.float() * scales).index_select(0, slots)
    return torch.softmax(q @ keys.t() / 6, -1).to(LOW)


def rotated_codes_under_token_scales() -> torch.Tensor:
    """A rotation of the channels of a token passes the token's scale."""
    q, k = normal(8, 32), uneven(24, 32, seed=4)
    codes, scale = to_int8(k, 1)
    return torch.softmax(q @ (turned(codes.float()) * scale).t() / 6, -1).to(LOW)


def bound_on_the_used_scale() -> torch.Tensor:
    """An upper bound for the scales of tokens clips none of them."""
    x, w = normal(16, 64), channels() / 8
    scale = (x.abs().amax(1, keepdim=True) / 448).clamp(max=0.02)
    codes = (x / scale).to(E4M3)
    (qw, sw) = to_float8(w, 1)
    return nn.functional.silu((codes.float() @ qw.float().t()) * scale * sw.t()).to(LOW)


def scales_of_the_local_experts() -> torch.Tensor:
    x, (codes, scale) = normal(2, 8, 64), to_int8(experts(), (1, 2))
    own, used = codes[2:], scale[2:].clone()
    return nn.functional.silu(torch.bmm(x, own.float().transpose(1, 2)) * used).view(16, 32).to(LOW)


def tokens_sorted_by_expert() -> torch.Tensor:
    """Tokens are sorted, multiplied in blocks, weighted and put back."""
    x, (codes, scale) = normal(16, 64), to_int8(experts(), (1, 2))
    who = torch.arange(16) * 5 % 4
    order = torch.argsort(who)
    out = torch.zeros(16, 32)
    for expert in range(4):
        mine = order[who[order] == expert]
        out[mine] = x[mine] @ codes[expert].float().t() * scale[expert]
    return nn.functional.silu(out).to(LOW)


def embedding_of_dequantised_rows() -> torch.Tensor:
    codes, scale = to_int8(uneven(32, 64), 1)
    ids = torch.tensor([3, 17, 9, 30, 4, 4, 21, 8])
    x = codes[ids].float() * nn.functional.embedding(ids, scale)
    return nn.functional.rms_norm(x + normal(8, 64, seed=5), (64,)).to(LOW)


def polynomial_in_integers() -> torch.Tensor:
    codes, scale = to_int8(normal(16, 64), (0, 1))
    smaller = scale / 2**0.5
    shift = torch.floor(-1.769 / smaller)
    held = torch.minimum(codes.float().abs(), -shift)
    square = (held + shift).square() + torch.floor(1 / (-0.2888 * smaller**2))
    return (codes.float().sign() * square * (-0.2888 * smaller**2)).to(LOW)


def multiplier_by_a_shift() -> torch.Tensor:
    """Sums become int8 by a whole multiplier and a shift."""
    x, w, v = normal(16, 64), normal(32, 64, seed=1) / 8, normal(24, 32, seed=2) / 6
    (qx, sx), (qw, sw), (qv, sv) = to_int8(x, (0, 1)), to_int8(w, (0, 1)), to_int8(v, (0, 1))
    top = (x @ w.t()).abs().amax() / 127
    whole = torch.round(sx * sw / top * 2**24)
    hidden = torch.round((qx.float() @ qw.float().t()) * whole / 2**24).clamp(-128, 127)
    return nn.functional.gelu(hidden @ qv.float().t() * (top * sv)).to(LOW)


def sums_over_inputs() -> torch.Tensor:
    codes, sx, zero = (each[:, 0] for each in asymmetric(normal(16, 64) + 1, 64))
    qw, sw = to_int8(channels() + 0.5, 1)
    y = codes.float() @ qw.float().t() - zero * (qw.float() @ torch.ones(64, 1)).t()
    return (y * sx * sw.t()).to(LOW)


def step_as_a_power_of_two() -> torch.Tensor:
    """A learned step is kept as its logarithm."""
    x, w = normal(16, 64), normal(32, 64, seed=1)
    log = nn.Parameter(torch.log2(w.abs().amax(1, keepdim=True) / 7))
    dense = passed(w / torch.exp2(log)).clamp(-7, 7) * torch.exp2(log)
    out = nn.functional.gelu(x @ dense.t())
    out.sum().backward()
    return out.to(LOW)


def observer_with_memory() -> torch.Tensor:
    """A range that follows the batches slowly, from a first one that was observed before."""
    w, low, high = normal(32, 64, seed=1) / 8, torch.tensor(-4.0), torch.tensor(4.0)
    made = []
    for seed in range(4):
        x = normal(16, 64, seed=seed)
        low, high = 0.9 * low + 0.1 * x.amin(), 0.9 * high + 0.1 * x.amax()
        scale = (high - low) / 255
        zero = torch.round(-low / scale)
        codes = (torch.round(x / scale) + zero).clamp(0, 255)
        made.append((codes - zero) * scale @ w.t())
    return torch.cat(made).to(LOW)


def weights_from_minus_one_to_one() -> torch.Tensor:
    x, w = normal(16, 64), normal(32, 64, seed=1) / 4
    t = torch.tanh(w)
    dense = 2 * (passed((t / (2 * t.abs().amax()) + 0.5) * 15) / 15) - 1
    return (x @ dense.t()).to(LOW)


def fake_quantised_by_rows() -> torch.Tensor:
    w = (normal(64, 64, seed=1) * torch.exp2(1.5 * normal(64, 1, seed=2))).requires_grad_()
    made = torch.fake_quantize_per_channel_affine(w, w.detach().abs().amax(1) / 127, torch.zeros(64, dtype=torch.int32), 0, -128, 127)
    out = normal(16, 64) @ made.t()
    out.sum().backward()
    return out.to(LOW)


def folded_norm() -> torch.Tensor:
    """A BatchNorm is folded into the weight, and its shift into a bias."""
    x, w = normal(64, 32) * torch.exp2(normal(32, seed=6)), normal(24, 32, seed=1) / 4
    y = x @ w.t()
    mean, deviation, gain, shift = y.mean(0), y.std(0, correction=0), 1 + 0.3 * normal(24, seed=4), normal(24, seed=5)
    codes, scale = to_int8(w * (gain / deviation)[:, None], 1)
    return (x @ (codes.float() * scale).t() + shift - mean * gain / deviation).to(LOW)


class Clipped(torch.autograd.Function):
    """LSQ with all of its formula."""

    @staticmethod
    def forward(ctx: Any, w: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(w, step)
        return (w / step).round().clamp(-7, 7) * step

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        w, step = ctx.saved_tensors
        scaled = w / step
        left = torch.where(scaled.abs() <= 7, scaled.round() - scaled, 7 * scaled.sign())
        return g * (scaled.abs() <= 7), (g * left).sum(1, keepdim=True) / (7 * w.shape[1]) ** 0.5


def learned_step() -> torch.Tensor:
    w, made = uneven(32, 64), []
    step = (2 * w.abs().mean(1, keepdim=True) / 7**0.5).requires_grad_()
    for seed in range(3):
        out = Clipped.apply(w, step) @ normal(64, 16, seed=seed)  # type: ignore[no-untyped-call]
        (grad,) = torch.autograd.grad((out * normal(32, 16, seed=4)).sum(), step)
        step = (step - 1e-4 * grad).detach().requires_grad_()
        made.append(out)
    return torch.cat(made).to(LOW)


def kept_tokens_under_their_scales() -> torch.Tensor:
    w = (normal(48, 64, seed=1) / 8).requires_grad_()
    for seed in range(2):
        (SwitchBack.apply(uneven(32, 64, seed=seed), w, False) * normal(32, 48, seed=3)).sum().backward()  # type: ignore[no-untyped-call]
    assert w.grad is not None
    return w.grad.to(LOW)


def updates_in_steps() -> torch.Tensor:
    """Weights are codes of eight bits, which are rounded by chance after each step."""
    w = normal(32, 64, seed=1) / 8
    scale = w.abs().amax(1, keepdim=True) / 64
    codes, source = torch.round(w / scale), torch.Generator().manual_seed(2)
    for seed in range(3):
        noise = torch.rand(32, 64, generator=source)
        codes = torch.floor(codes - 0.02 * normal(32, 64, seed=seed) / scale + noise).clamp(-128, 127)
    return (normal(16, 64, seed=7) @ (codes * scale).t()).to(LOW)


def moments_in_blocks() -> torch.Tensor:
    """Adam in eight bits, whose second moment is kept as its root."""
    p, first, second = normal(32, 64), to_state(torch.zeros(32, 64) + 1e-8, 64), to_state(torch.zeros(32, 64) + 1e-8, 64)
    for seed in range(3):
        g = normal(32, 64, seed=seed)
        m = 0.9 * SIGNED[first[0].long()] * first[1] + 0.1 * g
        v = 0.99 * (SIGNED[second[0].long()] * second[1]).square() + 0.01 * g.square()
        p = p - 0.01 * m / (v.sqrt() + 1e-3)
        first, second = to_state(m, 64), to_state(v.sqrt(), 64)
    return p.to(LOW)


def expanded_to_the_range() -> torch.Tensor:
    """COAT: a moment is raised to a power that its own range asks for."""
    m, g = normal(32, 64, seed=4).abs() * 1e-3 + 2e-4, normal(32, 64, seed=5) * 1e-4
    power = float(torch.log2(torch.tensor(2.0**17)) / torch.log2(m.amax() / m.amin()))
    raised = m.pow(power)
    codes, scale = (raised / raised.amax() * 448).to(E4M3), raised.amax() / 448
    return (0.9 * (codes.float() * scale).pow(1 / power) + 0.1 * g).to(LOW)


def means_of_their_own() -> torch.Tensor:
    """BitNet: three weights are rounded and fused, and each part of the product has its mean."""
    x, parts = normal(16, 64), [size * normal(16, 64, seed=seed) / 8 for seed, size in ((1, 0.5), (2, 1.0), (3, 4.0))]
    (qx, sx), made = to_int8(x, 1), [three_values(each) for each in parts]
    y = qx.float() @ torch.cat([codes for codes, _ in made]).t()
    q, k, v = (part * sx * mean for part, (_, mean) in zip(y.split(16, 1), made, strict=True))
    return (torch.softmax(q @ k.t() / 4, -1) @ v).to(LOW)


def product_over_an_inverse_mean() -> torch.Tensor:
    """BitNet keeps the inverse of the mean, and divides by it."""
    x, w = normal(16, 64), normal(32, 64, seed=1) / 8
    inverse = 1 / w.abs().mean().clamp(min=1e-5)
    (qx, sx), codes = to_int8(x, 1), torch.round(w * inverse).clamp(-1, 1)
    return nn.functional.silu(qx.float() @ codes.t() * sx / inverse).to(LOW)


HEALTHY = (factors_to_a_power, tokens_under_half_of_their_range, searched_range, factors_folded_into_the_input, order_kept_by_the_input,
           groups_by_their_index, one_table_for_two_rows, heads_tiled_as_the_keys, slots_of_both, rotated_codes_under_token_scales,
           bound_on_the_used_scale, scales_of_the_local_experts, tokens_sorted_by_expert, embedding_of_dequantised_rows, polynomial_in_integers,
           multiplier_by_a_shift, sums_over_inputs, step_as_a_power_of_two, observer_with_memory, weights_from_minus_one_to_one,
           fake_quantised_by_rows, folded_norm, learned_step, kept_tokens_under_their_scales, updates_in_steps, moments_in_blocks,
           expanded_to_the_range, means_of_their_own, product_over_an_inverse_mean)  # fmt: skip
