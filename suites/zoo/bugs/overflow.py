"""Values that leave float16: a square, a product or a sum that the code never shows to anyone."""

from __future__ import annotations

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform


def overlap(boxes: torch.Tensor) -> torch.Tensor:
    """Intersection over union of all pairs, corners as (x0, y0, x1, y1)."""
    sizes = boxes[:, 2:] - boxes[:, :2]
    areas = sizes[:, 0] * sizes[:, 1]  # culprit: box-area
    inner = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:]) - torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    shared = inner.clamp_min(0).prod(-1)  # culprit: box-area
    return shared / (areas[:, None] + areas[None] - shared)


def boxes() -> torch.Tensor:
    return torch.tensor([[0.0, 0.0, 400.0, 300.0], [8.0, 8.0, 408.0, 308.0], [0.0, 0.0, 16.0, 16.0]])


class Norm(nn.Module):
    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide, self.weight = wide, nn.Parameter(torch.ones(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = x.float() if self.wide else x
        square = held.pow(2).mean(-1, keepdim=True)  # culprit: norm-square
        return self.weight * (held * torch.rsqrt(square + 1e-6)).to(x.dtype)


class Block(nn.Module):
    """A norm in front of a projection, as in any decoder."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.norm, self.out = Norm(wide), nn.Linear(32, 8)
        with torch.no_grad():
            self.out.weight.copy_(normal(8, 32) / 6)
            self.out.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(x))


def outlier() -> torch.Tensor:
    x = normal(4, 32, seed=1) * 40
    x[:, 5] = 420.0
    return x


def block(wide: bool) -> torch.Tensor:
    return Block(wide).half()(outlier().half())


class Attend(nn.Module):
    """A query that matches its key strongly; the product passes 65 504 before it is divided by 8."""

    def __init__(self, early: bool) -> None:
        super().__init__()
        self.early = early

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q / 8) @ k.mT if self.early else (q @ k.mT) / 8  # culprit: attention-logits
        return torch.softmax(scores, -1) @ v


def heads() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    query, key, value = normal(2, 8, 64), normal(2, 8, 64, seed=1), normal(2, 8, 64, seed=2)
    query[..., :8] += 100 * torch.eye(8)
    key[..., :8] += 800 * torch.eye(8)
    return query, key, value


def attend(early: bool) -> torch.Tensor:
    return Attend(early)(*(each.half() for each in heads()))


def running_means(dtype: torch.dtype | None) -> torch.Tensor:
    values = (50 + 20 * uniform(1, 2000, 4)).half()
    sums = values.cumsum(1, dtype=dtype)  # culprit: prefix-sum
    return sums / torch.arange(1, 2001, dtype=sums.dtype)[:, None]


class Smooth(nn.Module):
    """Softplus spelt out, as exporters do."""

    def __init__(self, stable: bool) -> None:
        super().__init__()
        self.stable = stable

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.stable:
            return x.clamp_min(0) + torch.log1p(torch.exp(-x.abs()))
        return torch.log(1 + torch.exp(x))  # culprit: softplus


def smooth(stable: bool) -> torch.Tensor:
    return nn.Sequential(Smooth(stable))(torch.tensor([[-4.0, 0.25, 6.0, 11.5, 40.0]]).half())


def standardised(wide: bool) -> torch.Tensor:
    """Statistics that follow the activations' dtype; a channel whose variance is 80 000 comes out zero, without a NaN."""
    mean, variance = torch.tensor([1.0, -90.0, 0.5]), torch.tensor([2.0, 80_000.0, 0.5])
    x = (mean + variance.sqrt() * normal(16, 3)).half()
    if wide:
        return ((x.float() - mean) * torch.rsqrt(variance + 1e-5)).half()
    low = variance.to(x.dtype)  # culprit: variance-cast
    return (x - mean.to(x.dtype)) * torch.rsqrt(low + 1e-5)


def dequantised(wide: bool) -> torch.Tensor:
    """Small codes times a large scale: the product fits, the scale on its own does not."""
    codes, scale = torch.tensor([1.0, 2.0, 3.0]).half() * 2**-16, torch.tensor(98_304.0)
    if wide:
        return (codes.float() * scale).half()
    return codes * scale.to(codes.dtype)  # culprit: scale-cast


def distances(wide: bool) -> torch.Tensor:
    """A cast back at the very end makes no number of an Inf; nothing else reads it before the user does."""
    points = 300 * normal(6, 3)
    held = points if wide else points.half()
    squares = (held[:, None] - held[None]).square()  # culprit: widened-too-late
    return squares.sum(-1).float()  # culprit: widened-too-late


def converted(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """A checkpoint made smaller: of its factors some are beyond float16, and nothing reads them until it is loaded."""
    return tuple(each.to(dtype) for each in (normal(8, 8), torch.logspace(0, 6, 20)))  # culprit: smaller-checkpoint


def logged_total(wide: bool) -> torch.Tensor:
    """One number, narrowed to the format of the log and widened when it is shown."""
    total = (3 * normal(64, 32)).square().sum() * 10
    log = total if wide else total.half()  # culprit: narrow-log
    return log.float()


BUGS = (
    Bug("scale-cast", "Azure/MS-AMP#47", ("overflow",), "aten._to_copy.default", lambda: dequantised(False), lambda: dequantised(True)),
    Bug("box-area", "pytorch/vision#3371", ("overflow",), "aten.mul.Tensor", lambda: overlap(boxes().half()), lambda: overlap(boxes())),
    Bug("norm-square", "pytorch/pytorch#133085", ("overflow",), "aten.pow.Tensor_Scalar", lambda: block(False), lambda: block(True), module="norm",
        measured=lambda fixed: {"model": Block(fixed), "inputs": (outlier(),), "precision": "16-true"}),
    Bug("attention-logits", "ultralytics/ultralytics#24990", ("overflow",), "aten.bmm.default", lambda: attend(False), lambda: attend(True),
        module="Attend", measured=lambda fixed: {"model": Attend(fixed), "inputs": heads(), "precision": "16-true"}),
    Bug("prefix-sum", "huggingface/transformers#25431", ("overflow",), "aten.cumsum.default", lambda: running_means(None),
        lambda: running_means(torch.float32)),
    Bug("softplus", "sbryngelson/ANEForge#113", ("overflow",), "aten.exp.default", lambda: smooth(False), lambda: smooth(True), module="0"),
    Bug("variance-cast", "apple/coreai-torch#54", ("overflow",), "aten._to_copy.default", lambda: standardised(False), lambda: standardised(True)),
    Bug("widened-too-late", "", ("overflow",), "aten.pow.Tensor_Scalar", lambda: distances(False), lambda: distances(True)),
    Bug("smaller-checkpoint", "", ("overflow",), "aten._to_copy.default", lambda: converted(torch.float16), lambda: converted(torch.bfloat16)),
    Bug("narrow-log", "", ("overflow",), "aten._to_copy.default", lambda: logged_total(False), lambda: logged_total(True)),
)  # fmt: skip
