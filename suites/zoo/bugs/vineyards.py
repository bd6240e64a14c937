"""Vineyards: filters and windows in another format, exponentials of large scores, attention of painters."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform, wider

HALF, LOW = torch.float16, torch.bfloat16
EXACT = "32-true"


class Mel(nn.Module):
    """How strong a voice is in bands that the ear tells apart."""

    def __init__(self, frequencies: int, bands: int, same: bool) -> None:
        super().__init__()
        self.same = same
        middles = torch.linspace(0, frequencies, bands + 2)[1:-1]
        self.filters = (1 - (torch.arange(frequencies)[:, None] - middles).abs() / (frequencies / bands)).clamp_min(0)

    def forward(self, spectrum: torch.Tensor) -> torch.Tensor:
        filters = self.filters.to(spectrum.dtype) if self.same else self.filters
        return torch.log(torch.matmul(spectrum.transpose(-1, -2), filters).clamp_min(1e-5))  # culprit: bands-of-a-voice


def voiced(same: bool) -> torch.Tensor:
    """The bands of a second of a voice in bfloat16. torch refuses it."""
    wave = normal(1600, seed=1701) * torch.sin(torch.arange(1600) / 20)
    spectrum = torch.stft(wave, 128, 64, window=torch.hann_window(128), return_complex=True).abs()
    return wider(Mel(65, 20, same)(spectrum.to(LOW)))


class Tokens(nn.Module):
    """Makes tokens of a series' windows, for a language model."""

    def __init__(self, size: int, same: bool) -> None:
        super().__init__()
        torch.manual_seed(1711)
        self.same = same
        self.convolution = nn.Conv1d(16, size, 3, padding=1)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        windows = series.unfold(-1, 16, 8)
        windows = windows.to(self.convolution.weight.dtype if self.same else LOW)  # culprit: windows-as-tokens
        return self.convolution(windows.transpose(1, 2)).transpose(1, 2)  # culprit: windows-as-tokens


def tokens(same: bool) -> torch.Tensor:
    """Tokens of three series, for a model that was made half. torch refuses it."""
    with torch.no_grad():
        return wider(Tokens(24, same).to(HALF)(normal(3, 96, seed=1712)))


