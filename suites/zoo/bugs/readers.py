"""Errors that one reader makes good and another shows: logarithms, phases, coordinates, masks and steps, by who consumes them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class Tones(nn.Module):
    """Harmonics of 200 Hz over half a second: radians up to 5655, where half steps by 4."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide
        self.register_buffer("order", torch.arange(1.0, 10.0))

    def forward(self, pitch: torch.Tensor) -> torch.Tensor:
        cycles = (pitch.float() if self.wide else pitch)[..., None] * self.order / 24_000
        phase = torch.cumsum(cycles, 1) * (2 * math.pi)  # culprit: running-phase
        return torch.sin(phase).to(pitch.dtype)


def resampled(dtype: torch.dtype) -> torch.Tensor:
    """A texture of 640 pixels read between them: near column 600 half a pixel is what half holds."""
    texture = uniform(640, 640)
    centres = 0.97 * ((torch.arange(640.0) * 2 + 1) / 640 - 1)
    across, down = (grid.to(dtype) for grid in torch.meshgrid(centres, centres, indexing="xy"))  # culprit: read-between-pixels
    x, y = (((each + 1) * 640 - 1) / 2 for each in (across, down))  # culprit: read-between-pixels
    x, y = x.clamp(0, 639), y.clamp(0, 639)
    left, upper = x.floor().clamp(max=638), y.floor().clamp(max=638)
    right, lower = x - left, y - upper
    i, j = upper.long(), left.long()
    top = texture[i, j] * (1 - right) + texture[i, j + 1] * right
    return top * (1 - lower) + (texture[i + 1, j] * (1 - right) + texture[i + 1, j + 1] * right) * lower


def shifted(dtype: torch.dtype) -> torch.Tensor:
    """Groups of boxes shifted to places of their own, up to 30210, where half steps by 16: boxes of 12 pixels vanish or double."""
    boxes = torch.tensor([[100.0, 100.0, 112.0, 109.0], [300.0, 40.0, 311.0, 50.0], [2000.0, 700.0, 2012.0, 711.0]]).half().to(dtype)
    offsets = torch.tensor([1, 9, 15]).to(boxes) * (boxes.max() + 1)
    apart = (boxes + offsets[:, None]).float()  # culprit: groups-apart
    sides = apart[:, 2:] - apart[:, :2]
    return sides[:, 0] * sides[:, 1] / (sides[:, 0] * sides[:, 1] + 0.0)


class Streamed(torch.autograd.Function):
    """A cross-entropy that keeps its normaliser alone, from logits of one width, and makes the logits again in another."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, head: torch.Tensor, labels: torch.Tensor, wide: bool) -> torch.Tensor:
        a, b = (x.float(), head.float()) if wide else (x, head)
        logits = torch.cat([(a @ part).float() for part in b.split(64, 1)], 1)  # culprit: two-widths
        normaliser = torch.logsumexp(logits, 1)
        ctx.save_for_backward(x, head, labels, normaliser)
        return (normaliser - logits.gather(1, labels[:, None])[:, 0]).mean()

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> tuple[Any, ...]:
        x, head, labels, normaliser = ctx.saved_tensors
        share = torch.exp(x.float() @ head.float() - normaliser[:, None])
        share[torch.arange(len(labels)), labels] -= 1
        return (given[0] * share @ head.float().T / len(labels)).to(x.dtype), None, None, None


def streamed(wide: bool) -> torch.Tensor:
    x, head = (4 * normal(16, 64)).to(LOW).requires_grad_(), (2 * normal(64, 512, seed=1)).to(LOW)
    Streamed.apply(x, head, torch.arange(16) * 31, wide).backward()
    assert x.grad is not None
    return x.grad


def averaged(before: float, after: float) -> torch.Tensor:
    """Gradients of 2e-5 from 1024 ranks, divided before they are added, or by halves."""
    ranks = [(2e-5 + 2e-6 * normal(8, seed=rank)).half() for rank in range(1024)]
    return torch.stack([each / before for each in ranks]).sum(0) / after  # culprit: a-thousand-ranks


def recurrence(dtype: torch.dtype) -> torch.Tensor:
    """h = g h + v by sums of logarithms; a gate of 1e-9 is closed in half, and so is its floor of 1e-20."""
    gates, values = torch.sigmoid(normal(2, 16, 4)), uniform(2, 16, 4) + 0.1
    gates[0, 5] = 1e-9
    gates, values = gates.half().to(dtype), values.half().to(dtype)
    decay = gates.clamp(min=1e-20).log().cumsum(1)  # culprit: closed-gate
    return (decay + torch.logcumsumexp((values.log() - decay).float(), 1).to(dtype)).exp().half()


def layerwise(dtype: torch.dtype) -> torch.Tensor:
    """LAMB whose betas are cast to the variable's format: 0.999 is 1 in bfloat16, and the correction 0."""
    w, x, y = (0.5 * normal(8)).to(LOW), normal(64, 8, seed=1).to(LOW), normal(64, seed=2).to(LOW)
    m, v = torch.zeros(8, dtype=dtype), torch.zeros(8, dtype=dtype)
    for step in range(1, 6):
        gradient = (x.T @ (x @ w - y) / 64).to(dtype)
        first, second = torch.tensor(0.9).to(dtype), torch.tensor(0.999).to(dtype)  # culprit: beta-of-one
        m = m + (gradient - m) * (1 - first)
        v = v + (gradient * gradient - v) * (1 - second)  # culprit: beta-of-one
        update = m / (1 - first**step) / ((v / (1 - second**step)).sqrt() + 1e-6)  # culprit: beta-of-one
        w = w - (0.01 * w.to(dtype).norm() / update.norm() * update).to(LOW)
    return w


