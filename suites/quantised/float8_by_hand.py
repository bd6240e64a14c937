"""float8 recipes as people write them with torch's ops: each takes `bug`, and a line at fault ends in `# culprit: name`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

E4M3, E5M2, LOW = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rows(x: torch.Tensor, dim: int = -1) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, and what they are multiplied by to be dequantised."""
    scale = x.float().abs().amax(dim, keepdim=True).clamp(min=1e-12) / 448
    return (x.float() / scale).clamp(-448, 448).to(E4M3), scale


def channels() -> torch.Tensor:
    """A square weight whose channels differ in size, as trained ones do."""
    return normal(64, 64, seed=1) * torch.exp2(normal(64, 1, seed=2))


def wrong_axis(bug: bool) -> torch.Tensor:
    x, w = normal(32, 64).to(LOW), channels().to(LOW)
    (qx, sx), (qw, sw) = rows(x), rows(w)
    y = (qx.float() @ qw.float().t()) * sx * (sw if bug and sw.shape[0] == qx.shape[0] else sw.t())
    weight = qw.float() * (sw.t() if bug else sw)  # culprit: wrong-axis
    return y.to(LOW) + (x.float() @ weight.t()).to(LOW)


def transposed_scales(bug: bool) -> torch.Tensor:
    """Blocks of 16 x 16, whose scales are kept as a matrix of blocks; the matmul reads it transposed."""
    w = channels() * torch.exp2(normal(1, 64, seed=3))
    blocks = w.view(4, 16, 4, 16)
    scale = blocks.abs().amax((1, 3)) / 448
    codes = (blocks / scale[:, None, :, None]).to(E4M3)
    held = scale.t().contiguous() if bug else scale
    weight = (codes.float() * held[:, None, :, None]).reshape(64, 64)  # culprit: transposed-scales
    return (normal(8, 64) @ weight.t()).to(LOW)


def one_scale_forgotten(bug: bool) -> torch.Tensor:
    x, w = normal(32, 64).to(LOW), channels().to(LOW)
    (qx, sx), (qw, sw) = rows(x), rows(w)
    y = qx.float() @ qw.float().t()
    y = y * sx if bug else y * sx * sw.t()  # culprit: scale-forgotten
    return (y + normal(64, seed=5)).to(LOW)  # culprit: scale-forgotten


def multiplied_instead(bug: bool) -> torch.Tensor:
    """The scale that the data was multiplied by is multiplied by again."""
    w = channels()
    by = 448 / w.abs().amax(1, keepdim=True)
    codes = (w * by).to(E4M3)
    weight = codes.float() * by if bug else codes.float() / by  # culprit: multiplied-instead
    return nn.functional.gelu(normal(8, 64) @ weight.t()).to(LOW)


def dequantised_twice(bug: bool) -> torch.Tensor:
    x, w = normal(16, 64).to(LOW), channels().to(LOW)
    (qx, sx), (qw, sw) = rows(x), rows(w)
    y = (qx.float() * sx) @ qw.float().t()
    if bug:
        y = y * sx  # culprit: dequantised-twice
    return torch.softmax(y * sw.t(), -1).to(LOW)  # culprit: dequantised-twice


