"""Attention, its masks and its sums, an optimizer's formats, splats on a screen, gradients of single examples."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bugs.bug import Bug, normal, uniform

HALF, LOW, WIDE = torch.float16, torch.bfloat16, torch.float32


class Clipped(nn.Module):
    """A linear layer that keeps what came in and, by a hook, the gradient of what went out."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * normal(6, 12))
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = functional.linear(x, self.weight)
        self.kept.append(x.detach())
        out.register_hook(lambda gradient: self.kept.append(gradient.detach()))
        return out


def example_norms(widened: bool) -> torch.Tensor:
    """Norms of each example's gradient, for privacy: inputs come in float32, gradients of outputs in what autocast has made of them."""
    layer, x = Clipped(), normal(4, 5, 12, seed=1)
    with torch.autocast("cpu", dtype=LOW):
        out = layer(x)
    out.float().square().mean().backward()
    inputs, gradients = layer.kept
    if widened:
        inputs, gradients = inputs.float(), gradients.float()
    of_inputs, of_gradients = inputs @ inputs.transpose(1, 2), gradients @ gradients.transpose(1, 2)
    return torch.einsum("nts,nts->n", of_inputs, of_gradients).sqrt()  # culprit: example-norms


def orthogonalised(g: torch.Tensor, cast: bool) -> torch.Tensor:
    x = g.bfloat16()
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.float() if cast else x  # culprit: normalised-momentum


@torch.no_grad()
def orthogonal_steps(cast: bool) -> torch.Tensor:
    """Two steps of Muon with a second moment of each row, in bfloat16 throughout; the moment is given a mean in float32."""
    weight, momentum, second = normal(8, 16).to(LOW), torch.zeros(8, 16, dtype=LOW), torch.zeros(8, 1, dtype=LOW)
    for seed in (1, 2):
        gradient = normal(8, 16, seed=seed).to(LOW)
        momentum.lerp_(gradient, 0.05)
        update = orthogonalised(gradient.lerp(momentum, 0.95), cast)  # culprit: normalised-momentum
        length = update.norm()
        second.lerp_((update * update).mean(-1, keepdim=True), 0.05)  # culprit: normalised-momentum
        update = update / (second.sqrt() + 1e-10)
        update = update * (length / update.norm())
        weight.add_(update, alpha=-0.02)
    return weight.float()


class CrossAttention(nn.Module):
    """Queries and keys that grew in training: products of 64 of them pass 65504 before they are scaled."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide, self.scale = wide, 64**-0.5
        self.to_q, self.to_k, self.to_v = (nn.Linear(32, 64, bias=False) for _ in range(3))
        with torch.no_grad():
            shared = normal(64, 32)
            for place, each in enumerate((self.to_q, self.to_k)):
                each.weight.copy_(9 * shared + 0.5 * normal(64, 32, seed=place + 1))
            self.to_v.weight.copy_(0.2 * normal(64, 32, seed=3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.to_q(x), self.to_k(x), self.to_v(x)
        if self.wide:
            with torch.autocast("cpu", enabled=False):
                similar = torch.einsum("b i d, b j d -> b i j", q.float(), k.float()) * self.scale
        else:
            similar = torch.einsum("b i d, b j d -> b i j", q, k) * self.scale  # culprit: image-attention
        return torch.einsum("b i j, b j d -> b i d", similar.softmax(-1), v)


def attended(wide: bool) -> dict[str, Any]:
    return {"model": CrossAttention(wide), "inputs": (normal(2, 10, 32, seed=5),), "precision": "16-mixed"}


def image(wide: bool) -> torch.Tensor:
    arguments = attended(wide)
    with torch.no_grad(), torch.autocast("cpu", dtype=HALF):
        return arguments["model"](*arguments["inputs"]).float()


def rising_bias(lowered: bool) -> torch.Tensor:
    """ALiBi counted from the first token upwards: up to 920, where half has steps of a half. The mended one takes off the row's largest."""
    length, slopes = 1100, torch.tensor([0.84, 0.5, 0.25])
    bias = slopes[:, None, None] * torch.arange(length) + torch.full((length, length), float("-inf")).triu(1)[-6:]
    if lowered:
        bias = bias - bias.amax(-1, keepdim=True)
    q, k, v = (normal(3, rows, 16, seed=seed).half() for seed, rows in ((0, 6), (1, length), (2, length)))
    scores = q @ k.transpose(-1, -2) / 4 + bias.to(q.dtype)  # culprit: rising-bias
    return (torch.softmax(scores.float(), -1).half() @ v).float()


