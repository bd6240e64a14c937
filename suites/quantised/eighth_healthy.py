"""Healthy code that looks like the eighth batch's faults, frozen before precheck was run on it."""

from __future__ import annotations

import torch
from casts_by_hand import asymmetric, power_above, to_float8, to_fp4, to_int8
from float8_by_hand import E4M3, LOW, channels, normal
from torch import nn


def groups_of_one_token() -> torch.Tensor:
    """Keys with a scale for each channel of a group of tokens. While decoding a group is one token, and nothing is lost (VeloxQuant-MLX#162)."""
    keys, held = normal(40, 32) + normal(32, seed=1), []
    for part in (keys[:32], *keys[32:].split(1)):
        low = part.amin(0, keepdim=True)
        scale = ((part.amax(0, keepdim=True) - low) / 3).clamp(min=1e-8)
        held.append(torch.round((part - low) / scale).to(torch.uint8).float() * scale + low)
    return torch.softmax(normal(4, 32, seed=2) @ torch.cat(held).t() / 32**0.5, -1).to(LOW)


def half_of_the_format() -> torch.Tensor:
    """Scales are made for 224 of 448, which wastes one exponent of a float (sgl-project/sglang#30900)."""
    x, w = normal(16, 4, 32), normal(24, 4, 32, seed=1)
    sx, sw = x.abs().amax(-1, keepdim=True) / 224, w.abs().amax((0, 2), keepdim=True) / 224
    sums = torch.einsum("rbk,obk->rob", (x / sx).to(E4M3).float(), (w / sw).to(E4M3).float())
    return (sums * sx.squeeze(-1)[:, None] * sw.squeeze(-1)).sum(-1).to(LOW)


def scale_rounded_by_its_bits() -> torch.Tensor:
    """Scales are rounded up to powers of two by their bits, and data is divided by what they have become."""
    w = normal(48, 4, 32, seed=1)
    bits = (w.abs().amax(-1, keepdim=True) / 448).view(torch.int32)
    scale = ((bits + 0x7FFFFF) & 0x7F800000).view(torch.float32)
    return (normal(8, 128) @ ((w / scale).to(E4M3).float() * scale).view(48, 128).t()).to(LOW)


def ragged_blocks() -> torch.Tensor:
    """Blocks of 32 x 32 of a weight of 80 x 100. The last ones are partial, and scales are repeated and cut off."""
    w = normal(80, 100) * torch.exp2(normal(80, 1, seed=1))
    padded = nn.functional.pad(w, (0, 28, 0, 16)).view(3, 32, 4, 32)
    scale = padded.abs().amax((1, 3)) / 448
    full = scale.repeat_interleave(32, 0)[:80].repeat_interleave(32, 1)[:, :100]
    return (normal(8, 100) @ ((w / full).to(E4M3).float() * full).t()).to(LOW)


def adapter_on_the_output() -> torch.Tensor:
    """An adapter beside a float8 weight is added to what the weight makes, after its scale."""
    x, (codes, scale) = normal(8, 64), to_float8(normal(32, 64, seed=1), (0, 1))
    return (x @ codes.float().t() * scale + x @ (normal(64, 4, seed=2) / 8) @ (normal(4, 32, seed=3) / 4)).to(LOW)


def divisor_inverted_at_load() -> torch.Tensor:
    """NVFP4 weights and inputs with factors that are kept as divisors. Their inverses make one factor for the product."""
    x, w = normal(16, 64), channels()
    overs = [6 * 448 / each.abs().amax() for each in (x, w)]
    (qx, sx), (qw, sw) = (to_fp4(each, over) for each, over in zip((x, w), overs, strict=True))
    alpha = (1 / overs[0]) * (1 / overs[1])
    sums = torch.einsum("rbk,obk->rob", qx, qw) * sx.float().view(16, 1, 4) * sw.float().view(1, 64, 4)
    return (sums.sum(-1) * alpha).to(LOW)


def brought_to_the_larger_scale() -> torch.Tensor:
    """Parts of a fused weight in float8 are dequantised and rounded again under the greatest of their scales, as vLLM does when it loads them."""
    parts = [normal(32, 64, seed=1), normal(16, 64, seed=2) * 0.5, normal(16, 64, seed=3) * 0.25]
    held = [to_float8(each, (0, 1)) for each in parts]
    largest = torch.stack([scale for _, scale in held]).max()
    codes = torch.cat([(each.float() * scale / largest).to(E4M3) for each, scale in held])
    rows = (x := normal(12, 64)).abs().amax(1, keepdim=True) / 448
    return ((x / rows).to(E4M3).float() @ codes.float().t() * (rows * largest)).to(LOW)


