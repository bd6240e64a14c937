"""A sixth batch of recipes written by hand, after faults that were reported in public; frozen before precheck was run on them.

Each takes `bug`; a line at fault ends in `# culprit: name`.
"""

from __future__ import annotations

import torch
from float8_by_hand import E4M3, E5M2, LOW, channels, normal
from torch import nn

HEAD, TAIL = -0x800000, 0x7FFFFF
"""The bits of a float32 above its significand, and those of its significand."""


def drawn(bits: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 1 << bits, (64, 64), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)


def shrunk_twice(bug: bool) -> torch.Tensor:
    """Data is multiplied by the scale that dequantises, and the product is multiplied by it again (meta-pytorch/tritonbench#1145)."""
    x, w = normal(16, 64), channels()
    sx, sw = (448 / x.abs().amax()).reciprocal(), (448 / w.abs().amax(1, keepdim=True)).reciprocal()
    qx, qw = (x * sx, w * sw) if bug else (x / sx, w / sw)
    y = qx.to(E4M3).float() @ qw.to(E4M3).float().t()  # culprit: shrunk-twice
    return (y * sx * sw.t()).to(LOW)  # culprit: shrunk-twice


def rounded_after_quantising(bug: bool) -> torch.Tensor:
    """Codes are made under a scale that is rounded up to a power of two after it (sgl-project/sglang#28418, huggingface/transformers#46763)."""
    blocks = channels().view(64, 2, 32)
    exact = blocks.abs().amax(-1, keepdim=True) / 448
    power = torch.exp2(torch.ceil(torch.log2(exact)))
    codes = (blocks / (exact if bug else power)).to(E4M3)  # culprit: rounded-after
    weight = codes.float() * power  # culprit: rounded-after
    return (normal(8, 64) @ weight.view(64, 64).t()).to(LOW)


def fused_and_read_apart(bug: bool) -> torch.Tensor:
    """Queries, keys and values are quantised under one scale and dequantised each under its own (1bit-MONSTER/1bit-MONSTER#33)."""
    parts = [normal(32, 64, seed=place + 1) * size for place, size in enumerate((1.0, 0.4, 0.15))]
    scales = torch.stack([part.abs().amax() / 127 for part in parts]).repeat_interleave(32)[:, None]
    fused = torch.cat(parts)
    codes = torch.round(fused / (fused.abs().amax() / 127 if bug else scales)).to(torch.int8)
    weight = codes.float() * scales  # culprit: fused-and-read-apart
    q, k, v = (normal(16, 64) @ weight.t()).chunk(3, -1)
    return (torch.softmax(q @ k.t() / 64, -1) @ v).to(LOW)


def scale_of_one_head(bug: bool) -> torch.Tensor:
    """Values have a scale for each head. The epilogue reads one number (sgl-project/sgl-kernel-xpu#252)."""
    q, k, v = normal(4, 16, 32), normal(4, 16, 32, seed=1), normal(4, 16, 32, seed=2) * torch.tensor([1.0, 0.2, 3.0, 0.6]).view(4, 1, 1)
    scale = v.abs().amax((1, 2), keepdim=True) / 448
    codes = (v / scale).to(E4M3)
    mixed = torch.softmax(q @ k.transpose(1, 2) / 32**0.5, -1) @ codes.float()
    heads = mixed * (scale[0] if bug else scale)  # culprit: scale-of-one-head
    return (heads.transpose(0, 1).reshape(16, 128) @ normal(128, 32, seed=3)).to(LOW)


def junk_in_the_workspace(bug: bool) -> torch.Tensor:
    """A buffer is as wide as the widest layer. The scale is made of all of it, with what a layer before has left (kekzl/imp#91)."""
    work = normal(16, 128) * 60
    work[:, :64] = normal(16, 64, seed=1)
    keys = work[:, :64]
    scale = (work if bug else keys).abs().amax() / 127  # culprit: junk-in-the-workspace
    codes = torch.round(keys / scale).to(torch.int8)  # culprit: junk-in-the-workspace
    return torch.softmax(normal(8, 64, seed=2) @ (codes.float() * scale).t() / 8, -1).to(LOW)


