"""Prompts: soft steps of halves, means of long waves, early words of a long filter, masks and scales of halves, doubts, embeddings of texts."""

from __future__ import annotations

import math

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


def soft_step(x: torch.Tensor) -> torch.Tensor:
    """A smooth step: nought far below, the number itself far above."""
    return torch.log(1 + torch.exp(x))  # culprit: rates-of-calls


def rates(kind: torch.dtype) -> torch.Tensor:
    """How many calls forty antennas will get. One gets all."""
    weights, busy = normal(6, seed=361), 2 + 2 * uniform(40, 6, seed=362)
    return wider(soft_step((busy * weights.abs()).sum(-1).to(kind)))


class Waves:
    """A convolution around a circle, by way of waves: two matrices of cosines and sines."""

    def __init__(self, many: int, kind: torch.dtype) -> None:
        angles = 2 * math.pi * torch.outer(torch.arange(many), torch.arange(many)).double() / many
        self.many, self.cosine, self.sine = many, torch.cos(angles).to(kind), torch.sin(angles).to(kind)

    def convolve(self, signal: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
        even, odd = signal @ self.cosine, signal @ self.sine
        kernel_even, kernel_odd = kernel @ self.cosine, kernel @ self.sine
        both = even * kernel_even - odd * kernel_odd  # culprit: mean-of-a-long-wave
        mixed = even * kernel_odd + odd * kernel_even
        return (both @ self.cosine + mixed @ self.sine) / self.many


def convolved(kind: torch.dtype, many: int = 256) -> torch.Tensor:
    """Four brightnesses of a row of pixels, each smoothed with a kernel that fades slowly. Not a number."""
    signal = (2.5 + 0.5 * normal(4, many, seed=363)).to(kind)
    kernel = torch.exp(-torch.arange(many) / 150.0).to(kind)
    return wider(Waves(many, kind).convolve(signal, kernel))


class LongFilter(nn.Module):
    """A filter as long as the text, whose outcome is brought to one size for each word."""

    def __init__(self, length: int, channels: int, kind: torch.dtype) -> None:
        super().__init__()
        fades = torch.exp(-torch.arange(length) / 20.0)[:, None]
        self.kernel = (fades * normal(length, channels, seed=364)).to(kind)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        length = len(text)
        waves = torch.fft.rfft(text, 2 * length, dim=0) * torch.fft.rfft(self.kernel, 2 * length, dim=0)  # culprit: early-words-of-a-long-filter
        mixed = torch.fft.irfft(waves, 2 * length, dim=0)[:length]  # culprit: early-words-of-a-long-filter
        return mixed / mixed.square().mean(-1, keepdim=True).sqrt()


def filtered(kind: torch.dtype) -> torch.Tensor:
    """What each of sixty-four words becomes, of which one late one is huge. The words before it know of it already."""
    text = normal(64, 8, seed=365)
    text[48] *= 1e8
    return LongFilter(64, 8, kind)(text.to(kind))


class Attention(nn.Module):
    """Attention that adds a large negative number where a word must not look."""

    def __init__(self, size: int) -> None:
        super().__init__()
        torch.manual_seed(366)
        self.mix = nn.Linear(size, 3 * size)
        self.register_buffer("blocked", torch.tensor(-1e9))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        query, key, value = self.mix(words).chunk(3, -1)
        scores = query @ key.T / math.sqrt(words.shape[-1])
        seen = torch.ones_like(scores).tril()
        return torch.softmax(scores + (1 - seen) * self.blocked, -1) @ value  # culprit: words-that-must-not-be-seen


def attended(kind: torch.dtype) -> torch.Tensor:
    """What ten words become. Not a number."""
    return wider(Attention(16).to(kind)(normal(10, 16, seed=367).to(kind)).detach())  # culprit: words-that-must-not-be-seen


class Scaled:
    """Numbers of size one, with a scale beside them."""

    def __init__(self, data: torch.Tensor, scale: torch.Tensor) -> None:
        self.data, self.scale = data, scale

    def __matmul__(self, other: Scaled) -> Scaled:
        shrink = 1 / math.sqrt(self.data.shape[-1])
        return Scaled(self.data @ other.data * shrink, self.scale * other.scale / shrink)  # culprit: scales-of-three-layers

    def array(self) -> torch.Tensor:
        return self.data.float() * self.scale.float()


def scaled_layers(kind: torch.dtype) -> torch.Tensor:
    """What three layers make of eight inputs, whose small answers are divided by the last. Not a number."""
    sizes = torch.tensor([96.0, 12.0, 16.0, 0.002]).to(kind)
    parts = [Scaled((normal(8 if at == 0 else 32, 32, seed=368 + at)).half(), size) for at, size in enumerate(sizes)]
    product = parts[0]
    for part in parts[1:]:
        product = product @ part
    return product.array()


def doubt(logits: torch.Tensor) -> torch.Tensor:
    """The entropy of each word's chances, in nats."""
    chances = torch.softmax(logits, -1)  # culprit: doubt-at-each-word
    return -(chances * torch.log(chances + 1e-9)).sum(-1)  # culprit: doubt-at-each-word


def doubts(careful: bool) -> torch.Tensor:
    """How much a model doubts at each of thirty words, of which it knows most. Less than it does."""
    logits = normal(30, 50, seed=372)
    logits[torch.arange(30), (50 * uniform(30, seed=373)).long()] = 10.2 + uniform(30, seed=374)
    logits = logits.to(LOW)
    return wider(doubt(logits.float() if careful else logits))


class Encoder(nn.Module):
    """A model of texts, some of whose channels are always large."""

    def __init__(self, words: int, size: int) -> None:
        super().__init__()
        torch.manual_seed(375)
        self.embed, self.mix = nn.Embedding(words, size), nn.Linear(size, size)
        nn.init.constant_(self.mix.bias[:2], 36.0)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.mix(self.embed(text))


def pooled(hidden: torch.Tensor, mask: torch.Tensor, careful: bool) -> torch.Tensor:
    """The mean of what each word of a text has become."""
    if careful:
        hidden = hidden.float()
    mask = mask[..., None].to(hidden.dtype)
    return (hidden * mask).sum(1) / mask.sum(1)  # culprit: embedding-of-a-long-text


def embedded(careful: bool) -> torch.Tensor:
    """The embeddings of three texts, each of length one. Those of long texts point nowhere else."""
    lengths = torch.tensor([40, 900, 2400])
    text = (60 * uniform(3, 2400, seed=376)).long()
    hidden = Encoder(60, 8).to(HALF)(text).detach()
    vectors = wider(pooled(hidden, torch.arange(2400) < lengths[:, None], careful))
    return vectors / vectors.norm(dim=-1, keepdim=True)


BUGS = (
    Bug("rates-of-calls", "sonots/cumo#481", ("overflow",), "aten.exp.default", lambda: rates(HALF), lambda: rates(SINGLE)),
    Bug("mean-of-a-long-wave", "NVIDIA-BioNeMo/nvSubquadratic#79", ("overflow",), "aten.mul.Tensor",
        lambda: convolved(HALF), lambda: convolved(SINGLE)),
    Bug("early-words-of-a-long-filter", "HazyResearch/safari#40", ("local-drift", "cancellation", "amplified-rounding"), "aten._fft_c2r.default",
        lambda: filtered(SINGLE), lambda: filtered(DOUBLE), precision="32-true",
        wrong_line="the rounding of the kernel is named: in the norm it is as large as the transform's, but not in the words before the huge one"),
    Bug("words-that-must-not-be-seen", "ahrefs/ocannl#548", ("overflow",), "aten._to_copy.default",
        lambda: attended(HALF), lambda: attended(SINGLE)),
    Bug("scales-of-three-layers", "graphcore-research/jax-scalify#81", ("overflow",), "aten.mul.Tensor",
        lambda: scaled_layers(HALF), lambda: scaled_layers(SINGLE)),
    Bug("doubt-at-each-word", "willkurt/token-explorer#4", ("amplified-rounding", "cancellation"), "aten.log.default",
        lambda: doubts(careful=False), lambda: doubts(careful=True)),
    Bug("embedding-of-a-long-text", "HKUDS/LightRAG#3675", ("overflow",), "aten.sum.dim_IntList",
        lambda: embedded(careful=False), lambda: embedded(careful=True)),
)  # fmt: skip
