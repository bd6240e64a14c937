"""Lathes: labels of many kinds, edges of bins, scores beyond half, scales of nothing, windows that are loud throughout."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW, SINGLE, CODES = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn


def faces(kind: torch.dtype) -> torch.Tensor:
    """The loss of eight faces among seventy thousand people, with a margin for the right one. The labels are infinite."""
    people = torch.tensor([12, 2049, 4099, 31_001, 65_521, 68_000, 69_999, 40_003])
    places, kinds = functional.normalize(normal(8, 4, seed=1601)), functional.normalize(normal(70_000, 4, seed=1602))
    labels = people.to(kind)  # culprit: labels-of-many-faces
    likeness = places @ kinds.T
    right = labels[:, None] == torch.arange(70_000).to(kind)  # culprit: labels-of-many-faces
    scores = 16 * (likeness - 0.5 * right)
    return torch.logsumexp(scores, -1) - (scores * right).sum(-1) / right.sum(-1).clamp_min(1)


def histogram(values: torch.Tensor, bins: int, kind: torch.dtype) -> torch.Tensor:
    """How dense numbers are in bins of one width."""
    low, high = values.amin().to(kind), values.amax().to(kind)
    share = torch.arange(bins + 1).to(kind) / bins
    edges = low + (high - low) * share  # culprit: edges-of-bins
    widths = edges.diff()  # culprit: edges-of-bins
    found = torch.bucketize(values.to(kind), edges[1:-1].contiguous())
    return torch.bincount(found, minlength=bins) / widths.float() / len(values)


def dense(kind: torch.dtype) -> torch.Tensor:
    """A histogram of four thousand numbers in half. Some bins are half as wide as others."""
    return histogram((0.2 + 0.7 * uniform(4000, seed=1611)).to(HALF), 200, kind)


class Matching(nn.Module):
    """Finds which patches of two pictures show the same."""

    def __init__(self, size: int, barred: float) -> None:
        super().__init__()
        torch.manual_seed(1621)
        self.project, self.barred = nn.Linear(size, size), barred

    def forward(self, first: torch.Tensor, second: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
        scores = self.project(first) @ self.project(second).transpose(1, 2) / first.shape[-1] / 0.1
        scores = scores.masked_fill(~inside, self.barred)  # culprit: patches-that-match
        return torch.softmax(scores, 1) * torch.softmax(scores, 2)


def matched(barred: float) -> torch.Tensor:
    """How surely forty patches of one picture are found in another, in half. torch refuses it."""
    inside = (torch.arange(40) < 32)[None, :, None] & (torch.arange(40) < 36)
    with torch.no_grad():
        first, second = normal(1, 40, 32, seed=1622).to(HALF), normal(1, 40, 32, seed=1623).to(HALF)
        return wider(Matching(32, barred).to(HALF)(first, second, inside))


class RootNorm(nn.Module):
    """The norm of a text model whose numbers grow from layer to layer."""

    def __init__(self, size: int, wide: bool) -> None:
        super().__init__()
        self.weight, self.wide = nn.Parameter(torch.ones(size)), wide

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        values = words.float() if self.wide else words
        spread = values.square().mean(-1, keepdim=True)  # culprit: encoder-whose-numbers-grow
        return self.weight * (values * torch.rsqrt(spread + 1e-6)).to(self.weight.dtype)


def encoded(wide: bool) -> torch.Tensor:
    """What a decoder reads of sixteen words after a few layers in half. Nothing."""
    torch.manual_seed(1631)
    words = (4 * normal(16, 48, seed=1632)).to(HALF)
    with torch.no_grad():
        for _ in range(4):
            words = words + 60 * functional.gelu(nn.Linear(48, 48).to(HALF)(RootNorm(48, wide).to(HALF)(words)))
        return wider(RootNorm(48, wide).to(HALF)(3 * words))


def similarity(first: torch.Tensor, second: torch.Tensor, wide: bool) -> torch.Tensor:
    """How alike two spectrograms are in small windows, by means, spreads and what they share."""
    if wide:
        first, second = first.float(), second.float()
    near = (functional.avg_pool2d(each, 5, 1) for each in (first, second, first * first, second * second, first * second))
    one, other, squares, others, both = near
    spread, spreads = squares - one * one, others - other * other  # culprit: windows-of-a-spectrogram
    shared = both - one * other  # culprit: windows-of-a-spectrogram
    alike = (2 * one * other + 1e-4) * (2 * shared + 9e-4)
    return alike / ((one * one + other * other + 1e-4) * (spread + spreads + 9e-4))  # culprit: windows-of-a-spectrogram


def likened(wide: bool) -> torch.Tensor:
    """How alike a made voice is to a real one, both loud throughout, in half. It is off, and of some windows by half."""
    real = 0.9 + 0.02 * normal(1, 1, 24, 24, seed=1641)
    made = real + 0.01 * normal(1, 1, 24, 24, seed=1642)
    return wider(similarity(real.to(HALF), made.to(HALF), wide))


def apart(anchors: torch.Tensor, others: torch.Tensor, same: bool, temperature: float = 0.1) -> torch.Tensor:
    """How hard it is to tell each text's other half among all texts."""
    others = others if same else others.float()
    scores = anchors @ others.T / temperature  # culprit: texts-that-are-alike
    return torch.logsumexp(scores.float(), -1) - scores.float().diagonal()


