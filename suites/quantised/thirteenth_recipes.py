"""A thirteenth batch of recipes written by hand, after faults that were reported in public; frozen before precheck was run on them.

Scales, exponents and zero points in bytes, and codes that are packed. Each takes `bug`; a line at fault ends in `# culprit: name`. `EXACT` has what
each means, in float64 and without any rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from blocks_by_hand import CODEBOOK
from casts_by_hand import asymmetric
from float8_by_hand import E4M3, LOW, normal
from twelfth_layers import product, uneven

SHIFTS = torch.arange(0, 32, 4, dtype=torch.int32)
Blocks = tuple[torch.Tensor, torch.Tensor]


def mxfp8(groups: torch.Tensor) -> Blocks:
    """Codes in e4m3, and the byte of each group's exponent."""
    byte = (torch.ceil(torch.log2(groups.abs().amax(-1, keepdim=True) / 448)) + 127).to(torch.uint8)
    return (groups / torch.exp2(byte.float() - 127)).to(E4M3), byte


def mxfp4(groups: torch.Tensor, bias: int) -> Blocks:
    byte = (torch.ceil(torch.log2(groups.abs().amax(-1, keepdim=True) / 6)) + bias).to(torch.uint8)
    scaled = groups / torch.exp2(byte.float() - bias)
    return torch.copysign(CODEBOOK[torch.bucketize(scaled.abs(), (CODEBOOK[1:] + CODEBOOK[:-1]) / 2)], scaled), byte


def gridded(shape: tuple[int, ...], most: int) -> torch.Tensor:
    """Groups along the last axis whose numbers lie near multiples of a step, up to that many, as trained for few bits."""
    steps = torch.randint(-most, most + 1, shape, generator=torch.Generator().manual_seed(8))
    steps[..., 0] = most
    return (steps + 0.05 * normal(*shape, seed=6).clamp(-1, 0) * steps.sign()) * torch.exp2(normal(*shape[:-1], 1, seed=7))


def bytes_copied_as_numbers(bug: bool) -> torch.Tensor:
    """mxfp4 checkpoint: the parameter for scales is of dtype e8m0, and the bytes are copied into it as numbers (lightseekorg/tokenspeed#42)."""
    codes, byte = mxfp8(uneven(48, 4, 32))
    held = torch.empty(byte.shape, dtype=torch.float8_e8m0fnu)
    held.copy_(byte.float() if bug else byte.view(torch.float8_e8m0fnu))
    dense = codes.float() * held.float()  # culprit: as-numbers
    return torch.tanh(normal(8, 128) @ dense.view(48, 128).t()).to(LOW)  # culprit: as-numbers


def exponent_with_another_bias(bug: bool) -> torch.Tensor:
    """mxfp4: scales are stored with a bias of 125, and kernels read them by that of the standard (vllm-project/compressed-tensors#538)."""
    codes, byte = mxfp4(uneven(48, 4, 32) / 64, 125 if bug else 127)
    dense = codes * torch.exp2(byte.float() - 127)
    return torch.tanh(normal(8, 128) @ dense.view(48, 128).t()).to(LOW)  # culprit: another-bias


def exponents_truncated(bug: bool) -> torch.Tensor:
    """mxfp8: logarithms of scales are truncated towards zero where they are stored (vllm-project/compressed-tensors#630)."""
    groups = 16 * uneven(48, 4, 32)
    exponent = torch.log2(groups.abs().amax(-1, keepdim=True) / 224)
    codes = (groups / torch.exp2(torch.floor(exponent))).to(E4M3)
    byte = ((exponent if bug else torch.floor(exponent)).to(torch.int32) + 127).to(torch.uint8)
    dense = codes.float() * torch.exp2(byte.float() - 127)  # culprit: truncated
    return (normal(8, 128) @ dense.view(48, 128).t()).to(LOW)  # culprit: truncated


