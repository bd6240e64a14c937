"""What servers do to attention and to blocks of activations: sums of blocks, merged parts, accumulators, mixed streams."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


def quantise_activations(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks of 32 numbers as eight-bit codes; a block's scale and the sum of its numbers are stored as a pair."""
    blocks = x.unflatten(-1, (-1, 32))
    scale = blocks.abs().amax(-1) / 127
    codes = torch.round(blocks / scale[..., None])
    pairs = torch.stack([scale, scale * codes.sum(-1)], -1).to(dtype)  # culprit: block-sums
    return codes, pairs


def four_bit_product(codes: torch.Tensor, pairs: torch.Tensor, weight: torch.Tensor, steps: torch.Tensor, lows: torch.Tensor) -> torch.Tensor:
    """Weights are `steps * weight + lows` in each block: the lows meet the blocks' sums alone."""
    scale, total = pairs[..., 0].float(), pairs[..., 1].float()
    dots = torch.einsum("tbi,obi->tob", codes, weight)
    return (dots * scale[:, None] * steps + total[:, None] * lows).sum(-1)


def expert_output(dtype: torch.dtype) -> torch.Tensor:
    """An expert's product of twelve tokens; one token's activations stand at about 3000 in a block."""
    x = normal(12, 128)
    x[5, 32:64] = 2900 + 300 * normal(32, seed=1)
    weight, steps = torch.floor(16 * uniform(24, 4, 32, seed=2)), 0.01 + 0.01 * uniform(24, 4, seed=3)
    return four_bit_product(*quantise_activations(x, dtype), weight, steps, -7.5 * steps)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to a part of the keys, and the logarithm of its normaliser."""
    scores = q @ k.T / q.shape[-1] ** 0.5
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def merge_attentions(outputs: list[torch.Tensor], logs: list[torch.Tensor], by_the_largest: bool) -> torch.Tensor:
    stacked = torch.stack(logs)
    if by_the_largest:
        stacked = stacked - stacked.amax(0)
    weights = stacked.exp()  # culprit: merged-neighbourhoods
    total = sum(weight[:, None] * output for weight, output in zip(weights, outputs, strict=True))  # culprit: merged-neighbourhoods
    return total / weights.sum(0)[:, None]  # culprit: merged-neighbourhoods


def neighbourhoods(by_the_largest: bool) -> torch.Tensor:
    """Sixteen pixels attend to what is near and to what is far apart; two of them have sharp scores."""
    q, k, v = normal(16, 32), normal(96, 32, seed=1), normal(96, 32, seed=2)
    q[[3, 11]] *= 60
    parts = [attend(q, k[start : start + 48], v[start : start + 48]) for start in (0, 48)]
    return merge_attentions([output for output, _ in parts], [log for _, log in parts], by_the_largest)


class OnlineAttention:
    """Attention over a cache, a chunk of keys at a time: the output is divided by the normaliser at the end."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, chunk: int = 1024) -> torch.Tensor:
        largest, total = torch.full((len(q), 1), -torch.inf), torch.zeros(len(q), 1)
        out = torch.zeros(len(q), values.shape[1], dtype=self.dtype)
        for start in range(0, len(keys), chunk):
            scores = (q @ keys[start : start + chunk].T).float() / q.shape[-1] ** 0.5
            peak = torch.maximum(largest, scores.amax(-1, keepdim=True))
            rescale, shares = torch.exp(largest - peak), torch.exp(scores - peak)
            total = total * rescale + shares.sum(-1, keepdim=True)
            out = out * rescale.to(self.dtype) + (shares.to(HALF) @ values[start : start + chunk]).to(self.dtype)  # culprit: long-context-output
            largest = peak
        return out.float() / total


def long_context(dtype: torch.dtype) -> torch.Tensor:
    """Eight heads of a query over 48 thousand cached tokens, which they heed about equally; a channel of the values stands at five."""
    q, keys, values = (0.2 * normal(8, 16)).half(), normal(49_152, 16, seed=1).half(), normal(49_152, 16, seed=2)
    values[:, 3] += 5
    return OnlineAttention(dtype)(q, keys, values.half())


class HyperConnection(nn.Module):
    """A layer within four residual streams: how they are read, written and mixed is a function of what is in them."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        self.project = nn.Parameter(0.02 * normal(24, 4 * width, seed=seed))
        self.scale = nn.Parameter(1 + 0.1 * normal(3, seed=seed + 1))
        self.base = nn.Parameter(8 * normal(24, seed=seed + 2))
        self.layer = nn.Linear(width, width, bias=False)
        with torch.no_grad():
            self.layer.weight.copy_(normal(width, width, seed=seed + 3) / width**0.5)

    def forward(self, streams: torch.Tensor) -> torch.Tensor:
        mixes = torch.nn.functional.linear(streams.flatten(-2).float(), self.project.float())
        read, write, mix = mixes.split((4, 4, 16), -1)
        scale, (read_base, write_base, mix_base) = self.scale.float(), self.base.float().split((4, 4, 16))
        read = torch.sigmoid(read * scale[0] + read_base)
        write = 2 * torch.sigmoid(write * scale[1] + write_base)
        mix = torch.softmax((mix * scale[2] + mix_base).unflatten(-1, (4, 4)), -1) + 1e-6
        for _ in range(20):
            mix = mix / (mix.sum(-2, keepdim=True) + 1e-6)
            mix = mix / (mix.sum(-1, keepdim=True) + 1e-6)
        inner = self.layer((read[..., None] * streams.float()).sum(-2).to(self.layer.weight.dtype)).float()
        return mix @ streams + write[..., None] * torch.tanh(inner)[..., None, :]


def converted(model: nn.Module, keep: tuple[str, ...]) -> nn.Module:
    """Weights as they are written to the converted checkpoint."""
    for name, weight in model.named_parameters():
        if not name.endswith(keep):
            weight.data = weight.data.to(LOW)  # culprit: mixed-streams
    return model


def decoded(keep: tuple[str, ...]) -> torch.Tensor:
    """Ten tokens through twenty layers of a converted model."""
    model = converted(nn.Sequential(*(HyperConnection(16, 10 * layer) for layer in range(20))), keep)
    streams = normal(10, 1, 16, seed=3).expand(10, 4, 16)
    with torch.no_grad():
        return model(streams).mean(-2)


BUGS = (
    Bug("block-sums", "ikawrakow/ik_llama.cpp#1659", ("overflow",), "aten._to_copy.default", lambda: expert_output(HALF),
        lambda: expert_output(WIDE)),
    Bug("merged-neighbourhoods", "SHI-Labs/NATTEN#202", ("overflow", "nan"), "aten.exp.default", lambda: neighbourhoods(False),
        lambda: neighbourhoods(True), precision="32-true"),
    Bug("long-context-output", "ggml-org/llama.cpp#13975", ("overflow", "absorption", "accumulated-drift"), "aten.add.Tensor",
        lambda: long_context(HALF), lambda: long_context(WIDE)),
    Bug("mixed-streams", "Blaizzy/mlx-vlm#2053", ("amplified-rounding",), "aten._to_copy.default", lambda: decoded(()),
        lambda: decoded(("scale", "base")),
        expected_miss="each rounding of a logit costs a share about 1 %, as rounding costs anywhere; twenty layers make 4 % of it"),
)  # fmt: skip