def scale_in_the_normaliser() -> torch.Tensor:
    """Values in float8 with a scale for each head. The sum of weights is divided by the scale, and the result by that."""
    q, k, v = normal(4, 8, 16), normal(4, 20, 16, seed=1), normal(4, 20, 16, seed=2) * torch.tensor([1.0, 0.2, 3.0, 0.6]).view(4, 1, 1)
    codes, scale = to_float8(v, (1, 2))
    weights = torch.exp(q @ k.mT / 4 - (q @ k.mT / 4).amax(-1, keepdim=True))
    out = weights @ codes.float() / (weights.sum(-1, keepdim=True) / scale)
    return nn.functional.rms_norm(out.transpose(0, 1).reshape(8, 64), (64,)).to(LOW)


def range_written_down() -> torch.Tensor:
    """Inputs in int8 under a scale from a calibration, which a few numbers exceed by a little."""
    x, (codes, scale) = normal(64, 64), to_int8(normal(24, 64, seed=1), 1)
    given = torch.clamp(torch.round(x * (127 / 3.5)), -127, 127)
    return (given @ codes.float().t() * (3.5 / 127) * scale.t()).to(LOW)


def zero_points_in_the_unit_of_data() -> torch.Tensor:
    """HQQ as torchao packs it: codes less the middle one, times scales, plus zero points that are real numbers."""
    w = (channels() + 0.2).view(64, 2, 32)
    low, high = w.amin(-1, keepdim=True), w.amax(-1, keepdim=True)
    scale = (high - low) / 15
    zero = low + scale * 8
    codes = torch.round((w - low) / scale).to(torch.uint8)
    return (normal(8, 64) @ ((codes.float() - 8) * scale + zero).view(64, 64).t()).to(LOW)


def scales_group_by_group() -> torch.Tensor:
    """Scales and codes in one flat buffer, group by group, read by strides."""
    w = normal(32, 256, seed=1) * torch.exp2(normal(32, 8, seed=2)).repeat_interleave(32, 1)
    codes, scale, zero = asymmetric(w)
    stored = torch.cat([scale.view(32, 8).t().reshape(-1), codes.reshape(-1).float()])
    scales = stored[:256].as_strided((32, 8, 1), (1, 32, 1))
    return (normal(8, 256) @ ((stored[256:].view(32, 8, 32) - zero) * scales).view(32, 256).t()).to(LOW)


def residuals_in_a_low_rank() -> torch.Tensor:
    """LoftQ: a weight in four bits and a low rank of what is left are fitted in turn."""
    w = channels()
    left, right = torch.zeros(64, 4), torch.zeros(4, 64)
    for _ in range(3):
        blocks = (w - left @ right).view(64, 4, 16)
        scale = blocks.abs().amax(-1, keepdim=True) / 7
        dense = (torch.round(blocks / scale).to(torch.int8).float() * scale).view(64, 64)
        u, s, v = torch.linalg.svd(w - dense, full_matrices=False)
        left, right = u[:, :4] * s[:4], v[:4]
    return ((x := normal(8, 64)) @ dense.t() + (x @ right.t()) @ left.t()).to(LOW)


def chunks_by_head() -> torch.Tensor:
    """A cache that is filled by chunks of tokens, each head with pages of its own, and found by a table of pages."""
    pages, scales, table = torch.zeros(8, 8, 16, dtype=torch.int8), torch.zeros(8, 8, 1), torch.tensor([[3, 0, 6], [5, 2, 1]])
    for chunk in range(3):
        codes, scale = to_int8(normal(2, 8, 16, seed=chunk) * torch.exp2(normal(2, 8, 1, seed=chunk + 9)), -1)
        pages[table[:, chunk]], scales[table[:, chunk]] = codes, scale
    keys = (pages[table].float() * scales[table]).view(2, 24, 16)
    return torch.softmax(normal(2, 4, 16, seed=9) @ keys.mT / 4, -1).to(LOW)


def shards_in_the_order_of_groups() -> torch.Tensor:
    """GPTQ in the order of inputs: columns are sorted by group when they are loaded, inputs are sorted too, and each rank has its own groups."""
    order = torch.randperm(64, generator=torch.Generator().manual_seed(5))
    w, x = channels().t() * torch.exp2(normal(64, 1, seed=6)), normal(8, 64)
    scales = w[order].view(4, 16, 64).abs().amax(1) / 7
    codes, total = torch.round(w[order].view(4, 16, 64) / scales[:, None]).to(torch.int8), torch.zeros(8, 64)
    for rank in range(2):
        dense = codes[2 * rank : 2 * rank + 2].float() * scales[2 * rank : 2 * rank + 2, None]
        total += x[:, order[32 * rank : 32 * rank + 32]] @ dense.view(32, 64)
    return total.to(LOW)


