"""A tenth batch of recipes written by hand, most of them after faults that were reported in public; frozen before precheck was run on them.

Each takes `bug`; a line at fault ends in `# culprit: name`. `tenth_layers` has the other half.
"""

from __future__ import annotations

import torch
from float8_by_hand import E4M3, LOW, channels, normal
from torch import nn

BYTES = 8 * torch.arange(4)
NF4 = torch.tensor([-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0, 0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.723, 1.0])


def cholesky_of_inverse(x: torch.Tensor) -> torch.Tensor:
    """What GPTQ divides errors by, from the inputs of a layer."""
    hessian = x.t() @ x / len(x)
    hessian.diagonal().add_(0.01 * hessian.diagonal().mean())
    return torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(hessian)), upper=True)


def groups_counted_from_the_block(bug: bool) -> torch.Tensor:
    """GPTQ by blocks of 16 columns, with groups of 32. A column's group is counted from the start of its block (neuralmagic/sparseml#2290)."""
    x = normal(256, 128) @ (torch.eye(128) + 0.1 * normal(128, 128, seed=6))
    w = normal(48, 128, seed=1) * torch.exp2(normal(1, 4, seed=2).repeat_interleave(32, 1))
    scales = w.view(48, 4, 32).abs().amax(-1) / 7
    inverse, codes = cholesky_of_inverse(x), torch.zeros(48, 128, dtype=torch.int8)
    for start in range(0, 128, 16):
        block, errors = w[:, start : start + 16].clone(), torch.zeros(48, 16)
        for i in range(16):
            scale = scales[:, (i if bug else start + i) // 32]
            q = torch.round(block[:, i] / scale).clamp(-8, 7)
            codes[:, start + i] = q.to(torch.int8)  # culprit: from-the-block
            error = (block[:, i] - q * scale) / inverse[start + i, start + i]
            block[:, i:] -= error[:, None] * inverse[start + i, start + i : start + 16]
            errors[:, i] = error
        w[:, start + 16 :] -= errors @ inverse[start : start + 16, start + 16 :]
    dense = (codes.float().view(48, 4, 32) * scales[..., None]).view(48, 128)  # culprit: from-the-block
    return (x[:16] @ dense.t()).to(LOW)


def zero_points_read_as_wide(bug: bool) -> torch.Tensor:
    """Zero points of channels are kept in 32 bits and read as if they had 64 (pytorch/executorch#21773)."""
    w = channels() + 0.3
    low, high = w.amin(1), w.amax(1)
    scale = (high - low) / 255
    zero = torch.round(-low / scale).to(torch.int32)
    codes = (torch.round(w / scale[:, None]) + zero[:, None]).clamp(0, 255).to(torch.uint8)
    held = torch.cat([zero, torch.zeros(64, dtype=torch.int32)])
    read = held.view(torch.int64)[:64] if bug else held[:64].long()
    dense = (codes.long() - read[:, None]).float() * scale[:, None]  # culprit: as-wide
    return (normal(8, 64) @ dense.t()).to(LOW)


def borrowed_from_the_next_lane(bug: bool) -> torch.Tensor:
    """Four signed codes in the bytes of a word. One subtraction of the word borrows from the byte above (gittensor-ai-lab/sparkinfer#761)."""
    w = channels()
    scale = w.abs().amax(1, keepdim=True) / 7
    q = torch.round(w / scale).long().view(64, 8, 2, 4)
    words = ((q[:, :, 0] & 15 | (q[:, :, 1] & 15) << 4) << BYTES).sum(-1)

    def lanes(word: torch.Tensor) -> torch.Tensor:
        nibbles = word & 0x0F0F0F0F
        if bug:
            signed = (nibbles ^ 0x08080808) - 0x08080808
            return ((signed[..., None] >> BYTES & 255) ^ 128) - 128
        return ((nibbles[..., None] >> BYTES & 15) ^ 8) - 8

    dense = torch.stack([lanes(words), lanes(words >> 4)], 2).view(64, 64).float() * scale  # culprit: next-lane
    return (normal(8, 64) @ dense.t()).to(LOW)


def exponents_with_a_sign(bug: bool) -> torch.Tensor:
    """mxfp8 of large activations: the bytes of exponents are taken for signed ones, so that scales above 1 become tiny (pytorch/FBGEMM#5706)."""
    x = normal(32, 4, 32) * torch.exp2(7 + 2 * normal(32, 4, 1, seed=1))
    byte = (torch.ceil(torch.log2(x.abs().amax(-1, keepdim=True) / 448)) + 127).to(torch.uint8)
    codes = (x / torch.exp2(byte.float() - 127)).to(E4M3)
    exponent = (byte.view(torch.int8) if bug else byte).to(torch.int32) - 127
    dense = codes.float() * torch.exp2(exponent.float())  # culprit: with-a-sign
    return (dense.view(32, 128) @ normal(128, 16, seed=3)).to(LOW)


def rows_of_another_block(bug: bool) -> torch.Tensor:
    """A fused weight in blocks of 16 x 16 is cut into parts of 24 rows. Each takes two rows of scales from its start (vllm-project/vllm#53242)."""
    w = (normal(96, 64) * torch.exp2(normal(6, 1, seed=2)).repeat_interleave(16, 0)).view(6, 16, 4, 16)
    scale = w.abs().amax((1, 3)) / 448
    weight = (w / scale[:, None, :, None]).to(E4M3).view(96, 64)
    x, made = normal(8, 64, seed=5), []
    for part in range(4):
        start = 24 * part
        if bug:
            rows = scale[start // 16 : start // 16 + 2].repeat_interleave(16, 0)[:24]
        else:
            rows = scale.repeat_interleave(16, 0)[start : start + 24]
        dense = weight[start : start + 24].float() * rows.repeat_interleave(16, 1)  # culprit: another-block
        made.append(x @ dense.t())
    return torch.cat(made, 1).to(LOW)


def greatest_of_the_last_part(bug: bool) -> torch.Tensor:
    """nf4 with blocks of 64 that are read 16 at a time. The greatest magnitude is that of the last 16 (bitsandbytes-foundation/bitsandbytes#565)."""
    w = channels().view(-1, 64)
    absmax = torch.zeros(len(w), 1)
    for start in range(0, 64, 16):
        part = w[:, start : start + 16].abs().amax(1, keepdim=True)
        absmax = part if bug else torch.maximum(absmax, part)
    scaled = (w / absmax).clamp(-1, 1)
    codes = (scaled[..., None] - NF4).abs().argmin(-1).to(torch.uint8)  # culprit: last-part
    dense = NF4[codes.long()] * absmax
    return (normal(8, 64) @ dense.view(64, 64).t()).to(LOW)  # culprit: last-part


def second_scale_across(bug: bool) -> torch.Tensor:
    """QLoRA: scales are quantised in 16 groups of 16. The groups' scales are spread over the other axis (NVIDIA/Model-Optimizer#2421)."""
    w = channels().reshape(256, 16)
    absmax = w.abs().amax(1)
    levels = (w[..., None] / absmax[:, None, None] - NF4).abs().argmin(-1)
    grouped = absmax.view(16, 16)
    double = grouped.amax(1) / 127
    held = torch.round(grouped / double.unsqueeze(1)).to(torch.int8)
    read = held.float() * (double.unsqueeze(0) if bug else double.unsqueeze(1))  # culprit: across
    dense = (NF4[levels] * read.view(256, 1)).view(64, 64)  # culprit: across
    return (normal(8, 64) @ dense.t()).to(LOW)  # culprit: across


def low_half_with_its_sign(bug: bool) -> torch.Tensor:
    """Two signed codes a byte. The low one keeps the bits of its sign, which fill the high half (vllm-project/compressed-tensors#518)."""
    w = channels().view(64, 4, 16)
    scale = w.abs().amax(-1, keepdim=True) / 7
    q = torch.round(w / scale).to(torch.int8).view(64, 64)
    low, high = q[:, 0::2], q[:, 1::2]
    packed = (high << 4) | (low if bug else low & 0x0F)
    both = torch.stack([packed << 4 >> 4, packed >> 4], -1).view(64, 4, 16)
    dense = (both.float() * scale).view(64, 64)  # culprit: its-sign
    return (normal(8, 64) @ dense.t()).to(LOW)


def scale_of_the_last_block(bug: bool) -> torch.Tensor:
    """DeepSeek's blocks of 1 x 32 and 32 x 32: sums over all blocks of the inner dimension are multiplied by the last block's scales."""
    x, w = normal(16, 4, 32) * torch.exp2(normal(16, 4, 1, seed=3)), normal(2, 32, 4, 32, seed=1) * torch.exp2(normal(2, 1, 4, 1, seed=2))
    sx, sw = x.abs().amax(-1) / 448, w.abs().amax((1, 3)) / 448
    qx, qw = (x / sx[..., None]).to(E4M3), (w / sw[:, None, :, None]).to(E4M3)
    total = torch.zeros(16, 64)
    for k in range(4):
        part = qx[:, k].float() @ qw[:, :, k].reshape(64, 32).float().t()
        each = sx[:, k, None] * sw[:, k].repeat_interleave(32)
        total = total + (part if bug else part * each)
    y = total * each if bug else total  # culprit: last-block
    return nn.functional.silu(y).to(LOW)  # culprit: last-block


class Dynamic(nn.Module):
    """int8 by int8, whose input has a new scale in each call."""

    def __init__(self, weight: torch.Tensor, bug: bool) -> None:
        super().__init__()
        self.scale = weight.abs().amax(1) / 127
        self.codes = torch.round(weight / self.scale[:, None]).to(torch.int8)
        self.bug = bug
        self.requantisation: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax() / 127
        q = torch.round(x / scale).to(torch.int8)
        if self.requantisation is None or not self.bug:
            self.requantisation = scale * self.scale
        return (q.int() @ self.codes.int().t()).float() * self.requantisation  # culprit: first-call


def factor_of_the_first_call(bug: bool) -> torch.Tensor:
    """The factor of the sums is made when the layer is first called, of the scale that the input had then (pytorch/pytorch#52797)."""
    layer = Dynamic(channels(), bug)
    return torch.cat([layer(normal(8, 64, seed=step) * (1 + 2 * step)) for step in range(4)]).to(LOW)


def greatest_of_the_last_microbatch(bug: bool) -> torch.Tensor:
    """Delayed scales while gradients of four batches are added: the history has the last one's magnitude (marin-community/marin#7659)."""
    w, history, scale, total = channels(), torch.zeros(4), torch.tensor(22.0), []
    for step in range(10):
        amax = torch.zeros(())
        for part in range(4):
            x = normal(16, 64, seed=4 * step + part) * (2.5 if part == step % 3 else 0.6)
            codes = (x * scale).clamp(-448, 448).to(E4M3)  # culprit: last-microbatch
            total.append(codes.float() / scale @ w.t())
            amax = x.abs().amax() if bug else torch.maximum(amax, x.abs().amax())
        history = torch.roll(history, 1)
        history[0] = amax
        scale = 448 / (1.3 * history.amax())
    return torch.stack(total[8:]).mean(0).to(LOW)


class Attention:
    """Attention in float8 whose scale of probabilities is kept twice, on the device and as a number for the epilogue."""

    def __init__(self, bug: bool) -> None:
        self.prob_scale, self.prob_scale_float, self.bug = torch.ones(()), 1.0, bug

    def load(self, scale: float) -> None:
        self.prob_scale.fill_(scale)
        if not self.bug:
            self.prob_scale_float = scale

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        v_scale = v.abs().amax() / 448
        p = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
        p8, v8 = (p / self.prob_scale).to(E4M3), (v / v_scale).to(E4M3)
        return p8.float() @ v8.float() * (v_scale * self.prob_scale_float)  # culprit: number-not-renewed


def number_not_renewed(bug: bool) -> torch.Tensor:
    """A checkpoint's scale of probabilities is loaded into the one, and not into the other (vllm-project/vllm#38975)."""
    attention = Attention(bug)
    attention.load(1 / 448)
    q, k, v = (normal(2, 4, 32, 16, seed=seed) for seed in range(3))
    return attention(q, k, v).transpose(1, 2).reshape(2, 32, 64).to(LOW)


def stride_without_scales(bug: bool) -> torch.Tensor:
    """Pages of a cache: 16 codes of each token with its scale in four bytes behind them. The reader's stride is 16 (ovg-project/kvcached#424)."""
    k, q = normal(24, 16, seed=1) * torch.exp2(normal(24, 1, seed=2)), normal(8, 16)
    scale = k.abs().amax(1, keepdim=True) / 127
    page = torch.cat([torch.round(k / scale).to(torch.int8), scale.view(torch.int8)], 1).flatten()
    codes = page.as_strided((24, 16), (16 if bug else 20, 1))
    scales = page.as_strided((24, 4), (20, 1), 16).contiguous().view(torch.float32)
    keys = codes.float() * scales  # culprit: without-scales
    return torch.softmax(q @ keys.t() / 4, -1).to(LOW)


BUGS = (groups_counted_from_the_block, zero_points_read_as_wide, borrowed_from_the_next_lane, exponents_with_a_sign, rows_of_another_block,
        greatest_of_the_last_part, second_scale_across, low_half_with_its_sign, scale_of_the_last_block, factor_of_the_first_call,
        greatest_of_the_last_microbatch, number_not_renewed, stride_without_scales)  # fmt: skip
