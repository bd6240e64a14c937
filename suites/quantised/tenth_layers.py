"""The other half of the tenth batch: training, compression, codebooks and models that are fused; frozen before precheck was run on them.

Each takes `bug`; a line at fault ends in `# culprit: name`.
"""

from __future__ import annotations

import torch
from blocks_by_hand import hadamard
from float8_by_hand import LOW, channels, normal
from ninth_layers import signs
from torch import nn


class Step(nn.Module):
    """LSQ: codes from 0 to 15 under a step that is learned."""

    def __init__(self, step: float, bug: bool) -> None:
        super().__init__()
        self.step, self.bug = nn.Parameter(torch.tensor(step)), bug

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        step = self.step if self.bug else self.step.abs()
        scaled = (x / step).clamp(0, 15)  # culprit: step-below-zero
        codes = scaled + (torch.round(scaled) - scaled).detach()  # culprit: step-below-zero
        return codes * step


def step_below_zero(bug: bool) -> torch.Tensor:
    """A step that is learned has become negative, and all numbers above zero are cut off (ZouJiu1/LSQplus#12)."""
    quantiser, x, w = Step(0.15, bug), normal(64, 32).relu(), normal(32, 16, seed=1)
    optimizer = torch.optim.SGD(quantiser.parameters(), lr=0.004)
    (quantiser(x).sum() / 8).backward()
    optimizer.step()
    return (quantiser(x) @ w).to(LOW)


def offset_not_returned(bug: bool) -> torch.Tensor:
    """LSQ+: an offset is subtracted before rounding, and is not added again."""
    x, w = nn.functional.silu(normal(64, 32)), normal(32, 16, seed=1)
    beta = x.amin()
    step = (x.amax() - beta) / 15
    codes = torch.round((x - beta) / step).clamp(0, 15)
    back = codes * step if bug else codes * step + beta
    return nn.functional.layer_norm(back @ w, (16,)).to(LOW)  # culprit: not-returned


def sign_of_the_gain(bug: bool) -> torch.Tensor:
    """A BatchNorm is folded into the scales of a convolution's channels, and some of its gains are negative."""
    norm = nn.BatchNorm2d(12).eval()
    with torch.no_grad():
        norm.weight.copy_(normal(12, seed=3))
        norm.running_var.copy_(normal(12, seed=4).square() + 0.5)  # type: ignore[union-attr]
        norm.running_mean.copy_(normal(12, seed=5) / 4)  # type: ignore[union-attr]
    x, w = normal(2, 8, 10, 10), normal(12, 8, 3, 3, seed=1)
    gain = (norm.weight / torch.sqrt(norm.running_var + norm.eps)).detach()  # type: ignore[operator]
    folded = w * gain.view(-1, 1, 1, 1)
    scale = folded.abs().amax((1, 2, 3), keepdim=True) / 127
    before = w.abs().amax((1, 2, 3), keepdim=True) / 127
    codes = torch.round(w / before if bug else folded / scale).to(torch.int8)
    dense = codes.float() * (before * gain.abs().view(-1, 1, 1, 1) if bug else scale)  # culprit: sign-of-the-gain
    bias = -norm.running_mean * gain  # type: ignore[operator]
    return nn.functional.conv2d(x, dense, bias).relu().to(LOW)  # culprit: sign-of-the-gain


def zeros_become_ones(bug: bool) -> torch.Tensor:
    """1-bit Adam sends signs, and 0 counts as one above zero. Rows of an embedding that were not used move each step (DeepSpeed's `exp_avg_mask`)."""
    table, error = normal(32, 16), torch.zeros(32, 16)
    for step in range(6):
        momentum = torch.where(torch.arange(32)[:, None] % 4 == 0, normal(32, 16, seed=step), 0.0)
        given = momentum + error
        scale = given.norm() / given.numel() ** 0.5
        ones = given.sign().add(1).bool()
        sent = ones.float().mul(2).sub(1) * scale  # culprit: become-ones
        if not bug:
            sent = sent * (momentum != 0)
        error = (given - sent) * (1 if bug else momentum != 0)
        table = table - 0.3 * sent  # culprit: become-ones
    return table.to(LOW)