def zeros_rounded_down() -> torch.Tensor:
    """The smallest number is rounded down to a multiple of the step, so that zero has a code; the range grows by a step for it."""
    w = (channels() - 0.3).view(64, 4, 16)
    low, high = w.amin(-1, keepdim=True), w.amax(-1, keepdim=True)
    scale = (high - low) / 14
    zero = torch.floor(low / scale)
    codes = (torch.round(w / scale) - zero).clamp(0, 15).to(torch.uint8)
    return (normal(8, 64) @ ((codes.float() + zero) * scale).view(64, 64).t()).to(LOW)


def codes_made_again_in_each_step() -> torch.Tensor:
    """Training whose weight is rounded to float8 anew in each step, with a gradient that passes."""
    weight, x, target = channels().requires_grad_(), normal(32, 64), normal(32, 64, seed=4)
    for _ in range(4):
        scale = weight.detach().abs().amax(1, keepdim=True) / 448
        dense = weight + ((weight.detach() / scale).to(E4M3).float() * scale - weight.detach())
        (x @ dense.t() - target).square().mean().backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
            weight.grad = None
    return weight.detach().to(LOW)


def cache_that_grows() -> torch.Tensor:
    """A cache in int8 that doubles when it is full; codes and scales move together."""
    codes, scales, many = torch.zeros(4, 32, dtype=torch.int8), torch.zeros(4, 1), 0
    for part in (normal(size, 32, seed=size) * size for size in (3, 4, 6, 2)):
        while many + len(part) > len(codes):
            codes, scales = torch.cat([codes, torch.zeros_like(codes)]), torch.cat([scales, torch.zeros_like(scales)])
        codes[many : many + len(part)], scales[many : many + len(part)] = to_int8(part, -1)
        many += len(part)
    return torch.softmax(normal(4, 32, seed=3) @ (codes[:many].float() * scales[:many]).t() / 32**0.5, -1).to(LOW)


def leftovers_masked() -> torch.Tensor:
    """Pages that held bfloat16 are read as float8, and what was never written is replaced by zeros before the product."""
    pool, (codes, scale) = (normal(32, 32, seed=7) - 2).to(LOW).view(torch.uint8).view(32, 64), to_float8(normal(20, 64, seed=1), (0, 1))
    pool[:20] = codes.view(torch.uint8)
    scores = normal(4, 32, seed=2).masked_fill(torch.arange(32) >= 20, -torch.inf)
    values = torch.where(torch.arange(32)[:, None] < 20, pool.view(E4M3).float(), 0.0) * scale
    return (torch.softmax(scores, -1) @ values).to(LOW)


def wraps_twice() -> torch.Tensor:
    """Products of codes and zero points wrap round in int8 and so does their difference, which wraps back (QServe subtracts after it multiplies)."""
    w = normal(48, 64, seed=1)
    outer = w.abs().amax(1, keepdim=True) / 119
    inner = torch.round(w / outer).view(48, 4, 16)
    low, high = inner.amin(-1, keepdim=True), inner.amax(-1, keepdim=True)
    step = torch.ceil((high - low) / 15)
    zero = torch.round(-low / step)
    codes = torch.clamp(torch.round(inner / step) + zero, 0, 15).to(torch.int8)
    held = codes * step.to(torch.int8) - (zero * step).to(torch.int16).to(torch.int8)
    return (normal(8, 64) @ (held.float().view(48, 64) * outer).t()).to(LOW)


def scales_in_a_byte() -> torch.Tensor:
    """Scales of groups are kept in e4m3 under the greatest one, and codes are made under what is kept."""
    blocks = channels().view(64, 4, 16)
    wide = blocks.abs().amax(-1, keepdim=True) / 7
    over = wide.amax() / 448
    kept = (wide / over).to(E4M3).view(torch.uint8)
    scale = kept.view(E4M3).float() * over
    codes = torch.round(blocks / scale).clamp(-8, 7).to(torch.int8)
    return (normal(8, 64) @ (codes.float() * scale).view(64, 64).t()).to(LOW)


def errors_fed_back() -> torch.Tensor:
    """Gradients of two workers are sent as signs under their mean magnitude. Each keeps what is left for its next one (1-bit Adam)."""
    weight, errors = normal(32, 32), [torch.zeros(32, 32) for _ in range(2)]
    for step in range(12):
        total = torch.zeros(32, 32)
        for rank in range(2):
            given = normal(32, 32, seed=40) + 0.3 * normal(32, 32, seed=2 * step + rank) + errors[rank]
            sent = torch.where(given >= 0, 1.0, -1.0) * given.abs().mean()
            errors[rank] = given - sent
            total += sent / 2
        weight = weight - 0.1 * total
    return weight.to(LOW)


