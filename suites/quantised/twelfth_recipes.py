"""A twelfth batch of recipes written by hand, after faults that were reported in public; frozen before precheck was run on them.

Each takes `bug`; a line at fault ends in `# culprit: name`. `EXACT` has what each means, in float64 and without any rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from casts_by_hand import to_float8
from float8_by_hand import E4M3, E5M2, LOW, channels, normal, rows
from torch import nn

UPSTREAM = normal(32, 64, seed=3)


def gradient(product: Any, x: torch.Tensor, *given: Any) -> torch.Tensor:
    x.requires_grad_()
    (product.apply(x, *given) * UPSTREAM).sum().backward()
    assert x.grad is not None
    return x.grad.to(LOW)


def wide(t: torch.Tensor) -> torch.Tensor:
    return t.double()


class Meta:
    """Scale and its inverse, as Transformer Engine keeps them apart."""

    def __init__(self, top: float) -> None:
        self.scale = torch.tensor(448 / top)
        self.inverse = 1 / self.scale

    def renew(self, t: torch.Tensor) -> None:
        self.scale = 448 / t.detach().abs().amax()
        self.inverse = 1 / self.scale


def inverse_not_loaded(bug: bool) -> torch.Tensor:
    """A checkpoint has the scale, which is loaded, and not its inverse, which stays that of the start (NVIDIA/TransformerEngine#123)."""
    x, w, saved, loaded = normal(32, 64), normal(48, 64, seed=1) / 8, Meta(1.0), Meta(1.0)
    saved.renew(8 * x)
    loaded.scale = saved.scale
    if not bug:
        loaded.inverse = saved.inverse
    codes = (x * loaded.scale).clamp(-448, 448).to(E4M3)
    return torch.sigmoid(codes.float() @ w.t() * loaded.inverse).to(LOW)  # culprit: inverse-not-loaded


class Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, meta: Meta, bug: bool) -> torch.Tensor:
        meta.renew(w)
        codes = (w * meta.scale).to(E4M3)
        ctx.save_for_backward(codes, meta.inverse)
        ctx.meta, ctx.bug = meta, bug
        return x @ (codes.float() * meta.inverse).t()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        codes, inverse = ctx.saved_tensors
        return g @ codes.float() * (ctx.meta.inverse if ctx.bug else inverse), None, None, None  # culprit: overwritten


def overwritten_by_the_next_microbatch(bug: bool) -> torch.Tensor:
    """Pipeline: the forward pass of the next microbatch renews the scales before this one's backward pass (NVIDIA/TransformerEngine#657)."""
    x, w, meta = normal(32, 64).requires_grad_(), channels(), Meta(1.0)
    y = Shared.apply(x, w, meta, bug)  # type: ignore[no-untyped-call]
    Shared.apply(normal(32, 64, seed=5), w / 3, meta, bug)  # type: ignore[no-untyped-call]
    (y * UPSTREAM).sum().backward()
    assert x.grad is not None
    return x.grad.to(LOW)


def inverse_of_the_first_expert(bug: bool) -> torch.Tensor:
    """Grouped product: inverse scales are looked for at the place of the first weight (NVIDIA/TransformerEngine#1128)."""
    x, experts, outs = normal(24, 64), [normal(32, 64, seed=each) * 3.0**each for each in range(3)], []
    made = [to_float8(w, (0, 1)) for w in experts]
    inverses = torch.cat([scale.flatten() for _, scale in made])
    for each, (codes, _) in enumerate(made):
        outs.append(x[8 * each : 8 * each + 8] @ codes.float().t() * inverses[0 if bug else each])  # culprit: first-expert
    return nn.functional.gelu(torch.cat(outs)).to(LOW)  # culprit: first-expert


def by_chance(t: torch.Tensor, able: bool) -> torch.Tensor:
    """e2m1 by chance. Where the machine has no instruction for it, what is returned was never written."""
    if not able:
        return torch.zeros_like(t)
    step = torch.exp2(torch.floor(torch.log2(t.abs().clamp(min=1)))) / 2
    return torch.floor(t / step + torch.rand(t.shape, generator=torch.Generator().manual_seed(2))) * step


