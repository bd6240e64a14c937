"""Sums over many elements: of a lattice, of labels, of pixels, of an integral image, of thresholds."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, WIDE = torch.float16, torch.float32


class LogSemiring:
    """Weights as logarithms: their sum is the logarithm of what their exponentials add up to."""

    def __init__(self, inside: torch.dtype | None) -> None:
        self.inside = inside

    def sum(self, weights: torch.Tensor, dim: int) -> torch.Tensor:
        largest = weights.amax(dim, keepdim=True)
        largest = torch.where(torch.isfinite(largest), largest, torch.zeros_like(largest))
        shifted = (weights - largest).exp()
        total = shifted.sum(dim) if self.inside is None else shifted.sum(dim, dtype=self.inside)  # culprit: wide-lattice
        return (total.log() + largest.squeeze(dim)).to(weights.dtype)  # culprit: wide-lattice


def lattice(inside: torch.dtype | None) -> torch.Tensor:
    """The weight of all paths of three lattices, each of which has many arcs that are nearly as good."""
    arcs = (0.02 * normal(3, 90_000)).to(HALF)
    return LogSemiring(inside).sum(arcs, -1).float()


def nll_loss(predicted: torch.Tensor, labels: torch.Tensor, accumulator: torch.dtype) -> torch.Tensor:
    """Each image's mean of its labels' negative log probabilities, added up as a kernel without a wider accumulator does."""
    shares = predicted.gather(-1, labels[..., None])[..., 0].to(accumulator) / -labels.shape[1]
    total = torch.zeros(len(labels), dtype=accumulator)
    for share in shares.unbind(1):
        total = total + share  # culprit: label-losses
    return total.float()


def labelled(accumulator: torch.dtype) -> torch.Tensor:
    """The losses of two images' pixels in 40 classes, of a network that has learnt nothing yet."""
    predicted = torch.log_softmax(4 * normal(2, 4900, 40), -1).to(HALF)
    labels = (40 * uniform(2, 4900, seed=1)).long()
    return nll_loss(predicted, labels, accumulator)


class Squeeze(nn.Module):
    """Squeeze and excitation, whose mean was exported as a sum and a factor."""

    def __init__(self, accumulator: torch.dtype | None) -> None:
        super().__init__()
        self.accumulator = accumulator
        self.reduce, self.expand = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        with torch.no_grad():
            self.reduce.weight.copy_(normal(4, 8, 1, 1) / 6)
            self.expand.weight.copy_(normal(8, 4, 1, 1, seed=1))
            self.reduce.bias.zero_()
            self.expand.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.sum((2, 3), keepdim=True, dtype=self.accumulator or x.dtype)  # culprit: squeezed-pixels
        squeezed = (total * (1 / (x.shape[2] * x.shape[3]))).to(x.dtype)
        return x * torch.sigmoid(self.expand(functional.silu(self.reduce(squeezed))))


def squeezed(accumulator: torch.dtype | None) -> torch.Tensor:
    x = functional.silu(5 + 2 * normal(1, 8, 128, 128, seed=2)).to(HALF)
    with torch.no_grad():
        return Squeeze(accumulator).to(HALF)(x).float()


class LocalContextNorm(nn.Module):
    """Norm by the mean and variance of a window about each pixel, which an integral image gives in four reads."""

    def __init__(self, window: int, wide: bool) -> None:
        super().__init__()
        self.window, self.wide, self.eps = window, wide, 1e-5

    def windows(self, x: torch.Tensor) -> torch.Tensor:
        integral = functional.pad(x.cumsum(-1).cumsum(-2), (1, 0, 1, 0))  # culprit: integral-image
        w = self.window
        return integral[..., w:, w:] - integral[..., :-w, w:] - integral[..., w:, :-w] + integral[..., :-w, :-w]  # culprit: integral-image

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        x = given.float() if self.wide else given
        number = self.window**2
        sums, squares = self.windows(x), self.windows(x * x)
        variance = (squares - sums * sums / number) / number  # culprit: integral-image
        edge = self.window // 2
        inner = x[..., edge : edge + sums.shape[-2], edge : edge + sums.shape[-1]]
        return ((inner - sums / number) / (variance + self.eps).sqrt()).to(given.dtype)


def contextual(wide: bool) -> torch.Tensor:
    """A picture's features, normed by windows of nine pixels."""
    with torch.no_grad():
        return LocalContextNorm(9, wide)((1 + 0.3 * normal(2, 3, 96, 96)).to(HALF)).float()


def roc(predicted: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """The area under the curve of true over false positives, of all classes together."""
    order = predicted.argsort(descending=True, stable=True)
    data = torch.stack([predicted, truth.to(predicted.dtype)], 1)[order]  # culprit: curve-of-counts
    hits = data[:, 1].cumsum(0)  # culprit: curve-of-counts
    misses = (1 - data[:, 1]).cumsum(0)  # culprit: curve-of-counts
    return torch.trapezoid(hits / hits[-1], misses / misses[-1])


def tagged(dtype: torch.dtype) -> torch.Tensor:
    """The area for 250 clips and 300 tags; the network gave its probabilities in half."""
    truth = uniform(75_000) < 0.02
    predicted = torch.sigmoid(normal(75_000, seed=1) + 2 * truth - 3).to(HALF)
    return roc(predicted.to(dtype), truth).float()


BUGS = (
    Bug("wide-lattice", "google-research/last#43", ("overflow",), "aten.sum.dim_IntList", lambda: lattice(None), lambda: lattice(WIDE)),
    Bug("label-losses", "awslabs/raf#113", ("absorption", "accumulated-drift"), "aten.add.Tensor", lambda: labelled(HALF), lambda: labelled(WIDE)),
    Bug("squeezed-pixels", "google-ai-edge/LiteRT#9249", ("overflow",), "aten.sum.dim_IntList", lambda: squeezed(None), lambda: squeezed(WIDE)),
    Bug("integral-image", "anthonymlortiz/lcn#4", ("amplified-rounding", "cancellation", "nan", "absorption", "accumulated-drift"),
        "aten.cumsum.default", lambda: contextual(False), lambda: contextual(True), module="LocalContextNorm"),
    Bug("curve-of-counts", "MaigoAkisame/cmu-thesis#7", ("overflow", "integer-rounding", "absorption"), "aten.cumsum.default", lambda: tagged(HALF),
        lambda: tagged(WIDE)),
)  # fmt: skip