def sent_and_kept(bug: bool) -> torch.Tensor:
    """The greatest eighth of a gradient is sent in int8. What is kept for the next step still has what was sent."""
    weight, kept = normal(512), torch.zeros(512)
    for step in range(8):
        total = normal(512, seed=step + 1) + kept
        places = total.abs().topk(64).indices
        scale = total[places].abs().amax() / 127
        codes = torch.round(total[places] / scale).to(torch.int8)
        sent = torch.zeros(512).index_copy(0, places, codes.float() * scale)
        kept = total if bug else total - sent  # culprit: sent-and-kept
        weight = weight - 0.1 * sent
    return weight.to(LOW)


def bytes_taken_for_ranks(bug: bool) -> torch.Tensor:
    """A residual quantiser of three levels of nine bits, packed in four bytes. The first three are read as codes (AkaliKong/MiniOneRec#26)."""
    x, books, codes = normal(64, 8), [normal(512, 8, seed=5 + level) / 2**level for level in range(3)], []
    rest = x
    for book in books:
        codes.append(torch.cdist(rest, book).argmin(1))
        rest = rest - book[codes[-1]]
    word = codes[0] | codes[1] << 9 | codes[2] << 18
    packed = (word[:, None] >> 8 * torch.arange(4) & 255).to(torch.uint8)
    if bug:
        read = packed[:, :3].long()
    else:
        whole = (packed.long() << 8 * torch.arange(4)).sum(1)
        read = torch.stack([whole >> 9 * level & 511 for level in range(3)], 1)
    back = sum((book[read[:, level]] for level, book in enumerate(books)), torch.zeros(64, 8))  # culprit: for-ranks
    return (back @ normal(8, 16, seed=9)).to(LOW)  # culprit: for-ranks


LEVELS = torch.tensor([-2.733, -2.069, -1.618, -1.256, -0.9424, -0.6568, -0.3881, -0.1284])
GAUSSIAN = torch.cat([LEVELS, -LEVELS.flip(0)])


def signs_after_the_turn(bug: bool) -> torch.Tensor:
    """Keys are turned and rounded to the centres of a Gaussian's intervals. Signs are flipped after the turn (Scottcjn/turboquant-elyan#10)."""
    k = 2 + normal(32, 64) * 0.3
    turn, flip = hadamard(64), signs(64, 3)
    turned = k @ turn * flip if bug else k * flip @ turn
    scale = turned.square().mean(1, keepdim=True).sqrt()
    codes = torch.bucketize(turned / scale, (GAUSSIAN[1:] + GAUSSIAN[:-1]) / 2)  # culprit: after-the-turn
    back = GAUSSIAN[codes] * scale  # culprit: after-the-turn
    back = back * flip @ turn.t() if bug else back @ turn.t() * flip
    return torch.softmax(normal(8, 64, seed=7) @ back.t() / 8, -1).to(LOW)  # culprit: after-the-turn


def codes_joined(bug: bool) -> torch.Tensor:
    """Two branches of a network in int8 are joined by their channels. Their codes keep the scales that they had, and the first one's is read."""
    x = normal(2, 8, 6, 6)
    a, b = nn.functional.conv2d(x, normal(6, 8, 1, 1, seed=1)).relu(), nn.functional.conv2d(x, normal(6, 8, 1, 1, seed=2) / 4).relu()
    sa, sb = a.amax() / 127, b.amax() / 127
    qa = torch.round(a / sa).to(torch.int8)
    qb = torch.round(b / (sb if bug else sa)).to(torch.int8)
    joined = torch.cat([qa, qb], 1)
    y = nn.functional.conv2d(joined.float(), normal(4, 12, 1, 1, seed=3)) * sa  # culprit: joined
    return nn.functional.gelu(y).to(LOW)  # culprit: joined


def first_rows_divided(bug: bool) -> torch.Tensor:
    """AWQ: the factors of the output projection are divided out of the last rows of a fused weight, which make values (llm-compressor#1451)."""
    x, qkv, out = normal(24, 64), normal(192, 64, seed=1) / 8, normal(64, 64, seed=2) / 8
    values = x @ qkv[128:].t()
    factor = values.abs().mean(0).pow(0.5) * torch.exp2(normal(64, seed=3))
    rows = slice(0, 64) if bug else slice(128, 192)
    qkv = qkv.clone()
    qkv[rows] = qkv[rows] / factor[:, None]
    scaled = (out * factor).view(64, 4, 16)
    step = scaled.abs().amax(-1, keepdim=True) / 7
    codes = torch.round(scaled / step).to(torch.int8)
    dense = (codes.float() * step).view(64, 64)
    q, k, v = (x @ qkv.t()).view(24, 3, 4, 16).permute(1, 2, 0, 3)
    y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(24, 64)
    return (y @ dense.t()).to(LOW)  # culprit: first-rows