def fractions_leak_into_bytes(bug: bool) -> torch.Tensor:
    """Exponents of four scales are packed into a word by shifts alone, so that fractions get into the byte below (deepseek-ai/DeepGEMM#337)."""
    groups = uneven(48, 4, 32)
    bits = (groups.abs().amax(-1) / 224).view(torch.int32)
    codes = (groups / torch.exp2((bits >> 23).float() - 127)[..., None]).to(E4M3)
    kept = bits if bug else bits & (255 << 23)
    word = (kept[:, 0] >> 23) | (kept[:, 1] >> 15) | (kept[:, 2] >> 7) | (kept[:, 3] << 1)
    read = torch.exp2(word[:, None].view(torch.uint8).float() - 127)
    dense = codes.float() * read[..., None]  # culprit: leak
    return (normal(8, 128) @ dense.view(48, 128).t()).to(LOW)  # culprit: leak


def floats_read_as_exponents(bug: bool) -> torch.Tensor:
    """A kernel that reads bytes of exponents is given scales in float32, which are rounded to powers of two (vllm-project/vllm#53680)."""
    groups = uneven(48, 4, 32)
    scale = torch.exp2(torch.ceil(torch.log2(groups.abs().amax(-1) / 448)))
    codes = (groups / scale[..., None]).to(E4M3)
    held = scale.view(torch.uint8)[:, :4] if bug else (scale.view(torch.int32) >> 23).to(torch.uint8)
    dense = codes.float() * torch.exp2(held.float() - 127)[..., None]  # culprit: as-exponents
    return torch.tanh(normal(8, 128) @ dense.view(48, 128).t()).to(LOW)  # culprit: as-exponents


def rows_read_as_planes(bug: bool) -> torch.Tensor:
    """A cache has a scale behind each row. Scales are looked for behind all rows, and the rows close together (deepseek-ai/DeepGEMM#311)."""
    k, q = uneven(24, 32, seed=4), normal(8, 32)
    cache = torch.zeros(24, 36, dtype=torch.uint8)
    scale = k.abs().amax(1, keepdim=True) / 448
    cache[:, :32], cache[:, 32:] = (k / scale).to(E4M3).view(torch.uint8), scale.view(torch.uint8)
    if bug:
        flat = cache.view(-1)
        codes, read = flat[: 24 * 32].view(24, 32).view(E4M3), flat[24 * 32 :].view(torch.float32).view(24, 1)
    else:
        codes, read = cache[:, :32].view(E4M3), cache.view(torch.float32)[:, 8:]
    keys = codes.float() * read  # culprit: as-planes
    return torch.softmax(q @ keys.t() / 6, -1).to(LOW)  # culprit: as-planes


def layers_at_one_address(bug: bool) -> torch.Tensor:
    """Two layers share a buffer. Views of scales forget where in it a layer begins, and are the first one's (ovg-project/kvcached#435)."""
    ks, q = [uneven(24, 32, seed=4), uneven(24, 32, seed=5)], normal(8, 32)
    buffer, outs = torch.zeros(2, 24, 36, dtype=torch.uint8), []
    planes = [buffer[0 if bug else each][:, 32:] for each in range(2)]
    for layer, k in enumerate(ks):
        scale = k.abs().amax(1, keepdim=True) / 127
        buffer[layer, :, :32] = torch.round(k / scale).to(torch.int8).view(torch.uint8)
        planes[layer].copy_(scale.view(torch.uint8))
    for layer in range(2):
        keys = buffer[layer, :, :32].view(torch.int8).float() * planes[layer].contiguous().view(torch.float32)  # culprit: one-address
        outs.append(torch.softmax(q @ keys.t() / 6, -1))  # culprit: one-address
    return torch.cat(outs).to(LOW)