class OctreeConvolution(nn.Module):
    """Gathers each node of a tree from its neighbours, with one weight for each direction."""

    def __init__(self, size: int, same: bool) -> None:
        super().__init__()
        torch.manual_seed(1761)
        self.same = same
        self.directions = nn.ModuleList(nn.Linear(size, size, bias=False) for _ in range(3))

    def forward(self, nodes: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
        kind = torch.get_autocast_dtype("cpu") if self.same else nodes.dtype
        total = torch.zeros(nodes.shape, dtype=kind)
        for neighbours, weight in zip(near, self.directions, strict=True):
            total.index_add_(0, neighbours, weight(nodes))  # culprit: nodes-of-a-tree
        return total


def gathered(same: bool) -> torch.Tensor:
    """What forty nodes of a tree gather under autocast. torch refuses it."""
    near = torch.stack([torch.argsort(uniform(40, seed=1762 + each)) for each in range(3)])
    with torch.no_grad(), torch.autocast("cpu", HALF):
        return wider(OctreeConvolution(16, same)(normal(40, 16, seed=1766), near))


def softplus(scores: torch.Tensor, safe: bool) -> torch.Tensor:
    """The logarithm of one and an exponential."""
    if safe:
        return torch.logaddexp(torch.zeros_like(scores), scores)
    return torch.log(1 + torch.exp(scores))  # culprit: activations-that-grow


def activated(safe: bool) -> torch.Tensor:
    """What a layer of a small library makes of rows that nobody scaled. Infinite."""
    torch.manual_seed(1721)
    rows = normal(20, 8, seed=1722) * torch.tensor([1, 1, 1, 300, 1, 1, 1, 1.0])
    return softplus(rows @ normal(8, 12, seed=1723), safe)


def binary_focal(scores: torch.Tensor, signs: torch.Tensor, safe: bool, focus: float = 2.0) -> torch.Tensor:
    """The focal loss of a layer: the softplus of what speaks against an answer, weighted by how wrong it is."""
    against = -signs * scores
    if safe:
        loss = torch.log(1 + torch.exp(-against.abs())) + against.clamp_min(0)
        wrong = torch.sigmoid(against)
    else:
        power = torch.exp(against)  # culprit: focus-on-the-wrong
        loss, wrong = torch.log(1 + power), power / (1 + power)  # culprit: focus-on-the-wrong
    return (wrong.pow(focus) * loss).sum(-1)


def focal(safe: bool) -> torch.Tensor:
    """The losses of twelve batches, in some of which an answer is far off. Not a number."""
    scores = 20 * normal(12, 16, seed=1731)
    scores[2, 3], scores[7, 9] = 120.0, -140.0
    signs = torch.where(uniform(12, 16, seed=1732) < 0.5, 1.0, -1.0)
    signs[2, 3], signs[7, 9] = -1.0, 1.0
    return binary_focal(scores, signs, safe)


class PainterAttention(nn.Module):
    """Attention of a painter in half, between pixels."""

    def __init__(self, size: int, before: bool) -> None:
        super().__init__()
        torch.manual_seed(1741)
        self.before, self.scale = before, size**-0.25
        self.pairs = nn.Linear(size, 3 * size, bias=False)
        with torch.no_grad():
            self.pairs.weight[: 2 * size].mul_(300)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        query, key, value = self.pairs(pixels).chunk(3, -1)
        if self.before:
            scores = (query * self.scale).float() @ (key * self.scale).float().transpose(-2, -1)
        else:
            scores = query @ key.transpose(-2, -1) * self.scale**2  # culprit: pixels-of-a-painter
        return torch.softmax(scores.float(), -1).to(value.dtype) @ value


def painted(before: bool) -> torch.Tensor:
    """What sixteen pixels take from one another in a painter that is half. Not a number."""
    with torch.no_grad():
        return wider(PainterAttention(48, before).to(HALF)(normal(1, 16, 48, seed=1742).to(HALF)))


class LargeAttention(nn.Module):
    """Attention of a large model that is told to keep its scores wide."""

    def __init__(self, size: int, heads: int, wide: bool) -> None:
        super().__init__()
        torch.manual_seed(1751)
        self.heads, self.wide = heads, wide
        self.pairs, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        with torch.no_grad():
            self.pairs.weight[: 2 * size].mul_(400)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        query, key, value = self.pairs(words).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.wide:
            with torch.autocast("cpu", enabled=False):
                scores = query.float() @ key.float().transpose(-2, -1)
        else:
            scores = query @ key.transpose(-2, -1)  # culprit: tokens-of-a-large-model
        chances = torch.softmax((scores - scores.amax(-1, keepdim=True)) / 4, -1)  # culprit: tokens-of-a-large-model
        return self.out((chances @ value.to(chances.dtype)).transpose(1, 2).flatten(2))


def generated(wide: bool) -> torch.Tensor:
    """What a large model makes of twenty tokens under autocast. Not a number."""
    with torch.no_grad(), torch.autocast("cpu", HALF):
        return functional.layer_norm(LargeAttention(64, 4, wide)(normal(2, 20, 64, seed=1752)).float(), (64,))


BUGS = (
    Bug("bands-of-a-voice", "fishaudio/fish-speech#180", ("dtype-leak",), "aten.mm.default",
        lambda: voiced(same=False), lambda: voiced(same=True), module="Mel", raises=RuntimeError),
    Bug("windows-as-tokens", "KimMeen/Time-LLM#195", ("dtype-leak",), "aten._to_copy.default",
        lambda: tokens(same=False), lambda: tokens(same=True), raises=RuntimeError),
    Bug("nodes-of-a-tree", "octree-nn/ocnn-pytorch#40", ("dtype-leak",), "aten.index_add_.default",
        lambda: gathered(same=False), lambda: gathered(same=True), raises=RuntimeError),
    Bug("activations-that-grow", "rushter/MLAlgorithms#30", ("overflow",), "aten.exp.default",
        lambda: activated(safe=False), lambda: activated(safe=True), precision=EXACT),
    Bug("focus-on-the-wrong", "neoml-lib/neoml#459", ("overflow",), "aten.exp.default",
        lambda: focal(safe=False), lambda: focal(safe=True), precision=EXACT),
    Bug("pixels-of-a-painter", "lucidrains/imagen-pytorch#69", ("overflow",), "aten.bmm.default",
        lambda: painted(before=False), lambda: painted(before=True)),
    Bug("tokens-of-a-large-model", "LTH14/mage#26", ("overflow",), "aten.bmm.default",
        lambda: generated(wide=False), lambda: generated(wide=True)),
)  # fmt: skip