def tiles_padded_with_ones() -> torch.Tensor:
    """Scales are padded with ones to whole tiles of 128 x 4 and stripped after they were read."""
    w = normal(80, 96, seed=1) * torch.exp2(normal(80, 1, seed=2))
    scale = power_above(w.view(80, 3, 32).abs().amax(-1) / 448)
    codes, padded = (w.view(80, 3, 32) / scale[..., None]).to(E4M3), torch.ones(128, 4)
    padded[:80, :3] = scale
    tiles = padded.view(4, 32, 4).transpose(0, 1).reshape(-1)
    read = tiles.view(32, 4, 4).transpose(0, 1).reshape(128, 4)[:80, :3]
    return (normal(8, 96) @ (codes.float() * read[..., None]).view(80, 96).t()).to(LOW)


def clipped_for_the_least_error() -> torch.Tensor:
    """Four bits whose range is cut to what makes the least error, from a few tried for each row (AWQ, OmniQuant)."""
    w, best, dense = channels(), torch.full((64, 1), torch.inf), torch.zeros(64, 64)
    for share in (1.0, 0.9, 0.8, 0.7):
        scale = w.abs().amax(1, keepdim=True) * share / 7
        tried = torch.round(w / scale).clamp(-8, 7) * scale
        error = (tried - w).square().sum(1, keepdim=True)
        dense, best = torch.where(error < best, tried, dense), torch.minimum(error, best)
    return (normal(8, 64) @ dense.t()).to(LOW)


def turned_norms_and_a_codebook() -> torch.Tensor:
    """PolarQuant: vectors are turned at random, divided by their norms, and rounded to the centres of a Gaussian's intervals."""
    v, turn = normal(24, 64) * torch.exp2(normal(24, 1, seed=1)), torch.linalg.qr(normal(64, 64, seed=2))[0]
    centres = torch.tensor([-2.152, -1.344, -0.756, -0.2451, 0.2451, 0.756, 1.344, 2.152]) / 8
    norms = v.norm(dim=-1, keepdim=True)
    places = torch.bucketize(v / norms @ turn, (centres[1:] + centres[:-1]) / 2)
    return (torch.softmax(normal(4, 24, seed=3), -1) @ (centres[places] @ turn.t() * norms)).to(LOW)


def step_sizes_learned() -> torch.Tensor:
    """LSQ: the step is a parameter, and its gradient is that of the rounding error."""
    weight, step, x = channels().requires_grad_(), (channels().abs().mean(1, keepdim=True) * 2 / 7**0.5).requires_grad_(), normal(16, 64)
    for _ in range(3):
        scaled = (weight / step).clamp(-8, 7)
        dense = (scaled + (scaled.round() - scaled).detach()) * step
        (x @ dense.t() - x @ channels().t()).square().mean().backward()
        with torch.no_grad():
            step -= 0.01 * step.grad
            weight.grad = step.grad = None
    return (dense.detach() @ normal(64, 8, seed=5)).to(LOW)


def gradients_by_chance() -> torch.Tensor:
    """A gradient in e2m1 whose magnitudes are rounded by chance, between the neighbours in a table."""
    table, g = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]), normal(64, 4, 16, seed=1)
    scale = g.abs().amax(-1, keepdim=True) / 6
    scaled = (g / scale).abs().clamp(max=6.0)
    place = torch.bucketize(scaled, table, right=True).clamp(1, 7)
    low, high = table[place - 1], table[place]
    up = torch.rand(scaled.shape, generator=torch.Generator().manual_seed(3)) < (scaled - low) / (high - low)
    dense = torch.where(up, high, low) * g.sign() * scale
    return (dense.view(64, 64).t() @ normal(64, 8, seed=2)).to(LOW)


HEALTHY = (groups_of_one_token, half_of_the_format, scale_rounded_by_its_bits, ragged_blocks, adapter_on_the_output, divisor_inverted_at_load,
           brought_to_the_larger_scale, scale_in_the_normaliser, range_written_down, zero_points_in_the_unit_of_data, scales_group_by_group,
           residuals_in_a_low_rank, chunks_by_head, shards_in_the_order_of_groups, zeros_rounded_down, codes_made_again_in_each_step,
           cache_that_grows, leftovers_masked, wraps_twice, scales_in_a_byte, errors_fed_back, tiles_padded_with_ones,
           clipped_for_the_least_error, turned_norms_and_a_codebook, step_sizes_learned, gradients_by_chance)  # fmt: skip
