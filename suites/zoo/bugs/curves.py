"""Functions written out in half: a cube in a tanh, squares of long vectors, steps of a curve, polynomials, errors of dark pictures."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, WIDE = torch.float16, torch.float32


def gelu_accurate(x: torch.Tensor) -> torch.Tensor:
    """A GELU by its approximation with a hyperbolic tangent."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))  # culprit: cube-of-an-activation


def activated(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations of a layer in half, a few of which are large, and their gradient."""
    x = (8 * normal(16, 64)).to(HALF)
    x[3, 5], x[9, 40], x[12, 7] = 170.0, -210.0, 152.0
    x = x.to(dtype).requires_grad_()
    y = gelu_accurate(x)
    functional.linear(y, (normal(8, 64, seed=1) / 8).to(dtype)).float().square().mean().backward()
    assert x.grad is not None
    return y.detach().float(), x.grad.float()


def cosine_similarity(one: torch.Tensor, other: torch.Tensor, eps: float = 1e-8) -> torch.Tensor:
    """Cosines of pairs of rows."""
    product = (one * other).sum(-1)
    squares = one.square().sum(-1) * other.square().sum(-1)  # culprit: squares-of-long-vectors
    return product / squares.clamp_min(eps * eps).sqrt()


def similar(dtype: torch.dtype) -> torch.Tensor:
    """Cosines of 64 sentences and their paraphrases, by embeddings of 512 numbers in half."""
    one = normal(64, 512).to(HALF)
    other = (one.float() + normal(64, 512, seed=1)).to(HALF)
    return cosine_similarity(one.to(dtype), other.to(dtype)).float()


def lovasz_gradient(truth: torch.Tensor) -> torch.Tensor:
    """What each pixel adds to the loss, pixels being sorted by their errors."""
    total = truth.sum()
    intersection = total - truth.cumsum(0)
    union = total + (1 - truth).cumsum(0)
    jaccard = 1 - intersection / union  # culprit: steps-of-a-curve
    return torch.cat([jaccard[:1], jaccard[1:] - jaccard[:-1]])  # culprit: steps-of-a-curve


def segmented(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of a picture of 1600 pixels in half, and what each pixel adds to it."""
    truth = (uniform(1600) < 0.4).float()
    margins = (1 - (2 * truth - 1) * (2 * truth - 1 + normal(1600, seed=1))).to(HALF)
    errors, order = margins.to(dtype).sort(descending=True)
    gradient = lovasz_gradient(truth[order].to(dtype))
    return torch.dot(functional.relu(errors).float(), gradient.float()), gradient.float()


class RationalTanh(nn.Module):
    """A hyperbolic tangent as a quotient of two polynomials, as kernels without an exponential have it."""

    above = (-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08, 1.48572235717979e-05, 6.37261928875436e-04,
             4.89352455891786e-03)  # fmt: skip
    below = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clamp(-9, 9)
        square = x * x
        above, below = square * self.above[0], square * self.below[0]  # culprit: quotient-of-polynomials
        for coefficient in self.above[1:-1]:
            above = (above + coefficient) * square  # culprit: quotient-of-polynomials
        for coefficient in self.below[1:-1]:
            below = (below + coefficient) * square  # culprit: quotient-of-polynomials
        return x * (above + self.above[-1]) / (below + self.below[-1])  # culprit: quotient-of-polynomials


def saturated(dtype: torch.dtype) -> torch.Tensor:
    """Activations between -12 and 4 in half, gated by that function."""
    x = (16 * uniform(400) - 12).to(HALF).to(dtype)
    return (0.5 * x * (1 + RationalTanh()(x))).float()


def psnr(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The ratio of a peak of one to the error, in decibels, for each picture."""
    error = (one - other).square().flatten(1).mean(1)  # culprit: errors-of-dark-pictures
    return 20 * torch.log10(1 / error.sqrt())


def restored(dtype: torch.dtype) -> torch.Tensor:
    """Ratios of eight dark frames in linear light and their reconstructions, both in half."""
    frames = (0.03 * uniform(8, 3, 24, 24)).to(HALF)
    made = (frames.float() + 1.2e-4 * normal(8, 3, 24, 24, seed=1)).to(HALF)
    return psnr(frames.to(dtype), made.to(dtype)).float()


BUGS = (
    Bug("cube-of-an-activation", "facebookresearch/fairseq#2235", ("overflow", "nan"), "aten.mul.Scalar", lambda: activated(HALF),
        lambda: activated(WIDE), phase="backward"),
    Bug("squares-of-long-vectors", "pytorch/pytorch#69512", ("overflow",), "aten.mul.Tensor", lambda: similar(HALF), lambda: similar(WIDE)),
    Bug("steps-of-a-curve", "kornia/kornia#1682", ("amplified-rounding", "cancellation"), "aten.rsub.Scalar", lambda: segmented(HALF),
        lambda: segmented(WIDE)),
    Bug("quotient-of-polynomials", "Tencent/ncnn#6979", ("vanished-constant", "underflow"), "aten.add.Tensor", lambda: saturated(HALF),
        lambda: saturated(WIDE), module="RationalTanh"),
    Bug("errors-of-dark-pictures", "open-mmlab/mmagic#1340", ("underflow", "overflow"), "aten.pow.Tensor_Scalar", lambda: restored(HALF),
        lambda: restored(WIDE)),
)  # fmt: skip