def header_of_the_other_format(bug: bool) -> torch.Tensor:
    """Q4_1: scale and lowest number stand before the codes of a block. Two bytes are skipped, as in Q4_0, and not four (ml-explore/mlx#3664)."""
    groups = uneven(48, 4, 32)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale = ((high - low) / 15).half()
    codes = torch.round((groups - low) / scale.float()).clamp(0, 15).to(torch.uint8)
    block = torch.cat([scale.view(torch.uint8), low.half().view(torch.uint8), codes[..., :16] | codes[..., 16:] << 4], -1)
    held = block[..., 2:18] if bug else block[..., 4:]
    again = torch.cat([held & 15, held >> 4], -1)
    dense = again.float() * block[..., :2].view(torch.half).float() + block[..., 2:4].view(torch.half).float()  # culprit: other-format
    return (normal(8, 128) @ dense.view(48, 128).t()).to(LOW)  # culprit: other-format


def packed_zero_points_as_halves(bug: bool) -> torch.Tensor:
    """Four bits: a kernel takes the packed bytes of zero points for float16 (ROCm/hip-ep#967)."""
    codes, scale, zero = asymmetric(uneven(48, 4, 32).view(48, 128) + 0.5)
    packed = zero[:, ::2].to(torch.uint8) | zero[:, 1::2].to(torch.uint8) << 4
    if bug:
        read = packed.view(48, 2).view(torch.half).float().view(48, 1, 1)
    else:
        read = torch.stack([packed & 15, packed >> 4], 2).view(48, 4, 1).float()
    dense = (codes.float() - read) * scale  # culprit: as-halves
    return (normal(8, 128) @ dense.view(48, 128).t()).to(LOW)  # culprit: as-halves


def zero_points_high_nibble_first(bug: bool) -> torch.Tensor:
    """Numbers of four bits are packed with the low half first and read with the high half first (openvinotoolkit/openvino#32144)."""
    codes, scale, zero = asymmetric(uneven(48, 4, 32).view(48, 128) + 0.5)
    packed = zero[:, ::2].to(torch.uint8) | zero[:, 1::2].to(torch.uint8) << 4
    halves = [packed >> 4, packed & 15] if bug else [packed & 15, packed >> 4]
    dense = (codes.float() - torch.stack(halves, 2).view(48, 4, 1).float()) * scale  # culprit: high-nibble
    return (normal(8, 128) @ dense.view(48, 128).t()).to(LOW)  # culprit: high-nibble


def packed_into_a_used_byte(bug: bool) -> torch.Tensor:
    """nf4 and fp4: the byte that two codes are packed into is not cleared between pairs (bitsandbytes-foundation/bitsandbytes#1721)."""
    groups = uneven(48, 4, 32)
    scale = groups.abs().amax(-1, keepdim=True) / 7
    codes = (torch.round(groups / scale) + 8).to(torch.uint8).view(48, 64, 2)
    packed, byte = torch.empty(48, 64, dtype=torch.uint8), torch.zeros(48, dtype=torch.uint8)
    for pair in range(64):
        if not bug or pair % 4 == 0:
            byte = torch.zeros(48, dtype=torch.uint8)
        byte |= codes[:, pair, 0] | codes[:, pair, 1] << 4
        packed[:, pair] = byte
    again = torch.stack([packed & 15, packed >> 4], -1).view(48, 4, 32)
    dense = (again.float() - 8) * scale  # culprit: used-byte
    return (normal(8, 128) @ dense.view(48, 128).t()).to(LOW)  # culprit: used-byte


def third_bit_in_the_next_word(bug: bool) -> torch.Tensor:
    """Three bits: the codes that lie across two words are read from the first one alone (ModelCloud/GPTQModel#2251)."""
    groups = gridded((32, 2, 32), 3)
    scale = groups.abs().amax(-1, keepdim=True) / 3
    codes = (torch.round(groups / scale) + 4).to(torch.int64).view(64, 32)
    words = torch.zeros(64, 4, dtype=torch.int64)
    for place in range(32):
        word, bit = divmod(3 * place, 32)
        words[:, word] |= codes[:, place] << bit & 0xFFFFFFFF
        words[:, word + 1] |= codes[:, place] >> 32 - bit
    again = torch.empty_like(codes)
    for place in range(32):
        word, bit = divmod(3 * place, 32)
        whole = words[:, word] >> bit | (words[:, word + 1] << 32 - bit if not bug else 0)
        again[:, place] = whole & 7
    dense = (again.view(32, 2, 32) - 4).float() * scale  # culprit: next-word
    return (normal(8, 64) @ dense.view(32, 64).t()).to(LOW)  # culprit: next-word


