"""Healthy quantised models, each a small program of its own, frozen before precheck was run on them. `whole_trainings` has trainings."""

from __future__ import annotations

import math

import torch
from blocks_by_hand import hadamard
from float8_by_hand import E4M3, LOW, normal
from tenth_recipes import NF4
from torch import nn
from torch.nn import functional

CALIBRATION = 4


def linear(rows: int, columns: int, seed: int) -> torch.Tensor:
    """A weight whose rows differ in size."""
    return normal(rows, columns, seed=seed) * torch.exp2(0.5 * normal(rows, 1, seed=seed + 100)) / columns**0.5


class PerToken(nn.Module):
    """W8A8: a scale for each channel of the weight and each token of the input; sums in int32."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        scale = weight.abs().amax(1, keepdim=True) / 127
        self.codes, self.scale = torch.round(weight / scale).to(torch.int8), scale.squeeze(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-8) / 127
        q = torch.clamp(torch.round(x.float() / scale), -128, 127).to(torch.int8)
        return (torch.matmul(q.int(), self.codes.int().t()).float() * scale * self.scale).to(x.dtype)


def transformer_of_int8() -> torch.Tensor:
    """Two blocks in bfloat16 whose linear layers are W8A8."""
    x = normal(2, 12, 64).to(LOW)
    for block in range(2):
        layers = [PerToken(linear(n, m, 10 * block + place)) for place, (n, m) in enumerate([(192, 64), (64, 64), (128, 64), (64, 128)])]
        q, k, v = layers[0](functional.layer_norm(x, (64,))).view(2, 12, 3, 4, 16).permute(2, 0, 3, 1, 4)
        made = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + layers[1](made.transpose(1, 2).reshape(2, 12, 64))
        x = x + layers[3](functional.gelu(layers[2](functional.layer_norm(x, (64,)))))
    return x


class Packed(nn.Module):
    """GPTQ's layout: eight codes of four bits a word along the inputs, zero points packed along the outputs."""

    def __init__(self, weight: torch.Tensor, group: int = 32) -> None:
        super().__init__()
        w = weight.t().reshape(-1, group, len(weight))
        low, high = w.amin(1).clamp(max=0), w.amax(1).clamp(min=0)
        self.group, self.shifts = group, torch.arange(0, 32, 4)
        self.scales = ((high - low) / 15).half()
        zeros = torch.round(-low / self.scales.float()).int()
        codes = (torch.round(w / self.scales.float()[:, None]) + zeros[:, None]).clamp(0, 15).int().reshape(-1, len(weight))
        self.qweight = torch.zeros(len(codes) // 8, len(weight), dtype=torch.int32)
        self.qzeros = torch.zeros(len(zeros), len(weight) // 8, dtype=torch.int32)
        for place in range(8):
            self.qweight |= codes[place::8] << 4 * place
            self.qzeros |= zeros[:, place::8] << 4 * place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes = (self.qweight[:, None] >> self.shifts[:, None] & 15).reshape(-1, self.group, self.qweight.shape[1])
        zeros = (self.qzeros[..., None] >> self.shifts & 15).flatten(1)
        return x @ ((codes - zeros[:, None]) * self.scales[:, None]).reshape(-1, self.qweight.shape[1]).to(x.dtype)


def mlp_of_int4() -> torch.Tensor:
    x = normal(8, 64).to(LOW)
    gate, up, down = Packed(linear(128, 64, 1)), Packed(linear(128, 64, 2)), Packed(linear(64, 128, 3))
    return x + down(functional.silu(gate(functional.rms_norm(x, (64,)))) * up(functional.rms_norm(x, (64,))))


def cache_of_int8() -> torch.Tensor:
    """Decoding with a ring of 16 places: keys and values in int8 with a scale for each token and head, two query heads for each."""
    codes, scales = torch.zeros(2, 2, 16, 16, dtype=torch.int8), torch.ones(2, 2, 16, 1)
    made = []
    for step in range(24):
        x = normal(64, seed=step)
        q = (linear(64, 64, 1) @ x).view(4, 1, 16)
        kv = torch.stack([(linear(32, 64, 2) @ x).view(2, 16), (linear(32, 64, 3) @ x).view(2, 16)])
        scale = kv.abs().amax(-1, keepdim=True) / 127
        codes[:, :, step % 16], scales[:, :, step % 16] = torch.round(kv / scale).to(torch.int8), scale
        held = (codes[:, :, : step + 1].float() * scales[:, :, : step + 1]).repeat_interleave(2, 1)
        made.append((torch.softmax(q @ held[0].mT / 4, -1) @ held[1]).flatten())
    return torch.stack(made).to(LOW)


def cache_of_two_bits() -> torch.Tensor:
    """KIVI while decoding: keys by channels and values by tokens, with zero points in two bits; the last up to 16 tokens in full."""
    keys, values, held_keys, held_values, made = torch.zeros(0, 32), torch.zeros(0, 32), [], [], []

    def two_bits(t: torch.Tensor, dim: int) -> torch.Tensor:
        low = t.amin(dim, keepdim=True)
        step = (t.amax(dim, keepdim=True) - low) / 3
        codes = torch.round((t - low) / step).to(torch.uint8)
        return codes.float() * step + low

    for step in range(40):
        q, k, v = (normal(1, 32, seed=3 * step + place) * torch.exp2(0.5 * normal(32, seed=900 + place)) for place in range(3))
        keys, values = torch.cat([keys, k]), torch.cat([values, v])
        if len(keys) == 16:
            held_keys.append(two_bits(keys, 0))
            held_values.append(two_bits(values.view(16, 2, 16), 2).flatten(1))
            keys, values = keys[:0], values[:0]
        weights = torch.softmax(q @ torch.cat([*held_keys, keys]).t() / 32**0.5, -1)
        made.append(weights @ torch.cat([*held_values, values]))
    return torch.cat(made).to(LOW)


def convolutions_by_multiplier_and_shift() -> torch.Tensor:
    """A folded BatchNorm, uint8 activations under calibrated scales, and sums that are requantised by a whole multiplier and a shift."""
    weights = [normal(8, 3, 3, 3, seed=1), normal(8, 8, 3, 3, seed=2)]
    gains = [normal(8, seed=3).abs() + 0.5, normal(8, seed=4).abs() + 0.5]
    biases = [0.1 * normal(8, seed=5), 0.1 * normal(8, seed=6)]
    folded = [w * g.view(-1, 1, 1, 1) / (w[0].numel()) ** 0.5 for w, g in zip(weights, gains, strict=True)]
    ranges = torch.zeros(3)
    for batch in range(CALIBRATION):
        x = normal(4, 3, 12, 12, seed=20 + batch).relu()
        ranges[0] = max(ranges[0], x.amax())
        for place, (w, b) in enumerate(zip(folded, biases, strict=True)):
            x = functional.conv2d(x, w, b, padding=1).relu()
            ranges[place + 1] = max(ranges[place + 1], x.amax())
    scales = (ranges * 1.1 / 255).tolist()
    q = torch.round(normal(4, 3, 12, 12, seed=20).relu() / scales[0]).clamp(0, 255).to(torch.uint8)
    for place, (w, b) in enumerate(zip(folded, biases, strict=True)):
        each = w.abs().amax((1, 2, 3)) / 127
        codes = torch.round(w / each.view(-1, 1, 1, 1)).to(torch.int8)
        bias = torch.round(b / (each * scales[place])).to(torch.int32)
        sums = functional.conv2d(q.double(), codes.double(), padding=1).long() + bias.view(1, -1, 1, 1)
        multiplier = torch.round(each.double() * scales[place] / scales[place + 1] * 2**24).long().view(1, -1, 1, 1)
        q = ((sums * multiplier + (1 << 23)) >> 24).clamp(0, 255).to(torch.uint8)
    return (q.float() * scales[2]).mean((2, 3)).to(LOW)


def depthwise_with_relu6() -> torch.Tensor:
    """A pointwise, a depthwise and a pointwise convolution; what follows ReLU6 has the fixed range 0 to 6."""
    x = normal(2, 8, 10, 10)
    for seed, (n, m, size, groups) in enumerate([(16, 8, 1, 1), (16, 1, 3, 16), (8, 16, 1, 1)]):
        w = normal(n, m, size, size, seed=seed) / (m * size * size) ** 0.5
        scale = w.abs().amax((1, 2, 3), keepdim=True) / 127
        codes = torch.round(w / scale).to(torch.int8)
        x = functional.relu6(functional.conv2d(x, codes.float() * scale, padding=size // 2, groups=groups) * 2)
        x = torch.round(x / (6 / 255)).to(torch.uint8).float() * (6 / 255)
    return x.to(LOW)


def embeddings_and_interactions() -> torch.Tensor:
    """DLRM: three tables in int8 by rows, mean bags, products of pairs and an MLP in bfloat16."""
    vectors = []
    for table in range(3):
        rows = normal(50, 16, seed=table) * torch.exp2(normal(50, 1, seed=table + 5))
        scale = rows.abs().amax(1, keepdim=True) / 127
        codes, scales = torch.round(rows / scale).to(torch.int8), scale.to(LOW)
        codes = torch.round(rows / scales.float()).clamp(-127, 127).to(torch.int8)
        bag = torch.randint(0, 50, (8, 5), generator=torch.Generator().manual_seed(table))
        vectors.append((functional.embedding(bag, codes.to(LOW)) * functional.embedding(bag, scales)).mean(1))
    stacked = torch.stack(vectors, 1)
    pairs = (stacked @ stacked.mT).flatten(1)
    return functional.relu(pairs @ normal(9, 16, seed=9).to(LOW)) @ normal(16, 1, seed=10).to(LOW)


def distances_by_tables_of_bytes() -> torch.Tensor:
    """FAISS's fast scan: product-quantised vectors, whose table of distances is rounded to bytes for each query."""
    base, queries, books = normal(200, 4, 4), normal(5, 4, 4, seed=1), normal(4, 16, 4, seed=2)
    codes = torch.stack([torch.cdist(base[:, part], books[part]).argmin(1) for part in range(4)], 1).to(torch.uint8)
    table = torch.stack([torch.cdist(queries[:, part], books[part]).square() for part in range(4)], 1)
    low = table.amin(2, keepdim=True)
    step = (table - low).amax((1, 2), keepdim=True) / 255
    held = torch.round((table - low) / step).to(torch.uint8)
    sums = torch.stack([held[:, part, codes[:, part].long()].int() for part in range(4)]).sum(0)
    return (sums.float() * step.squeeze(2) + low.sum((1, 2))[:, None]).to(LOW)


def codec_of_residual_codebooks() -> torch.Tensor:
    """A codec: frames are encoded by three codebooks that follow each other, whose places are sent as ten bits in two bytes."""
    wave = torch.sin(torch.arange(512) / 7) + 0.3 * normal(512)
    frames, books = wave.view(64, 8), [normal(1024, 8, seed=level + 3) / 2**level for level in range(3)]
    rest, sent = frames, []
    for book in books:
        place = torch.cdist(rest, book).argmin(1)
        rest = rest - book[place]
        sent.append(torch.stack([place & 255, place >> 8], 1).to(torch.uint8))
    places = [pair[:, 0].long() | pair[:, 1].long() << 8 for pair in sent]
    return torch.stack([book[place] for book, place in zip(books, places, strict=True)]).sum(0).flatten().to(LOW)


def experts_of_mxfp4() -> torch.Tensor:
    """Four experts in mxfp4, of which each token goes to two; the router is in float32."""
    x, router = normal(16, 64), normal(4, 64, seed=1)
    weights, chosen = torch.softmax(x @ router.t() / 8, -1).topk(2)
    made = torch.zeros(16, 32)
    table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    for expert in range(4):
        w = linear(32, 64, 20 + expert).view(32, 2, 32)
        exponent = torch.floor(torch.log2(w.abs().amax(-1, keepdim=True))) - 2
        scaled = w / torch.exp2(exponent)
        codes = torch.bucketize(scaled.abs(), (table[1:] + table[:-1]) / 2).to(torch.uint8) | (scaled < 0).to(torch.uint8) << 3
        packed, byte = codes[..., ::2] | codes[..., 1::2] << 4, (exponent + 127).to(torch.uint8)
        read = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
        dense = torch.cat([table, -table])[read.long()] * torch.exp2(byte.float() - 127)
        tokens, place = (chosen == expert).nonzero(as_tuple=True)
        made.index_add_(0, tokens, (x[tokens] @ dense.view(32, 64).t()) * weights[tokens, place, None])
    return made.to(LOW)


def rotated_model_of_int4() -> torch.Tensor:
    """QuaRot: the residual stream is rotated by the weights around it, and the input of the last projection online; int4 by tokens and channels."""
    turn, wide = hadamard(64) * torch.where(torch.arange(64) % 3 > 0, 1.0, -1.0)[:, None], hadamard(128)
    table, gain = normal(50, 64), normal(64, seed=4).abs() + 0.5
    up, gate, down, head = (linear(n, m, 5 + place) for place, (n, m) in enumerate([(128, 64), (128, 64), (64, 128), (50, 64)]))

    def int4(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        sx, sw = (t.abs().amax(-1, keepdim=True) / 7 for t in (x, w))
        return torch.round(x / sx) @ torch.round(w / sw).t() * sx * sw.t()

    x = (table @ turn)[torch.arange(16) * 3]
    y = functional.rms_norm(x, (64,))
    y = functional.silu(int4(y, gate * gain @ turn)) * int4(y, up * gain @ turn)
    x = x + int4(y @ wide, turn.t() @ down @ wide)
    return (functional.rms_norm(x, (64,)) @ (head @ turn).t()).to(LOW)


def outliers_beside_int8() -> torch.Tensor:
    """LLM.int8() in two layers: columns above 6 are multiplied in half precision."""
    x = normal(16, 64) * torch.where(torch.arange(64) % 21 == 4, 10.0, 1.0)
    for seed in range(2):
        w = linear(64, 64, seed)
        far = (x.abs() > 6).any(0)
        near, sw = x * ~far, w.abs().amax(1) / 127
        sx = near.abs().amax(1, keepdim=True) / 127
        y = torch.round(near / sx) @ torch.round(w / sw[:, None]).t() * sx * sw
        x = functional.layer_norm(y + (x[:, far].half() @ w[:, far].half().t()).float(), (64,)) * torch.where(torch.arange(64) % 21 == 4, 5.0, 1.0)
    return x.to(LOW)


def pictures_by_cosines() -> torch.Tensor:
    """JPEG: cosines of blocks of 8 x 8 are divided by a table that grows with frequency, rounded, and multiplied by it again."""
    grid = torch.arange(8.0)
    basis = torch.cos(math.pi / 8 * (grid + 0.5) * grid[:, None]) * torch.where(grid[:, None] == 0, 0.125**0.5, 0.5)
    picture = (128 + 40 * torch.sin(torch.arange(32) / 5)[:, None] + 30 * torch.cos(torch.arange(32) / 9)).clamp(0, 255)
    blocks = (picture - 128).view(4, 8, 4, 8).transpose(1, 2)
    table = 4 + 3 * (grid + grid[:, None])
    codes = torch.round(basis @ blocks @ basis.t() / table).to(torch.int16)
    back = basis.t() @ (codes.float() * table) @ basis
    return (back.transpose(1, 2).reshape(32, 32) + 128).clamp(0, 255).round().to(torch.uint8).float().div(255).to(LOW)


def recurrent_layer_of_int8() -> torch.Tensor:
    """An LSTM whose two weights are in int8 and whose state is rounded anew in each step."""
    wx, wh = PerToken(linear(128, 16, 1)), PerToken(linear(128, 32, 2))
    h, c = torch.zeros(4, 32), torch.zeros(4, 32)
    for step in range(8):
        i, f, g, o = (wx(normal(4, 16, seed=step)) + wh(h)).chunk(4, 1)
        c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    return h.to(LOW)


def low_rank_beside_four_bits() -> torch.Tensor:
    """SVDQuant: inputs are smoothed, the greatest singular values stay in bfloat16, and the rest is nf4."""
    x, w = normal(16, 64) * torch.exp2(normal(64, seed=3)), linear(64, 64, 4)
    factor = x.abs().amax(0).sqrt() / w.abs().amax(0).sqrt()
    smooth = w * factor
    u, s, v = torch.linalg.svd(smooth)
    left, right = (u[:, :8] * s[:8]).to(LOW), v[:8].to(LOW)
    rest = (smooth - left.float() @ right.float()).view(64, 2, 32)
    top = rest.abs().amax(-1, keepdim=True)
    codes = (rest / top).unsqueeze(-1).sub(NF4).abs().argmin(-1).to(torch.uint8)
    dense = (NF4[codes.long()] * top).view(64, 64).to(LOW)
    given = (x / factor).to(LOW)
    return given @ dense.t() + given @ right.t() @ left.t()


def attention_in_float8_by_heads() -> torch.Tensor:
    """Queries, keys and values in float8 with a scale for each head; scores, their maximum and sum in float32, by tiles of eight keys."""
    q, k, v = (normal(2, 4, 24, 16, seed=seed) * torch.exp2(normal(4, 1, 1, seed=seed + 4)) for seed in range(3))
    (qq, sq), (qk, sk), (qv, sv) = (((t / (s := t.abs().amax((-2, -1), keepdim=True) / 448)).to(E4M3).float(), s) for t in (q / 4, k, v))
    top, total, out = torch.full((2, 4, 24, 1), -math.inf), torch.zeros(2, 4, 24, 1), torch.zeros(2, 4, 24, 16)
    for start in range(0, 24, 8):
        scores = qq @ qk[:, :, start : start + 8].mT * (sq * sk)
        higher = torch.maximum(top, scores.amax(-1, keepdim=True))
        p = torch.exp(scores - higher)
        keep = torch.exp(top - higher)
        total = total * keep + p.sum(-1, keepdim=True)
        out = out * keep + (p * 448).to(E4M3).float() @ qv[:, :, start : start + 8]
        top = higher
    return (out * (sv / 448) / total).transpose(1, 2).reshape(2, 24, 64).to(LOW)


HEALTHY = (transformer_of_int8, mlp_of_int4, cache_of_int8, cache_of_two_bits, convolutions_by_multiplier_and_shift, depthwise_with_relu6,
           embeddings_and_interactions, distances_by_tables_of_bytes, codec_of_residual_codebooks, experts_of_mxfp4, rotated_model_of_int4,
           outliers_beside_int8, pictures_by_cosines, recurrent_layer_of_int8, low_rank_beside_four_bits, attention_in_float8_by_heads)  # fmt: skip
