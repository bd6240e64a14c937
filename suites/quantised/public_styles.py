"""Healthy quantisers in styles of public code that no other file of this folder has: bit tricks, dither, iterations, formats of files."""

from __future__ import annotations

from typing import Any

import torch
from casts_by_hand import to_int8
from float8_by_hand import E4M3, LOW, channels, normal
from torch import nn


def half_quadratic() -> torch.Tensor:
    """HQQ: zero points are real numbers, and are moved until few numbers have large errors."""
    groups = (channels() + 0.1).view(64, 2, 32)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale, zero, beta = 15 / (high - low), -low * 15 / (high - low), 10.0
    for _ in range(8):
        codes = torch.round(groups * scale + zero).clamp(0, 15)
        error = groups - (codes - zero) / scale
        sparse = torch.sign(error) * nn.functional.relu(error.abs() - error.abs().clamp(min=1e-6).pow(-0.3) / beta)
        zero = (codes - (groups - sparse) * scale).mean(-1, keepdim=True)
        beta *= 1.01
    codes = torch.round(groups * scale + zero).clamp(0, 15).to(torch.uint8)
    return (normal(8, 64) @ ((codes.float() - zero) / scale).view(64, 64).t()).to(LOW)


def means_of_each_row() -> torch.Tensor:
    """SqueezeLLM: each row has eight numbers of its own, which Lloyd's iteration finds."""
    w = channels()
    table = torch.quantile(w, torch.linspace(0.03, 0.97, 8), dim=1).t().contiguous()
    for _ in range(4):
        codes = (w[:, :, None] - table[:, None]).abs().argmin(-1)
        one = nn.functional.one_hot(codes, 8).float()
        table = torch.einsum("rc,rck->rk", w, one) / one.sum(1).clamp(min=1)
    codes = (w[:, :, None] - table[:, None]).abs().argmin(-1).to(torch.uint8)
    return (normal(8, 64) @ torch.gather(table, 1, codes.long()).t()).to(LOW)


def levels(x: torch.Tensor, bits: int) -> torch.Tensor:
    return x + (torch.round(x * (2**bits - 1)) / (2**bits - 1) - x).detach()


def dorefa() -> torch.Tensor:
    """Weights go through tanh and activations are clipped to [0, 1] before they are rounded."""
    w, x = (normal(48, 64, seed=1) / 8).requires_grad_(), normal(16, 64)
    soft = torch.tanh(w)
    dense = 2 * levels(soft / (2 * soft.abs().max()) + 0.5, 4) - 1
    y = levels(x.clamp(0, 1), 4) @ dense.t()
    y.square().mean().backward()
    assert w.grad is not None
    return w.grad.to(LOW)


def sums_of_powers() -> torch.Tensor:
    """APoT: a number is the sum of two powers of two, under a learned range."""
    first, second = torch.tensor([0.0, 1.0, 0.25, 0.0625]), torch.tensor([0.0, 0.5, 0.125, 0.03125])
    table = (first[:, None] + second).flatten().sort().values
    table = table / table.max()
    w, alpha = normal(48, 64, seed=1) / 8, torch.tensor(0.3, requires_grad=True)
    scaled = (w / alpha).clamp(-1, 1)
    near = table[(scaled.abs()[..., None] - table).abs().argmin(-1)] * scaled.sign()
    dense = (scaled + (near - scaled).detach()) * alpha
    (normal(8, 64) @ dense.t()).square().mean().backward()
    assert alpha.grad is not None
    return torch.cat([dense.detach().flatten(), alpha.grad.view(1)]).to(LOW)


def one_bit_of_difference() -> torch.Tensor:
    """BitDelta: a finetuned weight is the base's, plus one bit times a scale for what was learnt."""
    base = channels()
    tuned = base + 0.05 * normal(64, 64, seed=8)
    difference = tuned - base
    scale, positive = difference.abs().mean(), difference > 0
    packed = (positive.view(64, 8, 8).to(torch.uint8) << torch.arange(8, dtype=torch.uint8)).sum(-1).to(torch.uint8)
    signs = (packed[..., None] >> torch.arange(8, dtype=torch.uint8) & 1).view(64, 64).float() * 2 - 1
    return (normal(8, 64) @ (base + signs * scale).t()).to(LOW)