class ByChance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, able: bool) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        ctx.able = able
        (qx, sx), (qw, sw) = rows(x), rows(w)
        return qx.float() @ qw.float().t() * sx * sw.t()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        _, w = ctx.saved_tensors
        scale = g.abs().amax(1, keepdim=True) / 6
        return by_chance(g / scale, ctx.able) * scale @ w, None, None  # culprit: rounded-to-zero


def gradients_rounded_to_zero(bug: bool) -> torch.Tensor:
    """nvfp4: the helper that rounds gradients by chance returns zeros on some devices (NVIDIA/TransformerEngine#3281)."""
    return gradient(ByChance, normal(32, 64), channels(), not bug)


class Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, meta: Meta, renewed: bool) -> torch.Tensor:
        ctx.save_for_backward(w)
        ctx.meta, ctx.renewed = meta, renewed
        return x @ w.t()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (w,) = ctx.saved_tensors
        codes = (g * ctx.meta.scale).to(E5M2)  # culprit: never-updated
        dx = codes.float() / ctx.meta.scale @ w
        if ctx.renewed:
            ctx.meta.renew(g)
        return dx, None, None, None


def gradient_scale_never_updated(bug: bool) -> torch.Tensor:
    """With activation checkpoints the scale of gradients stays what it was, and gradients become small (NVIDIA/TransformerEngine#1190)."""
    w, meta = channels() / 1e7, Meta(448.0)
    for step in range(6):
        x = normal(32, 64, seed=step).requires_grad_()
        (Recomputed.apply(x, w, meta, not bug) * UPSTREAM * (1 + step / 9) * 1e-6).sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
    return (x.grad * 1e12).to(LOW)


def scale_of_the_step_before(bug: bool) -> torch.Tensor:
    """FSDP in float8: scales are made in advance after each step. Weights that are loaded in between have none (InternLM/xtuner#1356)."""
    w, outs, ready = normal(48, 64, seed=1) / 8, [], torch.tensor(0.0)
    for step in range(4):
        w = w * (3.0 if step else 1.0)
        if step == 0 or not bug:
            ready = w.abs().amax() / 448
        codes = (w / ready).clamp(-448, 448).to(E4M3)  # culprit: step-before
        outs.append(normal(16, 64, seed=step + 4) @ (codes.float() * ready).t())
    return torch.cat(outs).to(LOW)


def weight_cast_without_its_scale(bug: bool) -> torch.Tensor:
    """A checkpoint in float8 has a scale beside each weight, which the upcast does not look at (Lightricks/LTX-2#172)."""
    x, (codes, scale) = normal(16, 64), to_float8(normal(48, 64, seed=1) / 8, (0, 1))
    dense = codes.to(LOW) if bug else codes.to(LOW) * scale
    return nn.functional.gelu(x @ dense.float().t()).to(LOW)  # culprit: without-its-scale


def values_by_both_scales(bug: bool) -> torch.Tensor:
    """Latent attention: keys and values are one row under one scale. Values are multiplied by that of values too (vllm-project/vllm#37054)."""
    latent, q = normal(24, 64, seed=1), normal(16, 64)
    k_scale, v_scale = latent.abs().amax() / 448, latent.abs().amax() / 448 * 1.5
    codes = (latent / k_scale).to(E4M3)
    p = torch.softmax(q @ (codes.float() * k_scale).t() / 8, -1)
    out = p @ codes.float() * (k_scale * v_scale if bug else k_scale)  # culprit: by-both
    return (out @ normal(64, 32, seed=4)).to(LOW)  # culprit: by-both


def positions_not_calibrated(bug: bool) -> torch.Tensor:
    """Latent attention: rotated keys share the scale that was made for the latent part, which is small (vllm-project/vllm#42956)."""
    latent, turned, q = 0.05 * normal(24, 64, seed=1), normal(24, 16, seed=2), normal(16, 80)
    top = latent.abs().amax() if bug else torch.maximum(latent.abs().amax(), turned.abs().amax())
    codes = (torch.cat([latent, turned], 1) / (top / 448)).clamp(-448, 448).to(E4M3)  # culprit: not-calibrated
    return torch.softmax(q @ (codes.float() * (top / 448)).t() / 9, -1).to(LOW)