def random_bits_too_low(bug: bool) -> torch.Tensor:
    """Rounding by chance to e5m2: random bits start five places below those that are cut off, and hardly ever carry (uxlfoundation/oneDNN#2903)."""
    g, total = normal(64, 64), torch.zeros(64, 64)
    for step in range(16):
        noise = drawn(21, step + 5)
        bits = g.view(torch.int32) + (noise >> 5 if bug else noise)
        kept = (bits & -(1 << 21)).view(torch.float32)  # culprit: random-bits-too-low
        total = total + kept.to(E5M2).float()  # culprit: random-bits-too-low
    return (total / 16).to(LOW)


def carry_discarded(bug: bool) -> torch.Tensor:
    """Rounding by chance to e4m3: noise is added to the significand, and its carry into the exponent is masked away (ROCm/llvm-project#3275)."""
    g = normal(64, 64)
    by = 448 / g.abs().amax()
    bits = (g * by).view(torch.int32)
    significand = (bits & TAIL) + drawn(20, 3)
    significand = significand & TAIL if bug else significand  # culprit: carry-discarded
    kept = ((bits & HEAD) + significand) & -(1 << 20)
    codes = kept.view(torch.float32).to(E4M3)  # culprit: carry-discarded
    return ((codes.float() / by) @ normal(64, 16, seed=1)).to(LOW)


def adapter_under_the_old_scale(bug: bool) -> torch.Tensor:
    """An adapter is merged into a weight of four bits, which keeps the scale that it had (huggingface/peft#1370)."""
    w, delta = channels(), normal(64, 4, seed=5) @ normal(4, 64, seed=6) / 2
    scale = w.abs().amax(1, keepdim=True) / 7
    merged = torch.round(w / scale) * scale + delta
    scale = scale if bug else merged.abs().amax(1, keepdim=True) / 7
    codes = torch.round(merged / scale).clamp(-8, 7)  # culprit: old-scale
    return (normal(8, 64) @ (codes * scale).t()).to(LOW)


