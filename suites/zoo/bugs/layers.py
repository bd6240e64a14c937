"""Layers in half precision whose numbers do not fit it: focal losses, norms after squared activations, masks of padding."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, WIDE = torch.float16, torch.float32


def focal_loss(logits: torch.Tensor, targets: torch.Tensor, in_logs: bool) -> torch.Tensor:
    """Sigmoid focal loss of each query and class."""
    probability = logits.sigmoid()
    if in_logs:
        of_yes, of_no = functional.logsigmoid(logits), functional.logsigmoid(-logits)
    else:
        of_yes = torch.log(probability + 1e-8)  # culprit: focal-logs
        of_no = torch.log(1 - probability + 1e-8)  # culprit: focal-logs
    return -0.25 * (1 - probability) ** 2 * of_yes * targets - 0.75 * probability**2 * of_no * (1 - targets)


class DetectorHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.classes = nn.Linear(32, 20)
        with torch.no_grad():
            self.classes.weight.copy_(0.7 * normal(20, 32))
            self.classes.bias.fill_(-2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classes(x)


def detected(in_logs: bool) -> torch.Tensor:
    """A step of training under autocast; the detector is sure of a few boxes that have the wrong label."""
    head, x = DetectorHead(), 1.5 * normal(40, 32, seed=1)
    with torch.autocast("cpu", dtype=HALF):
        loss = focal_loss(head(x), functional.one_hot(torch.arange(40) % 20, 20), in_logs)
    loss.sum().backward()
    weight = head.classes.weight.grad
    assert weight is not None
    return torch.cat([loss.detach().float().sum()[None], weight.flatten()])


class ChessEncoder(nn.Module):
    """A block of a network for chess: a squared ReLU makes large numbers, which the norm that follows brings down again."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.expand, self.contract = nn.Linear(32, 64), nn.Linear(64, 32)
        with torch.no_grad():
            self.expand.weight.copy_(0.5 * normal(64, 32))
            self.contract.weight.copy_(2 * normal(32, 64, seed=1))
            self.expand.bias.zero_()
            self.contract.bias.zero_()

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = (centred * centred).mean(-1, keepdim=True)  # culprit: chess-norm
        return centred / (variance + 1e-3).sqrt()  # culprit: chess-norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grown = self.contract(self.scale * functional.relu(self.expand(x)) ** 2)  # culprit: chess-norm
        return self.norm(self.scale * x + grown)


def evaluated(scale: float) -> torch.Tensor:
    with torch.no_grad():
        return ChessEncoder(scale).to(HALF)((1.5 * normal(64, 32, seed=2)).to(HALF)).float()


def attention_bias(mask: torch.Tensor, dtype: torch.dtype, lowest: float) -> torch.Tensor:
    return torch.where(mask, 0.0, lowest).to(dtype)  # culprit: masked-queries


def attended(lowest: float) -> torch.Tensor:
    """The loss of a batch in half whose sentences have 12, 7 and 3 words; padding sees nothing, and does not count."""
    lengths, x, weight = torch.tensor([12, 7, 3]), normal(3, 12, 16).to(HALF), nn.Parameter((normal(16, 16, seed=1) / 4).to(HALF))
    words = torch.arange(12) < lengths[:, None]
    bias = attention_bias(words[:, :, None] & words[:, None], HALF, lowest)
    scores = x @ weight @ x.transpose(1, 2) / 4 + bias  # culprit: masked-queries
    seen = torch.softmax(scores, -1) @ x  # culprit: masked-queries
    loss = ((seen.float() - x.roll(1, 1).float()).square().mean(-1) * words).sum() / words.sum()
    loss.backward()
    assert weight.grad is not None
    return torch.cat([loss.detach()[None], weight.grad.float().flatten()])


class LlamaNorm(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.weight = nn.Parameter(torch.ones(128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.dtype)
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)  # culprit: llama-norm
        return (x * scale).to(HALF) * self.weight.to(HALF)


def normed(dtype: torch.dtype) -> torch.Tensor:
    """Hidden states of a late layer, in half: two of their channels are a few hundred, as in LLaMA, and those of other tokens are small."""
    x = normal(24, 128) * (0.002 + uniform(24, 1, seed=1) ** 4)
    x[0, [5, 90]] = torch.tensor([700.0, -380.0])
    with torch.no_grad():
        return LlamaNorm(dtype)(x.to(HALF)).float()


BUGS = (
    Bug("focal-logs", "roboflow/rf-detr#138", ("vanished-constant", "overflow", "nan"), "aten.add.Tensor", lambda: detected(False),
        lambda: detected(True)),
    Bug("chess-norm", "LeelaChessZero/lc0#1921", ("overflow",), "aten.mul.Tensor", lambda: evaluated(1.0), lambda: evaluated(1 / 64)),
    Bug("masked-queries", "google/flax#982", ("overflow", "nan"), "aten._to_copy.default", lambda: attended(-1e10),
        lambda: attended(torch.finfo(HALF).min)),
    Bug("llama-norm", "young-geng/EasyLM#50", ("overflow",), "aten.pow.Tensor_Scalar", lambda: normed(HALF), lambda: normed(WIDE),
        module="LlamaNorm"),
)  # fmt: skip
