"""Healthy trainings that quantise, each a small program of its own, frozen before precheck was run on them."""

from __future__ import annotations

import math
from typing import Any

import torch
from float8_by_hand import E4M3, E5M2, LOW, normal
from tenth_recipes import NF4
from torch import nn
from torch.nn import functional


def draws(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Window(nn.Module):
    """A delayed scale: the format's largest number over the greatest magnitude of eight steps."""

    def __init__(self, end: float) -> None:
        super().__init__()
        self.end = end
        self.register_buffer("seen", torch.zeros(8))

    @torch.no_grad()
    def scale(self, x: torch.Tensor) -> torch.Tensor:
        top = x.detach().abs().amax().float()
        if not bool(self.seen.any()):
            self.seen[0] = top
        made = self.end / (2 * self.seen.amax())
        self.seen.copy_(torch.roll(self.seen, 1))
        self.seen[0] = top
        return made


class HybridProduct(torch.autograd.Function):
    """e4m3 forward and e5m2 backward, each under the scale of a window."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, windows: nn.ModuleList) -> torch.Tensor:
        sx, sw = windows[0].scale(x), windows[1].scale(w)
        qx, qw = (x * sx).clamp(-448, 448).to(E4M3), (w * sw).clamp(-448, 448).to(E4M3)
        ctx.save_for_backward(qx, qw, sx, sw)
        ctx.window = windows[2]
        return qx.float() @ qw.float().t() / (sx * sw)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        qx, qw, sx, sw = ctx.saved_tensors
        sg = ctx.window.scale(gradients[0])
        g = (gradients[0] * sg).clamp(-57344, 57344).to(E5M2).float()
        return g @ qw.float() / (sg * sw), g.t() @ qx.float() / (sg * sx), None


def hybrid_float8() -> torch.Tensor:
    """An MLP is trained for ten steps in float8 with delayed scales."""
    weights = [(normal(64, 32, seed=1) / 6).requires_grad_(), (normal(8, 64, seed=2) / 8).requires_grad_()]
    windows = [nn.ModuleList([Window(448), Window(448), Window(57344)]) for _ in weights]
    optimizer, teacher = torch.optim.AdamW(weights, lr=2e-3), normal(8, 32, seed=3)
    for step in range(10):
        x = normal(64, 32, seed=step + 10)
        y = functional.gelu(HybridProduct.apply(x, weights[0], windows[0]))  # type: ignore[no-untyped-call]
        loss = (HybridProduct.apply(y, weights[1], windows[1]) - x @ teacher.t()).square().mean()  # type: ignore[no-untyped-call]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.cat([each.detach().flatten() for each in weights]).to(LOW)


class TiledProduct(torch.autograd.Function):
    """DeepSeek: inputs and gradients in tiles of 1 x 16, weights in blocks of 16 x 16, sums of each block in float32."""

    @staticmethod
    def tiles(x: torch.Tensor) -> torch.Tensor:
        parts = x.view(len(x), -1, 16)
        scale = parts.abs().amax(-1, keepdim=True).clamp(min=1e-20) / 448
        return ((parts / scale).to(E4M3).float() * scale).view(x.shape)

    @staticmethod
    def blocks(w: torch.Tensor) -> torch.Tensor:
        parts = w.view(w.shape[0] // 16, 16, w.shape[1] // 16, 16)
        scale = parts.abs().amax((1, 3), keepdim=True) / 448
        return ((parts / scale).to(E4M3).float() * scale).view(w.shape)

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return TiledProduct.tiles(x) @ TiledProduct.blocks(w).t()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (x, w), g = ctx.saved_tensors, gradients[0]
        return TiledProduct.tiles(g) @ TiledProduct.blocks(w), TiledProduct.tiles(g.t().contiguous()) @ TiledProduct.tiles(x.t().contiguous()).t()


def tiles_of_float8() -> torch.Tensor:
    w = (normal(32, 48, seed=1) / 7).requires_grad_()
    optimizer = torch.optim.SGD([w], lr=0.1)
    for step in range(5):
        x = normal(64, 48, seed=step + 2)
        loss = (TiledProduct.apply(x, w) - x[:, :32]).square().mean()  # type: ignore[no-untyped-call]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return w.detach().to(LOW)


def round_pass(x: torch.Tensor) -> torch.Tensor:
    return (x.round() - x).detach() + x


def grad_scale(x: torch.Tensor, by: float) -> torch.Tensor:
    return (x - x * by).detach() + x * by


def convolution_with_learned_steps() -> torch.Tensor:
    """LSQ as its public code has it, on a small convolutional network with a BatchNorm."""
    torch.manual_seed(0)
    conv, norm, head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)
    x, label = normal(16, 3, 8, 8).relu(), torch.arange(16) % 4
    steps = [nn.Parameter(2 * t.detach().abs().mean() / high**0.5) for t, high in ((conv.weight, 7), (x, 15))]
    optimizer = torch.optim.SGD([*conv.parameters(), *norm.parameters(), *head.parameters(), *steps], lr=0.02)
    for _ in range(8):
        quantised = []
        for t, step, low, high in ((conv.weight, steps[0], -8, 7), (x, steps[1], 0, 15)):
            s = grad_scale(step, 1 / (high * t.numel()) ** 0.5)
            quantised.append(round_pass((t / s).clamp(low, high)) * s)
        y = head(norm(functional.conv2d(quantised[1], quantised[0], conv.bias)).relu().mean((2, 3)))
        optimizer.zero_grad()
        functional.cross_entropy(y, label).backward()
        optimizer.step()
    return y.detach().to(LOW)


class BitLinear(nn.Linear):
    """BitNet b1.58 as its training tips have it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.rms_norm(x, (self.in_features,))
        top = 127.0 / x.abs().max(dim=-1, keepdim=True).values.clamp(min=1e-5)
        held = x + ((x * top).round().clamp(-128, 127) / top - x).detach()
        mean = 1.0 / self.weight.abs().mean().clamp(min=1e-5)
        w = self.weight + ((self.weight * mean).round().clamp(-1, 1) / mean - self.weight).detach()
        return functional.linear(held, w)


def ternary_language_model() -> torch.Tensor:
    torch.manual_seed(0)
    embed, up, down, head = nn.Embedding(40, 32), BitLinear(32, 64, bias=False), BitLinear(64, 32, bias=False), nn.Linear(32, 40)
    optimizer = torch.optim.AdamW([p for m in (embed, up, down, head) for p in m.parameters()], lr=3e-3)
    for step in range(5):
        tokens = torch.randint(0, 40, (4, 17), generator=draws(step))
        x = embed(tokens[:, :-1])
        y = head(x + down(functional.relu(up(x)).square()))
        optimizer.zero_grad()
        functional.cross_entropy(y.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
    return y.detach().to(LOW)


def eight_bits_of_adam() -> torch.Tensor:
    """Weights in bfloat16 beside a float32 copy; both moments in bytes by blocks of 64, in tables that are dense near zero."""
    positive = torch.cat([torch.zeros(1), 10.0 ** torch.linspace(-6, 0, 127)])
    tables = torch.cat([-positive[1:].flip(0), positive]), torch.cat([torch.zeros(1), 10.0 ** torch.linspace(-7, 0, 255)])
    master, state, teacher = normal(16, 64, seed=1) / 8, [(torch.zeros(16, 64), torch.ones(16, 1))] * 2, normal(16, 64, seed=2) / 8
    for step in range(1, 9):
        w, x = master.to(LOW).requires_grad_(), normal(32, 64, seed=step + 3).to(LOW)
        (x @ w.t() - x @ teacher.to(LOW).t()).float().square().mean().backward()
        assert w.grad is not None
        g, moments = w.grad.float(), []
        for place, (beta, given) in enumerate(((0.9, g), (0.99, g * g))):
            moment = beta * state[place][0] * state[place][1] + (1 - beta) * given
            moments.append(moment)
            top = moment.abs().amax(1, keepdim=True)
            codes = torch.bucketize(moment / top, (tables[place][1:] + tables[place][:-1]) / 2).to(torch.uint8)
            state[place] = tables[place][codes.long()], top
        master = master - 2e-3 * (moments[0] / (1 - 0.9**step)) / ((moments[1] / (1 - 0.99**step)).sqrt() + 1e-8)
    return master.to(LOW)


def adapters_beside_nf4() -> torch.Tensor:
    """QLoRA: a frozen weight in nf4 with scales in int8, and an adapter in bfloat16 that is trained."""
    base = (normal(32, 64, seed=1) / 8).view(64, 32)
    top = base.abs().amax(1)
    codes = (base[..., None] / top[:, None, None] - NF4).abs().argmin(-1).view(64, 16, 2).to(torch.uint8)
    packed, offset = codes[..., 0] << 4 | codes[..., 1], top.mean()
    double = (top - offset).abs().amax() / 127
    held = torch.round((top - offset) / double).to(torch.int8)
    a, b = (normal(8, 64, seed=2) / 8).to(LOW).requires_grad_(), torch.zeros(32, 8, dtype=LOW, requires_grad=True)
    optimizer = torch.optim.SGD([a, b], lr=0.5)
    for step in range(4):
        x = normal(16, 64, seed=step + 3).to(LOW)
        levels = torch.stack([packed >> 4, packed & 15], -1).flatten(1)
        w = (NF4[levels.long()] * (held.float() * double + offset)[:, None]).view(32, 64).to(LOW)
        y = x @ w.t() + 2 * (x @ a.t()) @ b.t()
        optimizer.zero_grad()
        (y.float() - x[:, :32].float()).square().mean().backward()
        optimizer.step()
    return y.detach()


def integer_weights_by_chance() -> torch.Tensor:
    """Weights in int8 with scales of rows that are made anew in each step; the update is added in float32 and rounded by chance."""
    w, rng = normal(16, 32, seed=1) / 6, draws(2)
    scale = w.abs().amax(1, keepdim=True) / 127
    codes = torch.round(w / scale).to(torch.int8)
    for step in range(8):
        x = normal(32, 32, seed=step + 3)
        dense = codes.float() * scale
        gradient = (x @ dense.t() - x[:, :16]).t() @ x / 32
        dense = dense - 0.05 * gradient
        scale = dense.abs().amax(1, keepdim=True) / 127
        codes = torch.floor(dense / scale + torch.rand(16, 32, generator=rng)).clamp(-127, 127).to(torch.int8)
    return (codes.float() * scale).to(LOW)


def borders_learned() -> torch.Tensor:
    """PACT: what an activation ends at is learned, and it is rounded to four bits below that; weights as in DoReFa."""
    w, v, alpha = (normal(32, 16, seed=1) / 4).requires_grad_(), (normal(4, 32, seed=2) / 6).requires_grad_(), torch.tensor(3.0, requires_grad=True)
    optimizer = torch.optim.SGD([w, v, alpha], lr=0.05)
    for step in range(6):
        x = normal(32, 16, seed=step + 3)
        squeezed = torch.tanh(w) / torch.tanh(w).abs().max().detach() / 2 + 0.5
        held = 2 * round_pass(squeezed * 15) / 15 - 1
        y = (x @ held.t()).abs()
        y = (y - (y - alpha).relu()).relu()
        y = round_pass(y / alpha * 15) * alpha / 15
        optimizer.zero_grad()
        (y @ v.t() - x[:, :4]).square().mean().backward()
        optimizer.step()
    return torch.cat([v.detach().flatten(), alpha.detach().view(1)]).to(LOW)


def gradients_of_mxfp8() -> torch.Tensor:
    """Both operands of each product in mxfp8 along its sum; weights and moments in float32."""

    def mx(t: torch.Tensor) -> torch.Tensor:
        parts = t.reshape(len(t), -1, 32)
        byte = (torch.ceil(torch.log2(parts.abs().amax(-1, keepdim=True) / 448)) + 127).clamp(0, 254).to(torch.uint8)
        scale = torch.exp2(byte.float() - 127)
        return ((parts / scale).to(E4M3).float() * scale).view(t.shape)

    w, momentum = normal(32, 64, seed=1) / 8, torch.zeros(32, 64)
    for step in range(6):
        x = normal(64, 64, seed=step + 2)
        g = (mx(x) @ mx(w).t() - x[:, :32]) / 64
        momentum = 0.9 * momentum + mx(g.t()) @ mx(x.t()).t()
        w = w - 0.1 * momentum
    return w.to(LOW)


def rounding_that_is_learned() -> torch.Tensor:
    """AdaRound: whether each weight is rounded up or down is learned against the layer's result, and is fixed at the end."""
    x, w = normal(64, 16), normal(8, 16, seed=1)
    step = w.abs().amax(1, keepdim=True) / 7
    low = torch.floor(w / step)
    rest = w / step - low
    v = torch.log((rest + 0.1) / (1.1 - rest)).requires_grad_()
    optimizer = torch.optim.Adam([v], lr=0.1)
    for epoch in range(12):
        h = (torch.sigmoid(v) * 1.2 - 0.1).clamp(0, 1)
        soft = (low + h).clamp(-8, 7) * step
        loss = (x @ (soft - w).t()).square().mean() + 0.01 * (1 - (2 * h - 1).abs() ** (20 - epoch)).sum() / math.sqrt(h.numel())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    codes = (low + (v.detach() >= 0)).clamp(-8, 7).to(torch.int8)
    return (x @ (codes.float() * step).t()).to(LOW)


HEALTHY = (hybrid_float8, tiles_of_float8, convolution_with_learned_steps, ternary_language_model, eight_bits_of_adam, adapters_beside_nf4,
           integer_weights_by_chance, borders_learned, gradients_of_mxfp8, rounding_that_is_learned)  # fmt: skip