def screen_widths(stored: bool) -> torch.Tensor:
    """Widths in pixels of thin splats on a screen: covariances in half precision lose the thinnest of three axes."""
    turn, scales = torch.linalg.qr(normal(40, 3, 3)).Q, torch.tensor([0.8, 0.4, 0.004]) * (0.8 + 0.4 * uniform(40, 1))
    covariance = turn @ torch.diag_embed(scales**2) @ turn.transpose(1, 2)
    if stored:
        covariance = covariance.half().float()  # culprit: splat-covariance
    thinnest = turn[:, :, 2]
    across = torch.linalg.cross(thinnest, turn[:, :, 0] + 0.0)
    view = torch.stack([thinnest, across], 1)  # looked at along an edge
    on_screen = 250.0**2 * (view @ covariance @ view.transpose(1, 2)) + 0.3 * torch.eye(2)
    return on_screen[:, 0, 0].clamp_min(0).sqrt()


def decoded(dtype: torch.dtype) -> torch.Tensor:
    """Attention of one new token over 700 cached ones, a value at a time: each adds a 700th to a sum near one."""
    scores, values = 0.3 * normal(4, 700), (0.8 + 0.3 * normal(700, 16, seed=1)).to(LOW)
    shares = torch.softmax(scores, -1).to(LOW)
    out = torch.zeros(4, 16, dtype=dtype)
    for place in range(700):
        out += shares[:, place, None].to(dtype) * values[place].to(dtype)  # culprit: attention-accumulator
    return out.to(LOW).float()


def replace_masked_values(values: torch.Tensor, mask: torch.Tensor, by: float) -> torch.Tensor:
    return values.masked_fill(~mask, by)  # culprit: masked-spans


def span_ends(finite: bool) -> torch.Tensor:
    """The likeliest ends of an answer, padding masked by -1e7, which half precision has not got."""
    logits, mask = normal(3, 20).half(), torch.arange(20) < torch.tensor([[20], [12], [7]])
    by = max(torch.finfo(logits.dtype).min, -1e7) if finite else -1e7
    return torch.softmax(replace_masked_values(logits, mask, by), -1).float()


BUGS = (
    Bug("normalised-momentum", "zichongli5/NorMuon#4", ("dtype-leak",), "aten._to_copy.default", lambda: orthogonal_steps(True),
        lambda: orthogonal_steps(False), raises=RuntimeError),
    Bug("image-attention", "Stability-AI/stablediffusion#89", ("overflow", "nan"), "aten.bmm.default", lambda: image(False),
        lambda: image(True), measured=attended),
    Bug("rising-bias", "baichuan-inc/Baichuan-13B#140", ("amplified-rounding", "cancellation", "integer-rounding"), "aten.add.Tensor",
        lambda: rising_bias(False), lambda: rising_bias(True)),
    Bug("splat-covariance", "playcanvas/engine#7380", ("cancellation", "amplified-rounding"), "aten._to_copy.default",
        lambda: screen_widths(True), lambda: screen_widths(False),
        expected_miss="there and back on one line is a rounding that is meant, so the reference rounds too"),
    Bug("attention-accumulator", "Xilinx/mlir-air#1600", ("absorption", "accumulated-drift"), "aten.add_.Tensor",
        lambda: decoded(LOW), lambda: decoded(WIDE)),
    Bug("masked-spans", "allenai/allennlp-models#68", ("overflow",), "aten.masked_fill.Scalar", lambda: span_ends(False),
        lambda: span_ends(True), raises=RuntimeError),
    Bug("example-norms", "awslabs/fast-differential-privacy#19", ("dtype-leak",), "aten.bmm.default", lambda: example_norms(False),
        lambda: example_norms(True), raises=RuntimeError),
)  # fmt: skip