class Attention:
    """Scales as tensors, for what is written, and as numbers, for what is read."""

    def __init__(self) -> None:
        self.scale, self.number = torch.ones(2), [1.0, 1.0]

    def load(self, scales: torch.Tensor, numbers: bool) -> None:
        self.scale = scales
        if numbers:
            self.number = scales.tolist()


def number_left_at_one(bug: bool) -> torch.Tensor:
    """Scales of a cache are loaded. The numbers beside them, which are read by, stay 1 (vllm-project/vllm#34863, sgl-project/sglang#20705)."""
    k, v, q, layer = 3 * normal(24, 32, seed=1), normal(24, 32, seed=2), normal(16, 32), Attention()
    layer.load(torch.stack([k.abs().amax(), v.abs().amax()]) / 448, not bug)
    k8, v8 = (k / layer.scale[0]).to(E4M3), (v / layer.scale[1]).to(E4M3)
    scores = q @ k8.float().t() * layer.number[0]
    p = torch.softmax(scores / 32**0.5, -1)  # culprit: left-at-one
    return (p @ v8.float() * layer.number[1]).to(LOW)


def rows_by_columns(bug: bool) -> torch.Tensor:
    """Inputs have a scale for each row and weights for each channel. The result's is their product by elements (Xilinx/brevitas#1077)."""
    x, w = normal(64, 64) * torch.exp2(2 * normal(64, 1, seed=4)), channels()
    (qx, sx), (qw, sw) = rows(x), rows(w)
    sums = qx.float() @ qw.float().t()
    out = sums * (sx.flatten() * sw.flatten()) if bug else sums * sx * sw.t()  # culprit: by-columns
    return (out + normal(64, seed=6)).to(LOW)  # culprit: by-columns


BUGS = (inverse_not_loaded, overwritten_by_the_next_microbatch, inverse_of_the_first_expert, gradients_rounded_to_zero, gradient_scale_never_updated,
        scale_of_the_step_before, weight_cast_without_its_scale, values_by_both_scales, positions_not_calibrated, number_left_at_one,
        rows_by_columns)  # fmt: skip


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, root: float) -> torch.Tensor:
    return torch.softmax(wide(q) @ wide(k).t() / root, -1) @ wide(v)


EXACT: dict[str, Callable[[], torch.Tensor]] = {
    "inverse_not_loaded": lambda: torch.sigmoid(wide(normal(32, 64)) @ wide(normal(48, 64, seed=1) / 8).t()),
    "overwritten_by_the_next_microbatch": lambda: wide(UPSTREAM) @ wide(channels()),
    "inverse_of_the_first_expert": lambda: nn.functional.gelu(
        torch.cat([wide(normal(24, 64)[8 * e : 8 * e + 8]) @ wide(normal(32, 64, seed=e) * 3.0**e).t() for e in range(3)])),
    "gradients_rounded_to_zero": lambda: wide(UPSTREAM) @ wide(channels()),
    "gradient_scale_never_updated": lambda: wide(UPSTREAM * (1 + 5 / 9) * 1e-6) @ wide(channels() / 1e7) * 1e12,
    "scale_of_the_step_before": lambda: torch.cat(
        [wide(normal(16, 64, seed=s + 4)) @ wide(normal(48, 64, seed=1) / 8).t() * 3.0**s for s in range(4)]),
    "weight_cast_without_its_scale": lambda: nn.functional.gelu(wide(normal(16, 64)) @ wide(normal(48, 64, seed=1) / 8).t()),
    "values_by_both_scales": lambda: attended(normal(16, 64), *2 * (normal(24, 64, seed=1),), 8) @ wide(normal(64, 32, seed=4)),
    "positions_not_calibrated": lambda: torch.softmax(
        wide(normal(16, 80)) @ wide(torch.cat([0.05 * normal(24, 64, seed=1), normal(24, 16, seed=2)], 1)).t() / 9, -1),
    "number_left_at_one": lambda: attended(normal(16, 32), 3 * normal(24, 32, seed=1), normal(24, 32, seed=2), 32**0.5),
    "rows_by_columns": lambda: wide(normal(64, 64) * torch.exp2(2 * normal(64, 1, seed=4))) @ wide(channels()).t() + wide(normal(64, seed=6)),
}  # fmt: skip