def four_in_a_byte_by_quarters(bug: bool) -> torch.Tensor:
    """Two bits: four numbers in a row share a byte. The decoder takes them for those at j, j + 16, j + 32 and j + 48 (ModelCloud/GPTQModel#3058)."""
    groups = gridded((48, 2, 64), 1)
    scale = groups.abs().amax(-1, keepdim=True)
    codes = (torch.round(groups / scale) + 1).to(torch.uint8).view(48, 2, 16, 4)
    byte = codes[..., 0] | codes[..., 1] << 2 | codes[..., 2] << 4 | codes[..., 3] << 6
    parts = [byte >> 2 * each & 3 for each in range(4)]
    again = torch.cat(parts, -1) if bug else torch.stack(parts, -1).view(48, 2, 64)
    dense = (again.float() - 1) * scale
    return torch.sigmoid(normal(8, 128) @ dense.view(48, 128).t()).to(LOW)  # culprit: by-quarters


def high_bits_of_six(bug: bool) -> torch.Tensor:
    """Q6_0: two high bits of each code lie in bytes of their own, and are taken from the wrong place (ikawrakow/ik_llama.cpp#1005)."""
    groups = uneven(48, 4, 32)
    scale = groups.abs().amax(-1, keepdim=True) / 31
    codes = (torch.round(groups / scale) + 32).to(torch.uint8)
    low = codes[..., :16] & 15 | (codes[..., 16:] & 15) << 4
    high = codes[..., :16] >> 4 | codes[..., 16:] >> 4 << 2
    packed = high[..., :8] | high[..., 8:] << 4
    first = torch.cat([packed & 3, packed >> (2 if bug else 4) & 3], -1)
    second = torch.cat([packed >> (4 if bug else 2) & 3, packed >> 6], -1)
    again = torch.cat([low & 15 | first << 4, low >> 4 | second << 4], -1)
    dense = (again.float() - 32) * scale  # culprit: of-six
    return (normal(8, 128) @ dense.view(48, 128).t()).to(LOW)  # culprit: of-six


def unsigned_nibbles_with_signs(bug: bool) -> torch.Tensor:
    """Codes from 0 to 15 are packed, and decoded by shifts that extend a sign, instead of 8 being subtracted (ROCm/hip-ep#178)."""
    groups = uneven(48, 16, 8)
    scale = groups.abs().amax(-1, keepdim=True) / 7
    codes = (torch.round(groups / scale) + 8).to(torch.int32)
    word = (codes << SHIFTS).sum(-1, dtype=torch.int32)
    nibbles = word[..., None] >> SHIFTS
    again = nibbles << 28 >> 28 if bug else (nibbles & 15) - 8
    dense = again.float() * scale  # culprit: with-signs
    return (normal(8, 128) @ dense.view(48, 128).t()).to(LOW)  # culprit: with-signs


def bits_of_the_other_half(bug: bool) -> torch.Tensor:
    """A cache keeps the bits of bfloat16, scales too, and they are read as float16 (vllm-project/vllm#54338)."""
    k, q = uneven(24, 32, seed=4), normal(8, 32)
    scale = (k.abs().amax(1, keepdim=True) / 127).to(torch.bfloat16)
    codes = torch.round(k / scale.float()).clamp(-127, 127).to(torch.int8)
    page = torch.cat([codes.view(torch.uint8), scale.view(torch.uint8)], 1)
    read = page[:, 32:].contiguous().view(torch.half if bug else torch.bfloat16)
    keys = page[:, :32].view(torch.int8).float() * read.float()  # culprit: other-half
    return torch.softmax(q @ keys.t() / 6, -1).to(LOW)  # culprit: other-half


