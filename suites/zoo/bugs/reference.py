"""Programs that float32 does not determine either, and products that overflow on their way to zero."""

from __future__ import annotations

import torch

from bugs.bug import Bug


def logistic(dtype: torch.dtype) -> torch.Tensor:
    """A chaotic map: after 60 steps no format has a digit of it, and any state is as good as another."""
    x = torch.tensor([0.3, 0.4, 0.55, 0.61, 0.7, 0.2, 0.9, 0.35]).to(dtype)
    for _ in range(60):
        x = 3.99 * x * (1 - x)  # culprit: chaotic-map
    return x


def hashed(dtype: torch.dtype) -> torch.Tensor:
    """A shader's noise: a sine of something large, fed back into itself."""
    x = torch.linspace(0.0, 3.0, 16).to(dtype)
    for _ in range(12):
        x = 3 * (x.float() * 7.3 + 0.1).sin().to(dtype)  # culprit: iterated-sine
    return x


def volumes(dtype: torch.dtype) -> torch.Tensor:
    """Volumes of boxes, one of them empty padding with a stale length: 300 x 300 is Inf before it meets the zero."""
    sizes = torch.tensor([[300.0, 300.0, 0.0], [2.0, 3.0, 4.0]]).to(dtype)
    return sizes.prod(-1)  # culprit: empty-box


def weights(dtype: torch.dtype) -> torch.Tensor:
    """Importance weights of sequences: the product of their tokens' ratios, masked tokens counting zero."""
    ratios = torch.tensor([[40.0, 50.0, 60.0, 0.0], [1.0, 0.5, 2.0, 1.0]]).to(dtype)
    return ratios.prod(-1)  # culprit: masked-ratio


BUGS = (
    Bug("chaotic-map", "", ("unstable-reference",), "aten.mul.Tensor", lambda: logistic(torch.float16), lambda: logistic(torch.float32),
        severity="note"),
    Bug("iterated-sine", "", ("unstable-reference", "accumulated-drift"), "aten.sin.default", lambda: hashed(torch.bfloat16),
        lambda: hashed(torch.float32), severity="note"),
    Bug("empty-box", "", ("nan", "overflow"), "aten.prod.dim_int", lambda: volumes(torch.float16), lambda: volumes(torch.float32), kernel=True),
    Bug("masked-ratio", "", ("nan", "overflow"), "aten.prod.dim_int", lambda: weights(torch.float16), lambda: weights(torch.float32),
        kernel=True),
)  # fmt: skip