class Delayed(nn.Module):
    """Scales from the greatest magnitudes of the steps before. The history is kept, and the scale is not made of it."""

    def __init__(self, bug: bool) -> None:
        super().__init__()
        self.bug, self.weight = bug, nn.Parameter(normal(32, 64, seed=1) / 8)
        self.register_buffer("history", torch.zeros(4))
        self.register_buffer("scale", torch.tensor(448.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes = (x.float() * self.scale).clamp(-448, 448).to(E4M3)  # culprit: amax-never-updated
        y = (codes.float() / self.scale) @ self.weight.t()
        with torch.no_grad():
            self.history.copy_(torch.roll(self.history, 1))
            self.history[0] = x.float().abs().amax()
            if not self.bug:
                self.scale.copy_(448 / self.history.max() / 2)
        return y.to(LOW)


def amax_never_updated(bug: bool) -> torch.Tensor:
    model = Delayed(bug)
    for step in range(4):
        out = model(normal(16, 64, seed=step).to(LOW) * (1.0 if step else 0.2))
    return out


def lagging_history(bug: bool) -> torch.Tensor:
    """A tensor that has grown 30-fold since the scale was made: the newest magnitude is looked at, or it is not."""
    x, scale = (normal(32, 64, seed=3) * 30).to(LOW), torch.tensor(448 / 4.0)
    if not bug:
        scale = 448 / x.float().abs().amax()
    codes = (x.float() * scale).clamp(-448, 448).to(E4M3)  # culprit: lagging-history
    return (codes.float() / scale @ normal(64, 16, seed=4)).to(LOW)


def stale_scale(bug: bool) -> torch.Tensor:
    """Quantised under the old scale, dequantised under the new one."""
    scale, outs = torch.full((64, 1), 0.02), []
    for step in range(3):
        x = normal(64, 64, seed=step).to(LOW) * torch.exp2(normal(64, 1, seed=step + 9)).to(LOW)
        fresh = x.float().abs().amax(1, keepdim=True) / 448
        codes = (x.float() / (scale if bug else fresh)).clamp(-448, 448).to(E4M3)  # culprit: stale-scale
        outs.append((codes.float() * fresh) @ normal(64, 8, seed=7))  # culprit: stale-scale
        scale = fresh
    return torch.stack(outs).to(LOW)


class Scaled(torch.autograd.Function):
    """A linear layer in float8, forward and backward, as training libraries write it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bug: str) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bug = bug
        (qx, sx), (qw, sw) = rows(x), rows(weight)
        return ((qx.float() @ qw.float().t()) * sx * sw.t()).to(LOW)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wide = gradient.float()
        scale = wide.abs().amax(1, keepdim=True).clamp(min=1e-30) / 57344
        if ctx.bug == "gradient-unscaled":
            scale = torch.ones_like(scale)
        codes = (wide / scale).to(E5M2)  # culprit: gradient-unscaled
        qw, sw = rows(weight, 0)
        dx = (codes.float() @ qw.float()) * scale * sw
        columns = wide.abs().amax(0, keepdim=True).clamp(min=1e-30) / 57344
        turned, (qx, sx) = (wide / columns).to(E5M2), rows(x, 0)
        out = turned.float().t() @ qx.float()
        dw = out * (scale[: out.shape[0]] if ctx.bug == "weight-gradient-scale" else columns.t()) * sx  # culprit: weight-gradient-scale
        return dx.to(x.dtype), dw.to(weight.dtype), None


def trained(bug: str) -> torch.Tensor:
    x = normal(64, 64).to(LOW).requires_grad_()
    weight = nn.Parameter((normal(64, 64, seed=1) / 8).to(LOW))
    size = 1e-7 if bug.startswith("gradient-unscaled") else 1.0
    each = torch.exp2(2 * normal(64, 1, seed=8))
    (Scaled.apply(x, weight, "" if bug.endswith("fixed") else bug).float() * normal(64, 64, seed=2) * each).sum().mul(size).backward()
    assert weight.grad is not None
    assert x.grad is not None
    return torch.cat([weight.grad.float().flatten(), x.grad.float().flatten()]) / size


def gradient_unscaled(bug: bool) -> torch.Tensor:
    return trained("gradient-unscaled" if bug else "gradient-unscaled fixed")


def weight_gradient_scale(bug: bool) -> torch.Tensor:
    return trained("weight-gradient-scale" if bug else "fixed")


def narrow_accumulation(bug: bool) -> torch.Tensor:
    """Chunks of 32 terms, summed in bfloat16 or in float32."""
    x, w = normal(16, 4096).abs(), normal(16, 4096, seed=1).abs()
    (qx, sx), (qw, sw) = rows(x), rows(w)
    total = torch.zeros(16, 16, dtype=LOW if bug else torch.float32)
    for start in range(0, 4096, 32):
        part = (qx[:, start : start + 32].float() / 448) @ (qw[:, start : start + 32].float() / 448).t()
        total = total + part.to(total.dtype)  # culprit: narrow-accumulation
    return (total.float() * sx * sw.t() * 448 * 448).to(LOW)


def inverse_in_low(bug: bool) -> torch.Tensor:
    """1 / scale of a float16 tensor of 1e-5: Inf in float16."""
    x = (normal(16, 64) * 3e-5).half()
    amax = x.abs().amax()
    scale = (448 / amax) if bug else 448 / amax.float()  # culprit: inverse-in-low
    return ((x.float() * scale).clamp(-448, 448).to(E4M3).float() / scale).half()


BUGS = (wrong_axis, transposed_scales, one_scale_forgotten, multiplied_instead, dequantised_twice, amax_never_updated, lagging_history, stale_scale,
        gradient_unscaled, weight_gradient_scale, narrow_accumulation, inverse_in_low)  # fmt: skip