def learned_clipping() -> torch.Tensor:
    """OmniQuant: the range is a learned share of each group's greatest and smallest number."""
    groups, x = channels().view(64, 2, 32), normal(16, 64)
    upper, lower = (torch.full((64, 2, 1), 4.0, requires_grad=True) for _ in range(2))
    optimizer = torch.optim.AdamW([upper, lower], lr=0.05)
    out = torch.zeros(())
    for _ in range(3):
        high, low = torch.sigmoid(upper) * groups.amax(-1, keepdim=True), torch.sigmoid(lower) * groups.amin(-1, keepdim=True)
        scale = ((high - low) / 15).clamp(min=1e-5)
        zero = -(low / scale).round().detach()
        scaled = groups / scale
        codes = (scaled + (scaled.round() - scaled).detach() + zero).clamp(0, 15)
        out = x @ ((codes - zero) * scale).view(64, 64).t()
        optimizer.zero_grad()
        (out - x @ channels().t()).square().mean().backward()
        optimizer.step()
    return out.detach().to(LOW)


def rowwise_by_the_kernel() -> torch.Tensor:
    x, w = normal(32, 64), channels()
    sx, sw = x.abs().amax(1, keepdim=True) / 448, w.abs().amax(1, keepdim=True) / 448
    return torch._scaled_mm((x / sx).to(E4M3), (w / sw).to(E4M3).t(), sx, sw.t(), out_dtype=LOW)


def smoothed_integers() -> torch.Tensor:
    """SmoothQuant's factors between a norm and a product in integers by `_int_mm`."""
    norm, x, w = nn.LayerNorm(64), normal(32, 64) * torch.exp2(2 * normal(64, seed=4)), channels()
    factors = (norm(x).abs().amax(0).sqrt() / w.abs().amax(0).sqrt()).detach()
    with torch.no_grad():
        norm.weight.div_(factors)
        norm.bias.div_(factors)
    (qx, sx), (qw, sw) = to_int8(norm(x).detach(), 1), to_int8(w * factors, 1)
    return (torch._int_mm(qx, qw.t()).float() * sx * sw.t()).to(LOW)


def observed_and_faked() -> torch.Tensor:
    """Observers and fake quantisers of torch.ao in a few steps of training."""
    q = torch.ao.quantization
    torch.manual_seed(0)
    layer = nn.Linear(64, 48)
    act = q.FakeQuantize.with_args(observer=q.MovingAverageMinMaxObserver, quant_min=0, quant_max=255, dtype=torch.quint8)()
    weight = q.FakeQuantize.with_args(observer=q.MovingAveragePerChannelMinMaxObserver, quant_min=-127, quant_max=127, dtype=torch.qint8,
                                      qscheme=torch.per_channel_symmetric, ch_axis=0)()  # fmt: skip
    optimizer, loss = torch.optim.SGD(layer.parameters(), lr=0.01), torch.zeros(())
    for step in range(3):
        out = nn.functional.linear(act(normal(16, 64, seed=step)), weight(layer.weight), layer.bias)
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return layer.weight.detach().to(LOW)


def super_blocks() -> torch.Tensor:
    """q4_K: scales and lowest numbers of 32 have six bits each, under two numbers in float16 for 256."""
    w = (normal(16, 8, 32, seed=1) + 0.3) * torch.exp2(normal(16, 8, 1, seed=2))
    low = w.amin(-1).clamp(max=0)
    scale = (w.amax(-1) - low) / 15
    d, dmin = (scale.amax(1) / 63).half(), ((-low).amax(1) / 63).half()
    six, mins = (torch.round(each / top[:, None].float()).clamp(0, 63) for each, top in ((scale, d), (-low, dmin)))
    own, least = six * d[:, None].float(), mins * dmin[:, None].float()
    codes = torch.round((w + least[..., None]) / own[..., None].clamp(min=1e-9)).clamp(0, 15).to(torch.uint8)
    packed = codes[:, ::2] | codes[:, 1::2] << 4
    read = torch.stack([packed & 15, packed >> 4], 2).view(16, 8, 32)
    return (normal(8, 256) @ (read.float() * own[..., None] - least[..., None]).view(16, 256).t()).to(LOW)