def exponent_lowered_in_bits(bug: bool) -> torch.Tensor:
    """Weights in Q8_0 are divided by 16 by taking 4 from the exponents of their scales, some of which have too small ones (kekzl/imp#808)."""
    groups = uneven(48, 4, 32) / 64
    scale = (groups.abs().amax(-1, keepdim=True) / 127).half()
    codes = torch.round(groups / scale.float()).to(torch.int8)
    if bug:
        bits = scale.view(torch.int16)
        kept = bits >> 10
        lowered = torch.where(kept > 4, bits - (4 << 10), torch.where(kept > 0, bits & 0, bits)).view(torch.half).float()
    else:
        lowered = scale.float() / 16
    dense = codes.float() * lowered * 16  # culprit: in-bits
    return (normal(8, 128) @ dense.view(48, 128).t()).to(LOW)  # culprit: in-bits


BUGS = (bytes_copied_as_numbers, exponent_with_another_bias, exponents_truncated, fractions_leak_into_bytes, floats_read_as_exponents,
        rows_read_as_planes, layers_at_one_address, header_of_the_other_format, packed_zero_points_as_halves, zero_points_high_nibble_first,
        packed_into_a_used_byte, third_bit_in_the_next_word, four_in_a_byte_by_quarters, high_bits_of_six, unsigned_nibbles_with_signs,
        bits_of_the_other_half, exponent_lowered_in_bits)  # fmt: skip


def scores(k: torch.Tensor) -> torch.Tensor:
    return torch.softmax(product(normal(8, 32), k) / 6, -1)


def shifted(w: torch.Tensor) -> torch.Tensor:
    return product(normal(8, 128), w + 0.5)


EXACT: dict[str, Callable[[], torch.Tensor]] = {
    "bytes_copied_as_numbers": lambda: torch.tanh(product(normal(8, 128), uneven(48, 4, 32))),
    "exponent_with_another_bias": lambda: torch.tanh(product(normal(8, 128), uneven(48, 4, 32) / 64)),
    "exponents_truncated": lambda: product(normal(8, 128), 16 * uneven(48, 4, 32)),
    "fractions_leak_into_bytes": lambda: product(normal(8, 128), uneven(48, 4, 32)),
    "floats_read_as_exponents": lambda: torch.tanh(product(normal(8, 128), uneven(48, 4, 32))),
    "rows_read_as_planes": lambda: scores(uneven(24, 32, seed=4)),
    "layers_at_one_address": lambda: torch.cat([scores(uneven(24, 32, seed=4)), scores(uneven(24, 32, seed=5))]),
    "header_of_the_other_format": lambda: product(normal(8, 128), uneven(48, 4, 32)),
    "packed_zero_points_as_halves": lambda: shifted(uneven(48, 4, 32)),
    "zero_points_high_nibble_first": lambda: shifted(uneven(48, 4, 32)),
    "packed_into_a_used_byte": lambda: product(normal(8, 128), uneven(48, 4, 32)),
    "third_bit_in_the_next_word": lambda: product(normal(8, 64), gridded((32, 2, 32), 3)),
    "four_in_a_byte_by_quarters": lambda: torch.sigmoid(product(normal(8, 128), gridded((48, 2, 64), 1))),
    "high_bits_of_six": lambda: product(normal(8, 128), uneven(48, 4, 32)),
    "unsigned_nibbles_with_signs": lambda: product(normal(8, 128), uneven(48, 16, 8)),
    "bits_of_the_other_half": lambda: scores(uneven(24, 32, seed=4)),
    "exponent_lowered_in_bits": lambda: product(normal(8, 128), uneven(48, 4, 32) / 64),
}