def scale_and_lowest_exchanged(bug: bool) -> torch.Tensor:
    """Rows of an embedding in uint8 end in their scale and their lowest number, eight bytes. They are read in the other order."""
    table, bags = normal(40, 16) * torch.exp2(normal(40, 1, seed=1)), torch.arange(24).view(6, 4) * 7 % 40
    low = table.amin(1, keepdim=True)
    scale = (table.amax(1, keepdim=True) - low) / 255
    codes = torch.round((table - low) / scale).to(torch.uint8)
    fused = torch.cat([codes, scale.view(torch.uint8), low.view(torch.uint8)], 1)
    rows = fused[bags]
    first, second = (rows[..., 16 + 4 * place : 20 + 4 * place].contiguous().view(torch.float32) for place in range(2))
    s, bias = (second, first) if bug else (first, second)
    dense = rows[..., :16].float() * s + bias  # culprit: exchanged
    return dense.sum(1).to(LOW)


def tail_not_emptied(bug: bool) -> torch.Tensor:
    """FQ-ViT: weights of attention as powers of two in three bits. What is below the smallest power should become zero, and becomes that power."""
    q, k, v = normal(2, 8, 16), normal(2, 512, 16, seed=1), normal(2, 512, 16, seed=2)
    p = torch.softmax(2 * q @ k.mT, -1)
    power = torch.round(-torch.log2(p))
    codes = power.clamp(0, 7).to(torch.uint8)
    back = torch.exp2(-codes.float())
    if not bug:
        back = back * (power <= 7)
    return (back @ v).transpose(0, 1).reshape(8, 32).to(LOW)  # culprit: tail


def map_of_the_other_moment(bug: bool) -> torch.Tensor:
    """Adam in eight bits: the second moment is kept as places in a table of numbers above zero, and read in the first one's table."""
    signed, unsigned = torch.linspace(-1, 1, 256).pow(3), torch.linspace(0, 1, 256).pow(3)
    w, m, v = normal(16, 64), torch.zeros(16, 64), torch.zeros(16, 64)
    for step in range(1, 5):
        g = normal(16, 64, seed=step) * torch.exp2(normal(1, 64, seed=9))
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        tops = [each.abs().amax(1, keepdim=True) for each in (m, v)]
        codes = [torch.bucketize(each / top, (table[1:] + table[:-1]) / 2).to(torch.uint8)
                 for each, top, table in zip((m, v), tops, (signed, unsigned), strict=True)]  # fmt: skip
        m = signed[codes[0].long()] * tops[0]
        v = (signed if bug else unsigned)[codes[1].long()] * tops[1]  # culprit: other-moment
        update = m / (1 - 0.9**step) / ((v / (1 - 0.99**step)).clamp(min=0).sqrt() + 1e-3)  # culprit: other-moment
        w = w - 0.1 * update
    return w.to(LOW)


def chance_then_nearest(bug: bool) -> torch.Tensor:
    """A weight in int8 is trained by rounding by chance. A number from 0 to 1 is added, and the sum rounded to nearest, half a step too high."""
    scale = channels().abs().amax(1, keepdim=True) / 7
    codes, generator = torch.round(channels() / scale).to(torch.int8), torch.Generator().manual_seed(3)
    for step in range(6):
        moved = codes.float() * scale - 0.01 * normal(64, 64, seed=step + 10)
        noisy = moved / scale + torch.rand(64, 64, generator=generator)
        codes = (torch.round(noisy) if bug else torch.floor(noisy)).clamp(-8, 7).to(torch.int8)  # culprit: then-nearest
    return (normal(8, 64) @ (codes.float() * scale).t()).to(LOW)


BUGS = (step_below_zero, offset_not_returned, sign_of_the_gain, zeros_become_ones, sent_and_kept, bytes_taken_for_ranks, signs_after_the_turn,
        codes_joined, first_rows_divided, scale_and_lowest_exchanged, tail_not_emptied, map_of_the_other_moment, chance_then_nearest)  # fmt: skip