class Experts(nn.Module):
    """Two experts in int8 behind a norm, whose weight is divided by what theirs are multiplied by. The router reads it too."""

    def __init__(self, bug: bool) -> None:
        super().__init__()
        norm, router, experts = torch.exp2(2 * normal(64, seed=1)), normal(2, 64, seed=2) / 16, normal(2, 32, 64, seed=3) / 8
        smooth = norm.sqrt()
        self.norm, self.router = nn.Parameter(norm / smooth), nn.Parameter(router if bug else router * smooth)
        weight = experts * smooth
        scale = weight.abs().amax(-1, keepdim=True) / 127
        self.register_buffer("codes", torch.round(weight / scale).to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.norm
        chosen = torch.softmax(h @ self.router.t(), -1)  # culprit: router-not-smoothed
        given = h.abs().amax(-1, keepdim=True) / 127
        y = torch.round(h / given) @ self.codes.float().transpose(1, 2) * given * self.scale.transpose(1, 2)
        return (y * chosen.t()[..., None]).sum(0).to(LOW)  # culprit: router-not-smoothed


def router_not_smoothed(bug: bool) -> torch.Tensor:
    """A norm is smoothed for the experts, and one of its readers is forgotten (vllm-project/llm-compressor#1455, kekzl/imp#1162)."""
    return Experts(bug)(normal(16, 64)).detach()


def one_step_low(bug: bool) -> torch.Tensor:
    """e8m0 scales of e2m3: magnitude and largest number are rounded to powers of two apart, one step too low for most blocks (ROCm/FlyDSL#590)."""
    blocks = channels().view(64, 2, 32)
    greatest = blocks.abs().amax(-1, keepdim=True)
    apart = torch.round(torch.log2(greatest)) - 3
    scale = torch.exp2(apart if bug else torch.ceil(torch.log2(greatest / 7.5)))
    size = (blocks / scale).abs()
    step = torch.exp2(torch.floor(torch.log2(size.clamp(min=1.0))) - 3)
    codes = (torch.round(size / step) * step).clamp(max=7.5) * blocks.sign()  # culprit: one-step-low
    return (normal(8, 64) @ (codes * scale).view(64, 64).t()).to(LOW)


def saturates_too_early(bug: bool) -> torch.Tensor:
    """e4m3 by its bits: all numbers of the last exponent become the largest one, though seven of them are finite (sgl-project/sglang#40581)."""
    w = channels()
    scale = w.abs().amax(1, keepdim=True) / 448
    size = (w / scale).abs()
    exponent = (size.view(torch.int32) >> 23) - 127 + 7
    step = torch.exp2(exponent.clamp(min=1).float() - 10)
    held = torch.round(size / step) * step
    held = torch.where(exponent >= 15, 448.0, held) if bug else held.clamp(max=448)  # culprit: saturates-too-early
    return (normal(8, 64) @ (held * w.sign() * scale).t()).to(LOW)


def padded_with_zero(bug: bool) -> torch.Tensor:
    """A convolution in uint8: codes are padded with 0, which is not the code of zero (apache/tvm#4807, pytorch/executorch#13576)."""
    x, w = normal(2, 8, 10, 10), normal(16, 8, 3, 3, seed=1)
    scale = (x.amax() - x.amin()) / 255
    zero = torch.round(-x.amin() / scale)
    codes = (torch.round(x / scale) + zero).clamp(0, 255)
    padded = nn.functional.pad(codes, (1, 1, 1, 1), value=0.0 if bug else float(zero))
    sw = w.abs().amax((1, 2, 3), keepdim=True) / 127
    y = nn.functional.conv2d(padded - zero, torch.round(w / sw))  # culprit: padded-with-zero
    return (y * scale * sw.view(16, 1, 1)).to(LOW)  # culprit: padded-with-zero


def slots_left_empty(bug: bool) -> torch.Tensor:
    """Three fused projections have a slot each for their scale. The loader fills the first one (vllm-project/vllm#38517)."""
    slots, parts = torch.zeros(3), []
    for place in range(3):
        part = normal(32, 64, seed=place + 1) * 0.5**place
        scale = part.abs().amax() / 448
        parts.append((part / scale).to(E4M3))
        if place == 0 or not bug:
            slots[place] = scale
    weight = torch.cat(parts).float() * slots.repeat_interleave(32)[:, None]  # culprit: slots-left-empty
    return (normal(8, 64) @ weight.t() + normal(96, seed=7)).to(LOW)


def sums_cast_to_int8(bug: bool) -> torch.Tensor:
    """A residual is added in int32 and cast to int8, without being quantised again (apache/tvm#15529)."""
    a, b = normal(16, 64).relu(), normal(16, 64, seed=1).relu()
    scale = torch.maximum(a.amax(), b.amax()) / 127
    total = torch.round(a / scale).to(torch.int32) + torch.round(b / scale).to(torch.int32)
    after = scale if bug else total.amax() * scale / 127
    codes = total.to(torch.int8) if bug else torch.round(total * (scale / after)).to(torch.int8)  # culprit: sums-cast
    return (codes.float() * after @ normal(64, 16, seed=2)).to(LOW)  # culprit: sums-cast


def range_without_zero(bug: bool) -> torch.Tensor:
    """Variances from 2 to 4 in uint8: the range does not hold zero, so that the zero point is clamped (Samsung/TICO#634)."""
    v = 3 + 0.3 * normal(16, 64)
    low, high = v.amin(), v.amax()
    low = low if bug else low.clamp(max=0)
    scale = (high - low) / 255
    zero = torch.round(-low / scale).clamp(0, 255)
    codes = (torch.round(v / scale) + zero).clamp(0, 255)  # culprit: range-without-zero
    return (normal(16, 64, seed=1) * torch.rsqrt((codes - zero) * scale + 1e-6)).to(LOW)  # culprit: range-without-zero


def half_a_block(bug: bool) -> torch.Tensor:
    """Four shards of 16 rows in blocks of 32: offsets in the table of scales are rounded up, and two shards share a row (vllm-project/vllm#52997)."""
    shards = [normal(16, 64, seed=place + 1) * 3.0 ** (-place) for place in range(4)]
    places = [(16 * place + 31) // 32 if bug else place for place in range(4)]
    table, parts = torch.zeros(4, 2), []
    for place, shard in zip(places, shards, strict=True):
        blocks = shard.view(16, 2, 32)
        scale = blocks.abs().amax((0, 2)) / 448
        table[place] = scale
        parts.append((blocks / scale[:, None]).to(E4M3))
    weight = torch.cat(parts).float() * table[places].repeat_interleave(16, 0)[..., None]  # culprit: half-a-block
    return (normal(8, 64) @ weight.view(64, 64).t() + normal(64, seed=9)).to(LOW)


def probabilities_flushed(bug: bool) -> torch.Tensor:
    """Attention to a first token and 2047 others. Small weights become zero in e4m3, and the sum of weights has them (ROCm/FlyDSL#1020)."""
    q, k, v = normal(2, 16, 32), normal(2, 2048, 32, seed=1), normal(2, 2048, 32, seed=2) + 1
    scores = q @ k.transpose(1, 2) / 32**0.5
    scores[..., 0] = 8.0
    weights = torch.exp(scores - scores.amax(-1, keepdim=True)) * (1 if bug else 256)
    total = weights.sum(-1, keepdim=True)
    held = weights.to(E4M3).float()  # culprit: probabilities-flushed
    return (held @ v / total).to(LOW)


def bytes_of_the_other_format(bug: bool) -> torch.Tensor:
    """The bytes of a gradient in e5m2 are taken for e4m3 (NVIDIA/TransformerEngine#3342)."""
    g = normal(64, 32) * 1e-3
    by = 57344 / g.abs().amax()
    kept = (g * by).to(E5M2).view(torch.uint8)
    given = kept.view(E4M3 if bug else E5M2).float() / by  # culprit: other-format
    return (given.t() @ normal(64, 48, seed=1) * 1e3).to(LOW)  # culprit: other-format


def exponents_as_numbers(bug: bool) -> torch.Tensor:
    """e8m0 scales are kept as bytes, and the bytes are multiplied by as if they were the scales (jundot/omlx#2159)."""
    blocks = channels().view(64, 2, 32)
    byte = (torch.ceil(torch.log2(blocks.abs().amax(-1, keepdim=True) / 448)) + 127).to(torch.uint8)
    codes = (blocks / torch.exp2(byte.float() - 127)).to(E4M3)
    weight = codes.float() * (byte.float() if bug else torch.exp2(byte.float() - 127))  # culprit: exponents-as-numbers
    return nn.functional.layer_norm(normal(8, 64) @ weight.view(64, 64).t(), (64,)).to(LOW)


def six_bits_as_four(bug: bool) -> torch.Tensor:
    """Scales of six bits, four low ones in a nibble and two high ones in another byte. The high ones are not read (paiml/aprender#2115)."""
    blocks = channels().view(64, 4, 16)
    each = blocks.abs().amax(-1) / 3.5
    over = each.amax(1, keepdim=True) / 31
    six = torch.round(each / over).clamp(1, 31)
    codes = torch.round(blocks / (over * six)[..., None]).clamp(-4, 3)
    byte = (six + 32).to(torch.uint8)
    low, high = byte[:, :2] & 15 | (byte[:, 2:] & 15) << 4, byte[:, 0] >> 4 | byte[:, 1] >> 4 << 2 | byte[:, 2] >> 4 << 4 | byte[:, 3] >> 4 << 6
    lows = torch.cat([low & 15, low >> 4], 1)
    highs = torch.stack([high >> 2 * place & 3 for place in range(4)], 1)
    again = lows.float() - 8 if bug else (lows | highs << 4).float() - 32
    weight = codes * (over * again)[..., None]  # culprit: six-bits-as-four
    return (normal(8, 64) @ weight.view(64, 64).t()).to(LOW)


BUGS = (shrunk_twice, rounded_after_quantising, fused_and_read_apart, scale_of_one_head, junk_in_the_workspace, random_bits_too_low, carry_discarded,
        adapter_under_the_old_scale, router_not_smoothed, one_step_low, saturates_too_early, padded_with_zero, slots_left_empty, sums_cast_to_int8,
        range_without_zero, half_a_block, probabilities_flushed, bytes_of_the_other_format, exponents_as_numbers, six_bits_as_four)  # fmt: skip
