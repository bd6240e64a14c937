"""Guards that the format rounds away: an eps that is zero, a bound that is one, and an eps that is far too large."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform


class Unit(nn.Module):
    """Rows of length one; a padded row is zero, and 1e-12 is zero in float16."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.normalize(x, dim=-1, eps=self.eps)  # culprit: unit-rows


def padded_rows() -> torch.Tensor:
    rows = normal(3, 8)
    rows[1] = 0
    return rows


def unit_rows(eps: float) -> torch.Tensor:
    return Unit(eps)(padded_rows().half())


def minmax(eps: float) -> torch.Tensor:
    """Scores of one query scaled to [0, 1]: where all are equal the eps is all there is."""
    scores = torch.tensor([[6.5, 6.5, 6.5], [1.0, 2.0, 4.0]]).half()
    low, high = scores.amin(1, keepdim=True), scores.amax(1, keepdim=True)
    return (scores - low) / (high - low + eps)  # culprit: minmax-eps


def entropy(eps: float) -> torch.Tensor:
    """-p log p of a distribution that is certain of one code: 0 log 0."""
    p = torch.softmax(torch.tensor([[30.0, 0.0, 0.0], [1.0, 0.5, 0.0]]).half(), -1)
    return -(p * p.clamp(min=eps).log()).sum(-1)  # culprit: entropy-eps


def adam(dtype: torch.dtype) -> torch.Tensor:
    """Adam's 1e-8 next to float16 moments: weights whose gradient is zero become 0/0."""
    weight = nn.Parameter(torch.ones(6).to(dtype))
    optimizer = torch.optim.Adam([weight], lr=1e-3, foreach=False)
    (weight.half() * torch.tensor([0.0, 0.0, 0.0, 0.05, 0.2, 0.5]).half()).sum().backward()
    optimizer.step()  # culprit: adam-eps
    return weight


def survival(wide: bool) -> torch.Tensor:
    """log(1 - p) guarded by a bound of 1 - 1e-6, which is 1 in bfloat16: the loss is finite, its gradient is not."""
    logits = torch.tensor([6.0, 19.0, 0.5]).to(torch.bfloat16).requires_grad_()
    p = torch.sigmoid(logits.float() if wide else logits)
    held = p.clamp(max=1 - 1e-6)  # culprit: bound-of-one
    log_none = torch.log1p(-held)
    (log_none * torch.tensor([1.0, 0.25, 1.0]).to(p.dtype)).sum().backward()
    return torch.nan_to_num(log_none.detach().float(), neginf=-1e4), logits.grad


def focal(wide: bool) -> torch.Tensor:
    """log p and log(1 - p), p held within [1e-4, 1 - 1e-4]: the upper bound is 1 in float16."""
    logits, target = torch.tensor([13.0, -13.0, 0.25]).half(), torch.tensor([0.0, 1.0, 1.0]).half()
    p = torch.sigmoid(logits.float() if wide else logits)
    p = p.clamp(1e-4, 1 - 1e-4)  # culprit: focal-bound
    return -(target * p.log() + (1 - target) * (1 - p).log())  # culprit: focal-bound


class RootMeanSquare(nn.Module):
    """eps=None means finfo(x.dtype).eps: 0.0078 in bfloat16, 1.2e-7 in float32, beside a variance of 0.003."""

    def __init__(self, eps: float | None) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        return (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)).to(x.dtype)  # culprit: borrowed-eps


def small_rows(eps: float | None) -> torch.Tensor:
    return nn.Sequential(RootMeanSquare(eps))((0.055 * normal(4, 32)).to(torch.bfloat16))


def shares(eps: float) -> torch.Tensor:
    """Router weights over their sum, guarded by the spacing next to 1: small sums are off by half."""
    chosen = (0.005 * uniform(6, 4)).to(torch.bfloat16)
    return chosen / (chosen.float().sum(-1, keepdim=True) + eps)  # culprit: guarded-sum


def notched(least: float) -> torch.Tensor:
    """A drawn frequency of zero is lifted, as the filter demands; in float16 by nothing, and the filter refuses it."""
    frequencies, taps = torch.tensor([0.0, 0.25, 0.7]).half().clamp(min=least), torch.arange(-4.0, 5.0).half()  # culprit: lifted-by-nothing
    for frequency in frequencies:
        if not 0 < frequency <= 1:
            raise ValueError("a frequency is in (0, 1]")
    return torch.sinc(frequencies[:, None] * taps)


BUGS = (
    Bug("unit-rows", "pytorch/pytorch#32137", ("vanished-constant",), "aten.clamp_min.default", lambda: unit_rows(1e-12), lambda: unit_rows(1e-4),
        module="Unit", measured=lambda fixed: {"model": Unit(1e-4 if fixed else 1e-12), "inputs": (padded_rows(),), "precision": "16-true"}),
    Bug("minmax-eps", "lightonai/pylate#239", ("vanished-constant",), "aten.add.Tensor", lambda: minmax(1e-8), lambda: minmax(1e-4)),
    Bug("entropy-eps", "lucidrains/vector-quantize-pytorch#85", ("vanished-constant",), "aten.clamp.default", lambda: entropy(1e-20),
        lambda: entropy(1e-5)),
    Bug("adam-eps", "pytorch/pytorch#8860", ("vanished-constant", "underflow"), "aten.add_.Tensor", lambda: adam(torch.float16),
        lambda: adam(torch.float32), phase="optimizer"),
    Bug("bound-of-one", "fastino-ai/GLiNER2#155", ("vanished-constant",), "aten.clamp.default", lambda: survival(False), lambda: survival(True)),
    Bug("focal-bound", "zylo117/Yet-Another-EfficientDet-Pytorch#502", ("vanished-constant",), "aten.clamp.default",
        lambda: focal(False), lambda: focal(True)),
    Bug("borrowed-eps", "pytorch/pytorch#189581", ("dtype-leak",), "aten.add.Tensor", lambda: small_rows(None), lambda: small_rows(1e-6),
        module="0", measured=lambda fixed: {"model": RootMeanSquare(1e-6 if fixed else None), "inputs": (0.055 * normal(4, 32),),
                                            "precision": "bf16-true"}),
    Bug("guarded-sum", "", ("dtype-leak",), "aten.add.Tensor", lambda: shares(torch.finfo(torch.bfloat16).eps), lambda: shares(1e-9)),
    Bug("lifted-by-nothing", "gfdb/wav2aug#14", ("vanished-constant",), "aten.clamp.default", lambda: notched(1e-12), lambda: notched(1e-6),
        raises=ValueError),
)  # fmt: skip