def blocks_of_integers() -> torch.Tensor:
    """q8_0 times q4_0: sums of 32 products in integers, each times two scales in float16."""
    x, w = normal(8, 4, 32), channels().repeat(1, 2).view(64, 4, 32)
    far = torch.gather(w, -1, w.abs().argmax(-1, keepdim=True))
    dw, dx = (far / -8).half(), (x.abs().amax(-1, keepdim=True) / 127).half()
    qw = (torch.round(w / dw.float()) + 8).clamp(0, 15).to(torch.uint8)
    qx = torch.round(x / dx.float()).to(torch.int8)
    sums = torch.einsum("tbi,obi->tob", qx.int(), qw.int() - 8)
    return (sums.float() * dx.float().view(8, 1, 4) * dw.float().view(1, 64, 4)).sum(-1).to(LOW)


def page_that_grows() -> torch.Tensor:
    """A page of a cache has one scale. If a token needs a greater one, the codes before it are rounded again."""
    page, scale, q = torch.zeros(16, 32, dtype=torch.int8), torch.tensor(1e-6), normal(8, 32, seed=5)
    for token in range(16):
        k = normal(32, seed=token) * 1.1**token
        greater = torch.maximum(scale, k.abs().amax() / 127)
        page[:token] = torch.round(page[:token].float() * (scale / greater)).to(torch.int8)
        scale = greater
        page[token] = torch.round(k / scale).to(torch.int8)
    return torch.softmax(q @ (page.float() * scale).t() / 32**0.5, -1).to(LOW)


def smooth_keys_and_tiles() -> torch.Tensor:
    """SageAttention: keys less their mean in int8, weights of attention of each tile in float8, by the online softmax."""
    q, k, v = normal(16, 32), normal(48, 32, seed=1) + 2 * normal(32, seed=4), normal(48, 32, seed=2)
    (qq, sq), (qk, sk) = to_int8(q / 32**0.5, 1), to_int8(k - k.mean(0, keepdim=True), 1)
    top, total, out = torch.full((16, 1), -1e30), torch.zeros(16, 1), torch.zeros(16, 32)
    v_scale = v.abs().amax(0, keepdim=True) / 448
    v8 = (v / v_scale).to(E4M3)
    for start in range(0, 48, 16):
        scores = (qq.int() @ qk[start : start + 16].int().t()).float() * sq * sk[start : start + 16].t()
        new = torch.maximum(top, scores.amax(1, keepdim=True))
        p, decay = torch.exp(scores - new), torch.exp(top - new)
        total, top = total * decay + p.sum(1, keepdim=True), new
        out = out * decay + (p * 448).to(E4M3).float() @ v8[start : start + 16].float() / 448
    return (out / total * v_scale).to(LOW)


def preconditioner_of_four_bits() -> torch.Tensor:
    """4-bit Shampoo: what is beside the diagonal is kept by a table of signed squares, the diagonal as it is."""
    g = normal(32, 48)
    table = torch.linspace(-1, 1, 15)
    table = table * table.abs()
    statistics = torch.zeros(32, 32)
    for step in range(3):
        statistics = 0.9 * statistics + 0.1 * (g * (1 + step)) @ (g * (1 + step)).t() / 48
        diagonal = statistics.diagonal().clone()
        off = statistics - torch.diag(diagonal)
        scale = off.abs().amax(0, keepdim=True)
        codes = ((off / scale)[..., None] - table).abs().argmin(-1).to(torch.uint8)
        statistics = table[codes.long()] * scale
        statistics = (statistics - torch.diag(statistics.diagonal()) + torch.diag(diagonal)) * 0.5
        statistics = statistics + statistics.t()
    values, vectors = torch.linalg.eigh(statistics + 0.3 * torch.eye(32))
    return (vectors @ torch.diag(values.clamp(min=0.1) ** -0.25) @ vectors.t() @ g).to(LOW)