def contrasted(same: bool) -> torch.Tensor:
    """The loss of twenty texts whose places are in half. torch refuses it."""
    first = functional.normalize(normal(20, 24, seed=1651))
    second = functional.normalize(first + 0.3 * normal(20, 24, seed=1652))
    return apart(first.to(HALF), second.to(HALF), same)


def quantized(least: float) -> torch.Tensor:
    """Rows of a small gradient in half, as codes of eight bits and back. Not a number."""
    rows = (10.0 ** (-3 - 2.5 * uniform(8, 1, seed=1661)) * normal(8, 32, seed=1662)).to(HALF)
    rows[3] = 0
    scale = (rows.abs().amax(-1, keepdim=True) / 448).clamp_min(least)  # culprit: scale-of-nothing
    codes = (rows * (1 / scale)).clamp(-448, 448).to(CODES)  # culprit: scale-of-nothing
    return codes.float() * scale.float() * 1e3


BUGS = (
    Bug("labels-of-many-faces", "THUFutureLab/gluon-face#28", ("overflow", "integer-rounding"), "aten._to_copy.default",
        lambda: faces(HALF), lambda: faces(SINGLE)),
    Bug("edges-of-bins", "matplotlib/matplotlib#22622", ("amplified-rounding", "cancellation"), "aten.add.Tensor",
        lambda: dense(HALF), lambda: dense(SINGLE)),
    Bug("patches-that-match", "zju3dv/LoFTR#285", ("overflow",), "aten.masked_fill.Scalar",
        lambda: matched(-1e9), lambda: matched(-1e4), raises=RuntimeError),
    Bug("encoder-whose-numbers-grow", "ml-explore/mlx-examples#113", ("overflow",), "aten.pow.Tensor_Scalar",
        lambda: encoded(wide=False), lambda: encoded(wide=True), module="RootNorm"),
    Bug("windows-of-a-spectrogram", "coqui-ai/TTS#417", ("cancellation", "amplified-rounding"), "aten.sub.Tensor",
        lambda: likened(wide=False), lambda: likened(wide=True)),
    Bug("texts-that-are-alike", "JohnGiorgi/DeCLUTR#60", ("dtype-leak",), "aten.mm.default",
        lambda: contrasted(same=False), lambda: contrasted(same=True), raises=RuntimeError),
    Bug("scale-of-nothing", "torch-spyre/torch-spyre#3037", ("underflow", "overflow", "nan"), "aten.div.Tensor",
        lambda: quantized(0.0), lambda: quantized(2.0**-14)),
)  # fmt: skip
