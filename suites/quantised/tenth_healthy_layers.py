"""Healthy code that looks like the faults of `tenth_layers`, frozen before precheck was run on it."""

from __future__ import annotations

import torch
from blocks_by_hand import hadamard
from float8_by_hand import LOW, channels, normal
from ninth_layers import signs
from tenth_layers import GAUSSIAN
from torch import nn


class LearnedStep(torch.autograd.Function):
    """LSQ by its formulas: the gradient of the step is that of the rounding error, or of the border."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor, step: torch.Tensor, low: int, high: int) -> torch.Tensor:
        ctx.save_for_backward(x / step)
        ctx.borders = low, high  # type: ignore[attr-defined]
        return torch.round(x / step).clamp(low, high) * step

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        (scaled,) = ctx.saved_tensors  # type: ignore[attr-defined]
        low, high = ctx.borders  # type: ignore[attr-defined]
        inside = (scaled >= low) & (scaled <= high)
        of_step = torch.where(inside, torch.round(scaled) - scaled, scaled.clamp(low, high))
        return g * inside, (g * of_step).sum() / (scaled.numel() * high) ** 0.5, None, None


def steps_learned() -> torch.Tensor:
    """A layer of four bits, whose steps of weights and inputs are learned for 15 steps."""
    x, target = normal(64, 32).relu(), normal(64, 16, seed=4)
    w = (normal(16, 32, seed=1) / 6).requires_grad_()
    steps = [torch.tensor(float(2 * t.detach().abs().mean() / high**0.5), requires_grad=True) for t, high in ((w, 7), (x, 15))]
    optimizer = torch.optim.SGD([w, *steps], lr=0.05)
    for _ in range(15):
        optimizer.zero_grad()
        y = LearnedStep.apply(x, steps[1], 0, 15) @ LearnedStep.apply(w, steps[0], -8, 7).t()  # type: ignore[no-untyped-call]
        (y - target).square().mean().backward()
        optimizer.step()
    return y.detach().to(LOW)


def offset_learned() -> torch.Tensor:
    """LSQ+: an offset is subtracted before rounding and added after it, and both parameters are trained."""
    x, w = nn.functional.silu(normal(64, 32)), normal(32, 16, seed=1)
    beta = torch.tensor(float(x.amin()), requires_grad=True)
    step = torch.tensor(float((x.amax() - x.amin()) / 15), requires_grad=True)
    optimizer = torch.optim.Adam([beta, step], lr=1e-3)
    for _ in range(5):
        optimizer.zero_grad()
        scaled = ((x - beta) / step).clamp(0, 15)
        back = (scaled + (scaled.round() - scaled).detach()) * step + beta
        (back - x).square().mean().backward()
        optimizer.step()
    return nn.functional.layer_norm(back.detach() @ w, (16,)).to(LOW)


def norm_folded_while_training() -> torch.Tensor:
    """A BatchNorm is folded into the weight before it is rounded, in each step anew, and gradients pass the rounding."""
    conv, norm = nn.Conv2d(8, 12, 3, bias=False), nn.BatchNorm2d(12)
    with torch.no_grad():
        conv.weight.copy_(normal(12, 8, 3, 3, seed=1) / 8)
        norm.weight.copy_(normal(12, seed=3))
    optimizer = torch.optim.SGD([*conv.parameters(), *norm.parameters()], lr=0.05)
    for step in range(4):
        x = normal(4, 8, 8, 8, seed=10 + step)
        made = conv(x)
        mean, var = made.mean((0, 2, 3)), made.var((0, 2, 3), unbiased=False)
        gain = norm.weight / torch.sqrt(var + norm.eps)
        folded = conv.weight * gain.view(-1, 1, 1, 1)
        scale = folded.detach().abs().amax((1, 2, 3), keepdim=True) / 127
        rounded = folded + (torch.round(folded / scale).clamp(-128, 127) * scale - folded).detach()
        y = nn.functional.conv2d(x, rounded, norm.bias - mean * gain).relu()
        optimizer.zero_grad()
        (y - 1).square().mean().backward()
        optimizer.step()
    return y.detach().to(LOW)


def signs_with_their_errors() -> torch.Tensor:
    """Signs under the mean magnitude of those that are not zero; what is left is added to the next gradient."""
    table, error, used = normal(32, 16), torch.zeros(32, 16), torch.arange(32)[:, None] % 4 == 0
    for step in range(6):
        given = torch.where(used, normal(32, 16, seed=step) + error, 0.0)
        scale = given.abs().sum() / used.sum() / 16
        sent = torch.sign(given) * scale
        error = given - sent
        table = table - 0.3 * sent
    return table.to(LOW)


def rest_kept_for_later() -> torch.Tensor:
    """The greatest eighth of a gradient is sent as half floats, with momentum before it. What was sent is emptied in both (DGC)."""
    weight, momentum, kept = normal(512), torch.zeros(512), torch.zeros(512)
    for step in range(8):
        momentum = 0.9 * momentum + normal(512, seed=step + 1)
        kept = kept + momentum
        places = kept.abs().topk(64).indices
        values = kept[places].half()
        mask = torch.ones(512).index_fill(0, places, 0)
        kept, momentum = kept * mask, momentum * mask
        weight = weight.index_add(0, places, values.float(), alpha=-0.1)
    return weight.to(LOW)


def codes_of_nine_bits() -> torch.Tensor:
    """Product quantisation: four parts of a vector, each with 512 centres; four codes of nine bits in five bytes."""
    x, books = normal(64, 4, 4), normal(4, 512, 4, seed=5)
    codes = torch.stack([torch.cdist(x[:, part], books[part]).argmin(1) for part in range(4)], 1)
    bits = (codes[..., None] >> torch.arange(9) & 1).view(64, 36)
    packed = (nn.functional.pad(bits, (0, 4)).view(64, 5, 8) << torch.arange(8)).sum(-1).to(torch.uint8)
    whole = (packed[..., None].long() >> torch.arange(8) & 1).view(64, 40)[:, :36].view(64, 4, 9)
    read = (whole << torch.arange(9)).sum(-1)
    back = torch.cat([books[part][read[:, part]] for part in range(4)], 1)
    return (back @ normal(16, 16, seed=9)).to(LOW)


def signs_before_the_turn() -> torch.Tensor:
    """Keys with a mean are flipped at random and turned, so that they look Gaussian; norms are kept beside centres of intervals."""
    k = 2 + normal(32, 64) * 0.3
    turn, flip = hadamard(64), signs(64, 3)
    norms = k.norm(dim=1, keepdim=True)
    unit = (k / norms * flip) @ turn * 8
    codes = torch.bucketize(unit, (GAUSSIAN[1:] + GAUSSIAN[:-1]) / 2).to(torch.uint8)
    back = GAUSSIAN[codes.int()] / 8 * norms @ turn.t() * flip
    return torch.softmax(normal(8, 64, seed=7) @ back.t() / 8, -1).to(LOW)


def branches_requantised() -> torch.Tensor:
    """Two branches in int8 are joined: the codes of the one with smaller numbers are brought to the scale of both by a multiplier."""
    x = normal(2, 8, 6, 6)
    a, b = nn.functional.conv2d(x, normal(6, 8, 1, 1, seed=1)).relu(), nn.functional.conv2d(x, normal(6, 8, 1, 1, seed=2) / 2).relu()
    sa, sb = a.amax() / 127, b.amax() / 127
    both = torch.maximum(sa, sb)
    parts = [torch.round(torch.round(t / s).to(torch.int8).float() * (s / both)).to(torch.int8) for t, s in ((a, sa), (b, sb))]
    y = nn.functional.conv2d(torch.cat(parts, 1).float(), normal(4, 12, 1, 1, seed=3)) * both
    return nn.functional.gelu(y).to(LOW)


def values_smoothed_for_the_output() -> torch.Tensor:
    """AWQ with two heads of values for four of queries: the factors of heads that share values are equal."""
    x, wq, wk, wv = (normal(n, 64, seed=seed) / (8 if seed else 1) for seed, n in enumerate((24, 64, 32, 32)))
    out = normal(64, 64, seed=9) / 8
    factor = (x @ wv.t()).abs().mean(0).pow(0.5) * torch.exp2(normal(32, seed=3))
    spread = factor.view(2, 1, 16).expand(2, 2, 16).reshape(64)
    scaled = (out * spread).view(64, 4, 16)
    step = scaled.abs().amax(-1, keepdim=True) / 7
    dense = (torch.round(scaled / step) * step).view(64, 64)
    q = (x @ wq.t()).view(24, 4, 16).transpose(0, 1)
    k, v = ((x @ t.t()).view(24, 2, 16).transpose(0, 1).repeat_interleave(2, 0) for t in (wk, wv / factor[:, None]))
    y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(24, 64)
    return (y @ dense.t()).to(LOW)


def rows_with_halves_behind() -> torch.Tensor:
    """Rows of an embedding in four bits, two a byte, behind which follow scale and lowest number as float16; weighted bags (FBGEMM)."""
    table, bags, weights = normal(40, 16) * torch.exp2(normal(40, 1, seed=1)), torch.arange(24).view(6, 4) * 7 % 40, normal(6, 4, 1, seed=2).abs()
    low = table.amin(1, keepdim=True).half()
    scale = ((table.amax(1, keepdim=True) - low.float()) / 15).half()
    codes = torch.round((table - low.float()) / scale.float()).clamp(0, 15).to(torch.uint8)
    fused = torch.cat([codes[:, 0::2] | codes[:, 1::2] << 4, scale.view(torch.uint8), low.view(torch.uint8)], 1)
    rows = fused[bags]
    tail = rows[..., 8:].contiguous().view(torch.float16).float()
    read = torch.stack([rows[..., :8] & 15, rows[..., :8] >> 4], -1).flatten(-2)
    return ((read.float() * tail[..., :1] + tail[..., 1:]) * weights).sum(1).to(LOW)


def powers_of_two_of_weights() -> torch.Tensor:
    """DeepShift: weights as a sign and a power of two in four bits, with the smallest of them for what is below."""
    w, x = normal(32, 64, seed=1) / 8, normal(8, 64)
    top = torch.ceil(torch.log2(w.abs().amax()))
    power = torch.round(torch.log2(w.abs().clamp(min=1e-9))).clamp(top - 14, top)
    codes = (top - power).to(torch.uint8)
    return (x @ (torch.sign(w) * torch.exp2(top - codes.float())).t()).to(LOW)


def two_maps_for_two_moments() -> torch.Tensor:
    """Adam in eight bits by blocks of 32: the first moment in a table with signs, the second one in a table without."""
    exponents = 10.0 ** -torch.linspace(0, 6, 127)
    unsigned = torch.cat([torch.zeros(1), torch.sort(10.0 ** -torch.linspace(0, 7, 255)).values])
    signed = torch.sort(torch.cat([torch.zeros(2), exponents, -exponents])).values
    w, held = normal(16, 64), {}
    for step in range(1, 6):
        g, moments = normal(16, 64, seed=step) * torch.exp2(normal(1, 64, seed=9)), []
        for name, table, beta, given in (("m", signed, 0.9, g), ("v", unsigned, 0.99, g * g)):
            before = table[held[name][0].int()] * held[name][1] if name in held else torch.zeros(32, 32)
            after = beta * before + (1 - beta) * given.view(32, 32)
            top = after.abs().amax(1, keepdim=True)
            held[name] = torch.bucketize(after / top, (table[1:] + table[:-1]) / 2).to(torch.uint8), top
            moments.append(after.view(16, 64) / (1 - beta**step))
        w = w - 0.01 * moments[0] / (moments[1].sqrt() + 1e-8)
    return w.to(LOW)


def chance_by_floor() -> torch.Tensor:
    """A weight in int8 is trained: the update is added in float32, and a random number from 0 to 1 before the floor."""
    w = channels()
    scale = w.abs().amax(1, keepdim=True) / 100
    codes, generator = torch.round(w / scale).to(torch.int8), torch.Generator().manual_seed(3)
    for step in range(6):
        x = normal(8, 64, seed=step)
        gradient = (x @ (codes.float() * scale).t()).t() @ x
        moved = codes.float() * scale - 0.0003 * gradient
        scaled = moved / scale
        low = torch.floor(scaled)
        codes = (low + (torch.rand(64, 64, generator=generator) < scaled - low)).clamp(-128, 127).to(torch.int8)
    return (normal(8, 64) @ (codes.float() * scale).t()).to(LOW)


HEALTHY = (steps_learned, offset_learned, norm_folded_while_training, signs_with_their_errors, rest_kept_for_later, codes_of_nine_bits,
           signs_before_the_turn, branches_requantised, values_smoothed_for_the_output, rows_with_halves_behind, powers_of_two_of_weights,
           two_maps_for_two_moments, chance_by_floor)  # fmt: skip