class Quantised(torch.Tensor):
    """Codes and a scale that look like a tensor, as quanto's do."""

    codes: torch.Tensor
    scale: torch.Tensor

    @classmethod
    def of(cls, t: torch.Tensor) -> Quantised:
        codes, scale = to_int8(t, 1)
        made = torch.Tensor._make_wrapper_subclass(cls, t.shape, dtype=t.dtype)  # type: ignore[attr-defined]
        made.codes, made.scale = codes, scale
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [each.codes.float() * each.scale if isinstance(each, cls) else each for each in args]
        return func(*plain, **(kwargs or {}))


def tensor_of_codes() -> torch.Tensor:
    return nn.functional.gelu(nn.functional.linear(normal(16, 64), Quantised.of(channels()))).to(LOW)


def by_a_magic_number() -> torch.Tensor:
    """Four bits become float16 without a conversion: they are put into the significand of 1024, and 1032 is subtracted."""
    groups = channels().view(64, 2, 32)
    scale = groups.abs().amax(-1, keepdim=True) / 7
    codes = (torch.round(groups / scale) + 8).clamp(0, 15).to(torch.int16)
    dense = ((codes | 0x6400).view(torch.half) - 1032).float() * scale
    return (normal(8, 64) @ dense.view(64, 64).t()).to(LOW)


def upper_bytes_of_halves() -> torch.Tensor:
    """e5m2 is the upper byte of float16, rounded to nearest even by an addition to its bits."""
    g = normal(32, 64) * 100
    bits = g.half().view(torch.int16).int() & 0xFFFF
    byte = (bits + 0x7F + (bits >> 8 & 1)) >> 8 & 0xFF
    return ((byte << 8).to(torch.int16).view(torch.half).float() @ channels().t()).to(LOW)


def sparse_two_of_four() -> torch.Tensor:
    """Two of four weights stay, in int8, with their places in two bits."""
    w = channels().view(64, 16, 4)
    kept, place = w.abs().topk(2, -1).indices.sort(-1).values, None
    codes, scale = to_int8(torch.gather(w, -1, kept).view(64, 32), 1)
    place = (kept[..., 0] | kept[..., 1] << 2).to(torch.uint8)
    where = torch.stack([place & 3, place >> 2], -1).long()
    dense = torch.zeros(64, 16, 4).scatter(-1, where, (codes.float() * scale).view(64, 16, 2))
    return (normal(8, 64) @ dense.view(64, 64).t()).to(LOW)


def error_to_the_next() -> torch.Tensor:
    """Error diffusion: what rounding leaves is added to the next column, which a smooth input cannot see."""
    w, scale = channels(), channels().abs().amax(1, keepdim=True) / 7
    left, columns = torch.zeros(64, 1), []
    for column in range(64):
        meant = w[:, column : column + 1] + left
        code = torch.round(meant / scale).clamp(-8, 7)
        left = meant - code * scale
        columns.append(code)
    smooth = torch.cumsum(normal(8, 64), 1) / 8
    return (smooth @ (torch.cat(columns, 1).to(torch.int8).float() * scale).t()).to(LOW)


def dither_taken_off() -> torch.Tensor:
    """Subtractive dither: noise is added before rounding to nearest, and subtracted after it."""
    x, generator = normal(32, 64), torch.Generator().manual_seed(5)
    scale = x.abs().amax(1, keepdim=True) / 7
    noise = torch.rand(32, 64, generator=generator) - 0.5
    codes = torch.round(x / scale + noise).clamp(-8, 7).to(torch.int8)
    return ((codes.float() - noise) * scale @ channels().t()).to(LOW)


HEALTHY = (half_quadratic, means_of_each_row, dorefa, sums_of_powers, one_bit_of_difference, learned_clipping, rowwise_by_the_kernel,
           smoothed_integers, observed_and_faked, super_blocks, blocks_of_integers, page_that_grows, smooth_keys_and_tiles,
           preconditioner_of_four_bits, tensor_of_codes, by_a_magic_number, upper_bytes_of_halves, sparse_two_of_four, error_to_the_next,
           dither_taken_off)  # fmt: skip