class Biased(nn.Module):
    """ALiBi on absolute keys, from a buffer that is cast with the model: beyond key 1024 bfloat16 counts by 8."""

    def __init__(self, relative: bool) -> None:
        super().__init__()
        self.relative = relative
        self.register_buffer("slopes", torch.tensor([0.5, 0.25, 0.125, 0.0625]))
        self.register_buffer("positions", torch.arange(2048.0))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-1, -2) / 4
        if self.relative:
            away = torch.arange(k.shape[-2], dtype=WIDE) - (k.shape[-2] - 1)
            return (torch.softmax(scores.float() + (self.slopes.float()[:, None] * away)[:, None], -1) @ v.float()).to(q.dtype)
        return torch.softmax(scores + (self.slopes[:, None] * self.positions)[:, None], -1) @ v  # culprit: absolute-keys


def biased(relative: bool) -> torch.Tensor:
    given = (0.3 * normal(4, 1, 16), 0.3 * normal(4, 2048, 16, seed=1), normal(4, 2048, 16, seed=2))
    model = Biased(relative).to(LOW)  # culprit: absolute-keys
    out: torch.Tensor = model(*(each.to(LOW) for each in given))
    return out


def padded(lowest: float) -> torch.Tensor:
    """Scores near -30, and the lowest number of half for what is masked: their sum is -Inf, a padded row of them NaN."""
    scores, seen = 5 * normal(3, 6, 6) - 30, torch.ones(3, 6, 6, dtype=torch.bool)
    seen[1, 4:], seen[:, :, 5] = False, False
    return torch.softmax(scores.half() + (1.0 - seen.half()) * lowest, -1)  # culprit: lowest-and-less


BUGS = (
    Bug("running-phase", "hexgrad/kokoro#353", ("amplified-rounding", "accumulated-drift"), "aten.mul.Tensor",
        lambda: Tones(False).half()(torch.full((1, 12_000), 200.0).half()), lambda: Tones(True).half()(torch.full((1, 12_000), 200.0).half()),
        module="Tones"),
    Bug("read-between-pixels", "pytorch/pytorch#96429", ("amplified-rounding", "integer-rounding"), "aten.add.Tensor", lambda: resampled(HALF),
        lambda: resampled(WIDE)),
    Bug("groups-apart", "MultimediaTechLab/YOLO#234", ("amplified-rounding", "absorption", "integer-rounding"), "aten.add.Tensor",
        lambda: shifted(HALF), lambda: shifted(WIDE)),
    Bug("two-widths", "marin-community/marin#8217", ("amplified-rounding", "cancellation"), "aten.mm.default", lambda: streamed(False),
        lambda: streamed(True)),
    Bug("a-thousand-ranks", "facebookresearch/fairscale#565", ("underflow", "gradient-underflow"), "aten.div.Tensor",
        lambda: averaged(1024, 1), lambda: averaged(32, 32)),
    Bug("closed-gate", "lucidrains/gateloop-transformer#4", ("vanished-constant", "underflow"), "aten.clamp.default", lambda: recurrence(HALF),
        lambda: recurrence(WIDE)),
    Bug("beta-of-one", "keras-team/keras#21238", ("cancellation", "vanished-constant", "nan"), "aten.rsub.Scalar", lambda: layerwise(LOW),
        lambda: layerwise(WIDE)),
    Bug("absolute-keys", "HabanaAI/vllm-fork#503", ("integer-rounding", "amplified-rounding"), "aten._to_copy.default", lambda: biased(False),
        lambda: biased(True)),
    Bug("lowest-and-less", "tensorflow/tensorflow#59657", ("overflow", "nan"), "aten.add.Tensor", lambda: padded(-65504.0),
        lambda: padded(-32752.0)),
)  # fmt: skip
